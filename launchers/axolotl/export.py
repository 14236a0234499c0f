"""Exporter of Axolotl: one YAML for the whole run; the user adds data and model from a file of their own.

Names: Axolotl 0.19.0, utils/schemas (config.py, training.py, fsdp.py) and utils/distributed.py
(build_parallelism_config).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import ClassVar

from meshwright.launchers.accelerate.export import (
    accelerate_warnings,
    mesh,
    optimizer_packages,
    tensor_packages,
)
from meshwright.launchers.export import compiled_facts, model_is_in_the_script
from meshwright.launchers.images import (
    adapted_pattern,
    has_images,
)
from meshwright.launchers.target import Target, pads, pads_to_longest
from meshwright.launchers.transformers.export import WRITTEN_FACTS, TrainerFiles, Values, experts
from meshwright.profiles.adapters import class_targets, linear_names, parted
from meshwright.profiles.attention import HYBRID
from meshwright.profiles.frameworks import TERNARY
from meshwright.profiles.layer_names import end_names, layers_path
from meshwright.profiles.requirements import Requirement, packages
from meshwright.profiles.storage import BasePrecision
from meshwright.profiles.trained_layers import layers_named


def _shards(target: Target) -> Values:
    """Return the mesh of FSDP2; without one Axolotl replicates every rank."""
    config, sizes = target.config, mesh(target)
    ranks: Values = {"expert_parallel_size": config.expert_parallel_size} if _shares_experts(target) else {}
    return {
        **ranks,
        "tensor_parallel_size": sizes["tp_size"],
        "context_parallel_size": sizes["cp_size"],
        "dp_replicate_size": sizes["dp_replicate_size"],
        "dp_shard_size": sizes["dp_shard_size"] // config.expert_parallel_size,
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": config.zero_stage == 3,  # noqa: PLR2004 - ZeRO-3
            "activation_checkpointing": config.recompute_granularity == "full",
            "offload_params": False,
            # 0.21.0 turns it off with tensor ranks, which load their own parts (validation.py:2394)
            "cpu_ram_efficient_loading": sizes["tp_size"] == 1,
            "state_dict_type": "SHARDED_STATE_DICT",
        },
    }


def _images(target: Target) -> Values:
    """Return what reads images, as examples/qwen3.5/9b-fft-vision.yaml does, and what freezes a tower."""
    frozen: Values = {"freeze_mm_modules": True} if target.workload.frozen else {}
    if not has_images(target):
        return frozen
    reads: Values = {"processor_type": "AutoProcessor", "skip_prepare_dataset": True}
    return {**frozen, **reads, "remove_unused_columns": False}


# What quantises frozen weights as it loads them; of 4 bits scales are quantised, too, by default.
_FROZEN: Mapping[BasePrecision, Values] = {
    "bf16": {},
    "int8": {"load_in_8bit": True},
    "nf4": {"load_in_4bit": True, "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}},
    "nf4-double": {"load_in_4bit": True},
}


_LISA_STEPS = 20  # between two drawings (examples/llama-2/lisa.yml)


def _layers(target: Target) -> Values:
    """Return patterns of the weights that are trained, if some layers are frozen (utils/freeze.py:52)."""
    work, names = target.workload, target.model.layer_names
    if not work.trained_layers:
        return {}
    if work.framework_options.get("redraws_layers"):
        drawn = len(layers_named(work.trained_layers))
        return {"lisa_n_layers": drawn, "lisa_step_interval": _LISA_STEPS}
    path = layers_path(names, in_tower=target.model.tower is not None)
    numbers = "|".join(map(str, layers_named(work.trained_layers)))
    named = end_names(names, path)
    ends = [f"^{named[module]}$" for module in work.trained_modules]
    return {"unfrozen_parameters": [*([f"^{path}.({numbers})."] if numbers else []), *ends]}


def _plugins(target: Target) -> Values:
    """Return the plugins of losses and of expert ranks (Axolotl's integrations)."""
    named = {
        "cut_cross_entropy.CutCrossEntropyPlugin": _cuts_logits(target),
        "diffusion.DiffusionPlugin": _predicts_masked(target),
        "expert_parallel.ExpertParallelPlugin": _shares_experts(target),
    }
    listed = [f"axolotl.integrations.{name}" for name, on in named.items() if on]
    cut: Values = {"cut_cross_entropy": True} if _cuts_logits(target) else {}
    return ({"plugins": listed} if listed else {}) | cut


def _shares_experts(target: Target) -> bool:
    return target.config.expert_parallel_size > 1


def _rounds(target: Target) -> Values:
    """Return what quantisation-aware training rounds inputs and weights to, if it was priced."""
    facts = target.facts
    if facts.fake_quantization == "none":
        return {}
    if facts.fake_quantization == TERNARY:
        return {"use_onebitllms": True}
    inputs, _, weights = facts.fake_quantization.rpartition("-")
    rounded: Values = {"weight_dtype": weights, "group_size": int(facts.fake_quantized_group)}
    return {"qat": rounded | ({} if inputs in ("", "bf16") else {"activation_dtype": inputs})}


def _cuts_logits(target: Target) -> bool:
    """Return whether the loss was priced without logits."""
    return target.workload.framework_options.get("loss_kernel") == "cut"


def _tiles(target: Target) -> Values:
    """Return the tiles that each MLP cuts a rank's part of a sequence into, if they were priced."""
    size = target.facts.mlp_tile_tokens
    tokens = target.workload.seq_length / target.config.context_parallel_size
    return {"tiled_mlp": True, "tiled_mlp_num_shards": ceil(tokens / size)} if size else {}


def _predicts_masked(target: Target) -> bool:
    """Return whether the loss was priced of masked tokens, which are predicted from all others."""
    return target.workload.framework_options.get("loss_kernel") == "masked"


class AxolotlFiles(TrainerFiles):
    """Axolotl, which torchrun starts: a mesh under keys of its own in the trainer's file."""

    launcher = "axolotl"
    product = "Axolotl 0.19.0"
    file = "axolotl.yaml"
    command = '-m axolotl.cli.train "${joined}"'
    kinds: ClassVar[Mapping[str, str]] = {"sequence": "", "pair": "dpo", "unpaired": "kto"}
    needs = (
        (
            "RUN_CONFIG",
            "a YAML of your own: base_model, datasets, learning_rate, num_epochs, output_dir, …",
        ),
    )
    is_command = False
    batch = ("micro_batch_size", "gradient_accumulation_steps", "sequence_len")
    optimizer, dora = "optimizer", "peft_use_dora"
    ring_kernel = "flash_attention_2"  # its rings accept this one alone
    of_the_run = TrainerFiles.of_the_run | {"auto_resume_from_checkpoints": True}  # a restarted run resumes
    # Aliases, other engines, frozen weights.
    others = (
        "adapter", "batch_size", "bfloat16", "deepspeed", "expert_parallel_size", "flash_attention",
        "float16", "fp8", "fsdp", "load_in_4bit", "load_in_8bit", "lora_r", "lora_target_linear",
        "lora_target_modules", "lora_modules_to_save", "sdp_attention", "sequence_parallel_degree",
        "torch_compile", "context_parallel_size", "dp_replicate_size", "dp_shard_size", "fsdp_config",
        "fsdp_version", "tensor_parallel_size", "rl", "rl_adapter_ref_model", "reward_model",
        "precompute_ref_log_probs", "qat", "use_onebitllms", "gemma4_hybrid_attn_impl",
        "unfrozen_parameters", "tiled_mlp", "tiled_mlp_num_shards",
    )  # fmt: skip
    # The two files become one; for a key in both the last would silently win.
    before = """\
for key in \\
    @KEYS@; do
    if grep -q "^${key}:" "${RUN_CONFIG}"; then
        echo "error: ${key} in ${RUN_CONFIG} belongs to the plan; change the plan instead" >&2
        exit 2
    fi
done
joined="$(mktemp -d)/run"
cat "${here}/axolotl.yaml" "${RUN_CONFIG}" >"${joined}"
"""

    def decided(self, target: Target) -> tuple[str, ...]:
        """Return the keys of the plan in the order of the file, and others that would change it."""
        values = self.values(target)
        return (*sorted(values), *(name for name in self.others if name not in values))

    def own(self, target: Target) -> Values:
        """Return packing, the kind of answers, the loss, the experts, and the mesh of FSDP2."""
        kind = self.kind(target)
        return {
            # every sequence is full, as the prediction assumes; answers that are compared are not packed
            "sample_packing": not (pads(target) or kind or has_images(target)),
            "pad_to_sequence_len": not pads_to_longest(target),
            **_images(target),
            **_layers(target),
            **({"rl": kind} if kind else {}),
            **_plugins(target),
            **_rounds(target),
            **_tiles(target),
            **experts(target),
            **self.patched(target),
            **({"torch_compile": True} if self.compiles(target) else {}),
            **(_shards(target) if target.config.zero_stage else {}),
        }

    def compiles(self, target: Target) -> bool:
        """Return whether torch's compiler fuses operators, norms too, and Liger's loss does not."""
        fuses = super().compiles(target) and bool(compiled_facts(target))
        return fuses and target.facts.loss_kernel != "liger"

    def attention(self, target: Target) -> Values:
        """Return the attention kernel, and that layers with wider heads have torch's."""
        mixed = target.facts.attention_kernel == HYBRID
        return super().attention(target) | ({"gemma4_hybrid_attn_impl": True} if mixed else {})

    def adapted(self, target: Target) -> Values:
        """Return the layers with adapters; all of them have a switch."""
        targets, parameters = parted(target.workload.lora_targets)
        every = linear_names(target.problem.model) == targets
        words = class_targets(target.model, targets)
        listed = adapted_pattern(target, targets) if has_images(target) else list(words)
        named: Values = {"lora_target_linear": True} if every else {"lora_target_modules": listed}
        apart: Values = {"lora_target_parameters": list(parameters)} if parameters else {}
        return {**(named if targets else {}), **apart, **super().adapted(target)}

    def frozen(self, target: Target) -> Values:
        """Return weights in bf16, 8 or 4 bits."""
        workload = target.workload
        quantised: Values = dict(_FROZEN[workload.base_precision])
        if workload.framework_options.get("quantizes_experts"):
            quantised["quantize_moe_experts"] = True
        return {"adapter": "qlora" if "load_in_4bit" in quantised else "lora", **quantised}

    def patched(self, target: Target) -> Values:
        """Return the switch of Llama 4's experts as linear layers."""
        moe = target.model.moe
        listed = moe is not None and moe.expert_adapters == "listed"
        return {"llama4_linearized_experts": True} if listed else {}

    def files(self, head: str, target: Target) -> dict[str, str]:
        """Return Axolotl's YAML without data and model."""
        return self.own_file(head, target)

    def packages(self, target: Target) -> Iterator[Requirement]:
        """Yield the packages of the plan's parts."""
        needed = {
            **optimizer_packages(target),
            "ring attention": target.config.context_parallel_size > 1,
            "fused loss": _cuts_logits(target),
            "deepep": _shares_experts(target),
        }
        yield from tensor_packages(target)
        yield from (packages()[name] for name, is_needed in needed.items() if is_needed)

    def warnings(self, target: Target) -> Iterator[str]:
        """Yield the differences of Axolotl from the plan."""
        cut = ("loss_kernel",) if _cuts_logits(target) or _predicts_masked(target) else ()
        ways = ("moe_dispatcher", *(("grouped_gemm",) if experts(target) else ()))
        rounds = ("fake_quantization", "fake_quantized_group") if _rounds(target) else ()
        always = ("quantizes_experts", "mlp_tile_tokens", "redraws_layers")
        fused = compiled_facts(target) if self.compiles(target) else ()
        written = (*WRITTEN_FACTS, *always, *cut, *ways, *rounds, *fused)
        yield from accelerate_warnings(target, written)
        yield model_is_in_the_script(target)
        if target.config.zero_stage:
            yield (
                "Axolotl keeps weights and both moments in bf16 (its FSDP2 casts nothing up), as was priced"
            )


export = AxolotlFiles().export
