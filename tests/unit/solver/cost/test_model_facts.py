"""What each fact of a model costs: weights of a rank, kept bytes and moved bytes, by arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.compute import memory_bound
from meshwright.solver.cost.memory import layer_activation_bytes
from meshwright.solver.cost.parameters import layer_weights
from tests.launcher_cases import LLAMA_3_70B, target
from tests.rank_weights import context_for

SPLIT = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=2, zero_stage=1, zero_shard_size=2,
    num_microbatches=8, stage_layers=(80,),
)  # fmt: skip
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TENSOR = 8192, 64, 8, 128, 8


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"query_key_norm": "per_head"}, 2 * HEAD_DIM),  # whole on every rank
        ({"query_key_norm": "all_heads"}, (HEADS + KV_HEADS) * HEAD_DIM),
        ({"qkv_bias": True}, (HEADS + 2 * KV_HEADS) * HEAD_DIM / TENSOR),
        ({"attention_output_bias": True}, HIDDEN),
        ({"mlp_bias": True}, 2 * 28672 / TENSOR + HIDDEN),
        ({"attention_sinks": True}, HEADS / TENSOR),
        ({"norm_position": "before_and_after"}, 2 * HIDDEN),
        ({"norm_position": "after"}, 0),
        ({"parallel_residual": True, "shared_norm": True}, -HIDDEN),
        ({"normalization": "layernorm"}, 2 * HIDDEN),
        ({"normalization": "layernorm_without_weights"}, -2 * HIDDEN),
    ],
)
def test_a_fact_adds_its_weights_to_a_rank(changes: dict[str, object], more: float) -> None:
    plain, other = (
        layer_weights(context_for(target(model, SPLIT)), "dense").dense[0]
        for model in (LLAMA_3_70B, _with(changes))
    )
    assert other - plain == more


@pytest.mark.parametrize("changes", [{"query_key_norm": "per_head"}, {"norm_position": "before_and_after"}])
def test_a_further_norm_moves_and_keeps_what_it_normalises(changes: dict[str, object]) -> None:
    plain, other = (context_for(target(model, SPLIT)) for model in (LLAMA_3_70B, _with(changes)))
    # a token's row on one of 8 ranks: two further norms of h / 8, or one of (64 + 8) / 8 heads of 128
    width = 2 * HIDDEN / TENSOR if "norm_position" in changes else (HEADS + KV_HEADS) / TENSOR * HEAD_DIM
    kept = layer_activation_bytes(other, "dense") - layer_activation_bytes(plain, "dense")
    assert kept[0] == pytest.approx(8192 * width * 2 * plain.constants.activation)
    moved = memory_bound(other, "dense").forward - memory_bound(plain, "dense").forward
    seconds = 8192 * width * 4 * plain.constants.elementwise / plain.hbm_bytes_per_s
    assert moved[0] == pytest.approx(float(seconds), rel=1e-6)


def _with(changes: dict[str, object]) -> ModelSpec:
    return replace(LLAMA_3_70B, **changes)  # type: ignore[arg-type]
