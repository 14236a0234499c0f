"""Every fact of a model counts: in its weights, its FLOPs, its name to launchers, or its flags."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.reference.facts import removed
from meshwright.launchers.megatron_core.model import expert_values, latent_values, model_values
from meshwright.profiles.adapters import SINGLE_TARGETS, adapter_parameters
from meshwright.profiles.capabilities import model_facts
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import (
    IndexerSpec,
    MlaSpec,
    MoeSpec,
    StreamsSpec,
)
from meshwright.profiles.profile import default_profile
from meshwright.solver.predict import predict
from tests.builders import a_configuration, a_problem

FIXTURES = Path(__file__).parents[1] / "profiles" / "fixtures"
PARTS: tuple[tuple[str, type], ...] = (
    ("", ModelSpec), ("moe", MoeSpec), ("mla", MlaSpec), ("indexer", IndexerSpec),
    ("streams", StreamsSpec),
)  # fmt: skip
# Among them the size of chosen blocks: an indexer of single keys is that of another attention.
NAMES = {"name", "source", "display_name", "stored_as", "layer_names", "moe", "mla", "block_size"}
# What only some configs of a type have: layers without positions that are not every n-th.
LISTED = {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 0, 1]}
LATENT = {"model_type": "deepseek_v3", "num_experts_per_tok": 8}
SPARSE = {"model_type": "deepseek_v32"}
REUSED = {"model_type": "glm_moe_dsa", "index_topk_freq": 4}
ODD = (
    {"model_type": "gemma3n_text"},
    {"model_type": "telechat"},
    {"model_type": "minimax_m3_vl_text", "layer_types": ["full_attention", "minimax_m3_sparse"] * 30},
    {"model_type": "baichuan", "vocab_size": 125_696},
)


def models() -> list[ModelSpec]:
    """Every planned model of the real and the drawn configs, and what launch files alone can state."""
    latent = model_from_config(LATENT, name="x")
    assert latent.mla
    bare = replace(latent, mla=replace(latent.mla, norms=False))  # Megatron-LM without --qk-layernorm
    found = [model_from_config(LISTED, name="x"), model_from_config(REUSED, name="x"), bare]
    found += [model_from_config(one, name="x") for one in ODD]
    for file in ("real-configs.json", "drawn-configs.json"):
        for one in json.loads((FIXTURES / file).read_text()):
            try:
                found.append(model_from_config(one["config"], name="x"))
            except InvalidProblemError:
                continue
    towers = json.loads((FIXTURES / "drawn-towers.json").read_text())["configs"]
    seeing = [model_from_config(one["config"], name="x") for one in towers]
    diffusing = json.loads((FIXTURES / "drawn-diffusers.json").read_text())
    found += [model_from_config(one["config"], name="x") for one in diffusing]
    scoring = replace(find_model("llama-3.1-8b"), num_labels=1)
    return [*found, scoring, *seeing, *(model.tower_layers for model in seeing)]


MODELS = models()


def flags(model: ModelSpec) -> dict[str, object]:
    """Return the values of launchers' options that state the model."""
    values = model_values(model) | (latent_values(model.mla) if model.mla else {})
    return values | (expert_values(model, model.moe) if model.moe else {})


def counts(model: ModelSpec) -> tuple[float, ...]:
    """Return its weights, those of multi-token prediction, and FLOPs."""
    return model.num_parameters(), model.mtp_parameters(), model.model_flops_per_token(4096)


def adapters(model: ModelSpec) -> list[int]:
    """Return the weights of adapters of every linear layer, of MLPs, and of routers."""
    named = (SINGLE_TARGETS, ("gate_proj", "up_proj", "down_proj"), ("gate",))
    return [adapter_parameters(model, 8, targets) for targets in named]


def step_s(model: ModelSpec) -> float:
    """Return the step of transformers' trainer on 128 GPUs, whose classes may run experts otherwise."""
    problem = replace(a_problem(model=model, batch=128), launcher="trl")
    config = a_configuration(
        tensor_parallel_size=1, sequence_parallel=False, pipeline_parallel_size=1, virtual_pipeline_size=1,
        pipeline_schedule="none", data_parallel_size=128, zero_stage=3, zero_shard_size=128,
        num_microbatches=1, stage_layers=(model.num_layers,),
    )  # fmt: skip
    return predict(problem, default_profile(problem.cluster, "trl"), config).step_time_s


SEEN = (
    flags,
    counts,
    model_facts,
    adapters,
    step_s,
)  # what a fact may change; the quickest to compute first


@cache
def seen_of(at: int, see: Callable[[ModelSpec], object]) -> object:
    """Return one of ``SEEN`` of one of ``MODELS`` with all its facts, computed once for all comparisons."""
    return see(MODELS[at])


def without(model: ModelSpec, part: str, name: str, default: object) -> Iterator[ModelSpec]:
    """The model without the fact; nothing where it has none, or where it says nothing of this model."""
    if name == "expert_bias" and not model.mlp_bias:  # no MLP has any
        return
    if name == "frequency" and model.layer_kinds().count("moe") == 1:  # of one layer there is no distance
        return
    if name.startswith("rotary_") and all(model.layers_without_rotary()):
        return
    whole = model.moe and "dense" not in model.layer_kinds() and not model.moe.num_shared_experts
    if name == "fused_gate_up" and whole:  # there is no MLP next to the experts
        return
    found = removed(model, part, name, default)
    if found:
        yield found


FACTS = [
    (part, field.name, field.default)
    for part, of in PARTS
    for field in fields(of)
    if field.default is not MISSING and field.name not in NAMES
]


@pytest.mark.parametrize(("part", "name", "default"), FACTS, ids=[".".join(one[:2]) for one in FACTS])
def test_a_model_without_one_of_its_facts_has_another_count_price_name_or_flag(
    part: str, name: str, default: object
) -> None:
    pairs = [(at, one) for at, model in enumerate(MODELS) for one in without(model, part, name, default)]
    assert pairs, "a config has it"
    assert all(any(seen_of(at, see) != see(one) for see in SEEN) for at, one in pairs)


@pytest.mark.parametrize("name", StreamsSpec.LIMITS)
def test_every_size_of_several_streams_changes_the_count_the_work_or_the_name(name: str) -> None:
    model = model_from_config({"model_type": "gemma3n_text"}, name="x")
    assert model.streams
    other = {"count": 2, "low_rank": 32, "sparse_layers": 0}[name]
    changed = replace(model, streams=replace(model.streams, **{name: other}))
    assert any(see(changed) != see(model) for see in SEEN)


@pytest.mark.parametrize("name", IndexerSpec.LIMITS)
def test_every_size_of_an_indexer_changes_the_count_or_the_work(name: str) -> None:
    model = model_from_config(SPARSE, name="x")
    assert model.indexer
    other = replace(model.indexer, **{name: getattr(model.indexer, name) // 2})
    assert any(see(replace(model, indexer=other)) != see(model) for see in SEEN)
