"""The constraints of the decision model, one function each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

from solver.search.cp.request import DECISIONS
from solver.search.cp.variables import Decision, Linear, chunks_of, weighted


def one_row_is_chosen(decision: Decision) -> None:
    """The choices are those of exactly one surviving row: an allowed-assignments table."""
    model = decision.model
    model.add_exactly_one(decision.chosen)
    model.add(decision.row == weighted((literal, i) for i, literal in enumerate(decision.chosen)))
    variables = [decision.row, *(decision.choices[name] for name in DECISIONS)]
    table = [(i, *(row.values[name] for name in DECISIONS)) for i, row in enumerate(decision.request.rows)]
    model.add_allowed_assignments(variables, table)


def every_layer_sits_once(decision: Decision) -> None:
    """Chunks follow one another from the first layer to the last."""
    model, bounds = decision.model, decision.bounds
    model.add(bounds[0] == 0)
    model.add(bounds[-1] == decision.request.num_layers)
    for start, end in pairwise(bounds):
        model.add(start <= end)


def chunks_are_large_enough(decision: Decision) -> None:
    """Each chunk of the chosen row holds a layer, or as many as are recomputed; others are empty."""
    model, bounds = decision.model, decision.bounds
    for i, (row, literal) in enumerate(zip(decision.request.rows, decision.chosen, strict=True)):
        count = chunks_of(decision.request, i)
        for chunk in range(count):
            model.add(bounds[chunk + 1] - bounds[chunk] >= row.smallest_chunk).only_enforce_if(literal)
        model.add(bounds[count] == decision.request.num_layers).only_enforce_if(literal)


def chunks_of_a_rank_are_alike(decision: Decision) -> None:
    """Chunks of a rank differ by at most one layer; the model's first and last chunk may hold fewer."""
    model, bounds = decision.model, decision.bounds
    sizes = [end - start for start, end in pairwise(bounds)]
    for i, (row, literal) in enumerate(zip(decision.request.rows, decision.chosen, strict=True)):
        pp, vpp = row.values["pipeline_parallel_size"], row.values["virtual_pipeline_size"]
        if vpp == 1 or row.splits is not None:
            continue
        last = pp * vpp - 1
        for rank in range(pp):
            own = own_chunks(decision, i, rank)
            for chunk in (inner for inner in own if inner not in {0, last}):
                for other in (larger for larger in own if larger != chunk):
                    model.add(sizes[other] <= sizes[chunk] + 1).only_enforce_if(literal)


def offered_splits_are_kept(decision: Decision) -> None:
    """Where the space offers some splits of a row only, it is one of them, or the row is out."""
    model, bounds = decision.model, decision.bounds
    for row, literal in zip(decision.request.rows, decision.chosen, strict=True):
        if row.splits is None:
            continue
        taken = [model.new_bool_var("") for _ in row.splits]
        model.add(sum(taken) == 1).only_enforce_if(literal)
        for split, one in zip(row.splits, taken, strict=True):
            for end, layers in zip(bounds[1:], accumulate(split), strict=False):
                model.add(end == layers).only_enforce_if(one)


def stages_recompute_their_own_layers(decision: Decision) -> None:
    """The first layers of each stage, one of some stage at least; none beside rows with one number."""
    model, bounds, own = decision.model, decision.bounds, decision.own_replays
    for row, literal in zip(decision.request.rows, decision.chosen, strict=True):
        if not any(isinstance(count, int) for count in own):
            for count, start, end in zip(own, bounds, bounds[1:], strict=False):
                model.add(count <= (end - start if row.by_stage else 0)).only_enforce_if(literal)
            if row.by_stage:
                model.add(sum(own) >= 1).only_enforce_if(literal)


def every_rank_fits_its_memory(decision: Decision) -> None:
    """States and kept activations of a rank's layers stay within its room."""
    for i, (row, literal) in enumerate(zip(decision.request.rows, decision.chosen, strict=True)):
        for rank, room in enumerate(row.room):
            terms: list[tuple[Linear, int]] = []
            for chunk in own_chunks(decision, i, rank):
                terms += zip(decision.layers[chunk], row.memory_layer[chunk], strict=True)
                terms += zip(decision.replayed[chunk], row.memory_replay[chunk], strict=True)
            decision.model.add(weighted(terms) <= room).only_enforce_if(literal)


def own_chunks(decision: Decision, row: int, rank: int) -> list[int]:
    """Chunks of a rank of a row, in model order."""
    return [chunk for chunk, own in enumerate(decision.request.rows[row].rank_of_chunk) if own == rank]


RULES: tuple[Callable[[Decision], None], ...] = (
    one_row_is_chosen,
    every_layer_sits_once,
    chunks_are_large_enough,
    chunks_of_a_rank_are_alike,
    offered_splits_are_kept,
    stages_recompute_their_own_layers,
    every_rank_fits_its_memory,
)
