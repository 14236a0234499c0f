"""Collectives over all ranks that were started, by payload.

``payload_bytes`` is the buffer of an all-reduce, the whole result of an all-gather, the whole input of a
reduce-scatter, what one rank sends in an all-to-all, and the message of a point-to-point transfer.
``moved_bytes`` is what the bandwidth-optimal algorithm sends from each rank, so that moved_bytes / median_s
is nccl-tests' bus bandwidth (doc/PERFORMANCE.md there).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from profiles.measure.device import Device
from profiles.measure.ranks import Ranks, slowest
from profiles.measure.task import Label
from profiles.measure.timing import Effort, timing_of
from profiles.measured_profile import Measurement
from profiles.units import KIB, MIB

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
FULL_PAYLOADS = tuple(4 * KIB * 4**power for power in range(10))  # 4 KiB to 1 GiB
CPU_PAYLOADS = FULL_PAYLOADS[:8]  # to 64 MiB: gloo is slow and its payloads stay in host memory
QUICK_PAYLOADS = (16 * KIB, MIB, 16 * MIB)

Run = Callable[[], object]


def payloads_of(device_kind: str, *, quick: bool) -> tuple[int, ...]:
    """The payloads to measure, in bytes."""
    if quick:
        return QUICK_PAYLOADS
    return CPU_PAYLOADS if device_kind == "cpu" else FULL_PAYLOADS


def measure_collective(
    operator: str, payload_bytes: int, ranks: Ranks, device: Device, effort: Effort, *, task: str
) -> list[Measurement]:
    """One collective of one payload; all ranks call this together, each gets the same figures."""
    size = ranks.world_size
    elements = -(-payload_bytes // (device.element_bytes * size)) * size  # a whole share for every rank
    run = _runs(elements, ranks, device)[operator]
    seconds = slowest(_seconds(run, device, _repeats(run, device, effort)), device)
    payload = elements * device.element_bytes
    shape = {"ranks": size, "ranks_per_node": ranks.local_world_size, "payload_bytes": payload}
    label = Label(task=task, group="collectives", operator=operator, shape=shape)
    return [
        label.measured("forward", timing_of(seconds), moved_bytes=_sent_share(operator, size) * payload)
    ]


def _sent_share(operator: str, size: int) -> float:
    """Bytes that each rank sends over the payload (Thakur, Rabenseifner and Gropp 2005)."""
    share = (size - 1) / size
    return {"all_reduce": 2 * share, "p2p": 1.0}.get(operator, share)


def _repeats(run: Run, device: Device, effort: Effort) -> int:
    """How often to repeat: as often as the slowest rank's warm-up says the budget allows."""
    for _ in range(effort.warmups):
        run()
    device.synchronize()
    device.torch.distributed.barrier()
    start_s = time.perf_counter()
    run()
    device.synchronize()
    (once_s,) = slowest([time.perf_counter() - start_s], device)
    affordable = int(effort.budget_s / max(once_s, 1e-9))
    return min(max(affordable, effort.min_repeats), effort.max_repeats)


def _seconds(run: Run, device: Device, repeats: int) -> list[float]:
    """This rank's time of each repeat; a barrier before each lets all start together."""
    seconds = []
    for _ in range(repeats):
        device.torch.distributed.barrier()
        device.synchronize()
        seconds.append(device.seconds_of(run, cold=False)[0])
    return seconds


def _runs(elements: int, ranks: Ranks, device: Device) -> Mapping[str, Run]:
    """Every collective on its buffers.

    torch 2.13 renamed all_gather_into_tensor and reduce_scatter_tensor; either name is taken.
    """
    distributed, size = device.torch.distributed, ranks.world_size
    whole, other = device.random(elements), device.random(elements)
    summed = device.torch.zeros_like(whole)  # however often it is summed, it does not overflow
    share = device.random(elements // size)
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor

    def shift() -> None:
        """Every rank sends to the next and receives from the one before, as pipeline stages do."""
        send = distributed.P2POp(distributed.isend, whole, (ranks.rank + 1) % size)
        receive = distributed.P2POp(distributed.irecv, other, (ranks.rank - 1) % size)
        for work in distributed.batch_isend_irecv([send, receive]):
            work.wait()

    return {
        "all_reduce": lambda: distributed.all_reduce(summed),
        "all_gather": lambda: gather(whole, share),
        "reduce_scatter": lambda: scatter(share, whole),
        "all_to_all": lambda: distributed.all_to_all_single(other, whole),
        "p2p": shift,
    }
