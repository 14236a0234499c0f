"""Why no placement on a mixed cluster is legal and fits: smallest sets of limits, each proved by searches.

Limits are those of the request and the GPUs' memory. A set is a conflict when no plan keeps all of it, with
every other limit dropped; it is minimal when each of its parts has a plan. Both are what the search itself
proves of the changed problem, so that every member of a conflict is needed; what it leaves open is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

import numpy as np

from profiles.profile import Profile
from profiles.units import GIB
from solver.mixed.first import first_plan
from solver.mixed.fleet import Fleet
from solver.mixed.outer import at_berth, berths_of, columns_of
from solver.plan import Infeasibility
from solver.problem import Problem
from solver.request_rules import request_rules
from solver.rule import Rule
from solver.rules import rules_of, violation_masks
from solver.search.watch import Watch
from solver.why.placed_nearest import Lack
from solver.why.relaxed import without_limits

_MOST_LIMITS = 6  # limits whose sets are all tried; of more, one minimal set is found
_MOST_CONFLICTS = 4
_ABUNDANT_BYTES = 2**50  # memory that nothing fills
_CUT = "the time limit came before all conflicts of limits were found: there may be others"
_SAMPLED = "whether some limits conflict is not known: not all of their configurations could be searched"


@dataclass(slots=True, kw_only=True)
class Limits:
    """The limits of a problem, and whether sets of them leave a plan; each set is searched once."""

    problem: Problem
    profile: Profile
    memory: str
    known: dict[frozenset[str], bool | None] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Limits of the request, then memory."""
        return [*(rule.name for rule in request_rules(self.problem)), self.memory]

    def leave_a_plan(self, kept: frozenset[str]) -> bool | None:
        """Whether a plan keeps these limits, and may break the others; None: that is not known."""
        if kept not in self.known:
            dropped = [name for name in self.names if name not in kept and name != self.memory]
            problem = without_limits(self.problem, dropped)
            if self.memory not in kept:
                problem = with_abundant_memory(problem)
            found = first_plan(problem, self.profile)
            self.known[kept] = None if found == "unknown" else found is not None
        return self.known[kept]

    def is_minimal(self, conflict: Sequence[str]) -> bool:
        """Whether each part of a conflict is known to have a plan."""
        return all(self.leave_a_plan(frozenset(conflict) - {name}) for name in conflict)


def with_abundant_memory(problem: Problem) -> Problem:
    """The problem on GPUs whose memory is no limit."""
    groups = tuple(
        replace(group, gpu=replace(group.gpu, memory_bytes=_ABUNDANT_BYTES))
        for group in problem.cluster.groups
    )
    return replace(problem, cluster=replace(problem.cluster, groups=groups))


def limits_of(problem: Problem, profile: Profile) -> Limits:
    """The limits with memory in words."""
    fleet, chance = Fleet.of(problem, profile), problem.options.max_out_of_memory_probability
    rooms = [f"{fleet.budget_bytes(at) / GIB:.1f} GiB on {name}" for at, name in enumerate(fleet.names)]
    memory = f"memory of {', '.join(rooms)} (out-of-memory risk {chance * 100:g} %)"
    return Limits(problem=problem, profile=profile, memory=memory)


def conflicts_of(limits: Limits) -> Iterator[tuple[str, ...]]:
    """Minimal sets of limits that no plan keeps together, the smallest first; (): the rules alone."""
    names, found = limits.names, list[tuple[str, ...]]()
    if limits.leave_a_plan(frozenset()) is False:
        yield ()
    elif len(names) > _MOST_LIMITS:
        yield from filter(limits.is_minimal, [_without_plan(limits, names)])
    else:
        for size in range(1, len(names) + 1):
            for some in combinations(names, size):
                if any(set(one) <= set(some) for one in found):
                    continue
                if limits.leave_a_plan(frozenset(some)) is False and limits.is_minimal(some):
                    found.append(some)
                    yield some


def _without_plan(limits: Limits, names: Sequence[str]) -> tuple[str, ...]:
    """One set: limits are dropped one by one while it is proved that no plan appears."""
    kept = list(names)
    for name in names:
        left = frozenset(kept) - {name}
        if limits.leave_a_plan(left) is False:
            kept.remove(name)
    return tuple(kept)


def explained(limits: Limits, lack: Lack | None, watch: Watch) -> Infeasibility:
    """Conflicts, the nearest configuration and sentences on both, as far as the time goes; they say so."""
    conflicts, of_request, complete = list[tuple[str, ...]](), list[str](), False
    with watch.cut():
        for one in islice(conflicts_of(limits), _MOST_CONFLICTS):
            conflicts.append(one)
            if limits.memory not in one:
                of_request += _of_request(limits, one)
        complete = True
    sampled = None in limits.known.values()
    # what is legal and lacks memory is told where conflicts with memory may be missing, too
    open_ended = sampled or not complete or not conflicts
    about_memory = lack is not None and (open_ended or any(limits.memory in one for one in conflicts))
    reasons = [lack.reason] if lack is not None and about_memory else []
    reasons += [*of_request, *([_SAMPLED] if sampled else []), *([] if complete else [_CUT])]
    return Infeasibility(
        reasons=tuple(dict.fromkeys(reasons)),
        conflicts=tuple(one for one in conflicts if one),
        nearest=lack.shortfall if lack is not None and about_memory else None,
    )


def _of_request(limits: Limits, conflict: Sequence[str]) -> Iterator[str]:
    """Which rules the rows break that keep a conflict's limits."""
    said = " and ".join(conflict) or "on this cluster"
    fleet = Fleet.of(limits.problem, limits.profile)
    (columns, _), fewest = columns_of(fleet, wide=True), list[Rule]()
    for berth in berths_of(fleet):
        rules = rules_of(fleet.problems[berth.group])
        masks = violation_masks(rules, at_berth(columns, berth))
        asked = sum(1 << bit for bit, rule in enumerate(rules) if rule.name in conflict)
        other = sum(1 << bit for bit, rule in enumerate(rules) if rule.of_request) & ~asked
        left = masks[(masks & asked) == 0] & ~other
        if not len(left):
            continue
        mask = min(np.unique(left).tolist(), key=lambda one: one.bit_count())
        broken = [rule for bit, rule in enumerate(rules) if mask >> bit & 1]
        if not broken:
            yield f"{said}: no group has GPUs enough for the stages"
            return
        fewest = broken if not fewest or len(broken) < len(fewest) else fewest
    if not fewest:
        yield f"{said}: no configuration of this cluster has it"
    yield from (f"{said}: {rule.name} ({rule.reason})" for rule in fewest)
