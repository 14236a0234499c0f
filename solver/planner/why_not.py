"""Why not? The smallest set of reasons against some values, or how much slower plans with them are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import BoolArray, Columns
from meshwright.solver.explain.infeasible import correction_masks
from meshwright.solver.planner.different import excess
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import profile_of_variant
from meshwright.solver.problem import Problem, usable_gpus
from meshwright.solver.search.cp_sat import without_pandas
from meshwright.solver.space.enumerate import refuted_space, with_whole
from meshwright.solver.space.request_rules import coded, column_of
from meshwright.solver.space.rules import rules_of, violation_masks

Values = Mapping[str, int | str]
_MEMORY = "memory"
_TERMS = 3  # differences that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One limit that excludes configurations."""

    name: str
    reason: str
    of_request: bool  # the request states it, so that you can drop it


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The answer to one question."""

    values: Values
    launcher: str  # under which the reasons hold
    reasons: tuple[Reason, ...] = ()  # the smallest set; none where a plan has the values
    plan: Plan | None = None  # the best one that has them
    worse: float | None = None  # its objective beyond the first plan's, of the latter
    because: tuple[tuple[str, float], ...] = ()  # terms of the step that grow most, seconds
    proved: bool = True  # else the time was over before


def why_not(problem: Problem, profile: Profile, values: Values, answer: Answer, watch: Watch) -> WhyNot:
    """Return why the first plan of an answer does not have these values.

    Args:
        problem: the request.
        profile: its prices.
        values: variables with the values that are asked about.
        answer: the request's answer.
        watch: the time for the question.
    """
    first = answer.ranking[0] if answer.ranking else None
    launcher = first.launchers[0] if first is not None and first.launchers else problem.launcher
    asked = _with_values(problem, values, watch)
    found = ask(asked, profile, should_stop=watch.should_stop, offers_changes=False)
    if found.ranking:
        own = found.ranking[0]
        return WhyNot(
            values=values, launcher=own.launchers[0] if own.launchers else launcher, plan=own,
            worse=excess(answer, found) if first is not None else None, because=_because(first, own),
            proved=found.status == "optimal",
        )  # fmt: skip
    under = problem.under(launcher if launcher != "any" else "none")
    reasons = _reasons(under, profile_of_variant(under, profile), values, found)
    return WhyNot(
        values=values, launcher=under.launcher, reasons=reasons, proved=found.status == "infeasible"
    )


def _with_values(problem: Problem, values: Values, watch: Watch) -> Problem:
    """Return the request for its best plan with the values, next to all limits that it has."""
    options = problem.options
    pins = {name: value for name, value in values.items() if name not in options.pin}
    alike = (f"{name} == {_written(value)}" for name, value in values.items() if name in options.pin)
    options = replace(
        options, pin={**options.pin, **pins}, constraints=(*options.constraints, *alike), top_k=1,
        diverse=False, certify="none", pareto=False, differ=(), baseline=None,
        time_limit_s=max(watch.left_s, 0.01),
    )  # fmt: skip
    return replace(problem, options=options)


def _written(value: int | str) -> str:
    return repr(value) if isinstance(value, str) else str(value)


def _because(first: Plan | None, own: Plan) -> tuple[tuple[str, float], ...]:
    if first is None or first.why is None or own.why is None:
        return ()
    before, after = first.why.waterfall_s, own.why.waterfall_s
    grown = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {*before, *after}}
    order = sorted(grown.items(), key=lambda one: (-one[1], one[0]))
    return tuple((name, more) for name, more in order[:_TERMS] if more > 0.0)


def _reasons(problem: Problem, profile: Profile, values: Values, found: Answer) -> tuple[Reason, ...]:
    """Return the smallest set of limits of which every candidate with the values breaks one."""
    without_pandas()
    from meshwright.solver.search.decision.reasons import (  # noqa: PLC0415 - OR-Tools, asked for by few
        excludes,
        smallest_set,
    )

    options = replace(problem.options, pin={**problem.options.pin, **values}, forbid={}, bounds={})
    pinned = replace(problem, options=options)
    space = with_whole(pinned, refuted_space(pinned))
    rules, columns = rules_of(problem), space.columns
    columns = columns.take(np.flatnonzero(_having(problem, columns, values)))
    if not len(columns):
        return (_no_candidate(problem, values),)
    masks = violation_masks(rules, columns)
    judged = replace(space, rows=columns, masks=masks, rules=rules)
    broken = [_bits(mask) for mask in correction_masks(problem, profile, judged)]
    broken = [some for some in broken if some] or [frozenset({len(rules)})]
    droppable = [at for at, rule in enumerate(rules) if rule.of_request]
    chosen = smallest_set(broken, droppable)
    assert excludes(broken, chosen)  # noqa: S101 - the model itself says so
    memory = next((text for text in _said(found) if text.startswith(_MEMORY)), _of_memory(found))
    named = [Reason(name=rule.name, reason=rule.reason, of_request=rule.of_request) for rule in rules]
    return tuple((*named, Reason(name=_MEMORY, reason=memory, of_request=False))[at] for at in chosen)


def _bits(mask: int) -> frozenset[int]:
    return frozenset(bit for bit in range(int(mask).bit_length()) if mask >> bit & 1)


def _having(problem: Problem, columns: Columns, values: Values) -> BoolArray:
    layers = problem.model.num_layers
    alike = [
        np.asarray(column_of(columns, name, layers) == coded(name, value)) for name, value in values.items()
    ]
    return np.asarray(np.logical_and.reduce(alike))


def _no_candidate(problem: Problem, values: Values) -> Reason:
    gpus = usable_gpus(problem)
    return Reason(
        name="sizes multiply to the GPUs and the batch",
        reason=f"no sizes with {', '.join(values)} as asked have tp * cp * pp * dp = {gpus} "
        f"and dp * mbs * num_microbatches = {problem.workload.global_batch_size}",
        of_request=False,
    )


def _said(found: Answer) -> Sequence[str]:
    return found.infeasible.reasons if found.infeasible is not None else ()


def _of_memory(found: Answer) -> str:
    kept = found.notes.get("kept_free", "")
    return f"no split of the layers fits{f' ({kept})' if kept else ''}"
