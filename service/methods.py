"""Ways to train a model that people choose between: in full, with offload, as LoRA or QLoRA adapters.

``meshwright memory``, ``meshwright fits`` and the assistants' tool ask each of them under each launcher.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from meshwright.profiles.units import GIB

if TYPE_CHECKING:  # help loads no solver
    from meshwright.profiles.model import ModelSpec
    from meshwright.profiles.stored import StoredAs
    from meshwright.solver.planner.fits import Fit
    from meshwright.solver.problem import Problem

RANK = 16  # of adapters, where none is asked for
SEQUENCES = 32  # of a GPU in a step, where no batch is asked for
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_VERDICTS = ("yes", "tight", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to train the model."""

    title: str
    option: str  # of ``meshwright plan``, as typed
    workload: Mapping[str, Any]
    allow: tuple[str, ...] = ()
    is_first: bool = False


def methods_of(optimizer: str | None, lora_rank: int, stored: StoredAs = "") -> Iterator[Method]:
    """Yield the methods: an optimizer that is asked for takes the place of the usual ones.

    ``stored``: how the model's checkpoint is stored, which adapters may leave as it is.
    """
    from meshwright.profiles.stored import STORED, checkpoint_base  # noqa: PLC0415 - help loads no profiles

    plain = optimizer or "adamw"
    chosen = f"--optimizer {plain}" if optimizer else ""
    yield Method(
        title=f"full, {plain}" if optimizer else "full", option=chosen, workload={"optimizer": plain},
        is_first=True,
    )  # fmt: skip
    if optimizer is None:  # launchers have some of them; paged states leave a GPU that is full
        yield Method(title="full", option="--optimizer adamw-paged", workload={"optimizer": "adamw-paged"})
        for name in ("adamw-8bit", "adamw-8bit-bf16", "adamw-8bit-paged", "adamw-8bit-paged-bf16"):
            yield Method(title="8-bit Adam", option=f"--optimizer {name}", workload={"optimizer": name})
    yield Method(
        title="offload", option=f"{chosen} --allow offload".strip(), workload={"optimizer": plain},
        allow=("offload",),
    )  # fmt: skip
    adapters = f"--lora-rank {lora_rank}"
    yield Method(title="LoRA", option=adapters, workload={"lora_rank": lora_rank})
    bases: dict[str, str] = {"nf4": "QLoRA"}
    if (own := checkpoint_base(stored, of_experts=True)) is not None:
        bases[own] = f"on {STORED[stored].words}"
    for base, title in bases.items():
        yield Method(
            title=title, option=f"{adapters} --base-precision {base}",
            workload={"lora_rank": lora_rank, "base_precision": base},
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# What fits on some GPUs: every method under every launcher.


@dataclass(frozen=True, kw_only=True)
class FitRow:
    """One method under one launcher on the GPUs that were asked about."""

    method: Method
    launcher: str
    problem: Problem  # that its command plans
    fit: Fit
    command: str  # of ``meshwright plan``, which finds the plan and writes its files
    seq_length: int
    allow: tuple[str, ...]  # switches under which it fits, and without which it doesn't
    largest: int  # sequences of a GPU in a step, which bounds the micro-batch

    def seconds_for(self, tokens: float) -> float:
        """Return how long the steps of so many tokens take."""
        return tokens / self.fit.tokens_per_s

    @property
    def launched(self) -> str:
        """Return the launcher, and what it must turn on."""
        return " + ".join((self.launcher, *(_SWITCHES[name] for name in self.allow)))

    @property
    def micro_batch(self) -> str:
        """Return the largest micro-batch that fits; + where the batch has no more sequences to try."""
        size = self.fit.largest_micro_batch
        return "–" if not size else f"{size}+" if size >= self.largest else str(size)

    def record(self, tokens: float) -> dict[str, object]:
        """Return it as JSON."""
        from meshwright.service.report.formatting import LONG_NAMES, configuration_words  # noqa: PLC0415 - help loads no solver

        fit, least = self.fit, self.fit.lightest.prediction
        fits = fit.verdict != "no"
        return {
            "method": self.method.title,
            "launcher": self.launcher,
            "allow": [*self.allow],
            "fits": fit.verdict,
            "largest_micro_batch": fit.largest_micro_batch,
            "tokens_per_s": fit.tokens_per_s if fits else None,
            "hours": self.seconds_for(tokens) / _HOUR_S if fits else None,
            "least_memory_bytes": least.peak_memory_bytes,
            "peak_memory_bytes": fit.prediction.peak_memory_bytes,
            "memory_limit_bytes": fit.prediction.memory_limit_bytes,
            "out_of_memory_probability": fit.prediction.out_of_memory_probability,
            "configuration": configuration_words(fit.config, LONG_NAMES),
            "command": self.command,
        }


def what_fits(
    request: Mapping[str, Any],
    *,
    launcher: str = "any",
    optimizer: str | None = None,
    lora_rank: int = RANK,
    typed: Mapping[str, object] | None = None,
    asked: Sequence[str] = (),
) -> list[FitRow]:
    """Return every method under every launcher that can train so, those that fit first.

    How fast they are is asked of ``with_speeds``.

    Args:
        request: a request with model and cluster, and what is known of the workload: seq_length
            (``usual_length`` if left out), global_batch_size (32 sequences for each GPU), precision.
        launcher: one of them; any: all.
        optimizer: of full training; None: AdamW, and AdamW in 8 bits.
        lora_rank: of the adapters.
        typed: options of samples and images as the user typed them, for the commands.
        asked: model and GPUs as the user typed them, for the commands; empty: as the request has them.

    Raises:
        InvalidProblemError: the request is invalid, or no method is possible under the launcher.
    """
    from meshwright.profiles.errors import InvalidProblemError  # noqa: PLC0415 - help loads no solver
    from meshwright.profiles.inline import cluster_from_mapping, model_from_mapping  # noqa: PLC0415 - the same
    from meshwright.service.requests.checks import check_launcher  # noqa: PLC0415 - the same
    from meshwright.service.requests.parse import parse_problem  # noqa: PLC0415 - the same
    from meshwright.solver.space.launcher_choice import bound, launchers_able  # noqa: PLC0415 - the same

    check_launcher(launcher)
    gpus = cluster_from_mapping(request.get("cluster")).num_gpus
    model = model_from_mapping(request.get("model"))
    usual = usual_length(model)
    work = {"seq_length": usual, "global_batch_size": SEQUENCES * gpus, **request.get("workload", {})}
    alone = "none" if launcher == "any" else launcher
    question = asked or [word for part in ("model", "cluster") for word in _typed(request.get(part), part)]
    found, refused = list[FitRow](), None
    for method in methods_of(optimizer, lora_rank, model.stored_as):
        whole = {
            **request, "workload": {**work, **_of_method(method, work)}, "launcher": "any",
            "search": {**request.get("search", {}), "allow": [*method.allow]},
        }  # fmt: skip
        try:
            problem = parse_problem(whole)
            able = launchers_able(problem)
            if method.is_first and not (able if launcher == "any" else launcher in able):
                parse_problem({**whole, "launcher": alone})  # says why not, and who can
        except InvalidProblemError as fault:
            if method.is_first:
                refused = fault
            continue
        for name in able if launcher == "any" else [one for one in able if one == launcher]:
            under = bound(problem, name)
            fit, allow = _best_fit(under)
            if fit is not None:
                every = ["--lora-target all-linear"] * _adapts_fewer(problem, name)
                options = (method.option, *every, *(f"--allow {one}" for one in allow))
                own = replace(method, option=" ".join(options))
                command = _command(question, {**work, **(typed or {})}, own, name, fit)
                each = max(work["global_batch_size"] // gpus, 1)
                found.append(
                    FitRow(
                        method=method, launcher=name, problem=_allowing(under, allow), fit=fit,
                        command=command, seq_length=work["seq_length"], largest=each, allow=allow,
                    )
                )  # fmt: skip
    if not found and refused is not None:
        raise refused
    return _best_of_each(found)


def with_speeds(rows: Sequence[FitRow], most: int | None = None) -> list[FitRow]:
    """Return rows in order, those that fit at the speed of the plan of their command, fastest first.

    ``most``: how many of a method get it, and come first among its rows, unless they are all but one; None:
    all. Others keep the configuration of least memory.
    """
    able = [row for row in rows if row.fit.verdict != "no"]
    number = Counter(row.method.title for row in able)
    left = {title: count if most is None or count <= most + 1 else most for title, count in number.items()}
    bounds_s = _bounds_s([row for row in able if left[row.method.title] < number[row.method.title]])
    ordered = list[tuple[tuple[int, float], FitRow]]()
    for title, verdict in product(number, _VERDICTS[:-1]):
        some = [row for row in able if (row.method.title, row.fit.verdict) == (title, verdict)]
        fast = _fastest_of([(bounds_s.get(id(row), 0.0), row) for row in some], left[title])
        left[title] -= len(fast)
        rest = [row for at, row in enumerate(some) if at not in fast]
        ordered += [(_place(row), row) for row in fast.values()]
        ordered += [((_VERDICTS.index(verdict), math.inf), row) for row in rest]
    ordered += [(_place(row), row) for row in rows if row.fit.verdict == "no"]
    return [row for _, row in sorted(ordered, key=lambda one: one[0])]


def _bounds_s(rows: Sequence[FitRow]) -> Mapping[int, float]:
    """Return a lower bound of each row's step, by its identity; 0: none is known."""
    from meshwright.solver.planner.fits import least_steps_s  # noqa: PLC0415 - help loads no solver

    return dict(zip(map(id, rows), least_steps_s([row.problem for row in rows]), strict=True))


def _fastest_of(rows: Sequence[tuple[float, FitRow]], most: int) -> Mapping[int, FitRow]:
    """Return the fastest rows by their place, planned; their bounds or the others refute the rest."""
    from meshwright.solver.planner.fits import planned  # noqa: PLC0415 - help loads no solver

    fast = list[tuple[float, int, FitRow]]()
    # those without a bound last: others refute them in less time
    for at in sorted(range(len(rows)), key=lambda at: (rows[at][0] or math.inf, at)):
        bound_s, row = rows[at]
        within_s = math.inf if len(fast) < most else fast[-1][0] if fast else 0.0
        if most and bound_s <= within_s:
            fit = planned(row.problem, row.fit, within_s)
            found = [] if fit is None else [(fit.prediction.step_time_s, at, replace(row, fit=fit))]
            fast = sorted([*fast, *found], key=lambda one: one[:2])[:most]
    return {at: row for _, at, row in fast}


def _allowing(problem: Problem, switches: Sequence[str]) -> Problem:
    return replace(problem, options=replace(problem.options, allow=(*problem.options.allow, *switches)))


_USUAL_LENGTH = 4096


def usual_length(model: ModelSpec) -> int:
    """Return the tokens of a sequence where none are stated: 4096, or all that have positions."""
    return min(_USUAL_LENGTH, model.max_position_embeddings or _USUAL_LENGTH)


# Switches that save memory on one card, in the order in which they are tried, and what people call them.
_SWITCHES = {"quantizes_experts": "4-bit experts", "loss_kernel": "loss in parts"}


def _adapts_fewer(problem: Problem, launcher: str) -> bool:
    """Return whether a launcher adapts fewer layers by itself than all, with which a row is priced."""
    from meshwright.profiles.capabilities import launcher_capabilities  # noqa: PLC0415 - help loads no solver

    able, work = launcher_capabilities(launcher), problem.workload
    if not work.lora_rank:
        return False
    every = able.targets_of(problem.model, work.lora_targets)
    return {*able.default_targets(problem.model)} != {*every}


def _best_fit(problem: Problem) -> tuple[Fit | None, tuple[str, ...]]:
    """Return what fits, with the fewest switches that it takes; without them where they are no help."""
    from meshwright.solver.planner.fits import fit_of  # noqa: PLC0415 - help loads no solver
    from meshwright.solver.problem import under_last_setting  # noqa: PLC0415 - the same

    best, used = fit_of(problem), tuple[str, ...]()
    for name in _SWITCHES:
        if best is None or best.verdict == "yes":
            break
        other = under_last_setting(problem, name)
        fit = None if other is None else fit_of(other)
        if other is not None and fit is not None and _rank(fit) < _rank(best):
            problem, best, used = other, fit, (*used, name)
    return best, used


def _rank(fit: Fit) -> tuple[int, float]:
    return _VERDICTS.index(fit.verdict), fit.prediction.out_of_memory_probability


def _best_of_each(rows: Sequence[FitRow]) -> list[FitRow]:
    """Return the best row of each method and launcher."""
    from meshwright.solver.planner.fits import with_fastest  # noqa: PLC0415 - help loads no solver

    alike = dict[tuple[str, str, str], list[FitRow]]()
    for row in rows:
        alike.setdefault((row.method.title, row.launcher, row.fit.verdict), []).append(row)
    found = [
        row if len(some) == 1 else replace(row, fit=with_fastest(row.problem, row.fit))
        for some in alike.values()
        for row in some
    ]
    best = dict[tuple[str, str], FitRow]()
    for row in found:
        known = best.setdefault((row.method.title, row.launcher), row)
        if _place(row) < _place(known):
            best[row.method.title, row.launcher] = row
    return [*best.values()]


def _place(row: FitRow) -> tuple[int, float]:
    """Return what rows are ordered by: those that fit first, fastest first."""
    fits = row.fit.verdict != "no"
    least = float(row.fit.lightest.prediction.peak_memory_bytes)
    return _VERDICTS.index(row.fit.verdict), -row.fit.tokens_per_s if fits else least


_OF_DATA = ("sample", "reference", "images_per_sample", "image_tokens")


def _of_method(method: Method, work: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a method's workload: adapters are turned off to be their own reference."""
    turned_off = work.get("reference") == "frozen" and "lora_rank" in method.workload
    return {**method.workload, **({"reference": "adapters-off"} if turned_off else {})}


def _command(
    question: Sequence[str], work: Mapping[str, Any], method: Method, launcher: str, fit: Fit
) -> str:
    """Return the command that plans a row and writes its launch files."""
    words = ["meshwright", "plan", *question]
    stated = {**work, **{name: one for name, one in _of_method(method, work).items() if name in _OF_DATA}}
    for name in ("global_batch_size", "seq_length", "precision", *_OF_DATA):
        if stated.get(name) is not None and (name, stated[name]) != ("precision", "bf16"):
            words += [
                f"--{name.replace('_', '-')}",
                f"{stated[name]:g}" if isinstance(stated[name], float) else str(stated[name]),
            ]
    words += ["--launcher", launcher, *method.option.split()]
    if fit.verdict == "tight":
        words += ["--max-oom-probability", f"{fit.accepted_risk:g}"]
    folder = f"{launcher}-{method.title.lower().replace(', ', '-').replace(' ', '-')}"
    return " ".join([*map(shlex.quote, words), "--save-dir", shlex.quote(folder)])


def _typed(part: object, name: str) -> list[str]:
    """Return a part of a request as the command line takes it; a described one stands as its file."""
    if isinstance(part, str):
        return [part] if name == "model" else ["--cluster", part]
    stated = part if isinstance(part, Mapping) else {}
    if set(stated) == {"name"} and name == "model":
        return [str(stated["name"])]
    if name == "cluster" and stated.get("name") == "here":
        return ["--cluster", "here"]
    if name == "cluster" and set(stated) == {"gpu", "num_gpus"}:
        return ["--gpus", f"{stated['num_gpus']}x{stated['gpu']}"]
    if name == "cluster" and set(stated) in ({"name", "num_nodes"}, {"name"}):
        return ["--cluster", str(stated["name"]), "--num-nodes", str(stated.get("num_nodes", 1))]
    return ["./config.json"] if name == "model" else ["--cluster", "cluster.yaml"]


def memory_words(row: FitRow) -> str:
    """Return the least memory, and what there is."""
    least, fastest = row.fit.lightest.prediction, row.fit.prediction
    return f"{least.peak_memory_bytes / GIB:.1f} of {fastest.memory_limit_bytes / GIB:.1f}"


_FEW_H, _DAYS_H = 10.0, 96.0  # up to which hours have a decimal, and from which on days are told


def time_words(seconds: float) -> str:
    """Return hours in words: 12 min, 3.4 h, 41 h, 12 days."""
    hours = seconds / _HOUR_S
    if hours < 1.0:
        return f"{math.ceil(seconds / _MINUTE_S)} min"
    if hours < _DAYS_H:
        return f"{hours:.1f} h" if hours < _FEW_H else f"{hours:.0f} h"
    return f"{hours / 24:.0f} days"
