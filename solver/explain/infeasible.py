"""Reasons why no configuration is legal and fits, and the smallest changes that would help.

Each row's broken limits are a bit mask: the rules of the space, and memory as one limit more. Minimal
masks are the minimal correction sets: limits which, dropped together, leave some row. Sets of
limits that meet every correction set are the conflicts: they cannot hold together, and the minimal ones
are the exact reasons. Every change that is offered was priced and fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice
from math import ceil

import numpy as np

from meshwright.profiles.figures import gib, gib_of
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Infeasibility, Plan, Shortfall
from meshwright.solver.check import closest_violations, rule_faults
from meshwright.solver.clock import Watch, look
from meshwright.solver.configuration import BoolArray, Columns, Configuration, IntArray, plan_id_of
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.memory import out_of_memory_probability
from meshwright.solver.cost.objective import is_asked_for, outlook_of
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.predict import predicted
from meshwright.solver.problem import InvalidPlanError, Problem, problem_digest
from meshwright.solver.search.cp_sat import without_pandas
from meshwright.solver.search.feasible import fitting, lightest, lightest_of, nearest
from meshwright.solver.search.mixed.frontier import configuration_of
from meshwright.solver.search.mixed.lines import Line, LineSplit, LineTables, alone_lines, whole_groups
from meshwright.solver.search.mixed.rows import (
    LegalRows,
    MixedRows,
    every_columns,
    options_of,
    with_tensor_parallel,
)
from meshwright.solver.search.mixed.search import any_mixed
from meshwright.solver.search.priced_space import CHUNK, priced_rows
from meshwright.solver.search.rows import Rows
from meshwright.solver.space.enumerate import Space, enumerate_space, refuted_space, with_whole
from meshwright.solver.space.factored import Crossing
from meshwright.solver.space.request_rules import group_constraints, request_rules, without_limits
from meshwright.solver.space.rule import Rule
from meshwright.solver.space.rules import lacking_outside, rules_of, violation_masks
from meshwright.solver.splits import Prescribed

_MOST_LIGHT = 65_536  # rows among which the nearest to fitting is sought
_LARGEST_CONFLICT = 4
_MOST_CONFLICTS = 4
_MOST_CHANGES = 4
ROUNDING = 1e-6  # in tenths of a per cent: a peak is rounded to bytes
LARGEST_RISK = 0.25  # chance to run out of memory that is still worth offering
_STATIC_TERMS = ("weights", "gradients", "optimizer")


def minimal_masks(masks: IntArray) -> list[int]:
    """Return masks of which no other is a part, fewest bits first."""
    kept: list[int] = []
    for mask in sorted(np.unique(masks).tolist(), key=lambda mask: (mask.bit_count(), mask)):
        if not any(other & mask == other for other in kept):
            kept.append(mask)
    return kept


def minimal_hitting_sets(sets: Sequence[int]) -> list[int]:
    """Return the smallest masks that share a bit with every one of ``sets``.

    Sets of one bit leave no choice; of the others, up to four bits are combined.
    """
    forced = sum({mask for mask in sets if mask.bit_count() == 1})
    others = [mask for mask in sets if not mask & forced]
    longest = max((mask.bit_length() for mask in others), default=0)
    union = [bit for bit in range(longest) if any(mask >> bit & 1 for mask in others)]
    found: list[int] = []
    for size in range(_LARGEST_CONFLICT + 1):
        for bits in combinations(union, size):
            mask = sum(1 << bit for bit in bits)
            if all(mask & other for other in others) and not any(mask & old == old for old in found):
                found.append(mask)
    return [forced | mask for mask in found if forced | mask]


def smallest_hitting_set(sets: Sequence[int]) -> int:
    """Return the smallest mask that shares a bit with every one of ``sets``, by CP-SAT; 0 if one is 0.

    No bit can be left out: without it some set shares none with the others.
    """
    if not all(sets):
        return 0
    without_pandas()
    from meshwright.solver.search.decision.reasons import smallest_set  # noqa: PLC0415 - OR-Tools, for few

    broken = [frozenset(bit for bit in range(one.bit_length()) if one >> bit & 1) for one in sets]
    return sum(1 << bit for bit in smallest_set(broken))


def reasons_of_none(problem: Problem, profile: Profile) -> Infeasibility:
    """Return why no configuration of equal nodes is legal and fits, among all candidates."""
    whole = refuted_space(problem)
    legal: Columns | Crossing = whole.columns.take(whole.legal)
    if not whole.whole:
        legal = enumerate_space(problem, legal_only=True).rows
    index = lightest_of(legal)[:_MOST_LIGHT]
    return explain(problem, profile, whole, priced_rows(problem, profile, legal.take(index)))


def explain(problem: Problem, profile: Profile, space: Space, rows: Rows) -> Infeasibility:
    """Return reasons, conflicts, nearest configuration and verified changes for an infeasible problem.

    Args:
        problem: the request.
        profile: its prices.
        space: its enumerated configurations.
        rows: the legal ones, priced; those that need least memory are enough.
    """
    space = with_whole(problem, space)
    chance, room = problem.options.max_out_of_memory_probability, gib(rows.budget_bytes)
    memory = f"memory of {room} GiB a GPU (out-of-memory risk {chance * 100:g} %)"
    limits = [*(rule.name for rule in space.rules), memory]
    corrections = correction_masks(problem, profile, space)
    conflicts = minimal_hitting_sets(corrections)[:_MOST_CONFLICTS] or [smallest_hitting_set(corrections)]
    offloaded = _lacking_hosts(problem, profile, space)
    lack = _lack(problem, profile, rows, " that the hosts can hold" if offloaded else "")
    shortfall = lack.shortfall if lack else None
    found = [one for one in (shortfall, offloaded) if one is not None]
    reasons = [lack.reason] if lack else []
    reasons += [_host_reason(offloaded)] if offloaded else []
    reasons += _request_reasons(space, conflicts)
    changes = chain(
        _risk_changes(problem, profile, shortfall),
        (f"without {' and '.join(names)}" for names in droppable_limits(space, corrections)),
    )
    return Infeasibility(
        reasons=tuple(reasons),
        conflicts=tuple(tuple(_words(limits, conflict)) for conflict in conflicts),
        nearest=min(found, key=lambda one: one.lacks_bytes, default=None),
        closest=closest_plan(problem, profile, shortfall.config) if shortfall else None,
        changes=tuple(islice(changes, _MOST_CHANGES)),
    )


def _words(names: Sequence[str], mask: int) -> list[str]:
    return [name for bit, name in enumerate(names) if mask >> bit & 1]


def correction_masks(problem: Problem, profile: Profile, space: Space) -> list[int]:
    """Return minimal sets of limits to drop for a row; memory is the bit after all rules.

    Of rows that break only request limits or memory; of all rows if there is none.
    """
    request = sum(1 << bit for bit, rule in enumerate(space.rules) if rule.of_request)
    askable = (space.masks & ~request) == 0
    if not askable.any():
        return minimal_masks(space.masks)
    fits = np.zeros(len(space.columns), dtype=bool)  # the search refuted every legal row
    asked = np.flatnonzero(askable & ~space.legal)
    for start in range(0, len(asked), CHUNK):
        some = asked[start : start + CHUNK]
        fits[some] = _fitting_without_limits(problem, profile, space.columns.take(some))
    memory = np.array(1 << len(space.rules), dtype=space.masks.dtype)
    return minimal_masks((space.masks | np.where(fits, 0, memory))[askable])


def _fitting_without_limits(problem: Problem, profile: Profile, columns: Columns) -> BoolArray:
    """Mark rows that may fit; those that break a prescribed split are judged by any split."""
    any_split = replace(problem, options=replace(problem.options, stage_layers=()))
    fits = fitting(priced_rows(any_split, profile, columns))
    if problem.options.stage_layers:
        keeps = ~Prescribed.of(problem).lacking(columns)
        fits[keeps] = fitting(priced_rows(problem, profile, columns.take(np.flatnonzero(keeps))))
    return fits


def closest_plan(problem: Problem, profile: Profile, config: Configuration) -> Plan | None:
    """Return a configuration as a plan that need not fit; None: it breaks a rule or another limit, too.

    Raises:
        InvalidPlanError: the independent check refuses its prediction (a bug).
    """
    if rule_faults(problem, [config])[0]:
        return None
    (evaluation,) = evaluate(problem, profile, [config], with_spread=True)
    prediction = predicted(problem, evaluation)
    plan = Plan(
        plan_id=plan_id_of(problem_digest(problem), config),
        rank=0,
        ranked=False,
        config=config,
        prediction=prediction,
        objective_s=evaluation.objective_s,
        outlook=outlook_of(problem, profile, config, prediction) if is_asked_for(problem) else None,
    )
    if faults := closest_violations(problem, profile, plan):
        raise InvalidPlanError("; ".join(faults))
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Nearest configuration, with its shortage in words."""

    shortfall: Shortfall
    reason: str
    group: str  # of the stage that lacks; empty in a mesh over all nodes
    log_memory_sigma: float  # of predictions there


def _lack(problem: Problem, profile: Profile, legal: Rows, within: str = "") -> Lack | None:
    rows = legal.take(lightest(legal.columns))
    found = nearest(rows) if len(rows) else None
    if found is None:
        return None
    row, split = found
    return _lack_of(problem, profile, rows.take([row]).configurations([split])[0], within)


def _lack_of(problem: Problem, profile: Profile, config: Configuration, within: str = "") -> Lack:
    """Return the shortage of the stage that lacks most memory; ``within``: the limits that are kept."""
    stages = evaluate(problem, profile, [config])[0].stages
    budgets = [stage.on.budget_bytes for stage in stages]
    memory = [stage.memory_bytes() for stage in stages]
    short = [sum(terms.values()) - budget for terms, budget in zip(memory, budgets, strict=True)]
    at = int(np.argmax(short))
    on, needed = stages[at].on, sum(memory[at].values())
    static = sum(memory[at][term] for term in _STATIC_TERMS)
    limit, place, there = on.problem.memory_limit_bytes, f" on {on.name}" * bool(on.name), " there"
    reason = (
        f"memory: stage {at}{place} of the nearest configuration{within} needs {gib(needed)} "
        f"GiB ({gib(static)} GiB for weights, gradients and optimizer states), "
        f"{gib(short[at])} GiB more than a predicted peak may fill{there * bool(on.name)}: "
        f"{gib_of(budgets[at], limit)}"
    )
    shortfall = Shortfall(
        config=config, stage=at, needed_bytes=needed, limit_bytes=int(budgets[at]), memory_bytes=memory[at]
    )
    return Lack(
        shortfall=shortfall, reason=reason, group=on.name, log_memory_sigma=on.profile.log_memory_sigma
    )


def _lacking_hosts(problem: Problem, profile: Profile, space: Space) -> Shortfall | None:
    """Return the offload for which hosts lack least, among rows that fit the GPUs if there are any."""
    limits = sum(1 << bit for bit, rule in enumerate(space.rules) if rule.of_host)
    lacking = np.flatnonzero(((space.masks & ~limits) == 0) & ~space.legal)
    columns = space.columns.take(lacking)
    columns = columns.take(lightest_of(columns)[:_MOST_LIGHT])
    if not len(columns):
        return None
    rows = priced_rows(problem, profile, columns)
    if (fits := fitting(rows)).any():
        rows = rows.take(np.flatnonzero(fits))
        lacks = sum(lacking_outside(problem, rows.columns))
        rows = rows.take(np.flatnonzero(lacks == np.min(lacks)))
    lack = _lack(problem, profile, rows)
    if lack is None:
        return None
    short, own = lack.shortfall, lacking_outside(problem, Columns.of([lack.shortfall.config]))
    named = zip(("host memory", "NVMe"), own, strict=True)
    return replace(short, lacks_outside={what: ceil(each[0]) for what, each in named if each[0]})


def _host_reason(short: Shortfall) -> str:
    lacks = (f"{gib(lacks)} GiB of {what}" for what, lacks in short.lacks_outside.items())
    return (
        f"{' and '.join(short.lacks_outside)}: with {short.config.offload} offloaded, each GPU lacks "
        f"{' and '.join(lacks)}; stage {short.stage} needs "
        f"{gib_of(short.needed_bytes, short.limit_bytes)} on each GPU"
    )


def _request_reasons(space: Space, conflicts: Sequence[int]) -> Iterator[str]:
    """Yield, for unmet limits of the request, the rules that configurations meeting them break."""
    request = sum(1 << bit for bit, rule in enumerate(space.rules) if rule.of_request)
    names = [rule.name for rule in space.rules]
    for conflict in conflicts:
        asked = _words(names, conflict)
        if conflict & ~request == 0:
            yield from _broken_rules(space, asked, (space.masks & conflict) == 0)
        elif conflict & ~request == conflict:
            rules = [rule for bit, rule in enumerate(space.rules) if conflict >> bit & 1]
            yield from (f"{rule.name}: {rule.reason}" for rule in rules)


def _them(names: Sequence[str]) -> str:
    if len(names) == 1:
        return "it"
    every = "both" if len(names) == 2 else f"all {len(names)}"  # noqa: PLR2004 - of two there is a word
    return f"{every}, and without any one of them some does"


def _broken_rules(space: Space, asked: Sequence[str], meeting: BoolArray) -> Iterator[str]:
    if not meeting.any():
        yield f"{' and '.join(asked)}: no configuration of {space.num_gpus} GPUs keeps {_them(asked)}"
        return
    mask = minimal_masks(space.masks[meeting])[0]
    for bit, rule in enumerate(space.rules):
        if mask >> bit & 1:
            yield f"{' and '.join(asked)}: {rule.name} ({rule.reason})"


def _risk_changes(problem: Problem, profile: Profile, shortfall: Shortfall | None) -> Iterator[str]:
    if shortfall is None:
        return
    limit = float(problem.memory_limit_bytes)
    risk = out_of_memory_probability(shortfall.needed_bytes, limit, profile.log_memory_sigma)
    if risk <= LARGEST_RISK:
        yield accepted_words(ceil(risk * 1000 + ROUNDING) / 1000)  # never rounded down


def accepted_words(risk: float) -> str:
    """Return the change that accepts a risk to run out of memory."""
    return f"Accept a {risk * 100:.1f} % out-of-memory risk"


def droppable_limits(space: Space, corrections: Sequence[int]) -> Iterator[list[str]]:
    """Yield the corrections that drop limits of the request alone, by name."""
    request = sum(1 << bit for bit, rule in enumerate(space.rules) if rule.of_request)
    for mask in corrections:
        if mask and mask & ~request == 0:
            yield _words([rule.name for rule in space.rules], mask)


# --------------------------------------------------------------------------------------------------
# Nothing fits on a mixed cluster: the placement that lacks least memory on its worst stage.


_ROWS = 24  # rows looked at closely, those with most room for their layers
_LARGEST_BYTES = 2.0**44  # more than any stage lacks
_CLOSE_BYTES = 2.0**20  # the shortfall is known to a MiB


def nearest_lack(problem: Problem, profile: Profile, watch: Watch) -> Lack | None:
    """Return the placement that lacks least, of the rows with most room; None if no row is legal.

    Placements are node groups one after another. Where the time is over before, it is the least of what
    was tried, if anything was.
    """
    fleet, least_bytes, found = NodeGroups.of(problem, profile), _LARGEST_BYTES, list[Configuration]()
    with watch.cut():
        rows = MixedRows.of(LegalRows.of(fleet, wide=True))
        for row in _roomiest(rows):
            for line in [*alone_lines(rows, row), *whole_groups(rows, row)]:
                look()
                split, lacks = _least_lack(rows, row, line, least_bytes)
                if split is not None:
                    least_bytes = lacks
                    found.append(configuration_of(rows, row, line, split))
    return _lack_of(problem, profile, found[-1]) if found else None


def _roomiest(rows: MixedRows) -> list[int]:
    """Return rows by how often their layers fit in the memory of the stages, one stage counted as one."""
    each = (rows.state_bytes + rows.kept_bytes)[..., :-2].min(axis=-1)
    held = np.maximum(rows.room, rows.allowed[None, :, 1]) * np.maximum(rows.room_bytes, 1.0) / each
    groups = [held[rows.group_of == at].max(axis=0, initial=0.0) for at in np.unique(rows.group_of)]
    return [int(row) for row in np.argsort(-np.sum(groups, axis=0), kind="stable")[:_ROWS]]


def _least_lack(
    rows: MixedRows, row: int, line: Line, most_bytes: float
) -> tuple[tuple[int, ...] | None, float]:
    """Return a split that fits with least further memory of every GPU, below ``most_bytes``; and that."""
    high = most_bytes - _CLOSE_BYTES
    split, low = LineSplit(LineTables(rows, row, high), line).any_fitting(), 0.0
    while split is not None and high - low > _CLOSE_BYTES:
        look()
        middle = (low + high) / 2.0
        able = LineSplit(LineTables(rows, row, middle), line).any_fitting()
        low, high, split = (middle, high, split) if able is None else (low, middle, able)
    return split, high


# --------------------------------------------------------------------------------------------------
# Why no placement on a mixed cluster is legal and fits: smallest sets of limits, each proved by searches.
#
# Limits are those of the request and the GPUs' memory. A set is a conflict when no plan keeps all of it,
# with every other limit dropped; it is minimal when each of its parts has a plan. Both are what the
# search itself proves of the changed problem, so that every member of a conflict is needed; what it
# leaves open is reported.


_MOST_LIMITS = 6  # limits with sets that are all tried; of more, one minimal set is found
_ABUNDANT_BYTES = 2**50  # memory that nothing fills
_CUT = "the time limit ended the analysis of conflicting limits. There may be others"
_SAMPLED = "some limits may also conflict: not all of their configurations could be searched"


@dataclass(slots=True, kw_only=True)
class ProblemLimits:
    """Limits of a problem, with a cached search of each set that leaves a plan."""

    problem: Problem
    profile: Profile
    memory: str
    known: dict[frozenset[str], bool | None] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Return limits of the request, then memory."""
        return [*(rule.name for rule in request_rules(self.problem)), self.memory]

    def leave_a_plan(self, kept: frozenset[str]) -> bool | None:
        """Return whether a plan keeps these limits, and may break the others; None: unknown."""
        if kept not in self.known:
            dropped = [name for name in self.names if name not in kept and name != self.memory]
            problem = without_limits(self.problem, dropped)
            if self.memory not in kept:
                problem = with_abundant_memory(problem)
            found = any_mixed(problem, self.profile)
            self.known[kept] = None if found == "unknown" else found is not None
        return self.known[kept]

    def is_minimal(self, conflict: Sequence[str]) -> bool:
        """Return whether each part of a conflict is known to have a plan."""
        return all(self.leave_a_plan(frozenset(conflict) - {name}) for name in conflict)


def with_abundant_memory(problem: Problem) -> Problem:
    """Return the problem on GPUs with abundant memory."""
    groups = tuple(
        replace(group, gpu=replace(group.gpu, memory_bytes=_ABUNDANT_BYTES))
        for group in problem.cluster.groups
    )
    return replace(problem, cluster=replace(problem.cluster, groups=groups))


def limits_of(problem: Problem, profile: Profile) -> ProblemLimits:
    """Return the limits with memory in words."""
    fleet, chance = NodeGroups.of(problem, profile), problem.options.max_out_of_memory_probability
    rooms = [f"{gib(fleet.budget_bytes(at))} GiB on {name}" for at, name in enumerate(fleet.names)]
    return ProblemLimits(
        problem=problem,
        profile=profile,
        memory=f"memory of {', '.join(rooms)} (out-of-memory risk {chance * 100:g} %)",
    )


def conflicts_of(limits: ProblemLimits) -> Iterator[tuple[str, ...]]:
    """Yield minimal sets of limits that no plan keeps together, smallest first; (): the rules alone."""
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


def _without_plan(limits: ProblemLimits, names: Sequence[str]) -> tuple[str, ...]:
    """Return one set: limits are dropped while it is proved that no plan appears."""
    kept = list(names)
    for name in names:
        if limits.leave_a_plan(frozenset(kept) - {name}) is False:
            kept.remove(name)
    return tuple(kept)


def explained(limits: ProblemLimits, lack: Lack | None, watch: Watch) -> Infeasibility:
    """Return conflicts, nearest configuration and sentences on both, as far as the time allows."""
    conflicts, of_request, complete = list[tuple[str, ...]](), list[str](), False
    with watch.cut():
        for one in islice(conflicts_of(limits), _MOST_CONFLICTS):
            conflicts.append(one)
            if limits.memory not in one:
                of_request += _of_request(limits, one)
        complete = True
    sampled = None in limits.known.values()
    # what is legal and lacks memory is reported where conflicts with memory may be missing, too
    open_ended = sampled or not complete or not conflicts
    about_memory = lack is not None and (open_ended or any(limits.memory in one for one in conflicts))
    reasons = [lack.reason] if lack is not None and about_memory else []
    reasons += [*of_request, *([_SAMPLED] if sampled else []), *([] if complete else [_CUT])]
    return Infeasibility(
        reasons=tuple(dict.fromkeys(reasons)),
        conflicts=tuple(one for one in conflicts if one),
        nearest=lack.shortfall if lack is not None and about_memory else None,
        closest=closest_plan(limits.problem, limits.profile, lack.shortfall.config)
        if lack is not None and about_memory
        else None,
    )


def _of_request(limits: ProblemLimits, conflict: Sequence[str]) -> Iterator[str]:
    prefix = " and ".join(conflict) or "on this cluster"
    if any(f"constraint {text}" in conflict for text in group_constraints(limits.problem)):
        them = "it" if len(conflict) == 1 else "them"
        yield f"{prefix}: no placement of stages on the node groups satisfies {them}"
        return
    fleet = NodeGroups.of(limits.problem, limits.profile)
    columns, fewest = every_columns(fleet), list[Rule]()
    for option in options_of(fleet):
        rules = rules_of(fleet.problems[option.group])
        masks = violation_masks(rules, with_tensor_parallel(columns, option.tensor_parallel_size))
        asked = sum(1 << bit for bit, rule in enumerate(rules) if rule.name in conflict)
        other = sum(1 << bit for bit, rule in enumerate(rules) if rule.of_request) & ~asked
        left = masks[(masks & asked) == 0] & ~other
        if not len(left):
            continue
        mask = min(np.unique(left).tolist(), key=lambda one: one.bit_count())
        broken = [rule for bit, rule in enumerate(rules) if mask >> bit & 1]
        if not broken:
            yield f"{prefix}: no node group has enough GPUs for the stages"
            return
        fewest = broken if not fewest or len(broken) < len(fewest) else fewest
    if not fewest:
        yield f"{prefix}: no configuration of this cluster has it"
    yield from (f"{prefix}: {rule.name} ({rule.reason})" for rule in fewest)
