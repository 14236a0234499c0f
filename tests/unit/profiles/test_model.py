"""Parameters and FLOPs against published figures and against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec, StreamsSpec

# name, published total in billions, where it is published
PUBLISHED_TOTALS = [
    ("gpt-3-175b", 175.0),  # arXiv:2005.14165, table 2.1 (174.6 exactly)
    ("megatron-22b", 22.0),  # arXiv:2205.05198, table 3
    ("megatron-145b", 145.6),  # arXiv:2104.04473, table 1
    ("megatron-1t", 1008.0),  # arXiv:2104.04473, table 1
    ("mt-nlg-530b", 530.0),  # arXiv:2201.11990
    ("opt-175b", 175.0),  # arXiv:2205.01068
    ("bloom-176b", 176.247),  # model card of bigscience/bloom: 176,247,271,424
    ("llama-2-7b", 6.738),  # weights on the Hub: 6,738,415,616
    ("llama-2-13b", 13.016),  # 13,015,864,320
    ("llama-2-70b", 68.977),  # 68,976,648,192
    ("llama-3.1-8b", 8.03),  # 8,030,261,248
    ("llama-3.1-70b", 70.554),  # 70,553,706,496
    ("llama-3.1-405b", 405.853),  # 405,853,388,800
    ("mixtral-8x7b", 46.703),  # 46,702,792,704
    ("mixtral-8x22b", 140.62),  # 140,620,634,112
    ("deepseek-v3", 671.0),  # arXiv:2412.19437, abstract
    ("qwen3-30b-a3b", 30.5),  # arXiv:2505.09388; model card
    ("qwen3-235b-a22b", 235.1),  # 235,093,634,560
]


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_TOTALS)
def test_total_parameters_equal_the_published_ones_within_half_a_percent(
    name: str, billions: float
) -> None:
    assert find_model(name).num_parameters() == pytest.approx(billions * 1e9, rel=0.005)


def test_llama_parameters_are_exact_to_the_last_weight() -> None:
    # 126 · (2·16384² + 2·16384·8·128 + 3·16384·53248 + 2·16384) + 16384 + 2·128256·16384
    assert find_model("llama-3.1-405b").num_parameters() == 405_853_388_800
    assert find_model("llama-3.1-8b").num_parameters() == 8_030_261_248


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("mixtral-8x7b", 12.9, 0.005),  # arXiv:2401.04088: 12.9B active
        ("mixtral-8x22b", 39.0, 0.005),  # Mistral's release notes: 39B active
        ("qwen3-30b-a3b", 3.3, 0.02),  # model card prints two digits: 3.3B (3.353 by hand)
        ("qwen3-235b-a22b", 22.0, 0.01),  # model card prints two digits: 22B (22.19 by hand)
    ],
)
def test_active_parameters_equal_the_published_ones(name: str, billions: float, tolerance: float) -> None:
    assert find_model(name).num_active_parameters() == pytest.approx(billions * 1e9, rel=tolerance)


def test_deepseek_v3_activates_37_billion_when_the_input_embedding_is_a_look_up() -> None:
    model = find_model("deepseek-v3")
    # README_WEIGHTS.md: 36.7B active, one 0.9B vocabulary matrix of the two counted
    active = model.num_active_parameters() - model.embedding_parameters
    assert active == pytest.approx(36.7e9, rel=0.005)
    # the same file: 11.5B unique parameters in the multi-token-prediction module
    assert model.mtp_parameters() == pytest.approx(11.5e9, rel=0.01)


def test_deepseek_v3_has_three_dense_layers_and_then_experts() -> None:
    kinds = find_model("deepseek-v3").layer_kinds()
    assert kinds[:4] == ("dense", "dense", "dense", "moe")
    assert kinds.count("moe") == 58


def test_flops_of_gpt3_agree_with_narayanan_et_al() -> None:
    # arXiv:2104.04473, equation 3: 96·B·s·l·h²·(1 + s/6h + V/16lh) with full recomputation (4 passes);
    # without it 3/4 of that, and a causal mask halves the s/6h term
    s, l, h, v = 2048, 96, 12288, 50257
    per_token = 72 * l * h**2 * (1 + (s + 1) / 2 / (6 * h) + v / (12 * l * h))
    # V/16lh counts the head in 4 passes; unrecomputed it is 6·h·V = 72·l·h²·V/(12·l·h)
    assert find_model("gpt-3-175b").model_flops_per_token(s) == pytest.approx(per_token, rel=1e-3)


def test_a_window_of_four_over_eight_tokens_attends_three_and_a_quarter_keys() -> None:
    # keys seen by tokens 1…8: 1 2 3 4 4 4 4 4 = 26, over 8 tokens 3.25; whole causal mask: 4.5
    model = replace(find_model("llama-2-7b"), sliding_window=4)
    assert model.attended_tokens(8) == pytest.approx(3.25)
    # 32 layers, every sixth global: 5 global, 27 local
    mixed = replace(model, sliding_window_every=6)
    assert mixed.attended_tokens(8) == pytest.approx((5 * 4.5 + 27 * 3.25) / 32)
    assert model.attended_tokens(4) == pytest.approx(2.5)


def _tiny(**changes: object) -> ModelSpec:
    base = ModelSpec(
        name="tiny",
        num_layers=4,
        hidden_size=64,
        ffn_hidden_size=128,
        num_attention_heads=8,
        num_kv_heads=4,
        head_dim=8,
        vocab_size=100,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"num_layers": 0}, "/model/num_layers"),
        ({"num_layers": True}, "/model/num_layers"),
        ({"hidden_size": 2.5}, "/model/hidden_size"),
        ({"vocab_size": 10**30}, "/model/vocab_size"),
        ({"num_kv_heads": 3}, "/model/num_kv_heads"),
        ({"sliding_window": 0}, "/model/sliding_window"),
        ({"num_mtp_layers": -1}, "/model/num_mtp_layers"),
        ({"learned_position_embeddings": True}, "/model/max_position_embeddings"),
        (
            {"moe": MoeSpec(num_experts=4, top_k=1, ffn_hidden_size=8, num_dense_layers=4)},
            "/model/moe/num_dense_layers",
        ),
        (
            {
                "mla": MlaSpec(
                    q_lora_rank=0, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8
                )
            },
            "/model/head_dim",
        ),
        ({"streams": StreamsSpec(count=4, low_rank=8, sparse_layers=100)}, "/model/streams/sparse_layers"),
    ],
)
def test_an_impossible_shape_is_refused_at_its_field(changes: dict[str, object], pointer: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        _tiny(**changes)
    assert [error.pointer for error in caught.value.errors] == [pointer]


def test_more_chosen_experts_than_experts_are_refused() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        MoeSpec(num_experts=8, top_k=9, ffn_hidden_size=16)
    assert caught.value.errors[0].pointer == "/model/moe/top_k"
    assert caught.value.errors[0].allowed == "1 to 8"


def test_shared_experts_need_a_width() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        MoeSpec(num_experts=8, top_k=1, ffn_hidden_size=16, num_shared_experts=1)
    assert caught.value.errors[0].pointer == "/model/moe/shared_ffn_hidden_size"


def test_every_other_layer_has_experts_at_frequency_two() -> None:
    moe = MoeSpec(num_experts=4, top_k=1, ffn_hidden_size=8, num_dense_layers=1, frequency=2)
    assert _tiny(moe=moe).layer_kinds() == ("dense", "moe", "dense", "moe")


def test_a_frozen_model_runs_its_products_twice_and_its_scores_three_times() -> None:
    model, seq = find_model("llama-2-7b"), 4096
    whole, frozen = (model.model_flops_per_token(seq, frozen=is_frozen) for is_frozen in (False, True))
    # 2 (forward) FLOPs saved for each weight of layers and head; scores stay whole
    layers = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert whole - frozen == pytest.approx(2 * (layers + 32000 * 4096))


BASE = ModelSpec(
    name="small", num_layers=8, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16,
    num_kv_heads=4, head_dim=64, vocab_size=32000,
)  # fmt: skip


def test_a_prediction_layer_has_a_projection_and_three_norms_beside_a_layer() -> None:
    model = replace(BASE, num_mtp_layers=2)
    # 2 · (layer + 2 · 1024² + 3 · 1024): of the token, of the hidden state, before the shared head
    assert model.mtp_parameters() == 2 * (model.layer_parameters("dense") + 2 * 1024**2 + 3 * 1024)
    assert model.num_parameters() == BASE.num_parameters(), "counted apart, as model cards do"


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"attention_gate": "per_head"}, 8 * 1024 * 16),
        ({"attention_gate": "per_element"}, 8 * 1024 * 16 * 64),
        ({"inner_norms": True}, 8 * (16 * 64 + 4096)),
        ({"final_norm": False}, -1024),
        ({"normalization": "rmsnorm_without_weights"}, -(8 * 2 + 1) * 1024),
        ({"query_key_norm": "each_head"}, 8 * (16 + 4) * 64),
        ({"query_key_norm": "per_head_without_weights"}, 0),
        ({"gated_mlp": False, "activation": "xielu"}, -8 * 1024 * 4096 + 8 * 2),
        ({"norm_position": "after_residual"}, 0),
    ],
)
def test_a_fact_adds_or_spares_exactly_its_own_weights(changes: dict[str, Any], more: int) -> None:
    assert replace(BASE, **changes).num_parameters() - BASE.num_parameters() == more


def test_chunks_of_four_over_eight_tokens_attend_two_and_a_half_keys() -> None:
    # (1 + 2 + 3 + 4) twice, over 8 tokens; layers 3 and 7 attend to (8 + 1) / 2
    model = replace(BASE, sliding_window=4, sliding_window_every=4, chunked_attention=True)
    assert model.attended_tokens(8) == pytest.approx((6 * 2.5 + 2 * 4.5) / 8)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"sliding_window": 4, "global_layers": (8,)}, "/model/global_layers"),
        ({"sliding_window": 4, "sliding_window_every": 2, "global_layers": (1,)}, "/model/global_layers"),
        ({"no_rotary_every": 4, "no_rotary_layers": (1,)}, "/model/no_rotary_layers"),
        ({"alibi_positions": True, "sinusoidal_positions": True}, "/model/sinusoidal_positions"),
    ],
)
def test_lists_of_layers_name_layers_and_contradict_no_rule(changes: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        replace(BASE, **changes)
    assert [error.pointer for error in caught.value.errors] == [pointer]
