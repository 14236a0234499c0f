"""Adapters in vision towers: linear layers that transformers builds, and weights that peft trains."""

from __future__ import annotations

import re

import pytest
import torch
from peft import LoraConfig, get_peft_model

from meshwright.profiles.adapters import adapter_parameters
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.tower_modules import tower_modules
from tests.torch.drawn_towers import built, whole

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of transformers
LANGUAGE = ("language_model", "text_model")


@pytest.mark.parametrize("model_type", tower_modules())
def test_the_linear_layers_of_a_tower_are_those_that_transformers_builds(model_type: str) -> None:
    known = tower_modules()[model_type]
    linear = {
        re.sub(r"\.\d+(?=\.)", ".0", name)
        for name, module in built(whole(model_type)).named_modules()
        if isinstance(module, torch.nn.Linear) and not any(part in name.split(".") for part in LANGUAGE)
    }
    assert {path for target in known.targets for path in known.paths(target)} == linear - {"lm_head"}


@pytest.mark.parametrize("model_type", tower_modules())
def test_adapters_of_a_tower_have_as_many_weights_as_peft_trains(model_type: str) -> None:
    """Of each name alone, and of all together; a pattern means any number where a path has 0."""
    config, known, rank = whole(model_type), tower_modules()[model_type], 8
    model = model_from_config(config, name="x")
    patterns = {
        target: "|".join(re.escape(path).replace(r"\.0\.", r"\.\d+\.") for path in known.paths(target))
        for target in known.targets
    }
    with torch.device("meta"):
        adapted = get_peft_model(
            built(config), LoraConfig(r=rank, target_modules="|".join(patterns.values()))
        )
    trained = dict.fromkeys(known.targets, 0)
    for path, one in adapted.base_model.model.named_parameters():
        if one.requires_grad:
            module = path.partition(".lora_")[0]
            (target,) = (name for name, pattern in patterns.items() if re.fullmatch(pattern, module))
            trained[target] += one.numel()
    for target, weights in trained.items():
        assert adapter_parameters(model, rank, (target,)) == weights, target
    assert adapter_parameters(model, rank, known.targets) == sum(trained.values())
