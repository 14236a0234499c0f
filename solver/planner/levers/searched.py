"""The best plan of a change by a search: to its end, or within limited work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Lever, Plan, settled_problem
from meshwright.solver.clock import WorkWatch, look
from meshwright.solver.planner.levers.change import (
    ROUNDING,
    WORTH,
    Best,
    Change,
    Found,
    as_lever,
    leaves_idle,
    likely_if_idle,
    on_likely,
    sharing,
    worth_of,
    worth_s,
)
from meshwright.solver.planner.variants import (
    Variant,
    found_by,
    score_of,
    scores_s,
    searchable,
    searched_together,
    variants_of,
)
from meshwright.solver.predict import profile_of_variant
from meshwright.solver.problem import Problem, among_usual, may_use_fewer, on_gpus, usable_gpus
from meshwright.solver.search.fewer_gpus import waves
from meshwright.solver.search.frontier import Rivals
from meshwright.solver.search.gpu_seconds import LeastPasses
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import are_few, estimated_outer, is_too_large


def has_stages(problem: Problem) -> bool:
    """Return whether a request's launcher has pipeline stages."""
    return len(launcher_capabilities(problem.launcher).schedules) > 1


def searched_plans(problem: Problem, change: Change, profile: Profile, answer: Answer) -> Found:
    """Return the first plans of a changed request that save enough to be named."""
    groups, idle = groups_of(change, profile), leaves_idle(problem, answer)
    return fastest_within(groups, worth_s(problem, change, answer), with_fewer=idle)


def proved_plans(
    problem: Problem,
    change: Change,
    profile: Profile,
    answer: Answer,
    searches: WorkWatch,
) -> Found:
    """Return the same within limited work, as ``first_proved``."""
    limit_s, likely = worth_s(problem, change, answer), likely_if_idle(problem, change, answer)
    return first_proved(groups_of(change, profile), limit_s, searches, likely=likely)


def by_score(
    problem: Problem, change: Change, profile: Profile, answer: Answer, *, saved: float
) -> Iterator[Lever]:
    """Yield a change that saves enough of what plans are ranked by, found by a search that ranks by it.

    ``saved``: the share that a plan of the change is known to save.
    """
    look()
    first = answer.ranking[0]
    now_s = _score_per_token(settled_problem(first, problem), profile, first)
    share = (1.0 + ROUNDING) * (1.0 - max(worth_of(change.kind), saved))
    within_s = share * now_s * _tokens(change.problem)
    groups = searched_together([one for some in groups_of(change, profile) for one in some])
    plans, _ = fastest_within(groups, within_s, with_fewer=False)
    for best in plans[:1]:
        yield lever_by_score(problem, profile, answer, change, best)


def lever_by_score(problem: Problem, profile: Profile, answer: Answer, change: Change, best: Best) -> Lever:
    """Return a change with its plan and what that saves of what plans are ranked by, for each token."""
    first = answer.ranking[0]
    now_s = _score_per_token(settled_problem(first, problem), profile, first)
    return replace(
        as_lever(problem, answer, change, best),
        saves=1.0 - _score_per_token(best.way, profile, best) / now_s,
        at_least=not best.proved or bool(first.launchers),
    )


def _score_per_token(problem: Problem, profile: Profile, plan: Plan | Best) -> float:
    """Return what ranks a plan under a problem that has its switches, for each token asked for."""
    priced = [(plan.config, plan.prediction)]
    return scores_s(problem, profile_of_variant(problem, profile), priced)[0] / _tokens(problem)


def _tokens(problem: Problem) -> float:
    return problem.workload.global_batch_size * problem.workload.tokens_per_sequence


def first_proved(
    groups: Sequence[Sequence[Variant]],
    limit_s: float,
    searches: WorkWatch,
    *,
    likely: Sequence[int],
    passes: Sequence[LeastPasses] = (),
    by_likely: bool = False,
) -> Found:
    """Return what ``fastest_within`` finds within limited work, and no plan where all GPUs are not proved.

    Of many candidates, or of all if ``by_likely``, the ``likely`` numbers of GPUs are searched alone, if
    there are any. A plan on all GPUs is a lower bound where the work ends before fewer were searched. How
    soon a plan is found depends on the machine.
    """
    race = _Race(limit_s)
    with searches.cut():
        if not any(is_too_large(group[0].problem) for group in groups):  # a sample proves nothing
            race.on_all(groups, passes, likely, by_likely=by_likely)
    if not race.proved or searches.interrupted():
        return [], False
    with searches.cut():
        race.on_fewer(with_fewer=bool(likely))
    if searches.interrupted():
        return [replace(one, proved=False) for one in race.plans], bool(race.plans)
    return race.best(), race.proved


def groups_of(change: Change, profile: Profile) -> list[list[Variant]]:
    """Return the variants of a change, those together that one search takes."""
    groups = list[list[Variant]]()
    for changed in (change.problem, *change.also):
        variants, _ = searchable(variants_of(changed, profile_of_variant(changed, profile)))
        groups += searched_together(variants)
    return groups


def fastest_within(
    groups: Sequence[Sequence[Variant]],
    limit_s: float,
    *,
    with_fewer: bool,
    passes: Sequence[LeastPasses] = (),
) -> Found:
    """Return the fastest plans within a limit, of the group with the fastest; and whether it is proved.

    On all GPUs, then on fewer: ``with_fewer``, or of few candidates where plans on all were found, faster
    ones by at least ``WORTH``. Where a plan on fewer may be as fast and none is sought, gains are lower
    bounds. ``passes``: of each group's usual candidates.
    """
    race = _Race(limit_s)
    race.on_all(groups, passes)
    race.on_fewer(with_fewer=with_fewer)
    return race.best(), race.proved


@dataclass(slots=True)
class _Race:
    """Searches of which each is limited by the plans of those before."""

    limit_s: float
    plans: list[Best] = field(default_factory=list)
    proved: bool = False
    on_every_number: bool = True  # no plan on fewer GPUs may be faster
    searched: list[tuple[Sequence[Variant], Rivals]] = field(default_factory=list)

    def best(self) -> list[Best]:
        """Return the plans, each marked as proved or not."""
        return [replace(one, proved=self.proved and self.on_every_number) for one in self.plans]

    def on_all(
        self,
        groups: Sequence[Sequence[Variant]],
        passes: Sequence[LeastPasses],
        likely: Sequence[int] = (),
        *,
        by_likely: bool = False,
    ) -> None:
        """Search each group on all GPUs, or on the ``likely`` numbers: see ``first_proved``."""
        self.proved = bool(groups)
        for every, own in zip_longest(groups, passes):
            least_s = None if own is None or are_few(every[0].problem) else own.of_rows
            group = every
            if least_s is not None:
                group = [replace(one, problem=among_usual(one.problem)) for one in every]
            if likely and may_use_fewer(group[0].problem):
                of_likely = [replace(one, problem=on_likely(one.problem, likely)) for one in group]
                if by_likely or not is_small(of_likely[0].problem):
                    group, self.on_every_number = of_likely, False
            self.searched.append((group, Rivals(self.limit_s, self.limit_s, least_s=least_s)))
            self._take(*self.searched[-1])

    def on_fewer(self, *, with_fewer: bool) -> None:
        """Search them on fewer GPUs."""
        for group, rivals in self.searched if self.plans or with_fewer else ():
            first = group[0]
            if not may_use_fewer(first.problem):
                continue
            if not with_fewer and not is_small(first.problem):
                self.on_every_number &= _share_evenly(first.problem)
                continue
            for wave in waves(first.problem, first.profile, self._last_s, usable_gpus(first.problem)):
                numbers, last_s = wave.options.num_gpus, self._last_s()
                on_fewer = [replace(one, problem=on_gpus(one.problem, numbers)) for one in group]
                self._take(on_fewer, replace(rivals, best_s=last_s, last_s=last_s))

    def _last_s(self) -> float:
        return (1.0 - WORTH) * self.limit_s if self.plans else self.limit_s

    def _take(self, group: Sequence[Variant], rivals: Rivals) -> None:
        first, *others = group
        ways = [one.problem for one in others]
        found = search(first.problem, first.profile, ways=ways, rivals=rivals, proved=False)
        self.proved = self.proved and found.status in ("optimal", "infeasible")
        if found.plans:
            by, best = found_by(group), found.plans[0]
            self.limit_s = score_of(by(best), best)
            self.plans = [
                Best(one.config, one.prediction, by(one).problem, by(one).profile) for one in found.plans
            ]


def _share_evenly(problem: Problem) -> bool:
    """Return whether all GPUs share the batch, so that plans on fewer are hardly faster."""
    gpus = usable_gpus(problem)
    return sharing(problem.workload.global_batch_size, gpus) == gpus


_FEW = 3000  # candidates without stages: searching so few takes about as long as trying those nearby
_FEW_WITH_STAGES = 1000  # candidates with stages: a search in 8 bits takes about 0.1 s


def is_small(problem: Problem) -> bool:
    """Return whether there are few candidates."""
    return estimated_outer(problem) <= (_FEW_WITH_STAGES if has_stages(problem) else _FEW)
