"""The measured layer is a real one: causal, whole when its shards are put together, honest about memory."""

import gc
from dataclasses import replace

import pytest

from meshwright.profiles.measure.device import Device
from meshwright.profiles.measure.layer import Layer, _kept_bytes, build_layer, measure_layer
from meshwright.profiles.measure.shard import Shard
from meshwright.profiles.measure.timing import QUICK, Label
from meshwright.profiles.model import LayerKind, ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec
from tests.problems.measured_profiles import TINY

LATENT = MlaSpec(q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
EXPERTS = MoeSpec(
    num_experts=8, top_k=2, ffn_hidden_size=32, num_shared_experts=1, shared_ffn_hidden_size=32
)
MODELS: dict[str, ModelSpec] = {
    "grouped queries": TINY,
    "biases, GELU, layer norm, learned positions": replace(
        TINY,
        num_kv_heads=4,
        gated_mlp=False,
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        normalization="layernorm",
        learned_position_embeddings=True,
        max_position_embeddings=64,
    ),
    "latent attention": replace(TINY, num_kv_heads=4, head_dim=24, mla=LATENT),
    "latent attention without compressed queries": replace(
        TINY, num_kv_heads=4, head_dim=24, mla=replace(LATENT, q_lora_rank=0)
    ),
    "experts": replace(TINY, moe=EXPERTS),
    "experts alone": replace(TINY, moe=replace(EXPERTS, num_shared_experts=0, shared_ffn_hidden_size=0)),
}


def shard_of(model: ModelSpec, *, tp: int = 1, ep: int = 1) -> Shard:
    return Shard(
        model=model, tensor_parallel_size=tp, expert_parallel_size=ep, micro_batch_size=2, seq_length=32
    )


def kind_of(model: ModelSpec) -> LayerKind:
    return "moe" if model.moe else "dense"


@pytest.mark.parametrize("name", MODELS)
def test_a_token_sees_itself_and_those_before_it(cpu: Device, name: str) -> None:
    model = MODELS[name]
    layer = build_layer(shard_of(model), kind_of(model), cpu)
    x = cpu.random(2, 32, model.hidden_size)
    changed = x.clone()
    changed[:, 20] = cpu.random(2, model.hidden_size)
    difference = (layer.forward(x) - layer.forward(changed)).detach().abs().amax(dim=(0, 2))
    assert float(difference[:20].max()) < 1e-5
    assert float(difference[20:].min()) > 1e-5


def test_experts_do_what_a_loop_over_rows_does(cpu: Device) -> None:
    model = MODELS["experts alone"]
    layer = build_layer(shard_of(model), "moe", cpu)
    assert layer.experts is not None
    x = cpu.random(64, model.hidden_size)
    weights, torch = layer.weights, cpu.torch
    chosen = torch.nn.functional.linear(x, weights["router"]).softmax(-1).topk(2, dim=-1).values.flatten()
    expected = torch.zeros_like(x)
    # 64 tokens · 2 experts each over 8 experts: rows 0-15 go through expert 0, 16-31 through expert 1, …
    for row, slot in enumerate(layer.experts.slots.tolist()):
        up, down = weights["experts_up"][row // 16], weights["experts_down"][row // 16]
        expected[slot // 2] += chosen[slot] * (down @ layer.activation(up @ x[slot // 2]))
    assert torch.allclose(layer.experts.forward(x, weights), expected, atol=1e-4)


def test_balanced_routing_takes_every_slot_once(cpu: Device) -> None:
    layer = build_layer(shard_of(MODELS["experts"]), "moe", cpu)
    assert layer.experts is not None
    assert sorted(layer.experts.slots.tolist()) == list(range(64 * 2))


def half(layer: Layer, rank: int) -> Layer:
    """What one of two tensor-parallel ranks holds of a layer of the tiny model (heads of 16)."""
    cat, whole = layer.device.torch.cat, layer.weights
    q, k, v = whole["qkv"].split([64, 32, 32])
    gate, up = whole["mlp_up"].chunk(2)
    weights = dict(whole)
    weights["qkv"] = cat([q.chunk(2)[rank], k.chunk(2)[rank], v.chunk(2)[rank]])
    weights["attention_out"] = whole["attention_out"].chunk(2, dim=1)[rank]
    weights["mlp_up"] = cat([gate.chunk(2)[rank], up.chunk(2)[rank]])
    weights["mlp_down"] = whole["mlp_down"].chunk(2, dim=1)[rank]
    return replace(layer, shard=shard_of(TINY, tp=2), weights=weights)


def test_the_shards_of_two_ranks_add_up_to_the_whole_layer(cpu: Device) -> None:
    whole = build_layer(shard_of(TINY), "dense", cpu)
    first, second = half(whole, 0), half(whole, 1)
    assert {name: tuple(first.weights[name].shape) for name in first.shard.matrices("dense")} == (
        first.shard.matrices("dense")
    )
    x = cpu.random(2, 32, 64)
    # an all-reduce adds the ranks' attention; the residual x counts once. The same for the MLP.
    attended = x + sum(
        one._attention(one.norm(x, one.weights["attention_norm"])) for one in (first, second)
    )
    normed = whole.norm(attended, whole.weights["mlp_norm"])
    assert cpu.torch.allclose(
        whole.forward(x), attended + sum(one._mlp(normed) for one in (first, second)), atol=1e-4
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_weight_of_a_layer_is_built_and_learned(cpu: Device, name: str) -> None:
    model = MODELS[name]
    layer = build_layer(shard_of(model), kind_of(model), cpu)
    elements = sum(weight.numel() for key, weight in layer.weights.items() if not key.endswith("norm"))
    assert elements == model.layer_parameters(kind_of(model)) - model.layer(kind_of(model)).norms
    out = layer.forward(cpu.random(2, 32, model.hidden_size))
    gradients = cpu.torch.autograd.grad(out.sum(), tuple(layer.weights.values()))
    assert all(bool(gradient.abs().sum() > 0) for gradient in gradients)


@pytest.mark.parametrize("name", MODELS)
def test_every_pass_of_a_layer_is_measured(cpu: Device, name: str) -> None:
    model = MODELS[name]
    shard = shard_of(model, tp=2, ep=2 if model.moe else 1)
    label = Label(task="layer", group="layer", operator="layer", shape=shard.sizes())
    measured = {one.kind: one for one in measure_layer(shard, kind_of(model), label, cpu, QUICK)}
    kinds = ["forward", "backward", "input_gradient", "recompute_backward", "accumulate", "optimizer"]
    assert list(measured) == kinds
    assert all(one.timing.median_s > 0 and one.timing.repeats >= 3 for one in measured.values())
    assert measured["backward"].work_flops == 2 * measured["forward"].work_flops
    assert measured["backward"].peak_memory_bytes is None  # a CPU has no allocator to ask


def test_the_kept_bytes_of_a_dense_layer_by_hand(cpu: Device) -> None:
    layer = build_layer(shard_of(TINY), "dense", cpu)
    x = cpu.random(2, 32, 64, learned=True)
    kept = _kept_bytes(layer, x) / (2 * 32 * 4)  # fp32 elements of one token
    # x, its norm, qkv projected (v stays in it), q and k rotated, attention's output, a, its norm: at least
    least = 64 + 64 + (64 + 32) + 64 + 64 + 64
    # gate and up (256), SiLU of the gate (128), their product (128)
    least += 256 + 128 + 128
    assert least <= kept <= 1.35 * least


def test_counting_what_a_layer_keeps_frees_all_of_it(cpu: Device) -> None:
    layer = build_layer(shard_of(TINY), "dense", cpu)
    x = cpu.random(2, 32, 64, learned=True)
    before = _live_tensors(cpu)
    _kept_bytes(layer, x)
    assert _live_tensors(cpu) == before


def _live_tensors(cpu: Device) -> int:
    gc.collect()
    return sum(type(one) is cpu.torch.Tensor for one in gc.get_objects())
