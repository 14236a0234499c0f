"""Neighbours of a placement: lines and splits that differ from it in one move.

CP-SAT proves the closed form, in which the order of the stages is missing. A plan that simulates faster
is often one move away: a layer on another stage, two groups in each other's place, a stage more or less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, groupby, permutations, product

import numpy as np

from meshwright.solver.search.mixed.lines import Line, Split
from meshwright.solver.search.mixed.rows import MixedRows

_LEAST_STAGES = 2  # single stages are all priced


def neighbours_of(rows: MixedRows, row: int, line: Line, split: Split) -> dict[Line, list[Split]]:
    """Return lines that are one move away, each with splits of its own, if a split is near.

    A layer on another stage; two groups exchanged, with their layers; a group elsewhere; a stage less, with
    its layers on one of the others; a stage more within its group's GPUs, with one of their layers; a stage
    with another tensor-parallel size; a stage cut in two, or two in one, of as many GPUs.
    """
    moves = permutations(range(len(split)), 2)
    shifted = [_added(_added(split, one, -1), other, 1) for one, other in moves if split[one] > 1]
    found = {line: shifted}
    stages = list(zip(line, split, strict=True))
    runs = [tuple(run) for _, run in groupby(stages, key=lambda stage: int(rows.group_of[stage[0]]))]
    orders = [list(runs) for _ in combinations(runs, 2)]
    for order, (one, other) in zip(orders, combinations(range(len(runs)), 2), strict=True):
        order[one], order[other] = order[other], order[one]
    for one, place in product(range(len(runs)), repeat=2):
        rest = runs[:one] + runs[one + 1 :]
        orders.append([*rest[:place], runs[one], *rest[place:]])
    for order in orders:
        options, layers = zip(*chain.from_iterable(order), strict=True)
        found.setdefault(options, []).append(layers)
    for at in range(len(line)) if len(line) > _LEAST_STAGES else ():
        left = split[:at] + split[at + 1 :]
        splits = [_added(left, to, split[at]) for to in range(len(left))]
        found.setdefault(line[:at] + line[at + 1 :], []).extend(splits)
    for at, option in _further(rows, row, line, [len(run) for run in runs]):
        wider = (*split[:at], 1, *split[at:])
        splits = [_added(wider, to, -1) for to in range(len(wider)) if wider[to] > 1]
        if splits:
            found.setdefault((*line[:at], option, *line[at:]), []).extend(splits)
    for at, count, options in _resized(rows, row, line):
        found.setdefault((*line[:at], *options, *line[at + count :]), [])
    return found


def _resized(rows: MixedRows, row: int, line: Line) -> Iterator[tuple[int, int, Line]]:
    """Yield a place, how many stages are replaced there, and the options that replace them."""
    gpus, group = rows.gpus_of_stage[:, row], rows.group_of
    able = np.flatnonzero(rows.room[:, row] > 0)
    for at, option in enumerate(line):
        left = rows.gpus[group[option], row] - sum(gpus[one] for one in line if group[one] == group[option])
        for other in able[(group[able] == group[option]) & (able != option)].tolist():
            if gpus[other] <= gpus[option] + left:
                yield at, 1, (other,)
            if 2 * gpus[other] == gpus[option]:
                yield at, 1, (other, other)
            alike = line[at : at + 2] == (option, option) and len(line) > _LEAST_STAGES
            if alike and gpus[other] == 2 * gpus[option]:
                yield at, 2, (other,)


def _added(split: Split, at: int, layers: int) -> Split:
    return (*split[:at], split[at] + layers, *split[at + 1 :])


def _further(rows: MixedRows, row: int, line: Line, runs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield places and options of one more stage: at an end of its group's run, or between other runs."""
    edges = np.cumsum([0, *runs]).tolist()
    groups = [int(rows.group_of[line[at]]) for at in edges[:-1]]
    for option in np.flatnonzero(rows.room[:, row] > 0).tolist():
        group = int(rows.group_of[option])
        taken = sum(int(rows.gpus_of_stage[at, row]) for at in line if rows.group_of[at] == group)
        if taken + rows.gpus_of_stage[option, row] <= rows.gpus[group, row]:
            ends = edges[groups.index(group) :][:2] if group in groups else edges
            yield from ((at, option) for at in ends)
