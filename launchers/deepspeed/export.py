"""Exporter of DeepSpeed: a plan becomes its JSON, a Python module with values for code, and scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from meshwright.launchers import export as common
from meshwright.launchers.accelerate import export as accelerate
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.optimizers import optimizer_named
from meshwright.profiles.requirements import packages
from meshwright.solver.cost.memory import STATE_BUFFERS, SWAPPED_GROUP, WEIGHT_BUFFERS, WEIGHTS_IN_CPU
from meshwright.solver.cost.parameters import largest_tensor
from meshwright.solver.cost.step_end import UPDATE_GROUPS

# --------------------------------------------------------------------------------------------------
# Values that DeepSpeed takes in code: a Python module, each value with its call.
#
# Calls: DeepSpeed 0.19.8, runtime/pipe/module.py (PipelineModule), runtime/pipe/topology.py (ranks: pipe
# outermost, then data, model fastest), moe/layer.py (MoE), runtime/activation_checkpointing.


CODE_FILE = "deepspeed_plan.py"


def code_file(head: str, target: Target) -> str:
    """Return constants, grouped by the call that takes them; importing the module has no effect."""
    lines = ['"""Values of the plan that DeepSpeed takes in code."""', ""]
    for comment, name, value in _values(target):
        lines += [f"# {comment}", f"{name} = {value!r}"]
    return head + "\n".join([*lines, ""])


def _values(target: Target) -> Iterator[tuple[str, str, object]]:
    config, model, workload = target.config, target.model, target.workload
    yield "The world size that the JSON was written for.", "WORLD_SIZE", config.num_gpus
    yield "Tokens of each sequence.", "SEQ_LENGTH", workload.seq_length
    yield (
        "The model's shape; check yours against it.",
        "MODEL",
        {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "ffn_hidden_size": model.ffn_hidden_size,
            "num_attention_heads": model.num_attention_heads,
            "num_kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "vocab_size": model.vocab_size,
        },
    )
    yield (
        "PipeModelDataParallelTopology(**TOPOLOGY), where there are stages or tensor ranks.",
        "TOPOLOGY",
        {
            "num_pp": config.pipeline_parallel_size,
            "num_mp": config.tensor_parallel_size,
            "num_dp": config.data_parallel_size,
        },
    )
    yield (
        "Whether every transformer layer is recomputed (model.gradient_checkpointing_enable()).",
        "RECOMPUTE_EVERY_LAYER",
        config.recompute_granularity == "full",
    )
    yield from _stages(target)
    yield from _experts(target)


def _stages(target: Target) -> Iterator[tuple[str, str, object]]:
    config = target.config
    if config.pipeline_parallel_size > 1:
        yield "Layers of each stage that the next values lead to.", "STAGE_LAYERS", config.stage_layers
        yield (
            "PipelineModule(layers, **PIPELINE); name the class of your transformer layers.",
            "PIPELINE",
            {
                "num_stages": config.pipeline_parallel_size,
                "partition_method": "type:TransformerLayer",
                "activation_checkpoint_interval": int(config.recompute_granularity == "full"),
                # otherwise the embedding, too, with a reentrant checkpoint that passes no gradients on
                "checkpointable_layers": ["TransformerLayer"],
            },
        )
        yield "engine.train_batch() runs this many micro-batches.", "MICRO_BATCHES", config.num_microbatches


def _experts(target: Target) -> Iterator[tuple[str, str, object]]:
    config, model = target.config, target.model
    if model.moe:
        yield (
            "deepspeed.moe.layer.MoE(hidden_size, expert, **EXPERTS), and how wide an expert is.",
            "EXPERTS",
            {
                "num_experts": model.moe.num_experts,
                "ep_size": config.expert_parallel_size,
                "k": model.moe.top_k,
            },
        )
        yield "Hidden width of one expert.", "EXPERT_FFN_HIDDEN_SIZE", model.moe.ffn_hidden_size


# --------------------------------------------------------------------------------------------------
# DeepSpeed's own file. Keys: DeepSpeed 0.19.8, runtime/config.py and runtime/zero/config.py.


JSON_FILE = "ds_config.json"
HEADER_KEY = "_meshwright"  # JSON has no comments; DeepSpeed reads the keys it knows
# Elements of 500 million and DeepSpeed's other defaults, under which the catalog's facts were measured.
_BUCKET = 500_000_000
BUCKET_ELEMENT_BYTES = 2  # of gradients in the training precision
_STAGE_3 = {
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_gather_16bit_weights_on_model_save": False,
}
SHARDED_WEIGHTS = 3
OFFLOADED = {
    "optimizer": "offload_optimizer",
    "parameters": "offload_param",
}  # keys, by what leaves the GPU
NVME_PATH = "/local_nvme"  # the path in DeepSpeed's own examples; the README asks to change it
# Blocks of 1 MiB, eight in flight: defaults of runtime/swap_tensor/constants.py, documented as tunable.
_AIO = {"block_size": 1_048_576, "queue_depth": 8, "single_submit": False, "overlap_events": True}


def json_file(head: str, target: Target) -> str:
    """Return batch, precision, ZeRO and AutoTP; the header has a key of its own."""
    config, workload = target.config, target.workload
    gradients = target.facts.gradient_dtype
    values: dict[str, object] = {
        HEADER_KEY: [line.removeprefix("# ") for line in head.splitlines()],
        "train_batch_size": workload.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_accumulation_steps": config.num_microbatches,
        # with clipping SuperOffload hides nothing (superoffload_stage3.py, partition_grads)
        "gradient_clipping": 0.0 if target.facts.super_offload else 1.0,
        "steps_per_print": 1,  # by default DeepSpeed logs no time at all (runtime/constants.py)
        "bf16": {"enabled": workload.precision == "bf16", **_masters(target)},
        "fp16": {"enabled": workload.precision == "fp16"},
        "communication_data_type": workload.precision if gradients != "fp32" else "fp32",
        "zero_optimization": _zero(target),
    }
    values |= {"aio": _AIO} if "@nvme" in config.offload else {}
    if config.tensor_parallel_size > 1:
        values["tensor_parallel"] = {"autotp_size": config.tensor_parallel_size}
    return json.dumps(values, indent=2) + "\n"


def _masters(target: Target) -> dict[str, bool]:
    """Return the switches of master weights, gradients and states in bf16, where the plan has no others."""
    short = not optimizer_named(target.workload.optimizer).fp32_copy
    return {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True} if short else {}


def _zero(target: Target) -> dict[str, object]:
    stage = target.config.zero_stage
    values: dict[str, object] = {"stage": stage}
    if stage:
        values |= {
            "overlap_comm": stage == SHARDED_WEIGHTS,  # the same as by default: only on in stage 3
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "reduce_bucket_size": common.bucket_units(target, BUCKET_ELEMENT_BYTES) or 1,
            "allgather_bucket_size": _BUCKET,
        }
    return values | _offload(target) | (_stage_3(target) if stage == SHARDED_WEIGHTS else {})


def _stage_3(target: Target) -> dict[str, object]:
    """Return the settings of stage 3, with the options of ZeRO++ that are on."""
    size, group = int(target.facts.secondary_shard_size), target.facts.sub_group_size
    usual = framework_facts("deepspeed").sub_group_size
    here = "optimizer" not in target.config.offload
    plus = {
        "sub_group_size": int(group) if here and group != usual else None,
        "zero_hpz_partition_size": size if size > 1 else None,
        "zero_quantized_weights": target.facts.quantized_gathers,
        "zero_quantized_gradients": target.facts.quantized_reductions,
    }
    return {**_STAGE_3, **{name: value for name, value in plus.items() if value}}


def _offload(target: Target) -> dict[str, object]:
    """Return the offloaded parts, with the buffers that their host memory includes."""
    devices = offload_devices(target.config.offload)
    values: dict[str, object] = {}
    for part, key in OFFLOADED.items():
        if part in devices:
            drive: dict[str, object] = {"nvme_path": NVME_PATH} if devices[part] == "nvme" else {}
            values[key] = {"device": devices[part], "pin_memory": True, **drive}
    if target.facts.super_offload and devices.get("optimizer") == "cpu":
        values["offload_optimizer"] |= {"super_offload": True}  # type: ignore[operator]
        values["sub_group_size"] = _sub_group(target)
    if target.facts.cpu_update_interval > 1.0:
        values["zenflow"] = {
            "topk_ratio": target.facts.selected_gradient_share, "select_strategy": "auto",
            "select_interval": "auto", "update_interval": int(target.facts.cpu_update_interval),
            "full_warm_up_rounds": 0, "overlap_step": True,
        }  # fmt: skip
    share = target.facts.optimizer_offload_fraction
    if share < 1.0 and "optimizer" in devices:
        values["offload_optimizer"] |= {"ratio": share}  # type: ignore[operator]
        values["sub_group_size"] = _sub_group(target)
    if devices.get("optimizer") == "nvme":
        values["offload_optimizer"] |= {  # type: ignore[operator]
            "buffer_count": STATE_BUFFERS, "pipeline_read": False, "pipeline_write": False,
        }  # fmt: skip
        values["sub_group_size"] = SWAPPED_GROUP
    if devices.get("parameters") == "nvme":
        values["offload_param"] |= {  # type: ignore[operator]
            "buffer_count": WEIGHT_BUFFERS,
            "buffer_size": int(largest_tensor(target.model) // target.config.zero_shard_size) + 1,
            "max_in_cpu": WEIGHTS_IN_CPU,
        }
    return values


def _sub_group(target: Target) -> int:
    """Return the size of a parameter group for some 20 groups a shard; each is updated on one device.

    With DeepSpeed's default of 10^9 a shard is often a single group, and the CPU updates it at any ratio.
    """
    return -(-target.model.num_parameters() // (target.config.zero_shard_size * UPDATE_GROUPS))


def offload_devices(offload: str) -> dict[str, str]:
    """Return the device of each part: ``{"optimizer": "nvme", "parameters": "cpu"}``."""
    parts = (one.partition("@") for one in offload.split("+") if one != "none")
    return {name: device or "cpu" for name, _, device in parts}


PRODUCT = "DeepSpeed 0.19.8"
START = common.StartCommand(
    program=f'"${{TRAIN_SCRIPT}}" --deepspeed --deepspeed_config "${{here}}/{JSON_FILE}"',
    needs=(("TRAIN_SCRIPT", f"a script that takes the arguments of DeepSpeed and reads {CODE_FILE}"),),
)


def export(target: Target) -> ExportBundle:
    """Return DeepSpeed's JSON, the values that are set in code, and the two scripts that start it."""
    refuse_first(target, "deepspeed")
    return common.bundled(
        target,
        product=PRODUCT,
        shape=True,
        start=replace(START, packages=(packages()["NVMe"],) if "@nvme" in target.config.offload else ()),
        warnings=found_warnings(target),
        own=lambda head: own_files(head, target),
    )


_WRITTEN = (  # framework options that the files state
    "launch_blocking", "gradient_dtype", "optimizer_offload_fraction", "quantized_gathers",
    "quantized_reductions", "secondary_shard_size", "sub_group_size", "super_offload",
    "cpu_update_interval", "selected_gradient_share",
)  # fmt: skip


def own_files(head: str, target: Target) -> dict[str, str]:
    """Return the JSON, the code module, and accelerate's file if its plugin can start the plan, too."""
    files = {JSON_FILE: json_file(head, target), CODE_FILE: code_file(head, target)}
    if is_plain_data_parallel(target) and not target.idle_gpus:
        files[accelerate.CONFIG_FILE] = accelerate.deepspeed_plugin_file(head, target, JSON_FILE)
    return files


def is_plain_data_parallel(target: Target) -> bool:
    """Return whether the plan is plain data parallelism, which accelerate's plugin can start, too."""
    config = target.config
    return config.num_gpus == config.data_parallel_size and config.expert_parallel_size == 1


def found_warnings(target: Target) -> Iterator[str]:
    """Yield the differences of DeepSpeed from the plan, and the values that are set in code."""
    config, split, away = target.config, target.config.tensor_parallel_size > 1, target.config.offload
    bucket = common.written_bucket(target, BUCKET_ELEMENT_BYTES) if target.facts.bucket_bytes else ()
    yield from common.common_warnings(target, written=(*_WRITTEN, *bucket))
    yield common.model_is_in_the_script(target)
    yield accelerate.attention_is_in_the_script(target)
    yield from common.applying(
        (target.workload.lengths is not None, common.sequences_in_the_script(target)),
        (True, f"{CODE_FILE} holds what DeepSpeed takes in code; its JSON alone is not the plan"),
        (
            config.pipeline_parallel_size > 1,
            "the embedding and the head must not be of the class that the stages are balanced by",
        ),
        (
            split,
            "AutoTP splits the linear layers of Hugging Face models; its own ranks must be consecutive",
        ),
        (
            split,
            (
                "call deepspeed.utils.groups._init_tp_mesh_device and pass mpu=deepspeed.utils.groups, or "
                "DeepSpeed takes every rank for a data-parallel one and refuses train_batch_size"
            ),
        ),
        (
            target.facts.super_offload,
            "gradient_clipping is 0: with clipping, DeepSpeed updates all states after the backward pass",
        ),
        (
            target.facts.cpu_update_interval > 1.0,
            "ZenFlow applies small gradients some steps late: compare its loss with a run without it",
        ),
        (
            "optimizer" in away,
            "the script's optimizer must be deepspeed.ops.adam.DeepSpeedCPUAdam, or the JSON's own",
        ),
        (
            away != "none",
            "torch pins memory in powers of two. To pin less, set DS_PIN_MEMORY_BACKEND=native",
        ),
        (
            "@nvme" in away,
            f"nvme_path is {NVME_PATH}: mount each node's drives there as one volume, or change it",
        ),
        (config.expert_parallel_size > 1, "the experts must be deepspeed.moe.layer.MoE"),
    )
