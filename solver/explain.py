"""Why no configuration is legal and fits, and which smallest changes would help.

Each row's broken limits are a bit mask: the rules of the space, and memory as one limit more. Minimal
masks are the minimal correction sets: limits which, dropped together, leave a row standing. Sets of
limits that meet every correction set are the conflicts: they cannot hold together, and the minimal ones
say exactly why. Every change that is offered was priced and fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import ceil

import numpy as np

from profiles.profile import Profile
from profiles.units import GIB
from solver.columns import BoolArray, Columns, IntArray
from solver.cost.memory import memory_limit_bytes, out_of_memory_probability
from solver.plan import Infeasibility, Shortfall
from solver.problem import Problem
from solver.search.fitting import fitting, lightest, nearest, some_fits
from solver.search.priced import CHUNK, priced_rows
from solver.search.rows import Rows
from solver.space import Space, enumerate_space, with_whole
from solver.splits import Prescribed

_MOST_NODES_FACTOR = 16
_LARGEST_CONFLICT = 4
_MOST_CONFLICTS = 4
_MOST_CHANGES = 4
_ROUNDING = 1e-6  # in tenths of a per cent: a peak is rounded to bytes
_LARGEST_RISK = 0.25  # chance to run out of memory that is still worth offering
_STATIC_TERMS = ("weights", "gradients", "optimizer")


def minimal_masks(masks: IntArray) -> list[int]:
    """Masks of which no other is a part, fewest bits first."""
    kept: list[int] = []
    for mask in sorted(np.unique(masks).tolist(), key=lambda mask: (mask.bit_count(), mask)):
        if not any(other & mask == other for other in kept):
            kept.append(mask)
    return kept


def minimal_hitting_sets(sets: Sequence[int], largest: int = _LARGEST_CONFLICT) -> list[int]:
    """Smallest masks that share a bit with every one of ``sets``.

    Sets of one bit leave no choice; of others up to ``largest`` bits are taken.
    """
    forced = sum({mask for mask in sets if mask.bit_count() == 1})
    others = [mask for mask in sets if not mask & forced]
    union = [bit for bit in range(64) if any(mask >> bit & 1 for mask in others)]
    found: list[int] = []
    for size in range(largest + 1):
        for bits in combinations(union, size):
            mask = sum(1 << bit for bit in bits)
            if all(mask & other for other in others) and not any(mask & old == old for old in found):
                found.append(mask)
    return [forced | mask for mask in found if forced | mask]


def explain(problem: Problem, profile: Profile, space: Space, rows: Rows) -> Infeasibility:
    """Reasons, conflicts, the nearest configuration and verified changes of an infeasible problem.

    Args:
        problem: what was asked.
        profile: what prices it.
        space: its enumerated configurations.
        rows: the legal ones, priced; those that need least memory are enough.
    """
    space = with_whole(problem, space)
    names = [*(rule.name for rule in space.rules), _memory_name(problem, rows)]
    corrections = correction_masks(problem, profile, space)
    conflicts = minimal_hitting_sets(corrections)[:_MOST_CONFLICTS]
    shortfall = _shortfall(rows)
    reasons = [_memory_reason(problem, rows, shortfall)] if shortfall else []
    reasons += _request_reasons(space, conflicts)
    changes = [
        *_risk_changes(problem, profile, shortfall),
        *_dropped_limits(space, corrections),
        *_more_nodes(problem, profile),
    ]
    return Infeasibility(
        reasons=tuple(reasons),
        conflicts=tuple(tuple(_words(names, conflict)) for conflict in conflicts),
        nearest=shortfall,
        changes=tuple(changes[:_MOST_CHANGES]),
    )


def _words(names: Sequence[str], mask: int) -> list[str]:
    """Names of the limits in a mask."""
    return [name for bit, name in enumerate(names) if mask >> bit & 1]


def _memory_name(problem: Problem, rows: Rows) -> str:
    """Memory as a limit, in words."""
    chance = problem.options.max_out_of_memory_probability
    return f"memory of {rows.budget_bytes / GIB:.1f} GiB a GPU (out-of-memory risk {chance * 100:g} %)"


def correction_masks(problem: Problem, profile: Profile, space: Space) -> list[int]:
    """Minimal sets of limits that, dropped together, leave a row; memory is the bit after all rules."""
    return minimal_masks(_masks_with_memory(problem, profile, space))


def _masks_with_memory(problem: Problem, profile: Profile, space: Space) -> IntArray:
    """Masks of the rows that break limits of the request or memory only; of all rows if none is left."""
    request = sum(1 << bit for bit, rule in enumerate(space.rules) if rule.of_request)
    askable = (space.masks & ~request) == 0
    if not askable.any():
        return space.masks
    fits = np.zeros(len(space.columns), dtype=bool)  # the search refuted every legal row
    asked = np.flatnonzero(askable & ~space.legal)
    for start in range(0, len(asked), CHUNK):
        some = asked[start : start + CHUNK]
        fits[some] = _fitting_without_limits(problem, profile, space.columns.take(some))
    return np.asarray((space.masks | np.where(fits, 0, 1 << len(space.rules)))[askable])


def _fitting_without_limits(problem: Problem, profile: Profile, columns: Columns) -> BoolArray:
    """Rows that may fit in memory; those that break a prescribed split are judged by any split."""
    any_split = replace(problem, options=replace(problem.options, stage_layers=()))
    fits = fitting(priced_rows(any_split, profile, columns))
    if problem.options.stage_layers:
        keeps = ~Prescribed.of(problem).lacking(columns)
        fits[keeps] = fitting(priced_rows(problem, profile, columns.take(np.flatnonzero(keeps))))
    return fits


def _shortfall(legal: Rows) -> Shortfall | None:
    """The legal configuration that lacks least memory."""
    rows = legal.take(lightest(legal.columns))
    found = nearest(rows) if len(rows) else None
    if found is None:
        return None
    row, split = found
    one = rows.take([row])
    stages = one.stages([split])
    stage = int(stages.peak_memory_bytes[0].argmax())
    memory = {name: round(float(value[0, stage])) for name, value in stages.memory_bytes.items()}
    return Shortfall(
        config=one.columns.configuration(0, split, one.replayed([split])[0]),
        stage=stage,
        needed_bytes=sum(memory.values()),
        limit_bytes=int(rows.budget_bytes),
        memory_bytes=memory,
    )


def _memory_reason(problem: Problem, rows: Rows, shortfall: Shortfall) -> str:
    """How much memory is missing, and what of it no split of the step can avoid."""
    limit, budget = memory_limit_bytes(problem), rows.budget_bytes
    short = shortfall.needed_bytes - shortfall.limit_bytes
    static = sum(shortfall.memory_bytes[term] for term in _STATIC_TERMS)
    return (
        f"memory: stage {shortfall.stage} of the nearest configuration needs "
        f"{shortfall.needed_bytes / GIB:.1f} GiB ({static / GIB:.1f} GiB of it weights, gradients and "
        f"optimizer states), {short / GIB:.1f} GiB more than a predicted peak may fill: "
        f"{budget / GIB:.1f} of {limit / GIB:.1f} GiB"
    )


def _request_reasons(space: Space, conflicts: Sequence[int]) -> Iterator[str]:
    """For limits of the request that no configuration meets: which rules those break that would."""
    request = sum(1 << bit for bit, rule in enumerate(space.rules) if rule.of_request)
    names = [rule.name for rule in space.rules]
    for conflict in conflicts:
        asked = " and ".join(_words(names, conflict))
        if conflict & ~request == 0:
            yield from _broken_rules(space, asked, (space.masks & conflict) == 0)
        elif conflict & ~request == conflict:
            rules = [rule for bit, rule in enumerate(space.rules) if conflict >> bit & 1]
            yield from (f"{rule.name}: {rule.reason}" for rule in rules)


def _broken_rules(space: Space, asked: str, meeting: BoolArray) -> Iterator[str]:
    """What stands against the rows that meet some limits of the request."""
    if not meeting.any():
        yield f"{asked}: no configuration on {space.num_gpus} GPUs has it"
        return
    mask = minimal_masks(space.masks[meeting])[0]
    for bit, rule in enumerate(space.rules):
        if mask >> bit & 1:
            yield f"{asked}: {rule.name} ({rule.reason})"


def _risk_changes(problem: Problem, profile: Profile, shortfall: Shortfall | None) -> Iterator[str]:
    """Accept a larger chance to run out of memory, where a moderate one is enough."""
    if shortfall is None:
        return
    limit = float(memory_limit_bytes(problem))
    risk = out_of_memory_probability(shortfall.needed_bytes, limit, profile.log_memory_sigma)
    if risk <= _LARGEST_RISK:
        yield f"an out-of-memory risk of {ceil(risk * 1000 + _ROUNDING) / 10:.1f} %"  # never rounded down


def _dropped_limits(space: Space, corrections: Sequence[int]) -> Iterator[str]:
    """Limits of the request to drop, alone or together; what is left was priced and fits."""
    request = sum(1 << bit for bit, rule in enumerate(space.rules) if rule.of_request)
    for mask in corrections:
        if mask and mask & ~request == 0:
            yield "without " + " and ".join(_words([rule.name for rule in space.rules], mask))


def _more_nodes(problem: Problem, profile: Profile) -> Iterator[str]:
    """The first doubling of the nodes that fits."""
    factor = 2
    while factor <= _MOST_NODES_FACTOR:
        groups = tuple(replace(g, num_nodes=g.num_nodes * factor) for g in problem.cluster.groups)
        options = replace(problem.options, num_nodes=())  # all of them, whatever numbers were asked for
        larger = replace(problem, cluster=replace(problem.cluster, groups=groups), options=options)
        group = replace(profile.group, num_nodes=profile.group.num_nodes * factor)
        wider = replace(profile, group=group)
        space = enumerate_space(larger, legal_only=True)
        if some_fits(larger, wider, space.rows):
            yield f"{larger.cluster.num_nodes} nodes"
            return
        factor *= 2
