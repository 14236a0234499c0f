"""What a change to launch files costs or saves: each run of the base beside that of the head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.launchers.reading.base import Source
from meshwright.profiles.errors import PlannerError
from meshwright.profiles.profile import Profile
from meshwright.service.report.formatting import configuration_words, risk, seconds, stage_memory
from meshwright.service.requests.launch_files import Own
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import SHORT_NAMES
from meshwright.solver.predict import is_within_risk, predict
from meshwright.solver.problem import Problem

_LISTED = 10  # differences of one run
_MOST = 40  # files of a comment, which GitHub limits to 65,536 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One launch file on one side of a change: its prediction, or why there is none."""

    own: Own | None = None
    prediction: Prediction | None = None
    fault: str = ""
    absent: bool = False

    @property
    def tokens_per_s(self) -> float | None:
        """Return the tokens per second of all GPUs; None: not priced."""
        if self.own is None or self.prediction is None:
            return None
        return self.prediction.tokens_per_s_per_gpu * self.own.configuration.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFile:
    """One launch file before and after."""

    name: str
    base: Side
    head: Side

    @property
    def runs_out(self) -> bool:
        """Return whether the run fitted before, and may run out of memory now."""
        return _may_run_out(self.head) and self.base.prediction is not None and not _may_run_out(self.base)

    @property
    def time_change(self) -> float | None:
        """Return by how much a token takes longer: .02 is 2 %; None where a side is not priced.

        Seconds for each token on all GPUs, so that a larger batch is no loss.
        """
        before, after = self.base.tokens_per_s, self.head.tokens_per_s
        return before / after - 1 if before and after else None


def _may_run_out(side: Side) -> bool:
    if side.own is None or side.prediction is None:
        return False
    return not is_within_risk(side.own.problem, side.prediction)


def side_of(
    source: Source | None, read: Callable[[Source], Own], costs: Callable[[Problem], Profile]
) -> Side:
    """Return a launch file as it is priced; a file that cannot be read has its fault."""
    if source is None:
        return Side(absent=True)
    try:
        own = read(source)
        return Side(own=own, prediction=predict(own.problem, costs(own.problem), own.configuration))
    except PlannerError as fault:
        return Side(fault=" ".join(str(fault).split()))


def markdown(found: Sequence[ComparedFile], limit: float | None, cluster: str) -> str:
    """Return the comment for a pull request."""
    return "\n".join([*_lines(found, limit, cluster), ""])


MARK = "<!-- meshwright fix --compare -->"  # by which a comment is found again


def _lines(found: Sequence[ComparedFile], limit: float | None, cluster: str) -> Iterator[str]:
    yield MARK
    yield f"### {_headline(found, limit)}"
    yield ""
    if not found:
        yield "No launch file that we can read is changed."
        return
    yield f"Predicted on {cluster}."
    yield ""
    yield "| launch file | step before | step after | time per token | peak memory after | OOM risk |"
    yield "|---|---:|---:|---:|---:|---:|"
    shown = sorted(found, key=_place)[:_MOST]
    for one in shown:
        yield _row(one)
    if len(found) > _MOST:
        yield ""
        yield f"{len(found) - _MOST} more files are left out of this table."
    yield ""
    for one in shown:
        yield from _differences(one)


def _place(one: ComparedFile) -> tuple[bool, float]:
    """Return where a file stands: those that no longer fit or read first, then those that change most."""
    return not (one.runs_out or one.head.fault), -abs(one.time_change or 0.0)


def _headline(found: Sequence[ComparedFile], limit: float | None) -> str:
    short = [one.name for one in found if one.runs_out]
    if short:
        return f"{', '.join(f'`{name}`' for name in short[:_LISTED])} may run out of memory"
    changes = {one.name: one.time_change for one in found if one.time_change is not None}
    if not changes:
        return "Launch files: nothing to compare"
    limited = "" if limit is None else f", and the limit is {limit:.3g} %"
    worst, best = max(changes, key=changes.__getitem__), min(changes, key=changes.__getitem__)
    shown = worst if changes[worst] > _SAME else best
    change, what = changes[shown], "Training" if len(changes) == 1 else f"Training with `{shown}`"
    if change > _SAME:
        return f"{what} takes {100 * change:.1f} % more time{limited}"
    if change < -_SAME:
        return f"{what} takes {-100 * change:.1f} % less time"
    return "Training takes as long as before"


_SAME = 5e-4


def above_limit(found: Iterable[ComparedFile], limit: float | None) -> list[ComparedFile]:
    """Return the runs that take longer by more than a limit in percent, or that no longer fit or read."""
    if limit is None:
        return []
    return [
        one
        for one in found
        if (one.time_change is not None and one.time_change * 100 > limit)
        or one.runs_out
        or (one.base.prediction is not None and bool(one.head.fault))
    ]


def percent(change: float) -> str:
    """Return ``+3.2 %``."""
    return f"{change * 100:+.1f} %".replace("-", "−")


def _row(one: ComparedFile) -> str:
    after, change = one.head.prediction, one.time_change
    cells = (
        f"`{one.name}`",
        _cell(one.base),
        _cell(one.head),
        "–" if change is None else percent(change),
        "–" if after is None else stage_memory(after),
        "–" if after is None else risk(after.out_of_memory_probability),
    )
    return f"| {' | '.join(cells)} |"


def _cell(side: Side) -> str:
    if side.absent:
        return "not there"
    return "not read" if side.prediction is None else seconds(side.prediction.step_time_s)


def _differences(one: ComparedFile) -> Iterator[str]:
    for side, name in ((one.base, "before"), (one.head, "after")):
        if side.fault:
            yield f"- `{one.name}` {name}: {side.fault[:400]}"
    if one.base.own is None or one.head.own is None:
        if one.head.own is not None:
            yield f"- `{one.name}`: {configuration_words(one.head.own.configuration)}"
        return
    changes = list(_changes(one.base.own, one.head.own))
    listed = "; ".join(changes[:_LISTED]) or "nothing that a prediction reads"
    yield f"- `{one.name}`: {listed}"
    if set(one.head.own.unread) - set(one.base.own.unread):
        unread = ", ".join(f"`{name}`" for name in one.head.own.unread)
        yield f"- `{one.name}`: not understood, so not part of the prediction: {unread}"


def _changes(before: Own, after: Own) -> Iterator[str]:
    """Yield the differences of two runs in words: sizes, workload, options."""
    old, new = _values(before), _values(after)
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield f"{SHORT_NAMES.get(name, name)} {_word(old.get(name))} → {_word(new.get(name))}"


def _values(own: Own) -> dict[str, object]:
    workload: dict[str, Any] = asdict(own.problem.workload)
    options: Mapping[str, object] = workload.pop("framework_options")
    return {**asdict(own.configuration), **workload, **options, "launcher": own.launcher}


def _word(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "none"
    return str(value)


def to_json(found: Sequence[ComparedFile]) -> list[dict[str, Any]]:
    """Return the comparisons as plain values."""
    return [
        {
            "name": one.name,
            "time_change": one.time_change,
            **{
                name: {
                    "step_time_s": side.prediction.step_time_s if side.prediction else None,
                    "peak_memory_bytes": side.prediction.peak_memory_bytes if side.prediction else None,
                    "fault": side.fault,
                    "absent": side.absent,
                }
                for name, side in (("base", one.base), ("head", one.head))
            },
        }
        for one in found
    ]
