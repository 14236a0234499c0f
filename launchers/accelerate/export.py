"""Exporter of accelerate: a plan becomes a YAML file (FSDP2 and its mesh) and the scripts that use it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import yaml

from meshwright.launchers import export as common
from meshwright.launchers.dialect import written
from meshwright.launchers.flags import FlagNames, flag_names, flags_of
from meshwright.launchers.images import image_warnings
from meshwright.launchers.rules import Rule, refuse_first
from meshwright.launchers.table import launchers, tables_of
from meshwright.launchers.target import ExportBundle, Target
from meshwright.launchers.templates import filled
from meshwright.profiles.adapters import class_targets, names_every, parted
from meshwright.profiles.attention import asked_kernel
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.frameworks import FOREACH, MERGED
from meshwright.profiles.optimizers import optimizer_named
from meshwright.profiles.requirements import Requirement, packages
from meshwright.profiles.storage import STORAGE, WHOLE_PRECISIONS, is_checkpoints

# --------------------------------------------------------------------------------------------------
# The configuration files of ``accelerate launch``: FSDP2 with a mesh, plain replicas, or DeepSpeed.
#
# Keys: accelerate 1.15.0, commands/config/config_args.py, utils/dataclasses.py, parallelism_config.py.


CONFIG_FILE = "accelerate.yaml"
# Attention kernels by transformers' names (AttentionInterface).
ATTENTION = {
    "flash1": "flash_attention_2", "flash2": "flash_attention_2", "flash3": "flash_attention_3",
    "flash4": "flash_attention_4",
    "cudnn": "sdpa", "efficient": "sdpa", "sdpa": "sdpa", "torch": "eager", "megatron-fused": "eager",
    "triton": "flex_attention", "flex": "flex_attention",
}  # fmt: skip
_PREFIX = "parallelism_config_"


def _kernel(target: Target) -> str:
    known = target.facts
    return asked_kernel(known.attention_kernel, target.model, known.transformers_release)


def attention(target: Target) -> str:
    """Return the priced attention kernel, by transformers' name."""
    return ATTENTION[_kernel(target)]


def attention_is_in_the_script(target: Target) -> str:
    """Return how the user's script has to load the model's attention."""
    name = ATTENTION[_kernel(target)]
    torchs = " (or sdpa, where torch takes its flash kernel)" if name == "flash_attention_2" else ""
    return f"load the model in your script with attn_implementation {name}{torchs}, which was priced"


def mesh(target: Target) -> dict[str, int]:
    """Return the sizes of the mesh, outer to inner: replicas, shards, rings, tensor ranks."""
    config = target.config
    shards = config.zero_shard_size // config.context_parallel_size
    return {
        "dp_replicate_size": config.data_parallel_size // shards,
        "dp_shard_size": shards,
        "cp_size": config.context_parallel_size,
        "tp_size": config.tensor_parallel_size,
    }


def accelerate_file(head: str, target: Target, *, compiles: bool) -> str:
    """Return the file of FSDP2 for ZeRO 2 and 3, or plain data parallelism for 0; header as comments."""
    config = target.config
    values = _machines(target)
    if config.zero_stage == 0:
        values["distributed_type"] = "MULTI_GPU" if config.num_gpus > 1 else "NO"
    else:
        values["distributed_type"] = "FSDP"
        values["fsdp_config"] = {
            "fsdp_version": 2,  # absent means 1
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": config.zero_stage == 3,  # noqa: PLR2004 - ZeRO-3
            "fsdp_activation_checkpointing": config.recompute_granularity == "full",
            "fsdp_offload_params": "parameters" in config.offload,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        sizes: dict[str, object] = {_PREFIX + name: size for name, size in mesh(target).items()}
        if config.context_parallel_size > 1:
            sizes[_PREFIX + "cp_comm_strategy"] = "alltoall"  # slices go round, as was priced
        values["parallelism_config"] = sizes
    if compiles:  # accelerate 1.15.0 accelerator.py:1701: blocks FSDP2 wraps
        values["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True}
    return head + yaml.safe_dump(values, sort_keys=True)


def deepspeed_plugin_file(head: str, target: Target, json_file: str) -> str:
    """Return the file of accelerate's DeepSpeed plugin, which refers to DeepSpeed's own file."""
    values = _machines(target)
    del values["mixed_precision"]  # DeepSpeed's file sets it; accelerate refuses both
    values["distributed_type"] = "DEEPSPEED"
    values["deepspeed_config"] = {
        "deepspeed_config_file": json_file,
        "zero3_init_flag": target.config.zero_stage == 3,  # noqa: PLR2004 - ZeRO-3
    }
    return head + yaml.safe_dump(values, sort_keys=True)


def _machines(target: Target) -> dict[str, object]:
    return {
        "compute_environment": "LOCAL_MACHINE",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": target.workload.precision,
        "num_machines": target.num_nodes,
        "num_processes": target.config.num_gpus + target.idle_gpus,  # each node starts its share of these
        "rdzv_backend": "static",
        "use_cpu": False,
    }


class AccelerateFiles:
    """Files of ``accelerate launch``; a trainer over it inherits them and states its differences."""

    launcher: ClassVar[str] = "accelerate"
    product: ClassVar[str] = "accelerate 1.15.0"
    needs: ClassVar[Sequence[tuple[str, str]]] = (
        ("TRAIN_SCRIPT", "a training script that takes the TrainingArguments of transformers"),
    )
    takes: ClassVar[Sequence[tuple[str, str]]] = (
        ("--resume_from_checkpoint FOLDER", "after it, if the script doesn't look for checkpoints"),
    )
    follows: ClassVar[str] = ""  # required arguments after the command
    is_command: ClassVar[bool] = True  # not started by torchrun
    assignments: ClassVar[bool] = False  # arguments may be ``name=value``
    before: ClassVar[str] = ""  # lines of Bash that the command needs; @KEYS@: the decided names
    rules: ClassVar[tuple[Rule, ...]] = ()  # of its own
    # Arguments that rows of tables write: a micro-batch, their number, a trainer's tokens of a sequence.
    batch: ClassVar[tuple[str, ...]] = ("per_device_train_batch_size", "gradient_accumulation_steps")
    # Names that would change the plan and that it does not write, here of transformers' TrainingArguments
    # (accelerate's own arguments come before the script).
    others: ClassVar[Sequence[str]] = (
        "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "bf16",
        "fp16", "fsdp", "fsdp_config", "parallelism_config", "deepspeed", "per_gpu_train_batch_size",
        "torch_compile", "optim",
    )  # fmt: skip

    def export(self, target: Target) -> ExportBundle:
        """Return the launcher's own files and the two scripts that start them."""
        refuse_first(target, self.launcher, self.rules)
        names = self.decided(target)
        return common.bundled(
            target,
            product=self.product,
            shape=True,
            start=common.StartCommand(
                program=self.program(target),
                needs=self.needs,
                takes=self.takes,
                follows=self.follows,
                packages=tuple(self.packages(target)),
                command=self.is_command,
                before=filled(self.before, {"KEYS": " \\\n    ".join(textwrap.wrap(" ".join(names), 100))}),
                decides=names,
                assignments=self.assignments,
            ),
            warnings=self.warnings(target),
            own=lambda head: self.files(head, target),
        )

    @property
    def known(self) -> FlagNames:
        """The launcher's arguments, some under other names than its relation's."""
        return flag_names(*tables_of(self.launcher))

    def values(self, target: Target) -> dict[str, object]:
        """Return the trainer's arguments that the plan sets, by its relation's names."""
        batch = written(tables_of(self.launcher), target, self.batch)
        return {**batch, "gradient_checkpointing": recomputes_in_script(target)}

    def decided(self, target: Target) -> tuple[str, ...]:
        """Return the names that the user may not set: those of the plan, and ``others``."""
        values = self.values(target)
        names = (*values, *(name for name in self.others if name not in values))
        if launchers()[self.launcher].accelerates and "accelerate" not in self.program(target):
            names += ACCELERATES_OWN  # which its own command takes among the trainer's
        return tuple(map(self.known.spelled, names))

    def files(self, head: str, target: Target) -> dict[str, str]:
        """Return the launcher's own files by name."""
        return {CONFIG_FILE: accelerate_file(head, target, compiles=self.compiles(target))}

    def compiles(self, target: Target) -> bool:
        """Return whether torch's compiler fuses operators, and no kernels of the trainer's own file do."""
        return target.facts.elementwise_fused

    def program(self, target: Target) -> str:
        """Return the command of a node."""
        return accelerate_command(target, self.values(target))

    def packages(self, target: Target) -> Iterator[Requirement]:
        """Yield the packages that the plan needs."""
        yield from trainer_packages(target)
        yield from tensor_packages(target)

    def warnings(self, target: Target) -> Iterator[str]:
        """Yield the differences of accelerate from the plan, and what the plan leaves to the script."""
        yield from accelerate_warnings(target, common.compiled_facts(target))
        yield common.model_is_in_the_script(target)
        if target.config.context_parallel_size == 1:  # rings require SDPA
            yield attention_is_in_the_script(target)
        yield from _adapters_are_in_the_script(target)
        yield common.sequences_in_the_script(target)
        if target.config.context_parallel_size > 1:
            yield "context parallelism needs accelerator.maybe_context_parallel around each step, and SDPA"


export = AccelerateFiles().export
ACCELERATES_OWN = tuple(
    name
    for name, flag in flags_of("accelerate").items()
    if flag.role in ("priced", "refused") and "." not in name
)


def recomputes_in_script(target: Target) -> bool:
    """Return whether the trainer recomputes every layer; with FSDP its own wrapper does."""
    return target.config.recompute_granularity == "full" and target.config.zero_stage == 0


def optimizer(target: Target) -> str:
    """Return the priced optimizer, by transformers' name.

    bitsandbytes' operators refuse DTensor (Axolotl 0.19.0, utils/schemas/validation.py:1149): FSDP2's
    shards are updated by torchao's 8-bit Adam, with blocks of equal length.
    """
    name = target.workload.optimizer
    if optimizer_named(name).paged:
        return "paged_adamw_8bit" if "8bit" in name else "paged_adamw_32bit"
    # LLaMA-Factory replaces these (train/trainer_utils.py:527)
    own = name == "muon" or optimizer_named(name).family == "adam-mini"
    if own or name in ("adamw", "adamw-pure-bf16", "badam"):
        return "adamw_torch" if target.facts.optimizer_kernel == FOREACH else "adamw_torch_fused"
    if optimizer_named(name).newton_schulz:
        return "muon"  # Axolotl 0.19.0, core/builders/base.py:314
    if optimizer_named(name).low_rank and "8bit" not in name:
        return "adamw_torch"  # replaced: LLaMA-Factory 0.9.5, train/trainer_utils.py:239, :330
    return "adamw_bnb_8bit" if target.config.zero_stage == 0 else "adamw_torch_8bit"


def optimizer_packages(target: Target) -> dict[str, bool]:
    """Return the names of packages of optimizers, and whether a plan needs them."""
    family = optimizer_named(target.workload.optimizer).family
    return {name: family == name.lower() for name in ("GaLore", "APOLLO", "Adam-mini", "BAdam")}


def trainer_packages(target: Target) -> tuple[Requirement, ...]:
    """Return the packages for adapters, frozen weights and the optimizer of a plan."""
    workload = target.workload
    adapts = workload.lora_rank > 0
    needed = {
        **optimizer_packages(target),
        "adapters": adapts,
        "quantized weights": adapts and workload.base_precision not in WHOLE_PRECISIONS,
        "quantized Adam": optimizer(target).startswith(("adamw_bnb", "paged")),
        "sharded quantized Adam": optimizer(target) == "adamw_torch_8bit",
    }
    return tuple(packages()[name] for name, is_needed in needed.items() if is_needed)


def tensor_packages(target: Target) -> tuple[Requirement, ...]:
    """Return the release of transformers with which accelerate prepares tensor ranks next to FSDP2."""
    config = target.config
    splits = config.tensor_parallel_size > 1 and config.zero_stage > 0
    return (packages()["tensor ranks next to FSDP2"],) if splits else ()


def accelerate_launch(target: Target) -> list[str]:
    """Return the lines of ``accelerate launch`` before the program.

    A node starts ``num_processes // num_machines`` ranks (accelerate 1.15, utils/launch.py).
    """
    own = ['    --num_processes "$((NUM_NODES * GPUS_PER_NODE))" \\'] if target.idle_gpus else []
    return [
        f'exec accelerate launch --config_file "${{here}}/{CONFIG_FILE}" \\',
        '    --machine_rank "${NODE_RANK}" --main_process_ip "${MASTER_ADDR}" \\',
        '    --main_process_port "${MASTER_PORT}" \\',
        *own,
        f"    --gradient_accumulation_steps {target.config.num_microbatches} \\",
    ]


def accelerate_command(target: Target, values: Mapping[str, object]) -> str:
    """Return ``accelerate launch`` with the file, this node's rank, and arguments, which no file has."""
    lines = [
        *accelerate_launch(target),
        '    "${TRAIN_SCRIPT}" \\',
        *(f"    --{name} {str(value).lower()} \\" for name, value in values.items()),
        *([f"    --optim {optimizer(target)} \\"] if optimizer(target) != "adamw_torch_fused" else []),
        *(f"    --{name} {size} \\" for name, size in ddp_bucket(target).items()),
        f"    --{target.workload.precision} true --max_grad_norm 1.0 --ddp_timeout 1800 \\",
        '    --logging_steps 1 --save_steps "${SAVE_STEPS:-500}" "$@"',
    ]
    return "\n".join(lines)


_LOADED = {  # transformers' names for the types of a frozen model
    "bf16": "dtype bfloat16", "fp32": "dtype float32", "int8": "BitsAndBytesConfig(load_in_8bit=True)",
    "nf4": "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')",
    "nf4-double": (
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True)"
    ),
    **{base: f"a checkpoint that is stored in {base}" for base in STORAGE if is_checkpoints(base)},
    "nvfp4": "a checkpoint that is stored in nvfp4, by Axolotl 0.19 (KernelsPlugin, use_sonicmoe: true)",
}  # fmt: skip


def _adapters_are_in_the_script(target: Target) -> Iterator[str]:
    """Yield peft's settings for a plan's adapters, which are not arguments of the trainer."""
    workload = target.workload
    if not workload.lora_rank:
        return
    layers, parameters = parted(workload.lora_targets)
    targets = (
        "'all-linear'" if names_every(layers) else str(list(class_targets(target.model, layers)) or None)
    )
    apart = f", target_parameters={list(parameters)}" if parameters else ""
    modules = list(class_targets(target.model, workload.trained_modules))
    whole = f", modules_to_save={modules}" if modules else ""
    yield (
        f"the script must train adapters alone: peft's LoraConfig(r={workload.lora_rank}, "
        f"target_modules={targets}{apart}{whole}) on the model, frozen and loaded with "
        f"{_LOADED[workload.base_precision]}"
    )
    if workload.framework_options.get("fake_quantization") == MERGED:
        yield "the script must train adapters as they will be merged: Axolotl's nvfp4_merge_aware: true"


def ddp_bucket(target: Target) -> dict[str, object]:
    """Return TrainingArguments' size of DistributedDataParallel's buckets if it is not torch's own."""
    size = common.bucket_units(target, common.MIB)
    return {"ddp_bucket_cap_mb": size} if size else {}


def accelerate_warnings(target: Target, written: Sequence[str]) -> Iterator[str]:
    """Yield the differences of every trainer over accelerate from the plan."""
    bucket = common.written_bucket(target, common.MIB)
    yield from common.common_warnings(target, ("launch_blocking", *written, *bucket))
    if target.workload.lora_rank and target.problem.model.moe:
        count = target.problem.model_figures["num_trainable_parameters"]
        yield (
            f"{count} adapter weights were predicted, as peft 0.21 with transformers 5.23 counts "
            "them. Other versions adapt other expert layers: compare with "
            "print_trainable_parameters()"
        )
    yield from image_warnings(target)
    yield from common.applying(common.zero_2_warning(target))
    if target.config.tensor_parallel_size > 1:
        yield 'the model needs a tensor-parallel plan: load it with tp_plan="auto" and the mesh\'s tp axis'
        yield from filter(None, [launcher_capabilities(target.problem.launcher).tensor_note])
