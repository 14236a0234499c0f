"""What a GPU draws: so much while it computes, less while it waits.

Power falls from busy to waiting in proportion to the busy share of the time, the linear model of Fan,
Weber and Barroso 2007 ("Power provisioning for a warehouse-sized computer", ISCA).
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.cluster import GpuSpec
from profiles.errors import InvalidProblemError

# An 8 x H100 node that trains at full utilisation draws 8.4 of its rated 10.2 kW (Latif et al. 2024,
# arXiv:2412.08602); the share is taken for each GPU's own limit.
BUSY_SHARE = 0.82
# Training power falls to about a fifth of the limit where GPUs wait for one another (assumed, after the
# swings that Patel et al. 2024 show for training, arXiv:2308.12908).
WAITING_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Watts of one GPU; hosts, network and cooling are not part of it."""

    busy_w: float
    waiting_w: float


def power_of(gpu: GpuSpec) -> Power:
    """Power of a GPU type from the limit in its data sheet.

    Raises:
        InvalidProblemError: nobody said how much it may draw.
    """
    if not gpu.power_watts:
        raise InvalidProblemError.of("/cluster", f"{gpu.slug} states no power_watts")
    return Power(busy_w=BUSY_SHARE * gpu.power_watts, waiting_w=WAITING_SHARE * gpu.power_watts)
