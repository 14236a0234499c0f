"""Mixed clusters: bounds and splits against brute force over the placements of a row."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, islice, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.problem import Problem
from meshwright.solver.search.candidates import fastest
from meshwright.solver.search.mixed import search as search_module
from meshwright.solver.search.mixed.bounds import bounds_of, with_nearer_steps
from meshwright.solver.search.mixed.frontier import MixedFrontier, configuration_of
from meshwright.solver.search.mixed.lines import Line, LineSplit, LineTables
from meshwright.solver.search.mixed.model import solve
from meshwright.solver.search.mixed.neighbours import neighbours_of
from meshwright.solver.search.mixed.patterns import patterns_of
from meshwright.solver.search.mixed.relaxation import Relaxation
from meshwright.solver.search.mixed.replicas import (
    least_split_s,
    least_step_s,
    shares_of,
    solve_split,
    split_bound_s,
)
from meshwright.solver.search.mixed.rows import LegalRows, MixedRows
from meshwright.solver.search.mixed.search import search_mixed
from meshwright.solver.search.mixed.steps import StepBound
from meshwright.solver.search.search import search
from tests.draws import draws
from tests.problems.mixed_clusters import a_group, a_mixed_problem, mixed_problems, mixed_rows

EXAMPLES = draws(2, of_more=6)
ROUNDING = 1 + 1e-9
MOST_PLACED = 3000  # placements of all rows of a problem that are priced one by one


def lines(rows: MixedRows, row: int) -> Iterator[Line]:
    """Every line of two or more stages of a row, with groups one after another and sizes mixed in them."""
    by_group = [np.flatnonzero((rows.group_of == at) & (rows.room[:, row] > 0)) for at in range(3)]
    for order in chain.from_iterable(permutations(range(3), count) for count in (1, 2, 3)):
        runs = []
        for group in order:
            gpus = rows.fleet.groups[group].num_gpus if group < len(rows.fleet.groups) else 0
            runs.append([
                some
                for count in range(1, gpus + 1)
                for some in product(by_group[group].tolist(), repeat=count)
                if sum(rows.gpus_of_stage[at, row] for at in some) <= gpus
            ])  # fmt: skip
        for chosen in product(*runs):
            line = tuple(chain.from_iterable(chosen))
            if 1 < len(line) <= rows.layout.num_layers and rows.allowed[row, len(line)]:
                yield line


def splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every split of the layers."""
    for cut in combinations(range(1, layers), stages - 1):
        yield tuple(end - start for start, end in pairwise((0, *cut, layers)))


def placed(rows: MixedRows, row: int) -> list[Configuration]:
    """Every placement of a row, whether it fits or not."""
    return [
        configuration_of(rows, row, line, split)
        for line in lines(rows, row)
        for split in splits(rows.layout.num_layers, len(line))
    ]


def some_row(problem: Problem, data: st.DataObject) -> tuple[MixedRows, int]:
    rows = mixed_rows(problem)
    able = np.flatnonzero(rows.most_stages > 1)
    assume(len(able))  # a return would let the property hold of nothing
    return rows, data.draw(st.sampled_from(able.tolist()))


def test_moves_reach_only_placements_and_every_one_with_one_more_stage() -> None:
    pair = (a_group(gpus=2, slug="one"), a_group(speed=0.5, gpus=2, slug="other"))
    rows = mixed_rows(a_mixed_problem(pair, num_layers=5))
    row = int(rows.most_stages.argmax())
    every = set(lines(rows, row))
    assert {len(line) for line in every} == {2, 3, 4}
    for line in every:
        near = neighbours_of(rows, row, line, (5 - len(line) + 1, *[1] * (len(line) - 1)))
        assert set(near) <= every
        assert {
            one for one in every for at in range(len(one)) if one[:at] + one[at + 1 :] == line
        } <= near.keys()
        assert all(sum(split) == 5 and min(split) > 0 for splits in near.values() for split in splits)


@pytest.mark.timeout(120)
@settings(max_examples=EXAMPLES, deadline=None)
@given(problem=mixed_problems(), data=st.data())
def test_no_placement_of_a_row_is_below_its_bounds_or_below_what_cp_sat_proves(
    problem: Problem, data: st.DataObject
) -> None:
    rows, row = some_row(problem, data)
    bounds, profile = bounds_of(rows), default_profile(problem.cluster, "none")
    every = evaluate(problem, profile, placed(rows, row)[:2000])
    able = [one for one in every if max(one.short_bytes()) <= 0.0]
    slowest_s = float(bounds.slowest_s[row])
    least_s = min([one.objective_s for one in able], default=np.inf)
    for one in able:
        assert bounds.objective_s[row] <= one.objective_s
        assert bounds.step_s[row] <= one.classes[0].step_s() * ROUNDING
        assert slowest_s <= max(stage.time_s for stage in one.stages) * one.classes[0].straggler
    if able:
        for by_sender in (False, True):
            every_pattern = patterns_of(rows, row, np.inf, by_sender=by_sender)
            relaxation = Relaxation(rows, row, every_pattern, rows.legal_stages(row))
            for one in able:  # what its stages do not take together is at least what the slowest does
                sum_s = sum(stage.time_s for stage in one.stages) * one.classes[0].straggler
                relaxed = relaxation.within((one.objective_s - sum_s) * 1e6 * ROUNDING + 1.0)
                assert relaxed.sum_us <= sum_s * 1e6 * ROUNDING
        for in_order, by_sender, loose in ((False, False, 1.5), (True, False, np.inf), (True, True, 1.5)):
            patterns = patterns_of(rows, row, least_s * 2e6, by_sender=by_sender)
            floor_us = int(slowest_s * (rows.num_microbatches[row] - 1) * 1e6)
            proved = solve(rows, [row], patterns, most_s=least_s * loose, least_us=floor_us, effort=4.0,
                           seed=0, in_order=in_order)  # fmt: skip
            assert proved.bound_s <= least_s * ROUNDING


@pytest.mark.timeout(120)
@settings(max_examples=EXAMPLES, deadline=None)
@given(problem=mixed_problems(), data=st.data(), loose=st.sampled_from([1.001, 1.2, 3.0]))
def test_no_placement_of_a_row_simulates_below_the_bounds_of_its_step(
    problem: Problem, data: st.DataObject, loose: float
) -> None:
    rows, row = some_row(problem, data)
    every = evaluate(problem, default_profile(problem.cluster, "none"), placed(rows, row)[:2000])
    steps_s = [one.classes[0].step_s() for one in every if max(one.short_bytes()) <= 0.0]
    assume(steps_s)
    bounds = bounds_of(rows)
    nearer = with_nearer_steps(bounds, rows, np.array([row]))
    assert bounds.step_s[row] <= nearer.step_s[row] <= min(steps_s) * ROUNDING
    bound = StepBound.of(rows, nearer, min(steps_s) * loose, [(row,)])
    before_s = bound.bound_s
    bound.raise_it(lambda: False)
    assert before_s <= bound.bound_s <= min(steps_s) * ROUNDING


@pytest.mark.timeout(120)
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(problem=mixed_problems(), loose=st.sampled_from([1.0, 1.01, 1.5]))
def test_no_plan_of_several_rows_simulates_below_the_bound_of_all_of_them(
    problem: Problem, loose: float
) -> None:
    pinned = replace(problem.options, pin={"recompute_granularity": "none", "micro_batch_size": 1})
    problem = replace(problem, options=pinned)
    rows, profile = mixed_rows(problem), default_profile(problem.cluster, "none")
    frontier = MixedFrontier.of(rows, problem, profile)
    able = np.flatnonzero(np.isfinite(frontier.bounds.objective_s)).tolist()
    every = list(islice(chain.from_iterable(placed(rows, row) for row in able), MOST_PLACED + 1))
    assume(len(able) > 1 and len(every) <= MOST_PLACED)
    fit = [one for one in evaluate(problem, profile, every) if max(one.short_bytes()) <= 0.0]
    steps_s = [one.classes[0].step_s() for one in fit]
    assume(steps_s)
    least_s = min(steps_s)
    known_s = least_s * loose  # with 1.0 no range of times below the best plan is left
    bound_s = frontier.step_bound_s(known_s, lambda: False)
    assert float(frontier.bounds.step_s.min()) <= bound_s * ROUNDING
    assert bound_s <= min(known_s, least_s) * ROUNDING


def with_memory(problem: Problem, memory_gib: float) -> Problem:
    groups = tuple(
        replace(group, gpu=replace(group.gpu, memory_bytes=int(memory_gib * GIB)))
        for group in problem.cluster.groups
    )
    return replace(problem, cluster=replace(problem.cluster, groups=groups))


@settings(max_examples=EXAMPLES, deadline=None)
@given(problem=mixed_problems(), memory_gib=st.sampled_from([1.0, 2.0, 3.0]), data=st.data())
def test_no_row_fits_of_which_the_smallest_micro_batch_does_not(
    problem: Problem, memory_gib: float, data: st.DataObject
) -> None:
    problem = with_memory(problem, memory_gib)
    profile = default_profile(problem.cluster, "none")
    legal = LegalRows.of(NodeGroups.of(problem, profile))
    smallest, alike = legal.smallest()
    refuted = ~np.isfinite(bounds_of(MixedRows.of(smallest)).objective_s)[alike]
    rows = MixedRows.of(legal)
    index = np.flatnonzero(refuted & (rows.most_stages > 1))
    assume(len(index))
    row = data.draw(st.sampled_from(index.tolist()))
    every = evaluate(problem, profile, placed(rows, row)[:500])
    assert all(max(one.short_bytes()) > 0.0 for one in every)


@settings(max_examples=max(EXAMPLES // 4, 2), deadline=None)
@given(problem=mixed_problems(), memory_gib=st.sampled_from([1.0, 2.0, 3.0, 79.0]))
def test_rows_refuted_by_their_smallest_micro_batch_change_no_answer(
    problem: Problem, memory_gib: float
) -> None:
    problem = with_memory(problem, memory_gib)
    profile = default_profile(problem.cluster, "none")
    whole = search_mixed(problem, profile, Watch(time_limit_s=60.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "_FEW_ROWS", 0)
        refuted = search_mixed(problem, profile, Watch(time_limit_s=60.0))
    assert (refuted.status, refuted.legal, refuted.fit) == (whole.status, whole.legal, whole.fit)
    assert refuted.explored == whole.explored
    for one, other in zip(refuted.plans[:1], whole.plans[:1], strict=True):
        assert one.objective_s == pytest.approx(other.objective_s, rel=0.01)  # proved to 1 %


@settings(max_examples=EXAMPLES, deadline=None)
@given(problem=mixed_problems(), data=st.data())
def test_the_split_of_a_line_is_the_best_of_all(problem: Problem, data: st.DataObject) -> None:
    rows, row = some_row(problem, data)
    line = data.draw(st.sampled_from(list(lines(rows, row))))
    table = LineSplit(LineTables(rows, row), line)

    def closed_form_s(split: tuple[int, ...]) -> float:
        ends = np.cumsum(split)
        cells = (np.arange(len(split)), ends - np.array(split), ends)
        return (
            float(table.time_s[cells].sum() + table.slowest_s[cells].max())
            if table.fits[cells].all()
            else np.inf
        )

    least_s = min(map(closed_form_s, splits(rows.layout.num_layers, len(line))))
    best = table.best()
    assert (best is None) == (least_s == np.inf)
    if best is not None:
        assert closed_form_s(best) <= least_s * 1.001  # limits of the slowest stage are .05 % apart


@settings(max_examples=EXAMPLES, deadline=None)
@given(problem=mixed_problems(), data=st.data())
def test_no_split_of_a_group_simulates_below_the_bounds_of_its_share(
    problem: Problem, data: st.DataObject
) -> None:
    rows, batch = mixed_rows(problem), problem.workload.global_batch_size
    share = data.draw(st.sampled_from(shares_of(rows.fleet)))
    n = data.draw(st.integers(1, batch))
    able = share.able(n)
    assume(len(able))
    row = share.rows(np.array([data.draw(st.sampled_from(able.tolist()))]), n)
    bound, p, layers = share.bound_s[n], int(row.p[0]), rows.layout.num_layers
    compared = 0
    for cut in combinations(range(1, layers), p - 1):
        edges = (0, *cut, layers)
        split = tuple(end - start for start, end in pairwise(edges))
        if row.stages([split]).peak_memory_bytes.max() <= row.budget_bytes:
            step, _ = fastest(row, [split])
            assert bound <= step
            assert share.objective_s[n] <= objective_s(row.prices, row.columns, row.stages([split]))[0]
            assert share.may_step_within(n, step)
            compared += 1
    assume(compared)


def every_set(count: int) -> chain[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(count), size) for size in range(2, count + 1))


@settings(max_examples=max(EXAMPLES // 4, 2), deadline=None)
@given(problem=mixed_problems())
def test_the_bound_over_splits_of_a_batch_is_below_the_best_split(problem: Problem) -> None:
    fleet = mixed_rows(problem).fleet
    shares = shares_of(fleet)
    for groups in every_set(len(shares)):
        exchange = fleet.exchange_s(groups)
        best = solve_split(shares, groups, exchange)
        if best is not None:
            assert least_split_s(shares, groups) + exchange <= best.score_s
            assert split_bound_s(shares, groups, exchange, best.score_s) <= best.score_s
            assert least_step_s(shares) <= best.score_s


@pytest.mark.timeout(120)
@settings(max_examples=max(EXAMPLES // 4, 2), deadline=None)
@given(problem=mixed_problems())
def test_every_plan_passes_the_independent_check(problem: Problem) -> None:
    answer = search(problem, default_profile(problem.cluster, "none"))
    assert answer.status in {"optimal", "feasible", "infeasible"}
    for plan in answer.plans:
        assert plan.config.num_gpus <= problem.cluster.num_gpus
        assert answer.bound_step_time_s is not None
        assert answer.bound_step_time_s <= plan.prediction.step_time_s


@pytest.mark.parametrize("kinds", [
    ("h100-sxm-80gb", "h200-sxm-141gb"),  # the same products, other memory
    ("a100-sxm-80gb", "a100-sxm-40gb"),
    ("a100-sxm-80gb", "l40s"),  # one has the slower products, the other the slower memory
    ("h100-sxm-80gb", "a100-sxm-80gb"),
])  # fmt: skip
@pytest.mark.parametrize("sizes", [(1, 1), (8, 1)])
def test_a_mesh_over_unlike_nodes_is_no_faster_than_over_either_kind(
    kinds: tuple[str, str], sizes: tuple[int, int]
) -> None:
    mesh = dict(zip(("tensor_parallel_size", "pipeline_parallel_size"), sizes, strict=True))

    def step_s(*gpus: str) -> float:
        problem = parse_problem({
            "model": {"name": "llama-3.2-3b"},
            "cluster": {"groups": [{"gpu": gpu, "num_nodes": 1, "gpus_per_node": 8} for gpu in gpus]},
            "workload": {"global_batch_size": 64, "seq_length": 4096},
            "launcher": "megatron-lm",
            "search": {"certify": "none", "pin": {**mesh, "micro_batch_size": 1, "zero_stage": 1}},
        })  # fmt: skip
        found = search(problem, default_profile(problem.cluster, "megatron-lm"))
        return found.plans[0].prediction.step_time_s

    one, other = kinds
    both_s = step_s(one, other)
    assert both_s == step_s(other, one)
    assert both_s >= max(step_s(one, one), step_s(other, other))
