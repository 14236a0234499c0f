"""How a Megatron-LM command spreads the model over GPUs: world size, mesh, shards, micro-batches."""

from __future__ import annotations

from dataclasses import replace

from profiles.model import ModelSpec
from service.launchers.megatron_names import STAGES_BEFORE_DATA
from service.launchers.reading.given import Given
from service.launchers.reading.megatron_lm_split import chunks_of, recompute_of
from service.launchers.reading.megatron_lm_workload import batch_ramp
from service.launchers.rules import near_divisors, near_multiples
from solver.plan import Configuration
from solver.problem import Workload
from solver.rank_orders import plain_order

_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def configuration_of(
    given: Given, model: ModelSpec, workload: Workload, world: int | None
) -> Configuration:
    """The configuration; faults of sizes that do not go together are raised with their flags.

    Raises:
        InvalidProblemError: sizes contradict one another.
    """
    tp = given.integer("tensor-model-parallel-size", 1)
    pp = given.integer("pipeline-model-parallel-size", 1)
    cp = given.integer("context-parallel-size", 1)
    dp = _data_parallel(given, world, tp * pp * cp)
    split = chunks_of(given, model.num_layers, pp)
    granularity, layers = recompute_of(given, split)
    micro = given.integer("micro-batch-size", 1)
    count = _micro_batches(given, workload.global_batch_size, dp * micro)
    vpp = max(len(split) // pp, 1)
    _check_interleaving(given, pp, vpp, count)
    _check_experts(given, model, tp, cp * dp)
    zero, shard = _sharding(given, dp * cp)
    sequence = given.has("sequence-parallel")
    if sequence and tp == 1:
        given.note("--sequence-parallel does nothing at tp 1")
    given.stop()
    found = Configuration(
        tensor_parallel_size=tp,
        sequence_parallel=sequence and tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=cp,
        context_parallel_mode=_context_mode(given, cp),
        expert_parallel_size=given.integer("expert-model-parallel-size", 1),
        expert_tensor_parallel_size=_expert_tensor(given, model, tp),
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=shard,
        micro_batch_size=micro,
        num_microbatches=count,
        pipeline_schedule="none" if pp == 1 else "1f1b" if vpp == 1 else "interleaved_1f1b",
        recompute_granularity=granularity,
        recompute_layers=layers,
        offload=_offload(given),
        rank_order=STAGES_BEFORE_DATA if given.has("use-tp-pp-dp-mapping") else "tp-cp-dp-pp",
        stage_layers=split,
    )
    return replace(found, rank_order=plain_order(found))


def _context_mode(given: Given, cp: int) -> str:
    """The ring, or the exchange of heads for tokens; what mixes them is priced as the ring."""
    words = set(given.words("cp-comm-type"))
    if cp == 1 or not words or words == {"p2p"}:
        return "ring"
    if words == {"a2a"}:
        return "all_to_all"
    given.note("--cp-comm-type is priced as p2p, the ring")
    return "ring"


def _offload(given: Given) -> str:
    """Optimizer states on the host; a part of them is priced as all."""
    if not given.has("optimizer-cpu-offload"):
        return "none"
    if not given.has("use-precision-aware-optimizer"):
        given.fault("optimizer-cpu-offload", "needs --use-precision-aware-optimizer")
    fraction = given.number("optimizer-offload-fraction", 1.0)
    if fraction != 1.0:
        given.note(f"--optimizer-offload-fraction {fraction:g} is priced as 1")
    return "optimizer"


def _data_parallel(given: Given, world: int | None, model_gpus: int) -> int:
    """What the GPUs leave for data parallelism."""
    if world is None:
        given.fault(
            "tensor-model-parallel-size",
            "how many GPUs run is not said (torchrun --nnodes and --nproc-per-node, #SBATCH --nodes); "
            "give --cluster with --num-nodes",
        )
        return 1
    if world % model_gpus:
        given.fault(
            "tensor-model-parallel-size",
            f"tp × pp × cp = {model_gpus} does not divide the {world} GPUs that start",
            allowed=f"tp × pp × cp that divides {world}",
            nearest=near_divisors(model_gpus, world),
        )
    return max(world // model_gpus, 1)


def _micro_batches(given: Given, batch: int, each: int) -> int:
    """Micro-batches of each pipeline; Megatron-LM's own default for the batch is one of them."""
    if not batch:
        return 1
    batches = [("step-batch-size-schedule", f"its batch {early}", early) for early, _ in batch_ramp(given)]
    for flag, words, sequences in [*batches, ("global-batch-size", f"{batch}", batch)]:
        if sequences % each:
            given.fault(
                flag,
                f"{words} is not a multiple of micro-batch × data parallel = {each}",
                allowed=f"multiples of {each}",
                nearest=near_multiples(sequences, each),
            )
    return max(batch // each, 1)


def _check_interleaving(given: Given, pp: int, vpp: int, count: int) -> None:
    """Micro-batches go in groups of g, pp by default: pp <= g <= M, and none or at least pp are left over.

    ``forward_backward_pipelining_with_interleaving``, when the first step runs.
    """
    if vpp == 1:
        return
    name = "microbatch-group-size-per-virtual-pipeline-stage"
    group = given.integer(name, pp)
    at = name if given.has(name) else "global-batch-size"
    if not pp <= group <= count:
        message = f"groups of {group} micro-batches, of which there are {count}, over {pp} stages"
        given.fault(
            at, message, allowed=f"{pp} to {count}" if count >= pp else f"{pp} micro-batches at least"
        )
    elif 0 < count % group < pp:
        message = f"{count} micro-batches in groups of {group} leave {count % group} for {pp} stages"
        given.fault(at, message, allowed=f"micro-batches in multiples of {group}",
                    nearest=near_multiples(count, group))  # fmt: skip


def _check_experts(given: Given, model: ModelSpec, tp: int, rest: int) -> None:
    """Ranks of experts fill those of a stage (``initialize_model_parallel``, on the cluster only)."""
    if model.moe is None:
        return
    ranks = given.integer("expert-model-parallel-size", 1) * _expert_tensor(given, model, tp)
    if (tp * rest) % ranks:
        given.fault(
            "expert-model-parallel-size",
            f"ep × expert tp = {ranks} does not divide the {tp * rest} ranks of a stage",
            allowed=f"divisors of {tp * rest}",
            nearest=near_divisors(ranks, tp * rest),
        )


def _sharding(given: Given, ranks: int) -> tuple[int, int]:
    """ZeRO stage and ranks of one shard set."""
    stage = int(given.has("use-distributed-optimizer"))
    if given.has("use-megatron-fsdp") or given.has("use-custom-fsdp"):
        strategy = given.word("data-parallel-sharding-strategy", "no_shard")
        if strategy not in _STRATEGIES:
            given.fault("data-parallel-sharding-strategy", "is unknown", allowed=", ".join(_STRATEGIES))
        stage = _STRATEGIES.get(strategy, 0)
    elif given.has("data-parallel-sharding-strategy"):
        given.note("--data-parallel-sharding-strategy does nothing without --use-megatron-fsdp")
    if given.has("overlap-param-gather") and not stage:
        given.fault("overlap-param-gather", "needs --use-distributed-optimizer")
    instances = given.integer("num-distributed-optimizer-instances", 1)
    if ranks % instances:
        given.fault("num-distributed-optimizer-instances", f"{instances} does not divide dp × cp = {ranks}")
    stage = stage if ranks > 1 else 0  # nobody to share with
    return stage, max(ranks // instances, 1) if stage else 1


def _expert_tensor(given: Given, model: ModelSpec, tp: int) -> int:
    """Experts are split as everything else unless a flag says otherwise (Megatron-Core's default)."""
    return given.integer("expert-tensor-parallel-size", tp) if model.moe is not None else 1
