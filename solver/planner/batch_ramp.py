"""Plans with the shortest batch ramp: one layout and split for every stage of it.

A row's score is ``sum_i steps_i S_i``, S_i the simulated step of stage i, at its best over a few splits: of
every stage the one that the search would choose for it alone, those that fit in all of them. Rows wait
under ``sum_i steps_i bound_i`` with the frontier's bounds of each stage, so that the row with the least
bound is next, and when it cannot enter the best K nothing can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import (
    SAMPLE,
    Answer,
    Infeasibility,
    ObjectiveClaim,
    Outlook,
    Plan,
    RankFloors,
    Status,
    with_gaps,
)
from meshwright.solver.check import violations_of_all
from meshwright.solver.clock import Watch, relative_gap
from meshwright.solver.configuration import MESH, Columns, Configuration, FloatArray, plan_id_of
from meshwright.solver.cost.objective import DAY_S, outlooks_of, slowdown
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import InvalidPlanError, OnProgress, Problem, ShouldStop, problem_digest
from meshwright.solver.search.answers import versions
from meshwright.solver.search.candidates import fastest
from meshwright.solver.search.frontier import LAYOUT, Frontier, Layout, layouts_of, least_by
from meshwright.solver.search.priced_space import priced_space
from meshwright.solver.search.splits import Split
from meshwright.solver.space.enumerate import (
    LARGE_OUTER,
    Space,
    empty_space,
    estimated_outer,
    sampled_space,
    searched_space,
)
from meshwright.solver.space.factored import rows_of
from meshwright.solver.space.rules import RampStage, ramp_stages

_FIRST_S = 0.5  # a first plan is sought for as long, whatever the limit
_TOGETHER = 4  # plans predicted and checked, in every stage, between two looks at the clock
_MOST_PRICED = 2_000_000  # rows of all stages that are written down; of more a sample is searched


@dataclass(frozen=True, slots=True, order=True)
class _Scored:
    """One row with its split; ordered by its time."""

    total_s: float
    row: int
    split: Split


@dataclass(slots=True, kw_only=True)
class _Ramp:
    """All stages of one space, best first."""

    stages: Sequence[RampStage]
    frontiers: Sequence[Frontier]
    bound_s: FloatArray  # (n,) of the whole ramp; +inf where a stage does not fit
    top_k: int
    apart: tuple[str, ...]  # columns that distinguish plans
    found: dict[Layout, _Scored]
    meshes: tuple[_Scored, ...] = ()  # the best of each mesh, where those are fewer than K (``fill``)
    finished: bool = False
    opened: int = 0

    @property
    def ranked(self) -> list[_Scored]:
        """Return the best K layouts, or meshes; if too few meshes, also their best other layouts."""
        best, known = sorted(self.found.values()), {one.row for one in self.meshes}
        others = [one for one in best if one.row not in known]
        return sorted([*self.meshes, *others[: self.top_k - len(self.meshes)]])

    def run(self, watch: Watch, first: Watch, known: Sequence[int] = ()) -> None:
        """Open rows until nothing can rank higher; ``known`` are opened before, for a good cutoff.

        Until there is a plan, ``first`` is the clock.
        """
        for row in known:
            if np.isfinite(self.bound_s[row]):
                self._open(row)
        order = np.argsort(self.bound_s, kind="stable")
        order = order[np.isfinite(self.bound_s[order])]
        for row in order.tolist():
            if self.bound_s[row] > self._cutoff_s:
                break
            watch.report("solving", explored=self.opened, total=len(self.bound_s))
            if (watch if self.found else first).interrupted():
                return
            best = self.found.get(self._keys([row])[0])
            if best is None or self.bound_s[row] <= best.total_s:
                self.opened += 1
                self._open(row)
        self.finished = True

    def fill(self, watch: Watch) -> None:
        """Find other layouts of the best meshes if fewer than K meshes have a plan."""
        self.meshes, self.apart, self.found, self.finished = tuple(self.ranked), LAYOUT, {}, False
        self.run(watch, watch, [one.row for one in self.meshes])

    def floors(self) -> RankFloors:
        """Return lower bounds of a mesh's, or a layout's, rows, of those that may be ranked."""
        last_s = max([self._cutoff_s, *(one.total_s for one in self.ranked)])
        index = np.flatnonzero((self.bound_s <= last_s) & (self.bound_s < np.inf))
        columns = self.frontiers[-1].rows.columns
        return RankFloors(
            known=True,
            meshes={}
            if self.apart == LAYOUT and not self.meshes
            else least_by(layouts_of(columns, index, MESH), self.bound_s[index]),
            layouts={} if self.apart == MESH else least_by(layouts_of(columns, index), self.bound_s[index]),
        )

    @property
    def _cutoff_s(self) -> float:
        """Return the time of the K-th best so far; +inf while there are fewer."""
        best = sorted(self.found.values())[: self.top_k]
        return best[-1].total_s if len(best) == self.top_k else np.inf

    def _keys(self, rows: list[int]) -> list[Layout]:
        """Return the values that distinguish the rows' plans."""
        return layouts_of(self.frontiers[-1].rows.columns, rows, self.apart)

    def _open(self, row: int) -> None:
        """Score one row, if every stage has a split, and keep the best of its layout."""
        solved = [frontier.solve([row]) for frontier in self.frontiers]
        if not all(solved):
            return
        pairs = zip(self.frontiers, solved, strict=True)
        splits = dict.fromkeys(frontier.score(one)[1] for frontier, (one,) in pairs)
        scores = [(self._total_s(row, split), split) for split in splits if self._fits(row, split)]
        if not scores:
            return
        best = _Scored(min(scores)[0], row, min(scores)[1])
        key = self._keys([row])[0]
        if key not in self.found or best < self.found[key]:
            self.found[key] = best

    def _fits(self, row: int, split: Split) -> bool:
        """Return whether every stage has the memory for a split."""
        rows = [frontier.rows.take([row]) for frontier in self.frontiers]
        return all(one.stages([split]).peak_memory_bytes.max() <= one.budget_bytes for one in rows)

    def _total_s(self, row: int, split: Split) -> float:
        """Return seconds of all steps of the ramp."""
        steps = (fastest(frontier.rows.take([row]), [split])[0] for frontier in self.frontiers)
        return float(sum(stage.steps * step for stage, step in zip(self.stages, steps, strict=True)))


def ramp_search(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
    known: Sequence[Configuration] = (),
) -> Answer:
    """Return the ``top_k`` layouts with the shortest ramp, legal and fitting in every stage.

    ``known``: configurations to begin with, of a search that was broken off; they change no answer.
    One that is stopped early has its first plan where that takes no longer than ``_FIRST_S``.

    Raises:
        InvalidPlanError: the independent check refuses a plan in one of its stages (a bug).
    """
    watch = Watch(
        time_limit_s=problem.options.time_limit_s, on_progress=on_progress, should_stop=should_stop
    )
    first, space = watch.at_least(_FIRST_S), empty_space(problem)
    ramp = _ramp_of(problem, profile, space.columns)
    sampled = True
    with first.cut():
        sampled = estimated_outer(problem) > LARGE_OUTER
        if not sampled:
            space = searched_space(problem, legal_only=True, one_by_one=True)
            sampled = len(space.rows) * (1 + len(ramp.stages)) > _MOST_PRICED
        if sampled:
            space = sampled_space(problem)
        ramp = _ramp_of(problem, profile, space.columns)
        ramp.run(watch, first, rows_of(space.columns, known))
        if ramp.apart == MESH and ramp.finished and 0 < len(ramp.found) < ramp.top_k:
            ramp.fill(watch)
    notes = SAMPLE if ramp.finished and sampled and not watch.interrupted() else {}
    ramp.finished &= space.whole
    plans = _plans(problem, profile, ramp, watch.closing())
    answer = _answer(problem, profile, space=space, ramp=ramp, plans=plans, watch=watch)
    return replace(answer, notes={**answer.notes, **notes})


def _ramp_of(problem: Problem, profile: Profile, columns: Columns) -> _Ramp:
    """Price and bound every stage of these rows."""
    stages = ramp_stages(problem)
    frontiers = [
        Frontier.of(priced_space(stage.problem, profile, stage.columns(columns)), 1) for stage in stages
    ]
    bound = np.zeros(len(columns))
    for stage, frontier in zip(stages, frontiers, strict=True):
        bound = bound + stage.steps * frontier.bound_s[:]
    apart = MESH if problem.options.diverse else LAYOUT
    return _Ramp(
        stages=stages,
        frontiers=frontiers,
        bound_s=bound,
        top_k=problem.options.top_k,
        apart=apart,
        found={},
    )


def _plans(problem: Problem, profile: Profile, ramp: _Ramp, watch: Watch) -> tuple[Plan, ...]:
    """Return the ranked rows as plans of the last stage that pass the check of every stage.

    As many as ``watch`` has time for, and at least the first few.
    """
    plans, ranked = list[Plan](), ramp.ranked
    for start in range(0, len(ranked), _TOGETHER):
        if start and watch.interrupted():
            break
        plans += _some_plans(problem, profile, ramp, ranked[start : start + _TOGETHER], start)
    return tuple(plans)


def _some_plans(
    problem: Problem, profile: Profile, ramp: _Ramp, some: Sequence[_Scored], before: int
) -> Iterator[Plan]:
    """Yield some ranked rows as plans; ``before`` are ranked higher."""
    last = ramp.frontiers[-1].rows.take([one.row for one in some])
    splits = [one.split for one in some]
    configs = last.configurations(splits)
    for stage in ramp.stages:
        here = [stage.configuration(config) for config in configs]
        faults = [fault for found in violations_of_all(stage.problem, profile, here) for fault in found]
        if faults:
            raise InvalidPlanError("; ".join(faults))
    predictions = predict_all(ramp.stages[-1].problem, profile, configs)
    objectives = objective_s(last.prices, last.columns, last.stages(splits))
    outlooks = outlooks_of(problem, profile, configs, predictions)
    for at, (one, config, prediction) in enumerate(zip(some, configs, predictions, strict=True)):
        yield Plan(
            plan_id=plan_id_of(problem_digest(problem), config),
            rank=before + at + 1,
            config=config,
            prediction=prediction,
            objective_s=float(objectives[at]),
            outlook=_with_ramp(problem, outlooks[at], one.total_s, config.num_gpus),
        )


def _with_ramp(problem: Problem, outlook: Outlook, total_s: float, num_gpus: int) -> Outlook:
    """Return the outlook with the days, and the cost, of the whole ramp."""
    days = total_s * slowdown(problem, num_gpus) / DAY_S
    price = problem.options.gpu_hour_price
    cost = None if price is None else days * 24.0 * num_gpus * price
    return replace(outlook, days=days, cost=cost)


def _answer(
    problem: Problem, profile: Profile, *, space: Space, ramp: _Ramp, plans: tuple[Plan, ...], watch: Watch
) -> Answer:
    """Return the answer with its proof."""
    proved = ramp.finished
    outcomes: tuple[Status, Status] = ("optimal", "infeasible") if proved else ("feasible", "unknown")
    value = ramp.ranked[0].total_s if plans else None
    least = float(ramp.bound_s.min(initial=np.inf)) if space.whole else np.inf
    bound = min(least, value) if value is not None and np.isfinite(least) else None
    gap = relative_gap(value, bound)
    floors, found = ramp.floors() if proved and plans else RankFloors(), ramp.ranked[: len(plans)]
    known = floors if len(plans) == len(ramp.ranked) else RankFloors()
    plans = with_gaps(plans, [one.total_s for one in found], known, bound, of_steps=False)
    return Answer(
        status=outcomes[0 if plans else 1],
        plans=plans,
        certified_by=("best-first",) if ramp.finished and plans else (),
        objective_gap=None,
        objective_excess=None,
        bound_step_time_s=None,
        gap=gap,
        space_size=space.size,
        legal=len(space.rows),
        fit=int(np.isfinite(ramp.bound_s).sum()),
        explored=space.size - (0 if proved else len(space.rows) - ramp.opened),
        counts={"priced": len(ramp.bound_s) * len(ramp.stages), "solved": ramp.opened},
        elapsed_s=watch.elapsed_s,
        seed=problem.options.seed,
        versions=versions(profile),
        warnings=(*space.warnings, *problem.cluster.warnings, *profile.warnings),
        num_gpus_used=plans[0].config.num_gpus if plans else space.num_gpus,
        peak_flops=profile.group.gpu.peak_bf16_flops,
        notes={"profile": profile.title},
        infeasible=None if plans or not proved else _reasons(ramp),
        space="every" if space.every else "usual",
        objective=ObjectiveClaim(name="ramp_time", unit="s", value=value, bound=bound, gap=gap),
        floors=floors,
    )


def _reasons(ramp: _Ramp) -> Infeasibility:
    """Return why there is no plan: each stage may have one, but no layout runs all of them."""
    batches = ", ".join(str(stage.batch) for stage in ramp.stages)
    fit = [int(np.isfinite(frontier.bound_s[:]).sum()) for frontier in ramp.frontiers]
    words = f"no layout is legal and fits in every stage of the ramp (batches {batches})"
    return Infeasibility(reasons=(words, f"of the legal ones {min(fit)} may fit in the worst stage"))
