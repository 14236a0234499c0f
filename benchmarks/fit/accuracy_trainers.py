"""Runs of fine-tuning by launchers' own trainers next to predictions: ``docs/accuracy-fine-tuning.md``.

Nothing is fitted on them: what they are predicted with is read in the sources of the launchers. Each run is
predicted from the command that starts it, as the reader of launch files takes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.fit.accuracy_tables import table
from benchmarks.gpu_hour.page import KEPT
from benchmarks.gpu_hour.trainer_page import Trained, shown, trained_in
from benchmarks.gpu_hour.trainers import ATTENTION, TrainerRun, forecast_of
from benchmarks.gpu_hour.work import Journal

RUNS = Path(__file__).parent.parent / "data" / "trainer_runs.jsonl"
DOCUMENT = Path(__file__).parents[2] / "docs" / "accuracy-fine-tuning.md"
_GIB = 2**30
_GPU = "h100-sxm-80gb"
INTRODUCTION = """# Fine-tuning: predicted and measured

Run `make accuracy` to generate this page. Below are steps of TRL's and transformers' own trainers on one
{gpu} ({releases}): the first six from `benchmarks/data/trainer_runs.jsonl`, the others from
`benchmarks/data/measured_here`. Each prediction starts from the command and uses the catalog alone: no
profile of this GPU, and what we read in the launchers' sources. No constant was fitted on these runs.
Still, we wrote terms with these runs in view: expect more of new ones. [Measured here](measured-here.md)
has what was predicted before the runs.

Step times are {time:.1f} % off on average (median {time_median:.1f} %), and the 80 % interval holds
{inside} of {runs}. Peak memory is {memory:.1f} % off (median {memory_median:.1f} %). *Device* is what
`nvidia-smi` shows, and what we predict. *Allocated* is what torch's tensors take of it.
"""
WEAKNESS = """
Where a micro-batch has few tokens, a GPU waits for its host: launching the kernels of a layer takes longer
than running them. Such steps vary by 15 % from one to the next, as the host's time does.
"""


def read_trainer_runs(path: Path = RUNS) -> tuple[Mapping[str, Any], list[Trained]]:
    """Return the releases and the GPU of the runs, and the runs with today's predictions."""
    head, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return head, [*map(_open_run, rows), *_drawn_runs()]


def _open_run(row: Mapping[str, Any]) -> Trained:
    run = TrainerRun(
        name=row["id"], trainer=row["trainer"], model=row["model"], seq_length=row["seq"],
        micro_batch_size=row["mbs"], accumulation=row["ga"], checkpointing=row["gc"],
        weights="bfloat16" if row.get("bf16_weights") else "float32", lora_rank=row.get("lora", 0),
        lora_targets=ATTENTION if row.get("lora") else (), attention="sdpa", liger=row.get("liger", False),
    )  # fmt: skip
    measured = {
        "steps_s": row["steps_s"], "allocated_bytes": row["allocated_gib"] * _GIB,
        "device_bytes": row["device_used_gib"] * _GIB, "attention_taken": "sdpa",
    }  # fmt: skip
    return Trained(run=run, predicted=forecast_of(run, _GPU), measured=measured, outcome="measured")


def _drawn_runs() -> Iterator[Trained]:
    for folder in sorted(KEPT.iterdir()):
        journal = Journal(folder)
        machine = journal.found("machine")
        gpu = machine["result"]["priced_as"] if machine else _GPU
        for one in trained_in(journal):
            if one.measured is not None:
                yield Trained(
                    run=one.run,
                    predicted=forecast_of(one.run, gpu),
                    measured=one.measured,
                    outcome="measured",
                )


def document(head: Mapping[str, Any], runs: Sequence[Trained]) -> str:
    """Return the page."""
    times, peaks = [abs(run.error) for run in runs], [abs(run.memory_error) for run in runs]
    text = INTRODUCTION.format(
        gpu=head["gpu"],
        releases=", ".join(f"{name} {head[name]}" for name in ("trl", "transformers", "peft", "torch")),
        time=fmean(times), time_median=median(times), memory=fmean(peaks), memory_median=median(peaks),
        runs=len(runs), inside=sum(run.inside for run in runs),
    )  # fmt: skip
    titles = ["run", "trainer", "model", "trained", "micro-batch", "step s", "predicted s", "%",
              "allocated GiB", "device GiB", "predicted GiB", "%"]  # fmt: skip
    return "\n".join([text, *table(titles, [_cells(run) for run in runs])]) + WEAKNESS


def _cells(one: Trained) -> list[str]:
    measured = one.measured or {}
    return [
        *shown(one.run), f"{one.step_s:.3f}", f"{one.predicted['step_time_s']:.3f}", f"{one.error:+.1f}",
        f"{measured['allocated_bytes'] / _GIB:.1f}", f"{measured['device_bytes'] / _GIB:.1f}",
        f"{one.predicted['peak_memory_bytes'] / _GIB:.1f}", f"{one.memory_error:+.1f}",
    ]  # fmt: skip


def write() -> None:
    """Write the page."""
    DOCUMENT.write_text(document(*read_trainer_runs()), encoding="utf-8")
