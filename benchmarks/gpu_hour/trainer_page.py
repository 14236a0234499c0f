"""Runs of launchers' own trainers on a page: what a journal predicted first, next to what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.gpu_hour.trainers import WARM_STEPS, TrainerRun, run_of
from benchmarks.gpu_hour.work import Journal
from meshwright.profiles.units import GIB

_TITLES = {"trl": "TRL SFTTrainer", "transformers": "Trainer"}
_HEAD = (
    "| run | trainer | model | trained | micro-batch | attention | measured | predicted | error "
    "| device memory | predicted | error | peak in |"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One run: what was asked, predicted and measured."""

    run: TrainerRun
    predicted: Mapping[str, Any]
    measured: Mapping[str, Any] | None
    outcome: str

    @property
    def step_s(self) -> float:
        """The median step after the first ones."""
        steps = [] if self.measured is None else self.measured["steps_s"][WARM_STEPS:]
        return float(median(steps))

    @property
    def error(self) -> float:
        """Of the step time, in %."""
        return 100.0 * (float(self.predicted["step_time_s"]) / self.step_s - 1.0)

    @property
    def memory_error(self) -> float:
        """Of what the device shows, in %."""
        shown = float((self.measured or {})["device_bytes"])
        return 100.0 * (float(self.predicted["peak_memory_bytes"]) / shown - 1.0)

    @property
    def inside(self) -> bool:
        """Whether the 80 % interval holds the measured step."""
        low_s, high_s = (float(self.predicted[f"step_time_{end}_s"]) for end in ("low", "high"))
        return low_s <= self.step_s <= high_s

    def cells(self) -> list[str]:
        """Return its row."""
        first, seen = shown(self.run), self.predicted
        if self.measured is None:
            return [*first, "–", self.outcome, f"{seen['step_time_s']:.3f} s", "–", "–", "–", "–", "–"]
        peaks = self.measured["peaks"]
        return [
            *first, self.measured["attention_taken"],
            f"{self.step_s:.3f} s", f"{seen['step_time_s']:.3f} s", f"{self.error:+.1f} %",
            f"{self.measured['device_bytes'] / GIB:.1f} GiB", f"{seen['peak_memory_bytes'] / GIB:.1f} GiB",
            f"{self.memory_error:+.1f} %", max(peaks, key=lambda name: peaks[name]),
        ]  # fmt: skip


def shown(run: TrainerRun) -> list[str]:
    """Return name, trainer, model, what is trained and how, and the sizes."""
    how = [
        f"LoRA {run.lora_rank}, {' '.join(run.lora_targets)}" if run.lora_rank else "full",
        *(["bf16 weights"] if run.weights == "bfloat16" and not run.lora_rank else []),
        *(["recomputed"] if run.checkpointing else []),
        *(["Liger"] if run.liger else []),
    ]
    sizes = f"{run.micro_batch_size} × {run.seq_length}, {run.accumulation} a step"
    return [run.name, _TITLES[run.trainer], run.model, ", ".join(how), sizes]


def trained_in(journal: Journal) -> list[Trained]:
    """Return the trainers' runs of a journal, each with the prediction that stands before it."""
    drawn, seen = journal.found("trainers"), journal.found("predict-trainers")
    if drawn is None or seen is None:
        return []
    found = []
    for run in drawn["result"]["runs"]:
        done = journal.found(run["name"])
        outcome = "measured" if done else journal.fault(run["name"]) or "not run"
        found.append(
            Trained(
                run=run_of(run), predicted=seen["result"]["predictions"][run["name"]],
                measured=done["result"] if done else None, outcome=outcome,
            )
        )  # fmt: skip
    return found


def errors_of(runs: Sequence[Trained]) -> str:
    """Return the errors of the measured runs as one sentence."""
    done = [one for one in runs if one.measured is not None]
    times, peaks = [abs(one.error) for one in done], [abs(one.memory_error) for one in done]
    inside = sum(one.inside for one in done)
    return (
        f"step times {fmean(times):.1f} % (median {median(times):.1f}), {inside} of {len(done)} in the "
        f"80 % interval; device memory {fmean(peaks):.1f} % (median {median(peaks):.1f})"
    )


def section(journal: Journal) -> list[str]:
    """Return the part of a page, empty if the journal has no such runs."""
    runs = trained_in(journal)
    if not any(one.measured is not None for one in runs):
        return []
    hosts = [line["ready"] for line in journal.lines if line["event"] == "host"]
    releases = ", ".join(f"{name} {version}" for name, version in hosts[-1].items()) if hosts else ""
    drawn = journal.found("trainers")
    return [
        "### Launchers' own trainers",
        "",
        f"Seed {drawn['result']['seed'] if drawn else ''}. {releases}.",
        "Each run was predicted from the command that starts it, with the catalog alone, before it was",
        f"trained. Mean errors: {errors_of(runs)}.",
        "",
        _HEAD,
        "|---" * 13 + "|",
        *(f"| {' | '.join(one.cells())} |" for one in runs),
        "",
    ]
