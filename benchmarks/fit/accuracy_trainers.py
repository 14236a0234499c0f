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
from meshwright.launchers.transformers.read_ranks import kernels_of
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload

RUNS = Path(__file__).parent.parent / "data" / "trainer_runs.jsonl"
DOCUMENT = Path(__file__).parents[2] / "docs" / "accuracy-fine-tuning.md"
_WARM_UP = 2  # steps
INTRODUCTION = """# Fine-tuning: predicted and measured

Run `make accuracy` to generate this page. Below are steps of {trainer}'s own trainer on one {gpu}
(`benchmarks/data/trainer_runs.jsonl`: {releases}).
Predictions use the catalog: no profile of this GPU, and what we read in the launchers' sources. No constant
was fitted on these runs. Still, we wrote the terms with these runs in view: expect more of new ones.

Step times are {time:.1f} % off on average (median {time_median:.1f} %), and the 80 % interval holds
{inside} of {runs}. Peak memory is {memory:.1f} % off. *Device* is what `nvidia-smi` shows, and what we
predict. *Allocated* is what torch's tensors take of it.
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

    def cells(self) -> list[str]:
        """Return the row of a table."""
        raw = self.raw
        how = [
            f"LoRA {raw['lora']}" if raw.get("lora") else "full",
            *(["gradient checkpointing"] if raw["gc"] else []),
            *(["Liger"] if raw.get("liger") else []),
        ]
        return [
            raw["id"], raw["model"], ", ".join(how), f"{raw['mbs']} × {raw['seq']}, {raw['ga']} a step",
            f"{self.measured_s:.3f}", f"{self.seen.step_time_s:.3f}", f"{self.error:+.1f}",
            f"{raw['allocated_gib']:.1f}", f"{raw['device_used_gib']:.1f}",
            f"{self.seen.peak_memory_bytes / GIB:.1f}", f"{self.memory_error:+.1f}",
        ]  # fmt: skip


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
    """Return the page."""
    times, peaks = [abs(run.error) for run in runs], [abs(run.memory_error) for run in runs]
    text = INTRODUCTION.format(
        trainer="TRL", gpu=head["gpu"],
        releases=", ".join(f"{name} {head[name]}" for name in ("trl", "transformers", "peft", "torch")),
        time=fmean(times), time_median=median(times), memory=fmean(peaks), runs=len(runs),
        inside=sum(run.inside for run in runs),
    )  # fmt: skip
    titles = ["run", "model", "trained", "micro-batch", "step s", "predicted s", "%", "allocated GiB",
              "device GiB", "predicted GiB", "%"]  # fmt: skip
    return "\n".join([text, *table(titles, [run.cells() for run in runs])]) + WEAKNESS


def write() -> None:
    """Write the page."""
    DOCUMENT.write_text(document(*read_trainer_runs()), encoding="utf-8")
