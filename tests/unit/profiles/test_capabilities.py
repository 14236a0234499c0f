"""What launchers can express."""

from dataclasses import replace

import pytest
import yaml

from benchmarks.reference.models import models_page
from meshwright.profiles import capabilities
from meshwright.profiles.capabilities import (
    BUILT_MODELS,
    exact_types,
    judged_versions,
    lacking_facts,
    launcher_capabilities,
    launcher_names,
    launchers_of,
)
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import ProfileError, UnknownNameError
from meshwright.profiles.library import find_model
from meshwright.profiles.model_parts import RotaryScaling
from tests.launchers.model_types import configs


def test_megatron_runs_zero_2_and_3_only_without_stages() -> None:
    able = launcher_capabilities("megatron-lm")
    assert able.zero_stages == (0, 1, 2, 3)
    assert able.max_zero_stage_with_pipeline == 1


def test_no_launcher_has_no_launchers_limits() -> None:
    assert launcher_capabilities("none").max_zero_stage_with_pipeline == 3


def test_every_launcher_of_the_catalog_names_its_source() -> None:
    assert all(launcher_capabilities(name).source for name in launcher_names())


@pytest.mark.parametrize(
    ("field", "name", "near"),
    [
        ("framework", "megatron-cor", "megatron-core"),
        ("model_constraints", "mixers of every kind", "mixers of any kind"),
        ("model_facts", "latent atention", "latent attention"),
        ("model_families", "tied embedings", "tied embeddings"),
        ("option_constraints", "overlap_transfers False", "overlap_transfer"),
        ("own_options", "mlp_tile_token", "mlp_tile_tokens"),
        ("optimizer_constraints", "adamw-bf", "adamw-bf16"),
        ("batching_constraints", "pack", "packing"),
    ],
)
def test_a_misspelt_word_of_a_launchers_data_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, field: str, name: str, near: str
) -> None:
    usual = yaml.safe_load((CATALOG / "frameworks" / "capabilities.yaml").read_text("utf-8"))["megatron-lm"]
    wrong = name if field == "framework" else {name: [name]}
    monkeypatch.setattr(capabilities, "catalog_file", lambda _: {"toy": usual | {field: wrong}})
    with pytest.raises(ProfileError, match=f"toy: {field}: unknown .* Did you mean .*{near}"):
        launcher_capabilities.__wrapped__("toy")


def test_an_unknown_launcher_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean megatron-lm"):
        launcher_capabilities("megatron")


def test_megatron_scales_the_positions_of_latent_attention_by_yarn_alone() -> None:
    """Megatron-Core, transformer/multi_latent_attention.py: ``rope_type`` is ``rope`` or ``yarn``."""
    model = find_model("deepseek-v3")
    scaled = replace(model, rotary_scaling=RotaryScaling(kind="linear", factor=4.0))
    assert lacking_facts(launcher_capabilities("megatron-lm"), model) == ()
    lacking = lacking_facts(launcher_capabilities("megatron-lm"), scaled)
    assert lacking == ("linear rotary scaling of latent attention",)


def test_megatron_takes_yarn_of_plain_attention_with_the_usual_factor_of_logits() -> None:
    """Megatron-LM 0.19.2, training/argument_utils.py ``_apply_yarn_config_from_args``: none is given."""
    model, able = find_model("gpt-oss-20b"), launcher_capabilities("megatron-lm")
    assert lacking_facts(able, model) == ()
    assert model.rotary_scaling is not None
    scaled = replace(model, rotary_scaling=replace(model.rotary_scaling, attention_factor=1.0))
    assert lacking_facts(able, scaled) == ("yarn rotary scaling by an attention factor",)


@pytest.mark.parametrize("launcher", ["megatron-lm", "torchtitan"])
def test_what_the_launcher_has_built_is_what_the_table_calls_exact(launcher: str) -> None:
    """``make launchers`` holds the record against the launcher; here it is held against its neighbours."""
    recorded = yaml.safe_load(BUILT_MODELS.read_text())[launcher]
    judged = {one.version: one.date for one in judged_versions(launcher)}
    assert recorded["version"] in judged
    known = {(kind, name): model for kind, name, model in configs()}
    able = launcher_capabilities(launcher)
    for kind, names in recorded["types"].items():
        assert all(lacking_facts(able, known[kind, name]) == () for name in names), kind
    assert exact_types(launcher) == set(recorded["types"])
    rows = [line.split(" | ") for line in models_page().splitlines() if line.startswith("| `")]
    column = [able.launcher for able in map(launcher_capabilities, launchers_of("any"))].index(launcher) + 1
    exact = {row[0].strip("| `") for row in rows if len(row) > column and row[column] == "**exact**"}
    assert exact <= exact_types(launcher), "and those whose class's own defaults it cannot state are named"
