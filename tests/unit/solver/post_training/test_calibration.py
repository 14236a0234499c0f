"""Measured parts of a step correct the prices, and say what is still in doubt."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.post_training.request import read_post_training, without_roles
from meshwright.solver.post_training.calibration import TRANSFER, corrections_of
from meshwright.solver.post_training.plan import plan_post_training

RAN: dict[str, Any] = {
    "kind": "post_training",
    "model": "llama-3.2-1b",
    "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1}]},
    "algorithm": {"prompts": 64, "responses": 16},
    "lengths": {"mean": 1000, "max": 4096},
    "rollout": {"tp": 1},
    "training": {"nodes": 1},
    "asynchrony": {"mode": "colocated"},
}
PREDICTED = {"generate": 90.0, "refit": 10.0, "update": 20.0, "swap": 0.0}


def test_a_factor_is_the_measured_ratio_drawn_towards_the_price() -> None:
    found = corrections_of([(PREDICTED, {"update": 30.0, "refit": 10.0, "swap": 1.0})])
    assert set(found) == {"update", "refit"}  # nothing was predicted of the swap
    assert 1.45 < found["update"].factor < 1.5
    assert found["refit"].factor == pytest.approx(1.0)
    assert found["update"].sigma >= TRANSFER


def test_generation_counts_the_transfer_of_weights_where_a_log_does_not_tell_them_apart() -> None:
    found = corrections_of([(PREDICTED, {"generate": 100.0})])
    assert found["generate"].factor == found["refit"].factor == pytest.approx(1.0)


def test_a_plan_of_the_measured_roles_has_the_measured_parts() -> None:
    before = plan_post_training(read_post_training(RAN).asked)
    parts = {name: 1.5 * before.plans[0].parts_s[name] for name in ("generate", "refit", "update")}
    after = plan_post_training(read_post_training({**RAN, "measured": [{"parts": parts}]}).asked)
    for name, seconds in parts.items():
        assert after.plans[0].parts_s[name] == pytest.approx(seconds, rel=0.03)
    assert set(after.corrections) == set(parts)
    own, first = after.plans[0], before.plans[0]
    assert own.step_high_s / own.step_low_s < first.step_high_s / first.step_low_s


@pytest.mark.parametrize(
    ("step", "pointer"),
    [
        ({"parts": {}}, "/measured/0/parts"),
        ({"parts": {"updat": 3.0}}, "/measured/0/parts"),
        ({"parts": {"update": 3.0}, "rollout": {}}, "/measured/0/rollout/tp"),
        ({"parts": {"update": 3.0}, "rollout": {"tp": 3}}, "/measured/0/rollout/tp"),
    ],
)
def test_a_measured_step_is_refused_by_its_field(step: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        read_post_training({**RAN, "measured": [step]})
    assert pointer in {error.pointer for error in caught.value.errors}


def test_a_question_without_its_roles_leaves_them_open() -> None:
    pins = read_post_training(without_roles(RAN)).asked.pins
    assert (pins.mode, pins.training_nodes, pins.tensor_parallel_size) == (None, None, None)
