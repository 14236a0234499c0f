"""Best first, where rows that look best turn out to have no split."""

import math
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.solver import clock as watch
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import ALL_LAYERS, MESH, PER_STAGE
from meshwright.solver.search.candidates import Ends, candidates_of, fastest, simulated_s
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.priced_space import Priced, priced_rows, priced_space
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import best_splits
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_model, a_moe_model, a_problem
from tests.problems.strategies import FULL, Shape, columns_of, layout_of, prices_of

GB = 1e9


def two_ways_to_run_one_layout(budget_bytes: float) -> Rows:
    """One dense and three MoE layers on two ranks; the first way replays a layer a rank, the other all."""
    counts = (1, ALL_LAYERS)
    shapes = [
        Shape(pp=2, vpp=1, num_microbatches=4, recompute=FULL, recompute_layers=count) for count in counts
    ]
    layout = layout_of([False, True, True, True])
    prices = prices_of(shapes, len(layout.kinds), np.random.default_rng(1))
    prices = prices.take(np.zeros(2, dtype=np.int64))  # they differ in what they replay alone
    nothing = np.zeros_like(prices.forward_s)
    prices = replace(
        prices,
        replay_s=nothing + 0.01 * np.array([1.0, 1.0, 0.0, 0.0]),
        weights_bytes=nothing,
        gradients_bytes=nothing,
        optimizer_bytes=nothing,
        activation_bytes=nothing + np.array([1.0 * GB, 2.0 * GB, 0.0, 0.0]),
        checkpoint_bytes=nothing + np.array([1.0 * GB, 0.0, 0.0, 0.0]),
        head_workspace_bytes=np.zeros(2),
        replay_workspace_bytes=np.zeros(2),
        buffer_bytes=np.zeros(2),
        context_bytes=np.zeros(2),
        reserve=np.ones(2),
    )
    return Rows(columns=columns_of(shapes), prices=prices, layout=layout, budget_bytes=budget_bytes)


def test_a_promising_row_without_a_split_leaves_the_search_to_the_other_rows() -> None:
    # Rank 0 keeps two micro-batches and replays its first layer, the dense one, which spares nothing: with
    # the dense layer alone it keeps 2 GB, with a MoE layer 6 GB. Rank 1 keeps one micro-batch and replays
    # one MoE layer of two or three: 2 or 4 GB. So 3 GB hold no split. Replaying everything takes 2 GB, and
    # so long that the first way looks better however closely its bound is raised before it is solved.
    rows = two_ways_to_run_one_layout(3.0 * GB)
    assert [split is not None for split in best_splits(rows)] == [False, True]
    frontier = Frontier.of(Priced.of(rows), 1)
    assert frontier.bound_s[0] * 1.25 < frontier.bound_s[1] < np.inf
    frontier.run(lambda _: False)
    assert frontier.finished
    assert [one.row for one in frontier.ranked] == [1]


def test_other_layouts_of_too_few_meshes_are_not_finished_where_the_search_for_them_is_cut() -> None:
    pin = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}  # one mesh of 8 GPUs
    problem = a_problem(model=a_model(num_layers=8), cluster=a_cluster(num_nodes=1), batch=16, pin=pin)
    profile = default_profile(problem.cluster, problem.launcher)
    rows = priced_space(problem, profile, enumerate_space(problem, legal_only=True).columns)
    frontier = Frontier.of(rows, 4, apart=MESH)
    frontier.run(lambda _: False)
    assert (frontier.finished, len(frontier.ranked)) == (True, 1)
    frontier.fill(lambda _: True)
    assert (frontier.finished, len(frontier.ranked)) == (False, 1)


def test_a_run_that_was_cut_anywhere_and_went_on_counts_every_row_that_fits_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "_LOOK_EVERY_S", 0.0)
    pin = {"context_parallel_size": 1, "virtual_pipeline_size": 1}
    problem = a_problem(model=find_model("glm-4.5"), cluster=a_cluster(num_nodes=16), batch=16, pin=pin)
    space = enumerate_space(problem, legal_only=True)
    rows = priced_rows(problem, default_profile(problem.cluster, problem.launcher), space.columns)
    refuted = 0
    for looks in range(0, 2000, 200):
        frontier, asked = Frontier.of(Priced.of(rows), 3), count()
        first = frontier.fits
        with Watch(time_limit_s=math.inf, should_stop=lambda: next(asked) >= looks).cut():  # noqa: B023
            frontier.run(lambda _: False)
        done = frontier.finished
        frontier.run(lambda _: False)
        assert frontier.fits == int(np.isfinite(frontier.bound_s[:]).sum())
        refuted = max(refuted, first - frontier.fits)
        if done:
            break
    assert refuted > 0


def test_a_search_behind_better_plans_ends_though_families_beyond_them_stay_closed() -> None:
    pin = {"context_parallel_size": 1}
    problem = a_problem(model=a_moe_model(), cluster=a_cluster(num_nodes=2), batch=64, pin=pin)
    legal = enumerate_space(problem, legal_only=True).rows
    rows = priced_space(problem, default_profile(problem.cluster, problem.launcher), legal)
    alone = Frontier.of(rows, 1)
    alone.run(lambda _: False)
    behind, asked = Frontier.of(rows, 1, limit_s=0.9 * alone.ranked[0].score_s), count()
    behind.run(lambda _: next(asked) > 100)
    assert behind.finished
    assert behind.ranked == []


def test_of_a_long_pipelines_splits_the_fastest_by_their_first_passes_are_simulated_whole() -> None:
    # Eight chunks on four ranks: 16 passes a micro-batch, so that of 2 048 micro-batches the first 1 024
    # are looked at, 2^14 passes, and then three of the splits are simulated with all of theirs.
    shapes = [Shape(pp=4, vpp=2, num_microbatches=2048, recompute=0, recompute_layers=0)]
    layout = layout_of([False] * 18)
    prices = prices_of(shapes, len(layout.kinds), np.random.default_rng(3))
    row = Rows(columns=columns_of(shapes), prices=prices, layout=layout, budget_bytes=np.inf)
    (split,) = best_splits(row)
    splits = candidates_of(row, [split or ()]).splits
    steps = simulated_s(row, splits)
    assert len(splits) > 6
    assert np.sort(steps)[3] > steps.min() * 1.001
    ends, least = Ends(), steps.min() * (1.0 + 1e-9)
    for limit in (np.inf, least):  # what is known of its splits then does not rule out the fastest
        assert fastest(row, splits, ends, limit)[0] == pytest.approx(steps.min())


def test_rows_that_recompute_by_stage_are_not_solved_before_the_first_ranking() -> None:
    # one such row of 126 layers on 16 stages takes a tenth of a second to solve, the others a millisecond
    own, cluster = a_model(num_layers=24), a_cluster(num_nodes=2)
    problem = replace(a_problem(model=own, cluster=cluster, batch=64), launcher="none")
    rows = enumerate_space(problem, legal_only=True).rows
    frontier = Frontier.of(priced_space(problem, default_profile(problem.cluster, "none"), rows), 1)
    frontier.run(lambda state: bool(state.ranked))
    every, solved = (rows.take(np.array(which)) for which in (range(len(rows)), sorted(frontier.solved)))
    assert (every.recompute_layers == PER_STAGE).any()
    assert len(solved)
    assert (solved.recompute_layers != PER_STAGE).all()
