"""Lines of stages: groups one after another, and the exact split of the layers over them.

A *line* is the option of each stage, from the first to the last; the stages of a group are neighbours, so
a slow link is crossed once for each further group. CP-SAT chooses how many stages each option has; which
order the groups stand in, and the split of the layers, are found here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, FloatArray, IntArray
from meshwright.solver.search.mixed.patterns import ENDS, ROLES, Patterns
from meshwright.solver.search.mixed.rows import MixedRows

Line = tuple[int, ...]  # an option of each stage
Split = tuple[int, ...]  # layers of each stage
# seconds of a micro-batch, of the slowest stage, whether they fit, recomputed layers, (L + 1, L + 1) each
_StageTable = tuple[FloatArray, FloatArray, BoolArray, IntArray | None]
_MOST_LINES = 24
_MOST_ORDERS = 720
_ROUNDING = 1.0 + 1e-9
_STEP = 1.0005  # limits of the slowest stage are no closer
_MOST_CAPS = 48
_MOST_CHOICES = 96  # of options for the groups of a row


def lines_of(
    rows: MixedRows, patterns: Patterns, stages: Sequence[int], order: Sequence[int] = ()
) -> dict[Line, Split]:
    """Return lines of stages that CP-SAT chose, with its first and its last stage at the ends.

    Each comes with the layers that CP-SAT gave to its stages.

    Args:
        rows: the priced rows.
        patterns: those of the row.
        stages: a pattern of each stage.
        order: of the groups, if it is known.
    """
    option, role, shallow = patterns.option, patterns.role, -patterns.deepest
    tensor = np.array([one.tensor_parallel_size for one in rows.options])[option]
    first = next(at for at in stages if ROLES[role[at]] == "first")
    last = next(at for at in stages if ROLES[role[at]] in ENDS)
    between = [at for at in stages if at not in (first, last)]
    groups = sorted({int(rows.group_of[option[at]]) for at in stages})
    ends = (int(rows.group_of[option[first]]), int(rows.group_of[option[last]]))
    found, layers = dict[Line, Split](), patterns.counts.sum(axis=1)
    for one in [[at for at in order if at in groups]] if order else _orders(groups, ends):
        for main, other in ((shallow, option), (tensor, shallow), (-tensor, shallow)):
            runs = [
                sorted((at for at in between if rows.group_of[option[at]] == group),
                       key=lambda at: (ROLES[role[at]] != "entry", main[at], other[at]))
                for group in one
            ]  # fmt: skip
            line = (first, *(at for run in runs for at in run), last)
            own = tuple(int(layers[at]) for at in line)
            found.setdefault(tuple(int(option[at]) for at in line), own)
        if len(found) >= _MOST_LINES:
            break
    return found


def _orders(groups: Sequence[int], ends: tuple[int, int]) -> Iterator[tuple[int, ...]]:
    """Yield orders of groups between two ends; a group that is both stands alone."""
    if ends[0] == ends[1]:
        yield from [(ends[0],)] if len(groups) == 1 else []
        return
    between = [group for group in groups if group not in ends]
    for order in islice(permutations(between), _MOST_ORDERS):
        yield (ends[0], *order, ends[1])


def alone_lines(rows: MixedRows, row: int) -> list[Line]:
    """Return the lines of one stage, of every group that has the GPUs, with its largest tensor size."""
    gpus = [rows.fleet.groups[one.group].num_gpus for one in rows.options]
    able = [at for at in range(len(rows.options)) if rows.gpus_of_stage[at, row] <= gpus[at]]
    largest = {int(rows.group_of[at]): at for at in able}  # sizes ascend
    return [(at,) for at in largest.values()] if rows.allowed[row, 1] else []


def whole_groups(rows: MixedRows, row: int) -> Iterator[Line]:
    """Yield lines of whole groups, each with one tensor size: for a first plan of a row.

    The groups stand with the most memory for a layer first, where most micro-batches are in flight, or
    last.
    """
    legal = rows.legal_stages(row)
    if not len(legal):
        return
    room, rate = rows.room[:, row], 1.0 / rows.layer_s[:, row].min(axis=-1)
    held, groups = rows.layers_in_memory(row), rows.options_by_group(row)
    by_rate = [int(own[np.argmax((room * rate)[own])]) for own in groups]
    by_memory = [int(own[np.argmax(held[own])]) for own in groups]
    seen = set[Line]()
    for chosen in (by_rate, by_memory):
        fastest = sorted(chosen, key=lambda at: -float((room * rate)[at]))
        for number in range(len(chosen), 0, -1):
            line = _of_whole(rows, row, fastest[:number], legal.tolist(), held)
            for one in (line, line[::-1]):
                if one and one not in seen:
                    seen.add(one)
                    yield one


def chosen_groups(rows: MixedRows, row: int) -> Iterator[Line]:
    """Yield lines of every choice of an option for some groups, for plans further down a list.

    With as many stages as there is room for, and with one on each group.
    """
    legal, held = rows.legal_stages(row), rows.layers_in_memory(row)
    choices = product(*([-1, *own.tolist()] for own in rows.options_by_group(row)))
    seen = set[Line]()
    for choice in islice(choices, _MOST_CHOICES if len(legal) else 0):
        options = [at for at in choice if at >= 0]
        if not options:
            continue
        least = tuple(sorted(options, key=lambda at: -float(held[at])))
        for line in (_of_whole(rows, row, options, legal.tolist(), held), least):
            for one in (line, line[::-1]):
                if len(one) in legal and one not in seen:
                    seen.add(one)
                    yield one


def _of_whole(
    rows: MixedRows, row: int, options: Sequence[int], legal: Sequence[int], held: FloatArray
) -> Line:
    """Return all stages of some options, fewer where so many are not legal, most memory first."""
    counts = {at: int(rows.room[at, row]) for at in options}
    able = [number for number in legal if len(options) <= number <= sum(counts.values())]
    if not able:
        return ()
    spare = sum(counts.values()) - able[-1]
    for at in sorted(options, key=lambda at: float(-rows.layer_s[at, row].min())):  # the slowest first
        less = min(spare, counts[at] - 1)
        counts[at], spare = counts[at] - less, spare - less
    ordered = sorted(options, key=lambda at: -float(held[at]))
    return tuple(at for at in ordered for _ in range(counts[at]))


def _least_replays(
    rows: MixedRows, at: tuple[int, int], over_bytes: FloatArray
) -> tuple[BoolArray, IntArray, FloatArray]:
    """Return whether layers i … j - 1 fit, how many of the first are recomputed, and their replay.

    (L + 1, L + 1) each.
    ``over_bytes``: what they keep of a micro-batch in flight beyond their room, without any.
    """
    sums = rows.layout.cumulative.astype(np.float64)
    spared = sums @ (rows.whole_kept_bytes[at] - rows.kept_bytes[at])[:-2]
    replay_s = sums @ rows.replay_s[at]
    start, end = np.arange(len(sums))[:, None], np.arange(len(sums))[None, :]
    needed = np.where(over_bytes > -1.0, over_bytes + 1.0, 0.0)  # a byte more than rounding may take
    last = np.searchsorted(spared, spared[:, None] + needed)
    fits = (last <= end) & (start < end)
    last = np.where(fits, last, start)
    return fits, last - start, replay_s[last] - replay_s[:, None]


# --------------------------------------------------------------------------------------------------
# The split of a line that takes least by the closed form: by sums under a limit of the slowest stage.


class LineTables:
    """Times and memory of layers i … j - 1 as a stage of a row, computed once for stages of many lines."""

    def __init__(self, rows: MixedRows, row: int, more_bytes: float = 0.0) -> None:
        """Weigh stages, each GPU with ``more_bytes`` beyond its budget."""
        sums = rows.layout.cumulative
        self.rows, self.row, self._more_bytes = rows, row, more_bytes
        self._held = (sums[None, :, :] - sums[:, None, :]).astype(np.float64)
        self._size, self._hops_s = self._held.sum(axis=-1), rows.hops_of(row)
        self._parts = dict[int, tuple[FloatArray, FloatArray, FloatArray, FloatArray]]()
        self._known = dict[tuple[int, ...], _StageTable]()

    def of(self, line: Line, stage: int) -> _StageTable:
        """Return the table of one stage of a line."""
        option, before = line[stage], line[max(stage - 1, 0)]
        in_flight = min(int(self.rows.num_microbatches[self.row]), len(line) - stage)
        last, asked = stage == len(line) - 1, self.rows.fleet.problem.options.stage_layers
        key = (option, before, int(stage == 0), int(last), in_flight, asked[stage] if asked else 0)
        if key not in self._known:
            self._known[key] = self._weighed(key)
        return self._known[key]

    def _weighed(self, key: tuple[int, ...]) -> _StageTable:
        option, before, first, last, in_flight, asked = key
        rows, row, at, held = self.rows, self.row, (option, self.row), self._held
        if option not in self._parts:
            self._parts[option] = (
                held @ rows.layer_s[at], held @ rows.tail_s[at][:-2] + rows.rank_tail_s[at],
                held @ rows.state_bytes[at][:-2], held @ rows.whole_kept_bytes[at][:-2],
            )  # fmt: skip
        layers_s, tails_s, state, kept = self._parts[option]
        enters = rows.group_of[option] != rows.group_of[before]
        entered_s = rows.transfers.scale[at] * self._hops_s[before, option]
        beside = (entered_s if enters else rows.transfers.inside_s[at]) + rows.transfers.further_s[at]
        time = layers_s + beside + first * rows.embedding_s[at] + last * rows.head_s[at]
        tail = tails_s + first * rows.tail_s[at][-2] + last * rows.tail_s[at][-1]
        states = state + first * rows.state_bytes[at][-2] + last * rows.state_bytes[at][-1]
        ends = rows.whole_kept_bytes[at][-2:]
        each = kept + first * ends[0] + last * ends[1]
        space = (rows.head_room_bytes if last else rows.room_bytes)[at] + self._more_bytes
        over, replayed = states + in_flight * each - space, None
        fits = (over <= 0.0) & (self._size >= 1)
        if rows.by_stage[row]:
            fits, replayed, replay_s = _least_replays(rows, at, over / in_flight)
            time = time + replay_s
        if asked:
            fits &= self._size == asked
        return time, (rows.num_microbatches[row] - 1.0) * time + tail, fits, replayed


class LineSplit:
    """Times and memory of layers i … j - 1 on every stage of a line, (S, L + 1, L + 1).

    Where stages choose how many layers they recompute, each recomputes its first ones, as few as fit.
    """

    def __init__(self, tables: LineTables, line: Line) -> None:
        """Put the tables of all stages together."""
        self.m, self.layers = int(tables.rows.num_microbatches[tables.row]), tables.rows.layout.num_layers
        every = [tables.of(line, stage) for stage in range(len(line))]
        self.time_s: FloatArray = np.stack([one[0] for one in every])
        self.slowest_s: FloatArray = np.stack([one[1] for one in every])
        self.fits: BoolArray = np.stack([one[2] for one in every])
        self.replayed = [one[3] for one in every]

    def best(self, limit_s: float = np.inf) -> Split | None:
        """Return the split of least closed form; None where none fits, or none has a quicker slowest stage.

        The quickest slowest stage first, then smaller sums for a slower one while that pays, to .05 %.
        """
        floor = self._least_slowest_s()
        if not floor < limit_s:
            return None
        free = self._least_sum(np.inf)
        if free is None:
            return None
        least_sum, split = free
        best, cap = least_sum + self._slowest_of(split), floor
        for _ in range(_MOST_CAPS):
            look()
            found = self._least_sum(cap)
            if found is None:
                break
            largest = self._slowest_of(found[1])
            if found[0] + largest < best:
                best, split = found[0] + largest, found[1]
            below = largest / _STEP if cap > floor else np.inf
            cap = min(below, (best - least_sum) / _ROUNDING)
            if cap <= floor:
                break
        return split

    def any_fitting(self) -> Split | None:
        """Return the split of least sum that fits; None where none does."""
        found = self._least_sum(np.inf)
        return None if found is None else found[1]

    def closed_form_s(self, split: Split) -> float:
        """Return the closed form of a split without fixed time."""
        ends = np.cumsum(split)
        cells = (np.arange(len(split)), ends - np.array(split), ends)
        return float(self.time_s[cells].sum() + self.slowest_s[cells].max())

    def holds(self, split: Split) -> bool:
        """Return whether a split fits in memory, and keeps a prescribed one."""
        ends = np.cumsum(split)
        return bool(self.fits[np.arange(len(split)), ends - np.array(split), ends].all())

    def quicker(self, splits: Sequence[Split], limit_s: float) -> list[Split]:
        """Return the splits that fit and may simulate below a limit, the most promising first.

        By (A) of every stage, without fixed time: it works all micro-batches, and one of them takes its way
        over the stages before it, there and back.
        """
        each = np.array(splits, dtype=np.int64).reshape(len(splits), len(self.time_s))
        ends = np.cumsum(each, axis=1)
        cells = (np.arange(each.shape[1])[None], ends - each, ends)
        times_s, slowest_s = self.time_s[cells], self.slowest_s[cells]
        least_tail_s = (slowest_s - (self.m - 1) * times_s).min(axis=1, initial=np.inf)
        steps_s = (np.cumsum(times_s, axis=1) + (self.m - 1) * times_s).max(
            axis=1, initial=0.0
        ) + least_tail_s
        able = self.fits[cells].all(axis=1) & (steps_s < limit_s)
        return [splits[at] for at in np.argsort(steps_s, kind="stable").tolist() if able[at]]

    def replays_of(self, split: Split) -> tuple[int, ...]:
        """Return the recomputed layers of each stage; () where stages do not choose, or recompute all.

        Where nothing has to be recomputed it is one layer, of the stage that waits most for the others.
        """
        ends = np.cumsum(split)
        starts, stages = ends - np.array(split), np.arange(len(split))
        cells = zip(self.replayed, starts.tolist(), ends.tolist(), strict=True)
        counts = np.array([one[start, end] for one, start, end in cells if one is not None], dtype=np.int64)
        if not len(counts):
            return ()
        if not counts.any():
            counts[self.slowest_s[stages, starts, ends].argmin()] = 1
        return () if (counts == split).all() else tuple(counts.tolist())

    def _costs(self, values: FloatArray, cap_s: float) -> FloatArray:
        return np.where(self.fits & (self.slowest_s <= cap_s * _ROUNDING), values, np.inf)

    def _least_slowest_s(self) -> float:
        costs, reached = self._costs(self.slowest_s, np.inf), np.full(self.layers + 1, np.inf)
        reached[0] = 0.0
        for stage in costs:
            reached = np.maximum(reached[:, None], stage).min(axis=0)
        return float(reached[-1])

    def _least_sum(self, cap_s: float) -> tuple[float, Split] | None:
        costs, reached = self._costs(self.time_s, cap_s), np.full(self.layers + 1, np.inf)
        reached[0] = 0.0
        before = list[np.ndarray[tuple[int], np.dtype[np.int64]]]()
        for stage in costs:
            sums = reached[:, None] + stage
            before.append(sums.argmin(axis=0))
            reached = sums.min(axis=0)
        if not np.isfinite(reached[-1]):
            return None
        end, split = self.layers, list[int]()
        for start in reversed(before):
            split.append(end - int(start[end]))
            end = int(start[end])
        return float(reached[-1]), tuple(reversed(split))

    def _slowest_of(self, split: Split) -> float:
        ends = np.cumsum(split)
        starts = ends - np.array(split)
        return float(self.slowest_s[np.arange(len(split)), starts, ends].max())
