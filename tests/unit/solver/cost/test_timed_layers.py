from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.profiles.measured.layers import LayerRatio, LayerTime, MeasuredLayers
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import RowPrices
from meshwright.solver.cost.timed_layers import (
    TIMED_LOG_SIGMA,
    along,
    is_timed,
    log_sigma_of_timed,
    shared_out,
)
from meshwright.solver.predict import predict
from tests.builders import a_model
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile


def timed(tp: int, micro_batch: int, forward_s: float, backward_s: float, part: str = "dense") -> LayerTime:
    return LayerTime(
        part=part,  # type: ignore[arg-type]
        tensor_parallel_size=tp,
        micro_batch_size=micro_batch,
        forward_s=forward_s,
        backward_s=backward_s,
    )


def timed_layers(*times: LayerTime, **changes: object) -> MeasuredLayers:
    facts = {"model": GPT, "seq_length": 2048, "expert_parallel_size": 1, "with_collectives": False}
    return MeasuredLayers(**(facts | changes), times=times)  # type: ignore[arg-type]


LAYERS = timed_layers(timed(1, 1, 2e-3, 5e-3), timed(1, 4, 8e-3, 17e-3), timed(4, 1, 1e-3, 2e-3))
HEAD = timed_layers(timed(1, 1, 2e-3, 5e-3), timed(1, 1, 7e-3, 9e-3, "head"))


def prices_of(
    layers: MeasuredLayers | None,
    *configurations: Configuration,
    seq_length: int = 2048,
    **workload: object,
) -> RowPrices:
    problem = a_problem(seq_length=seq_length, **workload)  # type: ignore[arg-type]
    profile = replace(a_profile(problem, floor_s=1e-4), layers=layers)  # far below the layers timed here
    return price(problem, Columns.of(configurations), profile)


def over_price(tp: int, micro_batch: int, forward: float, backward: float) -> LayerRatio:
    return LayerRatio(
        part="dense",
        tensor_parallel_size=tp,
        micro_batch_size=micro_batch,
        forward=forward,
        backward=backward,
    )


def test_layers_that_were_timed_with_adapters_price_runs_with_the_same_adapters_alone() -> None:
    adapted = timed_layers(timed(1, 1, 2e-3, 3e-3), lora_rank=16, lora_targets=("linear_qkv",))
    same = prices_of(adapted, a_layout(), lora_rank=16, lora_targets=("linear_qkv",))
    assert (same.forward_s[0, 0], same.backward_s[0, 0]) == pytest.approx((2e-3, 3e-3))
    for workload in ({}, {"lora_rank": 8, "lora_targets": ("linear_qkv",)}, {"lora_rank": 16}):
        priced, plain = (prices_of(one, a_layout(), **workload) for one in (adapted, None))
        assert priced.backward_s[0, 0] == plain.backward_s[0, 0]


def test_a_timed_layer_takes_what_was_timed() -> None:
    prices = prices_of(LAYERS, a_layout(), a_layout(micro_batch_size=4))
    assert prices.forward_s[:, 0] == pytest.approx([2e-3, 8e-3], rel=1e-12)
    assert prices.backward_s[:, 0] == pytest.approx([5e-3, 17e-3], rel=1e-12)


def test_a_timed_head_takes_what_was_timed_and_the_embedding_keeps_its_price() -> None:
    plain, prices = prices_of(None, a_layout()), prices_of(HEAD, a_layout())
    assert prices.forward_s[0] == pytest.approx([2e-3, plain.forward_s[0, 1], 7e-3], rel=1e-12)


def test_micro_batches_between_and_beyond_lie_on_straight_lines() -> None:
    # 2 ms at 1, 8 ms at 4: 2 ms a sequence; at 6 they go on: 8 + 2 * 2 = 12 ms
    prices = prices_of(LAYERS, *(a_layout(micro_batch_size=b) for b in (2, 3, 6)))
    assert prices.forward_s[:, 0] == pytest.approx([4e-3, 6e-3, 12e-3], rel=1e-12)


def test_collectives_come_on_top_unless_they_were_inside() -> None:
    layout = a_layout(tensor_parallel_size=4, micro_batch_size=16)
    outside = timed_layers(timed(4, 16, 9e-3, 20e-3))
    inside = replace(outside, with_collectives=True)
    assert prices_of(inside, layout).forward_s[0, 0] == pytest.approx(9e-3, rel=1e-12)
    # two all-reduces of 16 * 2048 * 1024 * 2 bytes = 67 MB, each 1.5 times that over at most 450 GB/s
    assert prices_of(outside, layout).forward_s[0, 0] > 9e-3 + 2 * 1.5 * 67e6 / 450e9


def test_another_shard_is_priced_by_the_nearest_timed_one() -> None:
    # tp 8 was not timed; the nearest, tp 4, took 3 times its price forward and 2 times backward
    ratios = (over_price(4, 1, 3.0, 2.0),)
    layers = replace(LAYERS, ratios=ratios, with_collectives=True)
    layout = a_layout(tensor_parallel_size=8)
    plain, prices = prices_of(None, layout), prices_of(layers, layout)
    assert prices.forward_s[0, 0] == pytest.approx(3.0 * plain.forward_s[0, 0])
    assert prices.backward_s[0, 0] == pytest.approx(2.0 * plain.backward_s[0, 0])


def test_sequences_of_another_length_are_off_by_what_as_many_tokens_are_off_by() -> None:
    # 4 sequences of 512 have the tokens of one of 2048, which took 9 times its price; 16 those of 4: once;
    # 8 those of 2, half way between by logarithms: 3 times
    ratios = (over_price(1, 1, 9.0, 9.0), over_price(1, 4, 1.0, 1.0))
    layers = replace(LAYERS, ratios=ratios, with_collectives=True)
    layouts = [a_layout(micro_batch_size=b) for b in (4, 8, 16, 32)]
    plain, prices = (prices_of(one, *layouts, seq_length=512) for one in (None, layers))
    of_layers = prices.forward_s[:, 0] / plain.forward_s[:, 0]
    assert of_layers == pytest.approx([9.0, 3.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("layers", "workload"),
    [
        (replace(LAYERS, model=a_model()), {}),
        (LAYERS, {"framework_options": {"precision_recipe": "fp8-delayed"}}),
    ],
    ids=["another model", "fp8"],
)
def test_what_was_timed_says_nothing_of_something_else(
    layers: MeasuredLayers, workload: dict[str, Any]
) -> None:
    plain, prices = prices_of(None, a_layout(), **workload), prices_of(layers, a_layout(), **workload)
    assert prices.forward_s.tolist() == plain.forward_s.tolist()
    assert prices.backward_s.tolist() == plain.backward_s.tolist()


def test_a_deeper_model_with_another_vocabulary_has_the_same_layers_but_another_head() -> None:
    other = replace(GPT, num_layers=24, vocab_size=32000, name="other")
    assert LAYERS.has_part("dense", other)
    assert not HEAD.has_part("head", other)


@pytest.mark.parametrize("with_collectives", [False, True])
@pytest.mark.parametrize("tp", [1, 4, 8])
def test_causes_sum_to_the_passes_and_none_is_negative(tp: int, *, with_collectives: bool) -> None:
    layers = replace(LAYERS, with_collectives=with_collectives)
    prices = prices_of(layers, a_layout(tensor_parallel_size=tp))
    total = sum(prices.breakdown_s.values())
    np.testing.assert_allclose(total, prices.forward_s + prices.backward_s, rtol=1e-12)
    assert min(float(cause.min()) for cause in prices.breakdown_s.values()) >= 0.0


@given(
    seconds=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5),
    batches=st.lists(st.integers(1, 64), min_size=2, max_size=6),
)
def test_more_sequences_never_take_less(seconds: list[float], batches: list[int]) -> None:
    curve = [timed(1, 2**index, value, value) for index, value in enumerate(seconds)]
    taken = along(seconds, curve, np.array(sorted(batches), dtype=np.float64))
    assert np.all(np.diff(taken) >= -1e-15)


def test_a_step_of_timed_layers_alone_is_as_sure_as_they_are_and_half_of_it_half_as_much() -> None:
    assert log_sigma_of_timed(0.15, {"compute": 3.0}) == TIMED_LOG_SIGMA
    # half of 0.15 and half of 0.07
    assert log_sigma_of_timed(0.15, {"compute": 1.0, "data_parallel": 1.0}) == pytest.approx(0.11)


def test_a_prediction_of_timed_layers_has_a_narrower_interval() -> None:
    problem = a_problem()
    profile = a_profile(problem)
    plain = predict(problem, profile, a_layout())
    prediction = predict(problem, replace(profile, layers=LAYERS), a_layout())
    assert prediction.step_time_high_s / prediction.step_time_s < plain.step_time_high_s / plain.step_time_s
    # four layers of 7 ms in 8 micro-batches: 224 ms, and both ends
    assert prediction.step_time_s > 0.224
    assert replace(profile, layers=LAYERS).version != profile.version


def test_a_row_is_timed_at_its_own_tensor_parallel_size_and_micro_batch() -> None:
    """Timed are one rank with 1 and 4 sequences, and four ranks with 1."""
    problem = a_problem()
    rows = [a_layout(tensor_parallel_size=tp, micro_batch_size=mbs) for tp in (1, 2, 4) for mbs in (1, 4)]
    profile = replace(a_profile(problem), layers=LAYERS)
    ctx = context_of(problem, Columns.of(rows), profile)
    assert is_timed(ctx, "dense").tolist() == [True, True, False, False, True, False]


def test_priced_collectives_that_exceed_a_timed_part_are_scaled_down_to_it() -> None:
    causes = {"compute": np.array([5.0, 5.0]), "tensor_parallel": np.array([1.0, 4.0])}
    # of 2 s timed 1 s is left to compute next to 1 s of collectives; 4 s of them fill all of the 2 s
    shares = shared_out(causes, np.array([2.0, 2.0]))
    assert {name: share.tolist() for name, share in shares.items()} == {
        "compute": [1.0, 0.0], "tensor_parallel": [1.0, 2.0], "rest": [0.0, 0.0]
    }  # fmt: skip
