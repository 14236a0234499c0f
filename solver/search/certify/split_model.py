"""Variables of the decision model: the choices themselves, and the begin of each chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ortools.sat.python import cp_model

from meshwright.solver.search.certify.request import LARGEST, Request, is_expressible
from meshwright.solver.search.cp_sat import solver_within

Linear = cp_model.LinearExpr | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Variables of the model by name."""

    request: Request
    model: cp_model.CpModel
    row: cp_model.IntVar  # which surviving row
    chosen: list[cp_model.IntVar]  # chosen[i]: row i is
    choices: dict[str, cp_model.IntVar]  # tensor_parallel_size, …: tied to the row by a table
    bounds: list[cp_model.IntVar]  # bounds[c]: layers before chunk c; the last one: all layers
    own_replays: list[Linear]  # recomputed layers of each chunk of a row with counts by stage
    apart: list[Linear]  # apart[i]: row i is chosen and its prediction layers have a chunk of their own
    layers: list[list[Linear]]  # layers[c][k]: layers of kind k in chunk c
    replayed: list[list[Linear]]  # recomputed ones among them, where not every one or none is
    objective_us: cp_model.IntVar


def chunks_of(request: Request, row: int) -> int:
    """Return the chunks of a row: pp * vpp."""
    values = request.rows[row].values
    return values["pipeline_parallel_size"] * values["virtual_pipeline_size"]


def least_of_chunk(request: Request, row: int, chunk: int) -> int:
    """Return the least layers of a chunk of a row."""
    one, last = request.rows[row], chunks_of(request, row) - 1
    return 0 if one.standalone and last and chunk in (0, last) else one.smallest_chunk


def declare(request: Request) -> Decision:
    """Declare all variables, with no constraints but the layer counts that follow from boundaries."""
    model = cp_model.CpModel()
    size = range(len(request.rows))
    domains = {name: sorted({row.values[name] for row in request.rows}) for name in request.rows[0].values}
    num_chunks = max(chunks_of(request, row) for row in size)
    bounds = [model.new_int_var(0, request.num_layers, f"begin_{c}") for c in range(num_chunks + 1)]
    replays: list[Linear] = [0] * num_chunks
    if any(row.by_stage for row in request.rows):
        replays = [model.new_int_var(0, request.num_layers, f"replayed_{c}") for c in range(num_chunks)]
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
        own_replays=replays,
        apart=[
            model.new_bool_var("") if row.prediction and chunks_of(request, i) > 1 else 0
            for i, row in enumerate(request.rows)
        ],
        layers=[],
        replayed=[],
        objective_us=model.new_int_var(0, LARGEST // 1000, "objective_us"),
    )
    _count_layers(decision)
    return decision


def _count_layers(decision: Decision) -> None:
    """Count layers of each kind by element constraints on cumulative counts (none for a single kind)."""
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


def _elements(decision: Decision, index: Linear, most: int) -> list[cp_model.IntVar]:
    """Return layers of each kind before ``index``; lists stay level for ``most`` more entries."""
    targets = []
    for cumulative in decision.request.cumulative:
        target = decision.model.new_int_var(0, cumulative[-1], "")
        decision.model.add_element(index, [*cumulative, *([cumulative[-1]] * most)], target)
        targets.append(target)
    return targets


def weighted(terms: Iterable[tuple[Linear, int]]) -> Linear:
    """Return the sum of expressions times whole numbers; terms times 0 are left out."""
    kept = [(expression, each) for expression, each in terms if each]
    return cp_model.LinearExpr.weighted_sum([e for e, _ in kept], [each for _, each in kept])


# --------------------------------------------------------------------------------------------------
# The constraints of the decision model, one function each.


def one_row_is_chosen(decision: Decision) -> None:
    """Restrict the choices to exactly one surviving row, by an allowed-assignments table."""
    model = decision.model
    model.add_exactly_one(decision.chosen)
    model.add(decision.row == weighted((literal, i) for i, literal in enumerate(decision.chosen)))
    variables = [decision.row, *decision.choices.values()]
    rows = decision.request.rows
    table = [(i, *(row.values[name] for name in decision.choices)) for i, row in enumerate(rows)]
    model.add_allowed_assignments(variables, table)


def every_layer_sits_once(decision: Decision) -> None:
    """Let chunks follow one another from the first layer to the last."""
    model, bounds = decision.model, decision.bounds
    model.add(bounds[0] == 0)
    model.add(bounds[-1] == decision.request.num_layers)
    for start, end in pairwise(bounds):
        model.add(start <= end)


def chunks_are_large_enough(decision: Decision) -> None:
    """Require a layer, or all recomputed ones, of each chunk of the chosen row; others are empty."""
    model, bounds = decision.model, decision.bounds
    for i, literal in enumerate(decision.chosen):
        count = chunks_of(decision.request, i)
        for chunk in range(count):
            least = least_of_chunk(decision.request, i, chunk)
            model.add(bounds[chunk + 1] - bounds[chunk] >= least).only_enforce_if(literal)
        model.add(bounds[count] == decision.request.num_layers).only_enforce_if(literal)
        if isinstance(alone := decision.apart[i], cp_model.IntVar):
            # Prediction layers are alone in a chunk before a last one without a layer.
            before, begin, end = bounds[count - 2 : count + 1]
            model.add(end - begin >= 1).only_enforce_if(literal, ~alone)
            model.add(begin - before == 1).only_enforce_if(literal, alone)


def chunks_of_a_rank_are_alike(decision: Decision) -> None:
    """Let a rank's chunks differ by at most one layer; the model's first and last may hold fewer."""
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
    """Restrict a row to its offered splits, if the space offers only some."""
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
    """Recompute each stage's first layers, one of some stage at least; 0 for rows with one number."""
    model, bounds, own = decision.model, decision.bounds, decision.own_replays
    for row, literal in zip(decision.request.rows, decision.chosen, strict=True):
        if not any(isinstance(count, int) for count in own):
            for count, start, end in zip(own, bounds, bounds[1:], strict=False):
                model.add(count <= (end - start if row.by_stage else 0)).only_enforce_if(literal)
            if row.by_stage:
                model.add(sum(own) >= 1).only_enforce_if(literal)


def every_rank_fits_its_memory(decision: Decision) -> None:
    """Keep states and kept activations of a rank's layers within its room, at every moment."""
    for i, (row, literal) in enumerate(zip(decision.request.rows, decision.chosen, strict=True)):
        for layer, replay, rooms in row.moments or [(row.memory_layer, row.memory_replay, row.room)]:
            for rank, room in enumerate(rooms):
                terms: list[tuple[Linear, int]] = []
                for chunk in own_chunks(decision, i, rank):
                    terms += zip(decision.layers[chunk], layer[chunk], strict=True)
                    terms += zip(decision.replayed[chunk], replay[chunk], strict=True)
                decision.model.add(weighted(terms) <= room).only_enforce_if(literal)


def own_chunks(decision: Decision, row: int, rank: int) -> list[int]:
    """Return the chunks of a rank of a row, in model order."""
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


# --------------------------------------------------------------------------------------------------
# The objective of the decision model: the closed-form step time in whole microseconds.


NS_PER_US = 1000
Terms = list[tuple[Linear, int]]


def slowest_rank_decides(decision: Decision) -> None:
    """Minimise ``objective_us``, at least every rank's share, rounded up to a microsecond."""
    uniform = len(decision.request.cumulative) == 1
    for i, (row, literal) in enumerate(zip(decision.request.rows, decision.chosen, strict=True)):
        whole: Terms = []
        for chunk in range(chunks_of(decision.request, i)):
            whole += zip(decision.replayed[chunk], row.sum_replay, strict=True)
        whole.append((decision.apart[i], row.further_sum))
        ranks = _counted(decision, i) if uniform else _summed(decision, i)
        for rank in row.rank_of_chunk[-2:]:
            ranks[rank].append((decision.apart[i], row.further_rank))
        for constant, own in zip(row.rank_const, ranks, strict=True):
            share = weighted(whole + own) + row.sum_const + constant
            decision.model.add(NS_PER_US * decision.objective_us >= share).only_enforce_if(literal)
    decision.model.minimize(decision.objective_us)


def _counted(decision: Decision, row: int) -> list[Terms]:
    """Return the time of each rank's layers of one kind, over variables that count them.

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
    """Return how many layers of one kind a rank holds in its lightest chunks (``lightest_chunks``)."""
    one, least = request.rows[row], {chunk: least_of_chunk(request, row, chunk) for chunk in own}
    light = one.memory_replay if one.by_stage else [[0]] * len(one.memory_layer)
    prices = [[kept[0] + less[0]] for kept, less in zip(one.memory_layer, light, strict=True)]
    room = request.rows[row].room[rank] - sum(least[chunk] * prices[chunk][0] for chunk in own)
    growing = [chunk for chunk in reversed(own) if chunk or len(own) == 1]
    if room < 0:
        return 0
    count, at = sum(least.values()), 0
    while count < request.num_layers:
        room -= prices[growing[at % len(growing)]][0]
        if room < 0:
            break
        count, at = count + 1, at + 1
    return count


def _summed(decision: Decision, row: int) -> list[Terms]:
    request = decision.request.rows[row]
    ranks: list[Terms] = []
    for rank in range(len(request.rank_const)):
        terms: Terms = []
        for chunk in own_chunks(decision, row, rank):
            terms += zip(decision.layers[chunk], request.layer, strict=True)
            terms += zip(decision.replayed[chunk], request.replay, strict=True)
        ranks.append(terms)
    return ranks


# --------------------------------------------------------------------------------------------------
# How CP-SAT is run: one thread, a seed, limits, and a complete hint.


def solver_of(request: Request) -> cp_model.CpSolver:
    """Return a solver of one thread, with the request's seed and limits.

    It runs without presolve, which takes five to ten times what the search after it does, and calls optimal
    what is not where it looks for constraints inside others (OR-Tools 9.15, google/or-tools issue 5293).
    """
    solver: cp_model.CpSolver = solver_within(cp_model, request.deterministic_limit, request.seed)
    solver.parameters.max_time_in_seconds = request.time_limit_s
    solver.parameters.cp_model_presolve = False
    return solver


def complete_the_hint(model: cp_model.CpModel, request: Request) -> None:
    """Hint every variable, also those that follow from the incumbent's choices and boundaries.

    With the choices fixed what is left is propagation. An incumbent that the model refuses leaves the hint
    unchanged: the verdict, another minimum than the exact program's, then shows it.
    """
    solver = solver_of(request)
    solver.parameters.fix_variables_to_their_hinted_value = True
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return
    values = list(solver.response_proto.solution)
    model.clear_hints()  # type: ignore[no-untyped-call]
    for index, value in enumerate(values):
        model.add_hint(model.get_int_var_from_proto_index(index), value)


# --------------------------------------------------------------------------------------------------
# One run of CP-SAT: build the model, hint the incumbent, solve, read the verdict.


@dataclass(frozen=True, slots=True, kw_only=True)
class CpSatResult:
    """Result of CP-SAT; ``objective_us`` is in whole microseconds."""

    status: str  # OPTIMAL, FEASIBLE, INFEASIBLE, UNKNOWN, MODEL_INVALID
    objective_us: int | None = None
    row: int | None = None
    split: tuple[int, ...] | None = None


def judge(request: Request) -> CpSatResult:
    """Return the least objective over a request's rows, in one thread and reproducibly.

    A request with sums beyond the exact range is refused: domains would be trimmed silently.
    """
    if not is_expressible(request):
        return CpSatResult(status="MODEL_INVALID")
    decision = declare(request)
    for rule in RULES:
        rule(decision)
    slowest_rank_decides(decision)
    _hint(decision)
    if decision.model.validate():
        return CpSatResult(status="MODEL_INVALID")
    if request.hint_split:
        complete_the_hint(decision.model, request)
    solver = solver_of(request)
    status = solver.solve(decision.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return CpSatResult(status=solver.status_name(status))
    row = solver.value(decision.row)
    edges = [solver.value(bound) for bound in decision.bounds[: chunks_of(request, row) + 1]]
    return CpSatResult(
        status=solver.status_name(status),
        objective_us=round(solver.objective_value),
        row=row,
        split=tuple(end - start for start, end in pairwise(edges)),
    )


def _hint(decision: Decision) -> None:
    request, model, begin = decision.request, decision.model, 0
    model.add_hint(decision.row, request.hint_row)
    for i, literal in enumerate(decision.chosen):
        model.add_hint(literal, i == request.hint_row)
    for name, choice in decision.choices.items():
        model.add_hint(choice, request.rows[request.hint_row].values[name])
    sizes = [*request.hint_split, *([0] * len(decision.bounds))]
    for bound, size in zip(decision.bounds, sizes, strict=False):
        model.add_hint(bound, begin)
        begin += size
