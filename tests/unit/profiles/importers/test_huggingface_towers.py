"""Configs with a vision tower: counts as transformers builds them, and what is refused by its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_towers import whole_types
from meshwright.profiles.library import find_model
from meshwright.profiles.model_shapes import model_from_shape, model_to_mapping
from meshwright.profiles.sequences import SequenceLengths

DRAWN = json.loads((Path(__file__).parents[1] / "fixtures" / "drawn-towers.json").read_text("utf-8"))
TEXT: dict[str, Any] = {
    "model_type": "qwen3_vl_text", "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
}  # fmt: skip
VISION: dict[str, Any] = {
    "depth": 3, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "out_hidden_size": 512,
    "num_position_embeddings": 64, "deepstack_visual_indexes": [1],
}  # fmt: skip
WHOLE: dict[str, Any] = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": VISION}


@pytest.mark.parametrize("row", DRAWN["configs"], ids=lambda row: row["config"]["model_type"])
def test_a_drawn_config_has_as_many_parameters_as_the_model_that_transformers_builds(
    row: dict[str, Any],
) -> None:
    assert model_from_config(row["config"], name="x").num_parameters() == row["parameters"]


def test_every_type_with_a_tower_is_among_the_drawn_ones_or_counted_apart() -> None:
    apart = {"kimi_k3", "voxtral"}  # of remote code, among the real configs; of sound, below
    assert {row["config"]["model_type"] for row in DRAWN["configs"]} | apart == set(whole_types())


PUBLISHED = {  # names in the config of moonshotai/Kimi-K2.5, of the keys that transformers' class reads
    "hidden_size": "vt_hidden_size", "intermediate_size": "vt_intermediate_size",
    "num_attention_heads": "vt_num_attention_heads", "num_hidden_layers": "vt_num_hidden_layers",
    "pos_emb_height": "init_pos_emb_height", "pos_emb_width": "init_pos_emb_width",
}  # fmt: skip


# Keys of published configs that transformers' class of the tower does not read (Qwen/Qwen2-VL-7B-Instruct,
# Qwen/Qwen2.5-VL-7B-Instruct, google/gemma-4-26B-A4B).
UNREAD: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"in_chans": 3, "spatial_patch_size": 14},
    "qwen2_5_vl": {"in_chans": 3, "spatial_patch_size": 14, "tokens_per_second": 2},
    "gemma4": {"default_output_length": 280, "global_head_dim": 72, "image_seq_length": 280},
}


@pytest.mark.parametrize("model_type", sorted(UNREAD))
def test_a_published_config_has_keys_that_its_tower_does_not_read(model_type: str) -> None:
    row = next(one for one in DRAWN["configs"] if one["config"]["model_type"] == model_type)
    published = {**row["config"], "vision_config": {**row["config"]["vision_config"], **UNREAD[model_type]}}
    assert model_from_config(published, name="x").num_parameters() == row["parameters"]


def test_kimi_k2_5_is_read_under_the_names_of_its_published_config() -> None:
    row = next(one for one in DRAWN["configs"] if one["config"]["model_type"] == "kimi_k25")
    own, hidden = row["config"]["vision_config"], row["config"]["text_config"]["hidden_size"]
    vision = {PUBLISHED.get(key, key): value for key, value in own.items()}
    vision |= {"mm_hidden_size": row["config"]["projection_hidden_size"], "text_hidden_size": hidden}
    published = {**row["config"], "vision_config": vision}
    del published["projection_hidden_size"]
    assert model_from_config(published, name="x").num_parameters() == row["parameters"]
    for wrong, says in (
        ({"hidden_size": 1}, "another name of hidden_size"),
        ({"text_hidden_size": 1}, "not the"),
    ):
        with pytest.raises(InvalidProblemError, match=says):
            model_from_config({**published, "vision_config": {**vision, **wrong}}, name="x")


@pytest.mark.parametrize("sides", [[2, 2, 0], [2, "2", 2], [2]])
def test_a_merger_of_kimi_k2_5_has_two_sides(sides: list[object]) -> None:
    kimi = next(row["config"] for row in DRAWN["configs"] if row["config"]["model_type"] == "kimi_k25")
    vision = {**kimi["vision_config"], "merge_kernel_size": sides}
    with pytest.raises(InvalidProblemError, match="merge_kernel_size: must be two whole numbers"):
        model_from_config({**kimi, "vision_config": vision}, name="x")


@pytest.mark.parametrize(
    ("part", "key", "value", "says"),
    [
        ("", "vision_feature_layer", -2, "must be a list of layers"),
        ("vision_config", "model_type", "siglip_vision_model", "allowed: clip_vision_model"),
    ],
)
def test_vip_llava_reads_several_layers_of_clip(part: str, key: str, value: object, says: str) -> None:
    own = next(row["config"] for row in DRAWN["configs"] if row["config"]["model_type"] == "vipllava")
    changed = {**own, part: {**own[part], key: value}} if part else {**own, key: value}
    with pytest.raises(UnsupportedModelError, match=f"(?i){says}"):
        model_from_config(changed, name="x")


def test_a_tower_has_layers_ends_and_a_merger_for_each_depth() -> None:
    model = model_from_config(WHOLE, name="x")
    # A layer: two LayerNorms, four square products and two of the MLP, each with its bias.
    layer = 4 * 128 + 4 * 128 * 128 + 4 * 128 + 2 * 128 * 256 + 256 + 128
    ends = 128 * (3 * 2 * 16 * 16) + 128 + 64 * 128  # pixels of two frames, their bias, positions
    # Four patches become one token; a norm of a patch, or of all four for what an early layer adds.
    merger = 512 * 512 + 512 + 512 * 512 + 512
    assert model.tower_parameters() == 3 * layer + ends + 2 * merger + 2 * 128 + 2 * 512
    assert model.tower_parameters(("vision",)) == 2 * merger + 2 * 128 + 2 * 512
    language = model_from_config({**TEXT, "tie_word_embeddings": False}, name="x")
    assert model.num_parameters() == language.num_parameters() + model.tower_parameters()


def test_voxtral_hears_with_whispers_encoder_and_is_as_large_as_its_report_states() -> None:
    model = model_from_config({"model_type": "voxtral", "audio_config": {}, "text_config": {}}, name="x")
    # h = 1280: convolutions of three frames, 128 bins to h and h to h; 1500 positions; 32 layers of
    # LayerNorms, four products of which keys have no bias, an MLP of 5120; a norm behind them
    layer = 4 * 1280**2 + 3 * 1280 + 2 * 1280 * 5120 + 5120 + 1280 + 4 * 1280
    hears = 3 * 128 * 1280 + 3 * 1280**2 + 2 * 1280 + 1500 * 1280 + 32 * layer + 2 * 1280
    projector = 5120 * 3072 + 3072**2  # four rows side by side become a token
    assert model.tower_parameters(("vision",)) == projector == 25_165_824
    assert model.tower_parameters() - projector == hears == 636_968_960
    # 30 layers of 32 heads of 128 over eight of keys, an MLP of 8192; 131072 tokens twice: an own head
    layer = 2 * 3072 * 4096 + 2 * 3072 * 1024 + 3 * 3072 * 8192 + 2 * 3072
    reads = 2 * 131_072 * 3072 + 30 * layer + 3072
    assert model.num_parameters() == hears + projector + reads == 4_676_271_104
    # arXiv:2507.13264, section 2: an encoder of 640M, an adapter of 25M, 4.7B in all; 375 tokens of 30 s
    assert [round(one / 1e6) for one in (hears, projector)] == [637, 25]
    assert model.tower is not None
    assert model.tower.tile_tokens == 375
    assert find_model("mistralai/Voxtral-Mini-3B-2507").num_parameters() == 4_676_271_104


@pytest.mark.parametrize(
    ("audio", "at", "says"),
    [
        ({"intermediate_size": 5000}, "intermediate_size", "5000 is no multiple of 1280"),
        ({"max_source_positions": 1501}, "max_source_positions", "1501 is no multiple of 4"),
        ({"scale_embedding": True}, "scale_embedding", "is not planned"),
        ({"model_type": "whisper"}, "model_type", "'whisper' is not planned"),
        ({"d_model": 1280, "hidden_size": 1280}, "", "another name of hidden_size"),
    ],
)
def test_what_a_tower_of_sound_cannot_have_is_refused_by_field(
    audio: dict[str, Any], at: str, says: str
) -> None:
    with pytest.raises(InvalidProblemError, match=says) as caught:
        model_from_config({"model_type": "voxtral", "audio_config": audio, "text_config": {}}, name="x")
    assert caught.value.errors[0].pointer.startswith(f"/model/audio_config{'/' * bool(at)}{at}")


def test_two_products_of_mistral_3_s_projector_may_have_biases() -> None:
    row = next(row for row in DRAWN["configs"] if row["config"]["model_type"] == "mistral3")
    plain, biased = (
        model_from_config({**row["config"], "multimodal_projector_bias": bias}, name="x")
        for bias in (False, True)
    )
    assert plain.tower is not None
    assert biased.tower is not None
    assert biased.tower.projector_vectors - plain.tower.projector_vectors == 2 * plain.hidden_size


def test_a_tower_is_read_back_as_it_was_written() -> None:
    model = model_from_config(WHOLE, name="x")
    assert model_from_shape(model_to_mapping(model)) == model


def test_older_configs_have_the_language_model_s_keys_next_to_the_tower() -> None:
    text = {**TEXT, "model_type": "qwen2_5_vl", "rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}
    vision = {
        "depth": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 4,
        "out_hidden_size": 512,
    }
    older = model_from_config({**text, "vision_config": vision, "vision_start_token_id": 1}, name="x")
    inside = {"model_type": "qwen2_5_vl", "vision_config": vision}
    newer = model_from_config(
        {**inside, "text_config": {**text, "model_type": "qwen2_5_vl_text"}}, name="x"
    )
    assert older.num_parameters() == newer.num_parameters()


@pytest.mark.parametrize(
    ("vision", "field", "words"),
    [
        ({"out_hidden_size": 768}, "vision_config/out_hidden_size", "768 is not the language model's"),
        ({"num_heads": 5}, "tower/num_attention_heads", "5 does not divide hidden_size = 128"),
        ({"patch_size": [14, 16]}, "vision_config/patch_size", "two equal numbers"),
        ({"hidden_act": "relu"}, "vision_config/hidden_act", "is not planned"),
        ({"registers": 4}, "vision_config/registers", "Meshwright doesn't know this key"),
        ({"depth": "many"}, "vision_config/depth", "is not a whole number"),
    ],
)
def test_what_a_tower_cannot_have_is_refused_by_field(
    vision: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words) as caught:
        model_from_config({**WHOLE, "vision_config": {**VISION, **vision}}, name="x")
    assert caught.value.errors[0].pointer == f"/model/{field}"


def test_faults_of_the_language_model_point_into_its_part() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        model_from_config({**WHOLE, "text_config": {**TEXT, "hidden_size": 0}}, name="x")
    assert caught.value.errors[0].pointer == "/model/text_config/hidden_size"
    with pytest.raises(UnsupportedModelError, match="the class builds qwen3_vl_text"):
        model_from_config({**WHOLE, "text_config": {**TEXT, "model_type": "llama"}}, name="x")


def _alike(tokens: int) -> SequenceLengths:
    return SequenceLengths(percentiles=((0.0, tokens), (100.0, tokens)))


def test_an_image_attends_to_itself_and_a_tile_to_its_tile() -> None:
    tower = model_from_config(WHOLE, name="x").tower
    assert tower is not None
    load = tower.load(2.0, _alike(64))
    assert (load.tokens, load.patches, load.rows, load.attended) == (128, 512, 512, 256)
    tiles = next(row["config"] for row in DRAWN["configs"] if row["config"]["model_type"] == "internvl")
    tower = model_from_config(tiles, name="x").tower
    assert tower is not None
    # Three tiles of 32 x 32 patches and a token of its own each.
    load = tower.load(1.0, _alike(3 * 256))
    assert (load.tokens, load.patches, load.rows, load.attended) == (768, 3072, 3 * 1025, 1025)


def test_unequal_images_attend_to_more_than_their_mean() -> None:
    tower = model_from_config(WHOLE, name="x").tower
    assert tower is not None
    load = tower.load(1.0, SequenceLengths(histogram=((64, 0.5), (192, 0.5))))
    assert load.tokens == pytest.approx(128)
    assert load.attended == pytest.approx(4 * (64**2 + 192**2) / (64 + 192))
