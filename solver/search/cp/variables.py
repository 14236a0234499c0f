"""The variables of the decision model: the choices themselves, and where each chunk begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from solver.search.cp.request import DECISIONS, LARGEST, Request

Linear = cp_model.LinearExpr | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Named access to every variable."""

    request: Request
    model: cp_model.CpModel
    row: cp_model.IntVar  # which surviving row
    chosen: list[cp_model.IntVar]  # chosen[i]: row i is
    choices: dict[str, cp_model.IntVar]  # tensor_parallel_size, …: tied to the row by a table
    bounds: list[cp_model.IntVar]  # bounds[c]: layers before chunk c; the last one: all layers
    own_replays: list[Linear]  # recomputed layers of each chunk of a row whose stages have their own count
    layers: list[list[Linear]]  # layers[c][k]: layers of kind k in chunk c
    replayed: list[list[Linear]]  # recomputed ones among them, where not every one or none is
    objective_us: cp_model.IntVar

    @property
    def num_chunks(self) -> int:
        """Chunks of the row that has most; rows with fewer leave the last ones empty."""
        return len(self.bounds) - 1


def chunks_of(request: Request, row: int) -> int:
    """Chunks of a row: pp * vpp."""
    values = request.rows[row].values
    return values["pipeline_parallel_size"] * values["virtual_pipeline_size"]


def declare(request: Request) -> Decision:
    """All variables, not yet constrained but for the layer counts that follow from the boundaries."""
    model = cp_model.CpModel()
    size = range(len(request.rows))
    domains = {name: sorted({row.values[name] for row in request.rows}) for name in DECISIONS}
    num_chunks = max(chunks_of(request, row) for row in size)
    bounds = [model.new_int_var(0, request.num_layers, f"begin_{c}") for c in range(num_chunks + 1)]
    decision = Decision(
        request=request,
        model=model,
        row=model.new_int_var(0, len(request.rows) - 1, "row"),
        chosen=[model.new_bool_var(f"row_{i}") for i in size],
        choices={
            name: model.new_int_var_from_domain(cp_model.Domain.from_values(values), name)
            for name, values in domains.items()
        },
        bounds=bounds,
        own_replays=_own_replays(model, request, num_chunks),
        layers=[],
        replayed=[],
        objective_us=model.new_int_var(0, LARGEST // 1000, "objective_us"),
    )
    _count_layers(decision)
    return decision


def _count_layers(decision: Decision) -> None:
    """Layers of each kind by element constraints on cumulative counts (none for a single kind)."""
    request, bounds = decision.request, decision.bounds
    if len(request.cumulative) == 1:  # what partial recomputation adds is part of the constants
        decision.layers.extend([[end - start] for start, end in pairwise(bounds)])
        decision.replayed.extend([[own] for own in decision.own_replays])
        return
    counts = [row.replayed_layers for row in request.rows]
    most = max(counts) + request.num_layers * any(row.by_stage for row in request.rows)
    alike = weighted(zip(decision.chosen, counts, strict=True))
    starts = [_elements(decision, bound, most) for bound in bounds]
    for start, end in pairwise(starts):
        decision.layers.append([b - a for a, b in zip(start, end, strict=True)])
    for bound, start, own in zip(bounds, starts, decision.own_replays, strict=False):
        end = _elements(decision, bound + alike + own, most) if most else start
        decision.replayed.append([b - a for a, b in zip(start, end, strict=True)])


def _own_replays(model: cp_model.CpModel, request: Request, num_chunks: int) -> list[Linear]:
    """Recomputed layers of each chunk where stages have counts of their own; 0 where no row has."""
    if not any(row.by_stage for row in request.rows):
        return [0] * num_chunks
    return [model.new_int_var(0, request.num_layers, f"replayed_{c}") for c in range(num_chunks)]


def _elements(decision: Decision, index: Linear, most: int) -> list[cp_model.IntVar]:
    """Layers of each kind before ``index``; lists go on level for ``most``, so no index is out of range."""
    targets = []
    for cumulative in decision.request.cumulative:
        target = decision.model.new_int_var(0, cumulative[-1], "")
        decision.model.add_element(index, [*cumulative, *([cumulative[-1]] * most)], target)
        targets.append(target)
    return targets


def weighted(terms: Iterable[tuple[Linear, int]]) -> Linear:
    """Sum of expressions times whole numbers; terms times 0 are left out."""
    kept = [(expression, each) for expression, each in terms if each]
    return cp_model.LinearExpr.weighted_sum([e for e, _ in kept], [each for _, each in kept])
