"""Every planned model type that transformers has: our count beside that of the model it builds."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from benchmarks.catalog.model_types import PROBES
from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_families import families
from meshwright.profiles.importers.huggingface_keys import config_keys
from meshwright.profiles.importers.huggingface_towers import whole_types
from tests.builders import TYPES_OF_REMOTE_CODE
from tests.draws import draws, some_of
from tests.torch.drawn_configs import (
    LAYERS,
    NEEDED_BY_TYPE,
    cases,
    known_types,
    needed,
    parameters,
    single_keys,
)

DRAWS, SINGLE_KEYS = draws(1), draws(2)
KNOWN = sorted(set(families()) & known_types())


@pytest.mark.parametrize("model_type", some_of(KNOWN, each=3))
def test_a_drawn_config_has_as_many_parameters_as_the_model_that_transformers_builds(
    model_type: str,
) -> None:
    equal = 0
    for config, count, _why in cases(model_type, DRAWS):
        if count is None:  # the library refuses its own draw
            continue
        try:
            ours = model_from_config(config, name=model_type).num_parameters()
        except InvalidProblemError:  # a switch that is not priced
            continue
        assert ours == count, config
        equal += 1
    assert equal, "at least one config of the type is planned"


@pytest.mark.parametrize("model_type", some_of(KNOWN, each=3, first=1))
def test_a_key_left_out_is_the_class_s_own_and_one_set_otherwise_counts_as_it_is_built(
    model_type: str,
) -> None:
    for what, config in single_keys(model_type, SINGLE_KEYS):
        try:
            count = parameters(model_type, config)
            ours = model_from_config({"model_type": model_type, **config}, name="x").num_parameters()
        except InvalidProblemError:  # a value that is not priced
            continue
        except Exception:  # noqa: BLE001, S112 - the library refuses in many ways
            continue
        assert ours == count, what


def test_every_type_of_causal_language_models_is_planned_or_refused_with_a_reason() -> None:
    types = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(
        whole_types()
    )  # with a tower, of a text's own type
    assert types - set(families()) - set(config_keys().refused_types) == set()
    assert set(families()) & set(config_keys().refused_types) == set()
    for name in types - set(families()):
        with pytest.raises(UnsupportedModelError, match=f'"{name}" is '):
            model_from_config({"model_type": name}, name="x")


@pytest.mark.parametrize("model_type", some_of(KNOWN, each=3, first=2))
def test_a_key_of_another_type_is_refused_or_counts_for_us_as_for_transformers(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type]
    base = {**needed(config), **NEEDED_BY_TYPE.get(model_type, {})}
    if model_type != "gpt_neo":  # whose kinds of layers are listed
        base |= {one.name: 3 for one in dataclasses.fields(config) if LAYERS.match(one.name)}
    for key, value in PROBES.items():
        try:
            ours = model_from_config({"model_type": model_type, **base, key: value}, name="x")
            count = parameters(model_type, {**base, key: value})
        except InvalidProblemError:
            continue
        except Exception:  # noqa: BLE001, S112 - the library refuses in many ways
            continue
        assert ours.num_parameters() == count, key


def test_only_types_of_remote_code_are_missing_from_the_library() -> None:
    assert set(families()) - known_types() == {*TYPES_OF_REMOTE_CODE, "kimi_k2", "mimo", "RefinedWeb"}


@pytest.mark.parametrize(("norm", "expected"), [(LlamaRMSNorm, 4 + 2), (GemmaRMSNorm, 4 + 4)])
def test_an_eager_norm_keeps_its_input_in_fp32_and_what_its_weight_multiplies(
    norm: type[torch.nn.Module], expected: float
) -> None:
    held: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor)
        return tensor

    hidden = torch.ones(64, 256, dtype=torch.bfloat16, requires_grad=True)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        norm(256).to(torch.bfloat16)(hidden)
    stored = {one.data_ptr(): one.nbytes for one in held if one.shape == hidden.shape}  # once each
    assert sum(stored.values()) == expected * 64 * 256


def layer_of_gemma_3n(count: int, low_rank: int, share: float) -> tuple[float, float, float]:
    """Of one layer and token: bytes kept in bf16, FLOPs without scores, and those FLOPs by our facts."""
    sizes = {
        "vocab_size": 500, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 500, "hidden_size_per_layer_input": 64,
        "altup_num_inputs": count, "laurel_rank": low_rank,
    }  # fmt: skip
    tokens, found = 128, []
    for layers in (2, 4):
        each = {"num_hidden_layers": layers, "activation_sparsity_pattern": [share] * layers}
        config = CONFIG_MAPPING["gemma3n_text"](**sizes, **each)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
        whole = {one.untyped_storage().data_ptr() for one in model.parameters()}
        held: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor, held: list[torch.Tensor] = held) -> torch.Tensor:
            held.append(tensor)
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor), FlopCounterMode(display=False) as flops:
            model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
        stored = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held}
        kept = sum(size for place, size in stored.items() if place not in whole)
        found.append((kept / tokens, flops.get_total_flops() / tokens))
    ours = model_from_config({"model_type": "gemma3n_text", **sizes, **each}, name="x")
    products = ours.forward_flops_of(ours.shapes()[0], tokens) - ours.score_flops_per_token(tokens)
    products += 2 * 256 * 64  # of the whole model's product that yields this layer's embeddings
    return (found[1][0] - found[0][0]) / 2, (found[1][1] - found[0][1]) / 2, products


def test_streams_cost_the_products_and_keep_the_tensors_that_gemma_3n_s_class_does() -> None:
    four, two = layer_of_gemma_3n(4, 32, 0.0), layer_of_gemma_3n(2, 32, 0.0)
    assert four[1] == four[2], "FLOPs of a layer"
    assert two[1] == two[2]
    # two tensors of 256 for each stream more, in 2 bytes, and its coefficients: 1050 instead of 1024
    assert (four[0] - two[0]) / 2 == pytest.approx(2 * 2 * 256, rel=0.03)
    assert layer_of_gemma_3n(4, 64, 0.0)[0] - four[0] == pytest.approx(2 * 32)
    assert layer_of_gemma_3n(4, 32, 0.95)[0] - four[0] == pytest.approx(2 * 1024, rel=0.01)
