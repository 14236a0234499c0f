"""The rules of the search and the check, which share no code, refuse the same configurations.

Legal rows of each request have one or two values changed, so that most break one rule. The requests are
drawn, are plain ones for models and launchers of the catalog, and state what a single rule is about.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.library import model_names
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.check import violations_of_all
from meshwright.solver.configuration import ALL_LAYERS, RECOMPUTE, VARIABLE_OF, Columns, Configuration
from meshwright.solver.problem import Problem, usable_gpus
from meshwright.solver.space.enumerate import sampled_space
from meshwright.solver.space.rules import rules_of, violation_masks
from meshwright.solver.splits import usual_split
from tests.builders import a_cluster, a_model, a_problem
from tests.draws import TIMES, draws
from tests.problems.combined_requests import a_combined_request, accepted

ROWS = 80
OPEN = ("offload", "context_parallel_mode", "weight_shards")
FULL = RECOMPUTE.index("full")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*xh100.json"))
DENSE = a_model(
    num_layers=8, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16, num_kv_heads=4,
    head_dim=64, vocab_size=32000,
)  # fmt: skip
EXPERTS = replace(DENSE, name="mixture", moe=MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=1024))
OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"secondary_shard_size": 4},
    {"quantized_reductions": True},
    {"optimizer_offload_fraction": 0.5},
    {"super_offload": True},
    {"cpu_update_interval": 4},
    {"cpu_update_interval": 4, "super_offload": True},
    {"cpu_update_interval": 4, "optimizer_offload_fraction": 0.5},
    {"dynamic_context_parallel": True},
    {"moe_dispatcher": "deepep"},
)
WORK: tuple[Mapping[str, Any], ...] = (
    {"optimizer": "sgd-momentum", "framework_options": {"cpu_update_interval": 4}},
    {"optimizer": "adamw-bf16", "framework_options": {"super_offload": True}},
    {"lora_rank": 16},
    {"lora_rank": 16, "base_precision": "nf4"},
    {"precision": "fp32"},
    {"precision": "fp8"},
)


def near(problem: Problem, legal: Columns, random: Random) -> Columns:
    """Return legal rows with one or two values changed, as far as a row can have them."""
    rows = legal.take(np.array(random.choices(range(len(legal)), k=ROWS)))
    values = {name: getattr(rows, name).copy() for name in VARIABLE_OF}
    for at in range(ROWS):
        for name in random.sample(list(values), random.choice((0, 1, 1, 2))):
            values[name][at] = drawn(random, name)
    return settled(problem, Columns(**values))


def drawn(random: Random, name: str) -> int:
    """Draw a value that the variable can have in some row."""
    if name == "recompute_layers":
        return random.choice((0, 1, 2, ALL_LAYERS))
    variable = VARIABLE_OF[name]
    if variable.is_integer:
        return random.choice((0, 1, 2, 3) if variable.least == 0 else (1, 2, 3, 4, 8))
    return random.randrange(len(variable.words) or 2)


def settled(problem: Problem, rows: Columns) -> Columns:
    """Return the rows as a space holds them: values that mean nothing next to the others are reset."""
    chunks, layers = rows.pipeline_parallel_size * rows.virtual_pipeline_size, rows.recompute_layers
    every = (layers == 0) | (layers * chunks == problem.model.num_layers)
    layers = np.where(rows.recompute == FULL, np.where(every, ALL_LAYERS, layers), 0)
    return replace(
        rows,
        recompute_layers=layers,
        zero_shard_size=np.where(rows.zero_stage > 0, rows.zero_shard_size, 1),
        sequence_parallel=rows.sequence_parallel * (rows.tensor_parallel_size > 1),
        offload=rows.offload * ("offload" in problem.options.allow),
    )


def configured(problem: Problem, rows: Columns, at: int) -> Configuration:
    """Return the configuration of a row, with its launcher's split."""
    plain = rows.configuration(at, (problem.model.num_layers,))
    return replace(plain, stage_layers=usual_split(problem, plain))


def judged(problem: Problem, seed: int) -> list[str]:
    """Return where the two verdicts on a configuration differ."""
    random, rules = Random(seed), rules_of(problem)
    legal = sampled_space(problem).columns
    legal = legal if len(legal) else Columns.of([Configuration(stage_layers=(1,))])
    rows = near(problem, legal, random)
    rows = rows.take(rows.num_gpus <= usable_gpus(problem))
    masks = [int(mask) for mask in violation_masks(rules, rows)]
    configs = [configured(problem, rows, at) for at in range(len(rows))]
    profile = default_profile(problem.cluster, problem.priced_as)
    found = []
    for mask, faults, config in zip(
        masks, violations_of_all(problem, profile, configs), configs, strict=True
    ):
        known = [one for one in faults if "bytes, the budget is" not in one]  # no rule prices a row
        if bool(mask) != bool(known):
            broken = [rule.name for bit, rule in enumerate(rules) if mask >> bit & 1]
            found.append(f"rules: {broken}; check: {known}; {config}")
    return found


def stated(launcher: str, model: ModelSpec = DENSE, **work: Any) -> Problem:  # noqa: ANN401
    """Return a request on 16 GPUs that leaves open what it can."""
    found = a_problem(model=model, cluster=a_cluster(num_nodes=2), batch=16, allow=OPEN)
    return replace(found, launcher=launcher, workload=replace(found.workload, **work))


@pytest.mark.parametrize("launcher", launcher_names())
def test_rules_and_check_refuse_the_same_configurations_of_a_launcher(launcher: str) -> None:
    for seed, model in enumerate((DENSE, EXPERTS)):
        assert judged(stated(launcher, model), seed) == []


@pytest.mark.parametrize("launcher", ["none", "deepspeed", "megatron-lm"])
def test_rules_and_check_refuse_the_same_configurations_with_an_option(launcher: str) -> None:
    for seed, options in enumerate(OPTIONS):
        model = EXPERTS if "moe_dispatcher" in options else DENSE
        assert judged(stated(launcher, model, framework_options=options), seed) == [], options
    for seed, work in enumerate(WORK):
        assert judged(stated(launcher, **work), seed) == [], work


@pytest.mark.parametrize("launcher", ["none", "megatron-lm", "megatron-bridge"])
def test_rules_and_check_refuse_the_same_configurations_in_four_and_eight_bits(launcher: str) -> None:
    for precision, options in (
        ("nvfp4", {}), ("mxfp8", {}), ("mxfp8", {"low_precision_weights": True})
    ):  # fmt: skip
        request = {
            "model": {"name": "llama-3.1-8b"}, "launcher": launcher, "search": {"allow": [*OPEN]},
            "cluster": {"groups": [{"gpu": "b200-sxm-180gb", "num_nodes": 2, "gpus_per_node": 8}]},
            "workload": {"global_batch_size": 16, "seq_length": 4096, "precision": precision,
                         "framework_options": options},
        }  # fmt: skip
        assert judged(parse_problem(request), 0) == [], (precision, options)


@pytest.mark.parametrize("part", range(4))
def test_rules_and_check_refuse_the_same_configurations_of_models_of_the_catalog(part: int) -> None:
    """Every sixteenth model every day, every eighth where more is drawn."""
    launchers = launcher_names()
    for seed, name in enumerate(model_names()[part :: 64 if TIMES == 1 else 32]):
        request = {
            "model": {"name": name}, "cluster": {"name": "dgx-h100", "num_nodes": 2 + 2 * part},
            "workload": {"global_batch_size": 96, "seq_length": 4096},
            "launcher": launchers[(seed + 5 * part) % len(launchers)] if part else "none",
            "search": {"allow": [*OPEN]},
        }  # fmt: skip
        assert judged(parse_problem(accepted(request)), seed) == [], name


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_rules_and_check_refuse_the_same_configurations_of_the_examples(path: Path) -> None:
    assert judged(parse_problem(json.loads(path.read_text(encoding="utf-8"))), 0) == []


@pytest.mark.parametrize("seed", range(draws(7, of_more=40)))
def test_rules_and_check_refuse_the_same_configurations_of_a_drawn_request(seed: int) -> None:
    request = a_combined_request(seed)
    if len(request["cluster"].get("groups", ())) == 1:
        assert judged(parse_problem(request), seed) == []
