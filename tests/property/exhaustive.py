"""Everything that brute force knows about one row."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.solver.configuration import SCHEDULES, FloatArray
from meshwright.solver.cost.stages import Stages, objective_s
from meshwright.solver.schedules.simulate import rank_finish_s
from meshwright.solver.search.bounds import split_s
from meshwright.solver.search.candidates import candidates_of
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import best_splits
from tests.problems.strategies import offered_splits


@dataclass(frozen=True, kw_only=True)
class Exhaustive:
    """All splits that fit, with their closed form, bound and simulation."""

    splits: list[tuple[int, ...]]
    objective_s: FloatArray
    bound_s: FloatArray
    simulated_s: FloatArray


_NOTHING = Exhaustive(splits=[], objective_s=np.zeros(0), bound_s=np.zeros(0), simulated_s=np.zeros(0))


def simulated_s(rows: Rows, splits: list[tuple[int, ...]]) -> list[float]:
    """The reference evaluator of each row under its split, written out."""
    stages = rows.stages(splits)
    return [_simulated_s(rows, stages, at) for at in range(len(rows))]


def candidates_s(rows: Rows) -> Iterator[tuple[int, float]]:
    """Every row that has a split, with the simulation of each of its candidates."""
    best = {row: split for row, split in enumerate(best_splits(rows)) if split is not None}
    if best:
        some = list(best)
        found = candidates_of(rows.take(some), list(best.values()))
        which = [some[at] for at in found.which]
        yield from zip(which, simulated_s(rows.take(which), found.splits), strict=True)


def _simulated_s(rows: Rows, stages: Stages, at: int) -> float:
    """The same of one of several rows."""
    pp, chunks = int(rows.p[at]), int(rows.p[at] * rows.v[at])
    finish = rank_finish_s(
        stages.chunk_forward_s[at, :chunks].tolist(),
        stages.chunk_backward_s[at, :chunks].tolist(),
        pp=pp,
        num_microbatches=int(rows.columns.num_microbatches[at]),
        schedule=SCHEDULES[int(rows.columns.pipeline_schedule[at])],
        weight_s=stages.chunk_weight_s[at, :chunks].tolist(),
    )
    last = (np.array(finish) + stages.rank_tail_s[at, :pp]).max()
    return float(rows.prices.straggler[at] * last + rows.prices.fixed_s[at])


def exhaust(rows: Rows, row: int) -> Exhaustive:
    """Try every split of a row."""
    return exhaust_all(rows.take([row]))[0]


def exhaust_all(rows: Rows) -> list[Exhaustive]:
    """Try every split of every row; those with as many chunks together."""
    every = [list(offered_splits(rows, row)) for row in range(len(rows))]
    found = [_NOTHING] * len(rows)
    for pp, vpp in {(int(p), int(v)) for p, v in zip(rows.p, rows.v, strict=True)}:
        alike = [row for row in np.flatnonzero((rows.p == pp) & (rows.v == vpp)) if every[row]]
        if alike:
            found_here = _exhausted(rows, {int(row): every[row] for row in alike})
            for row, one in zip(alike, found_here, strict=True):
                found[row] = one
    return found


def _exhausted(rows: Rows, splits: dict[int, list[tuple[int, ...]]]) -> Iterator[Exhaustive]:
    """What is known of rows with as many chunks, given their splits."""
    many = rows.take([row for row, own in splits.items() for _ in own])
    stages = many.stages([split for own in splits.values() for split in own])
    fits = stages.peak_memory_bytes.max(axis=1) <= rows.budget_bytes
    objectives, bounds = objective_s(many.prices, many.columns, stages), split_s(many, stages)
    end = 0
    for own in splits.values():
        start, end = end, end + len(own)
        able: list[int] = (start + np.flatnonzero(fits[start:end])).tolist()
        yield Exhaustive(
            splits=[own[at - start] for at in able],
            objective_s=objectives[able],
            bound_s=bounds[able],
            simulated_s=np.array([_simulated_s(many, stages, at) for at in able]),
        )
