"""How often a long run is interrupted and what that costs: goodput under checkpoints and restarts.

Checkpoints every ``sqrt(2 C M)`` seconds lose least, C seconds to write one and M seconds between
failures (Young 1974, "A first order approximation to the optimum checkpoint interval", CACM 17(9)). A
run then takes ``1 + C / interval + (interval / 2 + restart) / M`` times as long as one without failures:
writing, half an interval to do again, and the restart (Daly 2006, "A higher order estimate of the optimum
checkpoint interval", FGCS 22(3), to first order).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

HOUR_S = 3600.0
# 419 unexpected interruptions in 54 days of 16 384 H100 (Llama 3, arXiv:2407.21783, section 3.3.4).
GPU_HOURS_PER_INTERRUPTION = 54 * 24 * 16384 / 419
# 2 TB/s sustained to the storage of 16 384 GPUs (same paper, section 3.3.1).
CHECKPOINT_BYTES_PER_S_PER_GPU = 2e12 / 16384
RESTART_S = 600.0  # find the fault, swap a node, load and compile again: assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """What interrupts a run and how it goes on."""

    gpu_hours_per_interruption: float = GPU_HOURS_PER_INTERRUPTION
    restart_s: float = RESTART_S
    checkpoint_bytes_per_s_per_gpu: float = CHECKPOINT_BYTES_PER_S_PER_GPU

    def between_failures_s(self, num_gpus: int) -> float:
        """Mean seconds from one interruption to the next."""
        return self.gpu_hours_per_interruption * HOUR_S / num_gpus

    def checkpoint_s(self, checkpoint_bytes: float, num_gpus: int) -> float:
        """Seconds to write a checkpoint; every GPU writes its share."""
        return checkpoint_bytes / (self.checkpoint_bytes_per_s_per_gpu * num_gpus)

    def interval_s(self, checkpoint_bytes: float, num_gpus: int) -> float:
        """Seconds of work between two checkpoints that lose least."""
        wait_s = self.between_failures_s(num_gpus)
        return sqrt(2.0 * self.checkpoint_s(checkpoint_bytes, num_gpus) * wait_s)

    def slowdown(self, checkpoint_bytes: float, num_gpus: int) -> float:
        """Time of a run over the time of its steps, at least 1; 1 / slowdown is its goodput."""
        interval, wait_s = self.interval_s(checkpoint_bytes, num_gpus), self.between_failures_s(num_gpus)
        written = self.checkpoint_s(checkpoint_bytes, num_gpus) / interval if interval else 0.0
        return 1.0 + written + (interval / 2.0 + self.restart_s) / wait_s
