"""Plans that Megatron-LM 0.16 to 0.19 refuses, fails on later, or does not notice: checked before writing.

Each rule is one function and names the place that enforces it, or states that none does. The places:
``validate_args`` in megatron/training/arguments.py, ``TransformerConfig.__post_init__`` in
megatron/core/transformer/transformer_config.py, ``initialize_model_parallel`` in
megatron/core/parallel_state.py, and the schedules in megatron/core/pipeline_parallel/schedules.py.
The rules of the model and its kernels are in ``model_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.launchers.megatron_lm.flags import FIRST_FSDP_STAGE, facts
from meshwright.launchers.rules import Rule, fault, grouped_alike, near_divisors, near_multiples
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import FieldError
from meshwright.solver.configuration import SIZES, predicts_alone
from meshwright.solver.schedules.schedule import ANY_COUNT

MAX_SHARDED_STAGE = 3


def sizes_are_positive(target: Target) -> Iterator[FieldError]:
    """Require every size to be at least 1; 1 is off (argparse accepts any integer)."""
    for name in SIZES:
        value = getattr(target.config, name)
        if value < 1:
            yield fault(name, f"{value} is not a size", allowed="1 or more", nearest=1)


def gpus_fit_the_cluster(target: Target) -> Iterator[FieldError]:
    """Require tp * pp * cp * dp GPUs in the cluster (torchrun would wait for them for ever)."""
    used, there = target.config.num_gpus, target.problem.cluster.num_gpus
    if used > there:
        rest = used // target.config.data_parallel_size
        yield fault(
            "data_parallel_size",
            f"tp * pp * cp * dp = {used} GPUs, the cluster has {there}",
            allowed=f"at most {there // rest}",
            nearest=max(1, there // rest),
        )


def nodes_are_whole(target: Target) -> Iterator[FieldError]:
    """Require equal numbers of torchrun's processes on all nodes (one ``--nproc-per-node``)."""
    sizes = {group.gpus_per_node for group in target.problem.cluster.groups}
    if len(sizes) > 1 and target.num_nodes > 1:
        yield fault(
            "data_parallel_size",
            f"the cluster's nodes have {', '.join(map(str, sorted(sizes)))} GPUs: ranks need equal nodes",
        )
    used, per_node = target.config.num_gpus, target.gpus_per_node
    if used % per_node:
        yield fault(
            "data_parallel_size",
            f"{used} GPUs do not fill nodes of {per_node}",
            allowed=f"a product tp * pp * cp * dp that {per_node} divides",
            nearest=f"{near_multiples(used, per_node)} GPUs",
        )


def tensor_ranks_stay_near(target: Target) -> Iterator[FieldError]:
    """Refuse tensor-parallel groups that cross the network (no parser notices; every GEMM would wait)."""
    tp, near = target.config.tensor_parallel_size, target.near_gpus
    if near % tp and target.config.num_gpus > near:
        yield fault(
            "tensor_parallel_size",
            f"groups of {tp} cross the network: {near} GPUs are near each other",
            allowed=f"divisors of {near}",
            nearest=near_divisors(tp, near),
        )


def batch_is_conserved(target: Target) -> Iterator[FieldError]:
    """Require gbs = mbs * dp * M (Megatron-Core ``ConstantNumMicroBatchesCalculator``); M has no flag."""
    config, wanted = target.config, target.workload.global_batch_size
    each = config.micro_batch_size * config.data_parallel_size
    if each * config.num_microbatches != wanted:
        yield fault(
            "num_microbatches",
            f"mbs {config.micro_batch_size} * dp {config.data_parallel_size} * M "
            f"{config.num_microbatches} is not the global batch {wanted}",
            nearest=wanted // each if wanted % each == 0 else None,
        )


def split_has_every_stage(target: Target) -> Iterator[FieldError]:
    """Require one entry for each of pp * vpp chunks (a layout of k * pp stages silently means vpp = k)."""
    config = target.config
    chunks = config.pipeline_parallel_size * config.virtual_pipeline_size
    if len(config.stage_layers) != chunks:
        yield fault(
            "stage_layers",
            f"{len(config.stage_layers)} entries for pp {config.pipeline_parallel_size} * vpp "
            f"{config.virtual_pipeline_size}",
            allowed=f"{chunks} entries",
            nearest=f"{chunks} entries",
        )


def split_has_every_layer(target: Target) -> Iterator[FieldError]:
    """Require chunks that hold all layers, each once (Megatron-Core ``validate_layer_layout``)."""
    held, wanted = sum(target.config.stage_layers), target.model.num_layers
    if held != wanted:
        yield fault("stage_layers", f"{held} layers for a model of {wanted}", nearest=f"a sum of {wanted}")


def no_stage_is_empty(target: Target) -> Iterator[FieldError]:
    """Require a layer or an end of the model in every chunk (parsers accept an empty layout stage)."""
    split = target.config.stage_layers
    ends = {0, len(split) - 1} if len(split) > 1 else set()
    if target.model.num_mtp_layers and predicts_alone(split):
        ends.add(len(split) - 2)
    for stage, layers in enumerate(split):
        if layers < (stage not in ends):
            yield fault(f"stage_layers/{stage}", f"{layers} layers", allowed="1 or more", nearest=1)


def schedule_is_known(target: Target) -> Iterator[FieldError]:
    """Require 1F1B, interleaved with virtual stages; Megatron-LM has no other schedule."""
    config = target.config
    if config.pipeline_parallel_size == 1:
        legal = "none"
    else:
        legal = "interleaved_1f1b" if config.virtual_pipeline_size > 1 else "1f1b"
    if config.pipeline_schedule != legal:
        yield fault(
            "pipeline_schedule",
            f"{config.pipeline_schedule} with pp {config.pipeline_parallel_size} and vpp "
            f"{config.virtual_pipeline_size}",
            allowed="none (pp 1), 1f1b, interleaved_1f1b (vpp above 1)",
            nearest=legal,
        )


def interleaving_needs_a_pipeline(target: Target) -> Iterator[FieldError]:
    """Require pp > 1 for virtual stages, and pp > 2 without overlapped p2p (``validate_args``)."""
    config = target.config
    least = 2 if facts(target).overlap_transfer else 3
    if config.virtual_pipeline_size > 1 and config.pipeline_parallel_size < least:
        yield fault(
            "virtual_pipeline_size",
            f"{config.virtual_pipeline_size} virtual stages with pp {config.pipeline_parallel_size}",
            allowed=f"1, or pp of {least} or more",
            nearest=1,
        )


def interleaving_needs_full_groups(target: Target) -> Iterator[FieldError]:
    """Require M to be a multiple of pp, the size of a group of micro-batches.

    Source: Megatron-Core ``forward_backward_pipelining_with_interleaving``.
    """
    config = target.config
    in_groups = config.pipeline_schedule not in ANY_COUNT
    chunked = config.virtual_pipeline_size > 1
    if chunked and in_groups and config.num_microbatches % config.pipeline_parallel_size:
        yield fault(
            "num_microbatches",
            f"{config.num_microbatches} with pp {config.pipeline_parallel_size} and virtual stages",
            allowed=f"multiples of {config.pipeline_parallel_size}",
            nearest=near_multiples(config.num_microbatches, config.pipeline_parallel_size),
        )


def recompute_is_known(target: Target) -> Iterator[FieldError]:
    """Require none, selective or full; only full has a number of layers (``TransformerConfig``)."""
    config = target.config
    if config.stage_recompute_layers:
        yield fault("stage_recompute_layers", "one number of layers is recomputed on every stage")
    if config.recompute_granularity not in ("none", "selective", "full"):
        yield fault(
            "recompute_granularity",
            f"{config.recompute_granularity!r:.40} is unknown",
            allowed="none, selective, full",
            nearest="full",
        )
    elif config.recompute_granularity != "full" and config.recompute_layers:
        yield fault(
            "recompute_layers",
            f"{config.recompute_layers} with recompute_granularity {config.recompute_granularity}",
            allowed="0, or recompute_granularity full",
            nearest=0,
        )


def recompute_fits_a_chunk(target: Target) -> Iterator[FieldError]:
    """Require 1 layer up to the largest chunk, or all of the model (parsers accept a larger N)."""
    config, most = target.config, max(target.config.stage_layers, default=0)
    counts = (*range(1, most + 1), sum(config.stage_layers))
    if config.recompute_granularity == "full" and config.recompute_layers not in counts:
        yield fault(
            "recompute_layers",
            f"{config.recompute_layers} layers of chunks that hold up to {most}",
            allowed=f"1 to {most}; {counts[-1]}: every layer",
            nearest=min(max(1, config.recompute_layers), most),
        )


def zero_stage_is_known(target: Target) -> Iterator[FieldError]:
    """Require ZeRO 0 (DDP), 1 (the distributed optimizer), or 2 and 3 (Megatron-FSDP)."""
    stage = target.config.zero_stage
    if not 0 <= stage <= MAX_SHARDED_STAGE:
        nearest = 0 if stage < 0 else MAX_SHARDED_STAGE
        yield fault("zero_stage", f"{stage} is unknown", allowed="0 to 3", nearest=nearest)


def fsdp_has_no_pipeline(target: Target) -> Iterator[FieldError]:
    """Refuse a pipeline with ZeRO 2 and 3 (Megatron-FSDP): it would gather per micro-batch."""
    config = target.config
    if config.zero_stage >= FIRST_FSDP_STAGE and config.pipeline_parallel_size > 1:
        yield fault(
            "zero_stage",
            f"{config.zero_stage} with pp {config.pipeline_parallel_size}",
            allowed="0 or 1 with pp above 1",
            nearest=1,
        )


def shards_divide_the_replicas(target: Target) -> Iterator[FieldError]:
    """Require shard sets of equal sizes: zero_shard_size divides dp * cp; 1 for stage 0."""
    config, ranks = target.config, target.shard_ranks
    if config.zero_stage == 0 and config.zero_shard_size != 1:
        yield fault("zero_shard_size", f"{config.zero_shard_size} with zero_stage 0", nearest=1)
    elif config.zero_stage and ranks % max(1, config.zero_shard_size):
        yield fault(
            "zero_shard_size",
            f"{config.zero_shard_size} does not divide dp * cp = {ranks}",
            allowed=f"divisors of {ranks}",
            nearest=near_divisors(config.zero_shard_size, ranks),
        )


def weight_shards_divide_the_replicas(target: Target) -> Iterator[FieldError]:
    """Require equal sets of ranks that share weights (Megatron-Core ``initialize_model_parallel``).

    world_size % (tp * pp * cp * gtp_remat_size) = 0, and that of expert ranks.
    """
    config = target.config
    dense, expert, dp = config.weight_shard_size, config.expert_weight_shard_size, config.data_parallel_size
    stage = config.tensor_parallel_size * config.context_parallel_size * dp
    replicas = max(stage // config.expert_ranks, 1) if target.model.moe else 1
    for field, size, ranks, words in (
        ("weight_shard_size", dense, dp, f"data_parallel_size = {dp}"),
        ("expert_weight_shard_size", expert, replicas, f"the {replicas} replicas of an expert"),
    ):
        if ranks % size:
            yield fault(
                field,
                f"{size} does not divide {words}",
                allowed=f"divisors of {ranks}",
                nearest=near_divisors(size, ranks),
            )


def stages_stand_on_like_nodes(target: Target) -> Iterator[FieldError]:
    """Require one mesh for all nodes: stages and replicas have no node group or size of their own."""
    for name in ("stage_groups", "replicas"):
        if getattr(target.config, name):
            yield fault(
                name,
                "launchers run one mesh with one tensor_parallel_size on all nodes; none places stages on "
                "node groups",
                nearest="a plan searched for the launcher",
            )


def ranks_are_numbered(target: Target) -> Iterator[FieldError]:
    """Require one of two rank orders; the second replicates experts like attention."""
    order, orders = target.config.rank_order, launcher_capabilities("megatron-lm").rank_orders
    if order not in orders:
        yield fault("rank_order", f"{order[:40]} has no flag", allowed=", ".join(orders), nearest=orders[0])
    else:
        yield from grouped_alike(target)


PARALLEL_RULES: tuple[Rule, ...] = (
    stages_stand_on_like_nodes,
    ranks_are_numbered,
    sizes_are_positive,
    gpus_fit_the_cluster,
    nodes_are_whole,
    tensor_ranks_stay_near,
    batch_is_conserved,
    split_has_every_stage,
    split_has_every_layer,
    no_stage_is_empty,
    schedule_is_known,
    interleaving_needs_a_pipeline,
    interleaving_needs_full_groups,
    recompute_is_known,
    recompute_fits_a_chunk,
    zero_stage_is_known,
    fsdp_has_no_pipeline,
    shards_divide_the_replicas,
    weight_shards_divide_the_replicas,
)
