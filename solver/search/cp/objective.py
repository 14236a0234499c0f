"""The objective of the decision model: the closed-form step time in whole microseconds."""

from __future__ import annotations

from solver.search.cp.request import Request
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

    Three facts follow from the other constraints, but only written down do they show at once which times
    are out of reach: the counts add up to all layers, a rank's memory holds so many and no more, and
    a chunk holds at least (count - v + 1) / v of them, but for the model's first and last one.
    """
    request, model, literal = decision.request, decision.model, decision.chosen[row]
    each, counts = request.rows[row].layer[0], list[Linear]()
    for rank in range(len(request.rows[row].rank_const)):
        own = own_chunks(decision, row, rank)
        count = model.new_int_var(0, _most_layers(request, row, rank, own), "")
        model.add(count == sum(decision.layers[chunk][0] for chunk in own)).only_enforce_if(literal)
        ends = {0, chunks_of(request, row) - 1} if len(own) > 1 else set()
        for chunk in (inner for inner in own if inner not in ends):
            size = decision.layers[chunk][0]
            model.add(len(own) * size >= count - (len(own) - 1)).only_enforce_if(literal)
        counts.append(count)
    model.add(sum(counts) == request.num_layers).only_enforce_if(literal)
    again = request.rows[row].replay[0]
    replayed = [sum(decision.replayed[chunk][0] for chunk in own_chunks(decision, row, rank))
                for rank in range(len(counts))]  # fmt: skip
    return [[(count, each), (own, again)] for count, own in zip(counts, replayed, strict=True)]


def _most_layers(request: Request, row: int, rank: int, own: list[int]) -> int:
    """Layers of one kind that a rank's memory holds in its lightest chunks (``caps.lightest_chunks``)."""
    one, least = request.rows[row], request.rows[row].smallest_chunk
    light = one.memory_replay if one.by_stage else [[0]] * len(one.memory_layer)
    prices = [[kept[0] + less[0]] for kept, less in zip(one.memory_layer, light, strict=True)]
    room = request.rows[row].room[rank] - least * sum(prices[chunk][0] for chunk in own)
    growing = [chunk for chunk in reversed(own) if chunk or len(own) == 1]
    count, at = least * len(own) if room >= 0 else 0, 0
    while 0 < count < request.num_layers:
        room -= prices[growing[at % len(growing)]][0]
        if room < 0:
            break
        count, at = count + 1, at + 1
    return count


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
