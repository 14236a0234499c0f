"""An answer's reasons in two sentences: where its time goes, and what binds.

``reason_lines`` returns all figures behind them, which ``meshwright explain --plan`` prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.figures import percent, seconds_like, tied
from meshwright.profiles.switches import EVERY_SWITCH, NO_SWITCH, switches
from meshwright.service.report import formatting
from meshwright.solver.answer import Answer, Lever, Loss, Odds, Plan, Remedy, Why, accepts_risk
from meshwright.solver.configuration import VARIABLES
from meshwright.solver.explain.sentences import limit_sentence, limit_words, time_sentence
from meshwright.solver.problem import Problem, searched_switches

if TYPE_CHECKING:
    from meshwright.solver.explain.node_groups import GroupUse

# --------------------------------------------------------------------------------------------------
# Reasons for a plan: from the ideal step to the real one, losses, limits, certainty.


_COMPUTING = ("ideal", "gemm_efficiency", "attention_efficiency", "memory_bound", "launch_floor")
_SURE = 0.9995  # a chance that would print as 100 % is printed as more than 99.9 %


def reason_lines(plan: Plan, width: int) -> list[Text]:
    """Return losses, limits and certainty of one plan; nothing where it has no reasons."""
    why = plan.why
    if why is None:
        return []
    step_s = sum(why.waterfall_s.values())
    lines = [_loss(loss, step_s) for loss in why.losses]
    lines += [f"binds: {limit_words(limit, step_s)}" for limit in why.limits]
    if plan.odds is not None:
        lines.append(f"Certainty: {odds_words(plan.odds, f'#{plan.rank}')}")
    return [formatting.wrapped(line, width, indent=2) for line in lines]


def group_lines(uses: Sequence[GroupUse], step_s: float, width: int) -> list[Text]:
    """Return each node group's stages, their limit, their waiting, and what one more node would bring."""
    return [
        formatting.wrapped(f"{one.group}: {'; '.join(_group_words(one, step_s))}", width, indent=2, hang=2)
        for one in uses
    ]


def _group_words(one: GroupUse, step_s: float) -> Iterator[str]:
    if not one.stages:
        yield "idle"
    else:
        stages = f"{one.stages} stage{'s' if one.stages > 1 else ''} with {one.layers} layers"
        yield f"{stages} on {tied(f'{one.num_gpus_used} GPUs')}"
        compute, waits = map(formatting.seconds, (one.compute_s, one.waits_s))
        yield f"its busiest stage computes for {tied(compute)} of the step and waits for {tied(waits)}"
    if one.layer_more_s is not None:
        yield f"one more layer there: {tied(formatting.signed(one.layer_more_s, step_s))}"
    elif one.stages:
        yield f"memory: {percent(one.memory_share)} in use, so that no further layer fits"
    more = one.one_more_node
    if more is None:
        yield "one more node: not searched"
    elif more.step_time_s is None or not more.saves_s:
        yield f"one more node: no faster plan{' under our cost model' if more.proved else ' was found'}"
    else:
        step = formatting.seconds(more.step_time_s)
        yield f"one more node: {tied(formatting.signed(-more.saves_s, step_s))}, a step of {tied(step)}"


def searched_words(problem: Problem) -> str:
    """Return the sizes and switches that a search tries, so that its proof covers; not those pinned."""
    model, options = problem.model, problem.options
    able = launcher_capabilities(problem.launcher)
    names = [
        one.short or one.name.removesuffix("_granularity").replace("_", " ")
        for one in VARIABLES.values()
        if not one.part_of
        and not (one.follows or one.name in options.pin)
        and one.allowed_by in ("", *options.allow)
        and (model.moe is not None or not one.name.startswith("expert_"))
        and (not one.needs or getattr(able, one.needs))
    ]
    split = [] if options.stage_layers else ["split of layers"]
    allowed = [
        one
        for one in options.allow
        if one not in (NO_SWITCH, EVERY_SWITCH, *switches())
        and one not in {variable.allowed_by for variable in VARIABLES.values()}
    ]
    names += [*split, *allowed, *searched_switches(problem)]
    return ", ".join(names)


def proof_lines(answer: Answer, problem: Problem, width: int) -> list[Text]:
    """Return the proof behind an answer's certainty: solvers, switches, bounds and the closed form."""
    if not answer.plans:
        return []
    words = []
    if answer.status == "optimal" or answer.certified_by:
        words.append(f"by {', '.join(answer.certified_by) or 'the search'}, over {searched_words(problem)}")
    if answer.decided_by == "cp-sat" and answer.counts.get("decided"):
        words.append(f"CP-SAT chose #1 among the {answer.counts['decided']:,} rows that bounds leave")
    if answer.bound_step_time_s is not None:
        step, bound = answer.plans[0].prediction.step_time_s, answer.bound_step_time_s
        options, config = problem.options, answer.plans[0].config
        what = "plan" if answer.space == "every" else "configuration searched"
        what += f" of batch {config.global_batch_size}" if options.batch_sizes else ""
        what += f" on {config.num_gpus} GPUs" if options.num_nodes else ""
        words.append(
            f"#1 simulates {tied(formatting.seconds(step))}; no {what} takes less than "
            f"{tied(formatting.seconds(bound))}"
        )
    if answer.objective_excess:
        excess = tied(formatting.small_share(answer.objective_excess))
        words.append(f"#1's closed-form objective is {excess} above the least")
    if answer.objective_gap:
        least = tied(formatting.small_share(answer.objective_gap))
        words.append(f"the least closed-form objective is proved to within {least}")
    return [formatting.wrapped(f"Proof: {'; '.join(words)}.", width, indent=2)] if words else []


def odds_words(odds: Odds, subject: str) -> str:
    """``#1 has a 25 % chance of being the fastest of its ranking; with 90 % probability at most …``."""
    chance, regret = odds.best_probability, formatting.small_share(odds.regret_p90)
    share = "more than 99.9 %" if chance > _SURE else f"{chance * 100:.0f} %"
    article = "an" if share.startswith(("8", "11 ", "18 ")) else "a"
    most = f"less than {regret[1:]}" if regret.startswith("<") else f"at most {regret}"
    return (
        f"{subject} has {article} {tied(share)} chance of being the fastest of its ranking; "
        f"with {tied('90 %')} probability it is {tied(most)} slower than the fastest"
    )


def spent_s(why: Why) -> dict[str, float]:
    """Return the seconds of a step by cause, means over the ranks, with all computing as one."""
    spent = {"compute": 0.0}
    for name, value in why.waterfall_s.items():
        cause = "compute" if name in _COMPUTING else name
        spent[cause] = spent.get(cause, 0.0) + value
    return spent


def _loss(loss: Loss, step_s: float) -> str:
    """Return ``Costs: bubble 0.58 s (10 %). Lower by …. vpp 5 takes 0.11 s off it; the step: +0.46 s``."""
    size = tied(
        f"{formatting.words(loss.term)} {seconds_like(abs(loss.seconds), step_s)} ({percent(loss.share)})"
    )
    line = f"costs: {size}" + (f"; lower: {loss.lowered_by}" if loss.lowered_by else "")
    if loss.change is None or loss.saves_s is None or loss.step_change_s is None:
        return line
    saved, change = (formatting.signed(one, step_s) for one in (-loss.saves_s, loss.step_change_s))
    effect = f"{saved} of it, {change} of the step"
    return f"{line}. {tied(loss.change)}: {tied(effect)}"


def measure_line(worth: Sequence[tuple[Plan, float]], *, width: int) -> Text:
    """Return which plans to run next, and what choosing after them is expected to gain."""
    runs = ", ".join(tied(f"#{plan.rank} ({plan.plan_id[:4]}, {gain * 100:.2f} %)") for plan, gain in worth)
    line = f"Measure next: {runs}: expected gain in step time by choosing after each run"
    return formatting.wrapped(line, width, indent=2)


HOPELESS = 0.5  # risk of a plan that is not worth a run, though it can be exported
_SHORT_ID = 8


def closest_words(plan: Plan, problem: Problem) -> str:
    """Return the plan nearest to fitting, or the soonest one, with the command that exports it."""
    seen, words = plan.prediction, formatting.configuration_words(plan.config)
    memory = formatting.gib_of(seen.peak_memory_bytes, seen.memory_limit_bytes)
    risk = formatting.risk(seen.out_of_memory_probability)
    takes = f"{words}: {formatting.step_time(seen)} a step, {memory}, out-of-memory risk {risk}"
    command = f"To run it: meshwright export {plan.plan_id[:_SHORT_ID]}"
    if accepts_risk(problem, plan.prediction):
        return f"soonest: {takes}. {command}"
    if seen.out_of_memory_probability > HOPELESS:
        return f"closest: {takes}"
    return f"closest: {takes}. {command} --accept-risk"


def remedy_words(remedy: Remedy, step: str = "") -> tuple[str, str]:
    """Return ``16 nodes (--num-nodes 16)`` and ``12.3 s on 128 GPUs, tp 8 · pp 4 · …, 61.2 GiB``.

    ``step``: instead of ``step_words``.
    """
    step, peak = step or step_words(remedy), formatting.gib(remedy.peak_memory_bytes)
    words, options = formatting.configuration_words(remedy.config), option_words(remedy.settings)
    gpus = f"{remedy.num_gpus} GPU{'s' * (remedy.num_gpus != 1)}"
    change = formatting.sentence_case(remedy.change)
    return f"{change} ({options})" if options else change, f"{step} on {gpus}, {words}, {peak} GiB"


def step_words(remedy: Remedy) -> str:
    """Return ``12.3 s``, or ``at most 12.3 s`` where not every layout was tried."""
    return f"{'at most ' if remedy.at_least else ''}{formatting.seconds(remedy.step_time_s)}"


def saved_words(lever: Lever) -> str:
    """Return ``12 %``, or ``at least 12 %`` where not every layout was tried."""
    return f"{'at least ' if lever.at_least else ''}{percent(lever.saves)}"


# Options that are not called as their fields; a test holds them against those of the command line.
_OPTIONS = {
    "search.max_out_of_memory_probability": "max-oom-probability",
    "search.bounds": "bound",
    "search.constraints": "constraint",
    "workload.frozen": "freeze",
    "workload.lora_targets": "lora-target",
    "workload.trained_modules": "trained-module",
    "cluster": "nodes",
    "cluster.groups": "gpu",
}


def option_words(settings: Mapping[str, Any]) -> str:
    """Return the options of the command line that state some fields of a request, by their paths."""
    words = list[str]()
    for path, value in settings.items():
        name = _OPTIONS.get(path) or path.rpartition(".")[2].replace("_", "-")
        if path == "cluster":
            values: Sequence[Any] = [value["name"]]
        elif isinstance(value, Mapping):
            values = [f"{key}={str(one).lower()}" for key, one in value.items()]
        else:
            values = value if isinstance(value, list | tuple) else [value]
        words += [f"--{name} {one:g}" if isinstance(one, float) else f"--{name} {one}" for one in values]
    return " ".join(words)


def sentences(best: Plan, width: int) -> list[Text]:
    """Return where the time of a plan goes and what binds; nothing where it has no reasons."""
    lines = [] if best.why is None else [time_sentence(best.why), limit_sentence(best.why)]
    return [formatting.wrapped(line, width, indent=2) for line in lines]
