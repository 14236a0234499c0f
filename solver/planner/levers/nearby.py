"""The best plan a few moves away from what is known, priced for all changes together by closed forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.frameworks import framework_facts, with_options_if_legal
from meshwright.profiles.profile import Profile, framework_of
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.clock import look
from meshwright.solver.configuration import HIERARCHICAL, VARIABLES, Columns, Configuration
from meshwright.solver.cost.evaluation import ROUNDED_BYTES
from meshwright.solver.cost.memory import memory_budget_bytes
from meshwright.solver.cost.pipelines import closed_forms
from meshwright.solver.explain.alternatives import moves_of, settle
from meshwright.solver.explain.reference import switches_of, usual_meshes
from meshwright.solver.planner.levers.change import (
    Best,
    Change,
    Find,
    likely_numbers,
    time_per_token,
    worth_s,
)
from meshwright.solver.planner.variants import variants_of
from meshwright.solver.predict import profile_of_variant
from meshwright.solver.problem import CONTEXT_MODE, Problem, altered, with_changes
from meshwright.solver.search.answers import fastest_of
from meshwright.solver.search.priced_space import priced_space
from meshwright.solver.space.launcher_rules import workload_faults
from meshwright.solver.space.rule import Rule
from meshwright.solver.space.rules import rules_of, violation_masks


def proved_or_near(
    problem: Problem, change: Change, profile: Profile, answer: Answer, find: Find
) -> list[Best]:
    """Return the best plan of a change; where ``find`` does not prove it, those nearby."""
    plans, proved = find(change)
    return plans if proved else plans_near(problem, change, profile, answer)


_ROUNDS, _BEAM, _LAST = (
    3,
    2,
    3,
)  # rounds of moves; configurations that each moves on from; plans predicted at the end
_HOPELESS = 1.15  # times as slow at first as what is to be beaten: nothing near is faster
_UNCERTAIN = 0.03  # of a step: what the simulation may add to the closed form, or take off it


def plans_near(
    problem: Problem,
    change: Change,
    profile: Profile,
    answer: Answer,
    *,
    saved: float = 0.0,
    known: Sequence[Configuration] = (),
) -> list[Best]:
    """Return the plans of ``plans_nearby`` for one change."""
    (plans,) = plans_nearby(problem, [change], profile, answer, saved=saved, known=known)
    return plans


def plans_nearby(
    problem: Problem,
    changes: Sequence[Change],
    profile: Profile,
    answer: Answer,
    *,
    saved: float = 0.0,
    known: Sequence[Configuration] = (),
) -> list[list[Best]]:
    """Return for each change plans near to the first one and to those known, the best first.

    ``saved``: as in ``worth_s``.
    """
    every, rounds = list[list[_Descent]](), list[_Round]()
    for change in changes:
        look()
        every.append([])
        for changed in (change.problem, *change.also):
            ways = _ways(changed, answer)
            if ways and change.moves_switches:
                every_way = variants_of(changed, profile_of_variant(changed, profile))
                ways += [one.problem for one in every_way if one.problem not in ways]
            starts = _starts(problem, changed, answer, known) if ways else []
            words = _opened(problem, changed)
            for way in ways:
                own = profile_of_variant(way, profile)
                one = _Descent(way=way, profile=own, rules=rules_of(way), words=words)
                every[-1].append(one)
                rounds.append(_Round(one, starts[:1], starts))
    _move_on(rounds)
    leading = list(map(_leading, every))
    limits = [worth_s(problem, change, answer, saved) for change in changes]
    for _ in range(1, _ROUNDS):
        _move_on(
            _Round(one, one.beam(most_s))
            for some, most_s in zip(leading, limits, strict=True)
            for one in some
        )
    found = list[list[Best]]()
    for change, some, most_s in zip(changes, leading, limits, strict=True):
        seen = ((one, one.plan(most_s)) for one in some)
        plans = [one.best(plan) for one, plan in seen if plan]
        each = [time_per_token(change.problem, one.config, one.prediction) for one in plans]
        found.append([plans[at] for at in np.argsort(each, kind="stable")])
    return found


def under_best_switches(
    ways: Sequence[Problem], profile: Profile, config: Configuration, within_s: float
) -> Best | None:
    """Return a configuration under the switches that make it fastest, in any split, within a limit."""
    descents = [_Descent(way=one, profile=profile, rules=rules_of(one)) for one in ways]
    _move_on([_Round(one, [], [config]) for one in descents])
    first = _leading(descents)[0]
    plan = first.plan(within_s)
    return None if plan is None else first.best(plan)


def with_ends_alone(problem: Problem, change: Change, profile: Profile, answer: Answer) -> list[Best]:
    """Return the fastest plan on the meshes of all plans, with any number of chunks and any split.

    An end of the model alone favours other numbers of chunks, and only the best split shows it. A plan that
    does not save enough is not sought.
    """
    changed, within_s = change.problem, worth_s(problem, change, answer)
    alone = sum(launcher_capabilities(changed.launcher).alone(changed.model))
    layers, found = changed.model.num_layers, list[Best]()
    configs = [one.config for one in answer.ranking]
    # a whole layer that is replayed may be the embedding, which nothing replays
    staged = [one for one in configs if one.pipeline_parallel_size > 1 and not one.recompute_layers]
    for way in _ways(changed, answer)[:1]:
        chunked = [settle(way, one) for mesh in staged for one in _chunked(mesh, layers, alone)]
        columns = Columns.of([one for one in chunked if one is not None])
        legal = np.flatnonzero(violation_masks(rules_of(way), columns) == 0)
        own = profile_of_variant(way, profile)
        if not len(legal):
            continue
        rows = priced_space(way, own, columns.take(legal))
        if plan := fastest_of(way, own, rows, within_s=within_s):
            found.append(Best(plan.config, plan.prediction, way, own, proved=False))
    return found


def _ways(problem: Problem, answer: Answer) -> list[Problem]:
    """Return the changed request under the switches of the first plan, and under the launcher's own."""
    work, found = problem.workload, list[Problem]()
    own = framework_facts(framework_of(problem.priced_as))
    for one in (with_changes(work, switches_of(answer.ranking[0])).framework_options, {}):
        options = {**one, **work.framework_options}
        way = altered(problem, workload=replace(work, framework_options=options))
        if with_options_if_legal(own, options) is None:
            continue
        if way not in found and not any(workload_faults(way, launcher_capabilities(way.launcher))):
            found.append(way)
    return found


def _starts(
    problem: Problem, changed: Problem, answer: Answer, known: Sequence[Configuration]
) -> list[Configuration]:
    """Return where to begin: the first plan, its other chunks, ``known``, and what a person would try.

    Not the other plans, for levers do not depend on how many are asked for.
    """
    able, first = launcher_capabilities(changed.launcher), answer.ranking[0].config
    if first.zero_stage not in able.zero_stages:
        first = replace(first, zero_stage=max(able.zero_stages))
    # a change may need those that are idle, or leave others idle
    numbers = likely_numbers(changed, answer)
    replicated = [_with_replicas(first, num_gpus) for num_gpus in numbers]
    chunked = _chunked(first, changed.model.num_layers)
    own = [settle(changed, one) for one in (*replicated, *chunked, *known) if not one.stage_groups]
    configs = [one for one in own if one is not None]
    configs += [one for num_gpus in numbers for one in usual_meshes(changed, num_gpus)]
    if "offload" in (opened := _opened(problem, changed)):
        configs = [replace(one, offload=place) for place in able.offload for one in configs]
    if CONTEXT_MODE in opened:
        split = [one for one in configs if one.context_parallel_size > 1]
        configs = [replace(one, context_parallel_mode=mode) for mode in HIERARCHICAL for one in split]
    return list(dict.fromkeys(configs))


def _opened(problem: Problem, changed: Problem) -> frozenset[str]:
    """Return the words that a changed request allows and the request does not."""
    return frozenset(changed.options.allow).difference(problem.options.allow)


def _chunked(config: Configuration, layers: int, alone: int = 0) -> Iterator[Configuration]:
    """Yield a pipeline with fewer and more chunks: for each largest size of a chunk the least number.

    ``alone``: how many chunks may be without layers.
    """
    stages = config.pipeline_parallel_size
    each = range(1, -(-layers // stages) + 1) if stages > 1 and not config.stage_groups else ()
    totals = [-(-layers // size) + empty for size in each for empty in range(alone + 1)]
    for chunks in sorted({-(-total // stages) for total in totals}):
        yield replace(config, virtual_pipeline_size=chunks)


def _with_replicas(config: Configuration, num_gpus: int) -> Configuration:
    """Return a configuration with the replicas that fill ``num_gpus``; unchanged if none do."""
    each = config.num_gpus // config.data_parallel_size
    replicas = num_gpus // each
    if replicas == config.data_parallel_size or num_gpus % each:
        return config
    shards = replicas * config.context_parallel_size if config.zero_stage else 1
    return replace(config, data_parallel_size=replicas, zero_shard_size=shards)


@dataclass(frozen=True, slots=True)
class _Seen:
    step_s: float  # closed form; inf: it breaks a rule
    fits: bool


_ILLEGAL = _Seen(inf, fits=False)


@dataclass(slots=True, kw_only=True)
class _Descent:
    """A descent by single moves under one way of the switches, and what it has seen.

    Each round moves on from the best of all before: from those that fit, and from faster ones that do not,
    since a move may free the memory.
    """

    way: Problem
    profile: Profile
    rules: tuple[Rule, ...]
    words: frozenset[str] = frozenset()  # that the change allows
    seen: dict[Configuration, _Seen] = field(default_factory=dict)
    opened: set[Configuration] = field(default_factory=set)

    def is_alike(self, other: _Descent) -> bool:
        """Return whether both differ in framework options alone, so that one pricing serves both."""
        own, options = self.way.workload, other.way.workload.framework_options
        alike = self.profile is other.profile and self.way.launcher == other.way.launcher
        return alike and replace(own, framework_options=options) == other.way.workload

    def moved(self, beam: Sequence[Configuration], fresh: Iterable[Configuration]) -> list[Configuration]:
        """Return the legal configurations not seen before among fresh ones and moves of some others."""
        self.opened.update(beam)
        moves = (each for one in beam for each in moves_of(self.way, one))
        new = [one for one in dict.fromkeys((*fresh, *moves)) if one not in self.seen]
        self.seen |= dict.fromkeys(new, _ILLEGAL)
        legal = violation_masks(self.rules, Columns.of(new)) == 0 if new else ()
        return [new[at] for at in np.flatnonzero(legal)]

    def beam(self, most_s: float) -> list[Configuration]:
        """Return the best that were not moved on from; none where all are far too slow for ``most_s``."""
        if min(self.least_s(fits=fits) for fits in (True, False)) > _HOPELESS * most_s:
            return []
        beam = [one for fits in (True, False) for one in self.fastest(fits=fits, most=_BEAM)]
        return [one for one in beam if one not in self.opened]

    def fastest(self, *, fits: bool, most: int) -> list[Configuration]:
        """Return legal configurations, the fastest first."""
        able = [one for one, its in self.seen.items() if its.fits == fits and its.step_s < inf]
        return sorted(able, key=lambda one: self.seen[one].step_s)[:most]

    def least_s(self, *, fits: bool) -> float:
        """Return the step of the fastest configuration that was seen; inf: none."""
        return min((one.step_s for one in self.seen.values() if one.fits == fits), default=inf)

    def plan(self, most_s: float) -> Plan | None:
        """Return the fastest plan on the best meshes that fit, in any split, within ``most_s``."""
        near_s, best = (1.0 + _UNCERTAIN) * most_s, self.fastest(fits=True, most=_LAST)
        last = [one for one in best if self.seen[one].step_s <= near_s and not self._is_own(one)]
        if not last:
            return None
        rows = priced_space(self.way, self.profile, Columns.of(last))
        return fastest_of(self.way, self.profile, rows, within_s=most_s)

    def best(self, plan: Plan) -> Best:
        """Return one of its plans."""
        return Best(plan.config, plan.prediction, self.way, self.profile, proved=False)

    def _is_own(self, config: Configuration) -> bool:
        """Return whether a configuration uses nothing that the change allows: the request has it, too."""
        allowed = [one for one in VARIABLES.values() if one.allowed_by in self.words]
        return bool(allowed) and all(getattr(config, one.name) == one.off for one in allowed)


@dataclass(frozen=True, slots=True)
class _Round:
    """A round of a descent."""

    descent: _Descent
    beam: Sequence[Configuration]  # that it moves on from
    fresh: Sequence[Configuration] = ()  # seen as well


def _move_on(rounds: Iterable[_Round]) -> None:
    """Look at the moves of some descents, those of one problem under several switches together."""
    asked = list[tuple[list[_Descent], list[tuple[int, Configuration]]]]()
    for each_round in rounds:
        look()
        one = each_round.descent
        moved = one.moved(each_round.beam, each_round.fresh)
        if not moved:
            continue
        alike = next((some for some in asked if some[0][0].is_alike(one)), None)
        if alike is None:
            asked.append(alike := ([], []))
        alike[1].extend((len(alike[0]), each) for each in moved)
        alike[0].append(one)
    for descents, meshes in asked:
        first = descents[0]
        steps_s, held_bytes = closed_forms([each.way for each in descents], first.profile, meshes)
        most_bytes = memory_budget_bytes(first.way, first.profile) + ROUNDED_BYTES
        fits = (held_bytes <= most_bytes).tolist()
        for (at, config), step_s, able in zip(meshes, steps_s.tolist(), fits, strict=True):
            descents[at].seen[config] = _Seen(step_s, able)


def _leading(descents: Sequence[_Descent]) -> list[_Descent]:
    """Return the descents that no other one beats both in what fits and in what does not."""
    ahead = list[_Descent]()
    for one in sorted(descents, key=lambda one: (one.least_s(fits=True), one.least_s(fits=False))):
        if not ahead or one.least_s(fits=False) < min(other.least_s(fits=False) for other in ahead):
            ahead.append(one)
    return ahead
