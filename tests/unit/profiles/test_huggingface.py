"""Hugging Face configs of real models, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiles.errors import InvalidProblemError, UnsupportedModelError
from profiles.importers.huggingface import load_config, model_from_config
from profiles.library import find_model

FIXTURES = Path(__file__).parent / "fixtures"

# weights of the published checkpoints in millions, by name of the fixture
PUBLISHED = {
    "llama-3.1-8b": 8030.3,
    "mistral-7b": 7241.7,
    "mixtral-8x7b": 46702.8,
    "qwen2.5-7b": 7615.6,
    "qwen3-8b": 8190.7,
    "qwen1.5-moe-a2.7b": 14315.8,
    "qwen3-30b-a3b": 30532.1,
    "deepseek-v3": 671026.4,
    "deepseek-v2-lite": 15706.5,
    "gpt2": 124.44,
    "gpt-neox-20b": 20554.6,
    "opt-6.7b": 6658.5,
    "bloom": 176247.3,
    "phi-3-mini": 3821.1,
    "gemma-2-9b": 9241.7,
    "gemma-3-1b": 999.9,
    "gpt-oss-20b": 20914.8,
    "olmo-2-7b": 7298.6,
}


def _config(name: str, **changes: object) -> dict[str, object]:
    raw: dict[str, object] = json.loads((FIXTURES / f"{name}.json").read_text())
    return raw | changes


@pytest.mark.parametrize(("name", "millions"), PUBLISHED.items())
def test_a_real_config_gives_the_published_number_of_weights(name: str, millions: float) -> None:
    model = load_config(FIXTURES / f"{name}.json")
    assert model.num_parameters() == pytest.approx(millions * 1e6, rel=0.001)
    assert model.name == name


@pytest.mark.parametrize(
    ("fixture", "catalog"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("mixtral-8x7b", "mixtral-8x7b"),
        ("deepseek-v3", "deepseek-v3"),
        ("qwen3-30b-a3b", "qwen3-30b-a3b"),
    ],
)
def test_config_and_catalog_describe_the_same_shape(fixture: str, catalog: str) -> None:
    imported, known = load_config(FIXTURES / f"{fixture}.json"), find_model(catalog)
    for field in (
        "num_layers",
        "head_dim",
        "num_kv_heads",
        "moe",
        "mla",
        "num_mtp_layers",
        "tied_embeddings",
    ):
        assert getattr(imported, field) == getattr(known, field), field


def test_a_folder_is_read_through_its_config_and_gives_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text((FIXTURES / "gpt2.json").read_text())
    assert load_config(folder).name == "my-model"
    assert load_config(str(folder / "config.json")).name == "my-model"


def test_gpt2_has_learned_positions_and_a_default_mlp_width() -> None:
    model = load_config(FIXTURES / "gpt2.json")
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
    model = load_config(FIXTURES / f"{name}.json")
    assert (model.sliding_window, model.sliding_window_every) == (window, every)


def test_an_unknown_type_with_llamas_fields_is_read_as_llama() -> None:
    model = load_config(FIXTURES / "new-llama-like.json")
    # 2·32000·1024 + 16·(2·1024² + 2·1024·512 + 3·1024·2816 + 2·1024) + 1024
    assert model.num_parameters() == 254_313_472
    assert model.gated_mlp


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"vision_config": {"hidden_size": 1}, "text_config": {}}, "vision_config"),
        ({"type_vocab_size": 2}, "type_vocab_size"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types"),
        (
            {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 30, "sliding_window": 8},
            "layer_types",
        ),
        ({"index_topk": 2048}, "index_topk"),
        ({"model_type": "brand_new", "rms_norm_eps": None}, "model_type"),
        ({"model_type": "brand_new", "hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "brand_new", "moe_num_experts": 64}, "moe_num_experts"),
    ],
)
def test_what_the_cost_model_cannot_express_is_refused_by_field(
    changes: dict[str, object], field: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"unsupported: {field} ") as caught:
        model_from_config(_config("llama-3.1-8b", **changes), name="x")
    assert caught.value.errors[0].pointer == f"/model/{field}"


def test_experts_in_unevenly_spaced_layers_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="unsupported: mlp_only_layers"):
        model_from_config(_config("qwen3-30b-a3b", mlp_only_layers=[5]), name="x")
    leading = model_from_config(_config("qwen3-30b-a3b", mlp_only_layers=[0, 1]), name="x")
    assert leading.moe is not None
    assert leading.moe.num_dense_layers == 2


def test_every_second_layer_sparse_starts_with_a_dense_one() -> None:
    model = model_from_config(_config("qwen3-30b-a3b", decoder_sparse_step=2), name="x")
    assert model.layer_kinds()[:4] == ("dense", "moe", "dense", "moe")


def test_projected_word_embeddings_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="word_embed_proj_dim"):
        model_from_config(_config("opt-6.7b", word_embed_proj_dim=512), name="x")


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


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"llama"', "\ud800".encode("utf-16", "surrogatepass").decode("latin-1")]
)
def test_a_file_that_is_no_config_is_refused_without_a_trace(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, "utf-8")
    with pytest.raises(InvalidProblemError):
        load_config(tmp_path)


def test_a_missing_or_binary_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match="no readable"):
        load_config(tmp_path / "nowhere.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidProblemError, match="not JSON"):
        load_config(binary)
    huge = tmp_path / "huge.json"
    huge.write_bytes(b" " * (17 * 2**20))
    with pytest.raises(InvalidProblemError, match="too big"):
        load_config(huge)
    deep = tmp_path / "deep.json"
    deep.write_text('{"a":' * 100_000)
    with pytest.raises(InvalidProblemError, match="nested deeper than 32 levels"):
        load_config(deep)


def test_the_rotary_base_is_read_where_it_is_stated() -> None:
    assert model_from_config(_config("llama-3.1-8b"), name="x").rotary_base == 500_000
    config = _config("llama-3.1-8b")
    del config["rope_theta"]
    assert model_from_config(config, name="x").rotary_base is None
