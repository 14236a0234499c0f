"""Changes that the user may decide and that save time, energy or nodes: the levers of an answer's plans.

Each comes with other numerics, another script, package or batch, so that no search makes it unasked.
Its plan is found a few moves away from the answer's own plans and from the rule of thumb, priced under the
changed request, which takes milliseconds. It has passed the independent check, and a search of the changed
request finds that plan or a better one, so that the gain is a lower bound. Changes that free memory are
searched, since a layout far away may then fit. So are batches where the first plan leaves GPUs idle,
changes with few candidates (``_is_searched``), and some other launchers (``_of_launcher``).
``every_lever`` searches each change instead, as ``explain --levers`` does.

Work is counted, in configurations and in looks at the clock, so that an answer is the same on every machine
that has the time to try all of them. One that has not leaves levers out, and its answer warns of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, zip_longest
from math import inf
from typing import Any

import numpy as np

from meshwright.profiles.adapters import ALL_LINEAR
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.frameworks import framework_facts, with_options, with_options_if_legal
from meshwright.profiles.profile import Profile, framework_of
from meshwright.profiles.sequences import Batching
from meshwright.profiles.storage import BasePrecision, storage_of
from meshwright.profiles.switches import EVERY_SWITCH, Setting, Switch, switches
from meshwright.solver.answer import Answer, Lever, Plan, Prediction, settled_problem
from meshwright.solver.check import violations_of_all
from meshwright.solver.clock import LOOKS_PER_S, Watch, WorkWatch, look
from meshwright.solver.configuration import HIERARCHICAL, Columns, Configuration
from meshwright.solver.cost.evaluation import ROUNDED_BYTES, evaluate
from meshwright.solver.cost.memory import memory_budget_bytes
from meshwright.solver.cost.objective import counts_busy
from meshwright.solver.cost.pipelines import closed_forms
from meshwright.solver.explain.alternatives import moves_of, settle
from meshwright.solver.explain.reference import switches_of, usual_meshes
from meshwright.solver.planner.fewest_nodes import alone_on, node_counts
from meshwright.solver.planner.least_memory import first_that_fits
from meshwright.solver.planner.recipes import (
    STATES,
    WORTH_OF_A_RECIPE,
    fastest_recipe,
    has_recipes,
    in_words,
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
from meshwright.solver.predict import predict_all, profile_of_variant
from meshwright.solver.problem import (
    CONTEXT_MODE,
    PER_GPU,
    STANDALONE_STAGES,
    WEIGHT_SHARDS,
    Objective,
    Problem,
    Workload,
    allows_nodes_of,
    can_start,
    gpu_counts,
    left_closed,
    may_use_fewer,
    on_gpus,
    per_node_of,
    searched_switches,
    usable_gpus,
    with_changes,
)
from meshwright.solver.search.answers import fastest_of
from meshwright.solver.search.frontier import Rivals
from meshwright.solver.search.gpu_seconds import LeastPasses, least_passes
from meshwright.solver.search.priced_space import priced_space
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import (
    are_few,
    estimated_outer,
    fewer_gpus,
    is_too_large,
    same_rows,
)
from meshwright.solver.space.launcher_choice import launcher_faults, preferred
from meshwright.solver.space.launcher_rules import (
    standing_alone,
    weight_shard_obstacle,
    with_recipe,
    workload_faults,
)
from meshwright.solver.space.request_rules import counts_kept, limited_by
from meshwright.solver.space.rule import Rule
from meshwright.solver.space.rules import rules_of, violation_masks
from meshwright.solver.splits import divisors

_GRADIENTS = "gradient_dtype"  # the switch that is a change of the states
_STATES = {  # the last two keep no FP32 master weights
    **STATES,
    "adamw-pure-bf16": "16-bit weights and Adam states",
    "adamw-8bit-bf16": "16-bit weights and 8-bit Adam states",
}
WORTH = 0.01  # of the first plan's time for each token must a change save to be named
_WORTH_OF = {
    "neighbour": 0.03,  # a batch or length beside the request's own
    "batch": 0.05,  # others: nearly every job trains more tokens a second with a larger batch
    "batching": 0.05,
    "recipe": WORTH_OF_A_RECIPE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a request that the user may decide."""

    # gradients, optimizer, states for both, precision, base_precision, launcher, batch, neighbour,
    # batching, offload, package, recipe, group, power, or the name of a switch or of a layout
    kind: str
    words: str
    effect: str
    problem: Problem  # the request with the change; its switches are still open
    also: tuple[Problem, ...] = ()  # with other values of what the change opens
    settings: Mapping[str, Any] = field(default_factory=dict)  # values by their paths in the request
    frees_memory: bool = False  # so much that a layout far away may fit


def levers_of(
    problem: Problem, profile: Profile, answer: Answer, watch: Watch, *, looks: int
) -> tuple[Lever, ...]:
    """Return the changes that save enough (``worth_of``), the best first; of launchers the fastest alone.

    Where plans are ranked by energy, only switches that save energy are searched: others trade it for time.
    On the fewest nodes, changes that save nodes. On unlike nodes, a rounder batch and length.

    Args:
        problem: the request.
        profile: its costs.
        answer: its plans.
        watch: its time; what is not tried before it ends is left out.
        looks: looks at the clock of all searches of changes. Batches get as many again, launchers twice as
            many, those with adapters on other layers as many again, and a power limit four times as many.
            Where they end a search, what is near counts. A search on unlike nodes or on one of their groups
            ends after the seconds of so many looks.
    """
    if not has_levers(problem, answer):
        return ()
    own, found = _under_first(problem, answer), list[Lever]()
    with watch.cut():
        if not _saves_time(own):
            return in_order(_without_time_levers(own, profile, answer, seconds=looks / LOOKS_PER_S))
        searches, of_batches = WorkWatch(looks=looks), WorkWatch(looks=looks)
        find = partial(_proved, own, profile=profile, answer=answer, searches=searches)
        recipes, near = [*_published(own, profile, answer)], list[Change]()
        found += [lever for lever, _ in recipes]
        for change in changes_of(own):
            look()
            if change.problem.places_stages:  # no mesh is near to stages on unlike nodes
                plans, _ = _searched(own, _within(change, looks / LOOKS_PER_S), profile, answer)
            elif change.kind == "launcher":
                plans = []  # ``_of_launchers`` tries them below
            elif _is_searched(change) or (change.kind == "batch" and _leaves_idle(own, answer)):
                work = of_batches if change.kind == "batch" else searches
                plans = _far(own, change, profile, answer, partial(find, searches=work))
            elif change.kind == _POWER:
                plans = _within_power(own, change, profile, answer, WorkWatch(looks=4 * looks))
            elif change.kind == STANDALONE_STAGES:
                plans = _with_ends_alone(own, change, profile, answer)
            else:
                plans = []
                near.append(change)
            found += [_lever(own, answer, change, best) for best in plans[:1]]
        for change, plans in zip(near, _nearby(own, near, profile, answer), strict=True):
            found += [_lever(own, answer, change, best) for best in plans[:1]]
        found += _alone(own, profile, answer, seconds=looks / LOOKS_PER_S)
        found += _lighter(own, profile, answer, searches)
        found += _of_launchers(own, profile, answer, looks=2 * looks)
        found += _neighbours(own, profile, answer, find)
        found += _relaid(own, answer, recipes, find)
    return in_order(_without_batches(problem, [*found, *_packaged(problem, answer)]))


def _without_batches(problem: Problem, levers: Iterable[Lever]) -> Iterator[Lever]:
    """Yield the levers, without other batches where a request has several."""
    several = bool(problem.options.batch_sizes)
    return (one for one in levers if not (several and "workload.global_batch_size" in one.settings))


def _far(problem: Problem, change: Change, profile: Profile, answer: Answer, find: _Find) -> list[_Best]:
    """Return the best plan of a change; where ``find`` does not prove it, those nearby."""
    plans, proved = find(change)
    return plans if proved else _near(problem, change, profile, answer)


_FEW = 3000  # candidates without stages: searching so few takes about as long as trying those nearby
_FEW_WITH_STAGES = 1000  # candidates with stages: a search in 8 bits takes about 0.1 s


def _is_searched(change: Change) -> bool:
    """Return whether a change is searched: it frees memory, or there are few candidates.

    With stages only other precisions are searched: faster products favour other layouts.
    """
    asked = change.problem
    if change.frees_memory:
        return True
    if _has_stages(asked):
        return change.kind == "precision" and estimated_outer(asked) <= _FEW_WITH_STAGES
    return estimated_outer(asked) <= _FEW


def _has_stages(problem: Problem) -> bool:
    return len(launcher_capabilities(problem.launcher).schedules) > 1


def _within(change: Change, seconds: float) -> Change:
    """Return a change with a limit of seconds: CP-SAT seldom proves stages on unlike nodes."""
    options = replace(change.problem.options, time_limit_s=seconds)
    return replace(change, problem=replace(change.problem, options=options))


def has_levers(problem: Problem, answer: Answer) -> bool:
    """Return whether levers are searched: for plans on at most all GPUs, in a mesh or as stages.

    They are ranked by step or energy, or by tokens or hours of a GPU where the first plan uses all GPUs; on
    the fewest nodes, by anything.
    """
    options = problem.options
    if not answer.ranking:
        return False
    one_batch = options.deadline_days is None and not options.batch_sizes
    if options.gpus == "fewest":
        return one_batch and len(problem.cluster.groups) == 1
    by_energy = counts_busy(problem) and one_batch
    by_step = options.objective == "step_time" or (
        options.objective in PER_GPU and not (options.num_nodes or _leaves_idle(problem, answer))
    )
    if problem.places_stages:
        return options.objective == "step_time" and not options.batch_sizes
    return (by_step or by_energy) and not problem.cluster.differs


def in_order(levers: Iterable[Lever]) -> tuple[Lever, ...]:
    """Return the levers worth naming, the best first: one for each kind and set of fields."""
    best = dict[tuple[str, ...], Lever]()
    for one in sorted(levers, key=lambda one: (-one.saves, one.change)):
        if one.saves > worth_of(one.kind):
            best.setdefault((one.kind, *one.settings), one)
    return tuple(best.values())


def worth_of(kind: str) -> float:
    """Return the share of the first plan's time for each token that a change must save to be named."""
    return _WORTH_OF.get(kind, WORTH)


def _under_first(problem: Problem, answer: Answer) -> Problem:
    """Return the request under the launcher and with the batch of the first plan, asked for one plan alone.

    What saves time of a plan that meets a deadline meets it, too. Instead of by tokens or hours of a GPU it
    is ranked by its step, on as many GPUs.
    """
    first = answer.ranking[0]
    own = problem.under(first.launchers[0]) if first.launchers else problem
    options = replace(
        own.options, top_k=1, certify="none", diverse=False, pareto=False, baseline=None,
        deadline_days=None, batch_sizes=(),
    )  # fmt: skip
    work = replace(own.workload, global_batch_size=first.config.global_batch_size)
    if options.objective in PER_GPU:
        limits = (*options.constraints, f"num_gpus == {first.config.num_gpus}")
        options = replace(options, objective="step_time", constraints=limits)
    return _on_few_numbers(replace(own, workload=work, options=options), answer)


def _on_few_numbers(problem: Problem, answer: Answer) -> Problem:
    """Return a request on as many GPUs as the first plan, on all, or on the most that share the batch."""
    own = on_gpus(problem, ())
    if not may_use_fewer(own):
        return problem
    counts, batch = gpu_counts(own), problem.workload.global_batch_size
    replicas = max(size for size in divisors(batch) if size <= counts[0])
    shared = replicas << (counts[0] // replicas).bit_length() - 1  # with tensor ranks or stages
    may = can_start(problem, shared) and allows_nodes_of(problem, shared)
    numbers = {answer.ranking[0].config.num_gpus, *counts, *([shared] if may else [])}
    return problem if numbers == {*counts} else on_gpus(problem, tuple(numbers))


def _leaves_idle(problem: Problem, answer: Answer) -> bool:
    return answer.ranking[0].config.num_gpus < usable_gpus(problem)


def _time_per_token(problem: Problem, config: Configuration, seen: Prediction) -> float:
    return seen.step_time_s / problem.tokens_of(config)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best plan that was found of a changed request."""

    config: Configuration
    prediction: Prediction
    way: Problem  # the changed request under the plan's switches


_Found = tuple[list[_Best], bool]  # the best first, and whether no plan is better
_Find = Callable[[Change], _Found]


def _lever(problem: Problem, answer: Answer, change: Change, best: _Best) -> Lever:
    first, config, seen = answer.ranking[0], best.config, best.prediction
    now_s = _time_per_token(problem, first.config, first.prediction)
    then_s = _time_per_token(change.problem, config, seen)
    return Lever(
        kind=change.kind,
        change=change.words,
        effect=change.effect,
        settings=change.settings,
        config=config,
        step_time_s=seen.step_time_s,
        num_gpus=config.num_gpus,
        gpu_s_per_token=then_s * config.num_gpus,
        peak_memory_bytes=seen.peak_memory_bytes,
        saves=1.0 - then_s / now_s,
    )


def _worth_s(problem: Problem, change: Change, answer: Answer, saved: float = 0.0) -> float:
    """Return the step of a changed request that just saves enough of the first plan's time per token.

    ``saved``: the share that another launcher already saves. The change must save more than both.
    """
    first, work = answer.ranking[0], change.problem.workload
    share = 1.0 - max(worth_of(change.kind), saved)
    per_token = share * _time_per_token(problem, first.config, first.prediction)
    return per_token * work.global_batch_size * work.tokens_per_sequence


# --------------------------------------------------------------------------------------------------
# The changes, those first that are most often worth it. What a request states or allows is none.


def changes_of(problem: Problem) -> Iterator[Change]:
    """Yield the changes that a request leaves to the user, under its own launcher and under others."""
    yield from _precisions(problem)
    yield from _bases(problem)
    yield from _switched(problem)
    yield from _batches(problem)
    yield from _batchings(problem)
    yield from _offload(problem)
    yield from _layouts(problem)
    yield from _launchers(problem)


def _allowing(problem: Problem, word: str) -> Problem:
    options = replace(problem.options, allow=(*problem.options.allow, word))
    return replace(problem, options=options)


def _under(problem: Problem, switch: Switch) -> Iterator[Change]:
    """Yield a switch with the settings that a launcher does not have anyway, and none that those beat."""
    gpus, work = [group.gpu for group in problem.cluster.groups], problem.workload
    facts = with_options(framework_facts(framework_of(problem.priced_as)), work.framework_options)
    able = switch.settings_of(problem.launcher, problem.model, gpus)

    def holds(setting: Setting) -> bool:
        return all(getattr(facts, name) == value for name, value in setting.options.items())

    ways = [
        replace(
            problem,
            workload=replace(work, framework_options={**work.framework_options, **one.options}),
            options=replace(
                problem.options,
                constraints=(*problem.options.constraints, *([one.only] if one.only else ())),
            ),
        )
        for one in able
        if not holds(one) and not any(one.name in other.beats for other in able if holds(other))
    ]
    if ways:
        yield Change(
            kind=switch.name, words=switch.change, effect=switch.effect,
            problem=ways[0], also=tuple(ways[1:]),
            settings={"search.allow": [switch.name]}, frees_memory=switch.frees_memory,
        )  # fmt: skip


def _gradients(problem: Problem) -> Iterator[Change]:
    if problem.workload.precision != "fp32":
        for one in (one for one in left_closed(problem) if one.name == _GRADIENTS):
            yield from (replace(change, kind="gradients") for change in _under(problem, one))


def _states(problem: Problem) -> Iterator[Change]:
    work, able = problem.workload, launcher_capabilities(problem.launcher)
    known = (able.adapter_optimizers if work.lora_rank else ()) or able.optimizers
    if work.optimizer != "adamw":
        return
    for name, words in _STATES.items():
        if name not in problem.options.allow and name in known:
            bits = f"Adam's moments are kept in {8 if '8bit' in name else 16} bits: numerics"
            yield Change(
                kind="optimizer",
                words=words,
                effect=bits if name in STATES else f"weights are updated in 16 bits, and {bits}",
                problem=replace(problem, workload=replace(work, optimizer=name)),
                settings={"workload.optimizer": name},
            )


def _of_fewer_bits(problem: Problem) -> Iterator[Change]:
    """Yield gradients and Adam states of fewer bits, alone and together; the lightest come last."""
    yield from _gradients(problem)
    yield from _states(problem)
    for first in _gradients(problem):
        for second in _states(first.problem):
            allow = [*first.settings.get("search.allow", ())]
            yield Change(
                kind="states",
                words=f"{first.words} and {second.words}",
                effect="gradients and Adam's moments are kept in fewer bits: numerics",
                problem=second.problem,
                settings={"search.allow": allow, **second.settings},
            )


def _precisions(problem: Problem) -> Iterator[Change]:
    work, able = problem.workload, launcher_capabilities(problem.launcher)

    def all_have(precision: str) -> bool:
        return precision in able.precisions and all(
            precision in group.gpu.peak_flops for group in problem.cluster.groups
        )

    recipe = work.framework_options.get("precision_recipe", "none")
    if work.precision in ("fp16", "fp32") and all_have("bf16"):
        changed = replace(problem, workload=replace(work, precision="bf16"))
        effect = f"bf16 instead of {work.precision}: numerics"
        yield Change(
            kind="precision",
            words="bf16",
            effect=effect,
            problem=changed,
            settings={"workload.precision": "bf16"},
        )
    if (
        work.precision == "bf16"
        and "fp8" not in problem.options.allow
        and recipe == "none"
        and all_have("fp8")
    ):
        yield Change(
            kind="precision",
            words="fp8 matrix products",
            effect="matrix products run in 8 bits: numerics",
            problem=replace(problem, workload=with_recipe(work, "fp8", able)),
            settings={"search.allow": ["fp8"]},
        )


_BASES: dict[BasePrecision, int] = {"bf16": 16, "int8": 8, "nf4": 4}  # bits of a frozen weight


def _bases(problem: Problem) -> Iterator[Change]:
    """Yield frozen weights in the other dtypes of ``_BASES``, unless a checkpoint has its own."""
    work, able = problem.workload, launcher_capabilities(problem.launcher)
    storage = storage_of(work.base_precision)
    if not work.lora_rank or (storage and storage.checkpoint):
        return
    for name, bits in _BASES.items():
        if name != work.base_precision and name in able.base_precisions:
            yield Change(
                kind="base_precision",
                words=f"frozen weights in {_written(name)}",
                effect=f"{bits}-bit frozen weights instead of {_written(work.base_precision)}: numerics",
                problem=replace(problem, workload=replace(work, base_precision=name)),
                settings={"workload.base_precision": name},
                frees_memory=name != "bf16",
            )


def _written(base: BasePrecision) -> str:
    return base.replace("nf4", "NF4")


def _switched(problem: Problem) -> Iterator[Change]:
    """Yield the switches that a request must allow by name, and states nothing of."""
    for switch in _offered(problem, problem.options.objective):
        if switch.name != _GRADIENTS:
            yield from _under(problem, switch)
    for switch in _offered(problem, "energy_per_token") if problem.options.max_power_kw else ():
        for change in _under(problem, switch):
            first, *others = map(_on_most, (change.problem, *change.also))
            yield replace(
                change, kind=_POWER, problem=first, also=tuple(others), effect="more GPUs share the power"
            )


_POWER = "power"  # a limit for each GPU, under a limit for all
_NUMBERS = 8  # of GPUs that are tried under each limit


def _on_most(problem: Problem) -> Problem:
    """Return a request on the most GPUs that share its power."""
    own = on_gpus(problem, ())
    every = [*gpu_counts(own), *islice(fewer_gpus(own, 1), _NUMBERS)]
    kept = counts_kept(own, np.array(every))
    return on_gpus(own, tuple(number for number, keeps in zip(every, kept, strict=True) if keeps))


def _offered(problem: Problem, objective: Objective) -> list[Switch]:
    """Return the switches that a request may allow to save what an objective ranks by."""
    return [one for one in left_closed(problem) if one.change and one.objective == objective]


def _saving_energy(problem: Problem, profile: Profile, answer: Answer) -> Iterator[Lever]:
    """Yield the switches that save energy, each found by one search of its settings."""
    first = answer.ranking[0]
    now_s = _score_s(settled_problem(first, problem), profile, first)
    for switch in _offered(problem, problem.options.objective):
        look()
        change = Change(
            kind=switch.name, words=switch.change, effect=switch.effect,
            problem=_allowing(problem, switch.name),
            settings={"search.allow": [switch.name]},
        )  # fmt: skip
        plans, _ = _first_of(_groups_of(change, profile), (1.0 - WORTH) * now_s, with_fewer=False)
        for best in plans[:1]:
            lever = _lever(problem, answer, change, best)
            yield replace(lever, saves=1.0 - _score_s(best.way, profile, best) / now_s)


def _saves_time(problem: Problem) -> bool:
    """Return whether levers of every kind are tried, which save time for each token."""
    return problem.options.gpus == "all" and not counts_busy(problem) and not problem.places_stages


def _without_time_levers(
    problem: Problem, profile: Profile, answer: Answer, *, seconds: float
) -> Iterator[Lever]:
    if problem.places_stages:
        return _rounder_on_unlike_nodes(problem, profile, answer, seconds=seconds)
    if problem.options.gpus == "fewest":
        return _saving_nodes(problem, answer)
    return _saving_energy(problem, profile, answer)


def _rounder_on_unlike_nodes(
    problem: Problem, profile: Profile, answer: Answer, *, seconds: float
) -> Iterator[Lever]:
    """Yield the roundest batch and length nearby for stages on unlike nodes, each by a search."""
    changes = [*_near_batches(problem)[:1], *_near_lengths(problem)[:1]]
    for change in changes:
        look()
        plans, _ = _searched(problem, _within(change, seconds), profile, answer)
        yield from (_lever(problem, answer, change, one) for one in plans[:1])


def _saving_nodes(problem: Problem, answer: Answer) -> Iterator[Lever]:
    """Yield the change of each kind that fits on the fewest nodes, with its configuration of least memory.

    Its step is no shorter than that of the plan which a search finds there. Of several changes the simplest
    counts, and the fastest launcher.
    """
    nodes = -(-answer.ranking[0].config.num_gpus // per_node_of(problem))
    fewer = [count for count in node_counts(problem) if count < nodes][-_FEW_COUNTS:]

    def levers(changes: Iterable[Change]) -> Iterator[Lever]:
        for change in changes if fewer else ():
            look()
            need = first_that_fits([alone_on(change.problem, count) for count in fewer])
            if need is not None and need.fits:
                lever = _lever(problem, answer, change, _Best(need.config, need.prediction, need.problem))
                yield replace(lever, saves=1.0 - need.problem.cluster.num_nodes / nodes)

    for alike in (_of_fewer_bits(problem), _bases(problem), _offload(problem), _of_each_stack(problem)):
        found = [*levers(alike)]
        most = max((one.saves for one in found), default=0.0)
        best = [one for one in found if one.saves == most]
        yield from sorted(best, key=lambda one: (one.kind == "states", one.gpu_s_per_token))[:1]


_FEW_COUNTS = 16  # numbers of nodes that are tried, each in some hundredths of a second


def _score_s(problem: Problem, profile: Profile, plan: Plan | _Best) -> float:
    """Return what ranks a plan under a problem that has its switches."""
    priced = [(plan.config, plan.prediction)]
    return scores_s(problem, profile_of_variant(problem, profile), priced)[0]


_NEAR = 0.25  # of the batch: how far a neighbour that divides better may be


def _batches(problem: Problem) -> Iterator[Change]:
    work, gpus = problem.workload, usable_gpus(problem)
    batch = work.global_batch_size
    if "num_microbatches" in problem.options.named:
        return
    near = (batch // gpus * gpus, -(-batch // gpus) * gpus)
    searched = (batch, *rounder(batch))  # what is asked, and its neighbours
    sizes = [*(size for size in near if size and abs(size - batch) <= _NEAR * batch), 2 * batch]
    for size in (size for size in sizes if size not in searched):
        yield Change(
            kind="batch",
            words=f"a global batch of {size}",
            effect="another number of sequences in each step: results",
            problem=_with_batch(problem, size),
            settings={"workload.global_batch_size": size},
        )


def _with_batch(problem: Problem, size: int) -> Problem:
    """Return the request with another batch size, which may also use proportionally more GPUs."""
    own = replace(problem, workload=replace(problem.workload, global_batch_size=size))
    numbers, times = problem.options.num_gpus, size / problem.workload.global_batch_size
    more = (round(number * times) for number in numbers if number * times <= usable_gpus(problem))
    return on_gpus(own, tuple(dict.fromkeys((*numbers, *more))))


_REACH = 16  # a neighbour is at most one part in so many away, and at least 1 may be


def rounder(number: int) -> list[int]:
    """Return the numbers near to one that more powers of two divide, the roundest first, then by distance.

    Parallel sizes divide a batch and a length, and nothing else of their value matters to a layout: where a
    number is no rounder, it has no layout on as many GPUs that its neighbour lacks.
    """
    reach, twos = max(1, number // _REACH), number & -number
    found = dict[int, int]()
    while twos <= number:
        twos *= 2
        nearest = (number + twos // 2) // twos * twos
        if nearest and abs(nearest - number) <= reach:
            found[nearest] = twos
    roundest = max(found, key=lambda one: (found[one], -abs(one - number)), default=None)
    return sorted(found, key=lambda one: (one != roundest, abs(one - number)))


def _neighbours(problem: Problem, profile: Profile, answer: Answer, find: _Find) -> Iterator[Lever]:
    """Yield the nearest batch and the nearest length that train enough faster, each found by a search.

    One counts where it saves as much as any, within what a change is worth naming for. The roundest one is
    asked first: where it does not save enough, no nearer one does, unless GPUs are left idle: 14 sequences
    are 14 replicas. Where ``find`` proves nothing, the best plan nearby counts.
    """
    work, idle = problem.workload, _leaves_idle(problem, answer)
    own = {"workload.global_batch_size": work.global_batch_size, "workload.seq_length": work.seq_length}

    def lever_of(change: Change) -> Iterator[Lever]:
        plans = _far(problem, change, profile, answer, find)
        yield from (_lever(problem, answer, change, one) for one in plans[:1])

    def distance(lever: Lever) -> int:
        return sum(abs(int(lever.settings[path]) - own[path]) for path in lever.settings)

    for changes in (_near_lengths(problem), _near_batches(problem)):  # lengths take less work
        found, most = list[Lever](), 0.0
        for change in changes:
            look()
            found += lever_of(change)
            most = max((one.saves for one in found), default=0.0)
            if not idle and (not found or (len(found) > 1 and found[-1].saves >= most - WORTH)):
                break
        yield from sorted((one for one in found if one.saves >= most - WORTH), key=distance)[:1]


def _near_batches(problem: Problem) -> list[Change]:
    work = problem.workload
    if "num_microbatches" in problem.options.named:
        return []
    return [
        Change(
            kind="neighbour",
            words=f"a global batch of {size}",
            effect=f"{abs(size - work.global_batch_size)} sequences "
            f"{'fewer' if size < work.global_batch_size else 'more'} in each step: results",
            problem=on_gpus(replace(problem, workload=replace(work, global_batch_size=size)), ()),
            settings={"workload.global_batch_size": size},
        )
        for size in rounder(work.global_batch_size)
    ]


def _near_lengths(problem: Problem) -> list[Change]:
    work, most = problem.workload, problem.model.max_position_embeddings
    if work.lengths is not None or work.images_per_sample:
        return []
    return [
        Change(
            kind="neighbour",
            words=f"sequences of {length} tokens",
            effect=f"sequences are {'shorter' if length < work.seq_length else 'longer'}: results",
            problem=replace(problem, workload=replace(work, seq_length=length)),
            settings={"workload.seq_length": length},
        )
        for length in rounder(work.seq_length)
        if not most or length <= max(most, work.seq_length)
    ]


_BATCHINGS: dict[Batching, tuple[str, str]] = {
    "packing": ("packed sequences", "several documents in a sequence, more of them in a step: results"),
    "padding": ("padded sequences", "one document in a sequence: results"),
    "padding_to_longest": (
        "sequences as long as their micro-batch needs",
        "one document in a sequence: results",
    ),
}


def _batchings(problem: Problem) -> Iterator[Change]:
    """Yield the other batchings. Some launchers pack only with a micro-batch size of 1."""
    work, able = problem.workload, launcher_capabilities(problem.launcher)
    for batching, (words, effect) in _BATCHINGS.items():
        if work.lengths is not None and batching != work.lengths.batching and batching in able.batchings:
            lengths = replace(work.lengths, batching=batching)
            yield Change(
                kind="batching",
                words=words,
                effect=effect,
                problem=replace(problem, workload=replace(work, lengths=lengths)),
                settings={"workload.lengths.batching": batching},
            )


def _offload(problem: Problem) -> Iterator[Change]:
    able, options = launcher_capabilities(problem.launcher), problem.options
    if "offload" in options.allow or "offload" in limited_by(problem) or len(able.offload) == 1:
        return
    yield Change(
        kind="offload",
        words="CPU offload",
        effect="",
        problem=_allowing(problem, "offload"),
        settings={"search.allow": ["offload"]},
    )


_LAYOUTS = {
    STANDALONE_STAGES: "a separate stage for the embedding or the head",
    WEIGHT_SHARDS: "weights sharded over data-parallel ranks",
    CONTEXT_MODE: "hierarchical context parallelism",
}


def _layouts(problem: Problem) -> Iterator[Change]:
    """Yield the layouts that a request must allow by name, and that its launcher has."""
    able, allow = launcher_capabilities(problem.launcher), problem.options.allow
    opened = dict[str, Problem]()
    for changed in standing_alone(_allowing(problem, STANDALONE_STAGES)):
        opened[STANDALONE_STAGES] = replace(changed, options=replace(changed.options, allow=allow))
    if not weight_shard_obstacle(problem, able):
        opened[WEIGHT_SHARDS] = _allowing(problem, WEIGHT_SHARDS)
    if not HIERARCHICAL.keys().isdisjoint(able.context_parallel_modes):
        opened[CONTEXT_MODE] = _allowing(problem, CONTEXT_MODE)
    for name, changed in opened.items():
        if name not in allow and usable_gpus(problem) > 1:
            yield Change(
                kind=name, words=_LAYOUTS[name], effect="", problem=changed,
                settings={"search.allow": [name]},
            )  # fmt: skip


_TARGETS = "workload.lora_targets"


def _launchers(problem: Problem) -> Iterator[Change]:
    for other in other_launchers(problem):
        here, there = (_reduced_in(one) for one in (problem, other))
        effect, settings = "", dict[str, Any](launcher=other.launcher)
        if other.workload.lora_targets != problem.under(other.launcher).workload.lora_targets:
            effect, settings[_TARGETS] = "all linear layers have adapters: results", [*ALL_LINEAR]
        elif here != there:
            effect = f"gradients are summed in {there}, not in {here}: numerics"
        yield Change(
            kind="launcher",
            words=f"launcher {other.launcher}",
            effect=effect,
            problem=other,
            settings=settings,
        )


def _alone(problem: Problem, profile: Profile, answer: Answer, *, seconds: float) -> Iterator[Lever]:
    """Yield what one of unlike node groups saves alone, each by a search of at most so many seconds."""
    if problem.cluster.is_homogeneous:
        return
    from meshwright.solver.explain.remedies import groups_alone  # noqa: PLC0415 - for unlike nodes alone

    for one in groups_alone(problem, profile):
        look()
        change = Change(
            kind=one.kind, words=one.words, effect="", problem=one.problem, settings=one.settings
        )
        plans, _ = _searched(problem, _within(change, seconds), one.profile, answer)
        if plans:
            yield _lever(problem, answer, change, plans[0])


def _of_launchers(problem: Problem, profile: Profile, answer: Answer, *, looks: int) -> Iterator[Lever]:
    """Yield the levers of other launchers; those that change results hide none that does not."""
    launchers = _of_each_stack(problem)
    for on_all in (False, True):
        some = [one for one in launchers if (_TARGETS in one.settings) == on_all]
        yield from _of_launcher(problem, some, profile, answer, WorkWatch(looks=looks))


def _of_launcher(
    problem: Problem,
    launchers: Sequence[Change],
    profile: Profile,
    answer: Answer,
    searches: WorkWatch,
) -> Iterator[Lever]:
    """Yield the levers of some other launchers, each saving more than the one before.

    Launchers with low bounds come first, so that their plans refute later ones. One that is not searched is
    tried near the first plan and near the fastest plan before. If it saves most, it is searched last. If
    none saves, the preferred launcher is searched.
    """
    of_stacks = [replace(one, problem=_on_few_numbers(one.problem, answer)) for one in launchers]
    saved, best, far, idle = 0.0, None, set[str](), _leaves_idle(problem, answer)
    turns, known = _in_turn(of_stacks, profile), list[Configuration]()
    for at, turn in enumerate(turns):
        look()
        change, limit_s = turn.change, _worth_s(problem, turn.change, answer, saved)
        if turn.bound_s > limit_s:
            far.add(change.problem.launcher)
            continue
        plans, proved = list[_Best](), False
        if (at == 0 and turn.bound_s > 0.0) or turn.has_few:
            far.add(change.problem.launcher)
            plans, proved = _proved_of(turn.groups, limit_s, searches, with_fewer=idle, passes=turn.passes)
        if not proved:
            plans = _near(problem, change, profile, answer, saved=saved, known=known)
        for plan in plans[:1]:
            lever = _lever(problem, answer, change, plan)
            saved, best, known = lever.saves, None if proved else change, [plan.config]
            yield lever
    if of_stacks and not saved and of_stacks[0].problem.launcher not in far:
        best = of_stacks[0]
    if best is not None:
        plans, _ = _proved(problem, best, profile, answer, searches)
        yield from (_lever(problem, answer, best, plan) for plan in plans[:1])


def _of_each_stack(problem: Problem) -> list[Change]:
    """Return the launchers to try: of each framework the preferred one."""
    found = dict[str, Change]()
    for one in _launchers(problem):
        if not one.problem.places_stages:
            found.setdefault(launcher_capabilities(one.problem.launcher).framework, one)
    return [*found.values()]


_FEW_STAGED = 2000  # candidates with stages, over all settings of switches: a search takes about 0.1 s
_FEW_BOUNDED = 5000  # candidates under each setting, where there are no stages or passes have a bound


@dataclass(frozen=True, slots=True)
class _Turn:
    """Another launcher, and what the passes of its usual candidates take at least."""

    change: Change
    groups: list[list[Variant]]
    passes: list[LeastPasses]  # of each group

    @property
    def bound_s(self) -> float:
        """Return a lower bound on the step of its usual candidates; 0: none is known."""
        return min(each.least_gpu_s for each in self.passes) / usable_gpus(self.change.problem)

    @property
    def has_few(self) -> bool:
        """Return whether so few candidates are searched whatever their bound."""
        outer, staged = estimated_outer(self.change.problem), _has_stages(self.change.problem)
        if staged and outer * sum(map(len, self.groups)) <= _FEW_STAGED:
            return True
        return (self.bound_s > 0.0 or not staged) and outer <= _FEW_BOUNDED


def _in_turn(changes: Sequence[Change], profile: Profile) -> list[_Turn]:
    """Return the launchers, that with the lowest bound first; those without a bound come last."""
    turns = list[_Turn]()
    for change in changes:
        look()
        groups, passes = _groups_of(change, profile), list[LeastPasses]()
        for first, *others in groups:
            ways = [one.problem for one in others]
            passes.append(least_passes(first.problem, first.profile, ways, wide=False))
        turns.append(_Turn(change, groups, passes))
    return sorted(turns, key=lambda turn: turn.bound_s or inf)


def _reduced_in(problem: Problem) -> str:
    facts = framework_facts(framework_of(problem.priced_as))
    facts = with_options(facts, problem.workload.framework_options)
    return facts.reduced_gradient_dtype or facts.gradient_dtype


def other_launchers(problem: Problem) -> Iterator[Problem]:
    """Yield the question under every other launcher that can express it and may be faster.

    Of the launchers with the same stack it yields those preferred to its own, and those that place stages
    on unlike nodes. One that has no name for the layers with adapters has them on all linear layers.
    """
    own = launcher_capabilities(problem.launcher)
    options = replace(
        problem.options, top_k=1, certify="none", diverse=False, pareto=False, baseline=None
    )  # fmt: skip
    if problem.launcher in ("none", "any"):
        return
    names = preferred(problem)[1]
    better = names[: names.index(problem.launcher)]
    for name in names:
        able, other = launcher_capabilities(name), replace(problem.under(name), options=options)
        places = other.places_stages and not problem.places_stages
        alike = able.framework == own.framework and name not in better and not places
        if name in ("none", problem.launcher) or alike:
            continue
        able_ones = (
            one for one in (other, _adapting_all(other)) if next(launcher_faults(one, name), None) is None
        )
        yield from islice(able_ones, 1)


def _adapting_all(problem: Problem) -> Problem:
    """Return a request with adapters on all linear layers, if it has any, by its launcher's names."""
    work, able = problem.workload, launcher_capabilities(problem.launcher)
    if not work.lora_rank:
        return problem
    return replace(problem, workload=replace(work, lora_targets=able.targets_of(problem.model, ALL_LINEAR)))


# --------------------------------------------------------------------------------------------------
# The best plan near to what is known, under a changed request.


_ROUNDS, _BEAM, _LAST = 3, 2, 3  # of moves, from so many configurations each; plans that are predicted
_HOPELESS = 1.15  # times as slow at first as what is to be beaten: nothing near is faster
_UNCERTAIN = 0.03  # of a step: what the simulation may add to the closed form, or take off it


def _near(
    problem: Problem,
    change: Change,
    profile: Profile,
    answer: Answer,
    *,
    saved: float = 0.0,
    known: Sequence[Configuration] = (),
) -> list[_Best]:
    """Return the plans of ``_nearby`` for one change."""
    (plans,) = _nearby(problem, [change], profile, answer, saved=saved, known=known)
    return plans


def _nearby(
    problem: Problem,
    changes: Sequence[Change],
    profile: Profile,
    answer: Answer,
    *,
    saved: float = 0.0,
    known: Sequence[Configuration] = (),
) -> list[list[_Best]]:
    """Return for each change plans near to the first one and to those known, the best first.

    ``saved``: as in ``_worth_s``.
    """
    every, rounds = list[list[_Descent]](), list[_Round]()
    for change in changes:
        look()
        every.append([])
        for changed in (change.problem, *change.also):
            ways = _ways(changed, answer)
            starts = _starts(problem, changed, answer, known) if ways else []
            for way in ways:
                one = _Descent(way=way, profile=profile_of_variant(way, profile), rules=rules_of(way))
                every[-1].append(one)
                rounds.append(_Round(one, starts[:1], starts))
    _move_on(rounds)
    leading = list(map(_leading, every))
    limits = [_worth_s(problem, change, answer, saved) for change in changes]
    for _ in range(1, _ROUNDS):
        _move_on(
            _Round(one, one.beam(most_s))
            for some, most_s in zip(leading, limits, strict=True)
            for one in some
        )
    found = list[list[_Best]]()
    for change, some, most_s in zip(changes, leading, limits, strict=True):
        plans = [plan for one in some for plan in one.plans(most_s)]
        each = [_time_per_token(change.problem, one.config, one.prediction) for one in plans]
        found.append([plans[at] for at in np.argsort(each, kind="stable")])
    return found


def _with_ends_alone(problem: Problem, change: Change, profile: Profile, answer: Answer) -> list[_Best]:
    """Return the fastest plan on the meshes of all plans, with any number of chunks and any split.

    An end of the model alone favours other numbers of chunks, and only the best split shows it. A plan that
    does not save enough is not sought.
    """
    changed, within_s = change.problem, _worth_s(problem, change, answer)
    alone = sum(launcher_capabilities(changed.launcher).alone(changed.model))
    layers, found = changed.model.num_layers, list[_Best]()
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
            found.append(_Best(plan.config, plan.prediction, way))
    return found


def _ways(problem: Problem, answer: Answer) -> list[Problem]:
    """Return the changed request under the switches of the first plan, and under the launcher's own."""
    work, found = problem.workload, list[Problem]()
    own = framework_facts(framework_of(problem.priced_as))
    for one in (with_changes(work, switches_of(answer.ranking[0])).framework_options, {}):
        options = {**one, **work.framework_options}
        way = replace(problem, workload=replace(work, framework_options=options))
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
    numbers = dict.fromkeys((first.num_gpus, *changed.options.num_gpus, usable_gpus(changed)))
    replicated = [_with_replicas(first, num_gpus) for num_gpus in numbers]
    chunked = _chunked(first, changed.model.num_layers)
    own = [settle(changed, one) for one in (*replicated, *chunked, *known) if not one.stage_groups]
    configs = [one for one in own if one is not None]
    configs += [one for num_gpus in numbers for one in usual_meshes(changed, num_gpus)]
    opened = {*changed.options.allow}.difference(problem.options.allow)
    if "offload" in opened:
        configs = [replace(one, offload=place) for place in able.offload for one in configs]
    if CONTEXT_MODE in opened:
        split = [one for one in configs if one.context_parallel_size > 1]
        configs = [replace(one, context_parallel_mode=mode) for mode in HIERARCHICAL for one in split]
    return list(dict.fromkeys(configs))


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
    """Return a configuration with as many replicas as fill so many GPUs; as it is where none do."""
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
    known: dict[Configuration, _Seen] = field(default_factory=dict)
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
        new = [one for one in dict.fromkeys((*fresh, *moves)) if one not in self.known]
        self.known |= dict.fromkeys(new, _ILLEGAL)
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
        able = [one for one, seen in self.known.items() if seen.fits == fits and seen.step_s < inf]
        return sorted(able, key=lambda one: self.known[one].step_s)[:most]

    def least_s(self, *, fits: bool) -> float:
        """Return the step of the fastest configuration that was seen; inf: none."""
        return min((one.step_s for one in self.known.values() if one.fits == fits), default=inf)

    def plans(self, most_s: float) -> Iterator[_Best]:
        """Yield legal plans that fit and step within ``most_s``."""
        near_s, best = (1.0 + _UNCERTAIN) * most_s, self.fastest(fits=True, most=_LAST)
        last = [one for one in best if self.known[one].step_s <= near_s]
        found = evaluate(self.way, self.profile, last, with_spread=True) if last else []
        last = [one.config for one in found if one.step_s() <= most_s]
        faults = violations_of_all(self.way, self.profile, last) if last else []
        right = [one for one, broken in zip(last, faults, strict=True) if not broken]
        seen = predict_all(self.way, self.profile, right) if right else []
        for config, prediction in zip(right, seen, strict=True):
            yield _Best(config, prediction, self.way)


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
            descents[at].known[config] = _Seen(step_s, able)


def _leading(descents: Sequence[_Descent]) -> list[_Descent]:
    """Return the descents that no other one beats both in what fits and in what does not."""
    ahead = list[_Descent]()
    for one in sorted(descents, key=lambda one: (one.least_s(fits=True), one.least_s(fits=False))):
        if not ahead or one.least_s(fits=False) < min(other.least_s(fits=False) for other in ahead):
            ahead.append(one)
    return ahead


def _lighter(problem: Problem, profile: Profile, answer: Answer, searches: WorkWatch) -> Iterator[Lever]:
    """Yield the gradients and Adam states of fewer bits that save enough.

    They leave more room and take no longer, so that one search of all of them together refutes each whose
    rows are legal with all: Megatron-LM keeps Adam's moments in 16 bits under ZeRO stage 1 alone. A change
    under which the best plan of all together still fits and takes as long is named with that plan: only
    rows that are illegal with all could be faster. They are named together where that saves more than the
    better one alone by ``WORTH``.
    """
    changes = list(_of_fewer_bits(problem))
    if not changes:
        return
    lightest, saved, idle = changes[-1], 0.0, _leaves_idle(problem, answer)
    rows = same_rows(lightest.problem)
    plans, proved = _proved(problem, lightest, profile, answer, searches)
    refuted = proved and not plans
    if not proved:
        plans = _near(problem, lightest, profile, answer)
    for change in changes[:-1]:
        look()
        if refuted and same_rows(change.problem) == rows:
            continue
        near = _under_fewer_bits(change, lightest, plans[0], profile) if proved and plans else []
        limit_s = min([_worth_s(problem, change, answer), *(one.prediction.step_time_s for one in near)])
        alike_s = (1.0 + _ALIKE) * plans[0].prediction.step_time_s if plans else 0.0
        if not near or near[0].prediction.step_time_s > min(limit_s, alike_s):
            groups = _around(problem, change, profile, answer, plans=plans[:1])
            found, known = _proved_of(groups, (1.0 + _ROUNDING) * limit_s, searches, with_fewer=idle)
            near = found or near if known else _near(problem, change, profile, answer)
        for best in near[:1]:
            lever = _lever(problem, answer, change, best)
            saved = max(saved, lever.saves)
            yield lever
    for best in plans[:1]:
        lever = _lever(problem, answer, lightest, best)
        if lever.saves > saved + WORTH:
            yield lever


_ALIKE = 1e-3  # of a step: as long as
_ROUNDING = 1e-6  # of a step: what is as long counts as within


def _under_fewer_bits(change: Change, lightest: Change, best: _Best, profile: Profile) -> list[_Best]:
    """Return the best plan of the lightest change under this one; nothing if it is illegal or too large."""
    work, more = change.problem.workload, lightest.problem.workload.framework_options
    own = best.way.workload.framework_options.items()
    options = {name: value for name, value in own if name in work.framework_options or name not in more}
    way = replace(best.way, workload=replace(work, framework_options=options))
    own_profile = profile_of_variant(way, profile)
    if violations_of_all(way, own_profile, [best.config])[0]:
        return []
    (seen,) = predict_all(way, own_profile, [best.config])
    return [_Best(best.config, seen, way)]


_RECOMPUTED = "recompute_modules"
_SIZES = (
    "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "expert_parallel_size",
    "micro_batch_size",
)  # fmt: skip


def _around(
    problem: Problem, change: Change, profile: Profile, answer: Answer, *, plans: Sequence[_Best]
) -> list[list[Variant]]:
    """Return what to search for plans with sizes near those of the first plan and of ``plans``.

    They are at most twice and at least half as large. The switches are those of these plans. Recomputation
    stays open, since the change behind ``plans`` may free more memory.
    """
    own, options = with_changes(problem.workload, switches_of(answer.ranking[0])), change.problem.options
    ways = [own, *(one.way.workload for one in plans)]
    open_ = {name for one in searched_switches(change.problem) for name in switches()[one].options}

    def chosen(work: Workload) -> dict[str, Any]:
        return {name: work.framework_options.get(name) for name in open_ - {_RECOMPUTED}}

    configs, box = [answer.ranking[0].config, *(one.config for one in plans)], list[str]()
    for name in _SIZES:
        sizes = [getattr(one, name) for one in configs]
        box += (f"{min(sizes)} <= 2 * {name}", f"{name} <= {2 * max(sizes)}")
    options = replace(options, constraints=(*options.constraints, *box), usual=True)
    boxed = replace(change, problem=replace(change.problem, options=options))
    known, groups = [chosen(one) for one in ways], _groups_of(boxed, profile)
    of_known = ([one for one in some if chosen(one.problem.workload) in known] for some in groups)
    return [some for some in of_known if some]


# --------------------------------------------------------------------------------------------------
# Every change, searched; and plans of the answer that need a package.


def every_lever(problem: Problem, profile: Profile, answer: Answer, watch: Watch) -> tuple[Lever, ...]:
    """Return all changes that save enough to be named, each with the best plan of its own search."""
    if not has_levers(problem, answer):
        return ()
    own, found = _under_first(problem, answer), list[Lever]()
    with watch.cut():
        if not _saves_time(own):
            return in_order(_without_time_levers(own, profile, answer, seconds=own.options.time_limit_s))
        for change in (*_of_fewer_bits(own), *changes_of(own)):
            look()
            plans, _ = _searched(own, change, profile, answer)
            found += [_lever(own, answer, change, best) for best in plans[:1]]
        found += _alone(own, profile, answer, seconds=own.options.time_limit_s)
        find = partial(_searched, own, profile=profile, answer=answer)
        found += _relaid(own, answer, [*_published(own, profile, answer)], find)
        found += _neighbours(own, profile, answer, find)
    found = [*_without_batches(problem, [*found, *_packaged(problem, answer)])]
    every = [one for one in found if one.saves > worth_of(one.kind)]
    return tuple(sorted(every, key=lambda one: (-one.saves, one.change)))


def _searched(problem: Problem, change: Change, profile: Profile, answer: Answer) -> _Found:
    """Return the first plans of a changed request that save enough to be named."""
    groups, idle = _groups_of(change, profile), _leaves_idle(problem, answer)
    return _first_of(groups, _worth_s(problem, change, answer), with_fewer=idle)


def _proved(
    problem: Problem,
    change: Change,
    profile: Profile,
    answer: Answer,
    searches: WorkWatch,
) -> _Found:
    """Return the same within limited work, and no plan where it is not proved."""
    limit_s, idle = _worth_s(problem, change, answer), _leaves_idle(problem, answer)
    return _proved_of(_groups_of(change, profile), limit_s, searches, with_fewer=idle)


def _proved_of(
    groups: Sequence[Sequence[Variant]],
    limit_s: float,
    searches: WorkWatch,
    *,
    with_fewer: bool,
    passes: Sequence[LeastPasses] = (),
) -> _Found:
    """Return what ``_first_of`` finds within limited work, and no plan where it is not proved.

    How soon such a plan is found depends on the machine.
    """
    plans, proved = list[_Best](), False
    with searches.cut():
        if not any(is_too_large(group[0].problem) for group in groups):  # a sample proves nothing
            plans, proved = _first_of(groups, limit_s, with_fewer=with_fewer, passes=passes)
    return (plans, True) if proved and not searches.interrupted() else ([], False)


def _within_power(
    problem: Problem, change: Change, profile: Profile, answer: Answer, searches: WorkWatch
) -> list[_Best]:
    """Return the best plans under a limit for each GPU, on the numbers of GPUs of the change."""
    limit_s = _worth_s(problem, change, answer)
    with searches.cut():
        plans, _ = _first_of(_groups_of(change, profile), limit_s, with_fewer=False)
        return plans
    return _near(problem, change, profile, answer)


def _groups_of(change: Change, profile: Profile) -> list[list[Variant]]:
    groups = list[list[Variant]]()
    for changed in (change.problem, *change.also):
        variants, _ = searchable(variants_of(changed, profile_of_variant(changed, profile)))
        groups += searched_together(variants)
    return groups


def _first_of(
    groups: Sequence[Sequence[Variant]],
    limit_s: float,
    *,
    with_fewer: bool,
    passes: Sequence[LeastPasses] = (),
) -> _Found:
    """Return the fastest plans within a limit, of the group with the fastest; and whether it is proved.

    On all GPUs, or ``with_fewer`` on fewer as well. ``passes``: of each group's usual candidates.
    """
    plans, proved = list[_Best](), bool(groups)
    for every, own in zip_longest(groups, passes):
        group, least_s = every, None
        if own is not None and len(own.sizes) and not are_few(every[0].problem):
            group, least_s = _among_usual(every), own.step_s
        first, *others = group
        found = search(
            first.problem, first.profile, ways=[one.problem for one in others],
            rivals=Rivals(limit_s, limit_s, least_s=least_s), proved=with_fewer,
        )  # fmt: skip
        proved = proved and found.status in ("optimal", "infeasible")
        if found.plans:
            by, best = found_by(group), found.plans[0]
            limit_s = score_of(by(best), best)
            plans = [_Best(one.config, one.prediction, by(one).problem) for one in found.plans]
    return plans, proved


def _among_usual(variants: Sequence[Variant]) -> list[Variant]:
    """Return variants that are searched among their usual candidates alone."""
    return [
        replace(one, problem=replace(one.problem, options=replace(one.problem.options, usual=True)))
        for one in variants
    ]


def _published(problem: Problem, profile: Profile, answer: Answer) -> Iterator[tuple[Lever, Change]]:
    """Yield the fastest published recipe, if it is faster than the first plan, with what it asks for.

    In the request's precision; where none is published in bf16, in 8 bits.
    """
    own, first = problem.workload.precision, answer.ranking[0]
    per_token_s = _time_per_token(problem, first.config, first.prediction)
    within_s = per_token_s * problem.workload.global_batch_size * problem.workload.tokens_per_sequence
    other = own == "bf16" and not has_recipes(problem, own)
    one = fastest_recipe(problem, profile, precision="fp8" if other else own, within_s=within_s)
    if one is not None:
        change = Change(
            kind="recipe",
            words=f"{one.name}{f' ({in_words(one.needs)})' if one.needs else ''}",
            effect=one.effect,
            problem=one.asked(problem),
            settings=one.settings,
        )
        lever = _lever(problem, answer, change, _Best(one.config, one.prediction, one.problem))
        if lever.saves > WORTH_OF_A_RECIPE:
            yield lever, change


def _relaid(
    problem: Problem, answer: Answer, recipes: Sequence[tuple[Lever, Change]], find: _Find
) -> Iterator[Lever]:
    """Yield recipes with the plan of a search, which their settings give; else with their own layout."""
    for lever, change in recipes:
        look()
        plans, _ = find(change)
        yield _lever(problem, answer, change, plans[0]) if plans else lever


def _packaged(problem: Problem, answer: Answer) -> Iterator[Lever]:
    """Yield the plans behind the ranking as levers: they need a package that the request does not allow."""
    for plan in answer.plans:
        if not plan.ranked and plan.needs:
            change = Change(
                kind="package",
                words=" and ".join(plan.needs),
                effect="not in a stock installation",
                problem=problem,
                settings={"search.allow": [EVERY_SWITCH]},
            )
            yield _lever(problem, answer, change, _Best(plan.config, plan.prediction, problem))
