"""Mixers with a state: our FLOPs of a layer beside those that transformers' class runs on meta tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1DecoderLayer
from transformers.models.falcon_mamba.modeling_falcon_mamba import FalconMambaMixer
from transformers.models.jamba import modeling_jamba
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.lfm2 import modeling_lfm2
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.layers import mixing
from meshwright.profiles.mixers import MixerSpec
from tests.builders import a_model

TOKENS = 512  # eight chunks


def weights_of(mixer: MixerSpec) -> int:
    """Return the weights of a mixer's matrices at a hidden size of 512: multiply-adds of a token."""
    return sum(one.weights for one in mixing.mixer(a_model(hidden_size=512), mixer))


@pytest.mark.parametrize(
    ("model_type", "layer"),
    [
        ("qwen3_next", Qwen3NextGatedDeltaNet),
        ("qwen3_5_text", Qwen3_5GatedDeltaNet),
        ("olmo_hybrid", OlmoHybridGatedDeltaNet),
    ],
)
@pytest.mark.parametrize(("heads", "size"), [(32, 128), (16, 64)])
def test_a_gated_delta_net_multiplies_as_much_as_its_class(
    model_type: str, layer: type[torch.nn.Module], heads: int, size: int
) -> None:
    sizes = {
        "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "linear_num_value_heads": heads,
        "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": size,
    }  # fmt: skip
    config = CONFIG_MAPPING[model_type](**sizes)
    with torch.device("meta"):
        module, hidden = layer(config, layer_idx=0), torch.empty(1, TOKENS, 512)
    with FlopCounterMode(display=False) as counter:
        module(hidden)
    mixer = model_from_config({"model_type": model_type, **sizes}, name="x").mixer
    assert mixer is not None
    # The class pads the convolution's sequence by 3 tokens and drops what they yield.
    padded = 2 * mixer.qkv_width * mixer.convolution * 3
    # It solves triangular systems for keys and values, which torch does not count; kernels multiply both by
    # the inverse.
    solved = mixer.num_heads * mixer.chunk * (mixer.key_head_dim + mixer.value_head_dim)
    ours = 2 * TOKENS * (weights_of(mixer) + mixer.scan_products() - solved) + padded
    assert counter.get_total_flops() == ours


@pytest.mark.parametrize(("groups", "bias"), [(1, False), (4, True)])
def test_a_layer_of_mamba_2_multiplies_as_much_as_its_class(groups: int, bias: bool) -> None:
    sizes = {
        "hidden_size": 512, "num_hidden_layers": 2, "num_heads": 16, "head_dim": 64, "state_size": 128,
        "n_groups": groups, "chunk_size": 128, "use_bias": bias,
    }  # fmt: skip
    config = CONFIG_MAPPING["mamba2"](**sizes)
    with torch.device("meta"):
        module, hidden = Mamba2Mixer(config, layer_idx=0), torch.empty(1, TOKENS, 512)
    with FlopCounterMode(display=False) as counter:
        module(hidden)
    model = model_from_config({"model_type": "mamba2", **sizes}, name="x")
    mixer = model.mixer
    assert mixer is not None
    heads, state = mixer.num_heads, mixer.key_head_dim * mixer.value_head_dim
    padded = 2 * mixer.qkv_width * mixer.convolution * 3  # as a delta net's
    # The class multiplies keys and queries of every head, kernels those of a group once.
    again = (heads - groups) * mixer.chunk * mixer.key_head_dim
    # It adds up states by a matrix of chunks by chunks, kernels one chunk after the other.
    sums = 2 * (TOKENS // mixer.chunk + 1) ** 2 * heads * state
    ours = 2 * TOKENS * (weights_of(mixer) + mixer.scan_products() + again) + padded + sums
    assert counter.get_total_flops() == ours
    assert model.forward_flops_of(model.shapes()[0], TOKENS) == 2 * (
        weights_of(mixer) + mixer.scan_products()
    )


def test_a_layer_of_falcon_h1_multiplies_as_much_as_its_class() -> None:
    sizes = {
        "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "mamba_d_ssm": 1024, "mamba_n_heads": 16, "mamba_d_state": 128,
        "mamba_n_groups": 1, "mamba_chunk_size": 128,
    }  # fmt: skip
    config = CONFIG_MAPPING["falcon_h1"](**sizes, attn_implementation="eager")
    with torch.device("meta"):
        module, hidden = FalconH1DecoderLayer(config, layer_idx=0), torch.empty(1, TOKENS, 512)
        turns = torch.empty(1, TOKENS, 64), torch.empty(1, TOKENS, 64)
    module.mamba.mup_vector = torch.empty(1, device="meta")
    with FlopCounterMode(display=False) as counter:
        module(hidden, position_embeddings=turns)
    model = model_from_config({"model_type": "falcon_h1", **sizes}, name="x")
    mixer = model.mixer
    assert mixer is not None
    heads, state = mixer.num_heads, mixer.key_head_dim * mixer.value_head_dim
    padded = 2 * mixer.qkv_width * mixer.convolution * 3  # as Mamba 2's, as are the next two
    again = (heads - 1) * mixer.chunk * mixer.key_head_dim
    sums = 2 * (TOKENS // mixer.chunk + 1) ** 2 * heads * state
    # The class multiplies the whole square of scores, of which we count the causal half.
    square = 2 * TOKENS * 2 * 8 * 64 * (TOKENS - (TOKENS + 1) / 2)
    ours = TOKENS * model.forward_flops_of(model.shapes()[0], TOKENS)
    assert counter.get_total_flops() == ours + padded + sums + square + 2 * TOKENS * again


def _jamba(**changes: object) -> tuple[torch.nn.Module, Any]:
    """A layer's mixer of Jamba on the meta device, and our sizes of it."""
    sizes = {
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 8,
        "mamba_d_state": 16,
        **changes,
    }
    with torch.device("meta"):
        module = modeling_jamba.JambaMambaMixer(CONFIG_MAPPING["jamba"](**sizes), layer_idx=0)
    return module, model_from_config({"model_type": "jamba", **sizes}, name="x").mixer


@pytest.mark.parametrize(("rank", "state", "bias"), [("auto", 16, False), (48, 32, True)])
def test_a_selective_scan_multiplies_as_much_as_its_class(rank: object, state: int, bias: bool) -> None:
    module, mixer = _jamba(mamba_dt_rank=rank, mamba_d_state=state, mamba_proj_bias=bias)
    with FlopCounterMode(display=False) as counter:
        module(torch.empty(1, TOKENS, 512, device="meta"))
    padded = 2 * mixer.qkv_width * mixer.convolution * 3  # as a delta net's
    # Of a state's four multiply-adds torch counts the output's; the others are elementwise in the class.
    elementwise = 3 * mixer.num_heads * mixer.key_head_dim
    ours = 2 * TOKENS * (weights_of(mixer) + mixer.scan_products() - elementwise) + padded
    assert counter.get_total_flops() == ours


@pytest.mark.parametrize(
    ("model_type", "layer"), [("mamba", MambaMixer), ("falcon_mamba", FalconMambaMixer)]
)
def test_a_layer_of_mamba_multiplies_as_much_as_its_class(
    model_type: str, layer: type[torch.nn.Module]
) -> None:
    sizes = {"hidden_size": 512, "num_hidden_layers": 2, "state_size": 32, "time_step_rank": 48}
    with torch.device("meta"):
        module = layer(CONFIG_MAPPING[model_type](**sizes), layer_idx=0)
    with FlopCounterMode(display=False) as counter:
        module(torch.empty(1, TOKENS, 512, device="meta"))
    mixer = model_from_config({"model_type": model_type, **sizes}, name="x").mixer
    assert mixer is not None
    padded = 2 * mixer.qkv_width * mixer.convolution * 3
    elementwise = 3 * mixer.num_heads * mixer.key_head_dim  # as Jamba's
    ours = 2 * TOKENS * (weights_of(mixer) + mixer.scan_products() - elementwise) + padded
    assert counter.get_total_flops() == ours


@pytest.mark.parametrize(("heads", "size"), [(8, 64), (4, 128)])
def test_kimi_s_delta_attention_multiplies_as_much_as_its_class(heads: int, size: int) -> None:
    sizes = {"hidden_size": 512, "num_hidden_layers": 5, "linear_num_heads": heads, "linear_head_dim": size}
    with torch.device("meta"):
        module = KimiLinearDeltaAttention(CONFIG_MAPPING["kimi_linear"](**sizes), layer_idx=0)
    with FlopCounterMode(display=False) as counter:
        module(torch.empty(1, TOKENS, 512, device="meta"))
    mixer = model_from_config({"model_type": "kimi_linear", **sizes}, name="x").mixer
    assert mixer is not None
    padded = 2 * mixer.qkv_width * mixer.convolution * 3
    # The class multiplies keys by keys and queries by keys element by element, for each channel's decay.
    elementwise = 2 * heads * mixer.chunk * size
    ours = 2 * TOKENS * (weights_of(mixer) + mixer.scan_products() - elementwise) + padded
    assert counter.get_total_flops() == ours


@pytest.mark.parametrize("block", [64, 256])
def test_lightning_attention_multiplies_as_much_as_its_class(block: int) -> None:
    sizes = {
        "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "block_size": block,
        "layer_types": ["linear_attention", "full_attention"],
    }  # fmt: skip
    with torch.device("meta"):
        module = MiniMaxLightningAttention(CONFIG_MAPPING["minimax"](**sizes), layer_idx=0)
    with FlopCounterMode(display=False) as counter:
        module(torch.empty(1, TOKENS, 512, device="meta"), None, None)
    mixer = model_from_config({"model_type": "minimax", **sizes}, name="x").mixer
    assert mixer is not None
    assert counter.get_total_flops() == 2 * TOKENS * (weights_of(mixer) + mixer.scan_products())


def _lfm2() -> tuple[torch.nn.Module, Any]:
    sizes = {"hidden_size": 512, "num_hidden_layers": 2, "full_attn_idxs": [1], "conv_L_cache": 4}
    with torch.device("meta"):
        module = modeling_lfm2.Lfm2ShortConv(CONFIG_MAPPING["lfm2"](**sizes), layer_idx=0)
    return module, model_from_config({"model_type": "lfm2", **sizes}, name="x").mixer


def test_a_short_convolution_multiplies_as_much_as_its_class() -> None:
    module, mixer = _lfm2()
    with FlopCounterMode(display=False) as counter:
        module(torch.empty(1, TOKENS, 512, device="meta"))
    padded = 2 * mixer.qkv_width * mixer.convolution * 3
    assert counter.get_total_flops() == 2 * TOKENS * weights_of(mixer) + padded


class _Kept(torch.autograd.Function):  # type: ignore[misc] # torch is in its own environment
    """A kernel that yields one tensor as long as its first input, and keeps what it is given."""

    @staticmethod
    def forward(ctx: Any, *kept: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's
        out = torch.empty_like(kept[0], dtype=torch.bfloat16)
        ctx.save_for_backward(*kept, out) if len(kept) > 3 else ctx.save_for_backward(*kept)
        return torch.empty_like(out)


def test_a_selective_scan_keeps_what_the_autograd_of_its_class_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Kernels on a GPU stand in for loops over tokens: causal-conv1d keeps its input, and mamba's
    # ``SelectiveScanFn`` values, time steps, B, C, gate and its output without the gate.
    module, mixer = _jamba()
    module.to(torch.bfloat16)
    monkeypatch.setattr(
        modeling_jamba,
        "causal_conv1d_fn",
        lambda hidden, weight, bias, **_: _Kept.apply(hidden, weight, bias),
    )
    monkeypatch.setattr(
        modeling_jamba,
        "mamba_selective_scan",
        lambda values, steps, _decay, b, c, z, **_: _Kept.apply(values, steps, b, c, z),
    )
    assert _kept(module) == pytest.approx(mixer.kept_elements(), rel=0.01)


def test_a_short_convolution_keeps_what_the_autograd_of_its_class_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, mixer = _lfm2()
    module.to(torch.bfloat16)
    monkeypatch.setattr(
        modeling_lfm2,
        "causal_conv1d_fn",
        lambda hidden, weight, bias, **_: _Kept.apply(hidden, weight, bias),
    )
    assert _kept(module) == mixer.kept_elements()


def _kept(module: torch.nn.Module) -> float:
    """The 2-byte elements of a token that a layer keeps, next to its input and its weights."""
    held: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bfloat16:  # the class's norms copy time steps, B and C to fp32
            held[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    hidden = torch.empty(1, TOKENS, 512, device="meta", dtype=torch.bfloat16, requires_grad=True)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = module(hidden)
    apart = {one.untyped_storage()._cdata for one in (hidden, *module.parameters())}
    kept = sum(size for place, size in held.items() if place not in apart)
    assert out.shape == hidden.shape
    return kept / 2 / TOKENS
