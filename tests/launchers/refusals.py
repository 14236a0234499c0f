"""Configurations that one of our rules alone refuses, before the launchers' own parsers.

    make launchers ARGS="--refusals 4 --only deepspeed trl"

A configuration is drawn from legal ones by changes of a few variables, or a workload by one word; it fits
the memory, and is written as if that rule did not exist. Then the launcher refuses it too, or reads another
plan in its files, or the rule is one of ``deliberate.yaml``.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.adapters import FUSED_TARGETS, SINGLE_TARGETS
from meshwright.profiles.capabilities import Capabilities, launcher_capabilities
from meshwright.profiles.errors import PlannerError
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import default_profile
from meshwright.service.verify.verify import BUILDERS, verify
from meshwright.solver.configuration import (
    ALL_LAYERS,
    CONTEXT_MODES,
    OFFLOAD,
    PER_STAGE,
    RANK_ORDERS,
    RECOMPUTE,
    SCHEDULES,
    VARIABLE_OF,
    VARIABLES,
    Columns,
    Configuration,
    IntArray,
)
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.schedules.schedule import plain_schedule
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.factored import Crossing
from meshwright.solver.space.launcher_rules import problem_faults, workload_faults
from meshwright.solver.space.rule import Rule
from meshwright.solver.space.rules import BATCH_RULE, rules_of, violation_masks
from meshwright.solver.splits import launcher_split
from tests.launchers.cases import plan
from tests.launchers.plans import problem_of
from tests.launchers.verified import CLASSES

TABLE = Path(__file__).parent / "deliberate.yaml"
LAYERS = 8  # of each model, which keeps its widths
BASES, COPIES = 200, 60  # legal rows of a request, and changed copies of each
TRIED = 24  # of a rule's configurations, until enough fit the memory
RowsOf = Columns | Crossing
_FULL = RECOMPUTE.index("full")
_EVERY: Mapping[str, Sequence[int]] = {
    "tensor_parallel_size": (1, 2, 3, 4, 6, 8, 16),
    "context_parallel_size": (1, 2, 3, 4, 8),
    "pipeline_parallel_size": (1, 2, 3, 4, 5, 8),
    "expert_parallel_size": (1, 2, 3, 4, 8, 16),
    "expert_tensor_parallel_size": (1, 2, 4, 16),
    "weight_shard_size": (1, 2, 4),
    "expert_weight_shard_size": (1, 2),
    "zero_stage": (0, 1, 2, 3),
    "zero_shard_size": (1, 2, 3, 4, 8, 16),
    "micro_batch_size": (1, 2, 3, 4),
    "virtual_pipeline_size": (1, 2, 3, 4),
    "pipeline_schedule": range(len(SCHEDULES)),
    "recompute": range(len(RECOMPUTE)),
    "recompute_layers": (0, 1, 2, 3, ALL_LAYERS),
    "offload": range(len(OFFLOAD)),
    "context_parallel_mode": range(len(CONTEXT_MODES)),
    "rank_order": range(len(RANK_ORDERS)),
    "sequence_parallel": (0, 1),
}


@dataclass(frozen=True)
class Refusal:
    """One configuration that a single rule of ours refuses."""

    rule: str
    target: Target
    limit: Rule | None = None  # None: a word of the workload is refused


@dataclass(frozen=True)
class Limit:
    """One row of the table: rules that refuse what the launcher's parser takes, and why they stand."""

    launchers: tuple[str, ...]
    rule: re.Pattern[str]
    kind: str  # a key of ``KINDS``
    reason: str
    source: str

    def covers(self, launcher: str, rule: str) -> bool:
        """Whether a rule of a launcher is this limit."""
        return launcher in self.launchers and self.rule.fullmatch(rule) is not None


KINDS = {
    "unsaid": "its files do not state it",
    "later": "the launcher refuses it after its parser, or its ranks do not run",
    "unpriced": "it runs, and no cost is known",
    "repeated": "another configuration that is legal runs the same",
    "choice": "it runs, and is not offered",
}


@cache
def limits() -> tuple[Limit, ...]:
    """The table of deliberate limits."""
    rows = yaml.safe_load(TABLE.read_text("utf-8"))
    return tuple(
        Limit(
            launchers=tuple(row["launchers"]),
            rule=re.compile(row["rule"]),
            kind=row["kind"],
            reason=row["reason"],
            source=row["source"],
        )
        for row in rows
    )


@dataclass
class Answers:
    """What one launcher said of the refused configurations, by rule."""

    refused: Counter[str] = field(default_factory=Counter)
    another: Counter[str] = field(default_factory=Counter)  # its files, or its ranks, are another plan
    unsaid: Counter[str] = field(default_factory=Counter)  # its files are the same without it
    deliberate: Counter[str] = field(default_factory=Counter)
    limits: dict[str, Limit] = field(default_factory=dict)  # that a deliberate refusal is
    faults: list[str] = field(default_factory=list)

    def take(self, one: Refusal, launcher: str, refusal: str | None, *, other: bool, builds: bool) -> None:
        """Count a verdict of the parser; ``builds``: the launcher builds what its parser accepts."""
        built = "" if refusal or other or not builds or launcher not in BUILDERS else built_of(one)
        if refusal or built.startswith("not built"):
            self.refused[one.rule] += 1
        elif other or built.startswith("differs"):
            self.another[one.rule] += 1
        elif limit := next((limit for limit in limits() if limit.covers(launcher, one.rule)), None):
            self.deliberate[one.rule] += 1
            self.limits[one.rule] = limit
        else:
            self.faults.append(f"{one.rule}: {variables_of(one.target.config)}: {built}")
        if built:
            print(f"  {one.rule}: {variables_of(one.target.config)}: {built}", flush=True)

    def lines(self, name: str) -> Iterator[str]:
        """The counts in rules, and every deliberate limit with its kind and reason."""
        found = {
            "refused by the launcher too": self.refused, "another plan in its files": self.another,
            "not stated in its files": self.unsaid, "deliberate": self.deliberate,
        }  # fmt: skip
        asked = set().union(*found.values()) | {text.partition(": ")[0] for text in self.faults}
        drawn = sum(map(Counter.total, found.values())) + len(self.faults)
        counts = ", ".join(f"{words} {len(rules)}" for words, rules in found.items())
        yield f"{name}: refusals: {len(asked)} rules in {drawn} configurations: {counts}"
        for rule, limit in sorted(self.limits.items()):
            yield f"  {limit.kind}: {rule} ({limit.reason})"


# --------------------------------------------------------------------------------------------------
# Drawing.


def few_layers(model: ModelSpec) -> ModelSpec:
    """The model with its widths and few of its layers."""
    kept = min(LAYERS, model.num_layers)
    return replace(model, num_layers=kept, name=f"{model.name}-{kept}")


def requests(launcher: str, models: Sequence[str], rng: random.Random) -> Iterator[Problem]:
    """Requests that the launcher trains, dense and with experts in turns."""
    able = launcher_capabilities(launcher)
    away = ("offload",) if len(able.offload) > 1 else ()
    shares = ("weight_shards",) if able.weight_shards and launcher == "megatron-lm" else ()
    found = list[Problem]()
    for name in models:
        problem = problem_of(
            launcher, few_layers(find_model(name)), seq_length=rng.choice((1024, 2048, 4096, 4104)),
            num_nodes=rng.choice((1, 2, 4)), batch=rng.choice((48, 64, 96)),
        )  # fmt: skip
        problem = replace(problem, options=replace(problem.options, allow=away or shares))
        if not list(problem_faults(problem, able)):
            found.append(problem)
    rng.shuffle(found)
    experts = [one for one in found if one.model.moe is not None]
    dense = [one for one in found if one.model.moe is None]
    for both in zip_longest(dense, experts):
        yield from (one for one in both if one is not None)


def changed_rows(problem: Problem, legal: RowsOf, rng: random.Random) -> Columns:
    """Legal rows with some variables changed at random, and what follows from them."""
    drawn = [rng.randrange(len(legal)) for _ in range(min(BASES, len(legal)))]
    rows = legal.take(np.repeat(np.array(drawn, dtype=np.int64), COPIES))
    dice = np.random.default_rng(rng.randrange(2**32))
    world = rows.tensor_parallel_size * rows.context_parallel_size * rows.pipeline_parallel_size
    world = world * rows.data_parallel_size
    share = dice.choice([1.0, 1.5, 2.5], size=len(rows)) / len(_EVERY)
    values, turned = dict[str, IntArray](), dict[str, Any]()
    for name, options in _EVERY.items():
        turned[name] = dice.random(len(rows)) < share
        drawn_values = dice.choice(np.array(options, dtype=np.int64), size=len(rows))
        values[name] = np.where(turned[name], drawn_values, getattr(rows, name))
    return _with_following(problem, replace(rows, **values), values, turned, world)


def _with_following(
    problem: Problem, rows: Columns, values: dict[str, IntArray], turned: Mapping[str, Any], world: IntArray
) -> Columns:
    able = launcher_capabilities(problem.launcher)
    tp, cp, pp = (values[f"{axis}_parallel_size"] for axis in ("tensor", "context", "pipeline"))
    vpp = values["virtual_pipeline_size"]
    dp = np.maximum(world // (tp * cp * pp), 1)
    batch, per = problem.workload.global_batch_size, dp * values["micro_batch_size"]
    whole = (world % (tp * cp * pp) == 0) & (batch % per == 0)
    plain = np.array(
        [SCHEDULES.index(plain_schedule(int(p), int(v))) for p, v in zip(pp, vpp, strict=True)]
    )
    staged = turned["pipeline_parallel_size"] | turned["virtual_pipeline_size"]
    staged &= ~turned["pipeline_schedule"]
    full = values["recompute"] == _FULL
    layers = np.where(values["recompute_layers"] == 0, ALL_LAYERS, values["recompute_layers"])
    ranks = np.maximum(dp * cp // values["weight_shard_size"], 1)
    sharded = np.where(turned["zero_shard_size"], values["zero_shard_size"], ranks)
    split = np.where(turned["tensor_parallel_size"], able.sequence_parallel, values["sequence_parallel"])
    settled = replace(
        rows,
        data_parallel_size=dp,
        num_microbatches=np.maximum(batch // per, 1),
        pipeline_schedule=np.where(
            staged & ~turned["pipeline_schedule"], plain, values["pipeline_schedule"]
        ),
        recompute_layers=np.where(full, layers, 0),
        zero_shard_size=np.where(values["zero_stage"] > 0, sharded, 1),
        sequence_parallel=np.where(tp > 1, split, 0),
        context_parallel_mode=np.where(cp > 1, values["context_parallel_mode"], 0),
        expert_weight_shard_size=values["expert_weight_shard_size"]
        if problem.model.moe
        else np.ones_like(dp),
    )
    return settled.take(np.flatnonzero(whole & (settled.recompute_layers != PER_STAGE)))


def refused_rows(
    problem: Problem, legal: RowsOf, count: int, rng: random.Random
) -> dict[Rule, list[Configuration]]:
    """So many configurations that break one rule, of launcher or structure, by the rule."""
    rows, rules = changed_rows(problem, legal, rng), rules_of(problem)
    masks = violation_masks(rules, rows)
    found: dict[Rule, list[Configuration]] = {}
    for bit, rule in enumerate(rules):
        if rule.of_host or rule.of_request or rule.name == BATCH_RULE:
            continue  # hosts' memory; what the request set itself
        some = [int(at) for at in np.flatnonzero(masks == 1 << bit)]
        tried = rng.sample(some, min(len(some), TRIED))
        configs = dict.fromkeys(configuration_of(problem, rows, at) for at in tried)
        found[rule] = list(islice((one for one in configs if is_whole(problem, one)), count))
    return found


def configuration_of(problem: Problem, rows: Columns, at: int) -> Configuration:
    """One row with a split of all layers, as even as they go."""
    return split_evenly(problem, rows.configuration(at, [problem.model.num_layers]))


def split_evenly(problem: Problem, config: Configuration) -> Configuration:
    """The configuration with the launcher's own split, or else an even one."""
    chunks, layers = config.pipeline_parallel_size * config.virtual_pipeline_size, problem.model.num_layers
    even = tuple(layers // chunks + (number < layers % chunks) for number in range(chunks))
    again = (
        layers if config.recompute_granularity == "full" and not 0 < config.recompute_layers < layers else 0
    )
    split = replace(config, stage_layers=even, recompute_layers=again or config.recompute_layers)
    own = launcher_split(problem, split)
    return replace(split, stage_layers=own or even)


def is_whole(problem: Problem, config: Configuration) -> bool:
    """Whether its ranks fill nodes, and every stage fits the memory."""
    per_node = min(problem.cluster.groups[0].gpus_per_node, config.num_gpus)
    if config.num_gpus % per_node or config.num_gpus > problem.cluster.num_gpus:
        return False
    try:
        (one,) = evaluate(problem, default_profile(problem.cluster, problem.priced_as), [config])
    except (ArithmeticError, ValueError, IndexError, KeyError, AssertionError, PlannerError):
        return False  # no prices of it at all
    return all(sum(stage.memory_bytes().values()) <= stage.on.budget_bytes for stage in one.stages)


WORDS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "precision": [{"precision": word} for word in ("bf16", "fp16", "fp8", "fp32")],
    "optimizer": [{"optimizer": word} for word in OPTIMIZERS],
    "adapters": [
        {"lora_rank": 16, "lora_targets": targets, "base_precision": base}
        for targets in (FUSED_TARGETS[:2], SINGLE_TARGETS[:2])
        for base in ("bf16", "fp32", "int8", "nf4", "nf4-double")
    ],
}


def refused_words(problem: Problem, able: Capabilities) -> Iterator[tuple[str, Problem]]:
    """Workloads with one word that the launcher is said not to train."""
    for changes in (change for group in WORDS.values() for change in group):
        workload = replace(problem.workload, **changes)  # type: ignore[arg-type]
        changed = replace(problem, workload=workload)
        try:
            faults = list(workload_faults(changed, able))
        except PlannerError:
            continue
        if len(faults) == 1:
            field_of = faults[0].pointer.removeprefix("/workload/")
            yield f"{field_of} {getattr(workload, field_of, '')}", changed


def drawn(launcher: str, models: Sequence[str], count: int, seed: int) -> list[Refusal]:
    """So many configurations of each rule, of unlike requests where several break it alone."""
    rng, able = random.Random(f"refusals {launcher} {seed}"), launcher_capabilities(launcher)
    found: dict[str, list[Target]] = defaultdict(list)
    rules: dict[str, Rule] = {}
    for problem in islice(requests(launcher, models, rng), 2 * count):
        legal = enumerate_space(problem, legal_only=True).rows
        for rule, configs in refused_rows(problem, legal, count, rng).items():
            rules[rule.name] = rule
            found[rule.name] += [Target(plan=plan(one), problem=problem) for one in configs]
        rows = legal.take(np.array([rng.randrange(len(legal)) for _ in range(TRIED)], dtype=np.int64))
        plain = rows.take(np.flatnonzero(rows.recompute_layers != PER_STAGE))
        some = [configuration_of(problem, plain, at) for at in range(len(plain))]
        some = list(islice((one for one in some if is_whole(problem, one)), 4 * count))
        for word, changed in refused_words(problem, able):
            legal_ones = (one for one in some if _only_the_word(changed, one))
            found[word] += [Target(plan=plan(one), problem=changed) for one in islice(legal_ones, count)]
    return [
        Refusal(rule, target, rules.get(rule))
        for rule, targets in found.items()
        for target in rng.sample(targets, min(count, len(targets)))
    ]


def _only_the_word(problem: Problem, config: Configuration) -> bool:
    row = Columns.of([config])
    return not any(rule.reads and rule.violated(row).any() for rule in rules_of(problem))


def files_of(found: Target, launcher: str) -> dict[str, str] | None:
    """What our exporter would write if it had no rules; None: it has no words for it."""
    with (
        patch("meshwright.launchers.rules.refuse"),
        patch("meshwright.launchers.flagscale.export.refuse"),
    ):
        try:
            return dict(export(found.plan, found.problem, launcher).files)
        except (PlannerError, LookupError, ValueError, TypeError, AssertionError, ArithmeticError):
            return None


def states_it(one: Refusal, files: dict[str, str], launcher: str) -> bool:
    """Whether the files state what the rule refuses: those of what it allows are others."""
    found, config, rule = one.target, one.target.config, one.limit
    if rule is None:
        name = one.rule.partition(" ")[0].partition("/")[0]
        plainest = Workload(global_batch_size=1, seq_length=1)
        bare = replace(found.workload, **{name: getattr(plainest, name)})
        return said(files) != said_of(
            replace(found, problem=replace(found.problem, workload=bare)), launcher
        )
    others = list(without(found.problem, config, {VARIABLE_OF[column].name for column in rule.reads}))
    broken = rule.violated(Columns.of(others)) if others else ()
    allowed = (other for other, breaks in zip(others, broken, strict=True) if not breaks)
    stated = said(files)
    return all(stated != said_of(replace(found, plan=plan(other)), launcher) for other in allowed)


def said_of(found: Target, launcher: str) -> dict[str, list[str]]:
    """What programs read of a target's files."""
    return said(files_of(found, launcher) or {})


def said(files: Mapping[str, str]) -> dict[str, list[str]]:
    """What programs read of the files: no comments, and not the page for people."""
    lines = {name: text.splitlines() for name, text in files.items() if name != "README.md"}
    comments = {line.lstrip("# ") for some in lines.values() for line in some if line.startswith("#")}
    return {
        name: [
            line
            for line in some
            if not line.lstrip().startswith("#") and line.strip().strip('",') not in comments  # JSON's
        ]
        for name, some in lines.items()
    }


def without(problem: Problem, config: Configuration, names: set[str]) -> Iterator[Configuration]:
    """The configuration with one of the variables at the value that says nothing, or at another word."""
    ranks = max(config.data_parallel_size * config.context_parallel_size // config.weight_shard_size, 1)
    follow: dict[str, object] = {
        "recompute_layers": problem.model.num_layers * (config.recompute_granularity == "full"),
        "sequence_parallel": not config.sequence_parallel,
        "zero_shard_size": ranks if config.zero_stage else 1,
    }
    for name in sorted(names):
        one = VARIABLES[name]
        for value in dict.fromkeys((follow.get(name, one.off), *one.words)):
            if getattr(config, name) != value:
                yield split_evenly(problem, replace(config, **{name: value}))  # type: ignore[arg-type]


def is_built(launcher: str, model: str) -> bool:
    """Whether ``meshwright verify`` has a class of transformers for the model, where it needs one."""
    return model in CLASSES or launcher not in ("deepspeed", "accelerate")


def built_of(one: Refusal) -> str:
    """What the launcher's own code builds of it: the verdict of ``meshwright verify``, and its reasons."""
    with patch("meshwright.launchers.rules.refuse"):
        try:
            found = verify(one.target.plan, one.target.problem)
        except Exception as error:  # noqa: BLE001 - builders and prices of illegal plans fail in any way they like
            return f"not built: {type(error).__name__}: {error}"[:300]
    return f"{found.verdict}: {'; '.join(found.reasons)}"[:300]


def variables_of(config: Configuration) -> str:
    """The configuration in short, for a message."""
    return " ".join(
        f"{one.short or name}={getattr(config, name)}"
        for name, one in VARIABLES.items()
        if getattr(config, name) != one.off
    )
