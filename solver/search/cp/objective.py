"""The objective of the decision model: the closed-form step time in whole microseconds."""

from __future__ import annotations

from solver.search.cp.rules import own_chunks
from solver.search.cp.variables import Decision, Linear, chunks_of, weighted

NS_PER_US = 1000


def slowest_rank_decides(decision: Decision) -> None:
    """``objective_us`` is at least every rank's share, rounded up to a microsecond; minimise it."""
    for i, (row, literal) in enumerate(zip(decision.request.rows, decision.chosen, strict=True)):
        whole: list[tuple[Linear, int]] = []
        for chunk in range(chunks_of(decision.request, i)):
            whole += zip(decision.replayed[chunk], row.sum_replay, strict=True)
        for rank, constant in enumerate(row.rank_const):
            share = weighted(whole + _rank_terms(decision, i, rank)) + row.sum_const + constant
            decision.model.add(NS_PER_US * decision.objective_us >= share).only_enforce_if(literal)
    decision.model.minimize(decision.objective_us)


def _rank_terms(decision: Decision, row: int, rank: int) -> list[tuple[Linear, int]]:
    """What a rank's layers add to its share."""
    request = decision.request.rows[row]
    terms: list[tuple[Linear, int]] = []
    for chunk in own_chunks(decision, row, rank):
        terms += zip(decision.layers[chunk], request.layer, strict=True)
        terms += zip(decision.replayed[chunk], request.replay, strict=True)
    return terms
