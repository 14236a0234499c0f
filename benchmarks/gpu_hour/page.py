"""The table of a GPU hour, and the page ``docs/measured-here.md`` that is made from its folder."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.gpu_hour.drawn import Family, drawn, families
from benchmarks.gpu_hour.trainer_page import section
from benchmarks.gpu_hour.work import JOURNAL, Journal
from meshwright.profiles.library import find_gpu

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "data" / "measured_here"
PAGE = ROOT / "docs" / "measured-here.md"
TABLE = "results.csv"
GIB = 2**30
AIM_PERCENT = 3.0
SHOWN_FOR = "h100-sxm-80gb"  # whose draw the page shows before anything is measured
MOST_FILES, MOST_BYTES = 8, 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One draw: what was predicted first, then what was measured."""

    name: str
    draw: dict[str, Any]
    forecasts: dict[str, dict[str, Any]]  # by origin
    measured: dict[str, Any] | None
    outcome: str  # measured, out of memory, not run, or why it failed

    def error_percent(self, origin: str) -> float | None:
        """Predicted over measured step time, less 1."""
        if self.measured is None or origin not in self.forecasts:
            return None
        return 100.0 * (
            float(self.forecasts[origin]["step_time_s"]) / float(self.measured["step_time_s"]) - 1.0
        )

    def memory_error_percent(self) -> float | None:
        """Predicted over allocated peak memory, less 1: of the profile's forecast, or the catalog's."""
        peak = self.measured.get("peak_memory_bytes") if self.measured is not None else None
        if not peak or not self.forecasts:
            return None
        found = self.forecasts.get("profile") or self.forecasts["catalog"]
        return 100.0 * (float(found["peak_memory_bytes"]) / float(peak) - 1.0)


def rows_of(journal: Journal) -> list[Row]:
    """Return all draws of a journal, with the predictions that were written before training began."""
    machine = journal.found("machine")
    draws = {f"train-{one['number']:02d}": one for one in machine["result"]["draws"]} if machine else {}
    forecasts = _forecasts(journal)
    for name in [name for name in forecasts if name.startswith("megatron-")]:
        draws[name] = draws[f"train-{name.removeprefix('megatron-')}"]
    return [_row(journal, name, draw, forecasts.get(name, [])) for name, draw in draws.items()]


def _forecasts(journal: Journal) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in journal.lines:
        if line["item"].startswith("predict-") and line["event"] == "done":
            found |= line["result"].get("forecasts", {})
    return found


def _row(journal: Journal, name: str, draw: dict[str, Any], forecasts: list[dict[str, Any]]) -> Row:
    done = journal.found(name)
    ends = [
        line for line in journal.lines if line["item"] == name and line["event"] in ("failed", "cut off")
    ]
    outcome = "measured" if done else ends[-1]["why"] if ends else "not run"
    return Row(
        name=name,
        draw=draw,
        forecasts={one["origin"]: one for one in forecasts},
        measured=done["result"] if done else None,
        outcome=outcome,
    )


def left_over(journal: Journal) -> int:
    """Count the items of the draw that have not ended."""
    machine = journal.found("machine")
    if machine is None:
        return 1
    names = {line["item"] for line in journal.lines if line["event"] == "began"}
    expected = {f"train-{one['number']:02d}" for one in machine["result"]["draws"]}
    expected |= {"launches", "predict-megatron", "trainers"} | set(_forecasts(journal))
    trainers = journal.found("trainers")
    expected |= {run["name"] for run in trainers["result"]["runs"]} if trainers else set()
    return sum(not journal.ended(name) for name in names | expected if not name.startswith("part-"))


COLUMNS = (
    "run", "model", "micro_batch_size", "seq_length", "num_microbatches", "recompute", "optimizer",
    "predicted_from_profile_s", "predicted_from_catalog_s", "measured_s", "error_profile_percent",
    "error_catalog_percent", "measured_peak_gib", "predicted_peak_gib", "outcome",
)  # fmt: skip


def _cells(row: Row) -> list[str]:
    sizes = [str(row.draw[name]) for name in COLUMNS[2:7]]
    of_profile, of_catalog = (row.forecasts.get(origin, {}) for origin in ("profile", "catalog"))
    measured = row.measured or {}
    peaks = [(one or {}).get("peak_memory_bytes") for one in (measured, of_profile or of_catalog)]
    return [
        row.name,
        row.draw["family"],
        *sizes,
        _number(of_profile.get("step_time_s"), 5),
        _number(of_catalog.get("step_time_s"), 5),
        _number(measured.get("step_time_s"), 5),
        _number(row.error_percent("profile"), 2),
        _number(row.error_percent("catalog"), 2),
        *(_number(peak and peak / GIB, 2) for peak in peaks),
        row.outcome,
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def summary(folder: Path) -> str:
    """Write ``results.csv`` and return the errors as one line."""
    rows = rows_of(Journal(folder))
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row) for row in rows)
    (folder / TABLE).write_text(text.getvalue(), encoding="utf-8")
    counted = sum(row.measured is not None for row in rows)
    return f"{counted} of {len(rows)} runs measured; {_errors(rows)}"


def _errors(rows: Sequence[Row]) -> str:
    """``mean error of the step: 2.1 % from the profile (median 1.8), 9.0 % from the catalog (8.1)``."""
    said = []
    for origin in ("profile", "catalog"):
        found = [abs(error) for row in rows if (error := row.error_percent(origin)) is not None]
        if found:
            said.append(f"{fmean(found):.1f} % from the {origin} (median {median(found):.1f})")
    return f"mean error of the step: {', '.join(said)}" if said else "nothing to compare yet"


def kept(folder: Path) -> int:
    """Copy the results to a folder of their machine and seed, unless rehearsed, too many or too large."""
    journal = Journal(folder)
    machine = journal.found("machine")
    files = sorted(one for one in folder.iterdir() if one.is_file()) if folder.is_dir() else []
    large = [one.name for one in files if one.stat().st_size >= MOST_BYTES]
    fault = (
        f"{folder} has no {JOURNAL} of a GPU" if machine is None or machine["result"]["kind"] != "cuda" else
        f"{folder} has {len(files)} files, allowed are {MOST_FILES}" if len(files) > MOST_FILES else
        f"{large[0]} is larger than {MOST_BYTES // 2**20} MiB" if large else None
    )  # fmt: skip
    if machine is None or fault is not None:
        print(f"error: {fault}")
        return 2
    into = KEPT / f"{machine['result']['priced_as']}-seed-{machine['result']['seed']}"
    into.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, into / file.name)
    print(f"{len(files)} files in {into.relative_to(ROOT)}")
    return 0


def written() -> int:
    """Write the page from the committed folders."""
    PAGE.write_text(text_of(KEPT), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
    return 0


# --------------------------------------------------------------------------------------------------
# The page.


_HEAD = """# Measured here

We profiled three models on one GPU. From the profiles we predicted the steps of twenty configurations,
which a committed seed draws, and then measured these steps in training. No constant was fitted on them.
Then TRL's and transformers' own trainers ran twenty more, which we predicted from their commands.
Read [a GPU hour](howto/gpu-hour.md) to run it on your GPU. Run `make gpu-hour ARGS=--page` to generate this
page from `benchmarks/data/measured_here`.
"""
_FIGURES = (
    "| from profile | from catalog | measured | error, profile | error, catalog | peak memory | its error |"
)
_SIZES = "| run | model | micro-batch | sequence | micro-batches | recompute | optimizer "


def text_of(folder: Path) -> str:
    """Return the whole page: each machine that measured, the latest first, or that none did."""
    journals = [Journal(one) for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
    measured = [
        (machine, journal)
        for journal in journals
        if (machine := journal.found("machine")) is not None and machine["result"]["kind"] == "cuda"
    ]
    if not measured:
        return "\n".join([_HEAD, *_nothing_yet()])
    measured.sort(key=lambda one: str(one[0]["at"]), reverse=True)
    parts = [_measured(journal, machine["result"], str(machine["at"])) for machine, journal in measured]
    return "\n".join([_HEAD, *(line for part in parts for line in part)])


def _nothing_yet() -> list[str]:
    """State that there are no figures, and list what will be trained."""
    kinds = families(tiny=False)
    models = {one.name: _title(one) for one in kinds}
    memory_bytes = find_gpu(SHOWN_FOR).memory_bytes
    lines = [
        "**Nothing has been measured on a GPU yet**: no machine with one could be had since the command",
        "exists. CI rehearses it on a CPU, with models too small for their figures to mean anything; none",
        "is shown here.",
        f"The aim is a mean error of at most {AIM_PERCENT:.0f} % on the twenty.",
        "",
        f"To be trained on one GPU with {memory_bytes / GIB:.0f} GiB, each configuration predicted first:",
        "",
        f"{_SIZES}| predicted | measured | error |",
        "|---" * 10 + "|",
    ]
    for one in drawn(kinds, memory_bytes):
        sizes = f"{one.micro_batch_size} | {one.seq_length} | {one.num_microbatches} | {one.recompute}"
        lines.append(f"| {one.name} | {models[one.family]} | {sizes} | {one.optimizer} | – | – | – |")
    return [*lines, ""]


def _title(family: Family) -> str:
    adapters = f", LoRA of rank {family.lora_rank}" if family.lora_rank else ""
    return f"{family.model.name}{adapters}"


def _measured(journal: Journal, machine: dict[str, Any], at: str) -> list[str]:
    """Describe the machine, its seed and commit, the errors, every run and the launches."""
    rows = rows_of(journal)
    own = [row for row in rows if row.name.startswith("train-")]
    software = f"torch {machine['torch']}, CUDA {machine['cuda']}, driver {machine.get('driver')}"
    counted, errors = sum(row.measured is not None for row in own), _errors(own)
    commit = f", commit {machine['commit']}" if machine.get("commit") else ""
    lines = [
        f"## {machine['device']}",
        "",
        f"Seed {machine['seed']}, {at[:10]}{commit}. {software}, priced as `{machine['priced_as']}`.",
        f"{counted} of {len(own)} runs were measured. {errors[:1].upper()}{errors[1:]}.",
        "*From the profile* uses the layers that were timed on this GPU, *from the catalog* does not.",
        f"The aim is {AIM_PERCENT:.0f} % from the profile. Times are wall-clock times of whole steps.",
        "",
        f"{_SIZES}{_FIGURES}",
        "|---" * 14 + "|",
        *(_line(row) for row in rows),
        "",
        *_launch_lines(journal),
        *_not_run(journal, rows),
        *section(journal),
    ]
    return [*lines, ""]


def _line(row: Row) -> str:
    """Write one run as a row."""
    seconds = [row.forecasts.get(origin, {}).get("step_time_s") for origin in ("profile", "catalog")]
    seconds.append(row.measured["step_time_s"] if row.measured else None)
    times = [f"{1e3 * one:.1f} ms" if one is not None else "–" for one in seconds]
    if row.measured is None:
        times[-1] = row.outcome
    errors = [_percent(row.error_percent(origin)) for origin in ("profile", "catalog")]
    peak = row.measured.get("peak_memory_bytes") if row.measured else None
    memory = [f"{peak / GIB:.1f} GiB" if peak else "–", _percent(row.memory_error_percent())]
    sizes = [str(row.draw[name]) for name in COLUMNS[2:7]]
    return f"| {' | '.join([row.name, row.draw['family'], *sizes, *times, *errors, *memory])} |"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f} %"


def _launch_lines(journal: Journal) -> list[str]:
    """List the kernels that layers launch, if they were counted."""
    found = journal.found("launches")
    if found is None:
        return []
    lines = [
        "### Launches of a layer",
        "",
        "You see the kernels of one layer, as torch's profiler counts them. The times use 128 tokens, too",
        "few to keep a GPU busy.",
        "",
        "| layer | forward | backward | forward, launch-bound | backward, launch-bound |",
        "|---|---|---|---|---|",
    ]
    for one in found["result"]["layers"]:
        floors = " | ".join(f"{1e3 * one[f'{name}_floor_s']:.2f} ms" for name in ("forward", "backward"))
        lines.append(f"| {one['layer']} | {one['forward']} | {one['backward']} | {floors} |")
    return [*lines, ""]


def _not_run(journal: Journal, rows: Sequence[Row]) -> list[str]:
    """State why Megatron-Core did not run, if it did not."""
    if any(row.name.startswith("megatron-") for row in rows):
        return []
    ends = [
        line for line in journal.lines if line["item"] == "predict-megatron" and line["event"] == "failed"
    ]
    return [f"Megatron-Core: not run ({ends[-1]['why'] if ends else 'no time was left'}).", ""]
