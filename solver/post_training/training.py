"""Training layouts for each number of nodes: one search each, with seconds of an update and of a pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from meshwright.profiles.cluster import ClusterSpec, NodeGroup
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile
from meshwright.profiles.sequences import filled
from meshwright.solver.answer import Plan
from meshwright.solver.cost.evaluation import Evaluation, evaluate
from meshwright.solver.post_training.limits import layout_text
from meshwright.solver.post_training.problem import PostTraining
from meshwright.solver.post_training.splits import is_expressible, split_of
from meshwright.solver.predict import Z_80_PERCENT
from meshwright.solver.problem import Problem, ShouldStop
from meshwright.solver.search.search import search

HOST_BYTES_PER_S = 25e9  # of one GPU to pinned host memory (PCIe 5.0 x16 reaches 50e9, half of it shared)
LEAST_BYTES = 14.0  # of a weight on all GPUs together: itself, its fp32 copy and moments, however sharded
FROZEN_BYTES = 2.0  # of one that is not trained
# To memory that is not pinned, with its staging copy, half of that (Harris, "How to Optimize Data Transfers
# in CUDA C/C++": 2.3 to 3 of 5.7 GB/s). NeMo-RL's Megatron worker keeps the reference model there
# (megatron_policy_worker.py use_reference_model, v0.3.0:1142, v0.7.0:1027): the policy out, the reference
# in, the policy back in. Its FSDP workers pin theirs, which hold a rank's share alone.
PAGEABLE_BYTES_PER_S, REFERENCE_MOVES = HOST_BYTES_PER_S / 2.0, 3.0
# Passes over fp32 logits that pretraining's loss does not make: the cast (read 2, write 4 bytes) and the
# division by the temperature (NeMo-RL v0.3.0 dtensor_policy_worker.py _apply_temperature_scaling and :999,
# megatron_policy_worker.py:1075; verl workers/actor/dp_actor.py logits.div_). Backward passes do the same.
LOGIT_PASSES, _READ = 3.5, 0.85
OPTIMIZER_BYTES = 12.0  # a weight's fp32 copy and two moments
CONTEXT_BYTES = 2e9  # of a trainer's CUDA context and communicators, next to an engine's own; assumed
_DOUBLINGS = 6  # of a pool that is too small
_SHORTER = 0.97  # a batch that saves less is not searched
_FULL = 0.97  # of packed sequences where lengths are not read (NeMo-RL: modified first-fit decreasing)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPrice:
    """One number of nodes for the policy, with its best layout."""

    group: str
    nodes: int
    gpus: int
    update_s: float  # of all updates of a step
    forward_s: float  # one pass over all answers of a step
    adapters_s: float = 0.0  # of that, adapters', which the reference leaves out
    reference_s: float = 0.0  # the reference model's weights in and the policy's back
    swap_s: float  # optimizer to the host and back
    scoring_s: float | None = None  # of a reward model in turn on its GPUs; None: it has no room there
    scoring_tp: int = 0  # GPUs of one copy of it
    engine_share: float = 1.0  # of memory that its states leave to an engine on its GPUs
    log_sigma: float
    plan: Plan
    sequences: int  # packed, of one update


KnownPrices = dict[tuple[str, int, int], TrainingPrice | None]  # by group, nodes and the GPUs of each


def counts_of(group: NodeGroup) -> list[tuple[int, int]]:
    """Return the (nodes, GPUs of each) offered to training: powers of two, three times them, and all.

    Of a single node its halves, quarters and so on are offered too, so that both roles fit there.
    """
    nodes, each = group.num_nodes, group.gpus_per_node
    powers = [2**power for power in range(max(nodes, each).bit_length())]
    if nodes == 1:
        return [(1, part) for part in sorted({*(one for one in powers if one < each), each})]
    counts = {count for power in powers for count in (power, 3 * power) if count < nodes}
    return [(count, each) for count in sorted({*counts, nodes})]


def training_problem(asked: PostTraining, group: str, nodes: int, each: int) -> Problem:
    """Return the policy update on so many GPUs of a group, before its packed sequences are counted."""
    own = asked.groups[group]
    island = min(own.island_gpus, each) if each < own.gpus_per_node else own.island_gpus
    beside = awake_share(asked) + reference_bytes(asked) / (nodes * each) / own.gpu.memory_bytes
    gpu = replace(own.gpu, memory_bytes=max(round(own.gpu.memory_bytes * (1.0 - beside)), 1))
    part = replace(own, num_nodes=nodes, gpus_per_node=each, island_gpus=island, gpu=gpu)
    whole = asked.training.cluster
    cluster = ClusterSpec(name=f"{whole.name}-{group}", groups=(part,))
    options = asked.training.options
    # NeMo-RL and verl share the answers of an update out evenly among data-parallel ranks, before packing
    even = f"{asked.samples // asked.updates} % data_parallel_size == 0"
    # smaller roles are searched apart
    options = replace(options, constraints=(*options.constraints, even), num_gpus=(nodes * each,))
    return replace(asked.training, cluster=cluster, options=options)


def awake_share(asked: PostTraining) -> float:
    """Return the share of memory that engines keep while training runs on their GPUs, at the least."""
    pinned = asked.pins.memory_share
    return 0.0 if asked.sleeps else min(asked.places.memory_shares) if pinned is None else pinned


def reference_bytes(asked: PostTraining) -> float:
    """Return the bytes of a reference model that stays on training's GPUs, on all of them together.

    TRL's is a second model in the dtype that the policy is loaded in, and sharded so (TRL 1.16,
    trainer/grpo_trainer.py:1001, models/utils.py:292 ``prepare_fsdp``): nothing casts it up or down but
    DeepSpeed, to its own 2 bytes. With adapters it is the policy without them.
    """
    copies = asked.reference and not (asked.adapts or asked.places.offloads)
    each = 2.0 * FROZEN_BYTES if asked.reference_precision == "fp32" else FROZEN_BYTES
    return copies * each * asked.model.num_parameters()


def without_layout_constraints(asked: PostTraining) -> PostTraining:
    """Return the question without its own constraints on training's layout."""
    own = {layout_text(text) for text in asked.constraints}
    options = asked.training.options
    kept = tuple(text for text in options.constraints if text not in own)
    return replace(asked, training=replace(asked.training, options=replace(options, constraints=kept)))


def sequences_of(asked: PostTraining, problem: Problem) -> int:
    """Return the packed sequences of one update; its answers, where they are padded."""
    work = problem.workload
    if asked.places.pads:
        return asked.samples // asked.updates
    share = _FULL if work.lengths is None else filled(work.lengths, work.seq_length).real_share
    answers = asked.samples / asked.updates
    return max(1, math.ceil(answers * asked.lengths.mean / (share * work.seq_length)))


def forward_s(evaluation: Evaluation) -> float:
    """Return the seconds of forward passes alone over all micro-batches of a configuration.

    Passes fill the pipeline once and then follow its slowest stage: ``sum f + (m - 1) max f``.
    """
    most = 0.0
    for one in evaluation.classes:
        each = [sum(stage.pass_s(chunk)[0] for chunk in stage.chunks) for stage in one.stages]
        seconds = sum(each) + (one.config.num_microbatches - 1) * max(each)
        most = max(most, seconds * one.straggler)
    return most


def training_prices(
    asked: PostTraining,
    profile_of: Callable[[Problem], Profile],
    *,
    should_stop: ShouldStop = lambda: False,
    on_search: Callable[[str, int], object] = lambda _group, _nodes: None,
    known: KnownPrices | None = None,
) -> Iterator[TrainingPrice]:
    """Yield the best training layout of each group and number of nodes that has a plan.

    The rest of the pool does not matter to it: ``known`` has those of other pools, and gets the new ones.
    """
    pins, known = asked.pins, {} if known is None else known
    for name, group in asked.groups.items():
        if pins.training_group not in (None, name):
            continue
        for nodes, each in counts_of(group):
            if pins.training_nodes not in (None, nodes) or should_stop():
                continue
            if nodes * each * group.gpu.memory_bytes < least_bytes(asked):
                continue
            if (name, nodes, each) not in known:
                on_search(name, nodes)
                problem = training_problem(asked, name, nodes, each)
                found = _best(asked, problem, name, profile_of, should_stop)
                if not should_stop():  # else another search may find a better one
                    known[name, nodes, each] = found
            else:
                found = known[name, nodes, each]
            if found is not None:
                yield found


def least_bytes(asked: PostTraining) -> float:
    """Return the bytes that the policy's weights and states take on all GPUs together, at the least."""
    trained, every = asked.trained_parameters, asked.model.num_parameters()
    return LEAST_BYTES * trained + FROZEN_BYTES * every * asked.adapts


def _best(
    asked: PostTraining,
    problem: Problem,
    name: str,
    profile_of: Callable[[Problem], Profile],
    should_stop: ShouldStop,
) -> TrainingPrice | None:
    best: TrainingPrice | None = None
    sequences = sequences_of(asked, problem)
    batches = [sequences] if asked.places.pads else batches_of(sequences, problem.cluster.num_gpus)
    for batch in batches:
        own = replace(problem, workload=replace(problem.workload, global_batch_size=batch))
        profile = profile_of(own)
        try:
            plan = _expressible_plan(own, profile, should_stop)
        except InvalidProblemError:  # a pin or a rule that this number of GPUs cannot keep
            continue
        if plan is not None:
            found = price_of(asked, own, profile, plan, name)
            best = found if best is None or _side_s(asked, found) < _side_s(asked, best) else best
    return best


def critic_s(price: TrainingPrice) -> float:
    """Return the seconds of a critic of the policy's size: values, update, and both states in and out."""
    return price.forward_s + price.update_s + 2.0 * price.swap_s


def batches_of(sequences: int, gpus: int) -> list[int]:
    """Return the packed sequences of an update that are searched, filled up for more or fewer ranks.

    Data-parallel ranks have equal numbers of sequences: one batch for all numbers of ranks that divide the
    GPUs, and shorter ones for fewer ranks where that saves work.
    """
    found = list[int]()
    for ranks in (one for one in range(gpus, 0, -1) if gpus % one == 0):
        batch = -(-sequences // ranks) * ranks
        if not found or batch < _SHORTER * found[-1]:
            found.append(batch)
    return found


def _expressible_plan(problem: Problem, profile: Profile, should_stop: ShouldStop) -> Plan | None:
    """Return the best plan; if its inner stages differ, the best one with as many stages that do not.

    NeMo-RL and verl state the layers of the first and of the last stage, and share the rest out evenly.
    """
    plans = search(problem, profile, should_stop=should_stop).plans
    if not plans or is_expressible(plans[0].config.stage_layers):
        return plans[0] if plans else None
    stages = plans[0].config.pipeline_parallel_size
    split = split_of(problem.model.num_layers, stages)
    pins = {**problem.options.pin, "pipeline_parallel_size": stages}
    options = replace(problem.options, stage_layers=split, pin=pins)
    again = search(replace(problem, options=options), profile, should_stop=should_stop).plans
    return again[0] if again else None


def least_nodes(
    asked: PostTraining, profile_of: Callable[[Problem], Profile], should_stop: ShouldStop
) -> int | None:
    """Return a number of nodes of the largest group on which training has a plan; None: none was found.

    It is found by doubling, so half of it is too few.
    """
    name, group = max(asked.groups.items(), key=lambda one: one[1].num_gpus)
    for doublings in range(1, _DOUBLINGS + 1):
        if should_stop():
            break
        nodes = group.num_nodes << doublings
        problem = training_problem(asked, name, nodes, group.gpus_per_node)
        if _best(asked, problem, name, profile_of, should_stop) is not None:
            return nodes
    return None


def _side_s(asked: PostTraining, price: TrainingPrice) -> float:
    return price.update_s + passes_s(asked.passes, price) + asked.has_critic * critic_s(price)


def passes_s(passes: int, price: TrainingPrice) -> float:
    """Return the seconds of the log-probabilities of a step: the policy's, and the reference's."""
    return passes * price.forward_s - (passes - 1) * price.adapters_s + price.reference_s


def logits_pass_s(asked: PostTraining, plan: Plan, group: NodeGroup) -> float:
    """Return the seconds of one pass over the fp32 logits of all answers of a step, on the last stage."""
    holders = group.num_gpus / plan.config.pipeline_parallel_size
    moved = 4.0 * asked.trained_tokens * asked.model.vocab_size / holders
    return moved / (_READ * group.gpu.hbm_bytes_per_s)


def reference_s(asked: PostTraining, plan: Plan) -> float:
    """Return the seconds in which the reference model takes the place of the policy, and back."""
    adapts_off = asked.adapts and not asked.places.swaps_reference
    if adapts_off or not asked.reference or (asked.launcher, asked.trainer) != ("nemo-rl", "megatron"):
        return 0.0
    own = max(stage.memory_bytes["weights"] for stage in plan.prediction.stages)
    return REFERENCE_MOVES * own / PAGEABLE_BYTES_PER_S


def engine_share_of(asked: PostTraining, plan: Plan, group: NodeGroup) -> float:
    """Return the share of memory that states which stay on training's GPUs leave to an engine there.

    An engine that stays awake has what training's peak leaves.
    """
    if asked.places.offloads:
        return 1.0
    kept, copies = 0.0, 1 + (asked.reference and not asked.adapts)
    for stage in plan.prediction.stages:
        weights = stage.memory_bytes["weights"]
        states = weights * copies + stage.memory_bytes["optimizer"] + CONTEXT_BYTES
        peak = sum(stage.memory_bytes.values()) + weights * (copies - 1)
        kept = max(kept, states if asked.sleeps else peak)
    return 1.0 - kept / group.gpu.memory_bytes


def price_of(
    asked: PostTraining, problem: Problem, profile: Profile, plan: Plan, group: str
) -> TrainingPrice:
    """Return the price of a training plan as a role."""
    seen = plan.prediction
    (evaluation,) = evaluate(problem, profile, [plan.config])
    part = problem.cluster.groups[0]
    logits_s = logits_pass_s(asked, plan, part)
    swapped = 2.0 * OPTIMIZER_BYTES * asked.trained_parameters / part.num_gpus / HOST_BYTES_PER_S
    forward, adapters = forward_s(evaluation) * asked.updates, 0.0
    if asked.adapts and not asked.places.swaps_reference:  # the same passes without them
        bare = replace(problem, workload=replace(problem.workload, lora_targets=()))
        (alone,) = evaluate(bare, profile, [plan.config])
        adapters = max(forward - forward_s(alone) * asked.updates, 0.0)
    return TrainingPrice(
        group=group,
        nodes=part.num_nodes,
        gpus=part.num_gpus,
        update_s=seen.step_time_s * asked.updates + 2.0 * LOGIT_PASSES * logits_s,
        forward_s=forward + LOGIT_PASSES * logits_s,
        adapters_s=adapters,
        reference_s=reference_s(asked, plan),
        swap_s=swapped if asked.places.offloads else 0.0,
        engine_share=engine_share_of(asked, plan, asked.groups[group]),
        log_sigma=math.log(seen.step_time_high_s / seen.step_time_s) / Z_80_PERCENT,
        plan=plan,
        sequences=problem.workload.global_batch_size,
    )
