"""Vision towers beside those of transformers: parameters, FLOPs, and what is kept for a backward pass."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText, VoxtralForConditionalGeneration
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_towers import whole_types
from meshwright.profiles.library import find_cluster
from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.memory import tower_bytes
from meshwright.solver.problem import Problem, Workload
from tests.torch.drawn_towers import cases, small

PATCHES, SIDE = 256, 16
# Tiles of an image of 224 by 224 pixels where a grid of them is cut: the whole image, and its only tile.
TILED = {"idefics3": 1, "llava_next": 2, "llava_next_video": 2, "llava_onevision": 2, "smolvlm": 1}
RUN = (
    "aya_vision", "cohere2_vision", "deepseek_vl", "gemma3", "glm4v", "hyperclovax_vision_v2", "idefics3",
    "internvl", "lfm2_vl", "llama4", "llava", "llava_next_video", "llava_onevision", "mistral3",
    "paddleocr_vl", "paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "video_llama_3", "vipllava",
)  # fmt: skip


# Of transformers' own; Kimi K3 is planned by code that is published next to its weights.
@pytest.mark.parametrize("model_type", sorted({*whole_types()} & {*CONFIG_MAPPING.keys()} - {"voxtral"}))
def test_a_drawn_config_has_as_many_parameters_as_the_model_that_transformers_builds(
    model_type: str,
) -> None:
    for config, count in cases(model_type, 2):
        assert model_from_config(config, name="x").num_parameters() == count, config


@pytest.mark.parametrize(
    "tower", [{}, {"num_hidden_layers": 3, "intermediate_size": 2560, "num_mel_bins": 80}]
)
def test_voxtral_has_as_many_parameters_as_the_model_that_transformers_builds(
    tower: dict[str, int],
) -> None:
    built = CONFIG_MAPPING["voxtral"](audio_config=dict(tower), text_config={"num_hidden_layers": 2})
    with torch.device("meta"):
        count = sum(one.numel() for one in VoxtralForConditionalGeneration(built).parameters())
    config = json.loads(built.to_json_string(use_diff=False))
    assert model_from_config(config, name="x").num_parameters() == count


def _run(config: dict[str, Any], attention: str) -> Any:  # noqa: ANN401 - what the tower yields
    """Return what the tower and the projector of a model yield for one image of 16 by 16 patches."""
    own = {key: value for key, value in copy.deepcopy(config).items() if key != "model_type"}
    built = CONFIG_MAPPING[config["model_type"]](**own)
    model = AutoModelForImageTextToText.from_config(built, attn_implementation=attention).train()
    vision = config["vision_config"]
    kind = config["model_type"]
    if "temporal_patch_size" in vision and kind != "hyperclovax_vision_v2":
        inputs = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
        return lambda: model.model.visual(
            torch.randn(PATCHES, inputs), grid_thw=torch.tensor([[1, SIDE, SIDE]])
        ), model
    sees = model if kind == "llama4" else model.model
    layer = {"vision_feature_layer": -1, "vision_feature_select_strategy": "default"}
    given = layer if kind in ("internvl", "llama4", "qianfan_ocr") else {}
    pixels = torch.randn(1, 3, 224, 224)
    if kind in TILED:
        pixels, given = (
            torch.randn(1, TILED[kind], 3, 224, 224),
            {"image_sizes": torch.tensor([[224, 224]])},
        )
    if kind in ("mistral3", "lighton_ocr"):
        given = {"image_sizes": torch.tensor([[224, 224]])}
    if kind == "lfm2_vl":
        whole = torch.ones(1, PATCHES, dtype=torch.long)
        given = {"spatial_shapes": torch.tensor([[SIDE, SIDE]]), "pixel_attention_mask": whole}
        pixels = torch.randn(1, PATCHES, 3 * vision["patch_size"] ** 2)
    if kind == "video_llama_3":
        given = {"image_grid_thw": torch.tensor([[1, SIDE, SIDE]]), "image_merge_sizes": torch.tensor([1])}
        pixels = torch.randn(PATCHES, 3 * vision["patch_size"] ** 2)
    if kind == "hyperclovax_vision_v2":
        given = {"image_grid_thw": torch.tensor([[1, SIDE, SIDE]])}
        pixels = torch.randn(PATCHES, 3 * 2 * vision["patch_size"] ** 2)
    if kind == "paddleocr_vl":
        given = {"image_grid_thw": torch.tensor([[1, SIDE, SIDE]])}
        pixels = torch.randn(PATCHES, 3, vision["patch_size"], vision["patch_size"])
    return lambda: sees.get_image_features(pixel_values=pixels, **given), model


def _trained(value: Any) -> list[torch.Tensor]:  # noqa: ANN401 - an output of a model
    if torch.is_tensor(value):
        return [value] if value.requires_grad else []
    parts = value.to_tuple() if hasattr(value, "to_tuple") else value
    return [one for part in parts for one in _trained(part)] if isinstance(parts, list | tuple) else []


def _load(config: dict[str, Any]) -> Workload:
    tower = model_from_config(config, name="x").tower
    assert tower is not None
    tokens = PATCHES * TILED.get(config["model_type"], 1) // tower.merged_patches
    sizes = SequenceLengths(percentiles=((0.0, tokens), (100.0, tokens)))
    return Workload(global_batch_size=8, seq_length=1024, images_per_sample=1.0, image_tokens=sizes)


@pytest.mark.parametrize("model_type", RUN)
def test_flops_of_an_image_are_those_that_torch_counts(model_type: str) -> None:
    config = small(model_type)
    run, _ = _run(config, "eager")  # torch does not count a CPU's flash attention
    with FlopCounterMode(display=False) as forward:
        found = _trained(run())
    with FlopCounterMode(display=False) as backward:
        sum(one.sum() for one in found).backward()
    model = model_from_config(config, name="x")
    images = _load(config).images(model.tower)
    assert model.image_flops(images, ("vision", "projector")) == pytest.approx(
        forward.get_total_flops(), rel=0.003
    )
    whole = forward.get_total_flops() + backward.get_total_flops()
    assert model.image_flops(images) == pytest.approx(whole, rel=0.003)


@pytest.mark.parametrize("model_type", RUN)
def test_what_is_kept_of_a_tower_is_what_autograd_saves(model_type: str) -> None:
    config = small(model_type)
    run, model = _run(config, "sdpa")
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept = dict[int, int]()

    def pack(one: torch.Tensor) -> torch.Tensor:
        storage = one.untyped_storage()
        if storage.data_ptr() not in own and one.dtype.is_floating_point:
            kept[storage.data_ptr()] = storage.nbytes()
        return one

    with saved_tensors_hooks(pack, lambda one: one):
        found = run()
    assert _trained(found)
    launcher = "llama-factory-accelerate"
    problem = Problem(
        model=model_from_config(config, name="x"), cluster=find_cluster("dgx-h100", num_nodes=1),
        workload=_load(config), launcher=launcher,
    )  # fmt: skip
    # shards, which FSDP gathers in bf16: rows of 2 bytes, and no casts of autocast
    sharded = Configuration(data_parallel_size=8, zero_stage=3, zero_shard_size=8, stage_layers=(2,))
    rows = Columns.of([sharded])
    ctx = context_of(problem, rows, default_profile(problem.cluster, launcher))
    # The CPU runs it in 4 bytes an element. quick_gelu is three kernels, each with its own.
    expected = sum(kept.values()) / 2.0
    apart = config["vision_config"].get("hidden_act") == "quick_gelu"
    assert tower_bytes(ctx)[0] == pytest.approx(expected, rel=0.22 if apart else 0.1)
