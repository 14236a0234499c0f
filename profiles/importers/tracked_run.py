"""Reads a training run that Weights & Biases or MLflow tracked, from exported files.

A W&B run is its history with ``config.yaml`` of the run's folder, or ``config.json``, next to it. The
history is the CSV that W&B's export API or a chart writes, or the scanned records as JSON or JSON lines.
An MLflow run is a folder of its file store: a file
``metrics/NAME`` with lines "timestamp value step", and a file ``params/NAME`` with a text
(mlflow/store/tracking/file_store.py).

Step times are those that training programs log by these names: ``iteration-time`` (Megatron-LM,
``training_log`` in megatron/training/training.py), ``train_step_timing in s`` (NeMo),
``time_metrics/end_to_end(s)`` (torchtitan, components/metrics.py) and ``elapsed_time_per_iteration_ms``
(nanotron, src/nanotron/trainer.py).
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from meshwright.profiles.documents import read_json, shown
from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.importers import megatron_log, nanotron_log, torchtitan_log
from meshwright.profiles.importers.foreign_file import MAX_PAYLOAD_BYTES, MAX_SECONDS, ForeignFile
from meshwright.profiles.importers.run_logs import MAX_BATCH, LoggedStep, RunLog
from meshwright.profiles.measurements import MeasuredRun
from meshwright.profiles.units import GIB, MILLISECOND_S

CONFIGS = ("config.yaml", "config.json")
HISTORIES = ("history.csv", "history.json", "history.jsonl")
_STEPS = ("_step", "step", "Step", "iteration")  # which step a record is of; W&B's own first
_OF_CHART = re.compile(r"^.{1,200} - (?=\S)")  # a chart's column: "RUN - METRIC"
_MOST_NAMED = 8  # metrics that an error lists
_MAX_STEP = 10**12
Settings = Mapping[str, str]  # leaves of the configuration as text: True, None, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """The metrics of one training program, and how its configuration is read."""

    title: str
    framework: str
    time: tuple[str, ...]  # names of the step time's metric, which differ between releases
    unit_s: float
    read: Callable[[RunLog, Settings], None]
    allocated: str = ""  # peak memory, with the bytes of its unit
    reserved: str = ""
    memory_unit: float = 1.0
    batch: str = ""


def _megatron(log: RunLog, settings: Settings) -> None:
    megatron_log.read_arguments(log, settings, "config")


def _torchtitan(log: RunLog, settings: Settings) -> None:
    degrees = {
        axis: settings[name]
        for axis, name in _DEGREES.items()
        if settings.get(name, "").isdigit()  # -1 is what the number of GPUs leaves
    }
    if {"tp", "pp", "dp_shard"} <= degrees.keys():
        torchtitan_log.note_mesh(log, degrees, "config")
    for name, ours in (("global_batch_size", "global_batch_size"), ("seq_len", "seq_length")):
        if settings.get(name, "").isdigit():
            log.note(ours, settings[name], "config")


_DEGREES = {
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
}


_PROGRAMS = (
    _Program(
        title="Megatron-LM",
        framework="megatron-lm",
        time=("iteration-time",),
        unit_s=1.0,
        read=_megatron,
        allocated="mem-max-allocated-bytes",
        batch="batch-size",
    ),
    _Program(
        title="NeMo",
        framework="megatron-lm",
        time=("train_step_timing in s",),
        unit_s=1.0,
        read=_megatron,
        batch="global_batch_size",
    ),
    _Program(
        title="torchtitan",
        framework="torchtitan",
        time=("time_metrics/end_to_end(s)",),
        unit_s=1.0,
        read=_torchtitan,
        reserved="memory/max_reserved(GiB)",
        memory_unit=GIB,
    ),
    _Program(
        title="nanotron",
        framework="nanotron",
        time=("time_per_iteration_ms", "elapsed_time_per_iteration_ms"),
        unit_s=MILLISECOND_S,
        read=lambda log, settings: nanotron_log.read_arguments(log, settings.items(), "config"),
        batch="global_batch_size",
    ),
)
_TIMES = tuple(name for program in _PROGRAMS for name in program.time)


def format_of_folder(path: Path) -> str | None:
    """Return the format of a folder: ``mlflow-run``, ``wandb-run``, or None for another one."""
    if (path / "metrics").is_dir() or any(path.glob("*/metrics")) or any(path.glob("*/*/metrics")):
        return "mlflow-run"
    return "wandb-run" if any((path / name).is_file() for name in HISTORIES) else None


def is_wandb_history(file: ForeignFile) -> bool:
    """Return whether a file is a history with the step times of a program."""
    line = file.text.split("\n", 1)[0] if file.text.lstrip()[:1] not in ("{", "[") else file.text
    return any(name in line for name in _STEPS) and any(name in line for name in _TIMES)


def read_wandb_run(path: Path | str) -> MeasuredRun:
    """Return the run of a W&B history with its configuration next to it.

    Args:
        path: the history, or the folder that holds it.

    Raises:
        ProfileError: the files are missing or broken, or no program's step times are in them.
    """
    place = Path(path)
    if place.is_dir():
        found = [place / name for name in HISTORIES if (place / name).is_file()]
        if not found:
            raise ProfileError(f"{shown(place.name)}: holds no {', '.join(HISTORIES)}")
        place = found[0]
    file = ForeignFile.open(place)
    config = next((place.parent / name for name in CONFIGS if (place.parent / name).is_file()), None)
    records = list(_records(file))
    settings = dict(_leaves(_config(config))) if config is not None else {}
    return _run(file, _by_metric(file, records), settings)


def read_mlflow_run(path: Path | str) -> MeasuredRun:
    """Return a run of MLflow's file store.

    Args:
        path: the run's folder, or one above it that holds this run alone.

    Raises:
        ProfileError: there is no run or more than one, a file is broken, or it lacks step times.
    """
    place = Path(path)
    runs = [place] if (place / "metrics").is_dir() else sorted(
        one.parent for pattern in ("*/metrics", "*/*/metrics") for one in place.glob(pattern)
    )  # fmt: skip
    if len(runs) != 1:
        names = ", ".join(shown(one.name) for one in runs[:_MOST_NAMED])
        message = (
            f"contains {len(runs)} runs: give the folder of one ({names})" if runs else "contains no run"
        )
        raise ProfileError(f"{shown(place.name)}: {message}")
    (run,) = runs
    metrics: dict[str, list[tuple[int, float]]] = {}
    for name, file in _files_below(run / "metrics"):
        metrics[name] = [_mlflow_value(file, *line) for line in file.lines() if line[1].strip()]
    params = {name: file.text.strip() for name, file in _files_below(run / "params")}
    file = ForeignFile(name=run.name, text="")
    return _run(file, metrics, dict(_leaves(params)))


def _files_below(folder: Path) -> Iterator[tuple[str, ForeignFile]]:
    """Yield files with their paths below a folder; empty ones are left out, as MLflow keeps empty texts."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size:
            yield path.relative_to(folder).as_posix(), ForeignFile.open(path)


def _mlflow_value(file: ForeignFile, number: int, line: str) -> tuple[int, float]:
    words, where = line.split(), f"line {number}"
    if len(words) != len(("timestamp", "value", "step")):
        raise file.fault(where, 'expected "timestamp value step"')
    return file.whole(words[2], where, low=0, high=_MAX_STEP), _value(file, words[1], where)


def _value(file: ForeignFile, value: object, where: str) -> float:
    """Return a number; not-a-number stays one, and is left out later."""
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return math.nan
    return file.number(value, where, low=-math.inf, high=math.inf)


def _records(file: ForeignFile) -> Iterator[Mapping[str, object]]:
    """Yield the records of a history: CSV, a JSON list, an object with ``history``, or JSON lines."""
    if file.text.lstrip()[:1] not in ("{", "["):
        for row in csv.DictReader(io.StringIO(file.text)):
            yield {
                _OF_CHART.sub("", name): value
                for name, value in row.items()
                if name is not None and not name.endswith(("__MIN", "__MAX"))
            }
        return
    lines = [(number, line) for number, line in file.lines() if line.strip()]
    if file.text.lstrip()[0] == "{" and len(lines) > 1 and lines[0][1].rstrip().endswith("}"):
        for number, line in lines:
            yield _json(file, line, f"line {number}")
        return
    text = file.text if file.text.lstrip()[0] == "{" else f'{{"history": {file.text}}}'
    records = _json(file, text, "").get("history")
    for number, record in enumerate(file.entries(records, "history")):
        yield file.mapping(record, f"record {number}")


def _json(file: ForeignFile, text: str, where: str) -> Mapping[str, object]:
    try:
        return read_json(text)
    except InvalidProblemError as fault:
        raise file.fault(where, fault.errors[0].message) from None


def _by_metric(
    file: ForeignFile, records: Iterable[Mapping[str, object]]
) -> dict[str, list[tuple[int, float]]]:
    """Return the values of the metrics that are read; others are named without values."""
    found: dict[str, list[tuple[int, float]]] = {}
    for number, record in enumerate(records):
        named = next((name for name in _STEPS if record.get(name) not in (None, "")), None)
        step = number if named is None else _value(file, record[named], f"record {number}, {named}")
        for name, value in record.items():
            values = found.setdefault(name, [])
            if name in _WANTED and value not in (None, ""):
                values.append((int(step), _value(file, value, f"record {number}, {name}")))
    return found


_WANTED = frozenset(
    (*_TIMES, *(name for one in _PROGRAMS for name in (one.allocated, one.reserved, one.batch) if name))
)


def _config(path: Path) -> Mapping[str, object]:
    """Return W&B's configuration: of ``config.yaml`` what is under ``value``, else as it is."""
    file = ForeignFile.open(path)
    try:
        whole = yaml.safe_load(file.text) if path.suffix == ".yaml" else read_json(file.text)
    except (yaml.YAMLError, InvalidProblemError, RecursionError):
        raise file.fault("", f"is not {path.suffix[1:].upper()}") from None
    return {
        name: value["value"] if isinstance(value, dict) and "value" in value else value
        for name, value in file.mapping(whole, "the file").items()
    }


def _leaves(tree: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield every leaf by its last name, as text; MLflow's names are paths already."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        elif isinstance(value, str | int | float | bool) or value is None:
            yield re.split(r"[./]", str(name))[-1], str(value)


def _run(
    file: ForeignFile, metrics: Mapping[str, Sequence[tuple[int, float]]], settings: Settings
) -> MeasuredRun:
    """Return the run of the program with step times in it.

    Raises:
        ProfileError: there are none.
    """
    program, time = next(
        ((one, name) for one in _PROGRAMS for name in one.time if metrics.get(name)), (None, "")
    )
    if program is None:
        there = ", ".join(shown(name) for name in sorted(metrics)[:_MOST_NAMED]) or "none"
        known = ", ".join(f"{one.time[-1]} ({one.title})" for one in _PROGRAMS)
        message = f"has no step times: expected the metric {known}. Its metrics: {there}"
        raise file.fault("", f"{message}. Megatron-LM logs it with --log-timers-to-tensorboard")
    log = RunLog(file=file, framework=program.framework)
    program.read(log, settings)
    batches = dict(metrics.get(program.batch, ()))
    for step, value in metrics[time]:
        if math.isnan(value):
            continue
        where = f"step {step}, {time}"
        seconds = file.positive(value, where, high=MAX_SECONDS / program.unit_s) * program.unit_s
        batch = batches.get(step)
        whole = None if batch is None else file.whole(int(batch), f"step {step}, batch", high=MAX_BATCH)
        log.add(LoggedStep(number=step, seconds=seconds, global_batch_size=whole))
    for name, is_reserved in ((program.allocated, False), (program.reserved, True)):
        for step, value in metrics.get(name, ()):
            most = MAX_PAYLOAD_BYTES / program.memory_unit
            peak = file.number(value, f"step {step}, {name}", high=most) * program.memory_unit
            log.saw_memory(0, None if is_reserved else peak, peak if is_reserved else None)
    return log.finish()
