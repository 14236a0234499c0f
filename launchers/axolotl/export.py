"""Exporter of Axolotl: one YAML for the whole run; the user adds data and model from a file of their own.

Names: Axolotl 0.19.0, utils/schemas (config.py, training.py, fsdp.py) and utils/distributed.py
(build_parallelism_config).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import yaml

from meshwright.launchers.accelerate.export import (
    accelerate_warnings,
    attention,
    mesh,
    optimizer,
    recomputes_in_script,
    tensor_packages,
)
from meshwright.launchers.export import StartCommand, bundled, model_is_in_the_script
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target, pads, pads_to_longest
from meshwright.launchers.transformers.export import (
    OF_THE_RUN,
    WRITTEN_FACTS,
    Values,
    adapter_kinds,
    decided,
    experts,
    trained_whole,
    trainers_galore,
)
from meshwright.profiles.adapters import linear_names
from meshwright.profiles.errors import FieldError
from meshwright.profiles.optimizers import optimizer_named
from meshwright.profiles.requirements import packages

_RESUMES = {"auto_resume_from_checkpoints": True}  # a restarted run resumes
CONFIG_FILE = "axolotl.yaml"
PRODUCT = "Axolotl 0.19.0"
_NEEDS = (
    ("RUN_CONFIG", "a YAML of your own: base_model, datasets, learning_rate, num_epochs, output_dir, …"),
)
# Other names that would change the plan: aliases, other engines, frozen weights.
_OTHERS = (
    "adapter", "batch_size", "bfloat16", "deepspeed", "expert_parallel_size", "flash_attention", "float16",
    "fp8", "fsdp", "load_in_4bit", "load_in_8bit", "lora_r", "lora_target_linear", "lora_target_modules",
    "lora_modules_to_save", "sdp_attention", "sequence_parallel_degree",
    "torch_compile", "context_parallel_size", "dp_replicate_size", "dp_shard_size", "fsdp_config",
    "fsdp_version", "tensor_parallel_size", "rl", "rl_adapter_ref_model", "reward_model",
    "precompute_ref_log_probs",
)  # fmt: skip
# The two files become one; for a key in both the last would silently win.
_JOINED = """\
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


_KINDS = {"pair": "dpo", "unpaired": "kto"}


def values_of(target: Target) -> Values:
    """Return every value that the plan sets."""
    config = target.config
    return {
        "micro_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": config.num_microbatches,
        "sequence_len": target.workload.seq_length,
        # every sequence is full, as the prediction assumes; answers that are compared are not packed
        "sample_packing": not (pads(target) or target.workload.sample in _KINDS),
        "pad_to_sequence_len": not pads_to_longest(target),
        "bf16": True,
        "fp16": False,
        # its rings only accept FlashAttention 2
        "attn_implementation": attention(target)
        if config.context_parallel_size == 1
        else "flash_attention_2",
        "gradient_checkpointing": recomputes_in_script(target),
        "optimizer": optimizer(target),
        **trainers_galore(target, "optimizer"),
        **_adapter(target),
        **({"rl": _KINDS[target.workload.sample]} if target.workload.sample in _KINDS else {}),
        **(_CUT if _cuts_logits(target) else {}),
        **experts(target),
        **(_shards(target) if config.zero_stage else {}),
    }


def _shards(target: Target) -> Values:
    """Return the mesh of FSDP2; without one Axolotl replicates every rank."""
    config, sizes = target.config, mesh(target)
    return {
        "tensor_parallel_size": sizes["tp_size"],
        "context_parallel_size": sizes["cp_size"],
        "dp_replicate_size": sizes["dp_replicate_size"],
        "dp_shard_size": sizes["dp_shard_size"],
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


# Cut cross entropy, which keeps no logits (Axolotl's integrations/cut_cross_entropy).
_CUT: Values = {
    "plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"],
    "cut_cross_entropy": True,
}


def _cuts_logits(target: Target) -> bool:
    """Return whether the loss was priced without logits."""
    return target.workload.framework_options.get("loss_kernel") == "cut"


def _adapter(target: Target) -> Values:
    """Return adapters of peft next to weights in bf16 or 4 bits; alpha is twice the rank."""
    workload, options = target.workload, target.workload.framework_options
    if not workload.lora_rank:
        return {}
    nested = workload.base_precision == "nf4-double"  # its default
    quantised: Values = {"load_in_4bit": True} if workload.base_precision != "bf16" else {}
    if quantised and not nested:
        quantised["bnb_config_kwargs"] = {"bnb_4bit_use_double_quant": False}
    return {
        "adapter": "qlora" if quantised else "lora",
        **quantised,
        **({"quantize_moe_experts": True} if options.get("quantizes_experts") else {}),
        "lora_r": workload.lora_rank,
        "lora_alpha": 2 * workload.lora_rank,
        **adapter_kinds(target, "peft_use_dora"),
        **(
            {"lora_target_linear": True}
            if linear_names(target.problem.model) == workload.lora_targets
            else {"lora_target_modules": list(workload.lora_targets)}
        ),
        **trained_whole(target, "lora_modules_to_save"),
    }


def export(target: Target) -> ExportBundle:
    """Return Axolotl's YAML without data and model, and the two scripts that start it."""
    refuse_first(target, "axolotl", (replicas_need_flash_attention,))
    values = values_of(target)
    needed = {
        "GaLore": optimizer_named(target.workload.optimizer).low_rank,
        "ring attention": target.config.context_parallel_size > 1,
        "fused loss": _cuts_logits(target),
    }
    extra = (packages()[name] for name, is_needed in needed.items() if is_needed)
    names = decided(dict(sorted(values.items())), _OTHERS)
    keys = " \\\n    ".join(textwrap.wrap(" ".join(names), 100))
    return bundled(
        target,
        product=PRODUCT,
        shape=True,
        start=StartCommand(
            program='-m axolotl.cli.train "${joined}"',
            needs=_NEEDS,
            packages=(*tensor_packages(target), *extra),
            decides=names,
            before=_JOINED.replace("@KEYS@", keys),
        ),
        warnings=_warnings(target),
        own=lambda head: {
            CONFIG_FILE: head + yaml.safe_dump(values | OF_THE_RUN | _RESUMES, sort_keys=True)
        },
    )


def _warnings(target: Target) -> Iterator[str]:
    cut = ("loss_kernel",) if _cuts_logits(target) else ()
    ways = ("grouped_gemm",) if experts(target) else ()
    yield from accelerate_warnings(target, (*WRITTEN_FACTS, "quantizes_experts", *cut, *ways))
    yield model_is_in_the_script(target)
    if target.config.zero_stage:
        yield "Axolotl keeps weights and both moments in bf16 (its FSDP2 casts nothing up), as was priced"


def replicas_need_flash_attention(target: Target) -> Iterator[FieldError]:
    """Require a kernel for which Axolotl casts embeddings and head back to bf16 (loaders/model.py:462)."""
    if target.config.zero_stage == 0 and not attention(target).startswith("flash"):
        yield FieldError(
            pointer="/workload/framework_options/attention_kernel",
            message="without FSDP Axolotl keeps embeddings and head in fp32 here: not supported",
            allowed="flash2, flash3",
            nearest="flash2",
        )
