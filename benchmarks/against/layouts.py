"""Plain layouts, as simple models of others know them, and our configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from meshwright.solver.configuration import Configuration

# What simple models share: one chunk a rank, an even split, ZeRO-1 at most, no context parallelism.
PLAIN_SPACE: Mapping[str, object] = {
    "pin": {"virtual_pipeline_size": 1, "context_parallel_size": 1},
    "bounds": {"zero_stage": [0, 1]},
}


def configuration_of(row: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """A layout {tensor, pipeline, data, micro_batch, batch, recompute, zero, interleaving} in our words."""
    tensor, pipeline, data = (int(row[name]) for name in ("tensor", "pipeline", "data"))
    chunks = pipeline * int(row.get("interleaving", 1))
    split = tuple(num_layers // chunks + (at < num_layers % chunks) for at in range(chunks))
    found = Configuration(
        tensor_parallel_size=tensor,
        sequence_parallel=tensor > 1,
        pipeline_parallel_size=pipeline,
        virtual_pipeline_size=chunks // pipeline,
        data_parallel_size=data,
        zero_stage=int(row["zero"]),
        zero_shard_size=data if row["zero"] else 1,
        micro_batch_size=int(row["micro_batch"]),
        num_microbatches=int(row["batch"]) // (data * int(row["micro_batch"])),
        pipeline_schedule="none" if pipeline == 1 else "1f1b" if chunks == pipeline else "interleaved_1f1b",
        recompute_granularity=str(row["recompute"]),
        recompute_layers=sum(split) if row["recompute"] == "full" else 0,
        stage_layers=split,
    )
    return asdict(found)


def row_of(config: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """One of our configurations as a plain layout; recomputation of some layers counts as of all."""
    return {
        "tensor": config["tensor_parallel_size"],
        "pipeline": config["pipeline_parallel_size"],
        "interleaving": config["virtual_pipeline_size"],
        "data": config["data_parallel_size"],
        "micro_batch": config["micro_batch_size"],
        "batch": batch,
        "recompute": config["recompute_granularity"],
        "zero": config["zero_stage"],
    }
