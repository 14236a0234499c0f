"""Prices of single roles: engines by their bytes, rollouts by their answers, forward passes of a layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.planner.plan import ask
from meshwright.solver.post_training.engines import Engine, _Layers, sizes_of
from meshwright.solver.post_training.lengths import AnswerLengths, lengths_of_percentiles
from meshwright.solver.post_training.rollout import rollout_of
from meshwright.solver.post_training.training import forward_s

REQUEST = {
    "model": {"name": "qwen3-8b"},
    "cluster": {"gpu": "h100-sxm-80gb", "num_nodes": 1},
    "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "megatron-bridge",
    "search": {"top_k": 1, "allow": ["none"], "certify": "none"},
}
GROUP = parse_problem(REQUEST).cluster.groups[0]


def engine(**changes: object) -> Engine:
    return replace(Engine(model=find_model("qwen3-8b"), group=GROUP), **changes)  # type: ignore[arg-type]


def test_keys_and_values_of_a_token_are_split_as_far_as_there_are_heads() -> None:
    # 36 layers x keys and values x 8 heads x 128 numbers x 2 bytes
    assert engine().cache_bytes_per_token == 36 * 2 * 8 * 128 * 2
    assert engine(tensor_parallel_size=8).cache_bytes_per_token == 36 * 2 * 1 * 128 * 2
    assert engine(tensor_parallel_size=16).cache_bytes_per_token == 36 * 2 * 1 * 128 * 2


def test_latent_keys_and_values_are_on_every_tensor_rank() -> None:
    model = find_model("deepseek-v3")
    each = [
        Engine(model=model, group=GROUP, tensor_parallel_size=tp).cache_bytes_per_token for tp in (1, 8)
    ]
    assert each == [61 * (512 + 64) * 2] * 2


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-8b",
        "deepseek-v3",
        "gemma-3n-e2b",
        "gemma-4-31b",
        "llama-3.3-nemotron-super-49b",
        "trinity-mini-26b",
    ],
)
def test_a_step_multiplies_every_matrix_that_a_layer_lists(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Layers, "_product", lambda _self, rows, n, k, *_: np.full_like(rows, n * k))
    monkeypatch.setattr(_Layers, "_grouped", lambda _self, each, *_: np.zeros_like(each))
    model = find_model(name)
    step = _Layers(Engine(model=model, group=GROUP))
    step.read = np.inf
    layers = [model.shaped(shape).layer(shape.kind) for shape in model.layer_shapes()]
    listed = sum(one.weights for one in model.head) + sum(
        one.weights
        for layer in layers
        for one in layer.operators
        if not one.is_routed and one.name not in ("streams", "kv_up")  # kv_up is absorbed
    )
    # seconds of 7 small ones and 4 of a router are millionths
    assert float(step.step_s(np.ones(1))[0]) == pytest.approx(listed, rel=1e-9)


def test_layers_without_attention_keep_no_keys_and_layers_that_borrow_keep_none_of_their_own() -> None:
    skipping, borrowing = find_model("llama-3.3-nemotron-super-49b"), find_model("gemma-3n-e2b")
    # 49 of 80 layers attend, with 8 heads of 128; 20 of 30 layers have 2 heads of 256 of their own
    one, other = (Engine(model=each, group=GROUP).cache_bytes_per_token for each in (skipping, borrowing))
    assert one == 49 * 2 * 8 * 128 * 2
    assert other == 20 * 2 * 2 * 256 * 2


def test_a_lone_answer_takes_at_least_the_time_to_read_all_weights() -> None:
    one = engine()
    embedding = one.model.vocab_size * one.model.hidden_size * 2  # looked up, not read
    least = (one.weight_bytes - embedding) / GROUP.gpu.hbm_bytes_per_s
    assert least < float(one.step_s(1.0, 1000.0)) - 4e-3 < 2.0 * least  # 4 ms of the host


def test_sglang_schedules_while_a_step_runs_and_keeps_its_workspace_outside_its_share() -> None:
    vllm, sglang = engine(), engine(kind="sglang")
    assert (sglang.cache_tokens - vllm.cache_tokens) * vllm.cache_bytes_per_token == pytest.approx(5e9)
    alone = engine(counts_host=False)
    for running in (1.0, 256.0):
        device, host = float(alone.step_s(running, 1000.0)), 4e-3 + 10e-6 * running
        assert float(vllm.step_s(running, 1000.0)) == pytest.approx(device + host)
        assert float(sglang.step_s(running, 1000.0)) == pytest.approx(max(device, host), rel=1e-3)


def test_an_engine_without_room_for_its_weights_holds_no_tokens() -> None:
    assert Engine(model=find_model("deepseek-v3"), group=GROUP, tensor_parallel_size=8).cache_tokens == 0.0


def test_tensor_parallel_sizes_divide_the_heads() -> None:
    heads_14 = replace(find_model("qwen3-8b"), num_attention_heads=28, num_kv_heads=4)
    assert sizes_of(heads_14, GROUP) == [1, 2, 4]


def test_lengths_keep_the_stated_mean_and_the_limit() -> None:
    lengths = AnswerLengths(prompt=200, mean=2500, longest=8192)
    assert lengths.answers.mean() == pytest.approx(2300, rel=1e-3)
    assert np.quantile(lengths.answers, 0.995) == pytest.approx(8192 - 200)  # one in a hundred
    assert lengths.drawn(64, of=2048)[-1] == 8192 - 200  # the busiest engine has the longest


def test_percentiles_are_of_prompt_and_answer_together() -> None:
    lengths = lengths_of_percentiles(100, {50: 1000, 100: 2000})
    assert lengths.longest == 2000
    assert float(np.quantile(lengths.answers, 0.75)) == pytest.approx(1500 - 100, rel=0.01)


def test_a_mean_beyond_the_limit_is_refused_with_one_that_works() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        AnswerLengths(prompt=200, mean=9000, longest=8192)
    (error,) = caught.value.errors
    assert (error.pointer, error.nearest) == ("/lengths/mean", "4196")


def test_answers_wait_where_memory_does_not_hold_them() -> None:
    answers = AnswerLengths(prompt=200, mean=2500, longest=8192).drawn(512, of=512)
    roomy, narrow = (rollout_of(engine(memory_share=share), answers, 200) for share in (0.9, 0.4))
    assert roomy.running > narrow.running
    assert narrow.seconds > roomy.seconds


def test_a_rollout_is_never_shorter_than_its_longest_answer_alone() -> None:
    lengths = AnswerLengths(prompt=200, mean=2500, longest=8192)
    alone = rollout_of(engine(), lengths.drawn(1, of=10**6), 200).seconds
    assert rollout_of(engine(), lengths.drawn(64, of=2048), 200).seconds > alone


def test_a_forward_pass_is_less_than_a_third_of_a_step() -> None:
    problem = parse_problem(REQUEST)
    profile = default_profile(problem.cluster, problem.priced_as)
    plan = ask(problem, profile).plans[0]
    (evaluation,) = evaluate(problem, profile, [plan.config])
    # a backward pass has two products for each of the forward pass, and more: the end of a step follows
    assert 1 / 4 < forward_s(evaluation) / plan.prediction.step_time_s < 1 / 3
