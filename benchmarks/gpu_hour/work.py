"""What a GPU hour does, item by item, and the journal that lets the next part go on.

The journal is one JSON object a line, flushed to the disk before the item that it announces begins. An
item that began and has no end was cut off; it is tried once more. A draw is trained only after its
predictions are in the journal, so that the order of lines shows which came first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_hour.drawn import (
    FRAMEWORK,
    SEED,
    Draw,
    Family,
    drawn,
    families,
    forecast,
    problem_of,
    profile_of,
)
from benchmarks.gpu_hour.training import launches_of, train
from meshwright.profiles.library import find_gpu, gpu_names
from meshwright.profiles.measure.collectives import Ranks
from meshwright.profiles.measure.device import Device, open_device
from meshwright.profiles.measure.provenance import device_state, machine_of, plain
from meshwright.profiles.measure.session import (
    MeasuringOptions,
    WantedMeasurements,
    is_out_of_memory,
    measure,
)
from meshwright.profiles.measured.profile import MeasuredProfile, Subject
from meshwright.profiles.measured.read import read_measured_profile

JOURNAL = "journal.jsonl"
MOST_TRIES = 2  # of an item that was cut off
REHEARSED_ON = "epyc-9004-core"  # what the catalog has for a CPU
STEPS_S, REHEARSED_STEPS_S = 6.0, 0.05  # of timed steps, for each draw
SETUP_S = 10.0  # of a training: drawing the weights, choosing kernels


class Journal:
    """The lines of all parts so far, and the file that takes further ones."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self.lines = list(_lines_of(self.path))

    def write(self, item: str, event: str, **facts: object) -> None:
        """Append a line and wait until the disk has it."""
        line = {
            "item": item,
            "event": event,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **facts,
        }
        whole = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("" if whole else "\n") + json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)

    def found(self, item: str) -> dict[str, Any] | None:
        """What a finished item found; None before."""
        return next((line for line in self.lines if line["item"] == item and line["event"] == "done"), None)

    def fault(self, item: str) -> str | None:
        """Why an item failed or was cut off last; None where neither happened."""
        mine = [
            line for line in self.lines if line["item"] == item and line["event"] in ("failed", "cut off")
        ]
        return str(mine[-1]["why"]) if mine else None

    def ended(self, item: str) -> bool:
        """Whether an item needs no further try: it is done, or failed for good."""
        mine = Counter(line["event"] for line in self.lines if line["item"] == item)
        return bool(mine["done"] or mine["failed"]) or mine["cut off"] >= MOST_TRIES

    def open_items(self) -> list[str]:
        """Items that began and have no end, as a killed process leaves them."""
        begun: dict[str, bool] = {}
        for line in self.lines:
            begun[line["item"]] = line["event"] == "began"
        return [item for item, is_open in begun.items() if is_open]

    def spent_s(self) -> float:
        """Seconds of all parts that have ended."""
        parts = [line for line in self.lines if line["item"].startswith("part-")]
        return sum(float(line["seconds"]) for line in parts)


def _lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a journal; half a line, which a kill leaves, is passed over."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One unit of work."""

    name: str
    estimate_s: float
    run: Callable[[], dict[str, Any]]
    after: tuple[str, ...] = ()  # items that must have ended
    wants: tuple[str, ...] = ()  # items that must be done; else this one cannot be run


@dataclass(frozen=True, kw_only=True)
class Hour:
    """All items on one device."""

    folder: Path
    journal: Journal
    device: Device
    tiny: bool
    deadline_s: float  # on the monotonic clock
    asked_gpu: str | None = None

    @cached_property
    def families(self) -> tuple[Family, ...]:
        """The models."""
        return families(tiny=self.tiny)

    @cached_property
    def draws(self) -> tuple[Draw, ...]:
        """The twenty configurations, for the memory that this GPU has."""
        return drawn(self.families, find_gpu(self.gpu).memory_bytes)

    @cached_property
    def gpu(self) -> str:
        """The catalog's slug of the device: as asked, as recognised, or the nearest in memory."""
        if self.asked_gpu is not None:
            return find_gpu(self.asked_gpu, pointer="--gpu").slug
        machine = machine_of(self.device)
        if machine.kind == "cpu":
            return REHEARSED_ON
        if machine.gpu is not None:
            return machine.gpu
        return min(gpu_names(), key=lambda name: abs(find_gpu(name).memory_bytes - machine.memory_bytes))

    def items(self) -> list[Item]:
        """Everything, in the order of what it is worth."""
        profiles = tuple(f"profile-{family.name}" for family in self.families)
        found = [Item(name="machine", estimate_s=5.0, run=self._machine)]
        found += [
            Item(name=f"profile-{one.name}", estimate_s=30.0, run=partial(self._profile, one))
            for one in self.families
        ]
        found.append(Item(name="launches", estimate_s=20.0, run=self._launches))
        found += [
            Item(
                name=f"predict-{one.name}", estimate_s=15.0, run=partial(self._predict, one), after=profiles
            )
            for one in self.families
        ]
        found += [
            Item(
                name=draw.name,
                estimate_s=self._training_s(draw),
                run=partial(self._train, draw),
                wants=(f"predict-{draw.family}",),
            )
            for draw in self.draws
        ]
        return found

    def _training_s(self, draw: Draw) -> float:
        """Seconds of a training by its prediction: warm-up and timed steps, four at least."""
        for line in self.predicted(draw):
            if line["origin"] == "profile":
                return max(STEPS_S, 5.0 * float(line["step_time_s"])) * 1.5 + SETUP_S
        return 3.0 * STEPS_S + SETUP_S

    def predicted(self, draw: Draw) -> list[dict[str, Any]]:
        """The forecasts of a draw that the journal holds."""
        found = self.journal.found(f"predict-{draw.family}")
        return list(found["result"]["forecasts"][draw.name]) if found else []

    def _machine(self) -> dict[str, Any]:
        machine = asdict(machine_of(self.device))
        facts = {"priced_as": self.gpu, "gpu_recognised": machine["gpu"] is not None, "seed": SEED}
        return {
            **machine,
            **facts,
            "commit": _commit(),
            "framework": FRAMEWORK,
            "tiny": self.tiny,
            "state": device_state(self.device),
            "attention": _attention_kernels(self.device),
            "draws": [draw.to_json() for draw in self.draws],
        }

    def profile_path(self, family: Family) -> Path:
        """The measured profile of a model."""
        return self.folder / f"profile-{family.name}.json"

    def _profile(self, family: Family) -> dict[str, Any]:
        """What ``meshwright profile`` times; a profile that the time cut short is not done.

        Raises:
            NotDoneError: time was up before all of it was timed.
        """
        subject = Subject(
            model=family.model,
            seq_length=family.seq_length,
            dtype=self.device.dtype,
            expert_parallel_size=1,
            quick=self.tiny,
            lora_rank=family.lora_rank,
            lora_targets=family.lora_targets,
        )
        wanted = WantedMeasurements(
            subject=subject,
            tensor_parallel_sizes=(1,),
            micro_batch_sizes=family.micro_batch_sizes,
            groups=("layer", "gemm", "attention", "memory_bound"),
        )
        start = MeasuringOptions(
            device=self.device,
            ranks=Ranks(),
            command=("benchmarks.gpu_hour", *sys.argv[1:]),
            deadline_s=self.deadline_s,
            say=say,
        )
        outcome = measure(wanted, self.profile_path(family), start)
        if outcome is None or outcome.held + outcome.skipped < outcome.planned:
            raise NotDoneError
        skipped = {one.task: one.reason for one in outcome.profile.skipped}
        return {"held": outcome.held, "skipped": skipped, "state": device_state(self.device)}

    def _launches(self) -> dict[str, Any]:
        kinds = [(one, kind) for one in self.families for kind in sorted(set(one.model.layer_kinds()))]
        return {
            "layers": [launches_of(one, kind, self.device).to_json() for one, kind in kinds],
            "state": device_state(self.device),
        }

    def _predict(self, family: Family) -> dict[str, Any]:
        """Both forecasts of every draw of a model; from its profile as far as there is one."""
        measured = self._measured(family)
        mine = [draw for draw in self.draws if draw.family == family.name]
        timed = problem_of(family, replace(mine[0], optimizer="adamw"), self.gpu)  # whose step was timed
        profiles = {"catalog": profile_of(timed, None)}
        if measured is not None:
            profiles["profile"] = profile_of(timed, measured)
        forecasts = {
            draw.name: [
                asdict(forecast(problem_of(family, draw, self.gpu), profile, draw, origin))
                for origin, profile in profiles.items()
            ]
            for draw in mine
        }
        return {"forecasts": forecasts}

    def _measured(self, family: Family) -> MeasuredProfile | None:
        path = self.profile_path(family)
        measured = read_measured_profile(path) if path.exists() else None
        return measured if measured is not None and measured.measurements else None

    def _train(self, draw: Draw) -> dict[str, Any]:
        family = next(one for one in self.families if one.name == draw.family)
        budget_s = REHEARSED_STEPS_S if self.tiny else STEPS_S
        found = train(family, draw, self.device, budget_s=budget_s)
        return {"draw": draw.to_json(), **found.to_json(), "state": device_state(self.device)}


class NotDoneError(Exception):
    """An item that the next part goes on with."""


def _commit() -> str | None:
    """Return the commit that predicts; of a copy without its history, what GIT_COMMIT says."""
    if "GIT_COMMIT" in os.environ:
        return os.environ["GIT_COMMIT"]
    try:
        said = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.stdout.strip()


def _attention_kernels(device: Device) -> str:
    """Which kernels torch may choose for attention here."""
    if device.kind == "cpu":
        return ""
    names = ("flash_sdp", "cudnn_sdp", "mem_efficient_sdp", "math_sdp")
    backends = device.torch.backends.cuda
    found = [name for name in names if getattr(backends, f"{name}_enabled", bool)()]
    cudnn = device.torch.backends.cudnn
    return ", ".join([*found, f"cuDNN {cudnn.version() if cudnn.is_available() else 'missing'}"])


def say(line: str) -> None:
    """One line of progress."""
    print(line, flush=True)


def work(hour: Hour, extra: Sequence[Item] = ()) -> None:
    """Run what the journal lacks on the device, as long as each item is expected to end in time.

    Raises:
        RuntimeError: the device answers nothing any more; a new process goes on.
    """

    def released() -> None:
        hour.device.release()
        if not hour.device.answers():
            raise RuntimeError(f"{hour.device.name} answers nothing any more")

    run_items([*hour.items(), *extra], hour.journal, hour.deadline_s, released)


def run_items(
    items: Sequence[Item],
    journal: Journal,
    deadline_s: float,
    after_each: Callable[[], None] = lambda: None,
) -> None:
    """Run what a journal lacks of some items, as long as each is expected to end in time."""
    for item in items:
        if journal.ended(item.name) or not all(journal.ended(name) for name in item.after):
            continue
        missing = [name for name in item.wants if journal.found(name) is None]
        if any(journal.ended(name) for name in missing):
            journal.write(item.name, "failed", why=f"{missing[0]} failed")
        elif not missing and time.monotonic() + item.estimate_s <= deadline_s:
            _run(item, journal)
            after_each()


def _run(item: Item, journal: Journal) -> None:
    """One item; what goes wrong in it is recorded, and the next begins."""
    journal.write(item.name, "began")
    began_s = time.monotonic()
    try:
        result = item.run()
    except NotDoneError:
        journal.write(item.name, "continued", seconds=time.monotonic() - began_s)
    except Exception as fault:  # noqa: BLE001 - one item must not end the hour
        why = "out of memory" if is_out_of_memory(fault) else _why(fault)
        journal.write(item.name, "failed", seconds=time.monotonic() - began_s, why=why)
        say(f"{item.name}: failed, {why}")
    else:
        journal.write(item.name, "done", seconds=time.monotonic() - began_s, result=result)
        say(f"{item.name}: {time.monotonic() - began_s:.0f} s")


def _why(fault: BaseException) -> str:
    return plain(f"{type(fault).__name__}: {str(fault).strip().partition(chr(10))[0]}")


def opened(options: Mapping[str, Any], deadline_s: float) -> Hour:
    """The hour of a worker process.

    Raises:
        PlannerError: there is no such device, or torch cannot use it.
    """
    folder = Path(options["out"])
    device = open_device("cpu" if options["rehearse"] else options["device"], dtype="bf16")
    return Hour(
        folder=folder,
        journal=Journal(folder),
        device=device,
        tiny=bool(options["rehearse"]),
        deadline_s=deadline_s,
        asked_gpu=options["gpu"],
    )
