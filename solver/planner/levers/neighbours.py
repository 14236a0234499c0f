"""Batches and lengths beside the request's own, and documents batched in another way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import Profile
from meshwright.profiles.sequences import Batching
from meshwright.solver.answer import Answer, Lever
from meshwright.solver.clock import look
from meshwright.solver.planner.levers.change import (
    WORTH,
    Change,
    Find,
    can_use,
    leaves_idle,
    levers_of_best,
    sharing,
)
from meshwright.solver.planner.levers.nearby import proved_or_near
from meshwright.solver.problem import Problem, usable_gpus
from meshwright.solver.space.launcher_rules import packing_faults


def rounder_numbers(problem: Problem) -> list[Change]:
    """Return the roundest batch and length nearby."""
    return [*near_batches(problem)[:1], *_near_lengths(problem)[:1]]


_NEAR = 0.25  # of the batch: how far a neighbour that divides better may be


def batches(problem: Problem) -> Iterator[Change]:
    """Yield the batches that all GPUs share, or the most, and twice the batch."""
    work, gpus = problem.workload, usable_gpus(problem)
    batch = work.global_batch_size
    if "num_microbatches" in problem.options.named:
        return
    near = (batch // gpus * gpus, -(-batch // gpus) * gpus)
    searched = (batch, *rounder(batch))  # what is asked, and its neighbours
    shared = [size for size in near if size and abs(size - batch) <= _NEAR * batch]
    sizes = dict.fromkeys((*(shared or _sharing_most(problem)), 2 * batch))
    for size in (size for size in sizes if size not in searched):
        yield Change(
            kind="batch",
            words=f"a global batch of {size}",
            effect="another number of sequences in each step: results",
            problem=replace(problem, workload=replace(work, global_batch_size=size)),
            settings={"workload.global_batch_size": size},
        )


_LIKELY = 2  # batches of those that most GPUs share
_MOST_FAR = 128  # sequences from the batch to either side


def _sharing_most(problem: Problem) -> list[int]:
    """Return batches nearby that more GPUs share than the request's own; none where all share that."""
    batch, gpus = problem.workload.global_batch_size, usable_gpus(problem)
    reach = min(int(_NEAR * batch), _MOST_FAR)
    own = sharing(batch, gpus)
    if own == gpus:
        return []
    near = [size for size in range(max(batch - reach, 1), batch + reach + 1) if size != batch]
    shared = {size: sharing(size, gpus) for size in near}
    more = [size for size in near if shared[size] > own and can_use(problem, shared[size])]
    return sorted(more, key=lambda size: (-shared[size], abs(size - batch)))[:_LIKELY]


_REACH = 16  # a neighbour differs by at most a 16th of the number, and by 1 of a small one


def rounder(number: int) -> list[int]:
    """Return the numbers near to one that more powers of two divide, the roundest first, then by distance.

    Parallel sizes divide a batch and a length, and nothing else of their value matters to a layout: where a
    number is no rounder, it has no layout on as many GPUs that its neighbour lacks.
    """
    reach, twos = max(1, number // _REACH), number & -number
    found = dict[int, int]()
    while twos <= number:
        twos *= 2
        nearest = (number + twos // 2) // twos * twos
        if nearest and abs(nearest - number) <= reach:
            found[nearest] = twos
    roundest = max(found, key=lambda one: (found[one], -abs(one - number)), default=None)
    return sorted(found, key=lambda one: (one != roundest, abs(one - number)))


def neighbours(problem: Problem, profile: Profile, answer: Answer, find: Find) -> Iterator[Lever]:
    """Yield the nearest batch and the nearest length that train enough faster, each found by a search.

    One counts where it saves as much as any, within what a change is worth naming for. The roundest one is
    asked first: where it does not save enough, no nearer one does, unless GPUs are left idle: 14 sequences
    are 14 replicas. Where ``find`` proves nothing, the best plan nearby counts.
    """
    work, idle = problem.workload, leaves_idle(problem, answer)
    own = {"workload.global_batch_size": work.global_batch_size, "workload.seq_length": work.seq_length}

    def lever_of(change: Change) -> Iterator[Lever]:
        plans = proved_or_near(problem, change, profile, answer, find)
        yield from levers_of_best(problem, answer, change, plans)

    def distance(lever: Lever) -> int:
        return sum(abs(int(lever.settings[path]) - own[path]) for path in lever.settings)

    for changes in (_near_lengths(problem), near_batches(problem)):  # lengths take less work
        found, most = list[Lever](), 0.0
        for change in changes:
            look()
            found += lever_of(change)
            most = max((one.saves for one in found), default=0.0)
            if not idle and (not found or (len(found) > 1 and found[-1].saves >= most - WORTH)):
                break
        yield from sorted((one for one in found if one.saves >= most - WORTH), key=distance)[:1]


def _in_each_step(more: int) -> str:
    sequences = "sequence" if abs(more) == 1 else "sequences"
    return f"{abs(more)} {sequences} {'more' if more > 0 else 'fewer'} in each step: results"


def near_batches(problem: Problem) -> list[Change]:
    """Return the rounder batches beside the request's own, the roundest first."""
    work = problem.workload
    if "num_microbatches" in problem.options.named:
        return []
    return [
        Change(
            kind="neighbour",
            words=f"a global batch of {size}",
            effect=_in_each_step(size - work.global_batch_size),
            problem=replace(problem, workload=replace(work, global_batch_size=size)),
            settings={"workload.global_batch_size": size},
        )
        for size in rounder(work.global_batch_size)
    ]


def _near_lengths(problem: Problem) -> list[Change]:
    work, most = problem.workload, problem.model.max_position_embeddings
    if work.lengths is not None or work.images_per_sample:
        return []
    return [
        Change(
            kind="neighbour",
            words=f"sequences of {length} tokens",
            effect=f"sequences are {'shorter' if length < work.seq_length else 'longer'}: results",
            problem=replace(problem, workload=replace(work, seq_length=length)),
            settings={"workload.seq_length": length},
        )
        for length in rounder(work.seq_length)
        if not most or length <= max(most, work.seq_length)
    ]


_BATCHINGS: dict[Batching, tuple[str, str]] = {
    "packing": ("packed sequences", "several documents in a sequence, more of them in a step: results"),
    "padding": ("padded sequences", "one document in a sequence: results"),
    "padding_to_longest": (
        "sequences as long as their micro-batch needs",
        "one document in a sequence: results",
    ),
}


def batchings(problem: Problem) -> Iterator[Change]:
    """Yield the other batchings. Some launchers pack only with a micro-batch size of 1."""
    work, able = problem.workload, launcher_capabilities(problem.launcher)
    for batching, (words, effect) in _BATCHINGS.items():
        if work.lengths is None or batching == work.lengths.batching or batching not in able.batchings:
            continue
        other = replace(work, lengths=replace(work.lengths, batching=batching))
        if not any(packing_faults(other)):
            yield Change(
                kind="batching",
                words=words,
                effect=effect,
                problem=replace(problem, workload=other),
                settings={"workload.lengths.batching": batching},
            )
