"""torchtitan 0.2 trains a Llama on the processes of this machine: its ``torchtitan.train``, without a GPU.

    PYTHONPATH=run torchrun --nproc-per-node 2 examples/cpu_training/launchers/torchtitan_train.py \
        --module torchtitan_plan --config plan --training.steps 10

The plan's module is written for 0.3; ``torchtitan_0_2`` makes 0.2's files of it.
Configuration, model, parallelism, optimizer, checkpoints and log are torchtitan's own, uncompiled. The data
are sequences drawn by their number, so that any layout sees the same ones in the same step.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ |= {"TORCHDYNAMO_DISABLE": "1", "LOCAL_RANK": "0"}  # all processes share one device
sys.path[0] = str(Path(__file__).parent)  # this folder, not torchtitan's own ``train``
import on_cpu
import torch
import torchtitan_0_2


def given_to_0_2(words: list[str]) -> list[str]:
    """Return the arguments with the plan's module as a TOML; its model is next to it, on the path."""
    if "--module" not in words:
        return words
    at = words.index("--module")
    found = find_spec(words[at + 1])
    if found is None or found.origin is None or words[at + 2 : at + 4] != ["--config", "plan"]:
        raise SystemExit(
            "give --module torchtitan_plan --config plan, with the plan's folder on PYTHONPATH"
        )
    folder = Path(tempfile.mkdtemp())
    for name, text in torchtitan_0_2.older_files(Path(found.origin).read_text()).items():
        (folder / name).write_text(text)
    sys.path.append(str(folder))
    return ["--job.config_file", str(folder / torchtitan_0_2.TOML_FILE), *words[:at], *words[at + 4 :]]


sys.argv[1:] = given_to_0_2(sys.argv[1:])  # before torchtitan takes them, at its import
torch._utils._get_available_device_type = lambda: "cpu"
import torchtitan.train
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.protocols import train_spec

_factors = _fsdp_collectives._get_gradient_divide_factors


def _summed(scatter: Any, reduce: Any, kind: Any, device: str = "", factor: Any = None, *_: object) -> Any:
    """Gradients are summed and then divided: gloo has no operation that does both."""
    return _factors(scatter, reduce, kind, device, factor, force_sum_reduction_for_comms=True)


_fsdp_collectives._get_gradient_divide_factors = _summed


class Sequences(BaseDataLoader):  # type: ignore[misc] # torchtitan is in its own environment
    """Batches of one replica; of how many sequences all replicas have taken is what a checkpoint keeps."""

    def __init__(self, *, dp_world_size: int, dp_rank: int, job_config: Any, **_options: Any) -> None:
        training = job_config.training
        self.batch, self.length = training.local_batch_size, training.seq_len
        self.replicas, self.rank, self.taken = dp_world_size, dp_rank, 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Batches without end."""
        while True:
            first = self.taken + self.rank * self.batch
            tokens = torch.stack([on_cpu.sequence(first + one, self.length) for one in range(self.batch)])
            self.taken += self.batch * self.replicas
            yield {"input": tokens[:, :-1]}, tokens[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        """The same on every replica."""
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind what was taken."""
        self.taken = int(state["taken"])


def drawn(name: str) -> Any:
    """Torchtitan's model of that name with data of our own."""
    return replace(_spec_of(name), build_tokenizer_fn=None, build_dataloader_fn=Sequences)


_spec_of, train_spec.get_train_spec = train_spec.get_train_spec, drawn

if __name__ == "__main__":
    on_cpu.limit_memory()
    torchtitan.train.main(torchtitan.train.Trainer)
