"""What is exported is read back as the same run at the same price: any plan of the search's own space."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files, reader_names
from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import optimizer_named
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.price import price
from meshwright.solver.problem import Problem, can_start
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.launcher_rules import problem_faults
from tests.draws import draws, some_of
from tests.launchers.plans import CASES, problem_of, random_targets, target_of_row, tuned

# One of each kind: plain, biases and learned positions, experts, wide heads, latent attention, windows.
MODELS = ("llama-3.1-8b", "gpt-3-175b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "llama-3.1-70b",
          "gpt-oss-20b")  # fmt: skip
# And of each: tied, biases of queries and keys, a window in all layers and in five of six, two norms a
# branch, latent attention beside shared experts; drawn less often.
OTHERS = ("llama-3.2-1b", "qwen2.5-7b", "mistral-7b", "gemma-3-4b", "gemma-2-2b", "moonlight-16b-a3b")
LONG = 131_072
PLANS = draws(1)  # of a launcher and a model
MAIN = {
    "megatron-lm": "launch.sh", "megatron-bridge": "launch.sh", "ms-swift": "launch.sh",
    "deepspeed": "ds_config.json", "accelerate": "accelerate.yaml", "nanotron": "nanotron.yaml",
    "llama-factory": "llama_factory.yaml", "torchtitan": "torchtitan_plan.py",
    "axolotl": "axolotl.yaml", "trl": "trl_sft.yaml",
    "llama-factory-accelerate": "llama_factory_train.yaml",
    "flagscale": "experiment.yaml", "maxtext": "maxtext.yml",
}  # fmt: skip


def source_of(files: dict[str, str], main: str) -> Source:
    return Source(name=main, text=files[main], files=files)


def shape(model: ModelSpec) -> ModelSpec:
    """What every launcher's files tell of a model: not its positions, nor how adapters take its experts."""
    base = model.rotary_base or (None if model.learned_position_embeddings else 10_000)
    moe = model.moe and replace(model.moe, expert_adapters="gate_up", linear_router=False)
    named = replace(model, name="", display_name="", source="", moe=moe)
    return replace(named, max_position_embeddings=1, rotary_base=base)


def priced(problem: Problem, found: Target) -> list[float]:
    """Seconds and bytes of the plan's row, all of them."""
    row = price(problem, Columns.of([found.config]), default_profile(problem.cluster, problem.launcher))
    parts = (getattr(row, one.name) for one in fields(row) if not one.name.endswith("breakdown_s"))
    return [float(np.sum(part)) for part in parts if isinstance(part, np.ndarray)]


def assert_the_same(found: Target, launcher: str, main: str) -> None:
    files = export(found.plan, found.problem, launcher).files
    read = read_launch_files(source_of(files, main))
    assert read.launcher == launcher
    planned = found.config
    if optimizer_named(found.workload.optimizer).paged:  # the driver moves pages: no file says where
        assert read.configuration is not None
        planned = replace(planned, offload=read.configuration.offload)
    assert read.configuration == planned
    assert read.workload == found.workload
    model = found.model
    if launcher == "torchtitan" and model.moe:  # which balances by a bias, and has a warning for it
        model = replace(model, moe=replace(model.moe, balance_coefficient=0.0, balanced_by_sequence=False))
    assert shape(read.model) == shape(model)
    assert read.unread == ()
    nodes = (None, None) if found.config.is_placed else (found.num_nodes, found.gpus_per_node)
    assert (read.num_nodes, read.gpus_per_node) == nodes  # of each node group, where stages are placed
    again = replace(found.problem, model=read.model, workload=read.workload)
    assert priced(again, found) == priced(found.problem, found)


@pytest.mark.parametrize(("launcher", "name"), some_of([*product(launcher_names(), MODELS)], each=4))
def test_any_plan_of_the_search_is_exported_and_read_unchanged(launcher: str, name: str) -> None:
    problem = problem_of(launcher, find_model(name), seq_length=2048, num_nodes=2)
    if list(problem_faults(problem, launcher_capabilities(launcher))):
        assert not list(random_targets(problem, 1, random.Random(0)))
        return
    for found in random_targets(problem, PLANS, random.Random(f"{launcher} {name}")):
        assert_the_same(found, launcher, MAIN[launcher])


@pytest.mark.parametrize("launcher", launcher_names())
def test_plans_of_other_models_and_of_long_sequences_are_read_unchanged(launcher: str) -> None:
    tried = 0
    for name, seq_length in (*((name, 2048) for name in OTHERS), ("llama-3.1-8b", LONG)):
        problem = problem_of(launcher, find_model(name), seq_length=seq_length, num_nodes=2)
        for found in random_targets(problem, PLANS, random.Random(f"{launcher} {name}")):
            assert_the_same(found, launcher, MAIN[launcher])
            tried += 1
    assert tried >= PLANS  # of one model of nanotron's


@pytest.mark.parametrize("launcher", launcher_names())
def test_adapters_and_small_moments_are_read_unchanged(launcher: str) -> None:
    able = find_cluster("dgx-b200", num_nodes=1)  # of products in every precision
    for found in tuned(launcher):
        there = replace(found, problem=replace(found.problem, cluster=able))
        assert_the_same(there, launcher, MAIN[launcher])


@pytest.mark.parametrize("launcher", launcher_names())
def test_drawn_fine_tunings_are_read_unchanged(launcher: str) -> None:
    rng, able = random.Random(f"fine-tuning {launcher}"), launcher_capabilities(launcher)
    single = "single" in able.adapters
    targets = ("q_proj", "v_proj", "o_proj") if single else ("linear_qkv", "linear_proj")
    tried = 0
    for _ in range(40 * PLANS):
        adapted = bool(able.adapters) and rng.random() < 0.7
        frozen = {
            "lora_rank": rng.choice((4, 64)),
            "lora_targets": targets[: rng.randint(1, len(targets))],
            "base_precision": rng.choice(able.base_precisions),
            "trained_modules": rng.choice(((), ("embed_tokens", "lm_head"))) if single else (),
        }
        problem = problem_of(launcher, find_model(rng.choice((*MODELS, *OTHERS))), num_nodes=1)
        workload = replace(
            problem.workload,
            precision=rng.choice(("bf16", "fp16")),
            optimizer=rng.choice(able.optimizers or ("adamw",)),
            **(frozen if adapted else {}),  # type: ignore[arg-type]
        )
        low_rank = optimizer_named(workload.optimizer).low_rank  # files state a rank
        workload = replace(workload, optimizer_rank=64 * low_rank)
        problem = replace(problem, workload=workload)
        if tried < 3 * PLANS and not list(problem_faults(problem, able)):
            for found in random_targets(problem, 1, rng):
                assert_the_same(found, launcher, MAIN[launcher])
                tried += 1
    assert tried >= PLANS


@pytest.mark.parametrize("launcher", launcher_names())
def test_one_rank_with_a_zero_stage_is_read_unchanged(launcher: str) -> None:
    # 8 GPUs, all of them of one replica where the launcher splits layers or stages, and one GPU alone.
    plain, able = (
        problem_of(launcher, find_model("llama-3.1-8b"), num_nodes=1),
        launcher_capabilities(launcher),
    )
    for gpus in (8, 1):
        options = replace(
            plain.options, allow=("offload",), num_gpus=(gpus,),
            pin={"data_parallel_size": 1, "context_parallel_size": 1},
        )  # fmt: skip
        rows = enumerate_space(replace(plain, options=options), legal_only=True).rows
        columns = rows.take(np.arange(len(rows)))
        for stage in {*able.zero_stages} - {0}:
            for word in np.unique(columns.offload[columns.zero_stage == stage]).tolist():
                which = np.flatnonzero((columns.zero_stage == stage) & (columns.offload == word))[:1]
                found = target_of_row(
                    replace(plain, options=options), columns.take(which), 0, random.Random(1)
                )
                assert found.config.zero_stage == stage
                assert found.config.zero_shard_size == 1
                assert_the_same(found, launcher, MAIN[launcher])


def test_every_launcher_that_is_exported_to_is_read() -> None:
    assert launcher_names() == tuple(sorted(MAIN))
    assert set(launcher_names()) <= set(reader_names())


@pytest.mark.parametrize(
    ("launcher", "name"), [(launcher, name) for launcher, cases in CASES.items() for name in cases]
)
def test_the_plans_of_the_golden_files_are_read_unchanged(launcher: str, name: str) -> None:
    assert_the_same(CASES[launcher][name], launcher, MAIN[launcher])


@pytest.mark.parametrize("launcher", launcher_names())
def test_offloaded_plans_are_read_unchanged(launcher: str) -> None:
    problem = problem_of(launcher, find_model("llama-3.1-8b"), seq_length=2048, num_nodes=2)
    problem = replace(problem, options=replace(problem.options, allow=("offload",)))
    for found in random_targets(problem, PLANS, random.Random(launcher)):
        assert_the_same(found, launcher, MAIN[launcher])


@pytest.mark.parametrize(
    ("launcher", "gpus"), some_of([*product(launcher_names(), (1, 6, 12, 16))], each=2)
)
def test_every_exported_file_leads_to_the_plan_when_it_is_read_alone_in_its_folder(
    launcher: str, gpus: int
) -> None:
    model = find_model("llama-3-70b" if launcher == "nanotron" else "llama-3.1-8b")
    problem = problem_of(launcher, model, seq_length=2048, num_nodes=2, batch=48)
    problem = replace(problem, options=replace(problem.options, num_gpus=(gpus,)))
    for found in random_targets(problem, PLANS, random.Random(f"{launcher} {gpus}")):
        if not can_start(problem, gpus):
            continue
        files = export(found.plan, problem, launcher).files
        for name in files.keys() - {"README.md", "hosts.txt"}:
            read = read_launch_files(Source(name=name, text=files[name], include=files.get))
            assert (read.launcher, read.configuration) == (launcher, found.config), name
            assert read.started_gpus == gpus


def test_a_script_of_the_users_own_starts_an_exported_file_otherwise() -> None:
    found = CASES["trl"]["llama-3.1-70b-fsdp"]
    files = export(found.plan, found.problem, "trl").files
    own = "accelerate launch --num_processes 8 -m trl.scripts.sft --config trl_sft.yaml\n"
    given = {"mine.sh": own, "trl_sft.yaml": files["trl_sft.yaml"]}
    source = Source(name="trl_sft.yaml", text=files["trl_sft.yaml"], files=given, include=files.get)
    assert read_launch_files(source, Overrides(model=found.model)).started_gpus == 8


@pytest.mark.parametrize(
    ("launcher", "main"),
    [
        ("torchtitan", "launch.sh"),
        ("deepspeed", "launch.sh"),
        ("accelerate", "launch.sh"),
        ("axolotl", "launch.sh"),
        ("trl", "launch.sh"),
        ("trl", "accelerate.yaml"),
        ("llama-factory-accelerate", "launch.sh"),
        ("llama-factory-accelerate", "accelerate.yaml"),
        ("nanotron", "launch.sh"),
        ("maxtext", "launch.sh"),
        ("llama-factory", "launch.sh"),
    ],
)
def test_the_script_that_starts_a_file_leads_to_it(launcher: str, main: str) -> None:
    found = next(iter(CASES[launcher].values()))
    assert_the_same(found, launcher, main)
