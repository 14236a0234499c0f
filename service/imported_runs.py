"""A training log as one row of a table of measured runs, which ``calibrate`` and ``validate`` read."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.cluster import GpuSpec
from profiles.errors import InvalidProblemError
from profiles.measurements import MeasuredRun
from profiles.model import ModelSpec
from profiles.units import GIB
from solver.run_cells import READ_COLUMNS

NEEDED = (  # without these no run is predicted
    "num_gpus", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "micro_batch_size", "global_batch_size", "seq_length",
)  # fmt: skip
_MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "peak_memory_gib", "memory_kind", "memory_rank", "oom")
COLUMNS = (*READ_COLUMNS, "framework", "source", "model", *_MEASURED)
_FAMILIES = {"deepspeed": "deepspeed-zero"}  # others are called as the table calls them
_AXES = ("tensor", "pipeline", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a log does not say."""

    run_id: str
    cluster: str
    source: str
    model: ModelSpec
    gpu: GpuSpec
    settings: Mapping[str, object]  # parts of the configuration, over what the log says


def run_row(run: MeasuredRun, facts: RunFacts) -> dict[str, str]:
    """The row of a log; what is not known stays empty.

    Raises:
        InvalidProblemError: a setting is no column of a run.
    """
    row: dict[str, object] = {
        "run_id": facts.run_id,
        "cluster": facts.cluster,
        "source": facts.source,
        "gpu": facts.gpu.slug,
        "gpus_per_node": facts.gpu.gpus_per_node,
        "framework": run.framework,
        "framework_family": _FAMILIES.get(run.framework, run.framework),
        "precision": "bf16" if "bf16" in facts.gpu.peak_flops else "fp16",
        **_model_cells(facts.model),
        **{name: value for name, value in run.configuration.items() if name in COLUMNS},
        **facts.settings,
        **_measured_cells(run),
    }
    unknown = row.keys() - set(COLUMNS)
    if unknown:
        raise InvalidProblemError.of("--set", "names no column of a run", allowed=", ".join(COLUMNS))
    row.setdefault("data_parallel_size", _data_parallel_size(row))
    return {name: _text(row.get(name)) for name in COLUMNS}


def _model_cells(model: ModelSpec) -> dict[str, object]:
    """The model's shape as the table writes it."""
    moe = model.moe
    cells: dict[str, object] = {
        "model": model.name,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "tied_embeddings": int(model.tied_embeddings),
        "gated_mlp": int(model.gated_mlp),
    }
    if moe is not None:
        cells |= {
            "num_experts": moe.num_experts,
            "moe_top_k": moe.top_k,
            "moe_ffn_hidden_size": moe.ffn_hidden_size,
            "num_shared_experts": moe.num_shared_experts,
            "num_dense_layers": moe.num_dense_layers,
        }
    return cells


def _measured_cells(run: MeasuredRun) -> dict[str, object]:
    """What the run reported: reserved memory where it is known, else allocated."""
    peak = run.peak_reserved_bytes or run.peak_allocated_bytes
    kind = "reserved" if run.peak_reserved_bytes else "allocated"
    return {
        "step_time_s": run.step_time_s,
        "tokens_per_s_per_gpu": run.tokens_per_s_per_gpu,
        "peak_memory_gib": peak / GIB if peak else None,
        "memory_kind": kind if peak else None,
        "memory_rank": "worst" if peak and run.num_memory_ranks > 1 else None,
        "oom": int(run.out_of_memory),
    }


def _data_parallel_size(row: Mapping[str, object]) -> int | None:
    """GPUs over the other axes, where all are known."""
    gpus = row.get("num_gpus")
    others = [row.get(f"{axis}_parallel_size") or 1 for axis in _AXES]
    if not isinstance(gpus, int) or not all(isinstance(size, int) for size in others):
        return None
    product = 1
    for size in others:
        product *= size if isinstance(size, int) else 1
    return gpus // product or None


def _text(value: object) -> str:
    """A cell; empty where nothing is known."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table_with(existing: str, row: Mapping[str, str]) -> str:
    """The text of a table with one more row; a row of the same ``run_id`` is replaced.

    Raises:
        InvalidProblemError: the existing text is no such table.
    """
    rows: list[Mapping[str, str]] = []
    columns: Sequence[str] = COLUMNS
    if existing.strip():
        reader = csv.DictReader(io.StringIO(existing))
        columns = reader.fieldnames or ()
        missing = set(READ_COLUMNS) - set(columns)
        if missing:
            raise InvalidProblemError.of("--into", f"is no table of runs: {min(missing)} is missing")
        rows = [old for old in reader if old.get("run_id") != row["run_id"]]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*rows, row])
    return out.getvalue()
