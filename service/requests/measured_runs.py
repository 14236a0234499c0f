"""A training log as one row of a table of measured runs, which ``calibrate`` and ``validate`` read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.inline import model_from_mapping
from meshwright.profiles.library import find_model
from meshwright.profiles.measurements import MeasuredRun
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import framework_of
from meshwright.profiles.units import GIB
from meshwright.service.requests.documents import read_model_file
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.answer import Plan, settled_problem
from meshwright.solver.calibration.observations import require_equal_nodes
from meshwright.solver.configuration import Configuration, configuration_from_json
from meshwright.solver.problem import Problem
from meshwright.solver.runs.layouts import READ_COLUMNS, RefusedRunError
from meshwright.solver.runs.table import Run, RunShape, read_runs

NEEDED = (  # without these no run is predicted
    "num_gpus", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "micro_batch_size", "global_batch_size", "seq_length",
)  # fmt: skip
_MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "peak_memory_gib", "memory_kind", "memory_rank", "oom")
COLUMNS = (*READ_COLUMNS, "framework", "source", "model", *_MEASURED)
PLAN = "plan"  # the column of a row with a plan's facts: its problem and configuration as JSON
OF_A_PLAN = ("run_id", "cluster", "source", "memory_kind", "memory_rank")  # what may still be set
_FAMILIES = {"deepspeed": "deepspeed-zero"}  # others are called as the table calls them
_MODEL_FILES = (".json", ".yaml", ".yml")
_AXES = ("tensor", "pipeline", "context")


def run_row(
    run: MeasuredRun,
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    run_id: str,
    cluster: str,
    source: str,
    settings: Mapping[str, object],
) -> dict[str, str]:
    """Return a log as a row, with facts that the log does not contain; unknown cells stay empty.

    ``settings``: parts of the configuration that override the log's.

    Raises:
        InvalidProblemError: a setting is not a column of a run.
    """
    row: dict[str, object] = {
        "run_id": run_id,
        "cluster": cluster,
        "source": source,
        "gpu": gpu.slug,
        "gpus_per_node": gpu.gpus_per_node,
        "framework": run.framework,
        "framework_family": _FAMILIES.get(run.framework, run.framework),
        "precision": "bf16" if "bf16" in gpu.peak_flops else "fp16",
        **_model_cells(model),
        **{name: value for name, value in run.configuration.items() if name in COLUMNS},
        **run.words,
        **settings,
        **_measured_cells(run),
    }
    if row.keys() - set(COLUMNS):
        raise InvalidProblemError.of("--set", "names no column of a run", allowed=", ".join(COLUMNS))
    row.setdefault("data_parallel_size", _data_parallel_size(row))
    return {name: _text(row.get(name)) for name in COLUMNS}


def plan_row(run: MeasuredRun, plan: Plan, problem: Problem, names: Mapping[str, object]) -> dict[str, str]:
    """Return the row of a log of a plan's run; all facts except measured ones are the plan's.

    Args:
        run: the values in the log.
        plan: the plan that was run.
        problem: the question that the plan answers.
        names: ``run_id``, ``cluster`` and ``source`` of the row, and how its memory was measured.

    Raises:
        InvalidProblemError: the log contradicts the plan; one error for each fact, with both values.
    """
    settled = settled_problem(plan, problem)
    require_equal_nodes(plan.config, "--plan")
    faults = list(contradictions(run, plan, settled))
    if faults:
        raise InvalidProblemError(faults)
    asked = {"problem": problem_to_mapping(replace(settled, profile=None)), "config": asdict(plan.config)}
    row = {
        "cluster": settled.cluster.name,
        "framework": run.framework,
        "model": settled.model.name,
        **_measured_cells(run),
        **names,
        PLAN: json.dumps(asked, separators=(",", ":"), allow_nan=False),
    }
    return {name: _text(row.get(name)) for name in (*COLUMNS, PLAN)}


def contradictions(run: MeasuredRun, plan: Plan, settled: Problem) -> Iterator[FieldError]:
    """Yield the facts of a log that contradict the plan it is said to be of."""
    log = launcher_capabilities(settled.launcher).training_log
    if run.framework != log:
        stands = f"plan {plan.plan_id} is for launcher {settled.launcher}"
        yield FieldError(
            pointer="--plan",
            message=f"the log is {run.framework}'s, {stands}; name the plan of that launcher",
            allowed=f"a log of {log}" if log else None,
        )
        return
    wanted = _facts_of(plan.config, settled, run)
    for name, value in (*run.configuration.items(), *run.words.items()):
        allowed = wanted.get(name, (value,))
        if value not in allowed:
            yield FieldError(
                pointer="--plan",
                message=f"{name} is {value} in the log, {allowed[0]} in plan {plan.plan_id}",
            )


def _facts_of(c: Configuration, settled: Problem, run: MeasuredRun) -> dict[str, tuple[int | str, ...]]:
    """Return the facts of a plan that a log may state, by glossary names; the plan's own value comes first.

    DeepSpeed prints as world size the ranks that share no model (``DeepSpeedConfig``, runtime/config.py).
    Where one rank holds every state, sharding is the same on and off.
    """
    model, workload = settled.model, settled.workload
    ranks = c.data_parallel_size * c.context_parallel_size
    found: dict[str, tuple[int | str, ...]] = {
        name: (int(getattr(c, name)),)
        for name in (
            "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size",
            "expert_parallel_size", "data_parallel_size", "virtual_pipeline_size", "micro_batch_size",
            "num_microbatches", "sequence_parallel", "num_gpus",
        )
    }  # fmt: skip
    if run.framework == "deepspeed":
        found["num_gpus"] = (c.num_gpus, ranks)
    if ranks > 1:
        found["zero_stage"] = (c.zero_stage,)
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        found[name] = (int(getattr(model, name)),)
    if model.moe is None:
        found["ffn_hidden_size"] = (model.ffn_hidden_size,)
    else:
        found["num_experts"] = (model.moe.num_experts,)
    return found | {
        "global_batch_size": (workload.global_batch_size,),
        "seq_length": (workload.seq_length,),
        "precision": (workload.precision,),
        "recompute": (c.recompute_granularity,),
    }


def read_table(path: Path) -> tuple[Run, ...]:
    """Return the rows of a table of runs, with rows of plans and models of files.

    A row without a model's sizes has the model of its cell ``model``: a name of the catalog, a hub id, or a
    ``config.json`` with its path from the table's folder.

    Raises:
        InvalidProblemError: as ``read_runs``.
    """
    return read_runs(path, shape_of_plan, partial(_model_named, path.parent))


def _model_named(folder: Path, text: str) -> ModelSpec:
    path = folder / text
    if path.suffix.lower() not in _MODEL_FILES:
        return find_model(text)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return model_from_mapping({"name": name, **read_model_file(path)})


def shape_of_plan(text: str) -> RunShape:
    """Return the shape of a row with this text in its cell ``plan``.

    Raises:
        RefusedRunError: the text is not a plan of this version.
        InvalidProblemError: its problem is wrong.
    """
    try:
        asked = json.loads(text)
        configuration = configuration_from_json(asked["config"])
        problem = parse_problem(asked["problem"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RefusedRunError(
            "the cell plan was written by another version; import the log again"
        ) from None
    return RunShape(
        problem=problem,
        configuration=configuration,
        framework=framework_of(problem.launcher),
        warnings=(),
        recompute_known=True,
        sharding_known=True,
    )


def _model_cells(model: ModelSpec) -> dict[str, object]:
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
    """Return the measured values of the run: reserved memory if it is known, else allocated."""
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
    gpus = row.get("num_gpus")
    others: list[Any] = [row.get(f"{axis}_parallel_size") or 1 for axis in _AXES]
    if not isinstance(gpus, int) or not all(isinstance(size, int) for size in others):
        return None
    return gpus // prod(others) or None


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table_with(existing: str, row: Mapping[str, str]) -> str:
    """Return the text of a table with one more row; a row of the same ``run_id`` is replaced.

    Columns that the table lacks and the row fills are added; a cell left out means unknown.

    Raises:
        InvalidProblemError: the existing text is not such a table.
    """
    rows: list[Mapping[str, str]] = []
    columns: Sequence[str] = tuple(row)
    if existing.strip():
        reader = csv.DictReader(io.StringIO(existing))
        columns = reader.fieldnames or ()
        if "run_id" not in columns:
            raise InvalidProblemError.of("--into", "is not a table of runs: the column run_id is missing")
        columns = (*columns, *(name for name, cell in row.items() if cell and name not in columns))
        rows = [old for old in reader if old.get("run_id") != row["run_id"]]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*rows, row])
    return out.getvalue()
