"""What the memory model says each pipeline rank holds: its chunks, and its weights before any sharding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from meshwright.profiles.model import LayerKind
from meshwright.profiles.profile import default_profile
from meshwright.service.launchers.target import Target
from meshwright.solver.configuration import Columns, FloatArray
from meshwright.solver.cost.compute import layer_gemms
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.parameters import part_weights
from meshwright.solver.cost.stages import LayerLayout, chunks_of


def context_for(target: Target) -> Context:
    """What the formulas read, for one plan."""
    problem = target.problem
    profile = default_profile(problem.cluster, problem.launcher)
    return context_of(problem, Columns.of([target.config]), profile)


def chunk_weights(target: Target) -> tuple[list[int], FloatArray]:
    """The rank of every chunk, and the weights that each rank of its stage holds of it."""
    layout = LayerLayout.of(target.model)
    ctx = context_for(target)
    chunks = chunks_of(ctx.columns, layout, np.array([target.config.stage_layers]))
    parts = part_weights(ctx, layout.kinds)
    each = np.array([part.dense[0] + part.routed[0] for part in parts])
    return chunks.rank[0].tolist(), chunks.parts[0] @ each


def rank_layers(target: Target) -> list[list[int]]:
    """Layers of every chunk of every pipeline rank."""
    ranks, _ = chunk_weights(target)
    layers = target.config.stage_layers
    return [
        [layers[chunk] for chunk, rank in enumerate(ranks) if rank == mine]
        for mine in range(target.config.pipeline_parallel_size)
    ]


def rank_weights(target: Target) -> list[int]:
    """Weights of every pipeline rank."""
    ranks, weights = chunk_weights(target)
    return [
        round(sum(weights[chunk] for chunk, rank in enumerate(ranks) if rank == mine))
        for mine in range(target.config.pipeline_parallel_size)
    ]


def rank_kinds(target: Target) -> list[list[LayerKind]]:
    """The kind of every layer of every pipeline rank, chunk after chunk."""
    ranks, _ = chunk_weights(target)
    kinds, first = target.model.layer_kinds(), 0
    found: list[list[LayerKind]] = [[] for _ in set(ranks)]
    for rank, count in zip(ranks, target.config.stage_layers, strict=True):
        found[rank] += kinds[first : first + count]
        first += count
    return found


def rank_matrices(target: Target, *, whole: bool = False) -> list[list[list[int]]]:
    """Rows, columns and number of the matrices that the layers of every pipeline rank multiply by.

    ``whole``: before tensor parallelism splits them.
    """
    alone = replace(target.config, tensor_parallel_size=1)
    plan = replace(target.plan, config=alone) if whole else target.plan
    ctx, found = context_for(replace(target, plan=plan)), []
    for kinds in rank_kinds(target):
        shapes = Counter[tuple[int, int]]()
        for kind in kinds:
            for gemm in layer_gemms(ctx, kind):
                rows, columns, count = (round(float(np.ravel(x)[0])) for x in (gemm.n, gemm.k, gemm.count))
                shapes[rows, columns] += count
        found.append(sorted([*shape, count] for shape, count in shapes.items()))
    return found
