"""Collectives over all ranks that were started, by payload.

``payload_bytes`` is the buffer of an all-reduce, the whole result of an all-gather, the whole input of a
reduce-scatter, what one rank sends in an all-to-all, and the message of a point-to-point transfer.
``moved_bytes`` is what the bandwidth-optimal algorithm sends from each rank, so that moved_bytes / median_s
is nccl-tests' bus bandwidth (doc/PERFORMANCE.md there).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.measure.device import Device
from meshwright.profiles.measure.timing import Effort, Label, timing_of
from meshwright.profiles.measured.profile import Measurement
from meshwright.profiles.units import KIB, MIB

# --------------------------------------------------------------------------------------------------
# The processes that were started together: torchrun's environment, and the group that they form.
#
# Rank 0 keeps the file and decides; the others follow.


T = TypeVar("T")
TIMEOUT = timedelta(minutes=10)  # for a rank that does not come
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # set by torchrun


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The rank of this process, and the group it belongs to."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1  # processes on this node

    @property
    def leads(self) -> bool:
        """Return whether this process keeps the file."""
        return self.rank == 0

    def words(self) -> str:
        """Return how task names distinguish this group from others: ``8x2`` is 8 on each of 2 nodes."""
        return f"{self.local_world_size}x{self.world_size // self.local_world_size}"


def ranks_from(environment: Mapping[str, str]) -> Ranks:
    """Return the ranks from torchrun's variables; one process if they are not set.

    Raises:
        InvalidProblemError: they are not numbers, or contradict each other.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return Ranks()
    defaults = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    texts = {name: environment.get(name, defaults.get(name, "")) for name in VARIABLES}
    if not all(text.isascii() and text.isdigit() and len(text) <= 7 for text in texts.values()):  # noqa: PLR2004
        raise InvalidProblemError.of("torchrun", f"{', '.join(VARIABLES)} must be whole numbers")
    rank, world, local_rank, local_world = (int(texts[name]) for name in VARIABLES)
    if not (rank < world and local_rank < local_world <= world and world % local_world == 0):
        raise InvalidProblemError.of("torchrun", f"{', '.join(VARIABLES)} contradict each other")
    return Ranks(rank=rank, world_size=world, local_rank=local_rank, local_world_size=local_world)


@contextmanager
def joined(device: Device) -> Iterator[None]:
    """Join all ranks in a process group: NCCL on CUDA, gloo on CPUs (needs MASTER_ADDR and MASTER_PORT)."""
    distributed = device.torch.distributed
    if device.kind == "cuda":
        gpu = device.torch.device(device.name)
        distributed.init_process_group("nccl", timeout=TIMEOUT, device_id=gpu)
    else:
        distributed.init_process_group("gloo", timeout=TIMEOUT)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def broadcast(value: T, device: Device) -> T:
    """Return rank 0's value on every rank."""
    box = [value]
    device.torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def slowest(seconds: list[float], device: Device) -> list[float]:
    """Return the longest time of any rank, entry by entry: a collective ends when its last rank does."""
    torch = device.torch
    values = torch.tensor(seconds, dtype=torch.float64, device=device.name)
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX)
    return [float(value) for value in values.tolist()]


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
FULL_PAYLOADS = tuple(4 * KIB * 4**power for power in range(10))  # 4 KiB to 1 GiB
CPU_PAYLOADS = FULL_PAYLOADS[:8]  # to 64 MiB: gloo is slow and its payloads stay in host memory
QUICK_PAYLOADS = (16 * KIB, MIB, 16 * MIB)

Run = Callable[[], object]


def payloads_of(device_kind: str, *, quick: bool) -> tuple[int, ...]:
    """Return the payloads to measure, in bytes."""
    if quick:
        return QUICK_PAYLOADS
    return CPU_PAYLOADS if device_kind == "cpu" else FULL_PAYLOADS


def measure_collective(
    operator: str, payload_bytes: int, ranks: Ranks, device: Device, effort: Effort, *, task: str
) -> list[Measurement]:
    """Return one collective of one payload; all ranks call this together, each gets the same figures."""
    size = ranks.world_size
    elements = -(-payload_bytes // (device.element_bytes * size)) * size  # a whole share for every rank
    run = _runs(elements, ranks, device)[operator]
    seconds = slowest(_seconds(run, device, _repeats(run, device, effort)), device)
    payload = elements * device.element_bytes
    shape = {"ranks": size, "ranks_per_node": ranks.local_world_size, "payload_bytes": payload}
    label = Label(task=task, group="collectives", operator=operator, shape=shape)
    # bytes that each rank sends over the payload (Thakur, Rabenseifner and Gropp 2005)
    share = (size - 1) / size
    sent = {"all_reduce": 2 * share, "p2p": 1.0}.get(operator, share)
    return [label.measured("forward", timing_of(seconds), moved_bytes=sent * payload)]


def _repeats(run: Run, device: Device, effort: Effort) -> int:
    """Return how often to repeat: as often as fits the budget by the slowest rank's warm-up."""
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
    """Return this rank's time of each repeat; a barrier before each lets all start together."""
    seconds = []
    for _ in range(repeats):
        device.torch.distributed.barrier()
        device.synchronize()
        seconds.append(device.seconds_of(run, cold=False)[0])
    return seconds


def _runs(elements: int, ranks: Ranks, device: Device) -> Mapping[str, Run]:
    """Return every collective on its buffers.

    torch 2.13 renamed all_gather_into_tensor and reduce_scatter_tensor; either name is taken.
    """
    distributed, size = device.torch.distributed, ranks.world_size
    whole, other = device.random(elements), device.random(elements)
    summed = device.torch.zeros_like(whole)  # however often it is summed, it does not overflow
    share = device.random(elements // size)
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor

    def shift() -> None:
        """Send from every rank to the next and receive from the one before, as pipeline stages do."""
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
