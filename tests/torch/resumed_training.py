"""Trains a small model on forked gloo ranks, kills them, and goes on under other layouts.

    python resumed_training.py FOLDER_WITH_RESUME_PY OUT   # one JSON line: losses of every step of each run

Every run sees the same sequences at the same step: the global batch is kept by accumulation.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.insert(0, sys.argv[1])
import resume  # type: ignore[import-not-found] # exported beside this run

OUT = Path(sys.argv[2])
CHECKPOINTS = OUT / "checkpoints"
BATCH, WIDTH, SAVE_EVERY, MORE, PATIENCE_S = 8, 16, 2, 4, 60.0


@dataclass(frozen=True)
class Layout:
    """Ranks of a run."""

    data: int
    tensor: int

    @property
    def ranks(self) -> int:
        return self.data * self.tensor


class Block(nn.Module):  # type: ignore[misc] # torch is in its own environment
    """Two matrices."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):  # type: ignore[misc] # the same
    """Two blocks and a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def built(layout: Layout, width: int = WIDTH) -> tuple[nn.Module, torch.optim.Optimizer, int]:
    """The model as this rank holds it, its optimizer, and this rank's replica."""
    torch.manual_seed(7)
    model = Model(width)
    mesh = init_device_mesh("cpu", (layout.data, layout.tensor), mesh_dim_names=("data", "tensor"))
    if layout.tensor > 1:
        for layer in model.layers:
            parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), mesh["data"].get_local_rank()


def step_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, layout: Layout, replica: int, step: int
) -> float:
    """One step of the global batch: this replica's sequences one after the other; the mean loss of all."""
    batch = torch.Generator().manual_seed(1000 + step)
    x, y = torch.randn(BATCH, WIDTH, generator=batch), torch.randint(4, (BATCH,), generator=batch)
    mine = range(replica, BATCH, layout.data)
    total = torch.zeros(())
    for index in mine:
        loss = nn.functional.cross_entropy(model(x[index : index + 1]), y[index : index + 1]) / len(mine)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    return float(total / dist.get_world_size())


def trains(
    name: str, layout: Layout, *, resumes: bool, steps: int, slowly: bool = False
) -> Callable[[], None]:
    """A rank's work: train from the newest checkpoint, or the start, and write down every loss."""

    def work() -> None:
        model, optimizer, replica = built(layout)
        first = resume.resume(CHECKPOINTS, model, optimizer) if resumes else 0
        losses: dict[int, float] = {}
        for step in range(first, steps):
            losses[step] = step_of(model, optimizer, layout, replica, step)
            if dist.get_rank() == 0:
                written(name, losses)
            if slowly and (step + 1) % SAVE_EVERY == 0:
                resume.save(CHECKPOINTS, step + 1, model, optimizer)
                time.sleep(0.2)

    return work


def refuses() -> None:
    """A wider model is not loaded from this checkpoint, and keeps the weights that it has."""
    layout = Layout(data=1, tensor=1)
    model, optimizer, _ = built(layout, width=2 * WIDTH)
    before = [one.full_tensor().clone() for one in model.parameters()]
    try:
        resume.resume(CHECKPOINTS, model, optimizer)
        said = ""
    except ValueError as fault:
        said = str(fault)
    same = all(
        torch.equal(one.full_tensor(), was) for one, was in zip(model.parameters(), before, strict=True)
    )
    written("refusal", {"said": said, "unchanged": same})


def written(name: str, found: dict[Any, Any]) -> None:
    """Put a run's results where the parent finds them, whole."""
    path = OUT / f"{name}.json"
    path.with_suffix(".tmp").write_text(json.dumps(found))
    path.with_suffix(".tmp").replace(path)


def started(name: str, layout: Layout, work: Callable[[], None]) -> list[int]:
    """Ranks, forked: torch is loaded once."""
    ranks = []
    for rank in range(layout.ranks):
        pid = os.fork()
        if pid:
            ranks.append(pid)
            continue
        code = 1
        try:
            meet = f"file://{OUT / name}.ranks"
            dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=layout.ranks)
            work()
            code = 0
        except Exception:  # noqa: BLE001 - whatever it was, the parent is told
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return ranks


def ended(ranks: list[int]) -> None:
    """Wait for all ranks.

    Raises:
        RuntimeError: one failed.
    """
    if any(os.waitpid(pid, 0)[1] for pid in ranks):
        raise RuntimeError("a rank failed")


def main() -> None:
    """Train, kill, go on under two other layouts; beside it one run that nobody disturbs."""
    torch.set_num_threads(1)
    before, alone = Layout(data=2, tensor=2), Layout(data=1, tensor=1)
    ranks = started("killed", before, trains("killed", before, resumes=False, steps=10_000, slowly=True))
    until = time.monotonic() + PATIENCE_S
    while (resume.newest(CHECKPOINTS) or 0) < 2 * SAVE_EVERY:
        if time.monotonic() > until or os.waitpid(ranks[0], os.WNOHANG)[0]:
            raise RuntimeError("no checkpoint came")
        time.sleep(0.01)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    steps = (resume.newest(CHECKPOINTS) or 0) + MORE
    others = {"smaller": Layout(data=2, tensor=1), "tensor": Layout(data=1, tensor=2)}
    for name, layout in others.items():
        ended(started(name, layout, trains(name, layout, resumes=True, steps=steps)))
    ended(started("undisturbed", alone, trains("undisturbed", alone, resumes=False, steps=steps)))
    ended(started("refusal", alone, refuses))
    names = ("killed", "smaller", "tensor", "undisturbed", "refusal")
    found = {name: json.loads((OUT / f"{name}.json").read_text()) for name in names}
    sys.stdout.write(json.dumps({**found, "saved_step": resume.newest(CHECKPOINTS)}) + "\n")


if __name__ == "__main__":
    main()
