"""Everything that brute force knows about one row."""

from dataclasses import dataclass

import numpy as np

from meshwright.solver.configuration import SCHEDULES, FloatArray
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.schedules.simulate import rank_finish_s
from meshwright.solver.search.bounds import split_s
from meshwright.solver.search.rows import Rows
from tests.problems.strategies import offered_splits


@dataclass(frozen=True, kw_only=True)
class Exhaustive:
    """All splits that fit, with their closed form, bound and simulation."""

    splits: list[tuple[int, ...]]
    objective_s: FloatArray
    bound_s: FloatArray
    simulated_s: FloatArray


def simulated_s(rows: Rows, row: int, split: tuple[int, ...]) -> float:
    """The reference evaluator, written out."""
    one = rows.take([row])
    stages = one.stages([split])
    finish = rank_finish_s(
        stages.chunk_forward_s[0, : len(split)].tolist(),
        stages.chunk_backward_s[0, : len(split)].tolist(),
        pp=int(one.p[0]),
        num_microbatches=int(one.columns.num_microbatches[0]),
        schedule=SCHEDULES[int(one.columns.pipeline_schedule[0])],
        weight_s=stages.chunk_weight_s[0, : len(split)].tolist(),
    )
    last = (np.array(finish) + stages.rank_tail_s[0]).max()
    return float(one.prices.straggler[0] * last + one.prices.fixed_s[0])


def exhaust(rows: Rows, row: int) -> Exhaustive:
    """Try every split of a row."""
    splits = list(offered_splits(rows, row))
    if splits:
        many = rows.take([row] * len(splits))
        fits = many.stages(splits).peak_memory_bytes.max(axis=1) <= rows.budget_bytes
        splits = [split for split, fit in zip(splits, fits, strict=True) if fit]
    if not splits:
        nothing = np.zeros(0)
        return Exhaustive(splits=[], objective_s=nothing, bound_s=nothing, simulated_s=nothing)
    many = rows.take([row] * len(splits))
    stages = many.stages(splits)
    return Exhaustive(
        splits=splits,
        objective_s=objective_s(many.prices, many.columns, stages),
        bound_s=split_s(many, stages),
        simulated_s=np.array([simulated_s(rows, row, split) for split in splits]),
    )
