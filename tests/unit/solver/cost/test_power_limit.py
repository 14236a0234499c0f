"""Power limits: the clock that they leave, what it slows, and what it saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.profiles.cluster import clock_share, power_of
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_gpu
from meshwright.profiles.profile import default_profile
from meshwright.profiles.switches import switches
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.check import violations
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.price import price
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_gpu, a_model, a_problem

H100 = find_gpu("h100-sxm-80gb")
ROW = Configuration(data_parallel_size=16, zero_stage=1, zero_shard_size=16, stage_layers=(6,))
SHAPE = {"num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}
PINS = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "micro_batch_size": 1}
LIMITS_W = (0.0, 350.0, 400.0, 450.0, 500.0, 550.0)  # from half of 700 W to the 574 W that are drawn


def asked(limit_w: float = 0.0, **options: object) -> Problem:
    limits: dict[str, object] = {"certify": "none", "top_k": 1, "pin": PINS}
    problem = a_problem(
        model=a_model(**SHAPE), cluster=a_cluster(num_nodes=2, gpu=replace(a_gpu(), power_watts=700.0)),
        batch=32, **limits | options,
    )  # fmt: skip
    stated = {"power_limit_w": limit_w} if limit_w else {}
    return replace(problem, workload=replace(problem.workload, framework_options=stated))


def best_s(problem: Problem) -> float | None:
    found = ask(problem, default_profile(problem.cluster, problem.launcher)).plans
    return found[0].prediction.step_time_s if found else None


def test_the_clock_is_the_cube_root_of_what_is_left_beyond_waiting() -> None:
    # 700 W: 574 drawn while it computes, 140 while it waits; 420 W leave 280 of 434
    assert clock_share(H100, 420.0) == pytest.approx((280 / 434) ** (1 / 3))
    assert clock_share(H100, 574.0) == clock_share(H100, 700.0) == clock_share(H100, 0.0) == 1.0
    assert (power_of(H100, 420.0).busy_w, power_of(H100, 650.0).busy_w) == (420.0, 574.0)


def test_below_the_lowest_voltage_the_clock_falls_with_the_power_that_is_left() -> None:
    # at 420 of 700 W the voltage is at its lowest; 350 W leave 210 of those 280
    assert clock_share(H100, 350.0) == pytest.approx((280 / 434) ** (1 / 3) * 210 / 280)
    # Zeus: an epoch at half the power takes 1.43 times as long on V100, 1.64 times on A40
    for own_w, longer in ((250.0, 5158.9 / 3603.6), (300.0, 6147.5 / 3739.5)):
        gpu = replace(find_gpu("v100-pcie-32gb"), power_watts=own_w)
        assert 1.0 / clock_share(gpu, own_w / 2) == pytest.approx(longer, rel=0.09)


@pytest.mark.parametrize(
    ("own_w", "limit_w", "epoch_s", "free_s"),
    [
        # Zeus, NSDI 2023: an epoch of ResNet-50 on V100 and A40, 128 images a batch
        (250, 200, 3799.4, 3603.6), (250, 175, 3945.8, 3603.6), (250, 150, 4243.3, 3603.6),
        (300, 250, 3804.2, 3739.5), (300, 225, 3862.4, 3739.5), (300, 200, 3992.4, 3739.5),
    ],
)  # fmt: skip
def test_measured_epochs_take_as_much_longer_within_five_per_cent(
    own_w: float, limit_w: float, epoch_s: float, free_s: float
) -> None:
    gpu = replace(find_gpu("v100-pcie-32gb"), power_watts=own_w)
    assert 1.0 / clock_share(gpu, limit_w) == pytest.approx(epoch_s / free_s, rel=0.05)


def test_products_slow_with_the_clock_and_nothing_else_does() -> None:
    def priced(limit_w: float) -> dict[str, float]:
        problem = asked(limit_w)
        found = price(problem, Columns.of([ROW]), default_profile(problem.cluster, "megatron-lm"))
        return {"pass": float(found.forward_s[0, 0]), "end": float(found.tail_s[0, 0])}

    free, limited = priced(0.0), priced(500.0)
    slower = 1.0 / clock_share(H100, 500.0)
    assert 1.0 < limited["pass"] / free["pass"] < slower, "norms and activations run at memory's rate"
    assert limited["end"] == pytest.approx(free["end"], rel=0.02)


def test_a_search_for_least_energy_finds_the_limit_that_brute_force_finds() -> None:
    chosen = asked(objective="energy_per_token", allow=("power_limit_w",))
    joules = {}
    for limit_w in LIMITS_W:
        one = asked(limit_w, objective="energy_per_token")
        plan = ask(one, default_profile(one.cluster, one.launcher)).plans[0]
        assert plan.outlook is not None
        joules[limit_w] = plan.outlook.energy_per_token_j
    found = ask(chosen, default_profile(chosen.cluster, chosen.launcher)).plans[0]
    assert found.outlook is not None
    assert found.outlook.energy_per_token_j == pytest.approx(min(map(float, filter(None, joules.values()))))
    assert float(found.outlook.energy_per_token_j or 0.0) < 0.95 * float(joules[0.0] or 0.0)


def test_a_power_budget_feeds_more_gpus_at_a_lower_limit() -> None:
    budget = {"max_power_kw": 8.2}  # 14 GPUs at 574 W, 16 at 500 W or less
    every = [best_s(asked(limit_w, **budget)) for limit_w in LIMITS_W]
    chosen = asked(allow=("power_limit_w",), **budget)
    assert best_s(chosen) == pytest.approx(min(one for one in every if one))
    profile = default_profile(chosen.cluster, chosen.launcher)
    drawn = [
        [one for one in violations(asked(limit_w, **budget), profile, ROW) if "kW" in one]
        for limit_w in (600.0, 500.0)
    ]
    assert drawn == [["16 GPUs draw 9.184 kW while they compute, 8.2 are allowed"], []]
    found = ask(chosen, profile)
    assert found.plans[0].config.num_gpus == 16
    assert not any("GPUs are used" in one for one in found.warnings), "14 are the most at 574 W alone"


@pytest.mark.parametrize(
    ("limit_w", "nearest"), [(80, "350"), (349.9, "350"), (701, "700"), (100_000, "700")]
)
def test_a_limit_beyond_the_range_of_the_gpu_is_refused_by_field_value_and_range(
    limit_w: float, nearest: str
) -> None:
    raw = {
        "model": "llama-3.1-8b", "cluster": {"name": "dgx-h100", "num_nodes": 1},
        "workload": {"global_batch_size": 8, "seq_length": 4096,
                     "framework_options": {"power_limit_w": limit_w}},
    }  # fmt: skip
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(raw)
    (fault,) = caught.value.errors
    assert fault.pointer == "/workload/framework_options/power_limit_w"
    assert f"{limit_w:g} W is outside its range" in fault.message
    assert "350 to 700 W" in str(fault.allowed)
    assert fault.nearest == nearest


@pytest.mark.parametrize("limit_w", [350, 423.5, 600, 700])
def test_any_limit_in_the_range_of_the_gpu_is_taken(limit_w: float) -> None:
    raw = {
        "model": "llama-3.1-8b", "cluster": {"name": "dgx-h100", "num_nodes": 1},
        "workload": {"global_batch_size": 8, "seq_length": 4096,
                     "framework_options": {"power_limit_w": limit_w}},
    }  # fmt: skip
    assert parse_problem(raw).power_limit_w == limit_w


def test_limits_are_tried_on_an_own_gpu_which_has_to_state_its_power() -> None:
    chip = {"name": "ours", "memory_gib": 96, "hbm_gb_per_s": 3300, "peak_tflops": {"bf16": 900}}
    raw: dict[str, Any] = {
        "model": "llama-3.1-8b", "cluster": {"groups": [{"gpu": chip, "num_nodes": 1}]},
        "workload": {"global_batch_size": 8, "seq_length": 4096},
        "search": {"allow": ["power_limit_w"]},
    }  # fmt: skip
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(raw)
    (fault,) = caught.value.errors
    assert fault.pointer == "/cluster/groups/0/gpu"
    assert "ours states no power_watts" in fault.message
    chip["power_watts"] = 600
    problem = parse_problem(raw)
    settings = switches()["power_limit_w"].settings_of(
        "none", problem.model, [problem.cluster.groups[0].gpu]
    )
    watts = [one.options["power_limit_w"] for one in settings]
    assert watts == [0.0, 300.0, 350.0, 400.0, 450.0]  # from half of 600 W to the 492 W that are drawn


def test_a_budget_is_accepted_if_one_gpu_keeps_it_at_the_lowest_limit() -> None:
    # an H100 draws 574 W; 350 W is the lowest limit
    raw: dict[str, Any] = {
        "model": "llama-3.1-8b", "cluster": {"name": "dgx-h100", "num_nodes": 1},
        "workload": {"global_batch_size": 8, "seq_length": 4096},
        "search": {"max_power_kw": 0.36, "allow": ["power_limit_w"]},
    }  # fmt: skip
    assert parse_problem(raw).options.max_power_kw == 0.36
    for allow, least in (["power_limit_w"], "0.35"), ([], "0.574"):
        raw["search"] = {"max_power_kw": 0.34, "allow": allow}
        with pytest.raises(InvalidProblemError) as caught:
            parse_problem(raw)
        assert [one.nearest for one in caught.value.errors] == [least]
