"""The objective of the decision model: the closed-form step time in whole microseconds."""

from __future__ import annotations

from solver.search.cp.rules import own_chunks
from solver.search.cp.variables import Decision, Linear, chunks_of, weighted

NS_PER_US = 1000
Terms = list[tuple[Linear, int]]


def slowest_rank_decides(decision: Decision) -> None:
    """``objective_us`` is at least every rank's share, rounded up to a microsecond; minimise it."""
    uniform = len(decision.request.cumulative) == 1
    for i, (row, literal) in enumerate(zip(decision.request.rows, decision.chosen, strict=True)):
        whole: Terms = []
        for chunk in range(chunks_of(decision.request, i)):
            whole += zip(decision.replayed[chunk], row.sum_replay, strict=True)
        ranks = _counted(decision, i) if uniform else _summed(decision, i)
        for constant, own in zip(row.rank_const, ranks, strict=True):
            share = weighted(whole + own) + row.sum_const + constant
            decision.model.add(NS_PER_US * decision.objective_us >= share).only_enforce_if(literal)
    decision.model.minimize(decision.objective_us)


def _counted(decision: Decision, row: int) -> list[Terms]:
    """Time of each rank's layers of one kind, over variables that count them.

    The counts add up to all layers. That follows from the chunks too, but written down it shows at once
    that ranks which stay below a time cannot hold all layers together.
    """
    request, model = decision.request, decision.model
    each, ranks = request.rows[row].layer[0], range(len(request.rows[row].rank_const))
    counts = [model.new_int_var(0, request.num_layers, "") for _ in ranks]
    model.add(sum(counts) == request.num_layers)
    for rank, count in enumerate(counts):
        held = sum(decision.layers[chunk][0] for chunk in own_chunks(decision, row, rank))
        model.add(count == held).only_enforce_if(decision.chosen[row])
    return [[(count, each)] for count in counts]


def _summed(decision: Decision, row: int) -> list[Terms]:
    """Time of each rank's layers of several kinds."""
    request = decision.request.rows[row]
    ranks: list[Terms] = []
    for rank in range(len(request.rank_const)):
        terms: Terms = []
        for chunk in own_chunks(decision, row, rank):
            terms += zip(decision.layers[chunk], request.layer, strict=True)
            terms += zip(decision.replayed[chunk], request.replay, strict=True)
        ranks.append(terms)
    return ranks
