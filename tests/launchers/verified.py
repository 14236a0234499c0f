"""Drawn plans before ``meshwright verify``: what launchers build of them is what was priced.

    make launchers ARGS="--verify 12 --seed 3 --only megatron-lm torchtitan-0.3 deepspeed accelerate"

Models keep their widths and few of their layers. A plan is drawn by its kind first (what it splits, shards
and recomputes), so that rare kinds are met as often as those with many rows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.service.verify.verify import verify
from meshwright.solver.configuration import SHORT_NAMES, Columns, IntArray
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.launcher_rules import problem_faults
from tests.launchers.plans import problem_of, target_of_row

LAYERS, BATCH = 4, 64  # of each model; sequences a step
_SPLIT = (
    "tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size", "context_parallel_size",
    "expert_parallel_size",
)  # fmt: skip
_WHOLE = ("zero_stage", "recompute", "offload")
# What can be built: Megatron-FSDP reads data of tensors; accelerate 1.15 imports of transformers for tensor
# ranks beside FSDP2 what 5.23 does not have (``ReplicateParallel``).
BUILT = {"megatron-lm": {"zero_stage": (0, 1)}, "accelerate": {"tensor_parallel_size": (1, 1)}}
OF_EXPERTS = {"deepspeed": {"tensor_parallel_size": (1, 1)}}  # AutoTP splits none of transformers' own
CLASSES = (  # models of these that one of the classes of transformers states which builders know
    "llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "llama-3.1-70b", "llama-2-7b", "llama-3-8b",
    "qwen3-8b", "qwen2.5-7b",
)  # fmt: skip


def few_layers(model: ModelSpec) -> ModelSpec:
    """The model with its widths and few of its layers."""
    kept = min(LAYERS, model.num_layers)
    return replace(model, num_layers=kept, name=f"{model.name}-{kept}")


def drawn(launcher: str, models: Sequence[str], count: int, seed: int) -> Iterator[Target]:
    """Plans of the launcher's own space, one model after the other."""
    able, rng = launcher_capabilities(launcher), random.Random(f"{launcher} {seed}")
    problems = [
        problem_of(launcher, few_layers(find_model(name)), seq_length=tokens, num_nodes=nodes, batch=BATCH)
        for name in models
        if name in CLASSES or launcher not in ("deepspeed", "accelerate")
        for tokens, nodes in [(rng.choice((1024, 2048, 4096)), rng.choice((1, 2, 4)))]
    ]
    problems = [one for one in problems if not list(problem_faults(one, able))]
    rng.shuffle(problems)
    for index in range(count):
        plain = problems[index % len(problems)]
        allowed = ("offload",) if rng.randrange(8) == 0 else ()
        bounds = (plain.model.moe and OF_EXPERTS.get(launcher)) or BUILT.get(launcher, {})
        problem = replace(plain, options=replace(plain.options, allow=allowed, bounds=bounds))
        legal = enumerate_space(problem, legal_only=True).rows
        rows = legal.take(np.arange(len(legal)))
        kinds = _kinds(rows)
        kind = rng.choice(np.unique(kinds, axis=0))
        alike = np.flatnonzero((kinds == kind).all(axis=1))
        yield target_of_row(problem, rows, int(rng.choice(alike)), rng)


def _kinds(rows: Columns) -> IntArray:
    """What every row splits at all, shards and recomputes, shape (n, kinds)."""
    split = [getattr(rows, name) > 1 for name in _SPLIT]
    return np.stack([*split, *(getattr(rows, name) for name in _WHOLE)], axis=1).astype(np.int64)


def try_verified(launcher: str, models: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """What differs, or is not built; prints each plan's verdict, and how many there are of each."""
    verdicts = Counter[str]()
    for found in drawn(launcher, models, count, seed):
        verdict, reasons = _verdict(found)
        verdicts[verdict] += 1
        name = f"{found.model.name}, {found.workload.seq_length} tokens"
        said = [f"{name}, {_layout(found)}: {verdict}", *reasons]
        print("  " + "\n    ".join(said), flush=True)
        if verdict in ("differs", "not built"):
            yield "; ".join(said)
    print(f"{launcher}: " + ", ".join(f"{times} {verdict}" for verdict, times in verdicts.most_common()))


def _verdict(found: Target) -> tuple[str, Sequence[str]]:
    """What the launcher's code says of a plan, or why it gets no files."""
    try:
        built = verify(found.plan, found.problem)
    except (RefusedExportError, InvalidProblemError) as fault:
        return "differs", [f"no file: {fault}"]
    return built.verdict, built.reasons


def _layout(found: Target) -> str:
    """A layout in short: sizes beyond one, and what it recomputes and keeps elsewhere."""
    config = found.config
    sizes = [f"{short} {size}" for name, short in SHORT_NAMES.items()
             if (size := getattr(config, name)) > 1 or name == "zero_stage"]  # fmt: skip
    return " · ".join([*sizes, config.recompute_granularity, config.pipeline_schedule, config.offload])
