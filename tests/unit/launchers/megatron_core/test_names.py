"""What is priced is what runs: every switch of a plan, written and read back, has the same price."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.launchers.megatron_core.names import refused_flags, table
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.profile import default_profile, framework_of
from meshwright.profiles.switches import Setting, switches
from meshwright.solver.predict import predict
from meshwright.solver.problem import Workload
from tests.launchers.cases import CASES
from tests.launchers.plans import CASES as OTHERS

MIXTRAL = CASES["mixtral-8x7b-overlapped"]
DEEPSEEK = CASES["deepseek-v3-experts"]
LLAMA = CASES["llama-3.1-70b-interleaved"]
TRAINERS = ("axolotl", "llama-factory-accelerate", "trl")
Options = dict[str, str | int | float | bool]
OPTIONS: dict[str, tuple[Target, Options]] = {
    "flash attention": (LLAMA, {"attention_kernel": "flash2"}),
    "unfused attention": (LLAMA, {"attention_kernel": "megatron-fused"}),
    "graphs of layers": (LLAMA, {"cuda_graph": "layer"}),
    "graphs of attention and router": (MIXTRAL, {"cuda_graph": "attn+moe_router"}),
    "graphs of whole steps": (LLAMA, {"cuda_graph": "full_iteration"}),
    "tokens gathered": (DEEPSEEK, {"moe_dispatcher": "allgather"}),
    "DeepEP": (DEEPSEEK, {"moe_dispatcher": "deepep"}),
    "HybridEP": (DEEPSEEK, {"moe_dispatcher": "hybridep", "moe_permute_fusion": True}),
    "forced balance": (DEEPSEEK, {"moe_force_balance": True}),
    "dropped tokens": (DEEPSEEK, {"moe_capacity_factor": 1.25}),
    "shared experts under exchanges": (DEEPSEEK, {"shared_expert_overlap": True}),
    "overlapped experts": (MIXTRAL, {"overlap_experts": True, "delay_wgrad": True}),
    "kernels apart": (LLAMA, {"elementwise_fused": False}),
    "recomputed modules": (DEEPSEEK, {"recompute_modules": "layernorm+moe_act"}),
    "gradients in 2 bytes": (LLAMA, {"gradient_dtype": "bf16"}),
    "a fused loss": (LLAMA, {"loss_fused": True}),
    "dropout": (LLAMA, {"dropout": True}),
    "reduction after the step": (LLAMA, {"overlap_gradients": False}),
    "collectives next to products": (LLAMA, {"overlap_tensor": False}),
    "transfers next to computing": (LLAMA, {"overlap_transfer": False}),
}
LAUNCHERS = ("megatron-lm", "megatron-bridge", "ms-swift", "llama-factory")
# What a launcher has no name for; its file says so in a warning.
LACKING = {
    ("megatron-bridge", "unfused attention"), ("megatron-bridge", "flash attention"),
    ("llama-factory", "unfused attention"), ("llama-factory", "flash attention"),
}  # fmt: skip
REFUSED = (
    ("llama-factory", "gradients in 2 bytes"),  # training_args.py: bf16 accumulates in fp32
    ("ms-swift", "tokens gathered"),  # its sequences may differ, which Megatron-Core refuses next to them
    # whose own training loops capture no graphs; Megatron-LM's does
    *(
        (launcher, f"graphs of {what}")
        for launcher in ("ms-swift", "llama-factory")
        for what in ("layers", "attention and router", "whole steps")
    ),
)


def asked(found: Target, launcher: str, options: Options) -> Target:
    workload = replace(found.workload, framework_options=options)
    problem = replace(found.problem, workload=workload, launcher=launcher)
    config = found.config
    if "recompute_modules" in options:
        config = replace(config, recompute_granularity="selective", recompute_layers=0)
    if "offload_modules" in options:
        config = replace(config, offload="activations")
    if "optimizer_offload_fraction" in options:
        config = replace(config, offload="optimizer")
    return replace(found, plan=replace(found.plan, config=config), problem=problem)


def read_back(found: Target, launcher: str) -> LaunchFile:
    files = export(found.plan, found.problem, launcher).files
    source = Source(name="launch.sh", text=files["launch.sh"], files=files)
    return read_launch_files(source, Overrides(model=found.model))


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_switch_is_read_as_it_was_priced(launcher: str, name: str) -> None:
    case, options = OPTIONS[name]
    if "overlap_experts" in options and not launcher_capabilities(launcher).overlaps_experts:
        return  # refused before it is priced
    found = asked(case, launcher, options)
    if (launcher, name) in REFUSED:
        with pytest.raises(RefusedExportError):
            export(found.plan, found.problem, launcher)
        return
    read = read_back(found, launcher)
    known = framework_facts(framework_of(launcher))
    priced, runs = (with_options(known, one.workload.framework_options) for one in (found, read))
    wrong = {name for name in options if getattr(priced, name) != getattr(runs, name)}
    assert wrong == (set(options) if (launcher, name) in LACKING else set())
    assert read.configuration == found.config
    if (launcher, name) not in LACKING:
        assert step_s(read.workload, found) == step_s(found.workload, found)


@pytest.mark.parametrize("launcher", ["ms-swift", "llama-factory"])
def test_graphs_that_no_loop_captures_are_read_as_none(launcher: str) -> None:
    # Megatron-LM's megatron/training/training.py captures them, which these launchers do not run
    files = dict(export(LLAMA.plan, replace(LLAMA.problem, launcher=launcher), launcher).files)

    def written(impl: str, scope: str) -> LaunchFile:
        if launcher == "ms-swift":
            more = f'{{"cuda_graph_impl": "{impl}", "cuda_graph_scope": ["{scope}"]}}'
            name, text = "plan_args.sh", f"PLAN_ARGS=(\n    --megatron_extra_kwargs '{more}'"
            text = files[name].replace("PLAN_ARGS=(", text)
        else:
            name = "llama_factory.yaml"
            text = f"{files[name]}\ncuda_graph_impl: {impl}\ncuda_graph_scope: {scope}\n"
        source = Source(name="launch.sh", text=files["launch.sh"], files={**files, name: text})
        return read_launch_files(source, Overrides(model=LLAMA.model))

    for impl, scope in (("transformer_engine", "attn"), ("local", "full_iteration")):
        found = written(impl, scope)
        assert "cuda_graph" not in found.workload.framework_options
        assert any("own training loop captures no graphs" in note for note in found.notes)
    with pytest.raises(
        InvalidProblemError, match=f"of Megatron-Core alone are not supported under {launcher}"
    ):
        written("local", "attn")


SETTINGS = [
    pytest.param(launcher, one, id=f"{launcher}-{one.switch}-{one.name}")
    for switch in switches().values()
    for one in switch.settings
    # torchtitan and DeepSpeed have configurations of other names
    for launcher in sorted({*one.launchers} - {"torchtitan", "deepspeed"})
    # read with lengths: test_dynamic_context.py; of one stage: test_priced_is_exported.py; set by no file
    # of adapters on experts in 4 bits, which no case here has: axolotl/test_read.py
    if switch.name
    not in ("dynamic_context_parallel", "reduce_bucket", "power_limit_w", "quantizes_experts")
]


@pytest.mark.parametrize(("launcher", "setting"), SETTINGS)
def test_every_setting_that_a_search_may_choose_is_read_as_it_was_priced(
    launcher: str, setting: Setting
) -> None:
    own = OTHERS[launcher].values() if launcher in TRAINERS else (LLAMA, DEEPSEEK, MIXTRAL)
    case = next(case for case in own if not setting.fault(case.model, case.gpu))
    if setting.options.get("overlap_experts"):
        case = MIXTRAL  # whose plan has chunks
    if "cuda_graph" in setting.options:  # of parts of a step: no layer is recomputed whole
        plain = replace(case.config, recompute_granularity="none", recompute_layers=0)
        case = replace(case, plan=replace(case.plan, config=plain))
    found = asked(case, launcher, dict(setting.options))
    read = read_back(found, launcher)
    known = framework_facts(framework_of(launcher))
    priced, runs = (with_options(known, one.workload.framework_options) for one in (found, read))
    assert {name for name in setting.options if getattr(priced, name) != getattr(runs, name)} == set()
    assert read.configuration == found.config
    assert step_s(read.workload, found) == step_s(found.workload, found)


def step_s(workload: Workload, found: Target) -> float:
    problem = replace(found.problem, workload=workload)
    return predict(problem, default_profile(problem.cluster, problem.launcher), found.config).step_time_s


def test_every_flag_that_an_export_refuses_is_refused_by_the_table() -> None:
    own = {name.removeprefix("--").replace("-", "_") for name in refused_flags()}
    assert {row.role for name, row in table().items() if name in own} == {"refused"}
    assert "--fp4-param-gather" in refused_flags()
