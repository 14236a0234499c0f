"""Other dtypes: of products, frozen weights, gradients and Adam states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import Profile
from meshwright.profiles.storage import BasePrecision, storage_of
from meshwright.profiles.switches import switches
from meshwright.solver.answer import Answer, Lever
from meshwright.solver.check import violations_of_all
from meshwright.solver.clock import WorkWatch, look
from meshwright.solver.explain.reference import switches_of
from meshwright.solver.planner.levers.change import (
    ROUNDING,
    WORTH,
    Best,
    Change,
    as_lever,
    likely_if_idle,
    worth_s,
)
from meshwright.solver.planner.levers.nearby import plans_near
from meshwright.solver.planner.levers.searched import first_proved, groups_of, is_small, proved_plans
from meshwright.solver.planner.levers.switches import GRADIENTS, under_switch
from meshwright.solver.planner.recipes import STATES
from meshwright.solver.planner.variants import Variant
from meshwright.solver.predict import predict_all, profile_of_variant
from meshwright.solver.problem import (
    Problem,
    Workload,
    among_usual,
    left_closed,
    searched_switches,
    with_changes,
)
from meshwright.solver.space.launcher_rules import with_recipe
from meshwright.solver.space.rules import rules_of

_STATES = {  # the last two keep no FP32 master weights
    **STATES,
    "adamw-pure-bf16": "16-bit weights and Adam states",
    "adamw-8bit-bf16": "16-bit weights and 8-bit Adam states",
}


def _gradients(problem: Problem) -> Iterator[Change]:
    for switch in left_closed(problem) if problem.workload.precision != "fp32" else ():
        if switch.name == GRADIENTS:
            yield from (replace(change, kind="gradients") for change in under_switch(problem, switch))


def _states(problem: Problem) -> Iterator[Change]:
    work, able = problem.workload, launcher_capabilities(problem.launcher)
    known = (able.adapter_optimizers if work.lora_rank else ()) or able.optimizers
    if work.optimizer != "adamw":
        return
    for name, words in _STATES.items():
        if name not in problem.options.allow and name in known:
            effect = f"Adam's moments are kept in {8 if '8bit' in name else 16} bits: numerics"
            yield Change(
                kind="optimizer",
                words=words,
                effect=effect if name in STATES else f"weights are updated in 16 bits, and {effect}",
                problem=replace(problem, workload=replace(work, optimizer=name)),
                settings={"workload.optimizer": name},
            )


def of_fewer_bits(problem: Problem) -> Iterator[Change]:
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


def precisions(problem: Problem) -> Iterator[Change]:
    """Yield 16 bits instead of others, and products in 8 bits."""
    work, able = problem.workload, launcher_capabilities(problem.launcher)

    def all_have(precision: str) -> bool:
        return precision in able.precisions and all(
            precision in group.gpu.peak_flops for group in problem.cluster.groups
        )

    recipe = work.framework_options.get("precision_recipe", "none")
    if work.precision in ("fp16", "fp32") and all_have("bf16"):
        yield Change(
            kind="precision",
            words="bf16",
            effect=f"bf16 instead of {work.precision}: numerics",
            problem=replace(problem, workload=replace(work, precision="bf16")),
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
            settings={"workload.precision": "fp8"} if problem.places_stages else {"search.allow": ["fp8"]},
            moves_switches=True,  # faster products leave less time to hide what the switches hide
        )


_BASES: dict[BasePrecision, int] = {"bf16": 16, "int8": 8, "nf4": 4}  # bits of a frozen weight


def bases(problem: Problem) -> Iterator[Change]:
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
                moves_memory=True,
            )


def _written(base: BasePrecision) -> str:
    return base.replace("nf4", "NF4")


def lighter(problem: Problem, profile: Profile, answer: Answer, searches: WorkWatch) -> Iterator[Lever]:
    """Yield the gradients and Adam states of fewer bits that save enough.

    They leave more room and take no longer, so that one search of all of them together refutes each whose
    rows are legal with all: Megatron-LM keeps Adam's moments in 16 bits under ZeRO stage 1 alone. Where the
    best plan of all together still fits under a change and takes as long, only rows that are illegal with
    all are searched. Changes are named together where that saves more than the better one alone by
    ``WORTH``.
    """
    changes = list(of_fewer_bits(problem))
    if not changes:
        return
    lightest, saved = changes[-1], 0.0
    plans, proved = proved_plans(problem, lightest, profile, answer, searches)
    refuted = proved and not plans
    if not proved:
        plans = plans_near(problem, lightest, profile, answer)
    for change in changes[:-1]:
        look()
        more = _legal_under(change, lightest)
        if refuted and not more:
            continue
        near = _under_fewer_bits(change, lightest, plans[0], profile) if proved and plans else []
        limit_s = min([worth_s(problem, change, answer), *(one.prediction.step_time_s for one in near)])
        least_s = plans[0].prediction.step_time_s if proved and plans else 0.0
        as_long = bool(near) and near[0].prediction.step_time_s <= min(limit_s, (1.0 + _ALIKE) * least_s)
        if more or not as_long:
            limits = more if as_long else ()
            if is_small(change.problem):
                groups = groups_of(_limited(change, limits), profile)
            else:
                groups = _around(problem, change, profile, answer, plans=plans[:1], limits=limits)
            likely = likely_if_idle(problem, change, answer)
            found, known = first_proved(groups, (1.0 + ROUNDING) * limit_s, searches, likely=likely)
            near = found or near if known else plans_near(problem, change, profile, answer)
        for best in near[:1]:
            close = best.prediction.step_time_s <= (1.0 + WORTH) * least_s
            sure = best.proved and (is_small(change.problem) or (close and not more))
            lever = as_lever(problem, answer, change, replace(best, proved=sure))
            saved = max(saved, lever.saves)
            yield lever
    for best in plans[:1]:
        lever = as_lever(problem, answer, lightest, best)
        if lever.saves > saved + WORTH:
            yield lever


def worth_both(levers: Sequence[Lever]) -> list[Lever]:
    """Return levers, states and gradients together only where that saves more than either by ``WORTH``."""
    alone = max((one.saves for one in levers if one.kind in ("gradients", "optimizer")), default=0.0)
    return [one for one in levers if one.kind != "states" or one.saves > alone + WORTH]


_ALIKE = 1e-3  # of a step: as long as


def _legal_under(change: Change, lightest: Change) -> tuple[str, ...]:
    """Return the limit to rows that the lightest change alone forbids; (): it forbids none."""
    own = {(rule.name, rule.reason) for rule in rules_of(change.problem)}
    forbidding = [one for one in rules_of(lightest.problem) if (one.name, one.reason) not in own]
    if not forbidding:
        return ()
    allowed = " and ".join(f"({form})" for rule in forbidding for form in rule.form)
    return (f"not ({allowed})",)


def _under_fewer_bits(change: Change, lightest: Change, best: Best, profile: Profile) -> list[Best]:
    """Return the best plan of the lightest change under this one; nothing if it is illegal or too large."""
    work, more = change.problem.workload, lightest.problem.workload.framework_options
    own = best.way.workload.framework_options.items()
    options = {name: value for name, value in own if name in work.framework_options or name not in more}
    way = replace(best.way, workload=replace(work, framework_options=options))
    own_profile = profile_of_variant(way, profile)
    if violations_of_all(way, own_profile, [best.config])[0]:
        return []
    (seen,) = predict_all(way, own_profile, [best.config])
    return [Best(best.config, seen, way, own_profile)]


_RECOMPUTED = "recompute_modules"
_SIZES = (
    "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "expert_parallel_size",
    "micro_batch_size",
)  # fmt: skip


def _around(
    problem: Problem, change: Change, profile: Profile, answer: Answer, *, plans: Sequence[Best],
    limits: Sequence[str],
) -> list[list[Variant]]:  # fmt: skip
    """Return what to search for plans with sizes near those of the first plan and of ``plans``.

    They are at most twice and at least half as large. The switches are those of these plans. Recomputation
    stays open, since the change behind ``plans`` may free more memory.
    """
    own = with_changes(problem.workload, switches_of(answer.ranking[0]))
    ways = [own, *(one.way.workload for one in plans)]
    open_ = {name for one in searched_switches(change.problem) for name in switches()[one].options}

    def chosen(work: Workload) -> dict[str, Any]:
        return {name: work.framework_options.get(name) for name in open_ - {_RECOMPUTED}}

    configs, box = [answer.ranking[0].config, *(one.config for one in plans)], list[str]()
    for name in _SIZES:
        sizes = [getattr(one, name) for one in configs]
        box += (f"{min(sizes)} <= 2 * {name}", f"{name} <= {2 * max(sizes)}")
    boxed = _limited(change, (*box, *limits))
    boxed = replace(boxed, problem=among_usual(boxed.problem))
    known, groups = [chosen(one) for one in ways], groups_of(boxed, profile)
    of_known = ([one for one in some if chosen(one.problem.workload) in known] for some in groups)
    return [some for some in of_known if some]


def _limited(change: Change, limits: Sequence[str]) -> Change:
    """Return a change with further constraints."""
    options = change.problem.options
    options = replace(options, constraints=(*options.constraints, *limits))
    return replace(change, problem=replace(change.problem, options=options))
