"""All GPUs means at most all: plans on fewer of them are ranked with those on all.

Where the number of GPUs has no good factors, fewer of them take shorter steps: 80 layers and 128 sequences
on 17 nodes leave little but 17 stages, and 16 nodes take the usual sizes. All GPUs are searched first: a
plan that leaves some idle is listed where it is faster than every plan on all of them. So their best score
refutes most smaller numbers together, before anything of them is enumerated: whatever their number, GPUs
take so many seconds together (``gpu_seconds``). What is left is searched in few waves, each one search over
all of its numbers, bounded by the plans that are found. Where the batch is shared far better by fewer GPUs,
these are searched before all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, islice, takewhile
from math import gcd, inf

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Plan, Prediction, RankFloors, Status, status_of_all, with_gaps
from meshwright.solver.clock import Watch, relative_gap
from meshwright.solver.configuration import Configuration, IntArray, mesh_of
from meshwright.solver.cost.objective import claim_of, is_plain
from meshwright.solver.problem import Problem, gpu_counts, on_gpus, per_node_of, usable_gpus
from meshwright.solver.search.frontier import NO_RIVALS, Rivals
from meshwright.solver.search.gpu_seconds import LeastPasses, PlainRows, least_gpu_s, least_passes
from meshwright.solver.search.priced_space import Room, have_room, states_fit
from meshwright.solver.space.enumerate import (
    LARGE_OUTER,
    MANY_OUTER,
    MOST_OUTER,
    estimated_on_each,
    estimated_outer,
    fewer_are_used,
    fewer_gpus,
    fewer_products,
    numbers_of_gpus,
)
from meshwright.solver.splits import divisors

PassesOf = Callable[[bool], LeastPasses]  # True: of all candidates; False: of the usual ones
Search = Callable[[Problem, Rivals], Answer]  # on the numbers of GPUs of a problem, given others' plans

_WAVE = 0.75  # of the largest number of a wave: its plans refute most of the numbers behind
_ROUNDING = 1.0 + 1e-9
_LEAST_S = 0.01  # a search is given this much
IDLE = "idle"  # the note of an answer with a first plan that leaves GPUs idle


def score_s(problem: Problem, plan: Plan) -> float:
    """Return what a plan is ranked by: its step, of the request's number of sequences."""
    return score_of_s(problem, plan.config, plan.prediction)


def score_of_s(problem: Problem, config: Configuration, prediction: Prediction) -> float:
    """Return what a configuration is ranked by, as ``score_s``."""
    return prediction.step_time_s * problem.workload.global_batch_size / config.global_batch_size


def at_most_all(
    problem: Problem,
    profile: Profile,
    search: Search,
    watch: Watch,
    *,
    ways: Sequence[Problem],
    rivals: Rivals,
    likely_s: Callable[[Problem], float],
) -> Answer:
    """Return the best plans on all GPUs or fewer.

    A plan on fewer GPUs is listed where it is faster than every plan on all of them.

    Args:
        problem: the request.
        profile: its prices.
        search: searches the numbers of GPUs of a problem.
        watch: the time of all.
        ways: the request under other switches, which are searched with it.
        rivals: plans of other searches that are ranked with these.
        likely_s: returns the least bound of the likely rows of a problem, seconds; ``inf``: none fits.
    """
    searched = partial(_searched, problem, search=search, watch=watch)
    passes_of = cache(lambda wide: least_passes(problem, profile, ways, wide=wide))
    first = _searched_first(problem, profile, watch, ways=ways, likely_s=likely_s, passes_of=passes_of)
    if first is None:
        answers, passes = [search(problem, rivals)], None
        if "sample" in answers[0].notes:  # nothing is proved of all GPUs, and smaller spaces are as large
            return answers[0]
    else:
        answers, passes = _from_fewer(problem, searched, passes_of, rivals=rivals, first=first)
    known = _to_beat(problem, answers, rivals)
    numbers, counted, each_s = list[int](), False, least_gpu_s(problem, profile, ways)
    has_rows = bool(answers[0].plans) or answers[0].status == "optimal"  # mere rivals' plans are faster
    usual, floor_s = has_rows and answers[0].space == "usual", dict[int, float]()

    def among(some: IntArray) -> IntArray:
        floor_s.update(_floors_s(problem, ways, passes, some, wide=not usual))
        return np.array([n for n in some.tolist() if floor_s[n] <= known.last_s], dtype=np.int64)

    with watch.closing().cut():
        cheap = usual or problem.model.moe is None  # else all rows of experts are sooner searched
        lacks_bound = passes is None and cheap and known.last_s < inf
        if lacks_bound and _are_crowded(problem):
            passes = passes_of(not usual)
        others = (number for number in _others(problem, each_s / known.last_s, among) if number != first)
        largest = [*islice(others, 1)]
        if lacks_bound and largest and passes is None:
            passes = passes_of(not usual)
        if passes is not None:
            each_s = max(each_s, passes.least_gpu_s)
        numbers = [*takewhile(lambda n: n * known.last_s >= each_s, chain(largest, others))]
        counted = True
    while numbers and not watch.interrupted():
        if not have_room(on_gpus(problem, (numbers[0],)), profile):
            numbers = []
            break
        wave, numbers = _wave(problem, numbers, usual=usual)
        rivals_of_wave = known if passes is None else replace(known, least_s=passes.of_rows)
        answers.append(searched(wave, rivals_of_wave, usual=usual))
        known = _to_beat(problem, answers, rivals)
        numbers = [n for n in numbers if max(each_s / n, floor_s[n]) <= known.last_s]
    most = numbers[0] if counted and numbers else usable_gpus(problem)
    unsearched_s = each_s / most if numbers or not counted else inf
    return _joined(problem, profile, answers, watch, unsearched_s)


# What is searched first; answers are the same whatever that is.
#
# Where GPUs are many for the sequences, pipelines run few micro-batches, and numbers of GPUs differ most in
# how many those are. Bounds by passes name the number to search first, and leave few others.
_CROWDED = 2  # GPUs for each sequence
_LITTLE_WORK = 1_000_000  # rows by GPUs: a search of less is over before bounds pay
_UNHURRIED_S = 10.0  # of the time limit: in less, all GPUs come first
_MORE_SHARED = 2  # times as many GPUs that share the batch
_LEAST_USED = 0.5  # of all GPUs
_FASTER = 0.97  # of the bound of likely rows on all GPUs


def _searched_first(
    problem: Problem,
    profile: Profile,
    watch: Watch,
    *,
    ways: Sequence[Problem],
    likely_s: Callable[[Problem], float],
    passes_of: PassesOf,
) -> int | None:
    """Return the number of GPUs that is searched before all of them; None: those come first."""
    if watch.left_s < _UNHURRIED_S:
        return None
    with watch.cut():
        rows = estimated_outer(problem) * (1 + len(ways))
        if rows * usable_gpus(problem) <= _LITTLE_WORK or not numbers_of_gpus(problem):
            return None
        if _are_crowded(problem):
            return _quickest(problem, profile, ways, passes_of(False))
        return _sharing_best(problem, likely_s) if rows > MANY_OUTER else None
    return None


def _sharing_best(problem: Problem, likely_s: Callable[[Problem], float]) -> int | None:
    """Return the number of GPUs that shares the batch best, if likely rows on it may beat those on all."""
    every, batch = usable_gpus(problem), problem.workload.global_batch_size
    worth, least = _MORE_SHARED * gcd(every, batch), _LEAST_USED * every
    if not any(every - every % size >= least for size in divisors(batch) if worth <= size < every):
        return None
    numbers = [*_others(problem, least)]
    best = max(numbers, key=lambda n: n * n * gcd(n, batch), default=every)  # idle GPUs cost, too
    if gcd(best, batch) < worth:
        return None
    of_all_s = likely_s(problem)
    return best if of_all_s < inf and likely_s(on_gpus(problem, (best,))) < _FASTER * of_all_s else None


def _are_crowded(problem: Problem) -> bool:
    return usable_gpus(problem) > _CROWDED * problem.workload.global_batch_size


def _floors_s(
    problem: Problem,
    ways: Sequence[Problem],
    passes: LeastPasses | None,
    numbers: IntArray,
    *,
    wide: bool,
) -> dict[int, float]:
    """Return what no row on each number of GPUs scores less than by passes; 0 where others are quicker."""
    floor_s = np.zeros(len(numbers))
    if passes is not None and _are_crowded(problem):
        floor_s = PlainRows.of(problem, ways, numbers, passes, wide=wide).of_numbers_s(numbers)
    return dict(zip(numbers.tolist(), floor_s.tolist(), strict=True))


def _quickest(
    problem: Problem, profile: Profile, ways: Sequence[Problem], passes: LeastPasses
) -> int | None:
    """Return the number of GPUs with the least bound by passes, if that is below the one of all GPUs."""
    every, fewer = usable_gpus(problem), fewer_products(problem)
    numbers = np.append(every, fewer[fewer >= _LEAST_USED * every])
    plain = PlainRows.of(problem, ways, numbers, passes, wide=False)
    fit = np.flatnonzero(states_fit(problem, plain.columns, profile))
    least_s = plain.take(fit).of_numbers_s(numbers)
    best = int(numbers[least_s.argmin()])
    quicker = least_s.min() < _FASTER * least_s[0]
    return next(_others(problem, best, lambda _: np.array([best])), None) if quicker else None


def _from_fewer(
    problem: Problem, searched: Callable[..., Answer], passes_of: PassesOf, *, rivals: Rivals, first: int
) -> tuple[list[Answer], LeastPasses | None]:
    """Return the answers on all GPUs and on ``first`` ones, whose plans refute most rows on all of them.

    Also a bound on the passes of the usual candidates; None: not known, or all candidates were searched.
    """
    fewer = searched([first], rivals, usual=problem.options.usual)
    if problem.options.diverse:  # other meshes, on all GPUs, come before other layouts of these
        unlike = {mesh_of(plan.config): plan for plan in reversed(fewer.plans)}
        fewer = replace(fewer, plans=tuple(sorted(unlike.values(), key=lambda plan: plan.rank)))
    usual, passes = fewer.space == "usual", None
    known = _to_beat(problem, [replace(fewer, plans=()), fewer], rivals)
    if usual and known.last_s < inf:
        passes = passes_of(False)
        known = replace(known, least_s=passes.of_rows)
    numbers = numbers_of_gpus(problem)
    of_all = searched(numbers, known, usual=usual)
    too_few = len(_ranked(problem, [of_all, fewer])) < problem.options.top_k
    if of_all.plans and too_few:  # slower ones follow
        again = searched(numbers, rivals, usual=problem.options.usual)
        of_all = again if again.plans else of_all
    said = fewer_are_used(problem, max(numbers))
    of_all = replace(of_all, warnings=(*of_all.warnings, *said))
    return [of_all, fewer], passes if of_all.space == "usual" else None


def waves(
    problem: Problem, profile: Profile, last_s: Callable[[], float], num_gpus: int
) -> Iterator[Problem]:
    """Yield the problem on fewer GPUs, many numbers at once, that have room and may beat a score.

    Args:
        problem: a problem with a plan.
        profile: its prices.
        last_s: returns the score to beat, seconds.
        num_gpus: GPUs of the best plan of a search on all.
    """
    each_s, room = least_gpu_s(problem, profile), Room.of(problem, profile)
    fewest = 1 + bisect_left(range(1, num_gpus), True, key=room.on)
    least = max(each_s / last_s(), fewest)
    on_all = gpu_counts(problem) == (num_gpus,)
    others = fewer_gpus(problem, least) if on_all else _others(problem, least)
    numbers = list(others)
    while numbers:
        # few have a faster plan: one search costs less
        wave, numbers = _wave(problem, numbers, share=0.0, usual=True)
        yield on_gpus(problem, tuple(wave))
        numbers = [n for n in numbers if n * last_s() >= each_s]


def _others(
    problem: Problem, least: float, among: Callable[[IntArray], IntArray] = lambda numbers: numbers
) -> Iterator[int]:
    """Yield the numbers of GPUs, down to ``least``, that a search on all of them leaves out."""
    searched = numbers_of_gpus(problem)
    return (n for n in fewer_gpus(problem, least, among) if n not in searched)


def _to_beat(problem: Problem, answers: Sequence[Answer], rivals: Rivals) -> Rivals:
    """Return the scores that plans on fewer GPUs must beat."""
    scores = [score_s(problem, plan) for plan in _ranked(problem, answers)]
    best, kth = min([rivals.best_s, *scores[:1]]), scores[problem.options.top_k - 1 :]
    last = min([rivals.last_s, _best_score_s(problem, answers[0]), *kth])
    return NO_RIVALS if last == inf else Rivals(best, last * _ROUNDING, rivals.of_meshes)


def _wave(
    problem: Problem, numbers: list[int], *, usual: bool, share: float = _WAVE
) -> tuple[list[int], list[int]]:
    """Return the numbers to search next, and those behind.

    Not so many that only the usual candidates are searched of a number that has few of all of them.
    """
    rows, size, most = 0.0, 0, MOST_OUTER if usual else LARGE_OUTER
    near = [number for number in numbers if number >= share * numbers[0]]
    for each in estimated_on_each(problem, near, wide=not usual):
        rows += each
        if size and rows > most:
            break
        size += 1
    return numbers[:size], numbers[size:]


def _searched(
    problem: Problem, wave: Sequence[int], known: Rivals, *, search: Search, usual: bool, watch: Watch
) -> Answer:
    """Search some numbers of GPUs in the time that is left; ``usual``: among the usual candidates alone."""
    options = replace(
        problem.options, num_gpus=tuple(wave), usual=usual, time_limit_s=max(watch.left_s, _LEAST_S)
    )
    answer = search(replace(problem, options=options), known)
    # a wave is chosen: that no more GPUs can be used is not so
    said = {text for num_gpus in wave for text in fewer_are_used(problem, num_gpus)}
    return replace(answer, warnings=tuple(text for text in answer.warnings if text not in said))


def _best_score_s(problem: Problem, of_all: Answer) -> float:
    return min((score_s(problem, plan) for plan in of_all.plans), default=inf)


def _ranked(problem: Problem, answers: Sequence[Answer]) -> list[Plan]:
    """Return the best K plans: those on all GPUs, and those on fewer that are faster than all of them."""
    of_all, *fewer = answers
    least_s = _best_score_s(problem, of_all)
    faster = [plan for one in fewer for plan in one.plans if score_s(problem, plan) < least_s]
    faster.sort(key=lambda plan: (score_s(problem, plan), plan.rank))
    return [*faster, *of_all.plans][: problem.options.top_k]


def _joined(
    problem: Problem, profile: Profile, answers: Sequence[Answer], watch: Watch, unsearched_s: float
) -> Answer:
    """Return one answer to all numbers of GPUs; on those that were not searched nothing is faster."""
    of_all, plans = answers[0], _ranked(problem, answers)
    if len(answers) == 1 and unsearched_s == inf:
        return of_all
    unsearched: list[Status] = ["unknown"] if unsearched_s < inf else []
    status = status_of_all([*(one.status for one in answers), *unsearched])
    feasible = [one for one in answers if one.status != "infeasible"]
    scores = [score_s(problem, plan) for plan in plans]
    bound_s = _bound_s(feasible, unsearched_s, scores)
    first = next((one for one in answers if plans and plans[0] in one.plans), of_all)
    floors = _floors(problem, answers) if unsearched_s == inf else RankFloors()
    # scores are of the request's batch, steps of the plan's own
    batch_share = plans[0].config.global_batch_size / problem.workload.global_batch_size if plans else 1.0
    listed = [replace(plan, rank=rank) for rank, plan in enumerate(plans, 1)]
    counts = sum((Counter(one.counts) for one in answers), Counter[str]())
    return replace(
        first,
        status=status,
        plans=with_gaps(listed, scores, floors, bound_s, of_steps=is_plain(problem)),
        certified_by=first.certified_by if status == "optimal" else (),
        bound_step_time_s=None if bound_s is None else bound_s * batch_share,
        gap=relative_gap(scores[0] if scores else None, bound_s),
        objective=claim_of(problem, profile, scores[0] if scores else None, bound_s),
        space_size=sum(one.space_size for one in answers),
        legal=sum(one.legal for one in answers),
        fit=sum(one.fit for one in answers),
        explored=sum(one.explored for one in answers),
        counts={name: counts[name] for name in first.counts},
        elapsed_s=watch.elapsed_s,
        warnings=tuple(dict.fromkeys(text for one in answers for text in one.warnings)),
        infeasible=None if plans else of_all.infeasible,
        num_gpus_used=plans[0].config.num_gpus if plans else of_all.num_gpus_used,
        notes={**first.notes, **_idle(problem, of_all, plans)},
        space="every" if all(one.space == "every" for one in answers) else "usual",
        floors=floors,
        choices=tuple(each for one in answers for each in one.choices),
    )  # fmt: skip


def _bound_s(answers: Sequence[Answer], unsearched_s: float, scores: Sequence[float]) -> float | None:
    """Return a bound on the score of every number of GPUs, at most the best plan's; None: unknown."""
    claims = [None if one.objective is None else one.objective.bound for one in answers]
    bounds = [bound for bound in claims if bound is not None]
    least_s = min([*bounds, unsearched_s])
    if len(bounds) < len(claims) or least_s in (0.0, inf):  # of some number nothing is known, or of none
        return None
    return min([least_s, *scores[:1]])


def _floors(problem: Problem, answers: Sequence[Answer]) -> RankFloors:
    """Return the floors of what may be listed: meshes on unlike numbers of GPUs are unlike."""
    feasible = [one.floors for one in answers if one.status != "infeasible"]
    if not all(one.known for one in feasible):
        return RankFloors()
    by_layout = all(one.layouts for one in feasible if one.meshes)
    of_all, *fewer = answers
    least_s = _best_score_s(problem, of_all)
    every = [of_all.floors, *(one.floors.below(least_s) for one in fewer)]
    return RankFloors(
        known=True,
        meshes={mesh: floor for one in every for mesh, floor in one.meshes.items()},
        layouts={key: floor for one in every for key, floor in one.layouts.items()} if by_layout else {},
    )


def _idle(problem: Problem, of_all: Answer, plans: Sequence[Plan]) -> dict[str, str]:
    """Return the note on the GPUs that the first plan leaves idle, unless a warning says why."""
    used, counts = plans[0].config.num_gpus if plans else 0, gpu_counts(problem)
    known = not plans or used in counts or {*fewer_are_used(problem, used)} <= {*of_all.warnings}
    if known:
        return {}
    each, usable = per_node_of(problem), min(count for count in counts if count > used)
    unit, size = ("node", each) if used % each == 0 == usable % each else ("GPU", 1)
    idle, most, own = (usable - used) // size, usable // size, used // size
    words = f"{idle} of {most} {unit}s {'is' if idle == 1 else 'are'} idle: {own} {unit}{'s'[: own > 1]}"
    words += f" take{'s'[: own == 1]} {score_s(problem, plans[0]):.4g} s a step with this batch"
    on_all = [plan for plan in of_all.plans if plan.config.num_gpus == usable]
    if on_all:
        words += f", all {most} take {score_s(problem, on_all[0]):.4g} s"
    elif of_all.status == "infeasible":
        words += f", and no configuration fits on all {most}"
    elif of_all.status == "optimal" and usable in numbers_of_gpus(problem):
        words += f", all {most} take over {score_s(problem, plans[-1]):.4g} s"
    return {IDLE: words}
