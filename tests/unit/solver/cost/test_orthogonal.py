"""Muon over shards: matrices are dealt out by shape, exchanged twice and orthogonalised once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.collectives.collectives import all_to_all_s
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.orthogonal import dealt_s, matrices
from meshwright.solver.cost.price import price
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

RATE = 500e12
# of four layers: queries, keys, values and outputs of h by h, up and down of h by 4 h
SQUARE = 5 * (4 + 2) * 1024.0**3
WIDE = 5 * (4 * 4 + 2) * 1024.0**3


def context(ranks: int) -> Context:
    layout = a_layout(data_parallel_size=ranks, zero_stage=3, zero_shard_size=ranks)
    problem = replace(a_problem(optimizer="muon-pure-bf16"), launcher="axolotl")
    return context_of(problem, Columns.of([layout]), a_profile(problem, "axolotl"))


def test_matrices_of_the_same_shape_are_dealt_out_together() -> None:
    assert sorted(matrices(GPT)) == [(1024, 1024, 16), (1024, 4096, 4), (4096, 1024, 4)]


@pytest.mark.parametrize(
    ("ranks", "square", "wide"),
    [(1, 16, 4 + 4), (4, 4, 1 + 1), (8, 2, 1 + 1), (32, 1, 1 + 1)],
    ids=["one rank has all", "as many as ranks", "wide ones are padded", "all are padded"],
)
def test_a_rank_orthogonalises_one_matrix_of_each_batch(ranks: int, square: int, wide: int) -> None:
    group = context(ranks).dense_replicas.shard_set
    computed = (square * SQUARE + wide * WIDE) / RATE
    small, large = (all_to_all_s(np.array([2.0 * n * 1024**2]), group)[0] for n in (1, 4))
    sent = 2 * (square * small + wide * large) * (ranks > 1)
    assert dealt_s(GPT, group, RATE)[0] == pytest.approx(computed + sent)


def test_only_a_framework_that_deals_updates_pays_their_exchange() -> None:
    def update_s(framework: str) -> float:
        problem = replace(a_problem(optimizer="muon-pure-bf16"), launcher="axolotl")
        layout = a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8)
        prices = price(problem, Columns.of([layout]), a_profile(problem, framework))
        return float(prices.tail_breakdown_s["optimizer"][0, 0])

    group = context(8).dense_replicas.shard_set
    sent = 2 * sum(n * all_to_all_s(np.array([b * 1024**2]), group)[0] for n, b in ((2, 2.0), (2, 8.0)))
    assert update_s("axolotl") - update_s("trl") > 0.9 * sent / GPT.num_layers


def test_muon_over_bf16_weights_keeps_one_momentum_of_two_bytes() -> None:
    problem = replace(a_problem(optimizer="muon-pure-bf16"), launcher="axolotl")
    prices = price(problem, Columns.of([a_layout()]), a_profile(problem, "axolotl"))
    layer = 12 * 1024**2 + 2 * 1024
    assert prices.optimizer_bytes[0, 0] == pytest.approx(2.0 * layer, rel=1e-3)
    assert prices.optimizer_bytes[0, -2] == pytest.approx(4.0 * 51200 * 1024, rel=1e-3)
