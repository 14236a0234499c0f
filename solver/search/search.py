"""Search: from a problem to a proved ranking of plans.

Variables
  a *row* x of the outer space (``meshwright.solver.space.enumerate``): tp, pp, vpp, cp, ep, dp, ZeRO
  stage, micro-batch,
  recomputation; and its *split* n = (n_1 … n_C), the layers of each of its C = pp * vpp chunks.
Objectives
  J(x, n) = straggler * (phi sum_r t_r + max_r ((m - phi) t_r + tail_r)) + fixed
                                                                  ``cost.stages.objective_s``
  S(x, n) = straggler * max_r (end_r + tail_r) + fixed, end_r by event simulation
                                                                  ``schedules.simulate.rank_finish_s``
Constraints
  (1) x breaks no rule of model, batch, launcher and request      ``rules.rules_of``
  (2) sum_c n_c = L, in model order                               ``splits.best_splits``
  (3) n_c >= 1, and >= k where k layers of each chunk recompute   ``rows.Rows.smallest_chunk``
  (4) peak memory of every rank <= budget                         ``memory_limits.layer_caps``,
                                                                  ``splits.StageTables``
  (5) chunks of an interleaved rank differ by at most one layer, in any order; the model's first and
      last chunk may hold fewer; with layers of several kinds there are some regular splits
                                                                  ``splits.lightest_chunks``,
                                                                  ``splits.offered``
Answer
  Each row's split n*(x) minimises J(x, .) under (2)-(5), exactly (``splits``). An interleaved or
  deep row has further candidates (``candidates``), and its score is the least S of its
  candidates. Rows are ranked by score, best first under valid bounds (``bounds``, ``frontier``). Rows
  that differ in ``frontier.INNER`` alone (recomputation, chunks a rank, schedule, shard sets and others)
  are one layout, shown by its best row.

What is claimed, and what is not
  status ``optimal``: the ranking is proved. No layout outside the K plans has a smaller score.
  ``objective_gap`` is 0: the least J over *all* rows and splits was found and proved.
  Where the time ends before, it is the distance to the least bound that is left.
  ``decided_by`` cp-sat: CP-SAT chose the first plan among all rows that the bounds leave (``decision``).
  ``objective_excess`` = (J_1 - min J) / J_1, J_1 of the first plan, is what ranking by S instead of J
  costs in J; 0 when the first plan minimises both.
  ``bound_step_time_s``: no row under *any* split simulates faster (``proof.least_step_bound_s``), so
  ``gap`` is what another split of some row could still gain at most; it may exceed 0 although the
  ranking is proved, because candidates are few and not all splits.
  Fewer GPUs than all are ranked with them (``fewer_gpus``), so that status and bound cover every number;
  ``objective_gap`` and ``objective_excess`` are those of the search that found the first plan.
  All of it holds under the cost model and within the space; ``prediction`` carries the error band.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import numpy as np

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import SAMPLE, Answer, Infeasibility, RankFloors
from meshwright.solver.clock import Watch, look, relative_gap
from meshwright.solver.configuration import MESH, Columns, Configuration, IntArray
from meshwright.solver.cost.objective import is_plain
from meshwright.solver.problem import (
    OnProgress,
    Problem,
    Progress,
    ShouldStop,
    may_use_fewer,
    on_switches,
    usable_gpus,
)
from meshwright.solver.search.answers import AnswerInputs, Proof, answer_of, plans_of
from meshwright.solver.search.bounds import Bounds
from meshwright.solver.search.certify.judge import Certificate, Judge, inquiry_of
from meshwright.solver.search.decision.choices import choices_of
from meshwright.solver.search.decision.decide import asks_cp_sat, decided, is_left_to_planner
from meshwright.solver.search.feasible import lightest_of
from meshwright.solver.search.fewer_gpus import at_most_all
from meshwright.solver.search.frontier import LAYOUT, NO_RIVALS, Frontier, Rivals
from meshwright.solver.search.gpu_seconds import least_gpu_s
from meshwright.solver.search.priced_space import (
    Priced,
    have_room,
    least_step_s,
    priced_parts,
    priced_space,
    steps_s,
)
from meshwright.solver.search.proof import (
    floors_of,
    least_of_candidates_s,
    least_step_bound_s,
    rivals_of,
)
from meshwright.solver.space.enumerate import (
    FEW_OUTER,
    LARGE_OUTER,
    MOST_OUTER,
    Beyond,
    OuterRowsOf,
    Space,
    empty_space,
    enumerate_space,
    estimated_outer,
    likely_space,
    same_rows,
    sampled_space,
    searched_space,
    spread_evenly,
)
from meshwright.solver.space.factored import Crossing, rows_of

# --------------------------------------------------------------------------------------------------
# A first plan before anything else, so that a search that is stopped early has something to show.


_SAMPLE = 1024  # rows looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A row that has a split that fits."""

    row: int  # of the space, with legal rows
    frontier: Frontier  # a few rows with this one ranked


def first_plan(
    problem: Problem, profile: Profile, space: Space, tick: Callable[[], object] = lambda: None
) -> Opening | None:
    """Return a good row of a sample of the legal ones, or, if none fits, of the lightest ones.

    None: no sampled row has a split that fits, which proves nothing. ``tick`` is called now and then.
    """
    count = len(space.rows)
    for sample in (partial(spread_evenly, count, _SAMPLE), partial(_lightest, space.rows)):
        index = sample()
        rows = priced_space(problem, profile, space.rows.take(index))
        tick()
        frontier = Frontier.of(rows, 1)
        frontier.covers_all, frontier.any_plan = len(index) == count, True
        frontier.run(lambda state: bool(tick() or state.ranked))
        if frontier.ranked:
            return Opening(row=int(index[frontier.ranked[0].row]), frontier=frontier)
    return None


def _lightest(rows: Columns | Crossing) -> IntArray:
    """Return the rows that need least memory, evenly thinned out."""
    light = lightest_of(rows)
    return light[spread_evenly(len(light), _SAMPLE)]


_NO_ROOM = "memory: weights, gradients and optimizer states alone need more than all GPUs hold together"
_LEAST_S = 0.01  # a search is given this much
_ROUNDING = 1e-9  # relative: scores as near as that count as equal
_MORE = 4  # known rows that are simulated for a limit, for each plan that is asked for
_FIRST_S = 0.5  # a first plan is sought for as long, whatever the limit
_SAMPLE_SHARE = 0.3  # of the time, for a first plan and for a sample of a large space
_PLAN_S = 0.01  # kept back of the time limit for each plan: predicting and checking it


def search(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
    known: Sequence[Configuration] = (),
    ways: Sequence[Problem] = (),
    wide: bool = False,
    rivals: Rivals = NO_RIVALS,
    proved: bool = True,
) -> Answer:
    """Return the ``top_k`` best plans of a problem, ranked and proved as the module states.

    ``known``: configurations to begin with, of an interrupted search or of another one; they change
    no answer.
    ``ways``: the same problem under other switches (``on_switches``), ranked with its own rows;
    they need rows that are weighed by kind.
    ``wide``: among all candidates of ``enumerate_space``, however many; else as in ``searched_space``.
    ``rivals``: plans that are slower are not sought; where none is left, status ``optimal`` without a plan
    means that it is proved. ``proved``: how fast other splits are is bounded, and a certificate is asked
    for.

    A time limit or ``should_stop`` ends the search early with what it has: status ``feasible`` with a
    valid bound, or without a plan ``unknown``; ``infeasible`` where no GPUs hold the states of the model.
    Why nothing is legal and fits is a question of its own (``explain.infeasible``).

    Raises:
        InvalidProblemError: the problem names something unknown.
        ProofMismatchError: the exact program and CP-SAT disagree (a bug).
        InvalidPlanError: the independent check refuses a plan (a bug).
    """
    watch = Watch(
        time_limit_s=problem.options.time_limit_s, on_progress=on_progress, should_stop=should_stop
    )
    own = partial(_search_on, profile=profile, known=known, ways=ways, wide=wide, proved=proved)
    with Judge(problem.options, lazy=not _decides_alone(problem, proved=proved)) as judge:
        if may_use_fewer(problem) and proved:
            answer = _on_at_most_all(problem, profile, own, watch, ways=ways, rivals=rivals)
        else:
            answer = own(problem, on_progress=on_progress, should_stop=should_stop, rivals=rivals)
        if not _decides_alone(problem, proved=proved):
            return answer
        answer = decided(problem, answer, judge, watch)
    return replace(answer, elapsed_s=watch.elapsed_s)


def _decides_alone(problem: Problem, *, proved: bool) -> bool:
    """Return whether CP-SAT decides this search, and not all searches of a request together."""
    return proved and asks_cp_sat(problem) and not is_left_to_planner()


def _on_at_most_all(
    problem: Problem,
    profile: Profile,
    own: Callable[..., Answer],
    watch: Watch,
    *,
    ways: Sequence[Problem],
    rivals: Rivals,
) -> Answer:
    """Return the best plans on all GPUs or fewer; ``own`` searches some numbers of them."""
    on_progress = watch.on_progress
    found = list[Answer]()
    floor_s = least_gpu_s(problem, profile, ways) / usable_gpus(problem)

    def on(asked: Problem, others: Rivals) -> Answer:
        report = None if on_progress is None else partial(_as_part, on_progress, found, floor_s, watch)
        found.append(own(asked, on_progress=report, should_stop=watch.should_stop, rivals=others))
        return found[-1]

    likely_s = partial(_likely_s, profile=profile, watch=watch)
    answer = at_most_all(problem, profile, on, watch, ways=ways, rivals=rivals, likely_s=likely_s)
    _report_done(watch, answer)
    return answer


def _likely_s(problem: Problem, profile: Profile, watch: Watch) -> float:
    """Return the least bound of the likely rows; ``inf`` if none fits."""
    with watch.cut():
        rows = priced_space(problem, profile, likely_space(problem).rows)
        return Frontier.of(rows, 1).least_s
    return math.inf


def _as_part(
    tell: OnProgress, before: Sequence[Answer], floor_s: float, watch: Watch, progress: Progress
) -> None:
    """Report a search on some numbers of GPUs as part of all; no step of any is below ``floor_s``."""
    steps = [one.plans[0].prediction.step_time_s for one in before if one.plans]
    own = progress.incumbent_step_time_s
    best = min([*steps, *([] if own is None else [own])], default=None)
    bound = None if progress.bound_step_time_s is None else min(progress.bound_step_time_s, floor_s)
    tell(
        replace(
            progress,
            stage="solving" if progress.stage == "done" else progress.stage,
            explored=progress.explored + sum(one.explored for one in before),
            total=progress.total + sum(one.space_size for one in before),
            incumbent_step_time_s=best,
            bound_step_time_s=bound,
            gap=relative_gap(best, bound),
            elapsed_s=watch.elapsed_s,
        )
    )


def _report_done(watch: Watch, answer: Answer) -> None:
    watch.report("done", explored=answer.explored, total=answer.space_size,
                 incumbent_s=answer.plans[0].prediction.step_time_s if answer.plans else None,
                 bound_s=answer.bound_step_time_s, now=True)  # fmt: skip


def _search_on(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None,
    should_stop: ShouldStop | None,
    known: Sequence[Configuration],
    ways: Sequence[Problem],
    wide: bool,
    rivals: Rivals,
    proved: bool,
) -> Answer:
    """Return the best plans on the numbers of GPUs of ``enumerate_space``; arguments as ``search``."""
    options = problem.options
    watch = Watch(time_limit_s=options.time_limit_s, on_progress=on_progress, should_stop=should_stop)
    if problem.places_stages:
        return _mixed(problem, profile, watch)
    with Judge(options, lazy=True) as judge:
        others = [on_switches(problem, one) for one in ways]
        found = _bounded(problem, profile, watch, known, others=others, wide=wide, rivals=rivals)
        frontier, sampled = found.frontier, _rank(found, watch)
        # before rows are opened to prove other things of them, with weaker bounds than those of their kinds
        choices = choices_of(problem, profile, frontier) if proved and asks_cp_sat(problem) else None
        proof = _prove(frontier, watch, rivals) if proved else Proof()
        inquiry = inquiry_of(frontier, proof.survivors, options)
        certificate = Certificate() if inquiry is None else judge.answer(inquiry, watch)
    found = replace(found, proof=proof, certificate=certificate)
    plans = plans_of(problem, profile, frontier, certificate, watch.closing())
    answer = answer_of(found, plans, watch)
    answer = replace(
        answer,
        notes={**answer.notes, **(SAMPLE if sampled else {})},
        choices=(choices,) if choices is not None else (),
    )
    search_every = partial(
        _search_every,
        problem,
        profile=profile,
        watch=watch,
        on_progress=on_progress,
        ways=ways,
        rivals=rivals,
    )
    if answer.status == "unknown":
        answer = _refuted_by_room(answer, profile, (problem, *others), watch)
    elif answer.status == "infeasible":
        answer = _widened(problem, answer, watch, search_every)
    _report_done(watch, answer)
    return replace(answer, elapsed_s=watch.elapsed_s)


def _rank(found: AnswerInputs, watch: Watch) -> bool:
    """Rank the bounded rows until the time is over; return whether all of a mere sample are ranked."""
    frontier, options = found.frontier, found.problem.options
    is_over = partial(_interrupt, found.problem, watch, found.space)
    with watch.cut():
        frontier.run(is_over)
        lacks_plans = frontier.finished and 0 < len(frontier.ranked) < options.top_k
        if lacks_plans and frontier.apart == MESH and frontier.limit_s == np.inf:
            frontier.fill(is_over)
    sampled = frontier.finished and not frontier.covers_all and not watch.interrupted()
    frontier.finished &= frontier.covers_all
    return sampled


def _refuted_by_room(answer: Answer, profile: Profile, ways: Sequence[Problem], watch: Watch) -> Answer:
    """Call an answer without a plan infeasible if the states of the model fit under no switches."""
    with watch.closing().cut():
        if not any(have_room(way, profile) for way in ways):
            return replace(answer, status="infeasible", infeasible=Infeasibility(reasons=(_NO_ROOM,)))
    return answer


def _search_every(
    problem: Problem,
    asked: Problem,
    *,
    profile: Profile,
    watch: Watch,
    on_progress: OnProgress | None,
    ways: Sequence[Problem],
    rivals: Rivals,
) -> Answer:
    """Search all candidates in the time that is left; rivals are those of ``problem`` alone."""
    options = replace(asked.options, time_limit_s=max(watch.left_s, _LEAST_S))
    rivals = replace(rivals, least_s=None)  # that is of the usual candidates
    return _search_on(
        replace(asked, options=options), profile, on_progress=on_progress, should_stop=watch.should_stop,
        known=(), ways=ways, wide=True, rivals=rivals if asked is problem else NO_RIVALS, proved=True,
    )  # fmt: skip


def _mixed(problem: Problem, profile: Profile, watch: Watch) -> Answer:
    """Return the answer of CP-SAT, which is loaded for problems on unlike node groups alone."""
    if find_spec("ortools") is None:
        message = "mixed clusters need OR-Tools, which is not installed"
        allowed = "one kind of node, or pip install ortools"
        raise InvalidProblemError.of("cluster.groups", message, allowed=allowed)
    from meshwright.solver.search.mixed.search import search_mixed  # noqa: PLC0415 (it is not for every problem)

    return search_mixed(problem, profile, watch)


def _widened(
    problem: Problem, answer: Answer, watch: Watch, search_every: Callable[[Problem], Answer]
) -> Answer:
    """Return an infeasible answer if it is one of all candidates, else what ``search_every`` finds."""
    options = problem.options
    if options.deadline_days is not None and answer.fit:
        late = Infeasibility(reasons=("deadline: no configuration that fits meets it",))
        return replace(answer, infeasible=late)
    if answer.space == "every":
        return answer
    if watch.interrupted():  # the other candidates were not looked at
        return replace(answer, status="unknown", certified_by=())
    if not is_plain(problem):  # weighing rows writes all of them down: whether one fits is asked before
        unweighed = replace(options, objective="step_time", deadline_days=None)
        lighter = search_every(replace(problem, options=unweighed))
        if lighter.status == "infeasible":
            return lighter
        if watch.interrupted():
            return replace(answer, status="unknown", certified_by=())
    return search_every(problem)


def _bounded(
    problem: Problem,
    profile: Profile,
    watch: Watch,
    known: Sequence[Configuration],
    *,
    others: Sequence[Problem],
    wide: bool,
    rivals: Rivals,
) -> AnswerInputs:
    """Price and bound all legal rows, with a first plan; return the part that is done at the limit.

    Likely rows are ranked before any other is enumerated, unless all are few, and a sample of a large space
    where none of them fits. Of a space that is too large to be written down only a sample is.
    """
    first, found = watch.at_least(_FIRST_S), _nothing_found(problem, profile, others, rivals)
    has_plans, num_outer = rivals.last_s < np.inf, math.inf  # where the time ends before they are counted
    with first.cut():
        num_outer = estimated_outer(problem, wide=wide)
    is_large, is_too_large = num_outer > LARGE_OUTER, num_outer > MOST_OUTER
    if is_too_large:
        with first.cut():
            return _of_sample(found, watch, wide=wide)
        return found
    if not has_plans and num_outer * (1 + len(others)) > FEW_OUTER:
        share = Watch(time_limit_s=watch.time_limit_s * _SAMPLE_SHARE, should_stop=first.should_stop)
        with first.cut(), share.cut():
            found = _of_likely(found, watch)
        if is_large and not found.frontier.ranked:
            with first.cut():
                found = _of_sample(found, watch, wide=wide)
    beyond = None
    if rivals.least_s is not None:
        beyond = Beyond(limit_s=found.frontier.limit_s, least_s=rivals.least_s)
    outer_rows: OuterRowsOf = {}
    ways = 1 + len(others)
    enumerated = _enumeration(problem, wide=wide, ways=ways, beyond=beyond, outer_rows=outer_rows)
    with (watch if is_large else first).cut():
        space = enumerated(problem, legal_only=True, tick=partial(watch.report, "enumerating"))
        again = _enumeration(
            problem, wide=wide, few=space.every, ways=ways, beyond=beyond, outer_rows=outer_rows
        )
        return _of_whole(found, space, watch, first, known=known, enumerated=again, beyond=beyond)
    return found


def _nothing_found(
    problem: Problem, profile: Profile, others: Sequence[Problem], rivals: Rivals
) -> AnswerInputs:
    """Return what is known before any row is: a frontier without rows, and the scores to be beaten."""
    nothing = empty_space(problem)
    no_rows = priced_space(problem, profile, nothing.rows)
    frontier = Frontier.of(no_rows, problem.options.top_k, apart=_apart(problem))
    frontier.covers_all = False
    frontier.limit_s = rivals.last_s * (1.0 + _ROUNDING)
    frontier.rivals_s = {mesh: score * (1.0 + _ROUNDING) for mesh, score in rivals.of_meshes.items()}
    return AnswerInputs(problem, profile, nothing, frontier, Proof(), Certificate(), tuple(others))


def _of_likely(found: AnswerInputs, watch: Watch) -> AnswerInputs:
    """Return the best plan of the likely rows, under all switches together, if one of them fits."""
    watch.report("enumerating", now=True)
    problem, spaces = found.problem, dict[Hashable, Space]()
    ways = [(same_rows(way), way) for way in (problem, *found.others)]
    for key, way in ways:
        if key not in spaces:
            spaces[key] = likely_space(way)
    parts = [(way, own) for key, way in ways if isinstance(own := spaces[key].rows, Crossing) and len(own)]
    if not parts:
        return found
    priced = priced_parts(parts, found.profile)
    masks = np.broadcast_to(np.int64(0), len(priced))
    space = replace(next(iter(spaces.values())), rows=priced.columns, masks=masks)
    frontier = Frontier.of(priced, 1, apart=_apart(problem))
    frontier.covers_all = False
    frontier.run(partial(_interrupt, problem, watch, space))
    if not frontier.ranked:
        return found
    with watch.cut():  # what is ranked stays, whenever the time ends
        _interrupt(problem, watch, space, frontier, now=True)
    return replace(found, space=space, frontier=frontier)


def _enumeration(
    problem: Problem,
    *,
    wide: bool,
    few: bool | None = None,
    ways: int,
    beyond: Beyond | None = None,
    outer_rows: OuterRowsOf,
) -> Callable[..., Space]:
    """Return what enumerates the candidates that are searched: all, the usual ones, or as many as pay."""
    if wide:
        return partial(enumerate_space, wide=True, beyond=beyond, outer_rows=outer_rows)
    if problem.options.usual:
        return partial(enumerate_space, beyond=beyond, outer_rows=outer_rows)
    return partial(searched_space, few=few, ways=ways, beyond=beyond, outer_rows=outer_rows)


def _joined(
    found: AnswerInputs, space: Space, watch: Watch, *, enumerated: Callable[..., Space]
) -> tuple[Space, Priced]:
    """Return the rows of a problem under all its switches, priced; those that have none are ``space``."""
    ways = (found.problem, *found.others)
    keys = [same_rows(way) for way in ways]
    space_of = {keys[0]: space}
    for way, key in zip(ways, keys, strict=True):
        if key not in space_of:
            space_of[key] = enumerated(way, legal_only=True, tick=partial(watch.report, "enumerating"))
    spaces = [space_of[key] for key in keys]
    crossed = [
        (way, own.rows) for way, own in zip(ways, spaces, strict=True) if isinstance(own.rows, Crossing)
    ]
    if not found.others or not any(len(rows) for _, rows in crossed):
        return space, priced_space(found.problem, found.profile, space.rows)
    priced = priced_parts(crossed, found.profile)
    largest = max(spaces, key=_most_gpus)
    joined = replace(
        space,
        rows=priced.columns,
        masks=np.broadcast_to(np.int64(0), len(priced)),
        refuted=sum(own.refuted for own in spaces),
        every=all(own.every for own in spaces),
        warnings=largest.warnings,
    )
    return joined, priced


def _most_gpus(space: Space) -> int:
    """Return the most GPUs that crossed rows use; -1 for rows that are not crossed."""
    rows = space.rows
    return int(rows.outer.num_gpus.max(initial=0)) if isinstance(rows, Crossing) else -1


def _of_whole(
    found: AnswerInputs,
    space: Space,
    watch: Watch,
    first: Watch,
    *,
    known: Sequence[Configuration],
    enumerated: Callable[..., Space],
    beyond: Beyond | None,
) -> AnswerInputs:
    """Return all legal rows, with the plans that are known; or a first plan if the time ends before."""
    watch.report("enumerating", total=space.size, now=True)
    has_limit, opening = found.frontier.limit_s < np.inf, None
    if not found.frontier.ranked:
        found = replace(found, space=space)
        with first.cut():
            opening = None if has_limit else _opening(found, space, watch)
            if opening is not None:
                opening.frontier.covers_all &= not found.others
                found = replace(found, frontier=opening.frontier)
    with watch.cut():
        has_plan = bool(found.frontier.ranked)
        if has_plan:  # it is reported before all rows are priced
            _interrupt(found.problem, watch, space, found.frontier, now=True)
        joined, rows = _joined(found, space, watch, enumerated=enumerated)
        before = rows_of(joined.rows, known)
        if has_limit and before:
            found.frontier.limit_s = _limit_of_known_s(found.frontier, rows, before)
        adopted = [] if opening is None else [opening.row]
        if not found.space.whole:  # its rows have other numbers in all
            adopted = _found_again(found, rows)
        frontier = _frontier(found, joined, rows, watch)
        frontier.beyond_s = np.inf if beyond is None else beyond.nearest_s
        adopted += before
        frontier.adopt(adopted)
        return replace(found, space=joined, frontier=frontier)
    return found


def _limit_of_known_s(found: Frontier, rows: Priced, known: list[int]) -> float:
    """Return the limit of a search, or the score of the last plan of known rows if that is less."""
    few = Frontier(rows=rows, top_k=found.top_k, bound_s=Bounds(len(rows)), apart=found.apart)
    few.limit_s = found.limit_s
    few.bound(np.array(known, dtype=np.int64))
    solved = sorted(few.solve(known), key=lambda one: (one.bound_s, one.row))
    for one in solved[: _MORE * few.top_k]:
        if one.bound_s > few.cutoff_s:
            break
        few.simulate(one.row)
    return min(found.limit_s, few.cutoff_s * (1.0 + _ROUNDING))


def _found_again(found: AnswerInputs, every: Priced) -> list[int]:
    """Return the rows, among all, of the best layouts that were found, under the same switches."""
    frontier = found.frontier
    best = frontier.best_apart(found.problem.options.top_k)
    index, splits = [one.row for one in best], [one.split for one in best]
    configs, again = frontier.rows.take(index).configurations(splits), list[int]()
    if frontier.rows.by_kind is None or every.by_kind is None:
        return rows_of(every.columns, configs)
    for config, way in zip(configs, frontier.rows.ways_of(index), strict=True):
        rows = rows_of(every.columns, [config])
        again += [row for row, other in zip(rows, every.ways_of(rows), strict=True) if other is way]
    return again


def _apart(problem: Problem) -> tuple[str, ...]:
    return MESH if problem.options.diverse else LAYOUT


def _of_sample(found: AnswerInputs, watch: Watch, *, wide: bool) -> AnswerInputs:
    problem = found.problem
    space = sampled_space(problem, wide=wide)
    opening = _opening(found, space, watch)
    if opening is not None:
        opening.frontier.covers_all = False
        found = replace(found, space=space, frontier=opening.frontier)
    until_s = watch.time_limit_s * _SAMPLE_SHARE
    with watch.cut():
        rows = priced_space(problem, found.profile, space.rows)
        frontier = Frontier.of(rows, problem.options.top_k, apart=_apart(problem))
        frontier.covers_all = False
        if opening is not None:
            frontier.adopt([opening.row])
        found = replace(found, space=space, frontier=frontier)
        frontier.run(lambda state: _interrupt(problem, watch, space, state) or watch.elapsed_s > until_s)
        frontier.finished = False
    return found


def _opening(found: AnswerInputs, space: Space, watch: Watch) -> Opening | None:
    share = Watch(time_limit_s=max(watch.time_limit_s * _SAMPLE_SHARE, _FIRST_S))
    with share.cut():
        return first_plan(found.problem, found.profile, space, watch.tick)
    return None


def _frontier(found: AnswerInputs, space: Space, rows: Priced, watch: Watch) -> Frontier:
    problem, before = found.problem, found.frontier
    incumbent = before.ranked[0].score_s if before.ranked else None
    watch.report(
        "bounding", explored=space.refuted, total=space.size, incumbent_s=incumbent, now=bool(incumbent)
    )
    look()
    frontier = Frontier.of(rows, problem.options.top_k, before.limit_s, _apart(problem))
    frontier.rivals_s = before.rivals_s
    return frontier


def _interrupt(
    problem: Problem, watch: Watch, space: Space, frontier: Frontier, *, now: bool = False
) -> bool:
    """Report progress when due, or ``now``, and return whether to stop."""
    reserve_s = _PLAN_S * len(frontier.ranked)
    best = frontier.ranked[0].score_s if frontier.ranked else None
    if not (watch.is_due(best or np.inf) or now):
        return watch.interrupted(reserve_s)
    waiting = min(frontier.waiting_s, best or np.inf)
    if best is not None and not is_plain(problem):  # people read seconds of a step
        row = frontier.ranked[0].row
        waiting = least_step_s(frontier.rows, row, waiting) or 0.0
        best = float(steps_s(frontier.rows, [row], np.array([best]))[0])
    watch.report(
        "solving" if frontier.solved else "bounding",
        explored=space.size - len(frontier.rows) + frontier.settled,
        total=space.size,
        incumbent_s=best,
        bound_s=waiting if np.isfinite(waiting) and frontier.covers_all else None,
        now=True,
    )
    return watch.interrupted(reserve_s)


def _prove(frontier: Frontier, watch: Watch, others: Rivals) -> Proof:
    if not frontier.covers_all:
        return Proof()
    low = frontier.least_s if np.isfinite(frontier.least_s) else None
    floors = RankFloors()
    if frontier.finished and not frontier.ranked and low is not None and others.best_s < np.inf:
        with watch.cut():
            if low < others.best_s:
                low = _least_simulation_s(frontier, low, others.best_s, watch)
            floors = floors_of(frontier, low, watch.tick)
    if not frontier.ranked or not frontier.finished or low is None:
        return Proof(bound_s=low, floors=floors)
    first, best = frontier.ranked[0].row, min(frontier.ranked[0].score_s, others.best_s)
    bound = low
    with watch.cut():
        if low < best:
            bound = _least_simulation_s(frontier, low, best, watch)
        floors = floors_of(frontier, bound, watch.tick)
    own = frontier.solved[first].objective_s
    objective = float(frontier.rows.take([first]).objective_s([frontier.ranked[0].split])[0])
    rivals, left = rivals_of(frontier, own, watch)
    least = min([own, *(rival.objective_s for rival in rivals)])
    survivors = (first, *(rival.row for rival in rivals if rival.row != first))
    return Proof(
        bound_s=bound,
        objective_excess=relative_gap(objective, least),
        objective_gap=relative_gap(least, min(least, left)) if left > -np.inf else None,
        survivors=survivors,
        floors=floors,
    )


def _least_simulation_s(frontier: Frontier, low: float, best: float, watch: Watch) -> float:
    """Bound the simulation of every split of every row; at most ``best``."""
    contenders = frontier.bound_s.below(best)
    closed = contenders[~frontier.are_open(contenders)]
    offered = [row for row in closed.tolist() if row in frontier.solved]
    few = [frontier.solved[row] for row in offered]
    bound = least_of_candidates_s(frontier.rows.take(offered), few, best, watch.tick)
    others = frontier.rows.take(np.setdiff1d(contenders, offered))
    return min(bound, least_step_bound_s(others, min(low, best), best, watch.tick))
