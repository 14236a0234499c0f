"""Hugging Face configs of real models, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_families import families
from meshwright.profiles.importers.huggingface_keys import config_keys
from meshwright.profiles.inline import model_from_mapping
from meshwright.profiles.library import find_model, model_names
from meshwright.profiles.model import ModelSpec
from tests.builders import TYPES_OF_REMOTE_CODE

FIXTURES = Path(__file__).parents[1] / "fixtures"


def of_fixture(name: str) -> ModelSpec:
    return model_from_config(json.loads((FIXTURES / f"{name}.json").read_text()), name=name)


# Configs of public repositories, each with its origin and licence. ``parameters`` and the facts beside it
# were counted by transformers 5.23.0 on torch's meta device: the model class is built from the config, tied
# weights are counted once; empty where the class is not in the library.
REAL: dict[str, dict[str, Any]] = {
    one["name"]: one for one in json.loads((FIXTURES / "real-configs.json").read_text())
}
# Counted elsewhere: of the published checkpoints.
PUBLISHED = {
    "mistral-7b": 7_241_732_096,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "opt-6.7b": 6_658_473_984,
    "phi-3-mini": 3_821_079_552,
}
# Switches and sizes drawn from transformers' own classes (python -m tests.torch.drawn_configs), with the
# parameters of the model that the library builds from each; what a config leaves out its class has.
DRAWN = json.loads((FIXTURES / "drawn-configs.json").read_text())
# Types that are refused by name; every other one of REAL is planned.
REFUSED = {
    "bert", "rwkv",
    "rwkv5", "t5", "vit", "xlstm", "zamba2",
}  # fmt: skip
# Types whose code transformers has not: what their checkpoints hold, and the sizes that add up to it.
OF_REMOTE_CODE = {*TYPES_OF_REMOTE_CODE, "kimi_k2", "mimo", "RefinedWeb"}
PLANNED = [
    name for name, one in REAL.items() if one["config"]["model_type"] not in REFUSED and one["parameters"]
]


def _config(name: str, **changes: object) -> dict[str, object]:
    raw: dict[str, object] = json.loads((FIXTURES / f"{name}.json").read_text())
    return raw | changes


@pytest.mark.parametrize("name", PLANNED)
def test_a_real_config_has_exactly_the_parameters_that_transformers_counts(name: str) -> None:
    model = model_from_config(REAL[name]["config"], name=name)
    assert model.num_parameters() == REAL[name]["parameters"]


def test_every_drawn_config_of_every_planned_type_has_the_parameters_that_transformers_builds() -> None:
    unlike, refused = [], 0
    for one in DRAWN:
        try:
            found = model_from_config(one["config"], name="x").num_parameters()
        except UnsupportedModelError:
            refused += 1
            continue
        if found != one["parameters"]:
            unlike.append((one["config"], found, one["parameters"]))
    assert unlike == []
    assert refused < len(DRAWN) / 20, "a switch that is not supported is refused, and few are"
    assert {one["config"]["model_type"] for one in DRAWN} == set(families()) - OF_REMOTE_CODE


@pytest.mark.parametrize("name", PLANNED)
def test_a_real_config_has_the_facts_of_the_tensors_that_transformers_builds(name: str) -> None:
    real, model = REAL[name], model_from_config(REAL[name]["config"], name=name)
    norms = {
        "none": "none", "per_head": "per head", "all_heads": "whole width",
        "per_head_without_weights": "without parameters",
    }  # fmt: skip
    found = {
        "layers": str(model.num_layers),
        "norms_per_layer": str(model.norms_of(model.layer_kinds()[-1])),
        "tied": str(model.tied_embeddings).lower(),
        "gated": str(model.gated_mlp).lower(),
        "attention_sinks": str(model.attention_sinks).lower(),
        "out_bias": str(model.attention_output_bias).lower(),
        "qkv_bias": str(model.qkv_bias).lower(),
        "qk_norm": norms[model.query_key_norm],
        "attention_softcap": "" if model.attention_softcap is None else str(model.attention_softcap),
        "final_softcap": "" if model.logit_softcap is None else str(model.logit_softcap),
    }
    if model.normalization == "layernorm_without_weights":
        del found["norms_per_layer"]
    if all(model.mixing_layers()):  # of no attention
        found = {name: value for name, value in found.items() if real[name]}
    assert {name: real[name] for name in found} == found


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # 2 · 102400h + 28 · (4h² + 2h) + 3h · 10944 + 27 · (66 · 3h · 1408 + 64h) + h, h = 2048
        ("deepseek-moe-16b", 16_375_728_128),
        # 2 · 151680h + 36 · (2h² + 2h · 1024 + 4096 + 2048 + 3h · 11008 + 2h) + h, h = 4096; Qwen2's biases
        ("mimo-7b", 7_622_619_136),
        # 2 · 122760h + 40 · (4h² + 3h · 5760 + 2h) + h, h = 2304
        ("minicpm-2b", 3_007_736_064),
        # 122753h + 40 · (4h² + 8 · (3h · 5760 + h) + 2h) + h: tied, a router of 8 rows
        ("minicpm-moe-8x2b", 13_873_291_776),
        # 2 · 84608h + 40 · (4h² + 3h · 15360 + 4h) + 2h, h = 5120: norms with biases
        ("orion-14b", 14_498_703_360),
        # 2 · 65024h + 28 · (2h² + 2h · 256 + 4608 + 3h · 13696 + 2h) + h, h = 4096: a bias of q, k and v
        ("chatglm3-6b", 6_243_584_000),
        # 2 · 151936h + 24 · (4h² + 6144 + 3h · 5504 + 2h) + h, h = 2048; half of intermediate_size
        ("qwen-1.8b", 1_836_828_672),
    ],
)
def test_a_type_of_remote_code_has_the_parameters_that_its_sizes_add_up_to(
    name: str, parameters: int
) -> None:
    model = model_from_config(REAL[name]["config"], name=name)
    assert model.num_parameters() == parameters
    if name == "deepseek-moe-16b":  # 1408 is its file's, 1407 its class's own
        narrower = model_from_config(REAL[name]["config"] | {"moe_intermediate_size": None}, name=name)
        assert parameters - narrower.num_parameters() == 27 * 66 * 3 * 2048
    # a layer, 2h², and three norms
    assert model.mtp_parameters() == (210_790_400 if name == "mimo-7b" else 0)


def test_one_matrix_for_queries_keys_and_values_is_counted_as_three() -> None:
    # InternLM2-7B: 2 · 92544h + 32 · (2h² + 2h · 1024 + 3h · 14336 + 2h) + h, h = 4096
    config = {
        "model_type": "internlm2", "bias": False, "intermediate_size": 14_336, "num_key_value_heads": 8,
        "vocab_size": 92_544, "rope_scaling": {"type": "dynamic", "factor": 2.0},
    }  # fmt: skip
    assert model_from_config(config, name="x").num_parameters() == 7_737_708_544
    # InternLM-7B: 2 · 103168h + 32 · (4h² + 4h + 3h · 11008 + 2h) + h
    assert model_from_config({"model_type": "internlm"}, name="x").num_parameters() == 7_321_948_160


@pytest.mark.parametrize(
    "name", sorted(name for name in REAL if REAL[name]["config"]["model_type"] in REFUSED)
)
def test_a_type_that_is_not_priced_right_is_refused_by_the_name_of_a_key(name: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        model_from_config(REAL[name]["config"], name=name)
    assert caught.value.errors[0].pointer.removeprefix("/model/") in {
        key
        for part in (REAL[name]["config"], REAL[name]["config"].get("rope_parameters") or {})
        for key in part
    }


def test_every_key_of_every_real_config_is_known_or_has_a_reason_to_be_harmless() -> None:
    config = REAL["qwen3-8b"]["config"]
    for key in ("use_frobnication", "mlp_bias_scale", "new_norm"):
        with pytest.raises(UnsupportedModelError, match=f"unsupported: {key} "):
            model_from_config({**config, key: True}, name="x")
    assert all(config_keys().harmless.values())
    model_from_config({**config, "use_frobnication": None, "temperature": 0.6}, name="x")


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_real_config_gives_the_published_number_of_weights(name: str, parameters: int) -> None:
    model = of_fixture(f"{name}")
    assert model.num_parameters() == parameters
    assert model.name == name


WHOLE = [name for name in PLANNED if REAL[name]["origin"] != "reconstructed"]


@pytest.mark.parametrize("name", sorted(set(WHOLE) & set(model_names())))
def test_a_catalog_model_has_every_fact_of_its_config(name: str) -> None:
    imported, known = model_from_config(REAL[name]["config"], name=name), find_model(name)
    # Early copies of a config state fewer positions than the published one.
    unnamed: dict[str, Any] = {"source": "", "display_name": "", "max_position_embeddings": 1}
    unnamed["stored_as"] = ""  # which a hub id says, and a name of the catalog does not
    assert replace(known, **unnamed) == replace(imported, **unnamed)


def test_gpt2_has_learned_positions_and_a_default_mlp_width() -> None:
    model = of_fixture("gpt2")
    assert model.ffn_hidden_size == 4 * 768
    assert model.learned_position_embeddings
    assert model.tied_embeddings
    assert not model.gated_mlp


@pytest.mark.parametrize(
    ("name", "window", "every"),
    [
        ("mistral-7b", 4096, 1),  # all layers local
        ("gemma-2-9b", 4096, 2),  # every second layer global
        ("gemma-3-1b", 512, 6),
        ("gpt-oss-20b", 128, 2),
        ("qwen2.5-7b", None, 1),  # stated, but switched off
        ("llama-3.1-8b", None, 1),
    ],
)
def test_local_layers_are_those_of_the_family(name: str, window: int | None, every: int) -> None:
    model = of_fixture(f"{name}")
    assert (model.sliding_window, model.sliding_window_every) == (window, every)


@pytest.mark.parametrize(
    ("config", "global_layers"),
    [
        ({"model_type": "granite_swa", "num_hidden_layers": 8}, (0, 4)),  # the first of every four
        ({"model_type": "flint", "num_hidden_layers": 16}, (0, 1, 5, 9, 13, 15)),  # and the last, not 14
    ],
)
def test_global_layers_are_those_of_the_class_where_a_config_lists_none(
    config: dict[str, object], global_layers: tuple[int, ...]
) -> None:
    local = model_from_config(config, name="x").local_layers()
    assert tuple(layer for layer, is_local in enumerate(local) if not is_local) == global_layers


def test_an_empty_layer_pattern_makes_every_layer_global() -> None:
    local = model_from_config(_config("gemma-3-1b", sliding_window_pattern=0), name="x").local_layers()
    assert not any(local)


def test_layers_that_an_indexer_reads_for_are_global_and_need_its_size() -> None:
    config = {**REAL["glm-5"]["config"], "layer_types": ["deepseek_sparse_attention"] * 78}
    assert not any(model_from_config(config, name="x").local_layers())
    other = {**config, "layer_types": ["a_new_kind"] * 78}
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        model_from_config(other, name="x")


def test_mimo_s_own_window_counts_the_query_s_token_in() -> None:
    model = model_from_config({"model_type": "mimo_v2_flash", "sliding_window_size": 127}, name="x")
    assert model.sliding_window == 127 + 1


def test_mimo_s_local_layers_have_sinks_and_its_global_ones_have_none() -> None:
    """Its class builds no other; a published config may repeat that."""
    stated = {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    plain = {"model_type": "mimo_v2_flash"}
    assert model_from_config({**plain, **stated}, name="x") == model_from_config(plain, name="x")
    for key, value in stated.items():
        with pytest.raises(UnsupportedModelError, match=key):
            model_from_config({**plain, key: not value}, name="x")


def test_experts_are_in_each_layer_that_a_list_marks_and_in_no_other() -> None:
    config = {"model_type": "mimo_v2_flash", "num_hidden_layers": 4, "moe_layer_freq": [0, 1, 1, 1]}
    moe = model_from_config(config, name="x").moe
    assert moe is not None
    assert (moe.num_dense_layers, moe.frequency, moe.dense_layers) == (1, 1, ())


def test_listed_layers_without_rotary_positions_are_taken_before_the_interval() -> None:
    listed = {"no_rope_layers": [1, 0, 1, 1, 1, 1, 0, 1], "no_rope_layer_interval": 4}  # not 3 and 7
    model = model_from_config({"model_type": "smollm3", "num_hidden_layers": 8, **listed}, name="x")
    assert model.no_rotary_layers == (1, 6)


def test_layers_with_a_rotary_base_of_zero_have_no_rotary_positions_and_others_share_one_base() -> None:
    config = {"model_type": "smollm3", "num_hidden_layers": 4}
    model = model_from_config({**config, "layer_rope_theta": [1e4, 0, 1e4, 1e4]}, name="x")
    assert model.no_rotary_layers == (1,)
    with pytest.raises(UnsupportedModelError, match="layers of different rotary bases"):
        model_from_config({**config, "layer_rope_theta": [1e4, 0, 5e5, 1e4]}, name="x")


def test_gemma_4_does_not_scale_its_queries_and_what_its_config_leaves_null_is_off() -> None:
    null = {"enable_moe_block": None, "num_kv_shared_layers": None}
    model = model_from_config({"model_type": "gemma4_text", **null}, name="x")
    assert (model.attention_scale, model.moe, model.borrowing_layers) == (1.0, None, 0)


def test_a_key_with_the_one_value_that_is_planned_is_accepted() -> None:
    assert model_from_config({"model_type": "phi3", "full_attn_mod": 1}, name="x").num_layers == 32
    with pytest.raises(UnsupportedModelError, match=r"full_attn_mod \(2: .* planned: 1"):
        model_from_config({"model_type": "phi3", "full_attn_mod": 2}, name="x")


_LLAMA_3_1_8B = json.loads((FIXTURES / "llama-3.1-8b.json").read_text())


@pytest.mark.parametrize(
    ("stated", "labels", "parameters"),
    [
        # 8 030 261 248 less 128 256 logits of 4 096; a row of 4 096 for each label
        ({"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}, 1, 7_504_928_768),
        (
            {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
            1,
            7_504_928_768,
        ),
        ({"architectures": ["LlamaForSequenceClassification"]}, 2, 7_504_932_864),
        ({"architectures": ["LlamaForTokenClassification"], "num_labels": 3}, 3, 7_504_936_963),  # 3 biases
        ({"architectures": ["LlamaForCausalLM"], "num_labels": 3}, 0, 8_030_261_248),
    ],
)
def test_rewards_and_classifiers_have_labels_in_place_of_logits(
    stated: dict[str, object], labels: int, parameters: int
) -> None:
    model = model_from_config({**_LLAMA_3_1_8B, **stated}, name="x")
    assert (model.num_labels, model.num_parameters()) == (labels, parameters)


def test_a_tied_model_with_labels_shares_nothing() -> None:
    tied = {
        **_LLAMA_3_1_8B,
        "tie_word_embeddings": True,
        "architectures": ["LlamaForSequenceClassification"],
    }
    assert not model_from_config(tied, name="x").tied_embeddings


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "llama5"}, '"llama5" is an unknown type. {allowed}. Nearest: llama'),  # its family
        ({"model_type": "lama"}, '"lama" is an unknown type. {allowed}. Nearest: llama'),  # a typo
        ({"model_type": "Qwen3"}, '"Qwen3" is an unknown type. {allowed}. Nearest: qwen3'),
        ({"model_type": "zzz"}, '"zzz" is an unknown type. {allowed}. Nearest: llama'),  # the usual layers
        ({"model_type": "zzz", "num_experts": 8}, '"zzz" is an unknown type. {allowed}. Nearest: mixtral'),
        (
            {"model_type": "recurrent_gemma"},  # by its layers
            '"recurrent_gemma" is not supported yet: gated linear recurrences. {allowed}. Nearest: gemma2',
        ),
    ],
)
def test_a_type_that_is_not_planned_is_answered_with_the_nearest_one(
    config: dict[str, object], words: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        model_from_config(config, name="x")
    allowed = (
        "Allowed: a supported decoder-only type, or the model's sizes as a shape (docs/howto/own-model.md)"
    )
    assert str(caught.value) == "model.model_type: " + words.format(allowed=allowed)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "bert"}, "an encoder. Allowed: .* a shape with causal: false"),
        ({"model_type": "modernbert"}, "an encoder. "),  # not its relative modernbert-decoder
        ({"model_type": "whisper"}, "an encoder-decoder model. "),
        ({"model_type": "t5gemma", "is_encoder_decoder": True}, "an encoder-decoder model. "),
        ({"model_type": "wav2vec2"}, "a speech model. "),
        (
            {"model_type": "siglip", "text_config": {"model_type": "x"}, "vision_config": {"a": 1}},
            "a vision model. ",
        ),
    ],
)
def test_a_model_of_another_kind_has_no_type_near(config: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match="is not supported yet: " + words) as caught:
        model_from_config(config, name="x")
    assert caught.value.errors[0].nearest is None


def test_every_nearest_type_is_planned() -> None:
    assert set(config_keys().nearest_types.values()) <= set(families())


def test_a_key_of_a_type_that_is_not_planned_is_answered_with_the_nearest_type() -> None:
    config = {"model_type": "qwen9_next", "full_attention_interval": 4}
    with pytest.raises(UnsupportedModelError) as caught:
        model_from_config(config, name="x")
    (fault,) = caught.value.errors
    assert fault.pointer == "/model/full_attention_interval"
    assert fault.message.endswith("linear attention)")
    assert (fault.nearest or "").startswith("qwen")


def test_an_unknown_type_is_refused_with_what_to_do_next() -> None:
    config = json.loads((FIXTURES / "new-llama-like.json").read_text())
    with pytest.raises(UnsupportedModelError, match="is an unknown type") as caught:
        model_from_config(config, name="x")
    assert len(str(caught.value)) < 200  # not every planned type by its name
    model = model_from_config(config | {"model_type": "llama"}, name="x")
    # 2·32000·1024 + 16·(2·1024² + 2·1024·512 + 3·1024·2816 + 2·1024) + 1024
    assert model.num_parameters() == 254_313_472


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        (
            {"layer_types": ["linear_attention"] * 47},
            "layer_types",
            "47 kinds: must be a list of num_hidden_layers = 48 kinds",
        ),
        ({"layer_types": ["mamba3"] * 48}, "layer_types", "mamba3 is not a kind"),
        ({"full_attention_interval": 6}, "full_attention_interval", "layer_types lists other layers"),
        ({"linear_num_value_heads": 0}, "linear_num_value_heads", "1 to"),
    ],
)
def test_a_pattern_of_mixers_that_does_not_fit_is_refused_with_the_field(
    changes: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words) as caught:
        model_from_config(REAL["qwen3-next-80b-a3b"]["config"] | changes, name="x")
    assert caught.value.errors[0].pointer == f"/model/{field}"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        (
            {"hybrid_override_pattern": "MEM*"},
            "hybrid_override_pattern",
            "4 layers, but num_hidden_layers = 52",
        ),
        ({"hybrid_override_pattern": "MX" * 26}, "hybrid_override_pattern", "'X' is not a kind of layer"),
        ({"layers_block_type": ["mamba"] * 51}, "layers_block_type", "51 layers, but"),
        ({"residual_in_fp32": True}, "residual_in_fp32", "planned: false"),
    ],
)
def test_a_pattern_of_blocks_that_does_not_fit_is_refused_with_the_field(
    changes: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words) as caught:
        model_from_config(REAL["nemotron-3-nano-30b-a3b"]["config"] | changes, name="x")
    assert caught.value.errors[0].pointer == f"/model/{field}"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        # 2 * 4096 values are 128 heads of 64
        ({"num_heads": 96}, "num_heads", r"96 heads of 64 are not expand \* hidden_size = 8192"),
        ({"head_dim": 48}, "num_heads", "128 heads of 48 are not"),
        ({"expand": 0}, "expand", "0"),
        ({"n_groups": 3}, "n_groups", "3 does not divide num_heads = 128"),
        ({"state_size": 0}, "state_size", "0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "0"),
        ({"intermediate_size": 4096}, "intermediate_size", r"4096 is not expand \* hidden_size.*8192"),
        ({"rms_norm": False}, "rms_norm", "planned: true"),
        ({"hidden_act": "gelu"}, "hidden_act", "planned: silu or swish"),
        ({"num_local_experts": 8}, "num_local_experts", "ignores this key"),
        ({"attn_layer_indices": [3]}, "attn_layer_indices", "Meshwright doesn't know this key"),
    ],
)
def test_a_config_of_mamba_2_that_its_class_cannot_build_is_refused_with_the_field(
    changes: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words) as caught:
        model_from_config(REAL["codestral-mamba-7b"]["config"] | changes, name="x")
    assert caught.value.errors[0].pointer == f"/model/{field}"


@pytest.mark.parametrize(
    ("changes", "nearest"),
    [({"num_heads": 96}, "128"), ({"n_groups": 3}, "2"), ({"intermediate_size": 1}, "8192")],
)
def test_a_size_of_mamba_2_that_does_not_fit_comes_with_the_nearest_that_does(
    changes: dict[str, object], nearest: str
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        model_from_config(REAL["codestral-mamba-7b"]["config"] | changes, name="x")
    assert caught.value.errors[0].nearest == nearest


def test_a_layer_of_mamba_2_is_one_mixer_and_its_norm() -> None:
    config = REAL["codestral-mamba-7b"]["config"] | {"num_hidden_layers": 3, "use_bias": True}
    model = model_from_config(config, name="x")
    # B and C of 8 groups of 128, values and a gate of 128 heads of 64, a time step of each head; a
    # convolution of 4 with a bias; decay, time step and skip of each head; a norm of all values; biases.
    convolved, projected = 2 * 1024 + 8192, 2 * 1024 + 2 * 8192 + 128
    mixer = 4096 * (projected + 8192) + 5 * convolved + 3 * 128 + 8192 + projected + 4096
    assert model.parameters_by_layer() == (mixer + 4096,) * 3
    assert (model.layer_pattern, model.mixing_layers()) == ("MMM", (True,) * 3)
    assert all(model.layers_without_rotary())


def test_more_heads_of_a_mixer_than_its_inner_size_are_refused_with_the_field() -> None:
    # mamba_expand * hidden_size = 2 * 4096 values leave no whole one to each of 10,000 heads.
    changes = {"mamba_n_heads": 10_000, "mamba_d_head": "auto"}
    with pytest.raises(InvalidProblemError, match=r"not mamba_expand \* hidden_size = 8192") as caught:
        model_from_config(REAL["bamba-class-default"]["config"] | changes, name="x")
    assert caught.value.errors[0].pointer == "/model/mamba_n_heads"


def test_a_selective_scan_projects_its_time_steps_from_what_the_convolution_yields() -> None:
    model = model_from_config(REAL["jamba-v0.1"]["config"] | {"mamba_proj_bias": True}, name="x")
    # 8192 channels and as wide a gate; a latent of 256 for time steps, B and C of 16 states; a convolution
    # of 4; a decay of every state; time step's and convolution's bias, and skip; norms of latent, B and C.
    inner, read = 2 * 4096, 256 + 2 * 16
    mixer = 4096 * 3 * inner + inner * (read + 256 + 4 + 16 + 3) + read + 2 * inner + 4096
    assert model.parameters_by_layer()[0] == mixer + 3 * 4096 * 14336 + 2 * 4096
    assert [layer for layer, mixes in enumerate(model.mixing_layers()) if not mixes] == [4, 12, 20, 28]
    assert model.layer_kinds() == ("dense", "moe") * 16
    assert all(model.layers_without_rotary())


def test_a_layer_of_mamba_is_one_selective_scan_and_its_norm() -> None:
    model = model_from_config(REAL["mamba-class-default"]["config"], name="x")
    # 1536 channels; a latent of 48 for time steps, B and C of 16 states; a convolution of 4 and its bias.
    mixer = 3 * 768 * 1536 + 1536 * (48 + 32 + 48 + 4 + 16 + 3)
    assert model.parameters_by_layer() == (mixer + 768,) * 32
    assert (model.layer_pattern, set(model.mixing_layers())) == ("M" * 32, {True})


@pytest.mark.parametrize(("stated", "channels"), [({}, 2 * 768), ({"intermediate_size": 2048}, 2048)])
def test_a_stated_inner_size_of_mamba_overrides_expand(stated: dict[str, int], channels: int) -> None:
    model = model_from_config(REAL["mamba-class-default"]["config"] | stated, name="x")
    assert model.mixer is not None
    assert model.mixer.num_heads == channels


def test_a_single_expert_of_jamba_is_an_mlp() -> None:
    config = REAL["jamba-v0.1"]["config"] | {"num_experts": 1, "num_experts_per_tok": 1}
    assert model_from_config(config, name="x").moe is None


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"attn_layer_offset": 8}, "attn_layer_offset", "0 to 7"),
        ({"expert_layer_offset": 2}, "expert_layer_offset", "0 to 1"),
        ({"mamba_dt_rank": 0}, "mamba_dt_rank", "1 to"),
        ({"mamba_inner_layernorms": False}, "mamba_inner_layernorms", "planned: true"),
        ({"mamba_n_heads": 8}, "mamba_n_heads", "state-space layers"),
    ],
)
def test_a_config_of_jamba_that_its_class_cannot_build_is_refused_with_the_field(
    changes: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        model_from_config(REAL["jamba-v0.1"]["config"] | changes, name="x")
    first = caught.value.errors[0]
    assert first.pointer == f"/model/{field}" or field in str(first)
    assert words in str(first)


def test_a_layer_that_is_listed_twice_attends_once() -> None:
    config = REAL["bamba-class-default"]["config"]
    once, twice = (
        model_from_config(config | {"attn_layer_indices": listed}, name="x")
        for listed in ([9, 18], [9, 18, 9])
    )
    assert twice == once


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"vision_config": {"hidden_size": 1}, "text_config": {}}, "vision_config"),
        ({"type_vocab_size": 2}, "type_vocab_size"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types"),
        ({"index_topk": 2048}, "index_topk"),
        ({"model_type": "brand_new", "rms_norm_eps": None}, "model_type"),
        ({"hidden_act": "snake"}, "hidden_act"),
        ({"moe_num_experts": 64}, "moe_num_experts"),
        ({"model_type": "mixtral", "n_shared_experts": 1}, "n_shared_experts"),
        ({"lm_head_bias": True}, "lm_head_bias"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 8.0}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "spiral": 3}}, "rope_scaling.spiral"),
    ],
)
def test_what_the_cost_model_cannot_express_is_refused_by_field(
    changes: dict[str, object], field: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        model_from_config(_config("llama-3.1-8b", **changes), name="x")
    assert caught.value.errors[0].pointer == f"/model/{field}"


def test_an_unknown_activation_is_refused_by_the_name_that_states_it() -> None:
    for name in ("activation", "activation_function"):
        with pytest.raises(UnsupportedModelError) as caught:
            model_from_config({"model_type": "falcon", name: "snake"}, name="x")
        assert caught.value.errors[0].pointer == f"/model/{name}"


def test_a_multimodal_model_is_refused_with_the_way_to_its_language_model() -> None:
    # Qwen3-VL 2B: 151936·2048 (tied) + 28·(2·2048² + 2·2048·1024 + 3·2048·6144 + 2·2048 + 2·128) + 2048
    text = {
        "model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151936,
        "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20]},
    }  # fmt: skip
    whole = {"model_type": "granite_docling", "text_config": text, "vision_config": {"depth": 24}}
    with pytest.raises(UnsupportedModelError, match=r'save text_config \(model_type "qwen3_vl_text"\)'):
        model_from_config(whole, name="x")
    assert model_from_config(text, name="x").num_parameters() == 1_720_574_976
    older = {**text, "model_type": "qwen2_5_vl", "rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}
    inside = {**older, "model_type": "granite_docling", "vision_config": {"depth": 24}}
    words = 'remove vision_config and set model_type to "granite_docling_text"'
    with pytest.raises(UnsupportedModelError, match=words):
        model_from_config(inside, name="x")
    # with biases of 2048 + 2 · 1024 where Qwen3 has norms of 2 · 128
    as_text = model_from_config({**older, "model_type": "qwen2_5_vl_text"}, name="x")
    assert as_text.num_parameters() == 1_720_574_976 + 28 * (2048 + 2 * 1024 - 2 * 128)
    with pytest.raises(InvalidProblemError, match="tie_word_embeddings: is required: copy it from"):
        model_from_config(text | {"tie_word_embeddings": None}, name="x")


def test_a_model_that_is_refused_for_another_reason_names_no_language_model_inside() -> None:
    inside = {"text_config": {"model_type": "llama"}, "is_encoder_decoder": True}
    with pytest.raises(UnsupportedModelError, match=r"\(an encoder-decoder model\)$"):
        model_from_config({"model_type": "llama", **inside}, name="x")


def test_beam_scales_queries_where_it_has_no_positions_and_biases_its_gates() -> None:
    model = model_from_config({"model_type": "beam", "num_hidden_layers": 8}, name="x")
    assert model.local_layers() == (True,) * 5 + (False, True, False), "every sixth, and the last"
    assert model.layers_without_rotary() == tuple(not local for local in model.local_layers())
    assert model.num_parameters() - replace(model, gate_bias=False).num_parameters() == 8 * 48
    rotated = {"full_attention": {"rope_theta": 10_000}, "sliding_attention": {"rope_theta": 10_000}}
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters\.full_attention"):
        model_from_config({"model_type": "beam", "rope_parameters": rotated}, name="x")


def test_ling_2_is_counted_as_its_own_code_builds_it() -> None:
    # both counts are of its class on the meta device; the class's defaults are Ling-mini-2.0's sizes
    mini = model_from_config({"model_type": "bailing_moe_v2", "routed_scaling_factor": 2.5}, name="x")
    assert mini.num_parameters() == 16_255_638_528
    # without shared experts and norms of queries and keys
    small = {
        "model_type": "bailing_moe_v2", "hidden_size": 512, "num_hidden_layers": 3,
        "num_key_value_heads": 2, "num_experts": 16, "num_experts_per_tok": 2,
        "first_k_dense_replace": 0, "vocab_size": 1000,
        "topk_group": 1, "num_shared_experts": None, "use_qk_norm": False, "num_attention_heads": 16,
    }  # fmt: skip
    assert model_from_config(small, name="x").num_parameters() == 45_878_784
    with pytest.raises(UnsupportedModelError, match="score_function"):
        model_from_config({"model_type": "bailing_moe_v2", "score_function": "softmax"}, name="x")
    # published configs have the type of Ling 1, which has another router
    published = {
        "model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"], "use_rmsnorm": True,
        "router_dtype": "fp32", "embedding_dropout": 0.0, "moe_shared_expert_intermediate_size": 512,
        "using_split_qkv_in_self_attention": False, "partial_rotary_factor": 0.5,
    }  # fmt: skip
    assert model_from_config(published, name="x").num_parameters() == 16_255_638_528


def test_a_refused_type_is_refused_as_such_whatever_keys_it_has() -> None:
    hybrid = {"model_type": "zamba2", "conv_kernel": 4, "hybrid_override_pattern": "M*-"}
    with pytest.raises(UnsupportedModelError, match='"zamba2" is not supported yet: layers that share'):
        model_from_config(hybrid, name="x")


def test_two_statements_of_one_thing_are_read_where_they_agree() -> None:
    config = {"model_type": "minimax_m2", "rotary_dim": 64, "partial_rotary_factor": 0.5, "head_dim": 128}
    assert model_from_config(config, name="x").rotary_fraction == 0.5
    with pytest.raises(UnsupportedModelError, match=r"rotary_dim states 0\.5 of a head of 128"):
        model_from_config(config | {"partial_rotary_factor": 0.25}, name="x")
    parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    with pytest.raises(UnsupportedModelError, match=r"rotary_dim states 0\.5 of a head of 128"):
        model_from_config(config | {"rope_parameters": parameters}, name="x")
    # Qwen2 has these biases whether or not a key that its class does not read says so
    biased = {"model_type": "qwen2", "attention_bias": True}
    assert model_from_config(biased, name="x").qkv_bias


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ({}, None),
        ({"attention_factor": 1.2079}, None),  # 0.1 ln(8) + 1, what the others give
        ({"attention_factor": 1.0}, 1.0),
    ],
)
def test_a_factor_of_logits_is_kept_where_it_is_not_yarns_own(
    stated: dict[str, float], kept: float
) -> None:
    scaling = {"rope_type": "yarn", "factor": 8.0, "truncate": False, **stated}
    found = model_from_config(_config("llama-3.1-8b", rope_scaling=scaling), name="x").rotary_scaling
    assert found is not None
    assert (found.attention_factor, found.truncate) == (kept, False)


def test_layers_that_follow_no_rule_are_listed_one_by_one() -> None:
    model = model_from_config(_config("qwen3-30b-a3b", mlp_only_layers=[5]), name="x")
    assert [layer for layer, kind in enumerate(model.layer_kinds()) if kind == "dense"] == [5]
    kinds = ["full_attention"] * 2 + ["sliding_attention"] * 30
    model = model_from_config(_config("mistral-7b", layer_types=kinds, sliding_window=8), name="x")
    assert model.local_layers() == (False, False, *(True,) * 30)
    # 2 layers attend to 513 of 1025 tokens on the average, 30 to 8 less the first tokens' 28/1025
    assert model.attended_tokens(1025) == pytest.approx((2 * 513 + 30 * (8 - 28 / 1025)) / 32)
    leading = model_from_config(_config("qwen3-30b-a3b", mlp_only_layers=[0, 1]), name="x")
    assert leading.moe is not None
    assert leading.moe.num_dense_layers == 2


def test_every_second_layer_sparse_starts_with_a_dense_one() -> None:
    model = model_from_config(_config("qwen3-30b-a3b", decoder_sparse_step=2), name="x")
    assert model.layer_kinds()[:4] == ("dense", "moe", "dense", "moe")


def test_projected_word_embeddings_are_narrower_at_both_ends() -> None:
    whole = model_from_config(_config("opt-6.7b"), name="x")
    narrow = model_from_config(_config("opt-6.7b", word_embed_proj_dim=512), name="x")
    # the one table, tied to the head, and a projection of 512 by 4096 at either end
    saved = whole.vocab_size * (4096 - 512) - 2 * 512 * 4096
    assert whole.num_parameters() - narrow.num_parameters() == saved


def test_a_key_that_a_class_does_not_read_is_harmless_or_refused_never_counted() -> None:
    plain = model_from_config(_config("gpt-neox-20b"), name="x").num_parameters()
    for key in ("num_key_value_heads", "head_dim"):
        assert model_from_config(_config("gpt-neox-20b", **{key: 8}), name="x").num_parameters() == plain
    with pytest.raises(UnsupportedModelError, match="unsupported: decoder_sparse_step "):
        model_from_config(_config("mixtral-8x7b", decoder_sparse_step=2), name="x")
    model_from_config(_config("mixtral-8x7b", decoder_sparse_step=1), name="x")


def test_a_key_that_nothing_reads_is_harmless_where_it_repeats_another_under_its_name() -> None:
    for name, key, same, other in (
        ("gemma-2-27b", "sliding_window_size", 4096, 512),  # as published
        ("mixtral-8x7b", "num_experts_per_token", 2, 4),
        ("glm-5", "num_experts", 256, 128),
        ("llama-2-7b", "kv_channels", 128, 64),  # 4096 / 32, which the config does not state
        ("qwen3.5-27b-text", "output_gate_type", "swish", "sigmoid"),
    ):
        plain = model_from_config(REAL[name]["config"], name="x")
        assert model_from_config({**REAL[name]["config"], key: same}, name="x") == plain
        with pytest.raises(UnsupportedModelError, match=f"unsupported: {key} "):
            model_from_config({**REAL[name]["config"], key: other}, name="x")
    config = REAL["llama-2-7b"]["config"]
    assert model_from_config({**config, "num_experts": 1}, name="x") == model_from_config(config, name="x")


def test_latent_attention_of_mistral_4_has_its_own_elements_that_rotate_and_its_class_s_scaling() -> None:
    model = model_from_config({"model_type": "mistral4"}, name="x")  # Mistral Small 4
    # 1024h + 1024 · 4096 + 320h + 256 · 6144 + 4096h + 129 · 3h · 2048 + 128h, norms 1280 + 2h
    layer = 4096 * (1024 + 1024 + 320 + 4096 + 129 * 3 * 2048 + 128 + 2) + 256 * 6144 + 1280
    assert model.num_parameters() == 36 * layer + 2 * 131_072 * 4096 + 4096
    assert model.num_parameters() == 118_972_826_624
    assert (model.rotary_fraction, model.position_scaled_queries) == (1.0, True)
    assert model.rotary_scaling is not None
    assert model.rotary_scaling.factor == 128.0


def test_sparse_attention_reads_the_keys_that_its_indexer_chooses() -> None:
    model = model_from_config(REAL["glm-5"]["config"], name="x")
    assert model.indexer is not None
    # 78 layers: queries 2048·32·128, key 6144·128, weights 6144·32, and a LayerNorm of 128
    index = 2048 * 32 * 128 + 6144 * (128 + 32) + 2 * 128
    without = replace(model, indexer=None)
    assert model.num_parameters() - without.num_parameters() == 78 * index
    # Each token reads up to 2048: the first 2048 all before them, of 8192 on average
    assert model.attended_tokens(8192) == pytest.approx(2048 - 2048 * 2047 / (2 * 8192))
    assert without.attended_tokens(8192) == pytest.approx(8193 / 2)
    with pytest.raises(UnsupportedModelError, match="index_topk_freq"):  # which its class does not read
        model_from_config({"model_type": "deepseek_v32", "index_topk_freq": 4}, name="x")


def test_layers_that_reuse_a_choice_of_keys_have_no_indexer_and_its_work_once() -> None:
    config = REAL["glm-5"]["config"]
    every, fourth = (model_from_config({**config, "index_topk_freq": n}, name="x") for n in (1, 4))
    # layers 0, 1, 5, 9 ... 77 choose: 21 of 78; the count is transformers' of the same config, too
    index = 2048 * 32 * 128 + 6144 * (128 + 32) + 2 * 128
    assert every.num_parameters() - fourth.num_parameters() == 57 * index
    assert fourth.num_parameters() == 743_377_000_704
    assert fourth.attended_tokens(8192) == every.attended_tokens(8192)
    scores = [model.score_flops_per_token(8192) for model in (every, fourth)]
    assert scores[0] - scores[1] == pytest.approx(57 / 78 * 2 * 32 * 128 * 8193 / 2)
    stated = {**config, "indexer_types": ["full" if one == "F" else "shared" for one in "FF" + "SSSF" * 19]}
    assert model_from_config(stated, name="x").indexer == fourth.indexer
    for wrong in (["shared"] * 78, ["full"] * 77, ["some"] * 78, 3):
        with pytest.raises(InvalidProblemError, match="indexer_types"):
            model_from_config({**config, "indexer_types": wrong}, name="x")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"num_hidden_layers": None}, "/model/num_hidden_layers"),
        ({"hidden_size": "4096"}, "/model/hidden_size"),
        ({"hidden_size": True}, "/model/hidden_size"),
        ({"vocab_size": float("nan")}, "/model/vocab_size"),
        ({"intermediate_size": [1, 2]}, "/model/intermediate_size"),
        ({"num_attention_heads": -32}, "/model/num_attention_heads"),
        ({"num_key_value_heads": 5}, "/model/num_kv_heads"),
        ({"num_attention_heads": 33, "num_key_value_heads": 33}, "/model/num_attention_heads"),
        ({"model_type": None}, "/model/model_type"),
        ({"layer_types": ["full_attention"]}, "/model/layer_types"),
        ({"tie_word_embeddings": "yes"}, "/model/tie_word_embeddings"),
    ],
)
def test_a_garbled_field_is_named_with_its_pointer(changes: dict[str, object], pointer: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        model_from_config(_config("llama-3.1-8b", **changes), name="x")
    assert pointer in [error.pointer for error in caught.value.errors]


def test_the_rotary_base_is_the_stated_one_or_the_library_default() -> None:
    assert model_from_config(_config("llama-3.1-8b"), name="x").rotary_base == 500_000
    config = _config("llama-3.1-8b")
    del config["rope_theta"]
    assert model_from_config(config, name="x").rotary_base == 10_000, "the default of LlamaConfig"
    unstated = model_from_config({"model_type": "baichuan"}, name="x")
    assert unstated.rotary_base == 10_000, "the default of RotaryEmbedding in Baichuan's own code"
    each = {"full_attention": {"rope_theta": 7e5}, "sliding_attention": {"rope_theta": 3e4}}
    for stated in ({"rope_parameters": each}, {"rope_theta": 7e5, "rope_local_base_freq": 3e4}):
        found = model_from_config({"model_type": "gemma3_text", **stated}, name="x")
        assert (found.rotary_base, found.rotary_local_base) == (700_000, 30_000)


# Keys of published configs that no size hangs on, beside those that the classes read.
PUBLISHED_KEYS: dict[str, dict[str, Any]] = {
    "llama": {"max_sequence_length": 2048, "num_beam_groups": 1, "diversity_penalty": 0.0, "prefix": None,
              "tf_legacy_loss": False, "encoder_no_repeat_ngram_size": 0, "quantization": {"bits": 4}},
    "gpt2": {"output_past": True, "n_ctx": 1024},
    "opt": {"prefix": "</s>"},
    "phimoe": {"original_max_position_embeddings": 4096, "rope_scaling": {
        "type": "longrope", "long_mscale": 1.24, "short_mscale": 1.24, "long_factor": [1.0],
        "short_factor": [1.0], "original_max_position_embeddings": 4096}},
    "hunyuan_v1_dense": {"use_cla": False, "cla_share_factor": 2, "use_qk_norm": True,
                         "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
    "minimax_m2": {"attn_type_list": [1] * 62, "mlp_intermediate_size": 8192,
                   "layernorm_mlp_beta": 1.0, "attn_window_size": None},
    "apertus": {"qk_norm": True, "post_norm": False},
    "cohere2": {"layer_switch": 4, "use_gated_activation": True, "rotary_pct": 1.0,
                "use_parallel_block": True, "use_parallel_embedding": True, "use_embedding_sharing": True,
                "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj"},
    "hunyuan_v1_moe": {"use_mla": False, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
                       "group_limited_greedy": False, "moe_layer_num_skipped": 0, "use_mixed_mlp_moe": True,
                       "norm_type": "rms", "use_rotary_pos_emb": True, "use_qk_norm": True},
    "diffllama": {"lambda_std_dev": 0.1},
    "modernbert-decoder": {"initializer_cutoff_factor": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("model_type", PUBLISHED_KEYS)
def test_keys_that_published_configs_add_change_no_size(model_type: str) -> None:
    plain = model_from_config({"model_type": model_type}, name="x")
    whole = model_from_config({"model_type": model_type, **PUBLISHED_KEYS[model_type]}, name="x")
    assert whole.num_parameters() == plain.num_parameters()


def test_layers_that_attend_alike_have_one_number_of_heads() -> None:
    kinds = ["full_attention", "sliding_attention", "sliding_attention"]
    laguna = {"model_type": "laguna", "num_hidden_layers": 3, "layer_types": kinds}
    for heads in ([8, 16, 32], [8, 32, 16]):
        with pytest.raises(
            UnsupportedModelError, match="layers with the same attention have different numbers"
        ):
            model_from_config({**laguna, "num_attention_heads_per_layer": heads}, name="x")


def test_an_experts_size_that_the_class_does_not_read_may_only_repeat_the_one_that_it_reads() -> None:
    mixtral = {"model_type": "mixtral", "intermediate_size": 14_000}
    plain = model_from_config(mixtral, name="x")
    assert model_from_config(mixtral | {"moe_intermediate_size": 14_000}, name="x") == plain
    with pytest.raises(UnsupportedModelError, match="moe_intermediate_size"):
        model_from_config(mixtral | {"moe_intermediate_size": 1408}, name="x")


@pytest.mark.parametrize(("stated", "parallel"), [({}, True), ({"use_parallel_residual": False}, False)])
def test_gpt_neox_runs_attention_and_mlp_in_parallel_unless_its_config_states_otherwise(
    stated: dict[str, Any], parallel: bool
) -> None:
    model = model_from_config({"model_type": "gpt_neox", **stated}, name="x")
    assert model.parallel_residual is parallel


def test_a_list_that_states_one_value_for_every_layer_is_that_value_and_unlike_ones_are_refused() -> None:
    config = {"model_type": "hunyuan_v1_moe", "num_experts": 64, "num_hidden_layers": 3}
    one = model_from_config({**config, "moe_topk": 8}, name="x")
    assert model_from_config({**config, "moe_topk": [8, 8, 8]}, name="x") == one
    with pytest.raises(UnsupportedModelError, match=r"moe_topk .layers of different sizes"):
        model_from_config({**config, "moe_topk": [8, 8, 4]}, name="x")


def test_falcon_has_as_many_norms_as_its_architecture_runs_with() -> None:
    with pytest.raises(UnsupportedModelError, match="num_ln_in_parallel_attn"):
        model_from_config({"model_type": "falcon", "num_ln_in_parallel_attn": 2}, name="x")
    # a switch that is null is off, though the class has it on: two norms' vectors of 4544 in 32 layers more
    parallel = model_from_config({"model_type": "falcon"}, name="x")
    serial = model_from_config({"model_type": "falcon", "parallel_attn": None}, name="x")
    assert serial.num_parameters() - parallel.num_parameters() == 32 * 2 * 4544


@pytest.mark.parametrize(
    ("model_type", "stated", "coefficient", "by_sequence"),
    [
        ("mixtral", {"router_aux_loss_coef": 0.02}, 0.02, False),
        ("mixtral", {}, 0.001, False),  # its class's own
        ("qwen3_moe", {"router_aux_loss_coef": 0.0}, 0.0, False),
        ("deepseek_v3", {"aux_loss_alpha": 0.001, "seq_aux": True}, 0.001, True),
        ("deepseek_v3", {}, 0.0001, True),
        ("gpt_oss", {"router_aux_loss_coef": 0.9}, 0.0, False),  # which nobody trains with
    ],
)
def test_the_loss_that_balances_experts_is_the_config_s_or_its_class_s(
    model_type: str, stated: dict[str, object], coefficient: float, by_sequence: bool
) -> None:
    moe = model_from_config({"model_type": model_type, **stated}, name="x").moe
    assert moe is not None
    assert (moe.balance_coefficient, moe.balanced_by_sequence) == (coefficient, by_sequence)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {"model_type": "mixtral", "num_local_experts": 0},
            "num_local_experts: .*0: the class would build",
        ),
        ({"model_type": "deepseek_v3", "q_lora_rank": 0}, "q_lora_rank: .*are null, not 0"),
        ({"model_type": "cohere2_moe", "sliding_window_pattern": "4"}, "'4' is not a whole number"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 30}, "30 is out of range. Allowed: 0 to 29"),
        ({"model_type": "gemma4_text", "enable_moe_block": True}, "num_experts: is required"),
        ({"model_type": "gpt_neox_japanese", "intermediate_multiple_size": 0}, "Allowed: 0.001 to 1000"),
        (
            {"model_type": "gpt_neo", "attention_types": [[["global"], 1, 2]]},
            "attention_types: must be a list",
        ),
        (
            {"model_type": "gemma4_text", "per_layer_config": {"5": 3}},
            "per_layer_config: must map layers",
        ),
        ({"model_type": "bailing_hybrid", "layer_group_size": 0}, "layer_group_size: .*Allowed: 1 or more"),
        ({"model_type": "bailing_hybrid", "first_k_dense_replace": -1}, "Allowed: 0 or more"),
    ],
)
def test_a_nought_of_which_the_class_makes_another_model_is_refused(
    config: dict[str, object], why: str
) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        model_from_config(config, name="x")


def test_what_a_class_derives_of_nothing_it_derives_of_null() -> None:
    small: dict[str, object] = {"model_type": "flint", "num_hidden_layers": 4}
    said_nothing = model_from_config(small, name="x")
    assert model_from_config({**small, "mlp_only_layers": None}, name="x") == said_nothing
    assert said_nothing.layer_kinds() == ("dense", "dense", "moe", "moe")


def test_zero_expert_groups_mean_routing_without_groups() -> None:
    plain = _config("deepseek-v2-lite", n_group=None, topk_group=None)
    noughts = {**plain, "n_group": 0, "topk_group": 0}
    assert model_from_config(noughts, name="x") == model_from_config(plain, name="x")


def test_no_experts_are_a_dense_model_where_the_class_builds_one() -> None:
    assert model_from_config({"model_type": "qwen3_moe", "num_experts": 0}, name="x").moe is None


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"rope_type": "linear"}, "rope_scaling.factor: is required"),
        ({"rope_type": "default", "foo": 1}, "rope_scaling.foo"),
        ({"rope_type": "default", "mrope_section": [16, 24, 24]}, None),  # of text all axes are alike
        ({"rope_type": "yarn", "original_max_position_embeddings": 4096}, None),  # 8 192 / 4 096
    ],
)
def test_what_scaling_leaves_out_is_said_or_follows(scaling: dict[str, object], said: str | None) -> None:
    config = {"model_type": "llama", "max_position_embeddings": 8192, "rope_scaling": scaling}
    if said is None:
        found = model_from_config(config, name="x").rotary_scaling
        assert found is None if scaling["rope_type"] == "default" else found and found.factor == 2
        return
    with pytest.raises(InvalidProblemError, match=said):
        model_from_config(config, name="x")


NAS = "llama-3.3-nemotron-super-49b"


def test_a_model_of_unlike_layers_has_its_published_number_of_weights() -> None:
    model = model_from_config(REAL[NAS]["config"], name="super")
    assert model.num_parameters() == 49_867_145_216  # of nvidia/Llama-3_3-Nemotron-Super-49B-v1
    assert model.layer_kv_heads.count(0) == 31, "layers with an MLP alone"
    assert set(model.layer_ffn_sizes) == {2816, 5632, 7168, 14_336, 17_920, 28_672}


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        (
            "attention",
            {"replace_with_linear": True},
            "attention.replace_with_linear .not supported",
        ),
        ("ffn", {"sparsify": [1]}, r"block_configs\[0\].ffn.sparsify"),
        (
            "attention",
            {"n_heads_in_group": 7},
            "n_heads_in_group: 7 does not divide num_attention_heads = 64",
        ),
        ("ffn", {"ffn_mult": "x"}, "ffn_mult"),
        ("ffn", None, "block_configs"),
    ],
)
def test_a_layer_that_is_not_planned_is_refused_by_its_place(
    part: str, changes: dict[str, object] | None, words: str
) -> None:
    config = json.loads(json.dumps(REAL[NAS]["config"]))
    first = config["block_configs"][0]
    first[part] = first[part] | changes if changes else None
    with pytest.raises(InvalidProblemError, match=words):
        model_from_config(config, name="x")
    with pytest.raises(InvalidProblemError, match="must be a list of 79 layers"):
        model_from_config(config | {"num_hidden_layers": 79}, name="x")


def test_an_adapter_is_refused_with_its_base_model() -> None:
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B", "r": 16}
    with pytest.raises(InvalidProblemError, match="is an adapter") as caught:
        model_from_config(adapter, name="adapter")
    assert (
        caught.value.errors[0].allowed == "meta-llama/Llama-3.1-8B, with --lora-rank (workload.lora_rank)"
    )


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {}}, "is a tokenizer's file"),
        ({"metadata": {}, "weight_map": {}}, "is an index of weights"),
        ({"do_sample": True, "transformers_version": "5.2"}, "is a file of generation settings"),
        ({"log_history": []}, "is a trainer's state"),
        ({"dim": 4096, "n_layers": 32, "vocab_size": -1}, "is Meta's params.json"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "model_type: is required.*Nearest: qwen3_moe"),
        ({"architectures": ["OddForCausalLM"], "hidden_size": 8}, "model_type: is required"),
    ],
)
def test_another_file_of_a_models_folder_is_named_as_what_it_is(raw: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        model_from_mapping(raw)
