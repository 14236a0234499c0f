"""Exporter of torchtitan 0.3: a plan becomes a Python module. Its model is in ``export_model``."""

from __future__ import annotations

import json
from collections.abc import Iterator

from meshwright.launchers import export as common
from meshwright.launchers.images import image_warnings
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target
from meshwright.launchers.templates import filled
from meshwright.launchers.torchtitan.export_model import (
    TEXTS,
    in_8_bits,
    is_registered,
    model_text,
    registered_text,
)
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.requirements import packages
from meshwright.solver.configuration import SPLIT_BACKWARD

# --------------------------------------------------------------------------------------------------
# Names of a plan's values: torchtitan 0.3.0, config/configs.py. The batch: without a pipeline
# the local batch is one micro-batch and gradients accumulate; with one the local batch holds all of them.


Values = dict[str, object]
SCHEDULES = {  # torch.distributed.pipelining.schedules, get_schedule_class
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved_1f1b": "Interleaved1F1B", "looped_bfs": "LoopedBFS",
    "interleaved_zb": "InterleavedZeroBubble", "zb_v": "ZBVZeroBubble", "dualpipe_v": "DualPipeV",
}  # fmt: skip
RESHARD = {0: "default", 2: "never", 3: "always"}


def training_values(target: Target) -> Values:
    """Return batch and sequence."""
    config = target.config
    pipelined = config.pipeline_parallel_size > 1
    return {
        "local_batch_size": config.micro_batch_size * (config.num_microbatches if pipelined else 1),
        "global_batch_size": target.workload.global_batch_size,
        "seq_len": target.workload.seq_length,
        "max_norm": 1.0,
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
        **({"enable_cpu_offload": True} if "parameters" in config.offload else {}),
    }


def parallelism_values(target: Target) -> Values:
    """Return the mesh, the schedule and the modules of each stage."""
    config = target.config
    shards = config.zero_shard_size // config.context_parallel_size if config.zero_stage else 1
    values: Values = {
        "data_parallel_replicate_degree": config.data_parallel_size // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": RESHARD[config.zero_stage],
        "tensor_parallel_degree": config.tensor_parallel_size,
        "context_parallel_degree": config.context_parallel_size,
        "pipeline_parallel_degree": config.pipeline_parallel_size,
        "expert_parallel_degree": config.expert_parallel_size,
    }
    if config.pipeline_parallel_size > 1:
        values |= {
            "pipeline_parallel_schedule": SCHEDULES[config.pipeline_schedule],
            "pipeline_parallel_microbatch_size": config.micro_batch_size,
            "module_fqns_per_model_part": stage_modules(config.stage_layers, target.model),
        }
    return values


def overlaps_tensor(target: Target) -> bool:
    """Return whether tensor-parallel collectives overlap products: switched on, with a compiled model."""
    switched_on = target.workload.framework_options.get("overlap_tensor", False)
    return bool(switched_on) and "model" in compiled_parts(target) and target.config.sequence_parallel


def compiled_parts(target: Target) -> list[str]:
    """Return the compiled parts: none if operators were priced singly, or the backward pass is split.

    For compiled stages PyTorch's ``_check_torch_compile_compatibility`` raises; a compiled loss donates its
    buffers, and ``stage_backward_input`` retains its graph, which AOTAutograd refuses (torch 2.13,
    ``_functorch/config.py donated_buffer``).
    """
    apart = not target.facts.elementwise_fused or target.config.pipeline_schedule in SPLIT_BACKWARD
    return [] if apart else ["model", "loss"]


def stage_modules(stage_layers: tuple[int, ...], model: ModelSpec) -> list[list[str]]:
    """Return the modules of every stage in model order: a partition, since torchtitan does not check it.

    Its own split counts embedding and head as a layer each, so the list is always written.
    """
    parts, first = [], 0
    for count in stage_layers:
        parts.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    parts[0][:0] = ["vision_encoder"] * (model.tower is not None) + ["tok_embeddings"]
    parts[-1] += ["norm", "lm_head"]
    return parts


def flavor(target: Target) -> str:
    """Return the name under which the model is registered."""
    return f"meshwright-{target.plan.plan_id}"


# --------------------------------------------------------------------------------------------------
# torchtitan 0.3: a Python module with one function that returns the whole configuration.
#
# Calls: torchtitan 0.3.0, models/llama3/__init__.py, models/qwen3/__init__.py,
# models/common/config_utils.py, trainer.py.


MODULE = "torchtitan_plan"
PYTHON_FILE = f"{MODULE}.py"

_IMPORTS = (  # for every model
    "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
    "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
    "from torchtitan.trainer import Trainer",
)


def python_file(head: str, target: Target) -> str:
    """Return the module's text."""
    registered = is_registered(target.model)
    model = registered_text(target) if registered else model_text(target, flavor(target))
    # CUDA graphs are on by default, refused with pipelines, and not part of the prediction.
    training = training_values(target) | {"disable_cuda_graphs": True}
    sequence = {"enable_sequence_parallel": target.config.sequence_parallel}
    parts = compiled_parts(target)
    compiled = {
        "enable": bool(parts),
        "components": json.dumps(parts),
        **({"enable_async_tensor_parallel": True} if overlaps_tensor(target) else {}),
    }
    values = {
        "STANDARD": model.standard,
        "IMPORTS": "\n".join(sorted([*_IMPORTS, *model.imports])),
        "MODEL": model.constants,
        "WEIGHTS": model.weights,
        "FUNCTIONS": model.functions,
        "LOSS": model.loss,
        "VOCABULARY": model.vocabulary,
        "TOKENIZER": model.tokenizer,
        "DATA": model.data,
        "TRAINING": _arguments(training),
        "PARALLELISM": _arguments(parallelism_values(target) | sequence),
        "RECOMPUTE": target.config.recompute_granularity,
        "COMPILE": ", ".join(f"{name}={value}" for name, value in compiled.items()),
    }
    return head + filled(TEXTS["module"], values)


def _arguments(values: Values) -> str:
    lines = []
    for name, value in values.items():
        if name == "module_fqns_per_model_part":
            lines.append(f"            {name}=[")
            lines += [f"                {part!r}," for part in value]  # type: ignore[attr-defined]
            lines.append("            ],")
        else:
            lines.append(f"            {name}={value!r},")
    return "\n".join(lines)


PRODUCT = "torchtitan 0.3.0"
VERSIONS = ("0.3",)
_BESIDE = common.EnvironmentVariable(
    name="PYTHONPATH",
    value='"${here}${PYTHONPATH:+:${PYTHONPATH}}"',
    reason="torchtitan imports the plan's module by its name.",
    is_expression=True,
)
NEEDS = (
    ("HF_ASSETS_PATH", "the folder of the model's tokenizer files"),
    ("DATASET", "a name of torchtitan's data sets: c4, or your own; c4_test is for a dry start"),
)
_ASKED = tuple(
    common.EnvironmentVariable(
        name=name, value=f'"${{{name}}}"', reason="The plan's module reads it.", is_expression=True
    )
    for name, _ in NEEDS
)


def start(target: Target) -> common.StartCommand:
    """Return the start of a node."""
    return common.StartCommand(
        program='"${program[@]}"',
        needs=NEEDS,
        packages=(packages()["torchao products"],) if in_8_bits(target) else (),
        takes=(("LR", "3e-4, of the module"), ("--training.steps N", "behind it: 10000")),
        environment=(_BESIDE, *_ASKED),
        before=TEXTS["program"] + TEXTS["logged"],
    )


def export(target: Target) -> ExportBundle:
    """Return the module and the two scripts that start it."""
    refuse_first(target, "torchtitan")
    return common.bundled(
        target,
        product=PRODUCT,
        shape=is_registered(target.model),  # and its images
        start=start(target),
        warnings=found_warnings(target),
        own=lambda head: {PYTHON_FILE: python_file(head, target)},
    )


def found_warnings(target: Target) -> Iterator[str]:
    """Yield the differences of torchtitan from the plan, and the parts that the plan leaves open."""
    config = target.config
    asked = target.workload.framework_options
    written = {"launch_blocking", "precision_recipe"} - {"" if in_8_bits(target) else "precision_recipe"}
    written |= {"overlap_tensor"} if overlaps_tensor(target) or not asked.get("overlap_tensor") else set()
    yield from common.common_warnings(target, (*written, *common.compiled_facts(target)))
    yield from image_warnings(target)
    yield from common.applying(
        (
            target.model.moe,
            "experts are balanced by torchtitan's bias of the router's choice, not by a loss",
        ),
        (
            True,
            "0.3 runs FlexAttention, but the prediction assumed a flash attention kernel",
        ),
        common.zero_2_warning(target),
        (
            config.pipeline_schedule == "zb_v",
            "the prediction lets ranks start the next step one by one, but clipping makes them wait",
        ),
        (
            config.pipeline_schedule == "dualpipe_v",
            "the prediction doesn't include overlap of forward and backward passes",
        ),
        (
            config.recompute_granularity == "selective",
            "selective recomputation is torchtitan's own: it keeps attention and every second product",
        ),
        common.rotary_base_warning(target),
    )
