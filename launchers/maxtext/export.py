"""Exporter of MaxText: a plan becomes its configuration and the scripts that start its trainer on JAX.

Names: maxtext 0.2.5, configs/types.py and configs/base.yml, which has the values of what the file omits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from meshwright.launchers import export as common
from meshwright.launchers.dialect import filled
from meshwright.launchers.flags import flags_of
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target
from meshwright.profiles.requirements import packages
from meshwright.solver.configuration import Configuration

# --------------------------------------------------------------------------------------------------
# The mesh: ``ici`` sizes inside a slice (a node of GPUs, a pod of TPUs), ``dcn`` sizes across slices.


# Axes that a plan uses, fastest first, as MaxText's ``mesh_axes`` orders them from its end.
AXES = ("expert", "tensor_sequence", "context", "fsdp", "pipeline", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSlices:
    """How the GPUs of a plan are cut for JAX: one slice is what a fast link holds together."""

    number: int
    gpus: int  # of each


def slices_of(target: Target) -> TpuSlices:
    """Return JAX's slices: nodes of GPUs (by their host), islands of TPUs."""
    near = target.near_gpus if is_tpu(target) else target.gpus_per_node
    near = min(near, target.config.num_gpus)
    return TpuSlices(number=target.config.num_gpus // near, gpus=near)


def is_tpu(target: Target) -> bool:
    """Return whether the plan runs on TPUs; JAX finds their hosts by itself."""
    return target.gpu.slug.startswith("tpu-")


def axis_sizes(config: Configuration) -> dict[str, int]:
    """Return the sizes of MaxText's axes.

    Batches are split over data, fsdp and expert, weights over fsdp, context and expert (base.yml,
    ``logical_axis_rules``).
    """
    experts = config.expert_parallel_size
    shards = config.zero_shard_size // (config.context_parallel_size * experts) if config.zero_stage else 1
    return {
        "expert": experts,
        "tensor_sequence": config.tensor_parallel_size,
        "context": config.context_parallel_size,
        "fsdp": shards,
        "pipeline": config.pipeline_parallel_size,
        "data": config.data_parallel_size // (shards * experts),
    }


def mesh_values(target: Target) -> dict[str, int]:
    """Return every axis inside and across slices; the fastest axes fill a slice first."""
    slices, values = slices_of(target), dict[str, int]()
    left, sizes = slices.gpus, axis_sizes(target.config)
    for axis in AXES:
        inside = math.gcd(sizes[axis], left)
        left //= inside
        values[f"ici_{axis}_parallelism"] = inside
        values[f"dcn_{axis}_parallelism"] = sizes[axis] // inside
    return values | {"num_slices": slices.number}


# --------------------------------------------------------------------------------------------------
# What the backward pass finds: tensors by the names that MaxText's layers give them.

# Modules of ``recompute_modules``, and the tensors that stay on the device where they are not replayed.
KEPT_BY: Mapping[str, tuple[str, ...]] = {
    "core_attn": ("context",),
    "attn_proj": ("out_proj",),
    "mlp_up": ("mlpwi_0", "mlpwi_1", "moe_mlpwi_0", "moe_mlpwi_1"),
}
ALWAYS_KEPT = ("query_proj", "key_proj", "value_proj")
ALWAYS_REPLAYED = "layernorm"
# Modules of ``offload_modules``, and the tensors that go to the host as their inputs.
LAYER_INPUT = "decoder_layer_input"
SENT_BY: Mapping[str, tuple[str, ...]] = {
    "attn_norm": (LAYER_INPUT,),
    "core_attn": ALWAYS_KEPT,
    "attn_proj": ("context",),
    "mlp_norm": ("out_proj",),
    "mlp_act": ("mlpwi_0", "mlpwi_1"),
    "moe_act": ("moe_mlpwi_0", "moe_mlpwi_1"),
}


def remat_values(target: Target) -> dict[str, str]:
    """Return the policy, and the place of each tensor where it names them."""
    replayed = target.facts.recomputed
    full = target.config.recompute_granularity == "full"
    places = {} if full else dict.fromkeys(ALWAYS_KEPT, "device")
    for module, names in KEPT_BY.items() if not full else ():
        places |= dict.fromkeys(names, "remat" if module in replayed else "device")
    sent = {name for module in _sent_modules(target) for name in SENT_BY[module]}
    places |= {
        name: "offload" for name in (LAYER_INPUT, *places) if name in sent and places.get(name) != "remat"
    }
    return {"remat_policy": "custom", **places} if places else {"remat_policy": "full"}


def _sent_modules(target: Target) -> tuple[str, ...]:
    if "activations" not in target.config.offload:
        return ()
    modules = target.facts.offload_modules
    return tuple(SENT_BY) if modules == "all" else tuple(modules.split("+"))


# --------------------------------------------------------------------------------------------------
# The model, the batch, and the rest of the file.


def plan_values(target: Target) -> dict[str, object]:
    """Return the values of ``plan.yaml`` that follow from several fields, by name."""
    model, config = target.model, target.config
    staged, normed = config.pipeline_parallel_size > 1, model.query_key_norm != "none"
    sequences = config.micro_batch_size * config.data_parallel_size
    # a pipeline takes all micro-batches of a step at once, else gradients add up
    passes, steps = (config.num_microbatches, 1) if staged else (1, config.num_microbatches)
    values: dict[str, object] = {
        "run_name": common.printable(target.plan.plan_id),
        "hardware": "tpu" if is_tpu(target) else "gpu",
        "context_parallel_strategy": "ring" if config.context_parallel_size > 1 else "all_gather",
        "decoder_block": "qwen2" if model.qkv_bias else _BLOCKS[model.moe is not None, normed],
        "use_qk_norm": normed,
        "rope_max_timescale": model.rotary_base or 10_000,
        "rope_type": "llama3.1" if model.rotary_scaling else "default",
        "per_device_batch_size": _share(sequences * passes, config.num_gpus),
        "gradient_accumulation_steps": steps,
    }
    if model.moe is not None and not normed:  # mixtral refuses another width; qwen3_moe has no use for it
        values["base_mlp_dim"] = model.moe.ffn_hidden_size
    return values | ({"attention": "flash"} if is_tpu(target) else {})


# MaxText's decoder blocks, by whether the model has experts, and norms of queries and keys.
_BLOCKS = {
    (False, False): "llama2", (False, True): "qwen3", (True, False): "mixtral", (True, True): "qwen3_moe",
}  # fmt: skip


def further_values(target: Target) -> dict[str, object]:
    """Return what only some plans write: experts, stages, the norms' epsilon, products for embeddings."""
    model, moe, config = target.model, target.model.moe, target.config
    values: dict[str, object] = {}
    if moe is not None:
        values = {
            "num_experts": moe.num_experts, "num_experts_per_tok": moe.top_k,
            "base_moe_mlp_dim": moe.ffn_hidden_size, "norm_topk_prob": model.query_key_norm != "none",
            "load_balance_loss_weight": moe.balance_coefficient,
            # Not the Pallas kernel of TPUs; no token is dropped either way.
            "megablox": is_tpu(target), "sparse_matmul": True,
        }  # fmt: skip
    if config.pipeline_parallel_size > 1:
        chunks = config.pipeline_parallel_size * config.virtual_pipeline_size
        values |= {
            "num_pipeline_microbatches": config.num_microbatches,
            "num_pipeline_repeats": config.virtual_pipeline_size,
            "num_layers_per_pipeline_stage": model.num_layers // chunks,
        }
    values |= {} if model.norm_epsilon is None else {"normalization_layer_epsilon": model.norm_epsilon}
    return values | ({"use_iota_embed": True} if target.facts.embedding_products else {})


def _share(sequences: int, gpus: int) -> float:
    """Return sequences of one GPU, so that MaxText's ``int(gpus * share)`` is exact."""
    share = sequences / gpus
    return share if int(gpus * share) == sequences else math.nextafter(share, math.inf)


def maxtext_file(head: str, target: Target) -> str:
    """Return the whole file; data, tokenizer and learning rate are a dry start's."""
    values = {
        **filled("maxtext/plan.yaml", "maxtext", target, plan_values(target)),
        **further_values(target),
        **mesh_values(target),
        **remat_values(target),
    }
    return head + yaml.safe_dump(values, sort_keys=True)


# --------------------------------------------------------------------------------------------------
# The start: one process a node, which drives all of its GPUs.

PRODUCT = "MaxText 0.2.5"
CONFIG_FILE = "maxtext.yml"  # the trainer takes its first argument for a file by this ending
TRAINER = "maxtext.trainers.pre_train.train"
_MOST_MEMORY = 0.95  # of a GPU: XLA's own buffers of collectives lie outside of its arena
_ENVIRONMENT = """\
export NODE_RANK NNODES="${NUM_NODES}"
export JAX_COORDINATOR_IP="${MASTER_ADDR}" JAX_COORDINATOR_PORT="${MASTER_PORT}"\
"""


def start_of(target: Target) -> common.StartCommand:
    """Return the command of a node; MaxText's own arguments, as ``name=value``, may follow."""
    decided = [name for name, row in flags_of("maxtext").items() if row.role in ("priced", "refused")]
    return common.StartCommand(
        program=f'exec python3 -m {TRAINER} "${{here}}/{CONFIG_FILE}" "$@"',
        command=True,
        torch=False,
        before=_ENVIRONMENT,
        environment=() if is_tpu(target) else tuple(_of_gpus(target)),
        packages=() if is_tpu(target) else (packages()["Transformer Engine for JAX"],),
        decides=decided,
        assignments=True,
    )


def _of_gpus(target: Target) -> Iterator[common.EnvironmentVariable]:
    share = target.plan.prediction.memory_limit_bytes / target.gpu.memory_bytes
    yield common.EnvironmentVariable(
        name="XLA_PYTHON_CLIENT_MEM_FRACTION",
        value=f"{min(share, _MOST_MEMORY):.2f}",
        reason="JAX takes three quarters of a GPU's memory by default; the plan counts on more.",
    )
    yield common.EnvironmentVariable(
        name="XLA_FLAGS",
        value='"--xla_gpu_enable_latency_hiding_scheduler=true ${XLA_FLAGS:-}"',
        reason="Gathers and reductions run under computing, as they were priced.",
        is_expression=True,
    )


def export(target: Target) -> ExportBundle:
    """Return the configuration and the scripts that start it."""
    refuse_first(target, "maxtext")
    return common.bundled(
        target,
        product=PRODUCT,
        start=start_of(target),
        warnings=found_warnings(target),
        own=lambda head: {CONFIG_FILE: maxtext_file(head, target)},
    )


def found_warnings(target: Target) -> Iterator[str]:
    """Yield the differences of MaxText from the plan, and the parts that are left to the user."""
    yield from common.common_warnings(
        target,
        written=(
            "launch_blocking",
            "recompute_modules",
            "offload_modules",
            "gradient_dtype",
            "attention_kernel",
            "embedding_products",
        ),
    )
    yield "data, tokenizer, number of steps and learning rate are placeholders: set your own"
    yield from common.applying(
        (
            target.config.pipeline_parallel_size > 1,
            (
                "MaxText splits the embedding and the output head over the GPUs of all stages, but the "
                "prediction has them on the first and last stage"
            ),
        ),
        (
            target.model.moe is not None,
            "the catalog has no published MaxText run with experts: the step time is a rough estimate",
        ),
        common.rotary_base_warning(target),
    )
