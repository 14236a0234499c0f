"""Transformer Engine keeps the activations of the first layers on the host: written, read and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.check import violations
from meshwright.solver.predict import predict
from meshwright.solver.problem import SearchOptions
from tests.launchers.cases import CASES

LLAMA = CASES["llama-3.1-70b-interleaved"]  # 80 layers
TENSOR = LLAMA.config.tensor_parallel_size
REPLICAS = LLAMA.config.num_gpus // TENSOR


def away(options: dict[str, Any], launcher: str = "megatron-lm", **changes: Any) -> Target:  # noqa: ANN401
    """Llama 70B on tensor and data parallel ranks, with activations on the host."""
    values: dict[str, Any] = {
        "pipeline_parallel_size": 1, "virtual_pipeline_size": 1, "pipeline_schedule": "none",
        "context_parallel_size": 1, "data_parallel_size": REPLICAS, "zero_stage": 1,
        "zero_shard_size": REPLICAS, "stage_layers": (80,), "micro_batch_size": 1, "num_microbatches": 1,
        "recompute_granularity": "none", "recompute_layers": 0, "offload": "activations",
    }  # fmt: skip
    config = replace(LLAMA.config, **(values | changes))
    workload = replace(
        LLAMA.workload, framework_options=options, global_batch_size=config.global_batch_size
    )
    searched = SearchOptions(allow=("offload",), max_out_of_memory_probability=1.0)
    problem = replace(LLAMA.problem, workload=workload, launcher=launcher, options=searched)
    return replace(LLAMA, plan=replace(LLAMA.plan, config=config), problem=problem)


def read(files: dict[str, str], text: str) -> LaunchFile:
    source = Source(name="launch.sh", text=text, files=files)
    return read_launch_files(source, Overrides(model=LLAMA.model))


@pytest.mark.parametrize(
    ("launcher", "written"),
    [
        ("megatron-lm", "--cpu-offloading-num-layers 40"),
        ("megatron-bridge", "model.cpu_offloading_num_layers=40"),
    ],
)
def test_layers_on_the_host_are_read_as_they_were_priced(launcher: str, written: str) -> None:
    found = away({"offload_layers": 40}, launcher)
    files = export(found.plan, found.problem, launcher).files
    assert any(written in text for text in files.values())
    # the inputs of named modules, which need this variable, are another way to offload
    assert not any("NVTE_CPU_OFFLOAD_V1" in text for text in files.values())
    seen = read(files, files["launch.sh"])
    assert seen.configuration == found.config
    assert seen.workload.framework_options["offload_layers"] == 40
    profile = default_profile(found.problem.cluster, launcher)
    again = replace(found.problem, workload=seen.workload)
    assert predict(again, profile, found.config) == predict(found.problem, profile, found.config)


def test_what_stays_on_the_gpu_shrinks_by_the_layers_that_go() -> None:
    few, many = away({"offload_layers": 20}), away({"offload_layers": 60})
    profile = default_profile(few.problem.cluster, "megatron-lm")
    seen = [predict(one.problem, profile, one.config) for one in (few, many)]
    peaks = [max(stage.peak_memory_bytes for stage in one.stages) for one in seen]
    assert peaks[0] > peaks[1]
    assert seen[0].step_time_s <= seen[1].step_time_s


@pytest.mark.parametrize(
    ("options", "changes", "fault"),
    [
        ({"offload_layers": 79}, {}, ""),
        ({"offload_layers": 40, "cuda_graph": "full_iteration"}, {}, ""),
        ({}, {}, "named modules or of some layers"),
        # Megatron-LM d98e8a64, transformer_config.py, raises for each: 1891, 1896, 1884, 2127, 2800
        (
            {"offload_layers": 40},
            {"pipeline_parallel_size": 2, "stage_layers": (40, 40), "data_parallel_size": REPLICAS // 2,
             "zero_shard_size": REPLICAS // 2, "pipeline_schedule": "1f1b", "num_microbatches": 2},
            "pipeline_parallel_size == 1",
        ),
        ({"offload_layers": 40}, {"recompute_granularity": "selective"}, "recompute_granularity == 'none'"),
        ({"offload_layers": 80}, {}, "a model of 80 layers"),
        ({"offload_layers": 40, "offload_modules": "core_attn"}, {}, "offload_modules = core_attn"),
        ({"offload_layers": 40, "cuda_graph": "attn"}, {}, "offload_layers = 40"),
    ],
)  # fmt: skip
def test_layers_on_the_host_exclude_what_megatron_core_refuses(
    options: dict[str, Any], changes: dict[str, Any], fault: str
) -> None:
    found = away(options, **changes)
    profile = default_profile(found.problem.cluster, "megatron-lm")
    faults = "; ".join(violations(found.problem, profile, found.config))
    assert fault in faults
    assert bool(faults) == bool(fault)


@pytest.mark.parametrize(
    "more", ["cpu_offloading_weights=True", "cpu_offloading_activations=False",
             "cpu_offloading_double_buffering=True"],
)  # fmt: skip
def test_other_ways_to_use_the_host_are_refused(more: str) -> None:
    found = away({"offload_layers": 40}, "megatron-bridge")
    files = dict(export(found.plan, found.problem, "megatron-bridge").files)
    switch = "    model.cpu_offloading=true\n"
    assert any(switch in text for text in files.values())
    files = {name: text.replace(switch, f"{switch}    model.{more}\n") for name, text in files.items()}
    with pytest.raises(InvalidProblemError, match=more.partition("=")[0]):
        read(files, files["launch.sh"])


def test_megatron_bridge_offloads_nothing_unless_it_is_switched_on() -> None:
    # Megatron-LM's own arguments.py:1950 sets cpu_offloading from the number; a provider does not
    found = away({"offload_layers": 40}, "megatron-bridge")
    files = dict(export(found.plan, found.problem, "megatron-bridge").files)
    files = {name: text.replace("model.cpu_offloading=true", "") for name, text in files.items()}
    seen = read(files, files["launch.sh"])
    assert seen.configuration.offload == "none"
    assert any("does nothing without model.cpu_offloading=true" in note for note in seen.notes)


@pytest.mark.parametrize("layers", ["0", "3"])
def test_megatron_lm_takes_its_own_default(layers: str) -> None:
    found = away({"offload_layers": 40})
    files = dict(export(found.plan, found.problem, "megatron-lm").files)
    shown = "--cpu-offloading-num-layers 40"
    assert any(shown in text for text in files.values())
    files = {name: text.replace(shown, shown.replace("40", layers)) for name, text in files.items()}
    offload = read(files, files["launch.sh"]).configuration.offload
    assert offload == ("none" if layers == "0" else "activations")


@pytest.mark.parametrize(
    ("text", "offload"), [("maybe", None), ("[true]", None), ("1", "activations"), ("0", "none")]
)
def test_the_switch_of_layers_on_the_hosts_is_a_boolean(text: str, offload: str | None) -> None:
    found = away({"offload_layers": 40}, "megatron-bridge")
    files = dict(export(found.plan, found.problem, "megatron-bridge").files)
    files = {
        name: one.replace("model.cpu_offloading=true", f"model.cpu_offloading={text}")
        for name, one in files.items()
    }
    if offload is not None:
        assert read(files, files["launch.sh"]).configuration.offload == offload
        return
    with pytest.raises(InvalidProblemError, match="neither true nor false"):
        read(files, files["launch.sh"])


@pytest.mark.parametrize("launcher", ["maxtext", "torchtitan", "deepspeed", "ms-swift"])
def test_other_launchers_have_no_setting_for_a_number_of_layers(launcher: str) -> None:
    asked = {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 1},
        "workload": {
            "global_batch_size": 64, "seq_length": 4096, "framework_options": {"offload_layers": 8},
        },
        "search": {"allow": ["offload"]},
        "launcher": launcher,
    }  # fmt: skip
    with pytest.raises(InvalidProblemError, match=f"8, but {launcher} has no setting for it"):
        parse_problem(asked)
    assert parse_problem({**asked, "launcher": "megatron-lm"}).launcher == "megatron-lm"
