"""Model types of remote code: counts of their checkpoints, and what their classes take unsaid."""

from __future__ import annotations

import pytest

from meshwright.profiles.adapters import SINGLE_TARGETS, adapter_parameters, class_targets
from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_keys import ModelTypeKeys, completed
from meshwright.profiles.library import find_model


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
    # the second one's head has as many weights: 2 · 125696h + 32 · (4h² + 3h · 11008 + 2h) + h, h = 4096
    second = model_from_config(small | {"vocab_size": 125_696, "z_loss_weight": 0}, name="x")
    assert (second.num_parameters(), second.normalized_head) == (7_505_973_248, True)
    # and of 13 B as published: 2 · 125696h + 40 · (4h² + 3h · 13696 + 2h) + h, h = 5120
    second = model_from_config(large | {"vocab_size": 125_696}, name="x")
    assert (second.num_parameters(), second.alibi_positions) == (13_896_668_160, True)


def test_a_row_s_own_defaults_precede_those_of_the_type_that_it_is_like() -> None:
    family = ModelTypeKeys(like="llama", defaults={"hidden_size": 2048}, as_built=dict)
    assert completed("of-our-own", family, {})[0]["hidden_size"] == 2048, "not Llama's 4096"
    assert completed("of-our-own", family, {"hidden_size": 1024})[0]["hidden_size"] == 1024


def test_telechat_has_biases_of_what_is_added_to_the_residuals_alone() -> None:
    # 160256h + 30 · (4h² + 3h · 12288 + 2h of biases + 2h of norms) + h, h = 4096
    model = model_from_config({"model_type": "telechat", "hidden_act": "fastgelu"}, name="x")
    assert model.num_parameters() == 7_200_018_432
    assert (model.attention_output_bias, model.mlp_output_bias, model.mlp_bias) == (True, True, False)
    # adapters of rank r on every linear layer: r · 30 · (2h of queries + 3h of keys and values together
    # + 2h of outputs + 3 · (h + 12288))
    assert adapter_parameters(model, 8, SINGLE_TARGETS) == 8 * 30 * (7 * 4096 + 3 * (4096 + 12_288))
    with pytest.raises(UnsupportedModelError, match="embed_layernorm"):
        model_from_config({"model_type": "telechat", "embed_layernorm": True}, name="x")


def test_apertus_1_5_is_apertus_with_a_wider_vocabulary_and_a_whole_head() -> None:
    older, newer = (
        model_from_config({"model_type": name}, name="x") for name in ("apertus", "apertus1p5_text")
    )
    wider = 2 * (266_752 - older.vocab_size) * older.hidden_size
    assert newer.num_parameters() == older.num_parameters() + wider
    with pytest.raises(UnsupportedModelError, match="output_vocab_size"):
        model_from_config({"model_type": "apertus1p5_text", "output_vocab_size": 131_072}, name="x")


def test_step_3_5_is_read_from_its_published_keys() -> None:
    # StepFun's Step-3.5-Flash: lists of 45 layers and 3 prediction layers, every fourth layer global
    flash = {
        "model_type": "step3p5", "architectures": ["Step3p5ForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 11_264, "num_hidden_layers": 45, "num_nextn_predict_layers": 3,
        "vocab_size": 128_896, "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128,
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
                                    "num_attention_groups": 8, "head_dim": 128, "true_head_dim": 128},
        "layer_types": (["full_attention"] + 3 * ["sliding_attention"]) * 12, "sliding_window": 512,
        "rope_theta": [5e6, 1e4, 1e4, 1e4] * 12, "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 12,
        "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 32.0, "original_max_position_embeddings": 131_072},
        "yarn_only_types": ["full_attention"], "max_position_embeddings": 262_144,
        "moe_layers_enum": ",".join(str(layer) for layer in range(3, 45)), "moe_num_experts": 288,
        "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280, "norm_expert_weight": True,
        "moe_router_activation": "sigmoid", "moe_router_scaling_factor": 3.0, "use_moe_router_bias": True,
        "need_fp32_gate": True, "use_head_wise_attn_gate": True, "use_qk_norm": True, "sink": False,
        "swiglu_limits": [0.0] * 43 + [7.0, 7.0, 0.0, 0.0, 0.0], "tie_word_embeddings": False,
    }  # fmt: skip
    model = model_from_config(flash, name="x")
    # 2 · 128896h + h; 12 · h (2 · 64 · 128 + 2 · 8 · 128 + 64), 33 of 96 heads; 2h + 2 · 128 a layer;
    # 3 · 3h · 11264; 42 · h (3 · 289 · 1280 + 288); h = 4096
    assert model.num_parameters() == 196_956_118_272
    assert (model.num_mtp_layers, model.rotary_fraction, model.rotary_local_fraction) == (0, 0.5, 1.0)
    assert (model.rotary_base, model.rotary_local_base) == (5_000_000, 10_000)
    assert model.local_attention is not None
    assert model.local_attention.num_attention_heads == 96
    with pytest.raises(UnsupportedModelError, match="rope_theta"):
        model_from_config(flash | {"rope_theta": [5e6, 1e4, 1e4, 2e4] * 12}, name="x")
    with pytest.raises(UnsupportedModelError, match="sink"):
        model_from_config(flash | {"sink": True}, name="x")


def test_types_that_were_renamed_are_read_by_their_first_names() -> None:
    # Yi-34B: 2 · 64000h + 60 · (2h² + 2h · 1024 + 3h · 20480 + 2h) + h, h = 7168
    yi = {
        "model_type": "Yi", "architectures": ["YiForCausalLM"], "vocab_size": 64_000, "hidden_size": 7168,
        "intermediate_size": 20_480, "num_hidden_layers": 60, "num_attention_heads": 56,
        "num_key_value_heads": 8,
    }  # fmt: skip
    assert model_from_config(yi, name="x").num_parameters() == 34_388_917_248
    falcon = {"n_layer": 60, "n_head": 128, "n_head_kv": 8, "hidden_size": 8192, "parallel_attn": True}
    # Falcon-40B: 65024h + 60 · (2h² + 2h · 512 + 8h² + 4h) + 2h, h = 8192, two norms with biases a layer
    model = model_from_config(falcon | {"model_type": "RefinedWeb"}, name="x")
    assert model.num_parameters() == 41_303_293_952
    # Falcon-7B: 65024h + 32 · (2h² + 2h · 64 + 8h² + 2h) + 2h, h = 4544, one norm a layer
    falcon = {"n_layer": 32, "n_head": 71, "hidden_size": 4544, "multi_query": True}
    model = model_from_config(falcon | {"model_type": "RefinedWebModel"}, name="x")
    assert model.num_parameters() == 6_921_720_704
    # InternLM 2 under the type of InternLM 1, told by its class: the same count, one matrix
    second = {"model_type": "internlm", "architectures": ["InternLM2ForCausalLM"], "bias": False}
    assert model_from_config(second, name="x").fused_qkv


def test_exaone_3_is_a_llama_with_keys_of_its_own_and_the_first_phi_2_is_phi() -> None:
    # EXAONE-3.5-7.8B: 2 · 102400h + 32 · (2h² + 2h · 1024 + 3h · 14336 + 2h) + h, h = 4096
    exaone = {
        "model_type": "exaone", "activation_function": "silu", "hidden_size": 4096, "num_layers": 32,
        "intermediate_size": 14_336, "num_key_value_heads": 8, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
    }  # fmt: skip
    assert model_from_config(exaone, name="x").num_parameters() == 7_818_448_896
    # Phi-2: 2 · 51200h + 51200 + 32 · (12h² + 9h + 2h + 2h) + 2h, h = 2560
    phi = {"model_type": "phi-msft", "n_embd": 2560, "n_head": 32, "n_layer": 32, "vocab_size": 51_200}
    model = model_from_config(phi, name="x")
    assert (model.num_parameters(), model.rotary_fraction) == (2_779_683_840, 0.4)


BTLM = {
    "model_type": "btlm", "activation_function": "swiglu", "position_embedding_type": "alibi",
    "n_embd": 2560, "n_head": 32, "n_inner": 6826, "n_layer": 32, "n_positions": 8192, "vocab_size": 50_257,
    "mup_width_scale": 0.1, "mup_embeddings_scale": 14.6, "mup_output_alpha": 2.22,
    "mup_scale_qk_dot_by_d": True,
}  # fmt: skip


def test_btlm_is_gpt_2_with_gates_alibi_and_the_scales_of_mup() -> None:
    model = model_from_config(BTLM, name="x")
    # 50257h + 32 · (4h² + 3h · 6826 + 4h + 2 · 6826 + h of biases + 4h of norms) + 2h, h = 2560: no
    # positions, a tied head. The 32 slopes of its distances are not trained.
    assert model.num_parameters() == 2_646_255_744
    assert (model.alibi_positions, model.learned_position_embeddings) == (True, False)
    assert (model.embedding_scale, model.attention_scale) == (14.6, 1 / 80)
    assert model.logit_scale == pytest.approx(0.222)  # 2.22 · 0.1
    # rank r: r · 32 · (h + 3h of queries, keys and values, 2h of outputs, 3 · (h + 6826))
    assert adapter_parameters(model, 8, SINGLE_TARGETS) == 8 * 32 * (6 * 2560 + 3 * (2560 + 6826))
    assert class_targets(model, ("gate_proj", "up_proj")) == ("c_fc2", "c_fc")
    of_gpt_2 = {key: value for key, value in BTLM.items() if key != "position_embedding_type"}
    with pytest.raises(UnsupportedModelError, match="position_embedding_type"):  # learned, by its class
        model_from_config(of_gpt_2, name="x")


def test_replits_first_code_is_mpt_with_layers_of_other_names() -> None:
    # replit-code-v1-3b: 32768h + 32 · (12h² + 2h of norms without biases) + h, h = 2560
    first = {"model_type": "replit_lm", "alibi": True, "d_model": 2560, "n_heads": 32, "n_layers": 32,
             "no_bias": True, "mlp_ratio": 4, "vocab_size": 32_768, "attn_clip_qkv": None}  # fmt: skip
    model = model_from_config(first, name="x")
    second = find_model("replit/replit-code-v1-3b")
    assert model.num_parameters() == second.num_parameters() == 2_600_634_880
    named = [class_targets(one, ("qkv_proj", "up_proj", "down_proj")) for one in (model, second)]
    assert named == [("Wqkv", "mlp_up", "mlp_down"), ("Wqkv", "up_proj", "down_proj")]
    with pytest.raises(UnsupportedModelError, match="alibi"):  # none, where a config says nothing
        model_from_config({key: value for key, value in first.items() if key != "alibi"}, name="x")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "exaone", "num_layers": 16, "num_hidden_layers": 32}, "another name of num_layers"),
        (
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts": 16},
            "num_local_experts, which is 8",
        ),
    ],
)
def test_two_names_of_one_size_must_agree(config: dict[str, object], why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why):
        model_from_config(config, name="x")


def test_a_model_inside_a_model_of_a_refused_type_is_refused_with_that_types_reason() -> None:
    whole = {
        "model_type": "step3",
        "vision_config": {"depth": 4},
        "text_config": {"model_type": "step3_text"},
    }
    with pytest.raises(UnsupportedModelError, match=r"isn't supported either: queries of a fac"):
        model_from_config(whole, name="x")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"model_type": "cohere_compass_text", "head_dim": 64},
            "64 heads of 64 are not hidden_size = 8192",
        ),
        ({"model_type": "mpt", "ffn_config": {"hidden_size": 64}}, "a value other than 2048"),
        ({"model_type": "mpt", "ffn_config": {"hidden_size": 4096}}, "a value other than 2048"),
        ({"model_type": "gemma3n_text", "activation_sparsity_pattern": ["0.95"] * 35}, "35 shares"),
        ({"model_type": "gemma3n_text", "activation_sparsity_pattern": [95] * 35}, "35 shares"),
    ],
)
def test_what_the_class_would_not_build_is_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidProblemError, match=said):
        model_from_config(config, name="x")
