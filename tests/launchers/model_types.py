"""Configs of every model type, planned, exported and built by the launcher: which types are exact.

Real configs and those drawn from transformers' classes, of every type whose facts the launcher can state.
Each is planned on one rank a stage and as a row of the search's own space; every rank that the launcher
builds must hold the layers, the weights, the shapes of matrices and the switches that were priced. What it
built is recorded beside the catalog's launchers, and the table of model types says "exact" of nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.reference.models import STATED
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import BUILT_MODELS as RECORD
from meshwright.profiles.capabilities import lacking_facts, launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_families import families
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import Configuration
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import TYPES_OF_REMOTE_CODE
from tests.launchers.cases import plan
from tests.launchers.dry_runs import DryRun
from tests.launchers.plans import problem_of, target_of_row

CONFIGS = Path(__file__).parents[1] / "unit" / "profiles" / "fixtures"
_HEAD = """\
# Configs whose exported plans the launcher itself has built, every rank with the layers, weights, matrices
# and switches that were priced. Written by `make launchers ARGS="--record"`; configs: real-configs.json and
# drawn-configs.json (by place) of tests/unit/profiles/fixtures, or four layers of a type's defaults. The
# table of model types calls these exact.
"""
SEQUENCE = 512  # within the positions of every drawn config
MOST_STAGES = 4
MANY_EXPERTS = 2000


@dataclass(frozen=True)
class Judged:
    """One plan of one config."""

    model_type: str
    config: str  # its name
    run: DryRun


@cache
def configs() -> tuple[tuple[str, str, ModelSpec], ...]:
    """Type, name and model of every config that is planned: real ones first, then drawn ones.

    Last a small one of each type whose code is published beside its weights, of which none is drawn.
    """
    return tuple(_configs())


def _configs() -> Iterator[tuple[str, str, ModelSpec]]:
    for file in ("real-configs.json", "drawn-configs.json"):
        for number, one in enumerate(json.loads((CONFIGS / file).read_text())):
            name = one.get("name", f"drawn-{number}")
            try:
                yield one["config"]["model_type"], name, model_from_config(one["config"], name=name)
            except InvalidProblemError:
                continue
    for kind in (*TYPES_OF_REMOTE_CODE, "kimi_k2"):
        layers = families()[kind].keys.get("num_layers", "num_hidden_layers")
        config = {"model_type": kind, **STATED.get(kind, {}), layers: 4}
        yield kind, "defaults", model_from_config(config, name="defaults")


def judged(launcher: str, *, types: int | None = None, seed: int = 0) -> Iterator[Judged]:
    """Plans of all configs that the launcher can state; of so many drawn ``types`` one of few layers.

    Real models are built whole as well, where they have not thousands of experts.
    """
    able = launcher_capabilities(launcher)
    stated = [one for one in configs() if not lacking_facts(able, one[2])]
    if types is not None:
        built = built_configs(launcher)
        stated.sort(key=lambda one: one[1] in built.get(one[0], ()))  # one that was built comes last
        stated = list({kind: (kind, name, model) for kind, name, model in stated}.values())
        stated = random.Random(f"{launcher} {seed}").sample(stated, min(types, len(stated)))
    for model_type, name, model in stated:
        experts = model.moe.num_experts * model.num_layers if model.moe else 0
        row = row_of(launcher, model, random.Random(f"{launcher} {name}"))
        if row:
            yield Judged(model_type, name, row)
        small = name.startswith("drawn") or experts > MANY_EXPERTS
        if row is None or (types is None and not small):
            yield Judged(model_type, name, alone(launcher, model))


def built_configs(launcher: str) -> dict[str, list[str]]:
    """Names of the configs of each type that are recorded."""
    found: dict[str, list[str]] = yaml.safe_load(RECORD.read_text()).get(launcher, {}).get("types", {})
    return found


def alone(launcher: str, model: ModelSpec) -> DryRun:
    """The whole model on one rank."""
    config = Configuration(
        data_parallel_size=8, num_microbatches=16, stage_layers=(model.num_layers,), zero_stage=0
    )
    found = Target(plan=plan(config), problem=problem_of(launcher, model, seq_length=SEQUENCE))
    return DryRun(f"{model.name}, whole", found)


def row_of(launcher: str, model: ModelSpec, rng: random.Random) -> DryRun | None:
    """A legal row of the search's own space with stages and tensor ranks, where there is such."""
    problem = problem_of(launcher, model, seq_length=SEQUENCE, num_nodes=2, batch=32)
    columns = enumerate_space(problem, legal_only=True).columns
    sharded = launcher == "torchtitan"  # which has no tensor ranks without shards
    stages, chunks = columns.pipeline_parallel_size, columns.virtual_pipeline_size
    # Where key heads are fewer than tensor ranks, Megatron-LM's ranks hold parts of heads and gather them.
    legal = ((columns.zero_stage <= 1) != sharded) & (columns.tensor_parallel_size <= model.num_kv_heads)
    split = (stages > 1) & (stages <= MOST_STAGES) & (stages * chunks <= model.num_layers)
    rows = (legal & split if (legal & split).any() else legal).nonzero()[0].tolist()
    if not rows:
        return None
    found = target_of_row(problem, columns, rng.choice(rows), rng)
    ends = model.moe is not None and model.moe.num_experts * model.num_layers > MANY_EXPERTS
    return DryRun(f"{model.name}, a row", found, shards=None if sharded else 1, ends=ends)


def unlike_model(model: ModelSpec, facts: dict[str, Any]) -> Iterator[str]:
    """Switches that the launcher understood otherwise than they were priced."""
    for name, value in facts.items():
        part: Any = model
        for field in name.split("."):  # of a part that the model has not: None
            part = getattr(part, field, None)
        if callable(part):
            part = list(part())
        if part is None and name in ("norm_epsilon", "rotary_base"):
            continue  # nobody states it: the launcher's own
        if value != part:
            yield f"model.{name}: {value} instead of {part}"


def recorded(launchers: Mapping[str, Mapping[str, object]]) -> str:
    """The file of what launchers built: those given, and what it says of the others."""
    old = yaml.safe_load(RECORD.read_text()) if RECORD.exists() else {}
    whole = {name: launchers.get(name) or old.get(name) for name in sorted({*(old or {}), *launchers})}
    return _HEAD + yaml.safe_dump(whole, sort_keys=False, width=118, default_flow_style=None)


def record(version: str, built: Sequence[Judged]) -> dict[str, object]:
    """What one launcher built: configs by type, and how many plans and ranks of them."""
    types: dict[str, list[str]] = {}
    for one in built:
        names = types.setdefault(one.model_type, [])
        if one.config not in names:
            names.append(one.config)
    return {
        "version": version,
        "date": f"{datetime.now(tz=UTC):%Y-%m-%d}",
        "plans": len(built),
        "ranks": sum(len(one.run.ranks()) for one in built),
        "types": {name: types[name] for name in sorted(types)},
    }
