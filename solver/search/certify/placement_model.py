"""Decision model of a mixed cluster: the field, the berth of each stage, and its layers.

Variables of a field: ``on[s][b]``, stage s is on berth b; ``into[s][a][b]``, it does so behind a stage
on berth a; ``layers[s][b][k]``, layers of kind k that it holds there; ``ends[s]``, layers up to its end.
Every field has placements of its own, so that its constraints need no condition; only the objective of the
field that is chosen counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from meshwright.solver.search.certify.request import LARGEST, FieldRequest, PlacementRequest, stays_exact
from meshwright.solver.search.certify.split_model import Linear, complete_the_hint, solver_of, weighted

_NS_PER_US = 1000
Table = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementVerdict:
    """Result of CP-SAT; ``objective_us`` and ``bound_us`` are whole microseconds."""

    status: str  # OPTIMAL, FEASIBLE, INFEASIBLE, UNKNOWN, MODEL_INVALID
    objective_us: int | None = None
    bound_us: int | None = None
    field: int | None = None
    placement: tuple[tuple[int, int], ...] | None = None  # berth and layers of each stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The variables of one field."""

    field: FieldRequest
    chosen: cp_model.IntVar
    ends: list[cp_model.IntVar]  # p + 1: layers before each stage, and all of them
    on: list[list[cp_model.IntVar]]
    into: list[list[list[cp_model.IntVar]]]  # of stages 1 …, stage - 1 first
    layers: list[list[list[cp_model.IntVar]]]


def judge_placement(request: PlacementRequest) -> PlacementVerdict:
    """Return the least objective over a request's fields, in one thread and reproducibly."""
    if not stays_exact(request):
        return PlacementVerdict(status="MODEL_INVALID")
    model = cp_model.CpModel()
    objective = model.new_int_var(0, LARGEST // _NS_PER_US, "objective_us")
    blocks = [_declared(model, request, one) for one in request.fields]
    model.add_exactly_one([block.chosen for block in blocks])
    for block in blocks:
        _groups_have_one_run(model, block)
        _every_layer_sits_once(model, request, block)
        _layers_stand_where_their_stage_does(model, request, block)
        _every_stage_fits_its_memory(model, block)
        _slowest_stage_decides(model, request, block, objective)
    model.minimize(objective)
    for at, block in enumerate(blocks):
        _hint(model, block, chosen=at == request.hint_field)
    if model.validate():
        return PlacementVerdict(status="MODEL_INVALID")
    complete_the_hint(model, request)
    return _verdict(model, request, blocks)


def _declared(model: cp_model.CpModel, request: PlacementRequest, one: FieldRequest) -> Block:
    berths, stages = range(len(one.room)), range(one.num_stages)
    return Block(
        field=one,
        chosen=model.new_bool_var(""),
        ends=[model.new_int_var(0, request.num_layers, "") for _ in range(one.num_stages + 1)],
        on=[[model.new_bool_var("") for _ in berths] for _ in stages],
        into=[[[model.new_bool_var("") for _ in berths] for _ in berths] for _ in stages[1:]],
        layers=[
            [[model.new_int_var(0, every[-1], "") for every in request.cumulative] for _ in berths]
            for _ in stages
        ],
    )


def _groups_have_one_run(model: cp_model.CpModel, block: Block) -> None:
    berths = range(len(block.field.room))
    for row in block.on:
        model.add_exactly_one(row)
    for (before, after), into in zip(pairwise(block.on), block.into, strict=True):
        for berth in berths:
            model.add(sum(into[berth]) == before[berth])
            model.add(sum(into[left][berth] for left in berths) == after[berth])
    for berth, room in enumerate(block.field.room):
        entered = [into[left][berth] for into in block.into for left in berths if left != berth]
        model.add(block.on[0][berth] + sum(entered) == 1)
        model.add(sum(row[berth] for row in block.on) <= room)


def _every_layer_sits_once(model: cp_model.CpModel, request: PlacementRequest, block: Block) -> None:
    model.add(block.ends[0] == 0)
    model.add(block.ends[-1] == request.num_layers)
    for start, end in pairwise(block.ends):
        model.add(end >= start + 1)


def _layers_stand_where_their_stage_does(
    model: cp_model.CpModel, request: PlacementRequest, block: Block
) -> None:
    held = [_before(model, request, end) for end in block.ends]
    for stage, (start, end) in enumerate(pairwise(held)):
        for kind, every in enumerate(request.cumulative):
            mine = [counts[kind] for counts in block.layers[stage]]
            model.add(sum(mine) == end[kind] - start[kind])
            for on, count in zip(block.on[stage], mine, strict=True):
                model.add(count <= every[-1] * on)
        for on, counts in zip(block.on[stage], block.layers[stage], strict=True):
            model.add(sum(counts) >= on)


def _before(model: cp_model.CpModel, request: PlacementRequest, end: cp_model.IntVar) -> list[Linear]:
    """Count layers of each kind before a boundary: the boundary itself for one kind, else list elements."""
    if len(request.cumulative) == 1:
        return [end]
    found: list[Linear] = []
    for every in request.cumulative:
        count = model.new_int_var(0, every[-1], "")
        model.add_element(end, list(every), count)
        found.append(count)
    return found


def _every_stage_fits_its_memory(model: cp_model.CpModel, block: Block) -> None:
    one = block.field
    for stage, row in enumerate(block.on):
        for berth, on in enumerate(row):
            room, prices = one.memory_room[berth][stage], one.memory_layer[berth][stage]
            counts = block.layers[stage][berth]
            model.add(weighted(zip(counts, prices, strict=True)) <= room * on)
            if len(counts) == 1:  # follows, in whole layers
                model.add(counts[0] <= max(room, 0) // max(prices[0], 1) * on)


def _slowest_stage_decides(
    model: cp_model.CpModel, request: PlacementRequest, block: Block, objective: cp_model.IntVar
) -> None:
    """Bound ``objective`` by every stage's share of the chosen field, rounded up to a microsecond.

    All layers together take what they would on their quickest berth, and each what it is slower than
    there: in this form the sum is large before any layer has its place, and most shares are soon too large.
    """
    one = block.field
    quickest = [min(kind) for kind in zip(*one.layer, strict=True)]
    slower = [[own - least for own, least in zip(kinds, quickest, strict=True)] for kinds in one.layer]
    least = one.fixed + sum(
        each * every[-1] for each, every in zip(quickest, request.cumulative, strict=True)
    )
    whole: list[tuple[Linear, int]] = []
    for stage in range(one.num_stages):
        whole += _terms(block, stage, slower, one.beside, one.hop)
    for stage in range(one.num_stages):
        own = _terms(block, stage, one.own_layer, one.own_beside, one.own_hop)
        share = weighted([*whole, *own]) + least
        model.add(_NS_PER_US * objective >= share).only_enforce_if(block.chosen)


def _terms(
    block: Block,
    stage: int,
    layer: Table,
    beside: Table,
    hop: Table,
) -> list[tuple[Linear, int]]:
    """Return one stage's time: its layers, its other work, the transfer from another berth."""
    terms: list[tuple[Linear, int]] = []
    for berth, on in enumerate(block.on[stage]):
        terms += zip(block.layers[stage][berth], layer[berth], strict=True)
        terms.append((on, beside[berth][stage]))
        if stage:
            terms += [(into[berth], hop[a][berth]) for a, into in enumerate(block.into[stage - 1])]
    return terms


def _hint(model: cp_model.CpModel, block: Block, *, chosen: bool) -> None:
    model.add_hint(block.chosen, chosen)
    begin = 0
    for stage, (berth, layers) in enumerate(block.field.hint):
        for other, on in enumerate(block.on[stage]):
            model.add_hint(on, other == berth)
        model.add_hint(block.ends[stage], begin)
        begin += layers
    model.add_hint(block.ends[-1], begin)


def _verdict(model: cp_model.CpModel, request: PlacementRequest, blocks: list[Block]) -> PlacementVerdict:
    solver = solver_of(request)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return PlacementVerdict(status=solver.status_name(status))
    at = next(at for at, block in enumerate(blocks) if solver.boolean_value(block.chosen))
    block = blocks[at]
    ends = [solver.value(end) for end in block.ends]
    stands = [next(b for b, on in enumerate(row) if solver.boolean_value(on)) for row in block.on]
    return PlacementVerdict(
        status=solver.status_name(status),
        objective_us=round(solver.objective_value),
        bound_us=round(solver.best_objective_bound),
        field=at,
        placement=tuple(zip(stands, (end - start for start, end in pairwise(ends)), strict=True)),
    )
