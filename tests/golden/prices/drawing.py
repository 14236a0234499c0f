"""``python -m tests.golden.prices.drawing``: draw the cases of ``test_prices.py`` anew, by a fixed seed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from meshwright.profiles.frameworks import OPTION_PARTS, framework_facts, framework_names
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.check import violations
from meshwright.solver.configuration import (
    PLACED_ONLY,
    VARIABLES,
    Columns,
    Configuration,
    StageGroup,
    joined,
    settled_on_groups,
)
from meshwright.solver.problem import Problem
from meshwright.solver.space.enumerate import sampled_space
from meshwright.solver.splits import even_split, usual_split
from tests.golden.prices.test_prices import CASES, REQUESTS, priced, written
from tests.problems.combined_requests import (
    ALLOWED,
    OBJECTIVES,
    a_combined_request,
    accepted,
    framework_option,
)

ROOT = Path(__file__).parents[3]
MODELS = (
    "llama-3.1-8b", "gpt2", "gpt-3-175b", "bloom-3b", "opt-6.7b", "falcon-40b", "mpt-7b", "gpt-j-6b",
    "gemma-2-2b", "gemma-3-4b", "gemma-3n-e2b", "gemma-4-e2b", "olmo-2-7b", "command-r-35b", "minicpm3-4b",
    "qwen3-30b-a3b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "deepseek-v3", "deepseek-v3.2", "gpt-oss-20b",
    "olmoe-1b-7b", "mixtral-8x7b", "phi-3.5-moe", "glm-4.5-air", "llama-4-scout", "minimax-m2.5", "dbrx",
    "mimo-v2-flash", "ernie-4.5-21b-a3b", "gemma-4-26b-a4b",
)  # fmt: skip
# Kinds of layers that no model of the catalog has, by the defaults of transformers' classes.
KINDS: tuple[dict[str, Any], ...] = (
    {"model_type": "qwen3_next", "num_hidden_layers": 8},
    {"model_type": "qwen3_5_moe_text", "num_hidden_layers": 8},
    {"model_type": "nemotron_h"},
    {"model_type": "granitemoehybrid"},
    {"model_type": "bamba"},
    {"model_type": "minimax"},
    *(
        json.loads((ROOT / "examples" / f"{name}.json").read_text())["model"]
        for name in (
            "qwen3-vl-8b-8xh100", "qwen3-vl-8b-8xh100", "qwen3-vl-8b-8xh100", "jamba-v0.1-32xh100",
            "mamba2-7b-8xh100", "falcon-h1-34b-64xh100", "flux.1-dev-8xh100", "wan2.1-14b-32xh100",
            "kimi-linear-48b-64xh100",
        )
    ),
)  # fmt: skip
EACH = 3


def drawn() -> list[dict[str, Any]]:
    """Requests that leave configurations to choose from, each with some of them and their prices."""
    cases = list[dict[str, Any]]()
    for seed in range(10**6):
        if len(cases) == REQUESTS:
            return cases
        random = Random(seed)
        model = random.choice((*KINDS, *({"name": name} for name in MODELS)))
        if (case := _case(seed, random, model)) is not None:
            cases.append(case)
    raise AssertionError


def _case(seed: int, random: Random, model: dict[str, Any]) -> dict[str, Any] | None:
    """A request for ``model`` with legal configurations of it; None: it has none."""
    request = a_combined_request(seed) | {"model": model}
    options = dict(_option(random) for _ in range(4))
    if random.random() < 0.3:  # modules that are recomputed or offloaded count in few rows
        options |= dict(_parts_of(random, name) for name in ("recompute_modules", "offload_modules"))
    request["workload"] |= {"framework_options": options, "seq_length": random.choice((1024, 8192))}
    if random.random() < 0.2:
        base = random.choice(("bf16", "nf4", "int8"))
        request["workload"] |= {"lora_rank": 16, "base_precision": base, "precision": "bf16"}
        request["launcher"] = random.choice(("trl", "none"))
    if "vision_config" in model:
        request["workload"] |= {"images_per_sample": 2.0, "image_tokens": 256}
    request["search"] = {
        "allow": random.sample((*ALLOWED, "weight_shards", "offload"), 3),
        "gpu_hour_price": 2.5,
        "grid_co2_g_per_kwh": 380.0,
    }
    group, *others = request["cluster"]["groups"]
    if not others and group["num_nodes"] > 1 and random.random() < 0.4:
        group["links"] = _links(random, group["num_nodes"])
    else:  # where links differ, plans are ranked by their step
        request["search"] |= {"objective": random.choice(OBJECTIVES), "deadline_days": 30.0}
    try:
        problem = parse_problem(accepted(request))
    except (AssertionError, KeyError):  # what is refused cannot be left out
        return None
    if problem.cluster.num_gpus < 8:
        return None
    rows = sampled_space(problem).columns
    if not len(rows):
        return None
    configs = [_row(problem, rows, _chosen(random, rows)) for _ in range(EACH)]
    if problem.places_stages:
        configs = [one for one in (_placed(random, problem, one) for one in configs * 20) if one][:EACH]
    if not configs:
        return None
    case = {
        "name": f"{problem.model.name}-{seed}",
        "request": problem_to_mapping(problem),
        "configurations": [asdict(one) for one in configs],
    }
    return {**case, "prices": priced(case)}


def _links(random: Random, nodes: int) -> dict[str, Any]:
    """Links between nodes that differ: rates, and now and then latencies, switches and an order."""
    rates = [[random.choice((50e9, 25e9, 12.5e9)) * (a != b) for a in range(nodes)] for b in range(nodes)]
    links: dict[str, Any] = {"bytes_per_s": rates, "asymmetric": True, "measured": random.random() < 0.5}
    if random.random() < 0.5:
        late = [[random.choice((1e-5, 5e-5)) * (a != b) for a in range(nodes)] for b in range(nodes)]
        links["latency_s"] = late
    if random.random() < 0.5:
        links["levels"] = [{"nodes": 2, "oversubscription": 3.0}]
    if random.random() < 0.5:
        links["order"] = random.sample(range(nodes), nodes)
    return links


def _chosen(random: Random, rows: Columns) -> int:
    """A row with one of the values of one of the columns: rare ones are drawn as often as usual ones."""
    column = getattr(rows, random.choice([name for name in VARIABLES if hasattr(rows, name)]))
    value = random.choice(sorted(set(column.tolist())))
    return random.choice([at for at, one in enumerate(column.tolist()) if one == value])


def _placed(random: Random, problem: Problem, config: Configuration) -> Configuration | None:
    """The configuration with its stages on node groups, or as two classes; None where that is illegal."""
    classes = [_on_groups(random, problem, config) for _ in range(random.choice((1, 1, 2)))]
    found = joined(classes)
    profile = default_profile(problem.cluster, problem.priced_as)
    return None if any(violations(problem, profile, found)) else found


def _on_groups(random: Random, problem: Problem, config: Configuration) -> Configuration:
    layers, batch = problem.model.num_layers, problem.workload.global_batch_size
    count = random.randint(1, min(4, layers))
    groups = sorted(random.choice(problem.cluster.group_names) for _ in range(count))
    stages = tuple(
        StageGroup(group=one, num_gpus=1, num_nodes=1.0, tensor_parallel_size=random.choice((1, 2, 4)))
        for one in groups
    )
    sizes = {"context_parallel_size": 1, "data_parallel_size": random.choice((1, 2)), "zero_stage": 1}
    others = {"stage_groups": stages, "stage_layers": even_split(layers, count)}
    plain = replace(config, **PLACED_ONLY, **sizes, **others)  # type: ignore[arg-type]
    return settled_on_groups(problem.cluster, plain, batch // random.choice((1, 2)))


def _option(random: Random) -> tuple[str, object]:
    """A fact of the framework in other words, parts or numbers, or the other way."""
    if random.random() < 0.4:
        [(name, value)] = framework_option(random).items()
        return name, value
    if random.random() < 0.4:
        return _parts_of(random, random.choice(tuple(OPTION_PARTS)))
    facts = framework_facts(random.choice(framework_names()))
    flags = [name for name, value in asdict(facts).items() if isinstance(value, bool)]
    return random.choice(flags), random.random() < 0.5


def _parts_of(random: Random, name: str) -> tuple[str, str]:
    """A fact of several parts, with one or two of them."""
    parts, alone = OPTION_PARTS[name]
    return name, random.choice((*alone, *parts, "+".join(sorted(random.sample(parts, 2), key=parts.index))))


def _row(problem: Problem, rows: Columns, at: int) -> Configuration:
    """A row with the split that its launcher would use."""
    sizes = rows.configuration(at, (problem.model.num_layers,))
    return rows.configuration(at, usual_split(problem, sizes))


if __name__ == "__main__":
    CASES.write_text(written(drawn()))
