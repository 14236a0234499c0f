"""The smallest sets of edits of launch files that train faster, each read back from the edited texts.

``fixes_of`` is the whole interface: it takes launch files and a cluster, and returns sets of edits by their
number, with the texts that they make, seconds, memory, risk, and what the launcher's rules say.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import unified_diff
from functools import partial
from itertools import chain
from math import ceil, inf
from typing import Any

from meshwright.launchers.editing.edits import Texts
from meshwright.launchers.editing.sites import lines_of
from meshwright.launchers.flags import flag_names
from meshwright.launchers.megatron_lm.read import arguments_of
from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.captured import is_capture
from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.table import launchers, tables_of
from meshwright.launchers.torchtitan.read import configuration_of
from meshwright.profiles.errors import FieldError, InvalidProblemError, PlannerError
from meshwright.profiles.profile import Profile
from meshwright.profiles.storage import WHOLE_PRECISIONS
from meshwright.service.fixing.moves import BASE_FIELD, LOADED, Change
from meshwright.service.fixing.search import Bench, Levels, Trial, search, with_texts
from meshwright.service.library import recommended
from meshwright.service.report.sentences import HOPELESS
from meshwright.service.requests.costs import costs_of
from meshwright.service.requests.launch_files import Own, own_of_files
from meshwright.solver.answer import Answer, Plan, Prediction
from meshwright.solver.check import violations_of_all
from meshwright.solver.configuration import plan_id_of
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import is_within_risk, predict_all
from meshwright.solver.problem import OnProgress, Problem, ShouldStop, problem_digest

WORTH = 0.02  # of the step: the least gain of one more edit
MOST = 6  # edits of a set
ENOUGH = 0.9  # of the possible gain: the smallest set that has as much is recommended


@dataclass(frozen=True, slots=True, kw_only=True)
class FixSet:
    """A set of edits: the edited texts, and the run that is read back from them."""

    edits: tuple[tuple[Change, ...], ...]  # each a decision, with the arguments that follow from it
    files: Mapping[str, str]  # the edited texts, by base name; the other files stay
    own: Own
    prediction: Prediction
    gain: float  # of the step time before: .22 is 22 % less
    verdict: str  # what judged the edited files
    faults: tuple[str, ...] = ()  # what it refuses; none of a set that is offered

    @property
    def number(self) -> int:
        """Return the number of edits."""
        return len(self.edits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixes:
    """All sets of edits of some launch files, from one edit up."""

    source: Source
    own: Own
    prediction: Prediction
    faults: tuple[str, ...]  # of the run as it stands
    sets: tuple[FixSet, ...]  # the best for each number of edits
    recommended: FixSet | None  # None: no edit gains 2 %
    possible_s: float  # the shortest step that is known: of the best plan, or of the best set
    possible_is_searched: bool
    unchangeable: tuple[str, ...]  # values that no edit of a literal changes, each with its line
    in_bf16: Prediction | None = None  # with frozen weights in bf16 instead, which needs your permission
    closest: FixSet | None = None  # if no set fits: the set of least risk, below HOPELESS
    switched: Prediction | None = None  # of the best plan under the launcher ``switches_to``

    @property
    def switches_to(self) -> str | None:
        """Return the launcher that a search plans with, if it has no plans for that of the files."""
        return None if self.own.planned is None else self.own.planned.launcher

    @property
    def fits(self) -> bool:
        """Return whether the run as it stands is within the accepted risk of running out of memory."""
        return is_within_risk(self.own.problem, self.prediction)

    @property
    def accepted(self) -> float | None:
        """Return the risk that the closest set needs accepted, in whole per cent; None: no such set."""
        if self.closest is None:
            return None
        return ceil(self.closest.prediction.out_of_memory_probability * 100) / 100

    def diff(self, chosen: FixSet, paths: Mapping[str, str] | None = None) -> str:
        """Return the unified diff of a set; ``paths``: of files by their base names."""
        parts = list[str]()
        for name, text in sorted(chosen.files.items()):
            path = (paths or {}).get(name, name)
            old = self.source.text if name == self.source.name else self.source.other(name) or ""
            parts += _unified(old, text, path)
        return "".join(parts)

    def of_number(self, number: int) -> FixSet | None:
        """Return the set of a number of edits; None where a smaller set is as good."""
        return next((one for one in self.sets if one.number == number), None)

    def to_json(self) -> dict[str, Any]:
        """Return the sets as plain values."""
        return {
            "launcher": self.own.launcher,
            "step_time_s": self.prediction.step_time_s,
            "possible_s": self.possible_s,
            "max_out_of_memory_probability": self.own.problem.options.max_out_of_memory_probability,
            "recommended": self.recommended.number if self.recommended else None,
            "sets": [self._plain(one) for one in self.sets],
            "in_bf16": None if self.in_bf16 is None else self._predicted(self.in_bf16),
            "closest": None if self.closest is None else self._plain(self.closest),
            "switched": None
            if self.switched is None
            else {"launcher": self.switches_to, **self._predicted(self.switched)},
            "broken": list(self.faults),
            "unchangeable": list(self.unchangeable),
            "notes": list(self.own.notes),
            "unread": list(self.own.unread),
        }

    def _predicted(self, seen: Prediction) -> dict[str, Any]:
        return {
            "step_time_s": seen.step_time_s,
            "gain": _gain(seen, self.prediction),
            "peak_memory_bytes": seen.peak_memory_bytes,
            "memory_limit_bytes": seen.memory_limit_bytes,
            "out_of_memory_probability": seen.out_of_memory_probability,
        }

    def _plain(self, one: FixSet) -> dict[str, Any]:
        return {
            "edits": [[asdict(change) for change in edit] for edit in one.edits],
            **self._predicted(one.prediction),
            "verdict": one.verdict,
            "configuration": asdict(one.own.configuration),
            "diff": self.diff(one),
        }


def _gain(seen: Prediction, before: Prediction) -> float:
    return 1 - seen.step_time_s / before.step_time_s


def _unified(old: str, new: str, path: str) -> list[str]:
    lines = unified_diff(lines_of(old), lines_of(new), f"a/{path}", f"b/{path}")
    return [one if one.endswith("\n") else f"{one}\n\\ No newline at end of file\n" for one in lines]


def fixes_of(
    source: Source,
    request: Mapping[str, object],
    *,
    variables: Mapping[str, str] | None = None,
    values: Mapping[str, object] | None = None,
    ignored: Sequence[str] = (),
    run: int | None = None,
    costs: Callable[[Problem], Profile] = lambda problem: costs_of(problem, None)[0],
    most: int = MOST,
    searched: bool = True,
    base_precision: str | None = None,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Fixes:
    """Return the smallest sets of edits of launch files that make a step shorter.

    Args:
        source: the launch files; ``service.cli.launch_files.source_of`` makes one of paths.
        request: the cluster, and what the files lack, as ``predict`` takes them.
        variables: of the shell.
        values: parts of the configuration that the files leave open.
        ignored: flags to ignore.
        run: which of several runs that a script starts, from 1.
        costs: what a problem is priced with; absent: the catalog's.
        most: the largest number of edits.
        searched: whether a search finds out what is possible; else it is the best set.
        base_precision: bf16 or fp32: what frozen weights may be loaded in instead.
        on_progress: called while that search runs.
        should_stop: whether to end early, with the sets so far.

    Raises:
        InvalidProblemError: the files cannot be read; it names the line. Or no argument of theirs loads
            frozen weights in ``base_precision``.
    """
    if is_capture(source.text):
        raise InvalidProblemError.of(
            source.name, "is a capture, which nothing runs", allowed="the launch script that you captured"
        )
    given, read = _recording(source)
    reading = partial(own_of_files, request, variables=variables, values=values, ignored=ignored, run=run)
    own = reading(given)
    profile = costs(own.problem)
    texts = Texts({name: text for name, text in read.items() if len(text) <= _LONGEST})
    overrides = Overrides(variables=variables or {}, ignored=tuple(ignored), run=run)
    tried = partial(reading, explained=False)
    made = partial(Bench, source, texts, own=own, read=tried, profile=profile, overrides=overrides)
    loaded = _loaded(own, made, base_precision or "bf16")
    if base_precision is not None and loaded is None:
        raise _cannot_load(made(base=base_precision), base_precision)
    bench, aim = made(base=base_precision), loaded if base_precision and loaded else own
    answer = _searched(aim, profile, on_progress, should_stop) if searched else None
    (start,) = evaluate(own.problem, profile, [own.configuration])
    stop = should_stop or (lambda: False)
    levels = search(
        bench, start.objective_s, _wanted(aim, answer), most=most, worth=WORTH, should_stop=stop
    )
    found = _fixes(bench, profile, levels, answer)
    if base_precision is not None or loaded is None:
        return found
    (seen,) = predict_all(loaded.problem, profile, [loaded.configuration])
    return replace(found, in_bf16=seen)


def verified(found: Fixes, overrides: Overrides | None = None) -> Fixes:
    """Return the fixes with the verdict of the launcher's own code on each set, which builds its ranks.

    It builds them from the edited files. If it can't (a TOML of torchtitan 0.2, a script that sets in code
    what a file usually has), it builds them from exported files of the same plan, and the verdict says so.
    If the launcher builds no rank without a GPU, the verdict of its rules stays, marked as not verified.

    Args:
        found: the fixes.
        overrides: what was given next to the files.

    Raises:
        MissingEnvironmentError: the launcher's environment was not made on this machine.
    """
    given = overrides or Overrides()
    sets = {
        one.number: replace(one, verdict=_verdict(one, edited_files(found.source, one, given)))
        for one in found.sets
    }
    chosen = None if found.recommended is None else sets[found.recommended.number]
    return replace(found, sets=tuple(sets.values()), recommended=chosen)


def edited_files(source: Source, one: FixSet, overrides: Overrides) -> dict[str, str]:
    """Return what the launcher builds from the edited files, named as in an export; empty: it can't."""
    edited = with_texts(source, one.files)
    if one.own.launcher == "megatron-lm":
        arguments = arguments_of(edited, overrides)
        if "--vocab-size" not in arguments:  # its tokenizer has it
            arguments += ("--vocab-size", str(one.own.problem.model.vocab_size))
        return {"megatron_args.sh": f"MEGATRON_ARGS=(\n{shlex.join(arguments)}\n)\n"}
    if one.own.launcher == "torchtitan":
        modules, words = configuration_of(edited, overrides)
        return {**modules, "torchtitan_words.json": json.dumps(words)} if modules else {}
    texts = {edited.name: edited.text, **edited.files, **one.files}
    if one.own.launcher == "accelerate":
        own = [text for text in texts.values() if re.search(r"^distributed_type:", text, re.MULTILINE)]
        return {"accelerate.yaml": own[0]} if len(own) == 1 else {}
    if one.own.launcher == "deepspeed":
        own = [text for text in texts.values() if _is_whole_config(text)]
        return {"ds_config.json": own[0]} if len(own) == 1 else {}
    return {}


def _is_whole_config(text: str) -> bool:
    """Return whether a text is a DeepSpeed configuration that leaves no size open."""
    try:
        config = json.loads(text)
    except ValueError:
        return False
    return isinstance(config, dict) and isinstance(config.get("train_micro_batch_size_per_gpu"), int)


def _verdict(one: FixSet, files: Mapping[str, str]) -> str:
    """Return what the launcher's own code says of a set, in words."""
    from meshwright.service.verify.verify import BUILDERS, verify  # noqa: PLC0415 - asked for by few

    if one.own.launcher not in BUILDERS:
        return f"{one.verdict}; not verified: {one.own.launcher} builds no rank without a GPU"
    problem, config = one.own.problem, one.own.configuration
    plan = Plan(
        plan_id=plan_id_of(problem_digest(problem), config),
        rank=0,
        ranked=False,
        config=config,
        prediction=one.prediction,
        objective_s=one.prediction.step_time_s,
    )
    seen = verify(plan, problem, one.own.launcher, own_files=files)
    reasons = f" ({'; '.join(seen.reasons)})" if seen.reasons else ""
    built = "the edited files" if files else "files that export writes of the same plan"
    return f"{seen.verdict} by {seen.launcher} {seen.version}, built from {built}{reasons}"


_LONGEST = 200_000  # characters of a file that is edited; tables of tokenizers are longer
_JUDGED = 4  # sets of a level that are simulated


def _recording(source: Source) -> tuple[Source, dict[str, str]]:
    """Return the source, and the texts that are read of it, which fill up as it is read."""
    read = {**source.files, source.name: source.text}

    def include(name: str) -> str | None:
        text = source.include(name)
        if text is not None:
            read[name] = text
        return text

    return replace(source, include=include), read


def _loaded(own: Own, made: Callable[..., Bench], base: str) -> Own | None:
    """Return the run with frozen weights in another type; None: no edit loads them so."""
    work = own.problem.workload
    if not work.lora_rank or work.base_precision == base:
        return None
    bench = made(base=base)
    moves = chain.from_iterable(map(bench.arguments.moves, bench.arguments.loadings()))
    trials = (bench.attempt([move]) for move in moves)
    found = (one.own for one in trials if one is not None)
    return next((one for one in found if one.problem.workload.base_precision == base), None)


# What starts a person's own program, which may set any type where it loads the model.
_OF_PROGRAMS = ("accelerate", "deepspeed", "transformers", "trl")
_OFF = ("false", "False", "0")


def _cannot_load(bench: Bench, base: str) -> InvalidProblemError:
    """Return why no edit loads frozen weights in a type, and what does.

    Axolotl and LLaMA-Factory load them in the type of their products (axolotl 0.18,
    utils/config/__init__.py:191; LLaMA-Factory 0.9.6, hparams/parser.py:640).
    """
    work = bench.own.problem.workload
    trainer = next((name for name in bench.launchers if name not in _OF_PROGRAMS), None)
    if not work.lora_rank:
        why, instead = "your files train no LoRA adapters", "launch files that train LoRA adapters"
    elif work.base_precision == base:
        why, instead = f"your files load frozen weights in {base} already", "no --base-precision"
    elif work.base_precision not in WHOLE_PRECISIONS:
        why = f"your files load frozen weights in {work.base_precision}"
        instead = _instead_of_few_bits(bench, None if trainer else base)
    elif trainer is None:
        why = "no argument in your files sets the type of frozen weights: set it in your program"
        instead = f"dtype=torch.{LOADED[base]} in from_pretrained, or in SFTConfig's model_init_kwargs"
    else:
        title = launchers()[trainer].title.partition(" with ")[0]  # whatever engine it is given
        why = f"{title} has no setting for it: frozen weights have the type that it computes in"
        instead = "no --base-precision"
    option, message = "--base-precision", f"{base}: {why}"
    fault = FieldError(pointer=option, message=message, allowed=instead, tip=f"without {option}")
    return InvalidProblemError([fault])


def _instead_of_few_bits(bench: Bench, base: str | None) -> str:
    """Return the arguments that load frozen weights in a type of 16 or 32 bits; None: the trainer's own."""
    given, rows = bench.arguments.given, bench.arguments.rows
    stated = [name for name in given if rows[name].sets == BASE_FIELD]
    cuts = [name for name in stated if "dtype" not in name and given[name][1].value not in _OFF]
    if not cuts:
        return "a model whose checkpoint has 16 bits"
    dashes = "--" if given[cuts[0]][1].is_flag else ""
    removed = f"remove {dashes}{f' and {dashes}'.join(cuts)}"
    if base is not None:
        name = next((name for name in stated if "dtype" in name), "dtype")
        return f"{removed}, set {dashes}{name} {LOADED[base]}"
    quantised = any(site.value == "qlora" for _, site in bench.texts.named("adapter"))
    return f"{removed}, set adapter: lora" if quantised else removed


def _searched(
    own: Own, profile: Profile, on_progress: OnProgress | None, should_stop: ShouldStop | None
) -> Answer | None:
    try:
        return ask(
            recommended(own.question), profile, on_progress=on_progress, should_stop=should_stop,
            explains_none=False,
        )  # fmt: skip
    except PlannerError:  # what runs, though no plan has it
        return None


def _wanted(own: Own, answer: Answer | None) -> dict[str, list[str]]:
    """Return the values of the best plan's own launch files by argument, as further values to try."""
    if answer is None or not answer.plans or own.launcher not in launcher_names():
        return {}
    found = dict[str, list[str]]()
    for plan in answer.plans[:_PLANS]:
        try:
            texts = Texts(export(plan, recommended(own.question), own.launcher).files)
        except PlannerError:
            continue
        for name, row in flag_names(*tables_of(own.launcher)).rows.items():
            place = next(iter(texts.named(name)), None) if row.role == "priced" else None
            if place is None or row.type.startswith("bool"):
                continue
            values = [literal.value for _, literal in texts.literals(*place) if literal.value]
            found.setdefault(name, []).extend(values[:1])
    return found


_PLANS = 3  # whose values are tried


def _fixes(bench: Bench, profile: Profile, levels: Levels, answer: Answer | None) -> Fixes:
    own = bench.own
    (before,) = predict_all(own.problem, profile, [own.configuration])
    (faults,) = violations_of_all(own.problem, profile, [own.configuration])
    fits = is_within_risk(own.problem, before)
    sets, best_s = list[FixSet](), before.step_time_s if fits else inf  # what fits counts first
    for _, trials in sorted(levels.best.items()):
        judged = _judged(trials[:_JUDGED], profile, before, faults)
        if not judged:
            continue
        first = min(judged, key=lambda one: one.prediction.step_time_s)
        if first.prediction.step_time_s < best_s - WORTH * before.step_time_s:
            sets.append(first)
            best_s = first.prediction.step_time_s
    found = answer.plans[:1] if answer is not None else ()
    plans = () if own.planned is not None else found  # those of another launcher take more than edits
    steps = [plan.prediction.step_time_s for plan in plans[:1]] + [
        one.prediction.step_time_s for one in sets
    ]
    possible_s = min(steps, default=before.step_time_s)
    start_s = sets[0].prediction.step_time_s if sets and not fits else before.step_time_s
    return Fixes(
        source=bench.source,
        own=own,
        prediction=before,
        faults=tuple(faults),
        sets=tuple(sets),
        recommended=_recommended(sets, start_s, possible_s),
        possible_s=min(possible_s, before.step_time_s) if sets or not plans else possible_s,
        possible_is_searched=bool(plans),
        unchangeable=tuple(_unchangeable(bench)),
        closest=None if sets or fits else _closest(levels, profile, before, faults),
        switched=next((one.prediction for one in found), None) if own.planned is not None else None,
    )


def _closest(levels: Levels, profile: Profile, before: Prediction, faults: Sequence[str]) -> FixSet | None:
    """Return the set with the lowest out-of-memory risk of at most ``HOPELESS``; None: no set has that."""
    accepted = list[Trial]()
    for one in levels.lightest:
        problem = one.own.problem
        (seen,) = predict_all(problem, profile, [one.own.configuration])
        if seen.out_of_memory_probability <= HOPELESS:
            options = replace(problem.options, max_out_of_memory_probability=HOPELESS)
            accepted.append(replace(one, own=replace(one.own, problem=replace(problem, options=options))))
    judged = _judged(accepted, profile, before, faults)
    return min(judged, key=lambda one: one.prediction.out_of_memory_probability, default=None)


def _judged(
    trials: Sequence[Trial], profile: Profile, before: Prediction, faults: Sequence[str]
) -> list[FixSet]:
    """Return trials with their predictions; those that the independent check refuses are left out."""
    found = list[FixSet]()
    for one in trials:
        problem, config = one.own.problem, one.own.configuration
        (wrong,) = violations_of_all(problem, profile, [config])
        if set(wrong) - set(faults):
            continue
        (seen,) = predict_all(problem, profile, [config])
        found.append(
            FixSet(
                edits=tuple(move.changes for move in one.moves),
                files=one.texts,
                own=one.own,
                prediction=seen,
                gain=_gain(seen, before),
                verdict=f"accepted by the rules and the reader of {one.own.launcher}",
            )
        )
    return found


def _recommended(sets: Sequence[FixSet], before_s: float, possible_s: float) -> FixSet | None:
    """Return the smallest set with nine tenths of the possible gain, else of what edits gain."""
    if not sets:
        return None
    best_s = min(one.prediction.step_time_s for one in sets)
    for least_s in (possible_s, best_s):
        wanted_s = before_s - ENOUGH * (before_s - least_s)
        found = next((one for one in sets if one.prediction.step_time_s <= wanted_s + 1e-9), None)
        if found is not None:
            return found
    return sets[-1]


def _unchangeable(bench: Bench) -> Iterator[str]:
    for file, site in bench.arguments.unchangeable():
        yield f"{file}, line {site.line}: {site.shown} {site.value} is computed, so no edit here changes it"
