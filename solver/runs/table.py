"""Measured runs: one row of a table as a problem, a configuration, and measurements."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError, shown_name
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.units import GIB
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Problem
from meshwright.solver.runs.cells import REQUIRED_COLUMNS, Cells, read_cells
from meshwright.solver.runs.headings import READ_HEADINGS
from meshwright.solver.runs.layouts import (
    READ_COLUMNS,
    ModelReader,
    RefusedRunError,
    cluster_of,
    configuration_of,
    framework_of_run,
    gpu_of_run,
    gpu_warning,
    model_of,
    precision_of_run,
    release_of,
    vocabulary_warning,
    workload_of,
)
from meshwright.solver.runs.recipes import recipe_family_of, with_recipe

MEMORY_KINDS = ("unknown", "allocated", "reserved", "device", "first_step")  # what a peak counts
MEMORY_RANKS = ("unknown", "first", "last", "worst")  # the rank with this peak
CATALOG_RUNS = CATALOG / "runs" / "measured_runs.csv"
_MOST_NAMED = 5  # headings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasurement:
    """Values that a run reported; None where it did not."""

    step_time_s: float | None
    peak_memory_bytes: float | None
    memory_kind: str  # of MEMORY_KINDS
    memory_rank: str  # of MEMORY_RANKS
    out_of_memory: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """All inputs of a prediction."""

    problem: Problem
    configuration: Configuration
    framework: str
    warnings: tuple[str, ...]  # what was assumed
    recompute_known: bool  # False: the source does not state whether layers were recomputed
    sharding_known: bool  # False: it does not state the sharding of optimizer states
    software_known: bool = True  # False: the framework is the nearest known one
    release: str = ""  # of the software, as the source states it; "" where it does not
    perhaps: RunShape | None = None  # with a recipe's switches, where the source names no recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row; identity and measurement are kept apart from the shape that is predicted."""

    run_id: str
    cluster: str
    source: str
    rank_group: str | None
    shape: RunShape | None  # None: refused
    refused_reason: str | None
    measured: RunMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecipe:
    """What a published run had in force, without anything that it measured."""

    source: str  # repository@release:file of its switches
    shape: RunShape


PlanReader = Callable[[str], RunShape]


def _no_plans(_: str) -> RunShape:
    """Refuse plans, if no reader of plans is given.

    Raises:
        RefusedRunError: always.
    """
    raise RefusedRunError("the row comes from a plan, and this command can't read it")


def read_runs(
    path: Path, plan_shape: PlanReader = _no_plans, model_named: ModelReader = find_model
) -> tuple[Run, ...]:
    """Return all rows of a table of runs (columns: ``profiles/catalog/runs/columns.md``).

    Args:
        path: the table.
        plan_shape: reads the cell ``plan`` of a row with a plan's facts; it may raise
            InvalidProblemError or RefusedRunError.
        model_named: reads the cell ``model`` of a row without a model's sizes; it may raise
            InvalidProblemError.

    Raises:
        InvalidProblemError: the file cannot be read or lacks a required column, or two rows have one
            ``run_id``.
    """
    lines: dict[str, int] = {}
    for cells in (rows := list(read_cells(path))):
        name = cells.text("run_id")
        if name is not None and lines.setdefault(name, cells.line) != cells.line:
            raise cells.fault(
                "run_id", f'"{name[:40]}" is the run of line {lines[name]} already', "a different run_id"
            )
    return tuple(_run_of(cells, plan_shape, model_named) for cells in rows)


@lru_cache(maxsize=64)
def published_recipes(
    layers: int, hidden_size: int, gpu: str | None = None, precision: str | None = None
) -> tuple[PublishedRecipe, ...]:
    """Return the catalog's runs with published switches and a format, of models of these sizes.

    ``gpu``: the slug of the GPU that they ran on; None: any. ``precision``: likewise.
    """
    found = list[PublishedRecipe]()
    for line, text in enumerate(_catalog_lines()[1:], start=2):
        if f",{layers},{hidden_size}," not in text:  # few are parsed
            continue
        (row,) = csv.DictReader([_catalog_lines()[0], text])
        cells = Cells(line, row)
        source = cells.text("switch_source")
        if not source or not cells.text("precision"):
            continue
        if precision and precision_of_run(cells)[0] != precision:
            continue
        try:
            if gpu and gpu_of_run(cells.text("gpu") or "", cells.number("gpu_memory_gb")).slug != gpu:
                continue
            found.append(PublishedRecipe(source=source, shape=_shape_of(cells, _no_plans, find_model)))
        except (RefusedRunError, InvalidProblemError):
            continue
    return tuple(found)


@cache
def _catalog_lines() -> list[str]:
    return CATALOG_RUNS.read_text("utf-8").splitlines()


def column_names() -> tuple[str, ...]:
    """Return the columns that a table may have, those that it needs first."""
    return tuple(dict.fromkeys(("model", *REQUIRED_COLUMNS, "step_time_s", *sorted(_columns()))))


@cache
def _columns() -> frozenset[str]:
    """Return the columns that a table may have, those that describe a run beside what is read included."""
    return frozenset((*_catalog_lines()[0].split(","), *READ_COLUMNS, *READ_HEADINGS, "plan"))


def _unread(cells: Cells) -> str | None:
    """Return which headings of a row's table are no columns, so that nothing reads them."""
    names = [shown_name(name) for name in cells.values if name and name not in _columns()]
    return f"columns that are not read: {', '.join(names[:_MOST_NAMED])}" if names else None


def _shape_of(cells: Cells, plan_shape: PlanReader, model_named: ModelReader) -> RunShape:
    plan = cells.text("plan")
    if plan is not None:
        return plan_shape(plan)
    model = model_of(cells, model_named)
    shape, (filled, note) = _shape_as_stated(cells, model), with_recipe(cells, model)
    if note is None:
        return shape
    other = _shape_as_stated(filled, model)
    if recipe_family_of(cells) is not None:
        return replace(
            other, warnings=(*other.warnings, f"switches that are not stated are those of {note}")
        )
    between = f"no switches are stated: predicted between none of them and those of {note}"
    return replace(shape, perhaps=other, warnings=(*shape.warnings, between))


def _shape_as_stated(cells: Cells, model: ModelSpec) -> RunShape:
    framework, warning = framework_of_run(cells)
    configuration = configuration_of(cells, model, framework)
    workload = workload_of(cells, framework, model)
    cluster = cluster_of(cells)
    problem = Problem(model=model, cluster=cluster, workload=workload, launcher="none")
    return RunShape(
        problem=problem,
        configuration=configuration,
        framework=framework,
        warnings=tuple(
            one
            for one in (
                warning,
                vocabulary_warning(cells, model),
                gpu_warning(cells, cluster),
                _unread(cells),
            )
            if one
        ),
        recompute_known=cells.text("recompute") is not None
        or framework_facts(framework).unstated_recompute == "none",
        sharding_known=cells.text("zero_stage") is not None,
        software_known=warning is None,
        release=release_of(cells),
    )


_NOTHING_MEASURED = RunMeasurement(
    step_time_s=None,
    peak_memory_bytes=None,
    memory_kind="unknown",
    memory_rank="unknown",
    out_of_memory=None,
)


def _run_of(cells: Cells, plan_shape: PlanReader, model_named: ModelReader) -> Run:
    shape, measured, reason = None, _NOTHING_MEASURED, None
    try:
        measured = _measurement_of(cells)
        shape = _shape_of(cells, plan_shape, model_named)
    except RefusedRunError as error:
        reason = str(error)
    except InvalidProblemError as error:
        reason = error.errors[0].sentence()
    return Run(
        run_id=cells.text("run_id") or f"line-{cells.line}",
        cluster=cells.text("cluster") or "unknown",
        source=cells.text("source") or "unknown",
        rank_group=cells.text("rank_group"),
        shape=shape,
        refused_reason=reason,
        measured=measured,
    )


def _measurement_of(cells: Cells) -> RunMeasurement:
    """Return the measured cells, if the table has them.

    Raises:
        InvalidProblemError: a cell is not such a number or word, or a run returned a time and failed.
    """
    seconds, peak = cells.number("step_time_s"), cells.number("peak_memory_gib")
    rank, failed = cells.word("memory_rank", MEMORY_RANKS) or "unknown", cells.flag("oom")
    if rank == "unknown" and cells.text("framework_family") == "nanotron":
        rank = "first"  # nanotron logs it (src/nanotron/utils.py, log_memory)
    if seconds == 0.0:
        raise cells.fault(
            "step_time_s", "step time must be positive", "a positive number, or empty if not measured"
        )
    if failed and seconds is not None:
        raise cells.fault("oom", "a run that ran out of memory has no step_time_s", "0, or no step_time_s")
    return RunMeasurement(
        step_time_s=seconds,
        peak_memory_bytes=peak * GIB if peak else None,
        memory_kind=cells.word("memory_kind", MEMORY_KINDS) or "unknown",
        memory_rank=rank,
        out_of_memory=failed,
    )
