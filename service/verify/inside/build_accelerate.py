"""accelerate shards a Hugging Face model of a plan's shape on meta tensors, under a fake process group.

accelerate's own steps: its parser of launch files, its plugin, its mesh, ``Accelerator.prepare``.
The model is what the training script would make: transformers' class for these facts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from building import Built, Case, answer, bytes_of, matrices
from hugging_face import unsharded_model
from torch.testing._internal.distributed.fake_pg import FakeStore

BEFORE = dict(os.environ)


def _use_cpu(self: PartialState) -> None:
    """The device of every rank."""
    self.device = torch.device("cpu")


PartialState._prepare_backend = lambda *_given, **_options: ("fake", DistributedType.MULTI_GPU)
PartialState.set_device = _use_cpu


def build(case: Case) -> Iterator[Built]:
    """Every rank that is asked for."""
    for rank in case["ranks"]:
        os.environ.clear()
        os.environ.update(BEFORE | launched(case))
        os.environ.update(
            RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(case["world_size"]),
            MASTER_ADDR="localhost", MASTER_PORT="29500",
            FSDP_CPU_RAM_EFFICIENT_LOADING="false",  # would read a checkpoint
        )  # fmt: skip
        torch.distributed.init_process_group(
            "fake", store=FakeStore(), rank=rank, world_size=case["world_size"]
        )
        try:
            yield {"rank": rank, **rank_of(case)}
        finally:
            for state in (AcceleratorState, PartialState):
                state._reset_state()
            GradientState._reset_state()
            torch.distributed.destroy_process_group()


def launched(case: Case) -> dict[str, str]:
    """What ``accelerate launch`` tells the processes that it starts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accelerate.yaml"
        path.write_text(case["files"]["accelerate.yaml"])
        place = ["--machine_rank", "0", "--main_process_port", "29500", "--main_process_ip", "localhost"]
        words = ["--config_file", str(path), *place, "train.py"]
        args, _defaults, _precision = _validate_launch_command(launch_command_parser().parse_args(words))
    return {name: value for name, value in prepare_multi_gpu_env(args).items() if value is not None}


def rank_of(case: Case) -> Built:
    """A rank's shards of the model and of its optimizer."""
    model = unsharded_model(case["model"])
    layers = model.model.layers
    found: Built = {
        "stage": 0,
        "layers": [len(layers)],
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "matrices": matrices(joined(layers)),
        "whole_matrices": True,
    }
    prepared, _ = Accelerator().prepare(model, torch.optim.AdamW(model.parameters()))
    weights = list(prepared.parameters())
    optimizer = torch.optim.AdamW(
        weights
    )  # the other finds its weights by addresses, which meta tensors lack
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    states = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
    return found | {
        "weight_bytes": bytes_of(weights),
        "optimizer_bytes": bytes_of(states),
    }


def joined(layers: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of the layers' matrices, those that read the same input as one product."""
    for layer in layers:
        shapes = {name: tuple(weight.shape) for name, weight in layer.named_parameters()}
        for name, shape in shapes.items():
            if name.endswith("q_proj.weight"):
                both = shapes[name.replace("q_proj", "k_proj")][0]
                yield (shape[0] + 2 * both, shape[1])
            elif name.endswith("gate_proj.weight"):
                yield (2 * shape[0], shape[1])
            elif not name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight")):
                yield shape


if __name__ == "__main__":
    answer(build)
