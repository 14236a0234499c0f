"""Low-rank adapters beside a frozen model, and frozen linear layers of 4 bits: their tensors and bytes.

LoRA (Hu et al. 2021, arXiv:2106.09685): a linear layer of ``inputs`` to ``outputs`` gets ``A`` (rank by
inputs) and ``B`` (outputs by rank), the only trained weights. QLoRA (Dettmers et al. 2023,
arXiv:2305.14314): the layers themselves are kept in NF4, with a scale for every block of 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.model import LayerKind, ModelSpec

# What may be adapted: the fused layers of Megatron-Core, routed experts among them, or transformers' single
# ones. In a model with experts those of the MLP mean the routed experts alone (peft 0.21: the experts'
# fused gate and up have twice the rank), and ``gate`` the router.
FUSED_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
SINGLE_TARGETS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "gate",
)  # fmt: skip
ATTENTION_TARGETS = FUSED_TARGETS[:2]
LORA_TARGETS = (*FUSED_TARGETS, *SINGLE_TARGETS)

BasePrecision = Literal["bf16", "nf4", "nf4-double"]
BASE_PRECISIONS: tuple[BasePrecision, ...] = ("bf16", "nf4", "nf4-double")
_BLOCK, _DOUBLE_BLOCK = 64, 256  # weights of one scale; scales of one scale of scales


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """One matrix; tensor parallelism splits its outputs, its inputs, or nothing."""

    inputs: int
    outputs: int
    split: Literal["outputs", "inputs", "nothing"] = "outputs"
    experts: int = 0  # so many of them, one for each routed expert; 0: one for all tokens


def linear_layers(model: ModelSpec, kind: LayerKind) -> Mapping[str, tuple[LinearLayer, ...]]:
    """The linear layers of one transformer layer, by the name of a target; some names stand for several."""
    singles = _attention(model) | (
        _experts(model, kind) if model.moe else _mlp(model, model.ffn_hidden_size)
    )
    attention = [layer for name, layer in _attention(model).items() if name != "o_proj"]
    h, moe = model.hidden_size, model.moe
    experts, width = (0, model.ffn_hidden_size) if kind == "dense" or moe is None else (
        moe.num_experts, moe.ffn_hidden_size
    )  # fmt: skip
    if model.mla is None:
        attention = [
            LinearLayer(inputs=h, outputs=sum(one.outputs for one in attention) + model.gate_width)
        ]
    up = LinearLayer(inputs=h, outputs=(model.mlp_matrices - 1) * width, experts=experts)
    down = LinearLayer(inputs=width, outputs=h, split="inputs", experts=experts)
    return {
        **{name: (layer,) for name, layer in singles.items()},
        "linear_qkv": tuple(attention),
        "linear_proj": (singles["o_proj"],),
        "linear_fc1": (up,),
        "linear_fc2": (down,),
    }


def _attention(model: ModelSpec) -> dict[str, LinearLayer]:
    """Projections, under transformers' names."""
    h, heads, mla = model.hidden_size, model.num_attention_heads, model.mla
    queries, out = heads * model.head_dim, heads * model.v_head_dim
    output = {"o_proj": LinearLayer(inputs=out, outputs=h, split="inputs")}
    if mla is None:
        key = LinearLayer(inputs=h, outputs=model.num_kv_heads * model.head_dim)
        value = LinearLayer(inputs=h, outputs=model.num_kv_heads * model.v_head_dim)
        projected = {"k_proj": key} if model.keys_are_values else {"k_proj": key, "v_proj": value}
        keys = {} if model.borrows else projected
        return {"q_proj": LinearLayer(inputs=h, outputs=queries), **keys, **output}
    if mla.q_lora_rank:
        query = {
            "q_a_proj": LinearLayer(inputs=h, outputs=mla.q_lora_rank, split="nothing"),
            "q_b_proj": LinearLayer(inputs=mla.q_lora_rank, outputs=queries),
        }
    else:
        query = {"q_proj": LinearLayer(inputs=h, outputs=queries)}
    down = mla.kv_lora_rank + mla.qk_rope_head_dim
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return {
        **query,
        "kv_a_proj_with_mqa": LinearLayer(inputs=h, outputs=down, split="nothing"),
        "kv_b_proj": LinearLayer(inputs=mla.kv_lora_rank, outputs=up),
        **output,
    }


def _mlp(model: ModelSpec, width: int) -> dict[str, LinearLayer]:
    """The MLP that every token visits, where there is one."""
    h = model.hidden_size
    if not width:
        return {}
    gate = {"gate_proj": LinearLayer(inputs=h, outputs=width)} if model.gated_mlp else {}
    return {
        **gate,
        "up_proj": LinearLayer(inputs=h, outputs=width),
        "down_proj": LinearLayer(inputs=width, outputs=h, split="inputs"),
    }


def _experts(model: ModelSpec, kind: LayerKind) -> dict[str, LinearLayer]:
    """Routed experts and their router; gate and up are fused, half of the adapter is counted for each."""
    moe, h = model.moe, model.hidden_size
    if moe is None or kind == "dense":
        return {}
    width = (model.mlp_matrices - 1) * moe.ffn_hidden_size
    up = LinearLayer(inputs=h, outputs=width, experts=moe.num_experts)
    return {
        **({"gate_proj": up} if model.gated_mlp else {}),
        "up_proj": up,
        "down_proj": LinearLayer(
            inputs=moe.ffn_hidden_size, outputs=h, split="inputs", experts=moe.num_experts
        ),
        "gate": LinearLayer(inputs=h, outputs=moe.num_experts, split="nothing"),
    }


def adapted_layers(model: ModelSpec, kind: LayerKind, targets: tuple[str, ...]) -> Iterator[LinearLayer]:
    """The linear layers of one transformer layer that adapters stand beside."""
    layers = linear_layers(model, kind)
    for target in targets:
        yield from layers.get(target, ())


def adapter_parameters(model: ModelSpec, rank: int, targets: tuple[str, ...]) -> int:
    """Trained weights of all adapters; multi-token prediction and the output head have none."""
    return sum(
        rank * (layer.inputs + layer.outputs) * max(layer.experts, 1)
        for shape in model.layer_shapes()
        for layer in adapted_layers(model.shaped(shape), shape.kind, targets)
    )


def quantized_layers(model: ModelSpec, kind: LayerKind) -> Iterator[LinearLayer]:
    """The linear layers of one transformer layer that bitsandbytes replaces: routed experts are none."""
    moe = model.moe
    width = model.ffn_hidden_size if kind == "dense" or moe is None else moe.shared_ffn_hidden_size
    yield from (_attention(model) | _mlp(model, width)).values()


def base_bytes(elements: float | NDArray[np.float64], precision: BasePrecision) -> NDArray[np.float64]:
    """Bytes of one frozen matrix with all that belongs to it, shape as ``elements``.

    NF4: half a byte a weight, a scale for each 64 and 16 code points in fp32. Double quantisation keeps
    scales in one byte, with an fp32 scale for each 256, 256 code points and an offset (bitsandbytes 0.50,
    ``functional.quantize_4bit`` and ``QuantState``).
    """
    whole = np.asarray(elements, dtype=np.float64)
    if precision == "bf16":
        return 2.0 * whole
    blocks = np.ceil(whole / _BLOCK)
    codes = 16 * 4.0
    if precision == "nf4":
        return np.ceil(whole / 2.0) + 4.0 * blocks + codes
    nested = 4.0 * np.ceil(blocks / _DOUBLE_BLOCK) + 256 * 4.0 + 4.0
    return np.ceil(whole / 2.0) + blocks + nested + codes
