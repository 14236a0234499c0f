"""An answer in five facts: what to run, how fast, whether it fits, how sure, what else would help.

Terminal, page and report show these facts in this order, before anything else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from meshwright.launchers.table import launchers
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.expected_errors import expected_errors
from meshwright.profiles.figures import percent
from meshwright.profiles.library import short_gpu_name
from meshwright.service.report import formatting as figures
from meshwright.service.report.beyond import baseline_words, run_words
from meshwright.service.report.question import adapters_word, clean, samples_words, trained_part
from meshwright.service.report.ranking import changes_of, equal_to_first, switch_words
from meshwright.service.report.sentences import HOPELESS, option_words, saved_words, step_words
from meshwright.solver.answer import (
    OBJECTIVE_NAMES,
    Answer,
    Lever,
    Plan,
    Reference,
    Remedy,
    Shortfall,
    accepts_risk,
    at_most,
    expected_error,
)
from meshwright.solver.configuration import Configuration
from meshwright.solver.explain.sentences import listed
from meshwright.solver.problem import PER_GPU, Problem

_MILLION = 1_000_000
_THOUSANDS = re.compile(r"(?<=\d) (?=\d{3}\b)")
_FEW = 10.0  # seconds below it keep a decimal
_THREE = 3
_LEVERS, _REMEDIES, _NOTES = 3, 4, 2  # shown at most
_LARGE = 0.05  # of the time for each token: changes that save less share a line
_PLANS_NEEDED = 3  # to advise running the first three
TUNE = "meshwright tune 1"
EVERY_LEVER = "meshwright explain --levers"
_OTHERS = {"automodel": "NeMo AutoModel", "none": "no launcher's limits", "any": "any launcher"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryFact:
    """One question of the reader with its answer."""

    label: str  # one word: run, speed, …
    question: str  # the same as a person asks it
    parts: tuple[str, ...]  # the answer in pieces, or in sentences
    command: str = ""  # to paste
    of_sentences: bool = False

    @property
    def text(self) -> str:
        """Return the answer in one line."""
        if not self.of_sentences:
            return " · ".join(self.parts)
        return " ".join(f"{figures.sentence_case(part)}." for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A change that would help, with what it brings and the option that makes it."""

    words: str
    option: str  # of the command line; empty: none states it


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The facts of one answer."""

    title: str
    headline: str  # the comparison with what one would run today, or how the search ended
    facts: tuple[SummaryFact, ...]
    offers: tuple[Offer, ...] = ()
    notes: tuple[str, ...] = ()
    fits: bool = True


def summary_of(answer: Answer, problem: Problem, *, export: str = "") -> Summary:
    """Return an answer's facts; ``export`` is the command that writes the first plan's files."""
    title = title_words(problem)
    if answer.status == "infeasible":
        return _of_nothing(answer, problem, title)
    if not answer.plans:
        sure = SummaryFact(
            label="sure",
            question="How sure is it?",
            parts=(
                _THOUSANDS.sub(",", answer.certainty.rstrip(".")),
                "give the search more time: --time-limit-s",
            ),
            of_sentences=True,
        )
        return Summary(
            title=title,
            headline="No plan was found in time.",
            facts=(sure,),
            notes=_notes(answer, problem),
            fits=False,
        )
    best, fewest = answer.plans[0], answer.notes.get("gpus") == "fewest"
    facts = (
        SummaryFact(
            label="run", question="What do I run?", parts=_run(best, problem, fewest=fewest), command=export
        ),
        SummaryFact(label="speed", question="How fast is it?", parts=tuple(_speed(answer))),
        SummaryFact(label="fits", question="Does it fit?", parts=_fits(best)),
        SummaryFact(
            label="sure",
            question="How sure is it?",
            parts=tuple(_sure(answer)),
            of_sentences=True,
            command=TUNE if export and _has_advice(answer) else "",
        ),
        *_beyond(answer),
    )
    return Summary(
        title=title,
        headline=_headline(answer),
        facts=facts,
        offers=tuple(_offers(answer)),
        notes=_notes(answer, problem),
    )


# --------------------------------------------------------------------------------------------------
# The question.


def title_words(problem: Problem) -> str:
    """Return ``Llama 3.1 70B on 128 × H100 (Megatron-LM, bf16, batch 512 × 8192)``."""
    workload = problem.workload
    batches = " or ".join(map(str, (*problem.options.batch_sizes, workload.global_batch_size)))
    recipe = workload.framework_options.get("precision_recipe", "none")
    said = (
        launcher_words(problem.launcher),
        workload.precision if recipe == "none" else str(recipe),
        f"batch {batches}{samples_words(workload)[0]} × {workload.seq_length}",
    )
    trained = _trained(problem)
    return f"{clean(problem.model.title)}{trained} on {gpus_words(problem.cluster)} ({', '.join(said)})"


def launcher_words(launcher: str) -> str:
    """Return a launcher as its authors write it."""
    return launchers()[launcher].title if launcher in launchers() else _OTHERS.get(launcher, launcher)


def gpus_words(cluster: ClusterSpec) -> str:
    """Return ``16 × H100 + 32 × A100``: the GPUs, as shortly as a request may name them."""
    groups = dict[str, int]()
    for group in cluster.groups:
        gpu = group.gpu
        name = clean(short_gpu_name(gpu.slug, gpu.display_name))
        groups[name] = groups.get(name, 0) + group.num_nodes * group.gpus_per_node
    return " + ".join(f"{number} × {name}" for name, number in groups.items())


def _trained(problem: Problem) -> str:
    workload = problem.workload
    if workload.lora_rank:
        size = "blocks of" if workload.framework_options.get("oft") else "rank"
        return f" {adapters_word(workload)} {size} {workload.lora_rank}"
    if workload.trained_layers:
        return f", {trained_part(problem)} trained"
    return f" with frozen {' and '.join(workload.frozen)}" if workload.frozen else ""


# --------------------------------------------------------------------------------------------------
# The facts.


def _run(plan: Plan, problem: Problem, *, fewest: bool) -> tuple[str, ...]:
    pieces = list(plan_words(plan, problem))
    used, total = plan.config.num_gpus, problem.cluster.num_gpus
    if used != total:
        pieces.append(f"on {used} of {total} GPUs{', the fewest that have a plan' * fewest}")
    if problem.options.batch_sizes:
        pieces.append(f"batch {plan.config.global_batch_size}")
    if problem.launcher == "any" and plan.launchers:
        pieces.append(f"under {launcher_words(plan.launchers[0])}")
    return tuple(pieces)


def plan_words(plan: Plan, problem: Problem) -> Iterator[str]:
    """Yield the sizes and switches of a plan in words; of one GPU no sizes."""
    config = plan.config
    if config.num_gpus == 1:
        yield "one GPU"
        config = replace(config, zero_stage=0)  # states of one GPU are whole
    modules = [one.removeprefix(_MODULES) for one in changes_of(plan) if one.startswith(_MODULES)]
    if len(config.classes) > 1:
        for one in config.classes:
            yield f"{_sizes(one, modules).replace(' · ', ', ')} {_place(one, problem)}"
    else:
        yield from _sizes(config, modules).split(" · ")
        if config.stage_groups:
            yield _place(config, problem)
    yield from (switch_words(one) for one in changes_of(plan) if not one.startswith(_MODULES))
    if plan.needs:
        yield f"needs {' and '.join(plan.needs)}"


def _place(config: Configuration, problem: Problem) -> str:
    """Return ``on H100`` or ``2 stages on H100 (tensor 4) and 4 stages on A100 (tensor 2)``."""
    names = {
        group.gpu.slug: clean(short_gpu_name(group.gpu.slug, group.gpu.display_name))
        for group in problem.cluster.groups
    }
    stages = [(names.get(one.group, one.group), one.tensor_parallel_size) for one in config.stage_groups]
    if len(set(stages)) == 1:
        return f"on {stages[0][0]}"
    sizes = len({size for _, size in stages}) > 1
    return listed([
        f"{number} stage{'s' * (number > 1)} on {name}{f' (tensor {size})' if sizes else ''}"
        for (name, size), number in Counter(stages).items()
    ])  # fmt: skip


_MODULES = "recompute_modules "


def _sizes(config: Configuration, modules: Sequence[str]) -> str:
    of = f" ({', '.join(modules)})" if modules else ""
    words = figures.configuration_words(config, figures.LONG_NAMES)
    return words.replace(" recompute", f" recomputation{of}")


def tokens_words(plan: Plan) -> str:
    """Return the tokens that all GPUs of a plan train in a second: ``148,000``."""
    return _rounded(plan.prediction.tokens_per_s_per_gpu * plan.config.num_gpus)


def _speed(answer: Answer) -> Iterator[str]:
    best = answer.plans[0]
    seen = best.prediction
    low, high = _span(seen.step_time_low_s, seen.step_time_high_s)
    yield f"{figures.seconds(seen.step_time_s)} a step, {low} to {high} likely"
    yield f"{tokens_words(best)} tokens/s"
    yield f"{percent(seen.mfu)} MFU"
    if answer.reference is not None:
        yield _against(answer.reference, best.config.global_batch_size)


def _against(reference: Reference, batch: int) -> str:
    if reference.problems and reference.config.global_batch_size != batch:
        return reference.problems[0]  # what does not divide
    if reference.problems:
        return f"{reference.name} cannot run here"
    return f"{_times(reference)}{reference.name}"


def _times(reference: Reference, linked: str = "") -> str:
    """Return ``1.4 × ``, or ``as fast as `` where that rounds to one."""
    times = f"{reference.speedup:.1f}"
    return "as fast as " if times == "1.0" else f"{times} × {linked}"


def _headline(answer: Answer) -> str:
    reference, best = answer.reference, answer.plans[0]
    step = figures.seconds(best.prediction.step_time_s)
    if reference is None:
        return f"{step} a step: {_proof(answer)}."
    if reference.problems:
        return (
            f"{step} a step. {figures.sentence_case(reference.name)} cannot run: {reference.problems[0]}."
        )
    theirs = figures.seconds(reference.prediction.step_time_s)
    return f"{step} a step, {_times(reference, 'as fast as ')}{reference.name} ({theirs})."


def _span(low_s: float, high_s: float) -> tuple[str, str]:
    """Return both ends of a band, in the unit of the higher one and with as few digits as differ."""
    factor, unit = (1.0, "s") if high_s >= 1 else (1e3, "ms")
    low, high = low_s * factor, high_s * factor
    digits = 0 if high >= _FEW and round(low) != round(high) else 1
    return f"{low:.{digits}f}", f"{high:.{digits}f} {unit}"


def _rounded(value: float) -> str:
    """Return three significant digits, thousands apart: 148,000."""
    whole = round(value)
    return f"{round(whole, _THREE - len(str(whole))):,}"


def _fits(plan: Plan) -> tuple[str, ...]:
    seen = plan.prediction
    stage = seen.stages[seen.heaviest_stage] if seen.stages else None
    limit = (stage.memory_limit_bytes if stage else None) or seen.memory_limit_bytes
    risk = figures.risk(seen.out_of_memory_probability).replace("<", "under ").replace(">", "over ")
    peak = figures.gib_of(seen.peak_memory_bytes, limit)
    offload = plan.config.offload
    more = () if offload == "none" else (figures.offload_words(offload),)
    when = "" if seen.memory is None else f" {figures.MOMENTS[seen.memory.moment]}"
    return (f"{peak} a GPU{when}, out-of-memory risk {risk}", *more)


def _sure(answer: Answer) -> Iterator[str]:
    tied = _tied(answer)
    yield f"{_proof(answer)}{f', tied with {tied} within its error' if tied else ''}"
    yield _error(answer)
    if _has_advice(answer):
        known = expected_errors()
        yield f"run the first three: one was fastest in {known.first_three} of {known.groups} jobs"


def _error(answer: Answer) -> str:
    """Return ``new cluster: 31 to 36 % off, 9 % after one run, 6 % after sixteen``."""
    error = expected_error(answer)
    if error.runs:
        return f"calibrated on {error.runs} measured run{'s' * (error.runs > 1)}: {error.span} % off"
    if not error.after:
        return f"new cluster: {error.span} % off, less after runs of your own"
    one, sixteen = error.after
    return f"new cluster: {error.span} % off, {one} % after one run, {sixteen} % after sixteen"


def _tied(answer: Answer) -> str:
    """Return ``#2, #4 and #5``: the plans that the model cannot tell from the first."""
    equal = sorted(equal_to_first(answer.plans))
    shown = [f"#{rank}" for rank in equal[:_THREE]]
    more = [f"{len(equal) - _THREE} more"] if len(equal) > _THREE else []
    return listed([*shown, *more]) if equal else ""


def _has_advice(answer: Answer) -> bool:
    return len(answer.ranking) >= _PLANS_NEEDED


def _proof(answer: Answer) -> str:
    size = _number(answer.space_size)
    if answer.is_optimal:
        return f"best of {size} under our model"
    if answer.explored < answer.space_size:
        size = f"{_number(answer.explored)} of {size}"
    gap = answer.gap if answer.objective is None else answer.objective.gap
    bound = "no bound is known" if gap is None else f"at most {at_most(gap)} from the best"
    return f"best of {size} searched under our model, {bound}"


def _number(number: int) -> str:
    if number >= _MILLION:
        return f"{number / _MILLION:.1f} million"
    return f"{number:,}"


def _beyond(answer: Answer) -> Iterator[SummaryFact]:
    best, claim = answer.plans[0], answer.objective
    words = list[str]()
    if claim is not None and claim.name in OBJECTIVE_NAMES:
        value = "" if claim.value is None else f": {claim.value:.3g} {claim.unit}"
        words.append(f"ranked by {OBJECTIVE_NAMES[claim.name]}{value}")
    if best.outlook is not None:
        words.append(run_words(best, best.outlook).rstrip("."))
    if words:
        yield SummaryFact(label="in all", question="The whole run?", parts=tuple(words), of_sentences=True)
    if answer.baseline is not None:
        own = baseline_words(answer.baseline, len(answer.ranking)).rstrip(".")
        yield SummaryFact(label="yours", question="And my own?", parts=(own,), of_sentences=True)


def _offers(answer: Answer) -> Iterator[Offer]:
    """Yield what would help most, each with the option to paste; the others in one line."""
    large = [one for one in answer.levers if one.saves > _LARGE]
    shown = [one for one in answer.levers if one in large[:_LEVERS] or one.kind in ("neighbour", "recipe")]
    energy = answer.objective is not None and answer.objective.name == "energy_per_token"
    fewest = answer.notes.get("gpus") == "fewest"
    step_s = answer.ranking[0].prediction.step_time_s if answer.ranking and fewest else inf
    saved = " of the nodes" if fewest else " of the energy" if energy else ""
    offer = partial(_offer, saved=saved, step_s=step_s)
    others = [one for one in answer.levers if one not in shown]
    yield from map(offer, shown)
    if len(others) > 1:
        named = listed([f"{_launcher_named(one.change)} {saved_words(one)}" for one in others])
        yield Offer(words=f"{named} less", option=EVERY_LEVER)
    else:
        yield from map(offer, others)


def _offer(lever: Lever, *, saved: str, step_s: float) -> Offer:
    """Return a lever in words, with its step where that is longer than ``step_s``."""
    kind = lever.effect.rpartition(": ")[2]  # numerics or results; explain --levers has the rest
    slower = lever.step_time_s > step_s
    most = f"{figures.seconds(lever.step_time_s)}{f' on {lever.num_gpus} GPUs' if lever.at_least else ''}"
    longer = f" with a step of {'' if lever.at_least else 'up to '}{most}" if slower else ""
    gain = f"would save {saved_words(lever)}{saved}{longer}{f' ({kind})' if kind else ''}"
    return Offer(
        words=f"{_launcher_named(lever.change)} {gain}",
        option=option_words(lever.settings),
    )


def _launcher_named(change: str) -> str:
    """Return a change with its launcher as its authors write it: ``Accelerate``, not ``accelerate``."""
    what, under, launcher = change.removeprefix("launcher ").rpartition(" under ")
    return f"{what}{under}{launcher_words(launcher)}"


_PATH = ("cluster.", "workload.", "search.", "model.", "launcher")


def warning_words(warning: str) -> str:
    """Return a warning as people read it: without the path of its field."""
    path, colon, rest = warning.partition(": ")
    of_field = colon and path.startswith(_PATH) and " " not in path
    words = clean(rest if of_field else warning)
    return figures.sentence_case(words) if words.split(" ")[0].isalpha() else words


_MOST_COUNTS = 8  # of a sweep that shows each number of nodes
_OF_FEW = (*PER_GPU, "energy_per_token")  # fewer nodes may be better


def _counts(answer: Answer, problem: Problem) -> Iterator[str]:
    """Yield how to see the best plan on each number of nodes, where fewer than all may be better."""
    options, most = problem.options, problem.cluster.num_nodes - problem.options.reserve_nodes
    if not answer.plans or options.gpus != "all":
        return
    counts = sorted(options.num_nodes)
    if len(counts) > 1:
        some = counts[:: -(-len(counts) // _MOST_COUNTS)]
        few = ",".join(map(str, sorted({*some, counts[-1]})))
        yield figures.with_options(
            f"The best of all numbers of nodes. A line for each: --sweep num_nodes={few}"
        )
    elif not counts and most > 1 and options.objective in _OF_FEW:
        fewer = f"--num-nodes 1:{most} with --gpu or --cluster searches all"
        if not problem.cluster.is_homogeneous:
            if any("num_gpus" in text for text in options.constraints):
                return
            of_a_group = max(group.num_gpus for group in problem.cluster.groups)
            fewer = f'--constraint "num_gpus <= {of_a_group}" searches those'
        yield figures.with_options(f"Fewer than {most} nodes may be better by this objective: {fewer}")


def _notes(answer: Answer, problem: Problem) -> tuple[str, ...]:
    """Return the warnings as people read them: without the path of the field; the first few."""
    notes = [*_counts(answer, problem)]
    notes += [figures.with_options(warning_words(one)) for one in answer.warnings]
    skipped = [one.launcher for one in answer.skipped_launchers]
    if skipped and answer.plans:
        number = len(skipped)
        notes.append(f"{number} launcher{'s have' if number > 1 else ' has'} no plan: --full")
    shown = notes[:_NOTES]
    if len(notes) > _NOTES:
        shown.append(f"{len(notes) - _NOTES} more: --full")
    return tuple(shown)


# --------------------------------------------------------------------------------------------------
# Nothing fits.


def _of_nothing(answer: Answer, problem: Problem, title: str) -> Summary:
    found = answer.infeasible
    facts = list[SummaryFact]()
    closest = found.closest if found else None
    if closest is not None:
        runs = accepts_risk(problem, closest.prediction)
        likely = closest.prediction.out_of_memory_probability <= HOPELESS
        step = f"{figures.seconds(closest.prediction.step_time_s)} a step"
        words = (*plan_words(closest, problem), *([step] if likely else []))
        accept = "" if runs else " --accept-risk"
        command = f"meshwright export {closest.plan_id[:8]}{accept}" if runs or likely else ""
        label = "soon" if runs else "close"
        facts.append(SummaryFact(label=label, question="What comes closest?", parts=words, command=command))
        if likely:
            facts.append(SummaryFact(label="fits", question="Does it fit?", parts=_fits(closest)))
    elif found is not None and found.reasons:
        facts.append(
            SummaryFact(label="why", question="Why?", parts=tuple(found.reasons[:2]), of_sentences=True)
        )
    if found is not None and found.nearest is not None:
        facts += _of_host(found.nearest)
    remedies = () if found is None else found.remedies
    offers = [_remedy(one, problem) for one in remedies[:_REMEDIES]]
    if not offers and found is not None:
        offers = [Offer(words=change, option="") for change in found.changes[:_REMEDIES]]
    if len(remedies) > _REMEDIES:
        offers.append(Offer(words=f"{len(remedies) - _REMEDIES} more", option="--full"))
    return Summary(
        title=title,
        headline=_THOUSANDS.sub(",", answer.certainty),
        facts=tuple(facts),
        offers=tuple(offers),
        notes=_notes(answer, problem),
        fits=False,
    )


def _of_host(nearest: Shortfall) -> Iterator[SummaryFact]:
    """Yield what the hosts lack for the offload that needs least; nothing where GPUs alone lack memory."""
    lacks = [f"{figures.gib(lacks)} GiB more {what} a GPU" for what, lacks in nearest.lacks_outside.items()]
    if lacks:
        words = f"{' and '.join(lacks)} would do for {figures.configuration_words(nearest.config)}"
        yield SummaryFact(label="host", question="What does the host lack?", parts=(words,))


def _remedy(remedy: Remedy, problem: Problem) -> Offer:
    same = remedy.num_gpus == problem.cluster.num_gpus
    gpus = "" if same else f" on {remedy.num_gpus} GPU{'s' * (remedy.num_gpus != 1)}"
    peak = f"{figures.gib(remedy.peak_memory_bytes)} GiB"
    step = step_words(remedy)
    change = figures.sentence_case(_launcher_named(remedy.change))
    return Offer(words=f"{change}: {step}{gpus}, {peak}", option=option_words(remedy.settings))


# --------------------------------------------------------------------------------------------------
# For mail.


def mail_lines(summary: Summary) -> Sequence[str]:
    """Return a summary in plain words, a line each, that can be pasted into a mail."""
    lines = [summary.title, summary.headline]
    for fact in summary.facts:
        lines.append(f"{fact.question} {fact.text}")
        if fact.command:
            lines.append(f"  {fact.command}")
    lines += [
        f"What would help? {offer.words}{f': {offer.option}' if offer.option else ''}"
        for offer in summary.offers
    ]
    return [*lines, *(f"Note: {note}" for note in summary.notes)]
