"""The search: a problem in, a proved ranking of plans out.

Variables
  a *row* x of the outer space (``solver.space``): tp, pp, vpp, cp, ep, dp, ZeRO stage, micro-batch,
  recomputation; and its *split* n = (n_1 … n_C), the layers of each of its C = pp * vpp chunks.
Objectives
  J(x, n) = straggler * (phi sum_r t_r + max_r ((m - phi) t_r + tail_r)) + fixed
                                                                  ``cost.assemble.objective_s``
  S(x, n) = straggler * max_r (end_r + tail_r) + fixed, end_r by event simulation
                                                                  ``search.simulate.rank_finish_s``
Constraints
  (1) x breaks no rule of model, batch, launcher and request      ``rules.rules_of``
  (2) sum_c n_c = L, in model order                               ``stages.best_splits``
  (3) n_c >= 1, and >= k where k layers of each chunk recompute   ``rows.Rows.smallest_chunk``
  (4) peak memory of every rank <= budget                         ``caps``, ``stages.StageTables``
  (5) chunks of an interleaved rank differ by at most one layer, in any order; the model's first and
      last chunk may hold fewer; with layers of several kinds there are some regular splits
                                                                  ``caps.layer_caps``, ``chunks.offered``
Answer
  Each row's split n*(x) minimises J(x, .) under (2)-(5), exactly (``stages``). An interleaved or
  deep row has further candidates (``arrange``), and its score is the least S of its
  candidates. Rows are ranked by score, best first under valid bounds (``bounds``, ``frontier``). Rows
  that differ in recomputation, chunks a rank and schedule alone are one layout; its best row stands for
  it.

What is claimed, and what is not
  status ``optimal``: the ranking is proved. No layout outside the K plans has a smaller score.
  ``objective_gap`` is 0: the least J over *all* rows and splits was found and proved; CP-SAT judges it
  independently. Where the time ends before, it is the distance to the least bound that is left.
  ``objective_excess`` = (J_1 - min J) / J_1, J_1 of the first plan, is what ranking by S instead of J
  costs in J; 0 when the first plan minimises both.
  ``bound_step_time_s``: no row under *any* split simulates faster (``closing.least_step_bound_s``), so
  ``gap`` is what another split of some row could still gain at most; it may exceed 0 although the
  ranking is proved, because candidates are few and not all splits.
  All of it holds under the cost model and within the space; ``prediction`` carries the error band.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from profiles.profile import PLACING_LAUNCHER, Profile
from solver.candidates import searched_space
from solver.explain import explain
from solver.mixed.search import search_placed
from solver.objective import is_plain
from solver.plan import Answer, Configuration, Infeasibility
from solver.problem import Problem
from solver.progress import OnProgress, ShouldStop
from solver.search.answering import Found, Proof, answer_of, objectives_s, plans_of
from solver.search.certify import Judge
from solver.search.closing import least_of_candidates_s, least_step_bound_s
from solver.search.fitting import lightest
from solver.search.frontier import Frontier
from solver.search.known import rows_of
from solver.search.opening import Opening, first_plan
from solver.search.priced import priced_rows, priced_space
from solver.search.rivals import rivals_of
from solver.search.unweighed import least_step_s, steps_s
from solver.search.watch import Watch, relative_gap
from solver.space import Space, enumerate_space, refuted_space

_LEAST_S = 0.01  # a search is given this much
_PLAN_S = 0.01  # kept back of the time limit for each plan: predicting and checking it


def search(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
    known: Sequence[Configuration] = (),
    wide: bool = False,
) -> Answer:
    """The ``top_k`` best plans of a problem, ranked and proved as the module's text says.

    ``known``: configurations to begin with, of a search that was broken off; they change no answer.
    ``wide``: among all candidates of ``enumerate_space``, however many; else as ``searched_space`` says.

    A time limit or ``should_stop`` ends the search early with what it has: status ``feasible`` with a
    valid bound, or ``unknown`` without a plan.

    Raises:
        InvalidProblemError: the problem names something unknown.
        ProofMismatchError: the exact program and CP-SAT disagree (a bug).
        InvalidPlanError: the independent check refuses a plan (a bug).
    """
    options = problem.options
    watch = Watch(time_limit_s=options.time_limit_s, on_progress=on_progress, should_stop=should_stop)
    if places_stages(problem, profile):
        return search_placed(problem, profile, watch)
    with Judge(options) as judge:
        tick = partial(watch.report, "enumerating")
        among = partial(enumerate_space, wide=True) if wide else searched_space
        space = among(problem, lambda: _looks(watch), legal_only=True, tick=tick)
        watch.report("enumerating", total=space.size, now=True)
        opening = first_plan(problem, profile, space, watch.tick)
        frontier = _frontier(problem, profile, space, opening, watch)
        if frontier.covers_all:
            for row in rows_of(space.rows, known):
                frontier.adopt(row)
        frontier.run(lambda state: _interrupt(problem, watch, space, state))
        proof = _prove(frontier, watch)
        certificate = judge.certify(frontier, proof.survivors, watch)
    plans = plans_of(problem, profile, frontier, certificate)
    answer = answer_of(Found(problem, profile, space, frontier, proof, certificate), plans, watch)
    if answer.status == "infeasible":
        left = replace(options, time_limit_s=max(watch.left_s, _LEAST_S))
        again = partial(
            search, profile=profile, on_progress=on_progress, should_stop=should_stop, wide=True
        )
        answer = _told(replace(problem, options=left), profile, answer, again)
    watch.report("done", explored=answer.explored, total=answer.space_size,
                 incumbent_s=answer.plans[0].prediction.step_time_s if answer.plans else None,
                 bound_s=answer.bound_step_time_s, now=True)  # fmt: skip
    return replace(answer, elapsed_s=watch.elapsed_s)


def _told(problem: Problem, profile: Profile, answer: Answer, again: Callable[[Problem], Answer]) -> Answer:
    """An infeasible answer with its reasons, or what ``again``, a search among all candidates, says."""
    options = problem.options
    if options.deadline_days is not None and answer.fit:
        late = Infeasibility(reasons=("deadline: no configuration that fits meets it",))
        return replace(answer, infeasible=late)
    if answer.space == "every":
        return replace(answer, infeasible=_reasons(problem, profile))
    if not is_plain(problem):  # weighing rows writes all of them down: whether one fits is asked before
        unweighed = replace(options, objective="step_time", deadline_days=None)
        found = again(replace(problem, options=unweighed))
        if found.status == "infeasible":
            return found
    return again(problem)


def _reasons(problem: Problem, profile: Profile) -> Infeasibility:
    """Why nothing is legal and fits."""
    whole = refuted_space(problem)
    legal = whole.columns.take(whole.legal)
    light = priced_rows(problem, profile, legal.take(lightest(legal)))
    return explain(problem, profile, whole, light)


def places_stages(problem: Problem, profile: Profile) -> bool:
    """Whether the stages of a mixed cluster are placed on its node groups."""
    return bool(profile.by_group) and problem.launcher == PLACING_LAUNCHER


def _looks(watch: Watch) -> bool:
    """Report that rows are enumerated, and say whether to stop."""
    watch.report("enumerating")
    return watch.interrupted()


def _frontier(
    problem: Problem, profile: Profile, space: Space, opening: Opening | None, watch: Watch
) -> Frontier:
    """All legal rows, priced and bounded, with a first plan among them; stopped before, only that one."""
    incumbent = None if opening is None else opening.frontier.ranked[0].score_s

    def stopped() -> bool:
        watch.report("bounding", explored=space.refuted, total=space.size,
                     incumbent_s=incumbent)  # fmt: skip
        return watch.interrupted()

    stopped()
    rows = priced_space(problem, profile, space.rows, stopped)
    if len(rows) == len(space.rows):
        frontier = Frontier.of(rows, problem.options.top_k, stopped)
        if len(frontier.rows) == len(space.rows):
            if opening is not None:
                frontier.adopt(opening.row)
            return frontier
    return opening.frontier if opening else Frontier.of(rows.take([]), problem.options.top_k)


def _interrupt(problem: Problem, watch: Watch, space: Space, frontier: Frontier) -> bool:
    """Report where that is due, and say whether to stop."""
    reserve_s = _PLAN_S * len(frontier.ranked)
    if not watch.is_due:
        return watch.interrupted(reserve_s)
    best = frontier.ranked[0].score_s if frontier.ranked else None
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
        bound_s=waiting if np.isfinite(waiting) else None,
    )
    return watch.interrupted(reserve_s)


def _prove(frontier: Frontier, watch: Watch) -> Proof:
    """Bound all simulations and find the least closed-form objective, as far as time allows."""
    if not frontier.covers_all:
        return Proof()
    low = frontier.least_s if np.isfinite(frontier.least_s) else None
    if not frontier.ranked or not frontier.finished or low is None:
        return Proof(bound_s=low)
    best, first = frontier.ranked[0].score_s, frontier.ranked[0].row
    contenders = np.flatnonzero(frontier.bound_s < best)
    offered = [row for row in contenders.tolist() if row in frontier.solved and not frontier.is_open(row)]
    few = [frontier.solved[row] for row in offered]
    bound = least_of_candidates_s(frontier.rows.take(offered), few, best, watch.tick)
    others = frontier.rows.take(np.setdiff1d(contenders, offered))
    bound = min(bound, least_step_bound_s(others, min(low, best), best, watch.tick))
    objective = objectives_s(frontier)[0]
    own = frontier.solved[first].objective_s
    rivals, left = rivals_of(frontier, own, watch)
    least = min([own, *(rival.objective_s for rival in rivals)])
    survivors = (first, *(rival.row for rival in rivals if rival.row != first))
    return Proof(
        bound_s=bound,
        objective_excess=relative_gap(objective, least),
        objective_gap=relative_gap(least, min(least, left)),
        survivors=survivors,
    )
