"""Mixers with a state: our FLOPs of a layer beside those that transformers' class runs on meta tensors."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from meshwright.profiles.importers.huggingface import model_from_config

TOKENS = 512  # eight chunks


@pytest.mark.parametrize(
    ("model_type", "layer"),
    [("qwen3_next", Qwen3NextGatedDeltaNet), ("qwen3_5_text", Qwen3_5GatedDeltaNet)],
)
@pytest.mark.parametrize(("heads", "size"), [(32, 128), (16, 64)])
def test_a_gated_delta_net_multiplies_as_much_as_its_class(
    model_type: str, layer: type[torch.nn.Module], heads: int, size: int
) -> None:
    sizes = {
        "hidden_size": 512, "num_hidden_layers": 4, "linear_num_value_heads": heads,
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
    padded = 2 * mixer.convolved * mixer.convolution * 3
    # It solves triangular systems for keys and values, which torch does not count; kernels multiply both by
    # the inverse.
    solved = mixer.num_heads * mixer.chunk * (mixer.key_head_dim + mixer.value_head_dim)
    ours = 2 * TOKENS * (mixer.matrix_parameters(512) + mixer.scan_products() - solved) + padded
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
    padded = 2 * mixer.convolved * mixer.convolution * 3  # as a delta net's
    # The class multiplies keys and queries of every head, kernels those of a group once.
    again = (heads - groups) * mixer.chunk * mixer.key_head_dim
    # It adds up states by a matrix of chunks by chunks, kernels one chunk after the other.
    sums = 2 * (TOKENS // mixer.chunk + 1) ** 2 * heads * state
    ours = 2 * TOKENS * (mixer.matrix_parameters(512) + mixer.scan_products() + again) + padded + sums
    assert counter.get_total_flops() == ours
    assert model.forward_flops_of(model.shapes()[0], TOKENS) == 2 * (
        mixer.matrix_parameters(512) + mixer.scan_products()
    )
