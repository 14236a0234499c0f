"""Sets of edits of launch files as lines for a terminal: seconds, memory, risk, and what changes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from textwrap import wrap

from meshwright.profiles.units import GIB
from meshwright.service.fixing.fixes import WORTH, Fixes, FixSet
from meshwright.service.fixing.moves import Change
from meshwright.service.report.formatting import risk, seconds, stage_memory, wrapped

_LISTED = 8  # notes, each on its line


def fix_lines(
    found: Fixes, chosen: FixSet | None, width: int, *, given: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines: the run as it stands, each set of edits, and what no edit can change.

    ``given``: the paths of the launch files, as they were typed.
    """
    before = found.prediction
    yield _line(
        f"{found.source.name}, {found.own.launcher}: {seconds(before.step_time_s)} a step, "
        f"{stage_memory(before)}, OOM risk {risk(before.out_of_memory_probability)}",
        width,
    )
    if found.possible_s < before.step_time_s:
        what = "The best plan of a search" if found.possible_is_searched else "The best set of edits"
        yield _line(
            f"{what} takes {seconds(found.possible_s)} ({_less(found.possible_s, before.step_time_s)}).",
            width,
        )
    if found.switched is not None and found.switched.step_time_s < found.possible_s:
        switched_s = found.switched.step_time_s
        files = (word for path in given or (found.source.name,) for word in ("--from-args", path))
        yield _line(
            f"A switch to {found.switches_to} without DeepSpeed takes {seconds(switched_s)} "
            f"({_less(switched_s, before.step_time_s)}). To see that plan, with the other options of this "
            f"command: {shlex.join(('meshwright', 'explain', *files))}",
            width,
        )
    if chosen is not None:
        what = "that we recommend" if chosen is found.recommended else "that you chose"
        yield _line(f"* marks the edits {what}.", width)
    yield ""
    if not found.sets:
        what = "saves 2 % of the step or more" if found.fits else "lets the run fit into memory"
        yield _line(f"No edit that we can make {what}.", width)
    if found.closest is not None:
        accepts = f"To accept the risk of the closest edits, add --max-oom-probability {found.accepted:g}"
        yield _line(accepts, width)
        yield from _set_lines(found.closest, found, is_chosen=False, width=width)
    for one in found.sets:
        yield from _set_lines(one, found, is_chosen=one is chosen, width=width)
    if chosen is not None:
        yield ""
        what = "Recommended" if chosen is found.recommended else "Chosen"
        yield _line(f"* {what}: {chosen.verdict}.", width)
        others = [one for one in found.sets if one is not chosen and one.verdict != chosen.verdict]
        yield from (_line(f"  {one.number} edits: {one.verdict}.", width) for one in others)
        yield from (_line(f"  {text}", width) for text in _other_uses(found, chosen))
    yield from _remarks(found, width)


def _set_lines(one: FixSet, found: Fixes, *, is_chosen: bool, width: int) -> Iterator[str]:
    seen = one.prediction
    words = f"{one.number} edit{'s' * (one.number > 1)}"
    less = _less(seen.step_time_s, found.prediction.step_time_s)
    yield (
        f"{'*' if is_chosen else ' '} {words:<8} {seconds(seen.step_time_s):>7}  {less:>6}  "
        f"{stage_memory(seen)}  OOM risk {risk(seen.out_of_memory_probability)}"
    )
    for edit in one.edits:
        for at, change in enumerate(edit):
            lead = "           " if at == 0 else "             with "
            yield from wrap(
                change_words(change, found.source.name), width, initial_indent=lead,
                subsequent_indent=" " * 15, break_on_hyphens=False, break_long_words=False,
            )  # fmt: skip


def change_words(change: Change, main: str) -> str:
    """Return ``--micro-batch-size 1 → 2 (line 14)``; a file other than ``main`` is named."""
    where = f"line {change.line}" if change.file == main else f"{change.file}, line {change.line}"
    if change.new is None:
        return f"no {change.name} ({where})"
    if change.old is None:
        return f"add {change.name} {change.new}".rstrip() + f" ({where})"
    return f"{change.name} {change.old} → {change.new} ({where})"


def _other_uses(found: Fixes, chosen: FixSet) -> Iterator[str]:
    """Yield the other lines that use a variable whose assignment changes, such as a checkpoint's path."""
    told = set[tuple[str, int]]()
    for change in (change for edit in chosen.edits for change in edit):
        text = found.source.text if change.file == found.source.name else found.source.other(change.file)
        lines = (text or "").split("\n")
        assigned = _ASSIGNED.match(lines[change.line - 1]) if change.line <= len(lines) else None
        if assigned is None or (assigned[1] and change.name.lstrip("-") in assigned.string):
            continue  # another line, or a variable that holds several arguments
        alias = rf"\*{re.escape(assigned[2] or '')}(?![^\s,\[\]{{}}])"
        used = re.compile(alias if assigned[2] else rf"\$\{{?{assigned[1]}\b")
        for number, line in enumerate(lines, start=1):
            above = lines[number - 2] if line.lstrip().startswith("- ") else ""  # - --flag, - $VALUE
            is_other = not line.lstrip().startswith("#") and (
                assigned[2] or change.name not in above + line
            )
            place = (change.file, number)
            if number != change.line and is_other and used.search(line) and place not in told:
                told.add(place)
                name = assigned[1] or assigned[2]
                yield f"{change.file}, line {number} uses {name}, too: {line.strip()[:60]}"


_ASSIGNED = re.compile(r"\s*(?:(?:export\s+|local\s+)?([A-Za-z_]\w*)=|.*:\s+&([^\s,\[\]{}]+)\s)")


def _in_bf16(found: Fixes) -> Iterator[str]:
    """Yield what frozen weights in bf16 would save, with the option that lets edits load them so."""
    seen, before = found.in_bf16, found.prediction
    if seen is None or not (seen.step_time_s < (1 - WORTH) * before.step_time_s or not found.fits):
        return
    wide = found.own.problem.workload.base_precision
    less = _less(seen.step_time_s, before.step_time_s)
    yield (
        f"To load frozen weights in bf16 instead of {wide} (numerics), add --base-precision bf16: "
        f"{seconds(seen.step_time_s)} a step ({less}), {stage_memory(seen)}"
    )


def _remarks(found: Fixes, width: int) -> Iterator[str]:
    yield from (_line(text, width) for text in _in_bf16(found))
    if not found.fits:
        over = found.prediction.peak_memory_bytes / GIB
        yield _line(f"As it stands, the run needs {over:.1f} GiB and may run out of memory.", width)
    notes = (f"what really runs: {one}" for one in found.own.notes)
    for text in list(dict.fromkeys((*found.unchangeable, *notes)))[:_LISTED]:
        yield _line(f"  {text}", width)
    if found.own.unread:
        yield _line(
            f"  not understood, so not part of the prediction: {', '.join(found.own.unread)}", width
        )


def _less(now_s: float, before_s: float) -> str:
    return f"{(now_s / before_s - 1) * 100:+.0f} %".replace("-", "−")


def _line(text: str, width: int) -> str:
    return wrapped(text, width).plain
