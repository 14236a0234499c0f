"""Runs of fine-tuning by launchers' own trainers next to predictions: ``docs/accuracy-fine-tuning.md``.

Nothing is fitted on them: what they are predicted with is read in the sources of the launchers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.fit.accuracy_tables import table
from benchmarks.gpu_hour.trainers import TrainerRun as DrawnRun
from benchmarks.gpu_hour.trainers import prediction_of
from meshwright.launchers.transformers.read_ranks import kernels_of
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.answer import PeakMemory, Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload

RUNS = Path(__file__).parent.parent / "data" / "trainer_runs.jsonl"
HOURS = RUNS.parent / "measured_here"
DOCUMENT = Path(__file__).parents[2] / "docs" / "accuracy-fine-tuning.md"
_WARM_UP = 2  # steps
INTRODUCTION = """# Fine-tuning: predicted and measured

Run `make accuracy` to generate this page. Below are steps of {trainer}'s own trainer on one {gpu}
(`benchmarks/data/trainer_runs.jsonl`: {releases}).
Predictions use the catalog: no profile of this GPU, and what we read in the launchers' sources. No constant
was fitted on these runs. Still, we wrote the terms with these runs in view: expect more of new ones.

Step times are {time:.1f} % off on average (median {time_median:.1f} %), and the 80 % interval holds
{inside} of {runs}. Peak memory is {memory:.1f} % off as the device shows it.
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

The runs of {hours} took the peak of each forward pass, backward pass and optimizer step apart (GiB
allocated; predictions read the commands of these runs). Forward passes are {forward:.1f} % off on average,
backward passes {backward:.1f} % and optimizer steps {update:.1f} %. {named} of {runs} runs peak where
we say.
"""
WEAKNESS = """
The smallest model waits for its host: launching the kernels of its layers takes longer than running them.
Its steps vary by 15 % from one to the next, as the host's time does.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRun:
    """One run next to its prediction."""

    raw: Mapping[str, Any]
    seen: Prediction

    @property
    def measured_s(self) -> float:
        """The median step after the first ones."""
        return float(median(self.raw["steps_s"][_WARM_UP:]))

    @property
    def error(self) -> float:
        """Of the step time in %."""
        return 100.0 * (self.seen.step_time_s / self.measured_s - 1.0)

    @property
    def memory_error(self) -> float:
        """Of what the device shows at the peak, in %."""
        return 100.0 * (self.seen.peak_memory_bytes / GIB / float(self.raw["device_used_gib"]) - 1.0)

    @property
    def inside(self) -> bool:
        """Whether the 80 % interval holds the measured step."""
        return self.seen.step_time_low_s <= self.measured_s <= self.seen.step_time_high_s

    def memory(self) -> list[tuple[float, float]]:
        """Return measured and predicted GiB: allocated, reserved, and as the device shows it."""
        seen = peak_of(self.seen)
        predicted = (seen.allocated_bytes, seen.reserved_bytes, seen.device_bytes)
        measured = (self.raw[name] for name in ("allocated_gib", "reserved_gib", "device_used_gib"))
        return [(float(one), two / GIB) for one, two in zip(measured, predicted, strict=True)]

    def cells(self) -> list[str]:
        """Return the row of the table of times."""
        raw = self.raw
        how = [
            f"LoRA {raw['lora']}" if raw.get("lora") else "full",
            *(["gradient checkpointing"] if raw["gc"] else []),
            *(["Liger"] if raw.get("liger") else []),
        ]
        return [
            raw["id"], raw["model"], ", ".join(how), f"{raw['mbs']} × {raw['seq']}, {raw['ga']} a step",
            f"{self.measured_s:.3f}", f"{self.seen.step_time_s:.3f}", f"{self.error:+.1f}",
        ]  # fmt: skip

    def memory_cells(self) -> list[str]:
        """Return the row of the table of memory."""
        return [self.raw["id"], *_compared(self.memory()), peak_of(self.seen).moment]


def peak_of(prediction: Prediction) -> PeakMemory:
    """Return the memory of a prediction, which a new one always has."""
    if prediction.memory is None:
        raise ValueError("a prediction without its peak")
    return prediction.memory


def _compared(pairs: Sequence[tuple[float, float]]) -> list[str]:
    return [
        cell
        for measured, predicted in pairs
        for cell in (f"{measured:.1f}", f"{predicted:.1f}", f"{_off(measured, predicted):+.1f}")
    ]


def _off(measured: float, predicted: float) -> float:
    return 100.0 * (predicted / measured - 1.0)


_MOMENTS = {"forward": ("forward",), "backward": ("loss", "backward"), "optimizer": ("optimizer step",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """One run of a GPU hour: GiB allocated at each of ``_MOMENTS``, measured and predicted."""

    name: str
    pairs: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, result: Mapping[str, Any], gpu: str) -> Moments:
        """Return the moments of a finished item of ``make gpu-hour``."""
        run = DrawnRun(**{k: tuple(v) if isinstance(v, list) else v for k, v in result["run"].items()})
        seen = peak_of(prediction_of(run, gpu)).moments_bytes
        predicted = {name: max(seen[own] for own in owns) / GIB for name, owns in _MOMENTS.items()}
        measured = {name: float(result["peaks"][name]) / GIB for name in _MOMENTS}
        how = f"{run.trainer}, {run.model}, {'LoRA' if run.lora_rank else 'full'}"
        return cls(
            name=f"{run.name}: {how}", pairs={name: (measured[name], predicted[name]) for name in _MOMENTS}
        )

    def first(self, which: int) -> str:
        """Return the moment of the peak, measured (0) or predicted (1)."""
        return max(self.pairs, key=lambda name: self.pairs[name][which])


def read_moments(folder: Path = HOURS) -> tuple[list[str], list[Moments]]:
    """Return the GPU hours that have runs of trainers, and the moments of these runs."""
    hours, found = list[str](), list[Moments]()
    for path in sorted(folder.glob("*/journal.jsonl")):
        gpu = path.parent.name.rpartition("-seed-")[0]
        done = (json.loads(line) for line in path.read_text("utf-8").splitlines())
        runs = [one["result"] for one in done if "result" in one and "peaks" in one["result"]]
        hours += [path.parent.name] if runs else []
        found += [Moments.of(one, gpu) for one in runs]
    return hours, found


def moments_section(hours: Sequence[str], runs: Sequence[Moments]) -> str:
    """Return the section about moments; empty without runs."""
    if not runs:
        return ""
    off = {name: fmean(abs(_off(*run.pairs[name])) for run in runs) for name in _MOMENTS}
    text = MOMENTS.format(
        hours=" and ".join(f"`{one}`" for one in hours), forward=off["forward"], backward=off["backward"],
        update=off["optimizer"], runs=len(runs), named=sum(run.first(0) == run.first(1) for run in runs),
    )  # fmt: skip
    titles = [
        "run",
        *(title for name in ("forward", "backward", "optimizer") for title in (name, "predicted", "%")),
    ]
    return "\n".join(
        [text, *table(titles, [[run.name, *_compared([*run.pairs.values()])] for run in runs])]
    )


def read_trainer_runs(path: Path = RUNS) -> tuple[Mapping[str, Any], list[TrainerRun]]:
    """Return the head of the file, which has the releases, and its runs with their predictions."""
    head, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return head, [TrainerRun(raw=row, seen=_predicted(row)) for row in rows]


def _predicted(raw: Mapping[str, Any]) -> Prediction:
    model, layers = find_model(raw["model"]), find_model(raw["model"]).num_layers
    work = Workload(
        global_batch_size=raw["mbs"] * raw["ga"], seq_length=raw["seq"], lora_rank=raw.get("lora", 0),
        framework_options=kernels_of(raw["trainer"], liger=raw.get("liger", False), by_trl=True),
    )  # fmt: skip
    cluster = _one_gpu()
    problem = Problem(model=model, cluster=cluster, workload=work, launcher=raw["trainer"])
    configuration = Configuration(
        micro_batch_size=raw["mbs"], num_microbatches=raw["ga"], stage_layers=(layers,),
        recompute_granularity="full" if raw["gc"] else "none", recompute_layers=layers if raw["gc"] else 0,
    )  # fmt: skip
    return predict(problem, default_profile(cluster, problem.priced_as), configuration)


def _one_gpu() -> ClusterSpec:
    node = find_cluster("dgx-h100")
    return replace(node, groups=(replace(node.groups[0], num_nodes=1, gpus_per_node=1),))


def document(head: Mapping[str, Any], runs: Sequence[TrainerRun]) -> str:
    """Return the page, without the runs of GPU hours."""
    times, peaks = [abs(run.error) for run in runs], [abs(run.memory_error) for run in runs]
    text = INTRODUCTION.format(
        trainer="TRL", gpu=head["gpu"],
        releases=", ".join(f"{name} {head[name]}" for name in ("trl", "transformers", "peft", "torch")),
        time=fmean(times), time_median=median(times), memory=fmean(peaks), runs=len(runs),
        inside=sum(run.inside for run in runs),
    )  # fmt: skip
    kinds = ("allocated", "reserved", "device")
    off = zip(*([abs(_off(*pair)) for pair in run.memory()] for run in runs), strict=True)
    memory = MEMORY.format(**{kind: fmean(errors) for kind, errors in zip(kinds, off, strict=True)})
    times_titles = ["run", "model", "trained", "micro-batch", "step s", "predicted s", "%"]
    titles = ["run", *(title for kind in kinds for title in (f"{kind} GiB", "predicted", "%")), "peak"]
    return "\n".join([
        text, *table(times_titles, [run.cells() for run in runs]), WEAKNESS, memory,
        *table(titles, [run.memory_cells() for run in runs]),
    ])  # fmt: skip


def page() -> str:
    """Return the page with the runs of GPU hours."""
    return document(*read_trainer_runs()) + moments_section(*read_moments())


def write() -> None:
    """Write the page."""
    DOCUMENT.write_text(page(), encoding="utf-8")
