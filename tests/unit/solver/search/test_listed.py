"""Rows with few splits: all of them are listed, and the reported split is the best of its row."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.search.candidates import simulated_s
from meshwright.solver.search.listed import MOST, Shape, are_listed, number_of_splits, shape_of, splits_of
from meshwright.solver.search.priced_space import priced_rows
from meshwright.solver.search.search import search
from meshwright.solver.search.splits import StageTables, balanced, offered_to, tapers
from tests.builders import a_cluster, a_model, a_problem

SHAPES = [
    Shape(7, 1, 1, 1, in_a_v=False),
    Shape(9, 2, 1, 1, in_a_v=False),
    Shape(9, 3, 1, 2, in_a_v=False),
    Shape(9, 2, 2, 1, in_a_v=False),
    Shape(8, 3, 2, 1, in_a_v=False),
    Shape(8, 2, 3, 1, in_a_v=False),
    Shape(8, 2, 2, 1, in_a_v=True),
    Shape(9, 3, 2, 1, in_a_v=True),
    Shape(7, 2, 2, 2, in_a_v=False),
]


def is_on_offer(shape: Shape, split: tuple[int, ...]) -> bool:
    """Constraint (5): chunks of a rank differ by one layer at most; the model's ends may hold fewer."""
    last = shape.p * shape.v - 1
    for rank in range(shape.p):
        own = [c for c in range(last + 1) if (min(c, last - c) if shape.in_a_v else c % shape.p) == rank]
        ends = [] if shape.v == 1 else [c for c in own if c in (0, last)]
        inner = [split[c] for c in own if c not in ends]
        if shape.in_a_v and rank == 0:
            continue  # both ends of the model: any sizes
        if max(inner) - min(inner) > 1 or any(split[c] > min(inner) + 1 for c in ends):
            return False
    return True


@pytest.mark.parametrize("shape", SHAPES)
def test_every_split_on_offer_is_listed_once(shape: Shape) -> None:
    sizes = range(shape.smallest, shape.num_layers + 1)
    every = [one for one in product(sizes, repeat=shape.p * shape.v) if sum(one) == shape.num_layers]
    expected = [one for one in every if is_on_offer(shape, one)]
    assert sorted(splits_of(shape)) == sorted(expected)
    assert number_of_splits(shape) == len(expected)


def test_ends_that_wait_hold_a_layer_less_and_the_rest_is_laid_out_between_them() -> None:
    # 14 layers on 6 ranks, 2 an even share: a first rank with 1 leaves 13 to five, of which three hold 3
    found = tapers(14, 6, smallest=1, places=4)
    first_waits = {split for split in found if split[0] == 1 < min(split[1:])}
    assert first_waits == {(1, 3, 3, 3, 2, 2), (1, 2, 2, 3, 3, 3), (1, 2, 3, 2, 3, 3)}
    assert all(sum(split) == 14 and len(split) == 6 for split in found)
    assert min(map(min, tapers(14, 6, smallest=2, places=4))) == 2


def test_a_ranks_larger_chunks_are_its_first_or_its_last() -> None:
    assert balanced((4, 2, 1, 2), 2, in_a_v=False) == [(3, 2, 2, 2), (2, 2, 3, 2)]  # rank 0 has 4 + 1


def test_more_splits_than_are_simulated_are_not_counted_on() -> None:
    assert (
        number_of_splits(Shape(96, 8, 3, 1, in_a_v=False)) == MOST + 1
    )  # C(79, 7) ways for the ranks alone
    assert number_of_splits(Shape(24, 2, 2, 1, in_a_v=False)) == MOST + 1  # 21 for the ranks, more by chunk
    assert number_of_splits(Shape(128, 127, 1, 1, in_a_v=False)) == 127  # one rank holds two layers


def test_the_reported_split_is_the_fastest_of_its_row_if_it_has_few() -> None:
    problem = a_problem(
        model=a_model(num_layers=10), cluster=a_cluster(num_nodes=1), batch=16, diverse=False, top_k=20,
        bounds={"pipeline_parallel_size": (2, 16)},
    )  # fmt: skip
    profile, seen = default_profile(problem.cluster, problem.launcher), 0
    for plan in search(problem, profile).plans:
        row = priced_rows(problem, profile, Columns.of([plan.config]))
        if not are_listed(row)[0]:
            continue
        splits = list(splits_of(shape_of(row, 0)))
        stages = row.take([0] * len(splits)).stages(splits)
        fits = stages.peak_memory_bytes.max(axis=1) <= row.budget_bytes
        least = simulated_s(row, [one for one, able in zip(splits, fits, strict=True) if able]).min()
        assert np.isclose(plan.prediction.step_time_s, least, rtol=1e-9)
        seen += 1
    assert seen >= 10


def test_the_exact_program_may_take_every_split_on_offer_with_prediction_layers_alone_too() -> None:
    # counted: the embedding, 8 layers, the prediction layers, the head
    problem = a_problem(
        model=a_model(num_layers=8, num_mtp_layers=1),
        cluster=a_cluster(num_nodes=1),
        standalone_stages=True,
    )
    config = Configuration(pipeline_parallel_size=4, num_microbatches=8, stage_layers=(4, 4, 0, 0))
    row = priced_rows(problem, default_profile(problem.cluster, "megatron-lm"), Columns.of([config]))
    may_hold, stage = StageTables(replace(row, budget_bytes=np.inf)).fits, np.arange(4)
    splits = offered_to(row, 4, 1)
    assert (1, 8, 1, 1) in splits
    for split in splits:
        end = np.cumsum(split)
        assert may_hold[stage, end - split, end].all()
    assert not may_hold[2, 8, 10]  # a layer beside them, with the head alone behind
