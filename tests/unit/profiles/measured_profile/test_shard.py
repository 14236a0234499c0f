"""What one rank holds of a layer: the catalog's models, cut."""

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model, model_names
from meshwright.profiles.measure.shard import Gemm, Shard
from meshwright.profiles.model import ModelSpec


def shard(model: ModelSpec, *, tp: int = 1, ep: int = 1, micro_batch: int = 1, seq: int = 4096) -> Shard:
    return Shard(
        model=model,
        tensor_parallel_size=tp,
        expert_parallel_size=ep,
        micro_batch_size=micro_batch,
        seq_length=seq,
    )


@pytest.mark.parametrize("name", model_names())
def test_the_matrices_of_an_uncut_layer_hold_all_its_weights_but_norms_and_biases(name: str) -> None:
    model = find_model(name)
    whole = shard(model)
    for kind in set(model.layer_kinds()):
        weights = sum(n * k for n, k in whole.matrices(kind).values())
        if kind == "moe":
            weights += whole.local_experts * sum(n * k for n, k in whole.expert_matrices().values())
        small = model.norm_parameters() + model.bias_parameters(kind) + model.sink_parameters()
        if model.moe and kind == "moe":
            experts = model.moe.num_experts
            small += experts * (model.expert_bias_parameters() + int(model.moe.router_bias))
        assert weights == model.layer_parameters(kind) - small


@pytest.mark.parametrize("name", model_names())
def test_an_uncut_layer_does_the_models_flops(name: str) -> None:
    model = find_model(name)
    whole = shard(model, micro_batch=2)
    for kind in set(model.layer_kinds()):
        if model.sliding_window is None:
            per_token = model.layer_forward_flops_per_token(kind, 4096)
            visits = 2 * 4096 * (model.moe.top_k if model.moe else 1)
            even = (
                visits % (model.moe.num_experts if model.moe else 1) == 0
            )  # else an expert's rows are rounded
            wanted = pytest.approx(2 * 4096 * per_token, rel=1e-12 if even else 2e-3)
            assert whole.layer_forward_flops(kind) == wanted


def test_the_gemms_of_llama_3_1_8b_on_two_ranks() -> None:
    gemms = {gemm.operator: gemm for gemm in shard(find_model("llama-3.1-8b"), tp=2, seq=1024).gemms()}
    # 32 + 2·8 heads of 128 on two ranks: 3072 columns; MLP 14336 / 2, gate and up in one
    assert gemms["qkv"] == Gemm(operator="qkv", m=1024, n=3072, k=4096)
    assert gemms["attention_out"] == Gemm(operator="attention_out", m=1024, n=4096, k=2048)
    assert gemms["mlp_up"] == Gemm(operator="mlp_up", m=1024, n=14336, k=4096)
    assert gemms["mlp_down"] == Gemm(operator="mlp_down", m=1024, n=4096, k=7168)
    assert gemms["head"] == Gemm(operator="head", m=1024, n=64128, k=4096)


def test_key_value_heads_are_copied_once_there_are_more_ranks_than_heads() -> None:
    assert shard(find_model("llama-3.1-8b"), tp=16).kv_heads == 1
    assert shard(find_model("llama-3.1-8b"), tp=4).kv_heads == 2


def test_experts_get_equal_loads() -> None:
    # 4096 tokens × 2 experts each × 4 ranks that send here, over 8 experts: 4096 rows each
    mixtral = shard(find_model("mixtral-8x7b"), tp=2, ep=4)
    assert (mixtral.local_experts, mixtral.expert_rows) == (2, 4096)
    up = next(gemm for gemm in mixtral.gemms() if gemm.operator == "experts_up")
    assert up == Gemm(operator="experts_up", m=4096, n=14336, k=4096, experts=2)
    # 2 FLOPs · 2 experts · 4096 · 14336 · 4096
    assert up.flops == 2 * 2 * 4096 * 14336 * 4096


@pytest.mark.parametrize(
    ("name", "tp", "ep", "message"),
    [
        ("llama-3.1-8b", 3, 1, "--tp: 3 does not divide num_attention_heads = 32"),
        ("llama-3.1-8b", 1, 2, "--ep: this model has no experts"),
        ("mixtral-8x7b", 1, 3, "--ep: 3 does not divide num_experts = 8"),
        ("megatron-1t", 64, 1, "--tp: 64 does not divide num_attention_heads = 160"),
    ],
)
def test_a_cut_that_leaves_a_rest_is_refused(name: str, tp: int, ep: int, message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        shard(find_model(name), tp=tp, ep=ep)
