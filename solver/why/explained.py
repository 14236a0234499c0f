"""Plans with their reasons: the waterfall of a step, its largest losses, the limits that bind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from profiles.frameworks import FrameworkFacts, with_options
from profiles.profile import Profile
from profiles.units import GIB
from solver.check import violations_of_all
from solver.plan import Configuration, Plan
from solver.predictions import predicted_all
from solver.problem import Problem
from solver.reasons import Limit, Loss, Why
from solver.search.watch import Watch, look
from solver.why.advice import Way, ways_of
from solver.why.alternatives import Alternative, alternatives_of
from solver.why.placed import placed_all, placed_waterfalls
from solver.why.placed_alternatives import placed_alternatives_of
from solver.why.waterfall import NO_LOSS, waterfalls

Outcome = tuple[float, dict[str, float]]  # the step and its waterfall
_LOSSES = 3
_MOST_LIMITS = 4
_LOWERED = 0.1  # of a term: what a change must take off it
_NOTICEABLE = 1e-3  # of the step: what a limit must cost to be said to bind
_TOGETHER = 16  # plans explained between two looks at the clock
_TRIED = 2  # changes that are simulated for each loss or limit, the best by the closed form


def reasons_of(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration], steps_s: Sequence[float]
) -> list[Why]:
    """The reasons of every configuration under its step time.

    What might be changed is chosen by the closed form; what is said of a change is simulated.
    """
    if not configurations:
        return []
    facts = with_options(profile.framework, problem.workload.framework_options)
    falls = fallen(problem, profile, configurations, steps_s)
    others = _alternatives(problem, profile, configurations)
    starts = [
        _Start(problem, facts, one, float(step), fall, tuple(some))
        for one, step, fall, some in zip(configurations, steps_s, falls, others, strict=True)
    ]
    advised = [way for start in starts for way in start.advised()]
    tried = _Tried.of(profile, advised, [way for start in starts for way in start.hindered()])
    return [
        Why(waterfall_s=start.fall_s, losses=tuple(_losses(start, tried)), limits=_limits(start, tried))
        for start in starts
    ]


@dataclass(frozen=True, slots=True)
class _Start:
    """One configuration to explain, with the changes that might help it."""

    problem: Problem
    facts: FrameworkFacts
    configuration: Configuration
    step_s: float
    fall_s: dict[str, float]
    others: Sequence[Alternative]

    def terms(self) -> list[str]:
        """The largest terms that are losses."""
        lost = {name: value for name, value in self.fall_s.items() if name not in NO_LOSS and value > 0.0}
        return sorted(lost, key=lambda name: -lost[name])[:_LOSSES]

    def advice(self, term: str) -> list[Way]:
        """Changes of any kind that might lower a term."""
        return ways_of(term, self.problem, self.facts, self.configuration, self.others)

    def lowering(self, term: str) -> list[Alternative]:
        """The single changes that stand, lower the term noticeably, and cost the step least."""
        able = [
            one
            for one in self.others
            if one.stands
            and one.start_waterfall_s[term] - one.waterfall_s[term] > _LOWERED * one.start_waterfall_s[term]
        ]
        return sorted(able, key=lambda one: one.step_s)[:_TRIED]

    def stopped(self) -> dict[str, list[Alternative]]:
        """The fastest changes that one limit alone stops, by the limit."""
        found = dict[str, list[Alternative]]()
        for one in sorted(self.others, key=lambda one: one.step_s):
            name = _stopped_by(one)
            if name is not None and one.step_s < one.start_s:
                found.setdefault(name.partition(":")[0], []).append(one)
        return {key: some[:_TRIED] for key, some in found.items()}

    def advised(self) -> Iterator[Way]:
        """What may be advised once it is checked and simulated."""
        for term in self.terms():
            yield from self.advice(term)
            yield from map(self.way, self.lowering(term))

    def hindered(self) -> Iterator[Way]:
        """What a limit stops, to be simulated."""
        for some in self.stopped().values():
            yield from map(self.way, some)

    def way(self, one: Alternative) -> Way:
        """A single change as a way."""
        return Way(words=one.move.words, problem=self.problem, configuration=one.move.configuration)


@dataclass(frozen=True, slots=True)
class _Tried:
    """What every way that was simulated comes to, for the whole global batch."""

    outcomes: Mapping[tuple[str, Configuration], Outcome]
    right: frozenset[tuple[str, Configuration]]  # of those to be advised: past the independent check

    @classmethod
    def of(cls, profile: Profile, advised: Sequence[Way], hindered: Iterable[Way]) -> _Tried:
        """Simulate each way once; check those that may be advised."""
        problems = dict[str, Problem]()
        wanted = dict[str, dict[Configuration, None]]()
        checked = {(way.name, way.configuration) for way in advised}
        for way in (*advised, *hindered):
            problems[way.name] = way.problem
            wanted.setdefault(way.name, {})[way.configuration] = None
        found, right = dict[tuple[str, Configuration], Outcome](), set[tuple[str, Configuration]]()
        for name, some in wanted.items():
            problem, batch = problems[name], problems[name].workload.global_batch_size
            steps = [one.step_time_s for one in predicted_all(problem, profile, list(some))]
            for one, step, fall in zip(
                some, steps, fallen(problem, profile, list(some), steps), strict=True
            ):
                found[name, one] = (step * batch / one.global_batch_size, fall)
            asked = [one for one in some if (name, one) in checked]
            faults = violations_of_all(problem, profile, asked)
            right |= {(name, one) for one, wrong in zip(asked, faults, strict=True) if not wrong}
        return cls(found, frozenset(right))

    def is_right(self, way: Way) -> bool:
        """Whether the independent check lets a way pass that may be advised."""
        return (way.name, way.configuration) in self.right

    def step_s(self, way: Way) -> float:
        """The step under a way."""
        return self.outcomes[way.name, way.configuration][0]

    def fall_s(self, way: Way) -> dict[str, float]:
        """The waterfall under a way."""
        return self.outcomes[way.name, way.configuration][1]

    def saved_s(self, way: Way, start: _Start, term: str) -> float:
        """What a way takes off a term of a configuration."""
        return start.fall_s[term] - self.fall_s(way)[term]


def fallen(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration], steps_s: Sequence[float]
) -> list[dict[str, float]]:
    """The waterfalls of meshes and of placed configurations, in the order of the configurations."""
    pairs = list(zip(configurations, steps_s, strict=True))
    meshes, placed = [p for p in pairs if not p[0].is_placed], [p for p in pairs if p[0].is_placed]
    even = iter(waterfalls(problem, profile, [one for one, _ in meshes], [step for _, step in meshes]))
    stands = placed_all(problem, profile, [one for one, _ in placed])
    uneven = iter(placed_waterfalls(stands, [step for _, step in placed]))
    return [next(uneven if one.is_placed else even) for one in configurations]


def _alternatives(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration]
) -> list[list[Alternative]]:
    """The judged moves of meshes and of placed configurations, in the order of the configurations."""
    meshes = [one for one in configurations if not one.is_placed]
    placed = [one for one in configurations if one.is_placed]
    even = iter(alternatives_of(problem, profile, meshes))
    uneven = iter(placed_alternatives_of(problem, profile, placed))
    return [next(uneven if one.is_placed else even) for one in configurations]


def with_reasons(
    problem: Problem, profile: Profile, plans: Sequence[Plan], watch: Watch
) -> tuple[Plan, ...]:
    """The plans with their reasons, the first of them as far as the time of ``watch`` goes."""
    found = list[Plan]()
    with watch.cut():
        for start in range(0, len(plans), _TOGETHER):
            look()
            some = plans[start : start + _TOGETHER]
            steps = [plan.prediction.step_time_s for plan in some]
            whys = reasons_of(problem, profile, [plan.config for plan in some], steps)
            found += [replace(plan, why=why) for plan, why in zip(some, whys, strict=True)]
    return (*found, *plans[len(found) :])


def unsaid(plans: Sequence[Plan], *, odds: bool) -> tuple[str, ...]:
    """What the time cut of that which is said about plans; ``odds``: whether those were to be said."""
    explained, said = sum(plan.why is not None for plan in plans), list[str]()
    if explained < len(plans):
        number = f"{explained} of {len(plans)}"
        said.append(f"the time limit came before more than {number} plans were explained")
    if odds and any(plan.odds is None for plan in plans):
        said.append("the time limit came before the plans' odds were found")
    return tuple(said)


def _losses(start: _Start, tried: _Tried) -> Iterator[Loss]:
    """The largest terms, each with what lowers it and the single change that costs the step least."""
    for term in start.terms():
        seconds = start.fall_s[term]
        ways = filter(tried.is_right, start.advice(term))
        words = [way.words for way in ways if tried.saved_s(way, start, term) > 0.0]
        loss = Loss(
            term=term,
            seconds=seconds,
            share=seconds / sum(start.fall_s.values()),
            lowered_by=", ".join(dict.fromkeys(words)),
        )
        moves = filter(tried.is_right, map(start.way, start.lowering(term)))
        able = [way for way in moves if tried.saved_s(way, start, term) > _LOWERED * seconds]
        best = min(able, key=tried.step_s, default=None)
        if best is not None:
            change_s = tried.step_s(best) - start.step_s
            saved_s = tried.saved_s(best, start, term)
            loss = replace(loss, change=best.words, saves_s=saved_s, step_change_s=change_s)
        yield loss


def _limits(start: _Start, tried: _Tried) -> tuple[Limit, ...]:
    """Limits that alone stop a change which is faster when it is simulated; the costliest first."""
    binding = []
    for some in start.stopped().values():
        one = min(some, key=lambda one: tried.step_s(start.way(one)))
        gain_s = start.step_s - tried.step_s(start.way(one))
        if gain_s >= _NOTICEABLE * start.step_s:
            binding.append(Limit(name=_stopped_by(one) or "", change=one.move.words, gain_s=gain_s))
    return tuple(sorted(binding, key=lambda limit: -limit.gain_s)[:_MOST_LIMITS])


def _stopped_by(one: Alternative) -> str | None:
    """The only thing that stands against a move, if it is one."""
    if one.short_bytes and not one.broken:
        stage, short = one.heaviest_stage, one.short_bytes / GIB
        where = f"{one.largest_term} of stage {stage}{one.place}"
        return f"memory: {where}, {short:.1f} GiB more than may be filled"
    return one.broken[0] if len(one.broken) == 1 and not one.short_bytes else None
