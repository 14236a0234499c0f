"""Every bound of drawn rows, as tight as it was when it was reviewed; UPDATE_GOLDEN=1 writes them anew.

That no bound is above the best plan is held by ``tests/property``. A bound that only became looser would
pass there, and proofs would take longer. Rows, splits and searches are small; of unlike node groups the
bounds of every row are held, too. A fifth of the drawn rows is held every day, all by ``make fuzz``.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.configuration import ALL_LAYERS, PER_STAGE, SPLIT_BACKWARD
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.problem import Problem
from meshwright.solver.schedules.schedule import V_SHAPED, schedules_of
from meshwright.solver.search import priced_space
from meshwright.solver.search.bounds import fractional_s, least_of_kind_s, objective_bound_s, whole_layers_s
from meshwright.solver.search.branch import (
    SimulationBudget,
    dominators,
    is_branchable,
    least_simulation_s,
    most_layers_of,
    number_of_patterns,
)
from meshwright.solver.search.candidates import candidates_of
from meshwright.solver.search.feasible import bound_at_sight_s, fitting, lightest, nearest
from meshwright.solver.search.fill import can_beat, least_bound_s, most_layers
from meshwright.solver.search.fill_kinds import (
    Pipelines,
    can_beat_mixed,
    fits_by_kind,
    least_objective_s,
    may_reach_objective,
    tightened_s,
)
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.listed import are_listed, number_of_splits, shape_of
from meshwright.solver.search.memory_limits import groups_of_shape, have_room, layer_caps, may_fit
from meshwright.solver.search.mixed.bounds import bounds_of, with_nearer_steps
from meshwright.solver.search.mixed.replicas import least_split_s, least_step_s, shares_of
from meshwright.solver.search.mixed.rows import LegalRows, MixedRows
from meshwright.solver.search.mixed.steps import StepBound
from meshwright.solver.search.paths import are_averaged, least_average_s
from meshwright.solver.search.priced_space import Priced
from meshwright.solver.search.proof import floors_of, least_step_bound_s
from meshwright.solver.search.recompute_by_stage import can_be_busy
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.search import search
from meshwright.solver.search.splits import best_offered, best_splits
from tests.builders import a_cluster, a_gpu, a_model, a_problem
from tests.draws import some_of
from tests.problems.mixed_clusters import a_group, a_mixed_problem
from tests.problems.strategies import FULL, Shape, columns_of, layout_of, prices_of

FOLDER = Path(__file__).parent
DRAWN, TOGETHER = 120, 20
SHARES = (0.95, 1.001, 1.02, 1.07, 1.15, 1.4)  # of a step: what is asked whether it can be beaten


def a_shape(random: Random, layers: int) -> Shape:
    """Draw up to 4 ranks of 3 chunks each, with any schedule and recomputation that fits."""
    pp = random.randint(1, min(4, layers))
    vpp = random.randint(1, min(3, layers // pp)) if pp > 1 else 1
    schedule = random.choice(schedules_of(pp, vpp) or ("none",))
    m = pp * random.randint(1, 4) if vpp > 1 else random.randint(1, 12)
    if schedule in ("looped_bfs", *V_SHAPED):
        m = random.randint(2 * pp, 16)
    recompute = random.randint(0, FULL - int(schedule in SPLIT_BACKWARD))
    counts = [ALL_LAYERS, *range(1, layers // (pp * vpp) + 1)]
    counts += [PER_STAGE] * (vpp == 1 < pp)
    chosen = random.choice(counts) if recompute == FULL else 0
    return Shape(
        pp=pp, vpp=vpp, num_microbatches=m, recompute=recompute, recompute_layers=chosen, schedule=schedule
    )


def some_rows(seed: int) -> Rows:
    """Draw rows of one problem, with one or two kinds of layers, in tight or ample memory."""
    random, rng = Random(seed), np.random.default_rng(seed)
    layers = random.randint(3, 10)
    kinds = [False] * layers if seed % 2 else [random.random() < 0.5 for _ in range(layers)]
    shapes = [a_shape(random, layers) for _ in range(random.randint(1, 5))]
    shapes += [random.choice(shapes)]
    layout = layout_of(kinds)
    rows = Rows(
        columns=columns_of(shapes), prices=prices_of(shapes, len(layout.kinds), rng), layout=layout,
        budget_bytes=np.inf, uneven_stages=random.random() < 0.85,
    )  # fmt: skip
    peaks = [
        rows.take([at]).stages([split]).peak_memory_bytes.max()
        for at, split in enumerate(best_splits(rows)) if split is not None
    ]  # fmt: skip
    share = random.choice((np.inf, np.inf, 1.02, 1.2, 1.5, 0.8))
    return replace(rows, budget_bytes=share * float(np.median(peaks)) if peaks else np.inf)


def numbers(values: Any) -> Any:  # noqa: ANN401 - JSON
    """Round values to nine digits."""
    if isinstance(values, dict):
        return {name: numbers(one) for name, one in values.items()}
    if isinstance(values, np.ndarray | np.generic):
        return numbers(values.tolist())
    if isinstance(values, float):
        return float(f"{values:.9g}") if np.isfinite(values) else str(values)
    if isinstance(values, list | tuple):
        return [numbers(one) for one in values]
    return values


def outcome(seed: int) -> dict[str, Any]:
    """Return what every bound finds for some rows."""
    rows = some_rows(seed)
    tiers: tuple[Callable[[Rows], Any], ...] = (
        least_of_kind_s, fractional_s, whole_layers_s, objective_bound_s, may_fit, are_listed, best_splits,
        best_offered, fitting, bound_at_sight_s, nearest,
    )  # fmt: skip
    found: dict[str, Any] = {one.__name__: one(rows) for one in tiers}
    found["lightest"] = lightest(rows.columns)
    caps = layer_caps(rows)
    if rows.is_uniform:
        found |= {"caps": (caps.least, caps.most), "have_room": have_room(rows)}
    frontier = Frontier.of(Priced.of(rows), 2)
    frontier.run(lambda _: False)
    known_s = frontier.ranked[0].score_s if frontier.ranked else float(found["whole_layers_s"].max()) * 1.5
    found["frontier"] = [
        [(one.row, one.score_s, one.split) for one in frontier.ranked], frontier.simulated,
        frontier.settled, frontier.least_s, frontier.least_objective_s,
    ]  # fmt: skip
    if frontier.ranked:
        floors = floors_of(frontier, 0.0)
        found["floors"] = [sorted(getattr(floors, one.name).values()) for one in fields(floors)
                           if isinstance(getattr(floors, one.name), dict)]  # fmt: skip
    given = [at for at, split in enumerate(found["best_splits"]) if split is not None]
    if given:
        tried = candidates_of(rows.take(given), [found["best_splits"][at] for at in given])
        found["candidates"] = [len(tried.splits), tried.splits[::7]]
    return found | _against(rows, known_s) | _of_single(rows)


def _against(rows: Rows, known_s: float) -> dict[str, Any]:
    """Return which rows may beat shares of their own second tier, and of the best step."""
    own_s = whole_layers_s(rows)
    found: dict[str, Any] = {
        "mixed": [can_beat_mixed(rows, share * own_s) for share in SHARES],
        "at a glance": [can_beat_mixed(rows, share * own_s, closely=False) for share in SHARES],
        "objective": [may_reach_objective(rows, share * known_s) for share in SHARES],
        "tightened": tightened_s(rows, own_s, 1.5 * own_s),
        "dominates": dominators(rows, len(rows) - 1).tolist(),
    }
    found["least objective"] = [
        (least_objective_s(some), fits_by_kind(some, Pipelines.of(some)))
        for _, _, index in groups_of_shape(rows)
        for some in [rows.take(index)]
    ]
    if rows.is_uniform:
        low_s, staged = (
            float(own_s.min()),
            rows.take(np.flatnonzero(rows.columns.recompute_layers == PER_STAGE)),
        )
        found["uniform"] = [can_beat(rows, share * own_s) for share in SHARES]
        found["busy"] = [
            can_be_busy(staged.take(index), share * whole_layers_s(staged.take(index)))
            for _, _, index in groups_of_shape(staged)
            for share in SHARES
        ]
        found["least bound"] = least_bound_s(rows, low_s, max(known_s, low_s))
        found["least step"] = least_step_bound_s(rows, low_s, max(known_s, low_s))
    return found


def _of_single(rows: Rows) -> dict[str, Any]:
    """Return the answers for single rows with one kind of layers, against 1.15 of their own bounds."""
    found: dict[str, Any] = {"single": []}
    for at in range(len(rows)) if rows.is_uniform else ():
        row = rows.take([at])
        low_s = whole_layers_s(row)
        step_s = 1.15 * float(low_s[0])
        one: list[Any] = [number_of_splits(shape_of(rows, at)), most_layers(row, step_s)]
        if rows.uneven_stages:
            one.append(most_layers_of(row, step_s))
            one.append([number_of_patterns(row, rank, range(1, 4)) for rank in range(int(row.p[0]))])
            if is_branchable(row, step_s):
                held = least_simulation_s(row, step_s, SimulationBudget(2**16))
                one += [held.step_s, held.for_all]
            if at == 0 and are_averaged(row)[0]:  # 128 rounds: some boxes are divided
                effort = SimulationBudget(2**26, reserve=3 * 2**27)
                one.append(least_average_s(row, low_s, step_s, effort))
        found["single"].append(one)
    return found


def uniform_problems() -> Iterator[Problem]:
    """Yield small models on one node, in ample and in tight memory."""
    sizes = {"hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}
    experts = MoeSpec(num_experts=4, top_k=2, ffn_hidden_size=2048, num_dense_layers=1)
    cases: tuple[tuple[int, str, MoeSpec | None, dict[str, Any]], ...] = (
        (79, "none", None, {"pin": {"micro_batch_size": 1}}),
        (24, "megatron-lm", None, {"pin": {"pipeline_parallel_size": 4}, "certify": "cp-sat"}),
        (24, "none", None, {"pin": {"pipeline_parallel_size": 2}, "bounds": {"zero_stage": (0, 1)}}),
        (79, "megatron-lm", experts, {"pin": {"expert_parallel_size": 2}, "diverse": False}),
        (40, "none", experts, {"pin": {"pipeline_parallel_size": 4, "micro_batch_size": 1}, "top_k": 3}),
        (24, "nanotron", None, {"bounds": {"pipeline_parallel_size": (2, 8)}}),
        (79, "none", None, {"objective": "tokens_per_s_per_gpu", "pin": {"pipeline_parallel_size": 8}}),
        (79, "megatron-lm", None, {"stage_layers": (1, 2, 2, 1), "certify": "cp-sat-all"}),
        (40, "none", None, {"allow": ("offload",), "pin": {"pipeline_parallel_size": 2}}),
        (2, "none", None, {"pin": {"tensor_parallel_size": 1}}),
        (1, "none", experts, {"pin": {"tensor_parallel_size": 1}}),
        (79, "none", experts, {"pin": {"virtual_pipeline_size": 2}, "batch": 13}),
        (24, "megatron-lm", None, {"num_nodes": (1, 2), "pin": {"pipeline_parallel_size": 4}}),
        (24, "none", experts, {"batch_sizes": (16, 24), "batch": 24, "pin": {"pipeline_parallel_size": 2}}),
        (16, "megatron-lm", None, {"standalone_stages": True, "pin": {"pipeline_parallel_size": 4}}),
        (16, "none", None, {"pin": {"recompute_granularity": "full"}, "top_k": 25}),
        (79, "none", None, {"objective": "gpu_hours_per_token", "num_nodes": (1, 2)}),
        (12, "torchtitan", None, {"pin": {"pipeline_parallel_size": 2}, "certify": "cp-sat"}),
        (24, "none", experts, {"recompute_kinds": ("none", "full"), "pin": {"pipeline_parallel_size": 2}}),
    )  # fmt: skip
    for seed, (memory_gib, launcher, moe, options) in enumerate(cases):
        model = a_model(num_layers=6 + 2 * (seed == 6), vocab_size=32000, moe=moe, **sizes)
        nodes = max(options.get("num_nodes", (1,)))
        cluster = a_cluster(num_nodes=nodes, gpu=a_gpu(memory_bytes=memory_gib * GIB))
        shown: dict[str, Any] = {"certify": "none", "top_k": 5, "seed": seed, "batch": 16, **options}
        yield replace(a_problem(model=model, cluster=cluster, **shown), launcher=launcher)


def mixed_problems() -> Iterator[Problem]:
    """Yield small models on node groups of several speeds, sizes and memories."""
    fast, slow = a_group(speed=1.0, slug="fast"), a_group(speed=0.4, slug="slow")
    small = a_group(speed=0.7, memory_gib=2.0, slug="small")
    pins = {"pin": {"micro_batch_size": 1, "zero_stage": 0}}
    yield a_mixed_problem((fast, slow), certify="none", **pins)  # type: ignore[arg-type]
    yield a_mixed_problem((fast, small), certify="none", pin={"context_parallel_size": 1}, num_layers=5)
    yield a_mixed_problem((fast, slow, small), certify="none", batch=6, **pins)  # type: ignore[arg-type]
    yield a_mixed_problem(
        (replace(fast, num_nodes=2), slow), certify="none", top_k=3, constraints=("stages('slow') <= 1",)
    )


def bounded(problem: Problem) -> dict[str, Any]:
    """Return the bounds of every row on unlike groups, and of all of them together."""
    profile = default_profile(problem.cluster, problem.priced_as)
    groups = NodeGroups.of(problem, profile)
    rows = MixedRows.of(LegalRows.of(groups))
    bounds = bounds_of(rows)
    bounds = with_nearer_steps(bounds, rows, np.arange(len(rows)))
    known_s = search(problem, profile).plans[0].prediction.step_time_s
    step = StepBound.of(rows, bounds, known_s, [(row,) for row in range(min(len(rows), 12))])
    step.raise_it(lambda: False)
    shares = shares_of(groups)
    every = tuple(range(len(groups.groups)))
    of_rows = {one.name: getattr(bounds, one.name) for one in fields(bounds)}
    return {
        "rows": len(rows),
        "bounds": {name: values[:: max(len(values) // 10, 1)] for name, values in of_rows.items()},
        "sums": {name: values[np.isfinite(values)].sum() for name, values in of_rows.items()},
        "step": [step.bound_s, step.solved],
        "least": [least_split_s(shares, every), least_step_s(shares)] if shares else [],
        "shares": [[one.least_s, one.bound_s] for one in shares],
    }


def searched(problem: Problem) -> dict[str, Any]:
    """Return what a search finds, proves and counts."""
    profile = default_profile(problem.cluster, problem.priced_as)
    answer = search(problem, profile)
    return {
        "states fit": priced_space.have_room(problem, profile),
        "answer": [answer.status, answer.space_size, answer.legal, answer.fit, answer.explored],
        "plans": [
            [one.plan_id, one.prediction.step_time_s, round(one.gap or 0.0, 6), one.certified_by]
            for one in answer.plans
        ],
    }


def reviewed(name: str, first: int, found: list[Any]) -> list[str]:
    """Return where the outcomes differ from those of a golden file."""
    path = FOLDER / name
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    fresh = [json.dumps(numbers(one), separators=(",", ":")) for one in found]
    if os.environ.get("UPDATE_GOLDEN"):
        lines[first : first + len(fresh)] = fresh
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = zip(lines[first : first + len(fresh)], fresh, strict=True)
    return [f"{a} -> {b}" for a, b in pairs if a != b]


@pytest.mark.parametrize("first", some_of(range(0, DRAWN, TOGETHER), each=5))
def test_no_bound_of_drawn_rows_became_looser(first: int) -> None:
    assert reviewed("rows.jsonl", first, [outcome(seed) for seed in range(first, first + TOGETHER)]) == []


@pytest.mark.parametrize("number", range(4))
def test_no_bound_on_unlike_groups_became_looser(number: int) -> None:
    problem = [*mixed_problems()][number]
    assert reviewed("unlike.jsonl", number, [bounded(problem) | searched(problem)]) == []


@pytest.mark.parametrize("number", range(19))
def test_a_search_finds_proves_and_counts_what_it_did(number: int) -> None:
    assert reviewed("searches.jsonl", number, [searched([*uniform_problems()][number])]) == []
