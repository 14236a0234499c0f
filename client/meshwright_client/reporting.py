"""What a running job takes, told to the service: step time and peak memory, by callback or from its log.

Reporting never disturbs the job: what goes wrong is kept in ``Reporter.fault`` and logged.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from meshwright_client.choosing import CHOICE, DEFAULT_URL, Choice, read_choice
from meshwright_client.client import Client
from meshwright_client.errors import IdempotencyConflictError, MeshwrightError
from meshwright_client.records import Learnt

WARM_UP_STEPS = 3
STEPS = 20  # after warm-up; their median is reported
LEAST_STEPS = 3  # of a run that ends sooner
MIB, GIB = 2**20, 2**30
_log = logging.getLogger(__name__)


class Reporter:
    """Counts the steps of one run and reports them once, in a thread; ranks but the first count nothing.

    A run may still run out of memory behind that: reported once, too.
    """

    def __init__(
        self,
        plan_id: str,
        *,
        run_id: str,
        url: str | None = None,
        key: str | None = None,
        warm_up: int = WARM_UP_STEPS,
        steps: int = STEPS,
        active: bool = True,
    ) -> None:
        self.plan_id, self.run_id = plan_id, run_id
        self.seconds: list[float] = []
        self.peak_memory_bytes: int | None = None
        self.memory_rank, self.memory_kind = "first", "allocated"  # whose peak that is, and of what
        self.learnt: Learnt | None = None  # what came of the report
        self.fault: Exception | None = None  # why there was none
        self._url, self._key = url or os.environ.get("MESHWRIGHT_URL", DEFAULT_URL), key
        self._warm_up, self._steps, self._active = warm_up, steps, active
        self._last_s: float | None = None
        self._threads: dict[bool, threading.Thread] = {}  # by whether they tell of a lack of memory

    @classmethod
    def of_run(cls, save_dir: str | Path | None = None, **options: Any) -> Reporter:  # noqa: ANN401
        """The reporter of the plan that ``choose`` or ``meshwright launch`` left in its folder.

        Raises:
            FileNotFoundError: there is no choice in ``save_dir`` (default: MESHWRIGHT_SAVE_DIR).
        """
        folder = Path(save_dir or os.environ.get("MESHWRIGHT_SAVE_DIR", "meshwright-run"))
        choice = read_choice(folder / CHOICE)
        if choice is None:
            raise FileNotFoundError(f"{folder / CHOICE}: no choice of a plan")
        return cls.of(choice, **options)

    @classmethod
    def of(cls, choice: Choice, **options: Any) -> Reporter:  # noqa: ANN401 - as the constructor's
        """The reporter of a choice; active on the first rank."""
        active = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
        return cls(choice.plan_id, **{"run_id": choice.run_id, "active": active, **options})

    def step(self, seconds: float | None = None, peak_memory_bytes: int | None = None) -> None:
        """A step has ended: after ``seconds``, or since the call before."""
        now_s = time.perf_counter()
        if seconds is None and self._last_s is not None:
            seconds = now_s - self._last_s
        self._last_s = now_s
        if not self._active or self._threads:
            return
        self.peak_memory_bytes = (
            max(self.peak_memory_bytes or 0, peak_memory_bytes or _allocated_bytes()) or None
        )
        if seconds is None:
            return
        if self._warm_up > 0:
            self._warm_up -= 1
            return
        self.seconds.append(seconds)
        if len(self.seconds) >= self._steps:
            self._send(self.measured())

    def out_of_memory(self) -> None:
        """The run has run out of memory: that teaches too."""
        if self._active and True not in self._threads:
            self._send({"out_of_memory": True})

    def measured(self) -> dict[str, Any]:
        """What would be reported now; empty: too little."""
        if len(self.seconds) < LEAST_STEPS:
            return {}
        body: dict[str, Any] = {"step_time_s": median(self.seconds)}
        if self.peak_memory_bytes:
            body |= {"peak_memory_bytes": self.peak_memory_bytes, "memory_kind": self.memory_kind}
            body |= {"memory_rank": self.memory_rank}
        return body

    def close(self, timeout_s: float = 30.0) -> None:
        """Report what there is, unless that is done, and wait for it; say so where it takes longer."""
        body = self.measured()
        if self._active and not self._threads and body:
            self._send(body)
        ends_s = time.monotonic() + timeout_s
        for thread in self._threads.values():
            thread.join(max(ends_s - time.monotonic(), 0.0))
        if any(thread.is_alive() for thread in self._threads.values()):
            self.fault = TimeoutError(f"no answer of {self._url} within {timeout_s:g} s")
            _log.warning("meshwright: the step time was not reported: %s", self.fault)

    def _send(self, body: Mapping[str, Any]) -> None:
        thread = threading.Thread(target=self._report, args=(body,), daemon=True)
        self._threads["out_of_memory" in body] = thread
        thread.start()

    def _report(self, body: Mapping[str, Any]) -> None:
        try:
            told = " out of memory" if "out_of_memory" in body else ""
            key = hashlib.sha256(f"{self.plan_id} {self.run_id}{told}".encode()).hexdigest()
            with Client(self._url, self._key or os.environ.get("MESHWRIGHT_KEY") or None) as service:
                self.learnt = service.measure(self.plan_id, body, idempotency_key=key)
        except IdempotencyConflictError:
            _log.info("meshwright: another node has reported this start")
        except (MeshwrightError, ValueError) as fault:
            self.fault = fault
            _log.warning("meshwright: the step time was not reported: %s", fault)


def _allocated_bytes() -> int:
    """The peak that torch has allocated on this rank's GPU; 0 without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.max_memory_allocated())


# --------------------------------------------------------------------------------------------------
# Where steps are counted: torch's optimizers, the callbacks of two trainers, or a log.


def watch_optimizers(reporter: Reporter) -> Callable[[], None]:
    """Count the steps of torch's optimizers in this process; call the result to stop.

    For frameworks without callbacks, as Megatron-LM and torchtitan: whatever wraps them, an optimizer steps
    once at the end of each iteration. Of several optimizers (chained ones, one of each pipeline chunk) the
    first that steps counts.
    """
    from torch.optim.optimizer import (  # noqa: PLC0415 - torch is the job's
        register_optimizer_step_post_hook,
    )

    first: list[int] = []

    def stepped(optimizer: object, *_: object) -> None:
        if not first:
            first.append(id(optimizer))
        if first[0] == id(optimizer):
            reporter.step()

    handle = register_optimizer_step_post_hook(stepped)
    return handle.remove  # type: ignore[no-any-return]


def transformers_callback(reporter: Reporter) -> Any:  # noqa: ANN401 - a TrainerCallback
    """A callback for transformers: ``Trainer(..., callbacks=[transformers_callback(reporter)])``."""
    from transformers import TrainerCallback  # noqa: PLC0415 - the job's

    class Reporting(TrainerCallback):  # type: ignore[misc] # transformers may not be installed
        """Counts optimizer steps."""

        def on_step_end(self, *_: object, **__: object) -> None:
            reporter.step()

        def on_train_end(self, *_: object, **__: object) -> None:
            reporter.close()

    return Reporting()


def lightning_callback(reporter: Reporter) -> Any:  # noqa: ANN401 - a Callback
    """A callback for Lightning's Trainer (NeMo 2 among others): counts ``global_step``."""
    from lightning.pytorch import Callback  # noqa: PLC0415 - the job's

    class Reporting(Callback):  # type: ignore[misc] # lightning may not be installed
        """Counts optimizer steps, not the micro-batches that are accumulated for one."""

        def __init__(self) -> None:
            self.seen = 0

        def on_train_batch_end(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
            if trainer.global_step > self.seen:
                self.seen = trainer.global_step
                reporter.step()

        def on_train_end(self, *_: object, **__: object) -> None:
            reporter.close()

    return Reporting()


# Megatron-LM's training_log; nanotron's; "step:" of torchtitan; "Step 3" and "step=3" of others.
_ELAPSED = re.compile(r"elapsed time per iteration \(ms\):\s*([\d.]+)")
_NANOTRON = re.compile(r"\b(?:elapsed_)?time_per_iteration_ms: ([\d.]+)([KM]?)(?![\w.])")  # 1.27K: 1.27 s
_SECONDS = {"": 1e-3, "K": 1.0, "M": 1e3}  # of a millisecond, a thousand and a million of them
_STEP = re.compile(
    r"\bstep[ :=]+(\d+)\b"
    r"|\b(\d+)/\d+ \[[^\[\]]*\]\s*\{'loss'"  # the bar of transformers' Trainer, before what it logs
    r"|'(?:global_step/max_steps|iteration)': '(\d+)/",  # ms-swift
    re.IGNORECASE,
)
_PEAK = re.compile(r"max allocated:\s*([\d.]+)")  # MB of Megatron-LM: 2^20 bytes
_RESERVED = re.compile(r"\bmemory:\s*([\d.]+)GiB\(")  # torchtitan, components/metrics.py: max_reserved_gib
_RANK = re.compile(r"^\s*\[(?:rank|default)(\d+)\]:")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")  # torchtitan's log has them, whoever reads it
# torch's allocator; the driver's word for it outside of that (torch's launches, Triton, NCCL); cuBLAS.
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP)(?: error:|\]:)? out of memory"
    r"|(?i:cuda|hip) failure (?:\d+ )?'out of memory'|CUBLAS_STATUS_ALLOC_FAILED"
)


def _timed(text: str) -> float | None:
    """Seconds of a step that a line states itself."""
    elapsed, human = _ELAPSED.search(text), _NANOTRON.search(text)
    if elapsed:
        return float(elapsed[1]) / 1000.0
    if human:
        return float(human[1]) * _SECONDS[human[2]]
    return None


class LogTail:
    """Reads the lines of a training log as they come."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        reporter.memory_rank = "unknown"  # of those whose lines are in this log
        self._last: tuple[int, float] | None = None  # step and when its line came
        self._rank: str | None = None  # whose lines count: all ranks log the same steps

    def line(self, text: str) -> None:
        """One line."""
        text = _COLOURS.sub("", text)
        if _OUT_OF_MEMORY.search(text):
            self._reporter.out_of_memory()
        for pattern, unit, kind in ((_PEAK, MIB, "allocated"), (_RESERVED, GIB, "reserved")):
            peak = pattern.search(text)
            if not peak:
                continue
            found = int(float(peak[1]) * unit)
            self._reporter.memory_kind = kind
            self._reporter.peak_memory_bytes = max(self._reporter.peak_memory_bytes or 0, found)
        prefix = _RANK.match(text)
        rank = prefix[1] if prefix else ""
        elapsed, step = _timed(text), _STEP.search(text)
        if elapsed is None and not step:
            return
        self._rank = rank if self._rank is None else self._rank
        if rank != self._rank:
            return
        if elapsed is not None:
            self._reporter.step(elapsed)
        elif step:
            self._counted(int(step[step.lastindex or 1]), time.perf_counter())

    def _counted(self, number: int, now_s: float) -> None:
        """A line of a numbered step; the time since the line before is shared by the steps between."""
        if self._last is not None and number > self._last[0]:
            self._reporter.step((now_s - self._last[1]) / (number - self._last[0]))
        if self._last is None or number != self._last[0]:
            self._last = (number, now_s)
