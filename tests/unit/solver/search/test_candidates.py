"""Splits of pipelines with few micro-batches: the best of them all where there is one."""

from itertools import combinations

import numpy as np
import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.search.branch import fits
from meshwright.solver.search.candidates import _staircases, simulated_s
from meshwright.solver.search.priced_space import priced_rows
from meshwright.solver.search.rows import Rows
from meshwright.solver.splits import even_split
from tests.builders import a_cluster, a_model, a_problem

LAYERS = 14


def row_of(stages: int, micro_batches: int) -> Rows:
    """A pipeline of 14 layers on GPUs that each hold it all."""
    problem = a_problem(
        model=a_model(num_layers=LAYERS), cluster=a_cluster(num_nodes=1), batch=micro_batches
    )
    config = Configuration(
        pipeline_parallel_size=stages, num_microbatches=micro_batches, tensor_parallel_size=2,
        stage_layers=even_split(LAYERS, stages),
    )  # fmt: skip
    profile = default_profile(problem.cluster, problem.launcher)
    return priced_rows(problem, profile, Columns.of([config]))


def every_split(stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, LAYERS), stages - 1)
    return [tuple(np.diff([0, *some, LAYERS]).tolist()) for some in cuts]


@pytest.mark.parametrize("stages", [3, 4])
def test_of_one_micro_batch_no_split_ends_before_the_staircase(stages: int) -> None:
    row = row_of(stages, 1)
    (split,) = _staircases(row)
    assert sum(split) == LAYERS
    every = every_split(stages)
    able = fits(row, np.array(every))
    assert split in [one for one, fit in zip(every, able.tolist(), strict=True) if fit]
    least_s = float(simulated_s(row, every)[able].min())
    even_s, own_s = simulated_s(row, [even_split(LAYERS, stages), split]).tolist()
    assert own_s == pytest.approx(least_s, rel=1e-6)
    assert own_s < even_s


def test_of_several_micro_batches_no_rank_exceeds_a_few_heights() -> None:
    found = _staircases(row_of(4, 3))
    assert len(found) > 1
    assert {sum(split) for split in found} == {LAYERS}
    assert len({max(split) for split in found}) > 1
