"""An answer as people read it in a terminal: what was asked, how sure it is, the ranking, what comes next.

Pure: an Answer and its Problem in, a Rich renderable out. Colour only repeats what the words say, so the
text reads the same in a pipe.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from profiles.profile import default_profile
from service.report import figures
from service.report.ranking import ranking
from solver.plan import Answer, Configuration, Infeasibility, Plan, Prediction, Shortfall
from solver.problem import Problem

SHORT_ID = 4  # digits of a plan's id that are shown at least
_STATIC_TERMS = ("weights", "gradients", "optimizer")


def render_answer(answer: Answer, problem: Problem, *, width: int) -> RenderableType:
    """The whole answer, laid out for ``width`` columns."""
    if answer.status == "infeasible":
        return Group(*_infeasible(answer, problem))
    parts: list[RenderableType] = [header(problem), _search_line(answer)]
    if answer.plans:
        parts += [Text(), ranking(answer.plans, moe=problem.model.moe is not None, width=width)]
        parts += _details(answer.plans[0].config, answer.plans[0].prediction, problem, whose=" (best)")
    parts += [Text(), *(_indented(line) for line in _provenance(answer, problem))]
    if answer.plans:
        parts.append(_indented(_next(answer.plans, problem)))
    return Group(*parts)


def render_prediction(
    configuration: Configuration, prediction: Prediction, problem: Problem, *, width: int
) -> RenderableType:
    """The price of one configuration that nobody searched for, laid out for ``width`` columns."""
    plan = Plan(plan_id="", rank=0, config=configuration, prediction=prediction, objective_s=0.0)
    table = ranking([plan], moe=problem.model.moe is not None, width=width)
    return Group(header(problem), Text(), table, *_details(configuration, prediction, problem))


def _indented(text: str | Text) -> Padding:
    """A line two blanks to the right."""
    return Padding(text if isinstance(text, Text) else Text(text), (0, 0, 0, 2), expand=False)


def header(problem: Problem) -> Text:
    """The question in one line."""
    model, workload = problem.model, problem.workload
    asked = [
        f"{_clean(model.title)} ({_parameters(model.num_parameters())} parameters)",
        _clean(problem.cluster.title),
        f"batch {workload.global_batch_size} × {workload.seq_length} tokens",
        workload.precision,
        "no launcher's limits" if problem.launcher == "none" else f"for {problem.launcher}",
    ]
    return Text(" · ".join(asked), style="bold")


def _parameters(number: int) -> str:
    """``70.6 B`` or ``124.4 M``."""
    billion = 10**9
    return f"{number / billion:.1f} B" if number >= billion else f"{number / 10**6:.1f} M"


def _clean(text: str) -> str:
    """A name from outside, without control characters."""
    return "".join(char for char in text if char.isprintable())


def _search_line(answer: Answer) -> Text:
    """What was searched, and what is certain about the first plan."""
    text = Text()
    size, explored = figures.count(answer.space_size), figures.count(answer.explored)
    seen = size if answer.explored >= answer.space_size else f"{explored} of {size}"
    text.append(f"searched {seen} configurations: {figures.count(answer.legal)} legal, ")
    text.append(f"up to {figures.count(answer.fit)} fit; ")
    text.append(*_claim(answer))
    text.append(f" in {answer.elapsed_s:.1f} s")
    if answer.plans and answer.bound_step_time_s is not None:
        step, bound = answer.plans[0].prediction.step_time_s, answer.bound_step_time_s
        text.append(f" (simulated {figures.seconds(step)}; ")
        text.append(f"under this model no plan can be under {figures.seconds(bound)})")
    return text


def _claim(answer: Answer) -> tuple[str, str]:
    """How the search ended, with the style that goes with it."""
    if answer.status == "optimal":
        by = ", ".join(answer.certified_by) or "the search"
        return f"#1 proved optimal under the cost model by {by}{_remainder(answer)}", "green"
    if answer.plans:
        gap = f", at most {answer.gap * 100:.1f} % from the bound" if answer.gap is not None else ""
        return f"#1 is the best found before the search stopped, not proved optimal{gap}", "yellow"
    return "no plan found before the search stopped, and nothing is proved", "red"


def _remainder(answer: Answer) -> str:
    """What the closed-form objective leaves open: the ranking is by simulated time."""
    if not answer.objective_excess:
        return ""
    return (
        f" (by simulated time; {answer.objective_excess * 100:.1f} % above the least closed-form objective)"
    )


def _details(
    configuration: Configuration, prediction: Prediction, problem: Problem, *, whose: str = ""
) -> list[RenderableType]:
    """What stands below the table: footnote, time by cause, memory by term, split."""
    lines = _causes(configuration, prediction, whose)
    return [_indented(_mfu_footnote(prediction, problem)), Text(), *map(_indented, lines)]


def _mfu_footnote(prediction: Prediction, problem: Problem) -> str:
    """The denominator of MFU, always said."""
    peaks = problem.cluster.groups[0].gpu.peak_flops
    precision = "bf16" if "bf16" in peaks else "fp16"
    peak = figures.tera(prediction.peak_flops_per_gpu)
    return f"* of {peak} dense {precision} per GPU, causal attention counted · ± is the 80 % interval"


def _causes(configuration: Configuration, prediction: Prediction, whose: str) -> list[Text]:
    """Where the time and the memory go."""
    stage = prediction.stages[prediction.heaviest_stage]
    rows = {
        f"time of a step{whose}": figures.times(prediction.time_breakdown_s, prediction.step_time_s),
        f"memory of stage {stage.stage}": figures.memory(stage.memory_bytes),
        "layers of each chunk": _split(configuration.stage_layers),
    }
    label = max(map(len, rows))
    return [Text(f"{name:<{label}}   {value}") for name, value in rows.items()]


def _split(stage_layers: Sequence[int]) -> str:
    """``3 4×18 5``: runs of equal chunks are counted."""
    runs: list[tuple[int, int]] = []
    for layers in stage_layers:
        length = runs.pop()[1] if runs and runs[-1][0] == layers else 0
        runs.append((layers, length + 1))
    return " ".join(f"{layers}×{length}" if length > 1 else f"{layers}" for layers, length in runs)


def _provenance(answer: Answer, problem: Problem) -> list[Text]:
    """The costs that the figures rest on, and every warning."""
    lines = [Text(f"Profile: {_profile(answer, problem)}, not calibrated on your cluster.")]
    outside = answer.plans[0].prediction.extrapolated if answer.plans else ()
    if outside:
        lines.append(Text(f"Outside the measured range: {', '.join(outside)}.", style="yellow"))
    lines += [Text(f"warning: {_clean(warning)}", style="yellow") for warning in answer.warnings]
    return lines


def _profile(answer: Answer, problem: Problem) -> str:
    """The profile by its title where this installation has it, else by its version."""
    version = answer.versions.get("profile", "unknown")
    here = default_profile(problem.cluster, problem.launcher)
    if here.version != version:
        return f"version {version}"
    return f"{here.group.gpu.display_name} under {here.framework.name}, from the catalog"


def _next(plans: Sequence[Plan], problem: Problem) -> Text:
    """The command that uses the best plan."""
    if problem.launcher == "none":
        return Text("Next: name a --launcher to get launch files")
    return Text(f"Next: meshwright export {short_id(plans)} --save-dir run/")


def short_id(plans: Sequence[Plan]) -> str:
    """The shortest prefix of the first plan's id that no other plan of the answer shares."""
    first, others = plans[0].plan_id, [plan.plan_id for plan in plans[1:]]
    for length in range(SHORT_ID, len(first)):
        if not any(other.startswith(first[:length]) for other in others):
            return first[:length]
    return first


def _infeasible(answer: Answer, problem: Problem) -> list[RenderableType]:
    """Nothing fits: what is nearest, why, and what would change it."""
    model, cluster = _clean(problem.model.title), _clean(problem.cluster.title)
    total = problem.cluster.num_gpus
    used = answer.num_gpus_used or total
    part = "" if used == total else f" with {used} of {total} GPUs"
    head = f"infeasible: no configuration of {model} on {cluster}{part} is legal and fits (proved)"
    lines: list[RenderableType] = [Text(head, style="bold red")]
    found = answer.infeasible or Infeasibility(reasons=())
    if found.nearest:
        lines.append(_indented(f"nearest: {_shortfall(found.nearest)}"))
    lines += [_indented(f"because: {reason}") for reason in found.reasons]
    lines += [_indented(_conflict(limits)) for limits in found.conflicts]
    if found.changes:
        lines.append(_indented(f"smallest changes that fit: {' · or '.join(found.changes)}"))
    counted = f"{figures.count(answer.space_size)} configurations, {figures.count(answer.legal)} legal"
    lines.append(_indented(f"searched {counted}, in {answer.elapsed_s:.1f} s"))
    lines += [_indented(line) for line in _provenance(answer, problem)]
    return lines


def _conflict(limits: Sequence[str]) -> str:
    """A minimal set of limits that no configuration obeys at once."""
    word = "cannot hold together" if len(limits) > 1 else "stands in the way"
    return f"{word}: {' + '.join(limits)}"


def _shortfall(nearest: Shortfall) -> str:
    """The nearest configuration, its stage, and how much of it is fixed by weights and states."""
    static = sum(nearest.memory_bytes.get(term, 0) for term in _STATIC_TERMS)
    need, limit = figures.gib(nearest.needed_bytes), figures.gib(nearest.limit_bytes)
    words = figures.configuration_words(nearest.config)
    return (
        f"{words} → stage {nearest.stage} needs {need} of {limit} GiB "
        f"(weights, gradients and optimizer {figures.gib(static)} GiB)"
    )
