"""The question, the answer in a sentence with its certainty, its reasons and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.profiles.figures import percent, seconds_like
from meshwright.service.report import formatting as figures
from meshwright.service.report.charts.bars import StackedBar, memory_bar, step_bar
from meshwright.service.report.question import clean, question_words, title_of
from meshwright.service.report.sentences import (
    HOPELESS,
    closest_words,
    odds_words,
    option_words,
    remedy_words,
)
from meshwright.service.report.summary import Offer, launcher_words, mail_lines, summary_of, tokens_words
from meshwright.service.report.terminal import profile_words, searched_line, skipped_words
from meshwright.service.verify.limits import unbuilt_words
from meshwright.solver.answer import Answer, Plan, Remedy, Shortfall
from meshwright.solver.explain.sentences import limit_words
from meshwright.solver.problem import Problem

_FEWER = (
    "More time alone will not help: the configurations are too many, and none of the sample that was "
    "searched fits. Pins and bounds leave fewer."
)
_MORE_TIME = "More time may find one (the time limit of the search)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A figure with its name."""

    label: str
    value: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The first plan at a glance."""

    figures: tuple[Fact, ...]
    step: StackedBar
    memory: StackedBar


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer in words."""

    kind: Literal["proved", "open", "infeasible", "none"]
    badge: str
    sentence: str
    certainty: str  # what was searched, and the error to expect; empty for a plan that is not the first
    proof: str = ""  # the API's sentence of the same, with what is proved; empty: it is the certainty
    notes: tuple[str, ...] = ()
    card: Card | None = None
    nearest: StackedBar | None = None  # where nothing fits: the memory that is missing
    reasons: tuple[str, ...] = ()
    remedies: tuple[tuple[str, str, str], ...] = ()  # changes, each with its option and its plan
    closest: str = ""  # plan_id of the plan nearest to fitting, or of the soonest one
    against: str = ""  # the step next to that of what one would run today, where that is known
    offers: tuple[Offer, ...] = ()  # what else would help
    mail: tuple[str, ...] = ()  # the whole in plain words, a line each
    skipped: tuple[str, ...] = ()  # launchers without a plan, each with its reasons


def question_of(problem: Problem) -> tuple[Fact, ...]:
    """Return the question, piece by piece."""
    model, cluster, batch, precision, _ = question_words(problem)
    options = problem.options
    limits = [f"{name} = {value}" for name, value in sorted(options.pin.items())]
    limits += [f"{name} from {low} to {high}" for name, (low, high) in sorted(options.bounds.items())]
    limits += [f"{name} not {', '.join(map(str, out))}" for name, out in sorted(options.forbid.items())]
    limits += options.constraints
    if options.max_power_kw is not None:
        limits.append(f"{options.max_power_kw:g} kW for GPUs that compute, hosts not counted")
    risk = f"{options.max_out_of_memory_probability * 100:g} %"
    facts = [
        Fact(label="Model", value=model),
        Fact(label="Cluster", value=cluster),
        Fact(label="Batch", value=batch.removeprefix("batch ")),
        Fact(label="Precision", value=precision),
        Fact(label="Launcher", value=launcher_words(problem.launcher)),
        Fact(label="Accepted risk", value=f"{risk} of running out of memory"),
    ]
    if limits:
        facts.append(Fact(label="Limits", value="; ".join(map(clean, limits))))
    return tuple(facts)


def verdict_of(answer: Answer, problem: Problem) -> Verdict:
    """Return how the search ended, and which launchers have no plan where any would do."""
    ended, summary = _ended(answer, problem), summary_of(answer, problem)
    first = bool(answer.plans) and answer.plans[0].rank <= 1
    fits = first and summary.fits
    facts = {fact.label: fact.text for fact in summary.facts} if fits else {}
    return replace(
        ended,
        sentence=facts.get("run", ended.sentence),
        certainty=facts.get("sure", ended.certainty),
        proof=answer.certainty if "sure" in facts else "",
        skipped=skipped_words(answer),
        against=summary.headline if fits and answer.reference is not None else "",
        offers=summary.offers if fits else (),
        mail=tuple(mail_lines(summary)) if first or not answer.plans else (),
    )


def _ended(answer: Answer, problem: Problem) -> Verdict:
    if answer.status == "infeasible":
        return _infeasible(answer, problem)
    if not answer.plans:
        return Verdict(
            kind="none",
            badge="no plan",
            sentence="No plan was found.",
            certainty=answer.certainty,
            notes=(_FEWER if "sample" in answer.notes else _MORE_TIME,),
        )
    best = answer.plans[0]
    if best.rank > 1:
        return _ranked(best)
    notes = (figures.order_sentence(best), unbuilt_words(best, problem))
    return Verdict(
        kind="proved" if answer.is_optimal else "open",
        badge="optimal" if answer.is_optimal else "best found",
        sentence=figures.configuration_words(best.config, figures.LONG_NAMES),
        certainty=answer.certainty,
        card=card_of(best),
        notes=tuple(note for note in notes if note),
    )


def _ranked(plan: Plan) -> Verdict:
    """Return a plan that is not the first: what it takes, without the claims that are the first's."""
    notes, seen = list[str](), plan.prediction
    if plan.odds is not None and plan.odds.regret_p90 != 0.0:
        notes = [f"{odds_words(plan.odds, 'it')}."]
    if not plan.ranked:
        lacking = " and ".join(plan.needs)
        notes = [f"It is not ranked: it needs {lacking}, which a stock installation lacks."]
    return Verdict(
        kind="open",
        badge=f"rank {plan.rank}" if plan.ranked else "not ranked",
        sentence=f"{figures.configuration_words(plan.config)}: a step takes {figures.step_time(seen)}, "
        f"{percent(seen.mfu)} MFU, "
        f"{figures.gib_of(seen.peak_memory_bytes, seen.memory_limit_bytes)} of a GPU's memory.",
        certainty="",
        notes=tuple(notes),
    )


def _infeasible(answer: Answer, problem: Problem) -> Verdict:
    found = answer.infeasible
    sentence = f"{title_of(problem)}: nothing fits."
    if found is None:
        return Verdict(
            kind="infeasible", badge="nothing fits", sentence=sentence, certainty=answer.certainty
        )
    conflicts = tuple(
        f"{' + '.join(limits)} cannot all be met" if len(limits) > 1 else f"Limiting factor: {limits[0]}"
        for limits in found.conflicts
    )
    remedies = tuple(map(_remedy, found.remedies)) or tuple((change, "", "") for change in found.changes)
    near, closest = found.nearest, found.closest
    if closest is not None and _is_near(closest):
        sentence = found.verdict
    elif near is not None and near.needed_bytes > near.limit_bytes:
        missing = figures.gib(near.needed_bytes - near.limit_bytes)
        lacks = f"the nearest plan lacks {missing} GiB on each GPU of stage {near.stage}"
        sentence = f"Nothing fits: {lacks}."
    elif near is not None and near.lacks_outside:
        lacks = " and ".join(f"{figures.gib(n)} GiB of {what}" for what, n in near.lacks_outside.items())
        sentence = f"Nothing fits: the nearest plan lacks {lacks} for each GPU."
    return Verdict(
        kind="infeasible",
        badge="nothing fits",
        sentence=sentence,
        certainty="" if sentence == answer.certainty else answer.certainty,
        nearest=_missing(near) if near is not None else None,
        reasons=tuple(map(figures.sentence_case, (*found.reasons, *conflicts))),
        remedies=remedies,
        notes=(figures.sentence_case(closest_words(closest, problem)),)
        if closest is not None and _is_near(closest)
        else (),
        closest="" if closest is None else closest.plan_id,
    )


def _remedy(remedy: Remedy) -> tuple[str, str, str]:
    """Return a change, its option of the command line, and the plan that it leads to."""
    option = option_words(remedy.settings)
    return figures.sentence_case(remedy.change), option, remedy_words(remedy)[1]


def _is_near(closest: Plan) -> bool:
    """Return whether a plan fits more likely than not, so that what it lacks is a risk, not memory."""
    return closest.prediction.out_of_memory_probability <= HOPELESS


def _missing(near: Shortfall) -> StackedBar:
    need, limit = figures.gib(near.needed_bytes), figures.gib(near.limit_bytes)
    config = figures.configuration_words(near.config, figures.LONG_NAMES)
    title = f"{need} GiB needed, {limit} GiB usable: stage {near.stage} of {config}"
    return memory_bar(title, near.memory_bytes, near.limit_bytes, limit_words="usable memory of the GPU")


def card_of(plan: Plan) -> Card:
    """Return a plan's figures, and its step and heaviest stage as bars."""
    seen = plan.prediction
    stage = seen.stages[seen.heaviest_stage]
    limit = stage.memory_limit_bytes or seen.memory_limit_bytes
    where = "a GPU" if len(seen.stages) == 1 else f"stage {stage.stage}, the heaviest"
    of = figures.gib_of(stage.peak_memory_bytes, limit)
    return Card(
        figures=(
            Fact(
                label="Step",
                value=figures.step_time(seen),
                hint="one optimizer step, with its 80 % interval",
            ),
            Fact(label="Tokens/s", value=tokens_words(plan), hint="tokens trained per second by all GPUs"),
            Fact(label="MFU", value=percent(seen.mfu), hint=figures.COLUMNS["MFU"]),
            Fact(label="Peak memory", value=of, hint="of the heaviest stage, of what a GPU has"),
            Fact(
                label="OOM risk",
                value=figures.risk(seen.out_of_memory_probability),
                hint=figures.COLUMNS["OOM risk"],
            ),
        ),
        step=step_bar(plan),
        memory=memory_bar(f"Memory of {where}: {of}", stage.memory_bytes, limit),
    )


def reasons_of(plan: Plan) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the largest costs, the changes that would lower them, and the limits that bind."""
    why = plan.why
    if why is None:
        return (), ()
    step_s = plan.prediction.step_time_s
    losses = []
    for loss in why.losses:
        cost, share = seconds_like(loss.seconds, step_s), percent(loss.share)
        head = f"{figures.sentence_case(figures.words(loss.term))}: {cost} ({share} of the step)"
        body = f"Lower with: {loss.lowered_by}." if loss.lowered_by else ""
        if loss.change is not None and loss.saves_s is not None and loss.step_change_s is not None:
            saved, change = (seconds_like(abs(one), step_s) for one in (loss.saves_s, loss.step_change_s))
            longer = loss.step_change_s > 0
            way = f"but the step is {change} longer" if longer else f"and the step is {change} shorter"
            body = f"{body} With {loss.change} it costs {saved} less, {way}.".lstrip()
        losses.append((head, body))
    return tuple(losses), tuple(limit_words(limit, step_s) for limit in why.limits)


def facts_of(answer: Answer, problem: Problem, *, digest: str) -> tuple[Fact, ...]:
    """Return the sources of the figures."""
    sources = dict.fromkeys("; ".join(group.gpu.sources) for group in problem.cluster.groups)
    found = [
        Fact(label=f"{name} version", value=clean(str(value))) for name, value in answer.versions.items()
    ]
    found += [
        Fact(label="Problem", value=digest, hint="SHA-256 of the canonical question"),
        Fact(label="Profile", value=clean(profile_words(answer, problem))),
        Fact(label="Default launcher", value=answer.notes.get("launcher", "")),
        Fact(label="Searched", value=searched_line(answer, problem).replace("\N{NO-BREAK SPACE}", " ")),
        Fact(label="Seed", value=str(answer.seed)),
        Fact(label="Model's figures", value=clean(problem.model.source)),
        Fact(label="Cluster's figures", value=clean(problem.cluster.source)),
        Fact(label="GPU's figures", value=clean(" · ".join(sources))),
    ]
    outside = answer.plans[0].prediction.extrapolated if answer.plans else ()
    if outside:
        found.append(Fact(label="Outside the measured range", value=", ".join(map(clean, outside))))
    return tuple(fact for fact in found if fact.value)
