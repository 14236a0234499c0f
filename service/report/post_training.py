"""The roles of a post-training step for people: twelve lines, with a picture of who works and who waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.profiles.figures import tied
from meshwright.service.report.formatting import plain_table, with_ties, wrapped

_LABEL, _LEAST_BAR, _MOST_BAR = 9, 24, 100
_MARKS = {
    "generate": "█", "update": "█", "log_probabilities": "=", "critic": "c", "other": "o",
    "refit": "r", "swap": "s", "reward": "w",
}  # fmt: skip
_LEGEND = {
    "█": "generates or updates", "=": "log-probabilities", "c": "critic", "w": "reward model", "o": "other",
    "r": "refit", "s": "swap", "·": "waits",
}  # fmt: skip
_FURTHER = {"critic": "critic", "reward": "reward model"}
_STATUS = {"optimal": "Optimal under our cost model", "feasible": "Best found; not proved"}
WIDTH = 10_000  # of a chart, whatever its scale


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSegment:
    """What one role does for a while; of ``WIDTH``."""

    role: str  # train, generate
    part: str
    start_s: float
    end_s: float
    start: int
    width: int
    label: str


def timeline_of(plan: Mapping[str, Any]) -> tuple[StepSegment, ...]:
    """Return who works when in a step of a plan, in order; the rest of the step a role waits."""
    step_s = plan["step_s"]
    sequence = list(_sequence(plan))
    return tuple(
        StepSegment(
            role=role, part=part, start_s=start_s, end_s=end_s,
            start=round(WIDTH * start_s / step_s), width=max(round(WIDTH * (end_s - start_s) / step_s), 1),
            label=f"{_part_words(part)}: {end_s - start_s:.1f} s",
        )
        for role, part, start_s, end_s in sequence
    )  # fmt: skip


def _sequence(plan: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    """Yield (role, part, start, end): generation first where roles take turns.

    A reward model and a critic with GPUs of their own are roles; a reward model ends where training begins.
    """
    parts, step_s, in_turn = plan["parts_s"], plan["step_s"], plan["mode"] != "async"
    own = {name for name in _FURTHER if is_apart(plan, name)}
    training = ["reward", "other", "log_probabilities", "critic", "update", "swap"]
    training = [part for part in training if part not in own and parts.get(part, 0.0) > 0.0]
    begin = step_s - parts["refit"] - sum(parts[part] for part in training)
    if in_turn and "critic" in own:
        begin -= max(0.0, parts["critic"] - parts["log_probabilities"] - parts["update"])
    now = max(begin, 0.0) if in_turn else 0.0
    yield "generate", "generate", 0.0, parts["generate"]
    if "reward" in own:
        end = now if in_turn else parts["reward"]
        yield "reward", "reward", max(end - parts["reward"], 0.0), end
    if "critic" in own:
        start = now + parts["other"]
        yield "critic", "critic", start, min(start + parts["critic"], step_s)
    for part in training:
        yield "train", part, now, now + parts[part]
        now += parts[part]
    for role in ("train", "generate"):
        yield role, "refit", step_s - parts["refit"], step_s


def is_apart(plan: Mapping[str, Any], role: str) -> bool:
    """Return whether a reward model or a critic has GPUs of its own."""
    found = plan.get(role)
    return bool(found and found["gpus"])


def _roles_of(plan: Mapping[str, Any]) -> list[str]:
    return ["generate", *(name for name in ("reward",) if is_apart(plan, name)), "train",
            *(name for name in ("critic",) if is_apart(plan, name))]  # fmt: skip


def _part_words(part: str) -> str:
    return part.replace("_", " ").replace("log probabilities", "log-probabilities")


def render_post_training(document: Mapping[str, Any], *, width: int) -> RenderableType:
    """Return the answer (``service.post_training.answer.post_training_document``) for a terminal."""
    picture = picture_lines(document["plans"][0], width=width)
    roles, reasons = role_lines(document["plans"][0]), reason_lines(document)
    return Group(
        wrapped(with_ties(title_words(document)), width, style="bold"),
        wrapped(with_ties(verdict_words(document)), width),
        *(wrapped(with_ties(line), width, indent=2) for line in roles),
        *(Text(line) for line in picture),
        wrapped(legend_words(picture), width, indent=_LABEL + 3, hang=0),
        *(wrapped(with_ties(line), width, indent=2) for line in reasons),
    )


def title_words(document: Mapping[str, Any]) -> str:
    """Return the question in a line."""
    answers = f"{document['prompts']} × {document['responses']} answers a step"
    by = f"{document['launcher']} ({document['trainer']}, {document['engine']})"
    name = document.get("algorithm", "grpo").upper()
    return f"{document['model']}, {name} with {answers}, on {document['cluster']}, for {by}"


def verdict_words(document: Mapping[str, Any]) -> str:
    """Return the step of the first plan, and what is proved of it."""
    plan = document["plans"][0]
    span = f"{plan['step_s']:.0f} s a step ({plan['step_low_s']:.0f} to {plan['step_high_s']:.0f})"
    rate = f"{plan['tokens_per_s_per_gpu']:.0f} tokens/s and GPU"
    proof = f"{_STATUS[document['status']]}: the best of {document['choices']} priced roles"
    return f"{way_words(plan)}: {span}, {rate}. {proof}."


def way_words(plan: Mapping[str, Any]) -> str:
    """Return how the roles share the GPUs."""
    if plan["mode"] == "async":
        steps = plan["steps_off"]
        return f"Apart, {steps} step{'s' * (steps > 1)} off policy"
    return {"colocated": "Colocated, in turn", "apart": "Apart, in turn"}[plan["mode"]]


def role_lines(plan: Mapping[str, Any]) -> list[str]:
    """Return a line for the training role, and one for each group's engines."""
    train = plan["training"]
    nodes = f"{train['nodes']} node{'s' * (train['nodes'] > 1)}"
    lines = [f"train     {train['gpus']} × {train['group']} ({nodes})  {train['layout']}"]
    for role in plan["rollout"]:
        number, size = role["engines"], role["tensor_parallel_size"]
        engines = f"{number} engine{'s' * (number > 1)} of tp {size}"
        share = f"{role['memory_share'] * 100:.0f} % of memory"
        load = f"{role['answers']} answers each, {role['running']} at once"
        lines.append(f"generate  {number * size} × {role['group']}  {engines}, {share}, {load}")
    return lines + [line for name in _FURTHER for line in _side_lines(plan, name)]


def _side_lines(plan: Mapping[str, Any], name: str) -> list[str]:
    """Return the line of a reward model or a critic; none if there is none."""
    role = plan.get(name)
    if not role:
        return []
    size = role["tensor_parallel_size"]
    took = f"{role['seconds']:.0f} s"
    if not role["gpus"]:
        return [f"{name:{_LABEL}} in turn on the GPUs of training, {took}"]
    nodes = f"{role['nodes']} node{'s' * (role['nodes'] > 1)}"
    layout = f"{role['gpus'] // size} of tp {size}" if size else "laid out as the policy"
    return [f"{name:{_LABEL}} {role['gpus']} × {role['group']} ({nodes})  {layout}, {took}"]


def picture_lines(plan: Mapping[str, Any], *, width: int) -> list[str]:
    """Return who works when: a line for each role, and the time axis."""
    columns = min(max(width - _LABEL - 4, _LEAST_BAR), _MOST_BAR)
    step_s, lines = plan["step_s"], list[str]()
    for role in _roles_of(plan):
        cells = ["·"] * columns
        for one in (one for one in timeline_of(plan) if one.role == role):
            first = min(int(one.start_s / step_s * columns), columns - 1)
            last = max(first + 1, round(one.end_s / step_s * columns))
            cells[first:last] = _MARKS[one.part] * (min(last, columns) - first)
        lines.append(f"  {role:{_LABEL}} {''.join(cells)}")
    end = f"{step_s:.0f} s"
    return [*lines, f"  {'':{_LABEL}} 0{end:>{columns - 1}}"]


def legend_words(picture: Sequence[str]) -> str:
    """Return what the marks of a picture mean."""
    drawn = "".join(line[_LABEL + 3 :] for line in picture[:-1])
    shown = (f"{mark} {words}" for mark, words in _LEGEND.items() if mark in drawn)
    return ", ".join(map(tied, shown))


def reason_lines(document: Mapping[str, Any]) -> list[str]:
    """Return what binds, how the other ways compare, what lengths decide, and what to measure."""
    first, *others = document["plans"]
    lines = [f"Binds: {first['binds']}."]
    slower = [
        f"{way_words(one).lower()}{_differs(one, first)} {100 * one['slower']:.0f} % slower "
        f"({one['step_s']:.0f} s)"
        for one in others
    ]
    if slower:
        lines.append(f"Next: {'; '.join(slower)}.")
    lines += lengths_lines(document)
    if document.get("corrections"):
        shown = (f"{_part_words(part)} × {factor:.2f}" for part, factor in document["corrections"].items())
        lines.append(f"Corrected by measured steps: {', '.join(shown)}.")
    lines.append(f"Measure next: {document['measure_next']}.")
    return lines


def _differs(plan: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Return where a reward model or a critic is, if it is elsewhere than in the first plan."""
    words = [
        f", {_FURTHER[name]} on {plan[name]['gpus'] or 'no'} GPUs of its own"
        for name in _FURTHER
        if plan.get(name) and plan[name]["gpus"] != first[name]["gpus"]
    ]
    return "".join(words)


def lengths_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the range of the step over unknown lengths, and the percentile that decides."""
    outcomes: Sequence[Mapping[str, Any]] = document["outcomes"]
    if not outcomes:
        return []
    steps = [one["step_s"] for one in outcomes] + [document["plans"][0]["step_s"]]
    head = f"Without percentiles of the lengths: {min(steps):.0f} to {max(steps):.0f} s."
    deciding = document["deciding"]
    changing = next((one for one in outcomes if one["changes"] and one["percentile"] == deciding), None)
    name = "the mean" if deciding == "mean" else deciding
    if changing is None:
        return [f"{head} The roles stay the same; {name} moves the step most."]
    return [f"{head} The choice depends on {name}. With {changing['words']}, {changing['roles']}."]


def render_parts(rows: Sequence[Mapping[str, Any]], *, steps: int, measure_next: str) -> RenderableType:
    """Return predicted and measured seconds of each part, with the factor that plans use from now on."""
    cells = [
        (
            _part_words(row["part"]), f"{row['predicted_s']:.1f}",
            "" if row["measured_s"] is None else f"{row['measured_s']:.1f}",
            "" if row["factor"] is None else f"× {row['factor']:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    head = f"Parts of a step: {steps} step{'s' * (steps > 1)} of the log"
    return Group(
        Text(head, style="bold"),
        plain_table(("part", "predicted s", "measured s", "correction"), cells, left=("part",)),
        Text(f"Measure next: {measure_next}."),
    )


def render_against(
    yours: Mapping[str, Any], best: Mapping[str, Any], notes: Sequence[str], *, width: int
) -> RenderableType:
    """Return the roles of a recipe next to the best ones, with the seconds of each part."""
    own, first = yours["plans"][0], best["plans"][0]
    saved = 1.0 - first["step_s"] / own["step_s"]
    verdict = f"The best placement is {100 * saved:.0f} % faster: {first['step_s']:.0f} s a step"
    parts = ", ".join(
        f"{_part_words(name)} {own['parts_s'][name]:.0f} → {value:.0f}"
        for name, value in first["parts_s"].items()
        if max(value, own["parts_s"][name]) >= 1.0
    )
    lines = [
        f"Yours: {way_words(own).lower()}, {own['step_s']:.0f} s a step.", *role_lines(own),
        f"Best: {way_words(first).lower()}, {first['step_s']:.0f} s a step.", *role_lines(first),
        f"Seconds of each part: {parts}.",
        f"Yours binds on {own['binds']}.", *(f"Note: {note}." for note in notes),
    ]  # fmt: skip
    return Group(
        Text(title_words(best), style="bold"),
        wrapped(f"{verdict}, yours {own['step_s']:.0f} s.", width),
        *(wrapped(line, width, indent=2) for line in lines),
    )


# --------------------------------------------------------------------------------------------------
# The same as a page.


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRow:
    """What one role does in a step, as a row of a chart."""

    name: str
    figure: str  # its share of the step that it works
    segments: tuple[StepSegment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesReport:
    """The roles of a step as pages show them."""

    title: str
    verdict: str
    roles: tuple[str, ...]
    rows: tuple[RoleRow, ...]
    marks: tuple[str, ...]  # the chart's beginning, middle and end
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    plans: tuple[Mapping[str, Any], ...]  # ranked, with ``way`` and ``engines`` in words


def roles_page(document: Mapping[str, Any]) -> RolesReport:
    """Return the roles of an answer for a page."""
    first = document["plans"][0]
    step_s, segments = first["step_s"], timeline_of(first)
    return RolesReport(
        title=title_words(document),
        verdict=verdict_words(document),
        roles=tuple(role_lines(first)),
        rows=tuple(_role_row(role, segments, step_s) for role in _roles_of(first)),
        marks=("0", f"{step_s / 2:.0f} s", f"{step_s:.0f} s"),
        reasons=tuple(reason_lines(document)),
        notes=tuple(document["notes"]),
        plans=tuple(_shown_plan(plan) for plan in document["plans"]),
    )


def _role_row(role: str, segments: Sequence[StepSegment], step_s: float) -> RoleRow:
    own = tuple(one for one in segments if one.role == role)
    busy = sum(one.end_s - one.start_s for one in own) / step_s
    return RoleRow(name=role, figure=f"{100 * busy:.0f} %", segments=own)


def _shown_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    engines = ", ".join(
        f"{role['engines']} of tp {role['tensor_parallel_size']} on {role['group']}"
        for role in plan["rollout"]
    )
    train = plan["training"]
    return {
        **plan,
        "way": way_words(plan),
        "engines": engines,
        "trains": f"{train['gpus']} × {train['group']}: {train['layout']}",
    }
