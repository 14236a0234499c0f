"""Models with layers of one block under Megatron-LM: the pattern is written, split by stages, read back."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import lacking_facts, launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.solver.configuration import Configuration
from tests.launchers.cases import plan
from tests.launchers.plans import problem_of

MAMBA = MixerSpec(
    kind="mamba2", num_heads=32, num_key_heads=8, key_head_dim=128, value_head_dim=64, chunk=128,
    convolution_bias=True,
)  # fmt: skip
EXPERTS = MoeSpec(num_experts=16, top_k=2, ffn_hidden_size=512, router_score="sigmoid", selection_bias=True)
MODEL = ModelSpec(
    name="m", num_layers=8, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16, num_kv_heads=8,
    head_dim=128, vocab_size=32_000, gated_mlp=False, activation="squared_relu", mixer=MAMBA, moe=EXPERTS,
    layer_pattern="MEM*EM-E", no_rotary_every=1, max_position_embeddings=8192, norm_epsilon=1e-5,
)  # fmt: skip
STAGES = Configuration(
    tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=2,
    zero_stage=1, zero_shard_size=2, num_microbatches=64, pipeline_schedule="1f1b", stage_layers=(5, 3),
)  # fmt: skip
CHUNKS = replace(
    STAGES, virtual_pipeline_size=2, pipeline_schedule="interleaved_1f1b", stage_layers=(2, 3, 2, 1)
)
WHOLE = Configuration(data_parallel_size=8, num_microbatches=16, stage_layers=(8,))


def _target(config: Configuration, model: ModelSpec = MODEL) -> Target:
    return Target(plan=plan(config), problem=problem_of("megatron-lm", model, num_nodes=1))


def _files(config: Configuration, model: ModelSpec = MODEL) -> dict[str, str]:
    found = _target(config, model)
    return export(found.plan, found.problem, "megatron-lm").files


def _read(texts: dict[str, str]) -> LaunchFile:
    return read_launch_files(Source(name="launch.sh", text=texts["launch.sh"], files=texts))


@pytest.mark.parametrize(
    ("config", "pattern"),
    [(STAGES, "MEM*E|M-E"), (CHUNKS, "ME|M*E|M-|E"), (WHOLE, "MEM*EM-E")],
)
def test_the_pattern_is_written_with_its_stages_and_read_back(config: Configuration, pattern: str) -> None:
    texts = _files(config)
    assert f"--hybrid-layer-pattern '{pattern}'\n" in texts["megatron_args.sh"]
    assert "pretrain_hybrid.py" in texts["launch.sh"]
    assert not re.search(
        r"--(pipeline-model-parallel-layout|num-virtual|moe-layer-freq|no-rope)", str(texts)
    )
    read = _read(texts)
    assert replace(read.model, name="m", source="") == replace(MODEL, source="")
    assert (read.configuration, read.unread) == (config, ())


def test_a_pattern_without_experts_and_with_rotary_positions_is_read_back() -> None:
    model = replace(MODEL, moe=None, layer_pattern="MM-*MM-*", no_rotary_every=0, rotary_base=10_000)
    read = _read(_files(WHOLE, model))
    assert replace(read.model, name="m") == model


def test_mixers_alone_are_written_and_read_back() -> None:
    config = {
        "model_type": "mamba2", "hidden_size": 1024, "num_heads": 32, "num_hidden_layers": 8,
        "chunk_size": 128, "vocab_size": 32_000,
    }  # fmt: skip
    model = model_from_config(config, name="m")
    texts = _files(STAGES, model)
    assert "--hybrid-layer-pattern 'MMMMM|MMM'\n" in texts["megatron_args.sh"]
    read = _read(texts)
    assert read.configuration == STAGES
    unstated: dict[str, Any] = {"source": "", "rotary_base": None, "max_position_embeddings": None}
    assert replace(read.model, name="m", **unstated) == replace(model, **unstated)
    own = {**config, "chunk_size": 256}  # Megatron-Core's is 128
    lacking = lacking_facts(launcher_capabilities("megatron-lm"), model_from_config(own, name="m"))
    assert list(lacking) == ["state-space layers of another form"]


def _of_script(more: str, program: str = "pretrain_mamba.py") -> LaunchFile:
    text = (
        f"torchrun --nproc_per_node 8 {program} --hidden-size 1024 --num-attention-heads 16 --seq-length "
    )
    text += "4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 --normalization "
    text += f"RMSNorm --disable-bias-linear --position-embedding-type none {more}\n"
    return read_launch_files(Source(name="a.sh", text=text), Overrides())


def test_older_scripts_name_the_pattern_otherwise_and_leave_the_number_of_layers_to_it() -> None:
    spec = "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --is-hybrid-model"
    found = _of_script(f"--hybrid-override-pattern M-M*- --mamba-num-heads 16 {spec}")
    assert (found.model.num_layers, found.model.layer_pattern) == (5, "M-M*-")
    mixer = found.model.mixer
    assert mixer is not None
    # Megatron-Core's defaults: heads of 64, 8 groups, states of 128, chunks of 128.
    assert (mixer.num_heads, mixer.value_head_dim, mixer.num_key_heads, mixer.key_head_dim) == (
        16,
        64,
        8,
        128,
    )
    assert found.unread == ()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--hybrid-layer-pattern M-MX", "has 'X', which is not a layer that is planned"),
        ("--hybrid-layer-pattern M-M*/MM", "prediction layers behind a pattern"),
        ("--hybrid-layer-pattern 'M-|M*|--' --pipeline-model-parallel-size 2", "has 3 stages, which 2"),
        ("--hybrid-layer-pattern 'M-||M*' --pipeline-model-parallel-size 3", "a stage without a layer"),
        ("--num-layers 4", "takes its layers from --hybrid-layer-pattern"),
    ],
)
def test_patterns_that_are_not_planned_are_refused(more: str, words: str) -> None:
    with pytest.raises(InvalidProblemError, match=re.escape(words)):
        _of_script(more)


def test_a_number_of_layers_other_than_the_pattern_s_does_nothing() -> None:
    found = _of_script("--hybrid-layer-pattern M-M* --num-layers 24")
    assert found.model.num_layers == 4
    assert any("--num-layers 24 does nothing" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"layer_pattern": "", "moe": None}, "MLPs next to state-space layers"),
        ({"mixer": replace(MAMBA, chunk=256)}, "state-space layers of another form"),
        ({"num_mtp_layers": 1}, "prediction after layers of one block"),
    ],
)
def test_what_megatron_core_does_not_build_is_named(change: dict[str, object], fact: str) -> None:
    model = replace(MODEL, **change)  # type: ignore[arg-type]
    assert fact in lacking_facts(launcher_capabilities("megatron-lm"), model)


@pytest.mark.parametrize(
    "config",
    [
        replace(WHOLE, context_parallel_size=2, data_parallel_size=4, num_microbatches=32),
        replace(WHOLE, zero_stage=3, zero_shard_size=8),
    ],
)
def test_plans_that_such_layers_exclude_are_refused(config: Configuration) -> None:
    with pytest.raises(RefusedExportError):
        _files(config)
