"""All-to-alls of experts under computing: priced and written only where Megatron-LM starts with them."""

from dataclasses import replace

import pytest

from meshwright.launchers.reading.base import LaunchFile, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from tests.launchers.cases import CASES

FLAG = "--overlap-moe-expert-parallel-comm"
PLANNED = CASES["mixtral-8x7b-overlapped"]
PLAIN = replace(PLANNED.config, virtual_pipeline_size=1, pipeline_schedule="1f1b", stage_layers=(16, 16))
# What TransformerConfig.__post_init__ refuses next to the flag (Megatron-Core 0.16.1, lines 1857 to 1879).
REFUSED = {
    "plain stages": PLAIN,
    "full recomputation": replace(PLANNED.config, recompute_granularity="full", recompute_layers=32),
    "experts on one rank": replace(PLANNED.config, expert_parallel_size=1),
}
OPTION = "/workload/framework_options/overlap_experts"


def told(config: Configuration, *, overlap: bool) -> Target:
    workload = replace(PLANNED.workload, framework_options={"overlap_experts": overlap})
    problem = replace(PLANNED.problem, workload=workload, launcher="megatron-lm")
    return replace(PLANNED, plan=replace(PLANNED.plan, config=config), problem=problem)


def step_s(config: Configuration, *, overlap: bool) -> float:
    found = told(config, overlap=overlap).problem
    return predict(found, default_profile(found.cluster, "megatron-lm"), config).step_time_s


def written(config: Configuration) -> dict[str, str]:
    found = told(config, overlap=True)
    return export(found.plan, found.problem, "megatron-lm").files


def test_a_plan_that_may_overlap_is_faster_and_says_so_in_its_files() -> None:
    # of four sequences at a time: two bind launches, of which pieces that overlap have more
    large = replace(PLANNED.config, micro_batch_size=4, num_microbatches=8)
    assert step_s(large, overlap=True) < 0.99 * step_s(large, overlap=False)
    files = written(PLANNED.config)
    assert FLAG in files["megatron_args.sh"]
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=32" in files["launch.sh"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_that_may_not_overlap_is_neither_priced_nor_written_so(name: str) -> None:
    config = REFUSED[name]
    assert step_s(config, overlap=True) == step_s(config, overlap=False)
    assert FLAG not in written(config)["megatron_args.sh"]


@pytest.mark.parametrize("launcher", ["megatron-lm", "megatron-bridge"])
def test_files_that_cannot_overlap_as_requested_warn_with_the_rule(launcher: str) -> None:
    def warned(config: Configuration) -> list[str]:
        found = told(config, overlap=True)
        said = export(found.plan, replace(found.problem, launcher=launcher), launcher).warnings
        return [one for one in said if one.startswith("overlap_experts is on")]

    assert warned(PLANNED.config) == []
    rules = {"plain stages": "virtual_pipeline_size", "full recomputation": "recompute_granularity",
             "experts on one rank": "expert_parallel_size"}  # fmt: skip
    for name, config in REFUSED.items():
        (said,) = warned(config)
        assert rules[name] in said


def test_delayed_weight_gradients_are_read_beside_overlapped_experts() -> None:
    """``delay_wgrad_compute`` (Megatron-Core 0.19.2, transformer_config.py:2748) needs the overlap."""
    files = written(PLANNED.config)
    assert "delay-wgrad-compute" not in files["megatron_args.sh"]
    edited = files["megatron_args.sh"].replace(f"    {FLAG}\n", f"    {FLAG}\n    --delay-wgrad-compute\n")
    both = {**files, "megatron_args.sh": edited}
    found = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=both))
    assert found.workload.framework_options["delay_wgrad"] is True


def test_overlapped_experts_are_read_back_and_refused_beside_what_megatron_lm_refuses() -> None:
    files = written(PLANNED.config)

    def read(arguments: str) -> LaunchFile:
        both = {**files, "megatron_args.sh": arguments}
        return read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=both))

    plain = files["megatron_args.sh"]
    assert read(plain) != read(plain.replace(f"    {FLAG}\n", ""))
    method = "--recompute-method uniform --recompute-num-layers 1"
    for more in (f"--recompute-granularity full {method}", method):
        with pytest.raises(InvalidProblemError, match="contradicts full recomputation"):
            read(plain.replace("--bf16\n", f"--bf16\n    {more}\n"))
    with pytest.raises(InvalidProblemError, match="needs --moe-token-dispatcher-type"):
        read(plain.replace("alltoall", "allgather"))


def read_from_bridge(config: Configuration, options: dict[str, bool]) -> dict[str, object]:
    """The options that are read from what Megatron-Bridge, which overlaps where asked, is given."""
    found = told(config, overlap=False)
    workload = replace(found.workload, framework_options=options)
    problem = replace(found.problem, workload=workload, launcher="megatron-bridge")
    files = export(found.plan, problem, "megatron-bridge").files
    read = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))
    return dict(read.workload.framework_options)


def test_megatron_bridge_files_tell_of_overlap_only_where_the_plan_may_overlap() -> None:
    assert read_from_bridge(PLANNED.config, {}) == {}
    assert read_from_bridge(PLANNED.config, {"overlap_experts": True}) == {"overlap_experts": True}
    assert read_from_bridge(PLAIN, {}) == {}
    # priced and written alike with and without it, so nothing is said
    assert read_from_bridge(PLAIN, {"overlap_experts": True}) == {}


def asked(launcher: str, option: str = "overlap_experts", **changes: object) -> list[tuple[str, str]]:
    """Pointers and messages of what is wrong with a request for overlapped experts, or another option."""
    raw = {
        "model": {"name": "mixtral-8x7b"}, "cluster": {"name": "dgx-h100", "num_nodes": 8},
        "launcher": launcher,
        "workload": {"global_batch_size": 256, "seq_length": 4096, "framework_options": {option: True}},
        **changes,
    }  # fmt: skip
    try:
        parse_problem(raw)
    except InvalidProblemError as fault:
        return [(one.pointer, one.message) for one in fault.errors]
    return []


@pytest.mark.parametrize("launcher", ["deepspeed", "ms-swift", "llama-factory"])
def test_launchers_that_do_not_overlap_experts_refuse_the_option_by_name(launcher: str) -> None:
    assert (OPTION, f"{launcher} does not overlap the all-to-alls of experts") in asked(launcher)


@pytest.mark.parametrize("launcher", ["accelerate", "trl", "deepspeed", "nanotron"])
def test_only_launchers_whose_files_say_so_have_collectives_under_products(launcher: str) -> None:
    message = f"true, but {launcher}'s launch files have no setting for it"
    (fault,) = asked(launcher, "overlap_tensor", model={"name": "llama-2-7b"})
    assert fault == ("/workload/framework_options/overlap_tensor", message)
    assert asked("torchtitan", "overlap_tensor", model={"name": "llama-2-7b"}) == []


def test_a_pin_that_excludes_overlapped_experts_is_refused() -> None:
    assert asked("megatron-lm") == asked("megatron-bridge") == []
    (fault,) = asked("megatron-lm", search={"pin": {"recompute_granularity": "full"}})
    assert fault == (OPTION, "recompute_granularity full (pinned) excludes it")
    (fault,) = asked("megatron-lm", search={"pin": {"expert_parallel_size": 1}})
    assert fault == (OPTION, "expert_parallel_size 1 (pinned) has no all-to-alls")


def test_a_model_without_experts_has_none_to_overlap() -> None:
    (fault,) = asked("megatron-lm", model={"name": "llama-3.1-8b"})
    assert fault == (OPTION, "a model without experts has none to overlap")
