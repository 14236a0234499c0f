"""The processes that were started together: torchrun's environment, and the group that they form.

Rank 0 keeps the file and decides; the others follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from profiles.errors import InvalidProblemError
from profiles.measure.device import Device

T = TypeVar("T")
TIMEOUT = timedelta(minutes=10)  # for a rank that does not come
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # set by torchrun


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Where this process stands among them."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1  # processes on this node

    @property
    def leads(self) -> bool:
        """Whether this process keeps the file."""
        return self.rank == 0

    def words(self) -> str:
        """How task names tell this group from others: ``8x2`` is 8 on each of 2 nodes."""
        return f"{self.local_world_size}x{self.world_size // self.local_world_size}"


def ranks_from(environment: Mapping[str, str]) -> Ranks:
    """What torchrun's variables say; one process where they are not set.

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
    """The process group of all ranks: NCCL on CUDA, gloo on CPUs (MASTER_ADDR and MASTER_PORT are set)."""
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


def told(value: T, device: Device) -> T:
    """Rank 0's value, on every rank."""
    box = [value]
    device.torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def slowest(seconds: list[float], device: Device) -> list[float]:
    """The longest time of any rank, entry by entry: a collective ends when its last rank does."""
    torch = device.torch
    values = torch.tensor(seconds, dtype=torch.float64, device=device.name)
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX)
    return [float(value) for value in values.tolist()]
