"""Runs of fine-tuning by launchers' own trainers next to predictions: ``docs/accuracy-fine-tuning.md``.

Nothing is fitted on them: what they are predicted with is read in the sources of the launchers. Each run is
predicted from the command that starts it, as the reader of launch files takes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import comb
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.fit.accuracy_tables import table
from benchmarks.gpu_hour.page import KEPT
from benchmarks.gpu_hour.trainer_page import Trained, shown, trained_in
from benchmarks.gpu_hour.trainers import ATTENTION, TrainerRun, forecast_of
from benchmarks.gpu_hour.work import Journal
from meshwright.profiles.units import GIB

RUNS = Path(__file__).parent.parent / "data" / "trainer_runs.jsonl"
DOCUMENT = Path(__file__).parents[2] / "docs" / "accuracy-fine-tuning.md"
_GPU = "h100-sxm-80gb"
_SHOWN = ("allocated", "reserved", "device")
_MOMENTS = {"forward": ("forward",), "backward": ("loss", "backward"), "optimizer": ("optimizer step",)}
INTRODUCTION = """# Fine-tuning: predicted and measured

Run `make accuracy` to generate this page. Below are steps of TRL's and transformers' own trainers on one
{gpu} ({releases}): the first six from `benchmarks/data/trainer_runs.jsonl`, the others from
`benchmarks/data/measured_here`. Each prediction starts from the command and uses the catalog alone: no
profile of this GPU, and what we read in the launchers' sources. No constant was fitted on these runs.
Still, we wrote terms with these runs in view: expect more of new ones. [Measured here](measured-here.md)
has what was predicted before the runs.

Step times are {time:.1f} % off on average (median {time_median:.1f} %), and the 80 % interval holds
{inside} of {runs}. That interval covers what single GPUs differ by, too, which two sessions on one kind of
machine can't show. An interval that holds 80 % of all runs holds as many of {runs} or more with
a chance of {chance:.0f} %. Of the {first_runs} that were predicted before we wrote these terms it held
{first_inside}, so we don't narrow it to the runs above. Peak memory is {memory:.1f} % off (median
{memory_median:.1f} %) as the device shows it.
"""
WEAKNESS = """
Where a micro-batch has few tokens, a GPU waits for its host: issuing a layer's operators takes longer
than running them. Such steps vary by 15 % from one to the next, as the host's time does. What decides:

* eager elementwise kernels, casts of autocast and adapters among them, reach 70 % of an H100's bandwidth;
* a checkpointed layer is issued again with hooks for every saved tensor, 1.56 times as long;
* Liger's loss casts the head's fp32 weights, and adds to their gradient, for every part of the logits;
* adapters of experts are added to all their weights, whose gradients are made whole.
"""
MEMORY = """
## When does memory peak, and at what?

*Allocated* is what torch's tensors take (`torch.cuda.max_memory_allocated`), *reserved* what its allocator
holds (`max_memory_reserved`), and *device* what `nvidia-smi` shows, with the driver's context. On average
they are {allocated:.1f}, {reserved:.1f} and {device:.1f} % off. *Peak* is the moment at which we expect it:
at the end of a forward pass, in the loss's backward pass, in a layer's, or in the optimizer step. Reserved
memory is least sure: what an allocator can't give back depends on the order of sizes.
"""
MOMENTS = """
## Each moment apart

{runs} runs took the peak of each forward pass, backward pass and optimizer step apart (GiB allocated).
Forward passes are {forward:.1f} % off on average, backward passes {backward:.1f} % and optimizer steps
{optimizer:.1f} %. {named} of them peak where we say.
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
        "steps_s": row["steps_s"], "attention_taken": "sdpa", "peaks": {},
        "allocated_bytes": row["allocated_gib"] * GIB, "reserved_bytes": row["reserved_gib"] * GIB,
        "device_bytes": row["device_used_gib"] * GIB,
    }  # fmt: skip
    return Trained(run=run, predicted=forecast_of(run, _GPU), measured=measured, outcome="measured")


def _drawn_runs() -> Iterator[Trained]:
    for folder in sorted(KEPT.iterdir()):
        journal = Journal(folder)
        machine = journal.found("machine")
        gpu = machine["result"]["priced_as"] if machine else _GPU
        for one in trained_in(journal):
            if one.measured is not None:
                yield replace(one, predicted=forecast_of(one.run, gpu))


def _chance_of_more(inside: int, runs: int) -> float:
    """Return the chance in per cent that ``inside`` of ``runs`` or more lie in 80 % intervals."""
    return 100.0 * sum(comb(runs, k) * 0.8**k * 0.2 ** (runs - k) for k in range(inside, runs + 1))


def document(head: Mapping[str, Any], runs: Sequence[Trained]) -> str:
    """Return the page."""
    first = [
        one for folder in sorted(KEPT.iterdir()) for one in trained_in(Journal(folder)) if one.measured
    ]
    inside = sum(run.inside for run in runs)
    times, peaks = [abs(run.error) for run in runs], [abs(run.memory_error) for run in runs]
    text = INTRODUCTION.format(
        gpu=head["gpu"],
        releases=", ".join(f"{name} {head[name]}" for name in ("trl", "transformers", "peft", "torch")),
        time=fmean(times), time_median=median(times), memory=fmean(peaks), memory_median=median(peaks),
        runs=len(runs), inside=inside, chance=_chance_of_more(inside, len(runs)),
        first_runs=len(first), first_inside=sum(run.inside for run in first),
    )  # fmt: skip
    memory = MEMORY.format(
        **{kind: fmean(abs(_off(*_shown_as(run, kind))) for run in runs) for kind in _SHOWN}
    )
    times_titles = ["run", "trainer", "model", "trained", "micro-batch", "step s", "predicted s", "%"]
    titles = ["run", *(title for kind in _SHOWN for title in (f"{kind} GiB", "predicted", "%")), "peak"]
    rows = [
        [run.run.name, *_compared([_shown_as(run, kind) for kind in _SHOWN]), str(run.predicted["moment"])]
        for run in runs
    ]
    return "\n".join([
        text, *table(times_titles, [_cells(run) for run in runs]), WEAKNESS, memory, *table(titles, rows),
        *_moments([run for run in runs if run.measured and run.measured["peaks"]]),
    ])  # fmt: skip


def _cells(one: Trained) -> list[str]:
    seconds = [one.step_s, one.predicted["step_time_s"]]
    return [*shown(one.run), *(f"{each:.3f}" for each in seconds), f"{one.error:+.1f}"]


def _shown_as(one: Trained, kind: str) -> tuple[float, float]:
    """Return measured and predicted GiB: allocated, reserved, or as the device shows it."""
    name = f"{kind}_bytes"
    return float((one.measured or {})[name]) / GIB, float(one.predicted[name]) / GIB


def _moments(runs: Sequence[Trained]) -> list[str]:
    """Return the section about the moments of a step."""
    pairs = {run.run.name: _moments_of(run) for run in runs}
    off = {name: fmean(abs(_off(*each[name])) for each in pairs.values()) for name in _MOMENTS}
    firsts = [
        [max(each, key=lambda name: each[name][which]) for which in (0, 1)] for each in pairs.values()
    ]
    named = sum(measured == predicted for measured, predicted in firsts)
    titles = ["run", *(title for name in _MOMENTS for title in (name, "predicted", "%"))]
    rows = [[name, *_compared([*each.values()])] for name, each in pairs.items()]
    return [MOMENTS.format(**off, runs=len(runs), named=named), *table(titles, rows)]


def _moments_of(run: Trained) -> dict[str, tuple[float, float]]:
    """Return GiB allocated at each of ``_MOMENTS``, measured and predicted."""
    seen, peaks = run.predicted["moments_bytes"], (run.measured or {})["peaks"]
    return {
        name: (peaks[name] / GIB, max(seen[own] for own in owns) / GIB) for name, owns in _MOMENTS.items()
    }


def _compared(pairs: Sequence[tuple[float, float]]) -> list[str]:
    return [
        cell
        for measured, predicted in pairs
        for cell in (f"{measured:.1f}", f"{predicted:.1f}", f"{_off(measured, predicted):+.1f}")
    ]


def _off(measured: float, predicted: float) -> float:
    return 100.0 * (predicted / measured - 1.0)


def write() -> None:
    """Write the page."""
    DOCUMENT.write_text(document(*read_trainer_runs()), encoding="utf-8")
