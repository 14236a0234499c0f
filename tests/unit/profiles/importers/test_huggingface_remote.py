"""Model types of remote code: counts of their checkpoints, and what their classes take unsaid."""

from __future__ import annotations

import pytest

from meshwright.profiles.errors import UnsupportedModelError
from meshwright.profiles.importers.huggingface import model_from_config


def test_ling_1_has_no_biases_only_where_its_config_says_so() -> None:
    # Ling-lite: 2 · 126464h + 28 · (h · 3072 + h² + 66 · 3h · 1408 + 64h + 2h) + h, h = 2048
    lite = {
        "model_type": "bailing_moe", "architectures": ["BailingMoeForCausalLM"], "hidden_size": 2048,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 5632, "moe_intermediate_size": 1408, "num_experts": 64,
        "num_experts_per_tok": 6, "num_shared_experts": 2, "norm_topk_prob": True, "norm_head": False,
        "use_bias": False, "vocab_size": 126_464, "rope_theta": 600_000,
    }  # fmt: skip
    model = model_from_config(lite, name="x")
    assert model.num_parameters() == 16_801_974_272
    assert model.moe is not None
    assert not model.moe.linear_router  # a tensor of BailingMoeGate
    with pytest.raises(UnsupportedModelError, match="use_bias"):  # on where a config says nothing
        model_from_config({key: value for key, value in lite.items() if key != "use_bias"}, name="x")
    with pytest.raises(UnsupportedModelError, match="norm_head"):
        model_from_config(lite | {"norm_head": True}, name="x")


def test_chatglm_has_one_key_head_where_its_groups_are_not_stated() -> None:
    model = model_from_config({"model_type": "chatglm", "multi_query_attention": True}, name="x")
    # 28 · 2 · 4096 · 128 fewer than with ChatGLM3's two, and its biases of 4608 are not stated either
    assert model.num_parameters() == 6_243_584_000 - 28 * (2 * 4096 * 128 + 4608)
    with pytest.raises(UnsupportedModelError, match="multi_query_attention"):
        model_from_config({"model_type": "chatglm"}, name="x")


def test_the_baichuans_are_told_by_the_keys_of_their_positions_and_by_their_vocabulary() -> None:
    # 2 · 64000h + 32 · (4h² + 3h · 11008 + 2h) + h, h = 4096
    small = {"model_type": "baichuan", "max_position_embeddings": 4096, "model_max_length": 4096}
    model = model_from_config(small, name="x")
    assert (model.num_parameters(), model.alibi_positions) == (7_000_559_616, False)
    # 2 · 64000h + 40 · (4h² + 3h · 13696 + 2h) + h, h = 5120
    large = {"model_type": "baichuan", "model_max_length": 4096, "hidden_size": 5120,
             "intermediate_size": 13_696, "num_attention_heads": 40, "num_hidden_layers": 40}  # fmt: skip
    model = model_from_config(large, name="x")
    assert (model.num_parameters(), model.alibi_positions) == (13_264_901_120, True)
    with pytest.raises(UnsupportedModelError, match="normalised output head"):
        model_from_config(small | {"vocab_size": 125_696}, name="x")
