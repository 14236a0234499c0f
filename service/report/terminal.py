"""An answer in a terminal: the question, how sure the answer is, the ranking, the next commands.

Pure: an Answer and its Problem in, a Rich renderable out. Colour only repeats the words, so the
text reads the same in a pipe.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.profiles.capabilities import launchers_of
from meshwright.profiles.figures import NO_BREAK, tied
from meshwright.profiles.profile import default_profile
from meshwright.service.report import formatting as figures
from meshwright.service.report.beyond import beyond_lines, different_lines
from meshwright.service.report.measured import measured_lines
from meshwright.service.report.question import clean, header
from meshwright.service.report.ranking import ranking, short_ranking
from meshwright.service.report.sentences import (
    closest_words,
    group_lines,
    proof_lines,
    reason_lines,
    remedy_words,
    searched_words,
    sentences,
    spent_s,
)
from meshwright.service.report.summary import summary_of
from meshwright.service.report.tradeoff import tradeoff_lines
from meshwright.service.verify.limits import unbuilt_words
from meshwright.solver.answer import (
    OBJECTIVE_NAMES,
    Answer,
    Infeasibility,
    ParetoFront,
    Plan,
    Prediction,
    Shortfall,
    Why,
)
from meshwright.solver.configuration import Configuration
from meshwright.solver.explain.sentences import loading_warnings
from meshwright.solver.problem import Problem, can_start
from meshwright.solver.space.launcher_rules import unwritten

if TYPE_CHECKING:
    from meshwright.solver.calibration.measured import TimedPrediction
    from meshwright.solver.explain.node_groups import GroupUse

_LEAST_NOTE = 60
SHORT_ID = 4  # digits of a plan's id that are shown at least
_GENERAL = "not calibrated on your cluster (meshwright calibrate)"
_UNCALIBRATED = ", uncalibrated"  # how the title of a catalog profile ends
_STATIC_TERMS = ("weights", "gradients", "optimizer")


def render_answer(
    answer: Answer, problem: Problem, *, width: int, measured: Sequence[TimedPrediction] = ()
) -> RenderableType:
    """Lay out the whole answer for ``width`` columns; ``measured`` runs follow the ranking."""
    if answer.status == "infeasible":
        return Group(*_infeasible(answer, problem, width))
    style = "green" if answer.is_optimal else "yellow" if answer.plans else "red"
    certainty = figures.with_ties(answer.certainty) + _gpus(answer, problem)
    parts: list[RenderableType] = [header(problem, width), figures.wrapped(certainty, width, style=style)]
    if answer.plans:
        best = answer.plans[0]
        unbuilt = unbuilt_words(best, problem)
        parts += [
            Text(),
            _table(answer.plans, problem, width),
            *measured_lines(measured, answer.plans, width),
            *tradeoff_lines(answer.plans, width),
            Text(),
            *_causes(best, width, of=" (best)"),
            Text(),
            *sentences(best, width),
            *_context(answer, problem, width),
            *([figures.wrapped(unbuilt, width, indent=2)] if unbuilt else []),
            *beyond_lines(answer, width),
            *different_lines(answer, width),
        ]
    parts += [Text(), *_provenance(answer, problem, width)]
    return Group(*parts, figures.wrapped(_next(answer, problem), width, indent=2))


SHOWN = 3  # plans of the default answer: those that it advises to run
_POINTS = 5  # of a front
_LABEL = 9  # columns left of a fact
_GAP = 3  # blanks before a command


def render_summary(
    answer: Answer, problem: Problem, *, width: int, measured: Sequence[TimedPrediction] = (),
    question: str = "",
) -> RenderableType:  # fmt: skip
    """Lay out the facts of an answer and its first plans for ``width`` columns, in some twelve lines.

    ``question``: the command that the offered options can be added to, if the user's own command takes
    none of them.
    """
    facts = render_facts(answer, problem, width=width)
    return Group(facts, render_offers(answer, problem, width=width, measured=measured, question=question))


def render_facts(answer: Answer, problem: Problem, *, width: int) -> RenderableType:
    """Lay out the plan to run, its speed, memory and certainty: what is known before any lever."""
    export = "meshwright export 1 --save-dir run/" if _has_files(answer, problem) else ""
    found = summary_of(answer, problem, export=export)
    style = "bold" if found.fits else "bold red"
    parts: list[RenderableType] = [figures.wrapped(found.title, width, style=style)]
    if not found.fits:
        parts.append(figures.wrapped(figures.with_ties(found.headline), width, indent=2, style="red"))
    for fact in found.facts:
        parts += _fact(fact.label, fact.text, width, command=fact.command, pieces=not fact.of_sentences)
    return Group(*parts)


def render_offers(
    answer: Answer, problem: Problem, *, width: int, measured: Sequence[TimedPrediction] = (),
    question: str = "",
) -> RenderableType:  # fmt: skip
    """Lay out what else would help, and the first plans, below ``render_facts``."""
    found, parts = summary_of(answer, problem), list[RenderableType]()
    for at, offer in enumerate(found.offers):
        label = "" if at else "more" if found.fits else "try"
        command = "" if offer.option == "--full" else offer.option
        words = f"{offer.words}: --full" if offer.option == "--full" else offer.words
        parts += _fact(label, words, width, command=command, pieces=False)
    if question and found.offers:
        asks = "To ask again, add one of these options to:"
        parts += _fact("", asks, width, command=question, pieces=False)
    for at, note in enumerate(found.notes):
        parts += _fact("" if at else "note", _cut(note, width), width, pieces=False, style="yellow")
    parts += [*_first_plans(answer, width), *measured_lines(measured, answer.plans, width)]
    if answer.pareto is not None:
        parts += _front(answer.pareto, width)
    return Group(*parts, *different_lines(answer, width))


def _front(front: ParetoFront, width: int) -> list[RenderableType]:
    """Return points of a front from the fastest to the lightest."""
    points, last = front.points, len(front.points) - 1
    number = min(_POINTS, len(points))
    chosen = [points[round(at * last / max(number - 1, 1))].plan for at in range(number)]
    rest = f" ({number} of {len(points)} points; --full has all)" if number < len(points) else ""
    head = figures.wrapped(f"Less memory for more time{rest}:", width, indent=2)
    return [head, short_ranking([replace(plan, rank=0) for plan in chosen], rates=False, width=width)]


def _fact(
    label: str, text: str, width: int, *, command: str = "", pieces: bool, style: str = ""
) -> list[Text]:
    """Return one fact behind its label, its command behind it or, where there is no room, below."""
    words = figures.pieces(text, "·") if pieces else figures.with_ties(text)
    line = f"{label:<{_LABEL - 2}}".replace(" ", NO_BREAK) + words
    found = figures.wrapped(line, width, indent=2, hang=_LABEL - 2, style=style)
    if not command:
        return [found]
    if len(found.plain.rpartition("\n")[2]) + _GAP + len(command) <= width:
        return [found.append(f"{'':<{_GAP}}{command}")]
    return [found, Text(f"{'':<{_LABEL}}{command}", no_wrap=True, overflow="ignore")]


def _cut(note: str, width: int) -> str:
    """Return a note that takes two lines at most; --full has the rest."""
    return textwrap.shorten(note, max(2 * (width - _LABEL) - _GAP, _LEAST_NOTE), placeholder=" … (--full)")


def _first_plans(answer: Answer, width: int) -> list[RenderableType]:
    """Return the table of the first plans; nothing where there is one plan."""
    plans = answer.ranking[:SHOWN]
    if len(plans) <= 1:
        return []
    more = len(answer.plans) - len(plans)
    rest = [Text(f"  and {more} more: --full", style="dim")] if more > 0 else []
    rates = answer.objective is not None and answer.objective.name in OBJECTIVE_NAMES
    return [short_ranking(plans, rates=rates, width=width), *rest]


def _context(answer: Answer, problem: Problem, width: int) -> list[Text]:
    """Return the comparison with what one would run today, and what else would help."""
    found = summary_of(answer, problem)
    lines = [found.headline] if answer.reference is not None else []
    lines += [f"{one.words}{f': {one.option}' if one.option else ''}." for one in found.offers]
    return [figures.wrapped(figures.with_ties(line), width, indent=2) for line in lines]


def render_prediction(
    configuration: Configuration,
    prediction: Prediction,
    problem: Problem,
    *,
    width: int,
    profile: str,
    broken: Sequence[str] = (),
    why: Why | None = None,
) -> RenderableType:
    """Return the price of one configuration without a search, laid out for ``width`` columns.

    ``broken`` names the rules of the search space that it breaks; ``why``: where its time goes.
    """
    plan = Plan(plan_id="", rank=0, config=configuration, prediction=prediction, objective_s=0.0, why=why)
    risk, limit = prediction.out_of_memory_probability, problem.options.max_out_of_memory_probability
    warnings = list(problem.cluster.warnings)
    warnings += [f"breaks the rule that {rule}" for rule in broken]
    warnings += loading_warnings([plan])
    if risk > limit:
        warnings.append(
            f"out-of-memory probability is {figures.risk(risk)}; the limit is {figures.risk(limit)}"
        )
    return Group(render_plan(plan, problem, width=width, profile=profile), *_warnings(warnings, width))


def render_own(configuration: Configuration, seen: Prediction, *, title: str, width: int) -> RenderableType:
    """Return the user's own configuration in one sentence, where there is no plan next to it."""
    label = max(_LABEL - 2, len(title) + 1)
    pieces = (
        f"{figures.configuration_words(configuration)}: {figures.step_time(seen)} a step",
        figures.peak_memory(seen),
        f"out-of-memory risk {figures.risk(seen.out_of_memory_probability)}",
    )
    return figures.wrapped(f"{title:<{label}}" + ", ".join(pieces), width, indent=2, hang=label)


def render_plan(
    plan: Plan, problem: Problem, *, width: int, profile: str, answer: Answer | None = None,
    groups: Sequence[GroupUse] = (),
) -> RenderableType:  # fmt: skip
    """Return one plan with every figure of its reasons, laid out for ``width`` columns.

    ``answer``: what it was found by, to show its proof. ``groups``: what it does with each node group.
    """
    return Group(
        header(problem, width),
        Text(),
        _table([plan], problem, width),
        Text(),
        *_causes(plan, width, fall=True),
        Text(),
        *reason_lines(plan, width),
        *group_lines(groups, plan.prediction.step_time_s, width),
        *([] if answer is None else proof_lines(answer, problem, width)),
        Text(),
        figures.wrapped(f"Profile: {clean(profile)}.", width, indent=2),
        *_outside(plan.prediction, width),
    )


def _gpus(answer: Answer, problem: Problem) -> str:
    used = answer.plans[0].config.num_gpus if answer.plans else problem.cluster.num_gpus
    if used == problem.cluster.num_gpus:
        return ""
    fewest = ", the fewest that have a plan" if answer.notes.get("gpus") == "fewest" else ""
    return f" Uses {tied(f'{used} of {problem.cluster.num_gpus} GPUs')}{fewest}."


def peak_words(prediction: Prediction, problem: Problem) -> str:
    """Return the denominator of MFU, without the per-GPU unit: ``989 TFLOP/s dense bf16``."""
    precision = "bf16" if "bf16" in problem.cluster.groups[0].gpu.peak_flops else "fp16"
    return f"{figures.tera(prediction.peak_flops_per_gpu)} dense {precision}"


def _table(plans: Sequence[Plan], problem: Problem, width: int) -> RenderableType:
    return ranking(
        plans,
        moe=problem.model.moe is not None,
        width=width,
        peak=f"{peak_words(plans[0].prediction, problem)} per GPU",
    )


def _causes(plan: Plan, width: int, *, of: str = "", fall: bool = False) -> list[Text]:
    configuration, prediction = plan.config, plan.prediction
    spent = prediction.time_breakdown_s if plan.why is None else spent_s(plan.why)
    stage = prediction.stages[prediction.heaviest_stage]
    rows = {
        f"time of a step{of}": figures.times(spent, prediction.step_time_s),
        f"memory of stage {stage.stage}": figures.memory(stage.memory_bytes),
        figures.peak_title(prediction): figures.peak_shown(prediction),
        **({} if prediction.host is None else {"host memory": figures.host_words(prediction.host)}),
        "layers of each chunk": figures.split(configuration.stage_layers),
    }
    if fall and plan.why is not None:
        rows["from ideal to real"] = figures.times(plan.why.waterfall_s, prediction.step_time_s)
    if configuration.stage_groups:
        rows["node group of stages"] = figures.placement(configuration)
    for number, one in enumerate(configuration.replicas):
        rows[f"replicas of kind {number}"] = figures.kind_of_replica(one)
    if plan.hosts is not None:
        rows["order of nodes"] = figures.host_order(plan.hosts)
        rows["step by order"] = figures.order_gain(plan.hosts, prediction.step_time_s)
    label = max(map(len, rows)) + 3
    lines = {name: f"{name:<{label}}" for name in rows}
    return [
        figures.wrapped(tied(lines[name]) + figures.pieces(value, "│"), width, indent=2, hang=label)
        for name, value in rows.items()
    ]


def _provenance(answer: Answer, problem: Problem, width: int) -> list[Text]:
    skipped = [figures.wrapped(one, width, indent=4, hang=2) for one in skipped_words(answer)]
    kept_free = answer.notes.get("kept_free")  # answers of older releases have none
    return [
        *([figures.wrapped("Launchers without a plan:", width, indent=2), *skipped] if skipped else []),
        *(figures.wrapped(line, width, indent=2) for line in launcher_lines(answer)),
        figures.wrapped(f"Searched: {searched_line(answer, problem)}", width, indent=2),
        figures.wrapped(f"Profile: {profile_words(answer, problem)}.", width, indent=2),
        *(
            [figures.wrapped(f"Memory kept free: {kept_free}.", width, indent=2)]
            if kept_free is not None
            else []
        ),
        *(_outside(answer.plans[0].prediction, width) if answer.plans else []),
        *_warnings(answer.warnings, width),
    ]


def searched_line(answer: Answer, problem: Problem) -> str:
    """Return what was searched, how much of it is legal, and how long that took."""
    legal = figures.with_ties(f"{figures.count(answer.legal)} configurations are legal")
    return f"{searched_words(problem)}; {legal}; {tied(f'{answer.elapsed_s:.1f} s')}."


def launcher_lines(answer: Answer) -> tuple[str, ...]:
    """Return why the launcher is the question's own; a request that states one needs no reason."""
    why = answer.notes.get("launcher")
    return (f"Launcher: {why}.",) if why else ()


def skipped_words(answer: Answer) -> tuple[str, ...]:
    """Return each launcher without a plan, with reasons; empty unless the request leaves it open."""
    return tuple(f"{one.launcher}: {clean('; '.join(one.reasons))}" for one in answer.skipped_launchers)


def _outside(prediction: Prediction, width: int) -> list[Text]:
    if not prediction.extrapolated:
        return []
    line = f"Outside the measured range: {', '.join(prediction.extrapolated)}."
    return [figures.wrapped(line, width, indent=2, style="yellow")]


def _warnings(warnings: Iterable[str], width: int) -> list[Text]:
    said = (f"warning: {figures.with_options(clean(one))}" for one in warnings)
    return [figures.wrapped(one, width, indent=2, style="yellow") for one in said]


def profile_words(answer: Answer, problem: Problem) -> str:
    """Return the profile by its title where the answer or this installation has it, else by its version."""
    title = answer.notes.get("profile")
    if title is not None and (not problem.cluster.is_homogeneous or not title.endswith(_UNCALIBRATED)):
        return title
    version = answer.versions.get("profile", "unknown")
    for launcher in [problem.stack] if problem.stack else launchers_of(problem.launcher):
        here = default_profile(problem.cluster, launcher)
        if here.version == version:
            return (
                f"{here.group.gpu.display_name} under {here.framework.name}, from the catalog, {_GENERAL}"
            )
    return f"version {version}, not the catalog's: calibrated, or of another release"


def _has_files(answer: Answer, problem: Problem) -> bool:
    """Return whether the launcher has files, writes the model's, and starts the first plan's ranks."""
    first = answer.plans[:1]
    names = (first[0].launchers if first else ()) or (problem.launcher,)
    if all(name == "none" or unwritten(replace(problem, launcher=name)) for name in names):
        return False
    return all(can_start(problem, plan.config.num_gpus) for plan in first)


def _next(answer: Answer, problem: Problem) -> str:
    if not answer.plans:
        return "Next: give the search more time (--time-limit-s)"
    if problem.launcher == "none" and "launcher" not in answer.notes:  # another writes files
        seen = tied(f"meshwright report {short_id(answer.plans)} --open")
        return f"Next: name a --launcher to get launch files   {seen}"
    plan_id = short_id(answer.plans)
    files = [f"export {plan_id} --save-dir run/"] if _has_files(answer, problem) else []
    ways = [*files, f"report {plan_id} --open", f"explain --plan {plan_id}"]
    return f"Next: {'   '.join(tied(f'meshwright {way}') for way in ways)}"


def short_id(plans: Sequence[Plan]) -> str:
    """Return the shortest prefix of the first plan's id that no other plan of the answer shares."""
    first, others = plans[0].plan_id, [plan.plan_id for plan in plans[1:]]
    for length in range(SHORT_ID, len(first)):
        if not any(other.startswith(first[:length]) for other in others):
            return first[:length]
    return first


def _infeasible(answer: Answer, problem: Problem, width: int) -> list[RenderableType]:
    model, cluster = clean(problem.model.title), clean(problem.cluster.title)
    total = problem.cluster.num_gpus
    used = answer.num_gpus_used or total
    part = "" if used == total else f" with {used} of {total} GPUs"
    head = f"infeasible: {model} on {cluster}{part}. {figures.with_ties(answer.certainty)}"
    found = answer.infeasible or Infeasibility(reasons=())
    lines = [closest_words(found.closest, problem)] if found.closest else []
    lines += [f"nearest: {_shortfall(found.nearest)}"] if found.nearest else []
    lines += [f"because: {reason}" for reason in found.reasons]
    for limits in found.conflicts:
        effect = "cannot all be met" if len(limits) > 1 else "limiting factor"
        lines.append(f"{effect}: {' + '.join(limits)}")
    if found.remedies:
        lines.append("What would fit, cheapest first:")
    elif found.changes:
        lines.append(f"smallest changes that fit: {' · or '.join(found.changes)}")
    return [
        figures.wrapped(head, width, style="bold red"),
        *(figures.wrapped(line, width, indent=2) for line in lines),
        *(
            figures.wrapped(figures.with_ties(": ".join(remedy_words(one))), width, indent=6)
            for one in found.remedies
        ),
        *_provenance(answer, problem, width),
    ]


def _shortfall(nearest: Shortfall) -> str:
    static = sum(nearest.memory_bytes.get(term, 0) for term in _STATIC_TERMS)
    needs = figures.gib_of(nearest.needed_bytes, nearest.limit_bytes)
    words, outside = figures.configuration_words(nearest.config), nearest.lacks_outside
    return (
        f"{words} → stage {nearest.stage} needs {needs} "
        f"(weights, gradients and optimizer {figures.gib(static)} GiB)"
        + "".join(f" and lacks {figures.gib(lacks)} GiB of {what} a GPU" for what, lacks in outside.items())
    )
