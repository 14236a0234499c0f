"""The comment on top of every launch file: what it starts, and what to expect."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from profiles.shape import model_to_mapping
from profiles.units import GIB
from service.launchers.target import Target
from solver.rank_orders import RANK_ORDERS


def header(target: Target, warnings: Iterable[str], product: str, *, shape: bool = False) -> str:
    """The lines of the comment; ``product`` names the launcher and its versions.

    ``shape`` adds the model's, as JSON on one line, where no file of the launcher has a place for it.

    Names come from the request: whatever is not printable is replaced, so that no line can end early.
    """
    config, prediction = target.config, target.plan.prediction
    sizes = (
        f"tp {config.tensor_parallel_size} * cp {config.context_parallel_size} * "
        f"pp {config.pipeline_parallel_size} * dp {config.data_parallel_size}"
    )
    times = (prediction.step_time_s, prediction.step_time_low_s, prediction.step_time_high_s)
    step, low, high = (f"{time_s:.3f}" for time_s in times)
    memory, limit = (
        f"{size / GIB:.1f} GiB" for size in (prediction.peak_memory_bytes, prediction.memory_limit_bytes)
    )
    lines = [
        f"{product}, plan {target.plan.plan_id} (rank {target.plan.rank}), by Meshwright",
        f"Model {target.model.title[:200]}, {target.workload.seq_length} tokens a sequence",
        *([f"Model shape: {_shape(target)}"] if shape else []),
        f"World size {config.num_gpus}: {sizes}",
        *([] if config.rank_order == RANK_ORDERS[0] else [f"Ranks are numbered along {config.rank_order}"]),
        f"Micro-batches: {config.num_microbatches} of {config.micro_batch_size}",
        f"Nodes: {target.num_nodes} of {target.gpus_per_node} × {target.gpu.display_name[:200]}",
        f"Layers of each chunk: {' '.join(map(str, config.stage_layers))}",
        f"Predicted step: {step} s ({low} to {high})",
        f"Predicted memory: {memory} of {limit} on stage {prediction.heaviest_stage}",
        *(f"Warning: {warning}" for warning in warnings),
    ]
    return "".join(f"# {printable(line)}\n" for line in lines)


def _shape(target: Target) -> str:
    """The model's sizes as a request spells them; where they come from is left out."""
    plain = replace(target.model, source="", display_name="")
    return json.dumps(model_to_mapping(plain))


def printable(text: str) -> str:
    """The text on one line: what cannot be printed becomes a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
