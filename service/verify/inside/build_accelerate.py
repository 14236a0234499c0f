"""accelerate shards a Hugging Face model of a plan's shape under a fake process group, and runs a step.

accelerate's own steps: its parser of launch files, its plugin, its mesh, ``Accelerator.prepare``, what it
recomputes and compiles, ``no_sync`` and ``backward``. The model is what the training script would make:
transformers' class for these facts, with flash attention. What is compiled is cut up by torch's partitioner
and run operator by operator, since kernels need a GPU.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from building import (
    OFFLOADED,
    Built,
    Case,
    answer,
    apart,
    bytes_of,
    compiled,
    converted,
    gathered,
    gradients,
    local,
    matrices,
    said,
    shards,
    traced,
    without_data,
)
from hugging_face import joined, unsharded_model
from torch._dynamo.backends import registry
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism


def _use_cpu(self: PartialState) -> None:
    self.device = torch.device("cpu")


PartialState._prepare_backend = lambda *_given, **_options: ("fake", DistributedType.MULTI_GPU)
PartialState.set_device = _use_cpu


class Replicated(torch.nn.Module):
    """Replicas without torch's reducer, which reads addresses of data: the same weights and passes."""

    def __init__(self, module: torch.nn.Module, **_options: object) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: Any, **options: Any) -> Any:
        return self.module(*given, **options)

    def no_sync(self) -> Any:
        return nullcontext()


torch.nn.parallel.DistributedDataParallel = Replicated  # type: ignore[misc]
torch.Tensor.pin_memory = lambda self, *_given: self  # type: ignore[method-assign]

REPLICAS = (
    "plain replicas: the buckets of torch's reducer are not made, so no peak is traced; neither they nor "
    "autocast's casts are compared"
)
STANDING_IN = "AOT_EAGER"  # of accelerate's names for compilers
registry.lookup_backend(STANDING_IN.lower())  # which fills the registry
registry._BACKENDS[STANDING_IN.lower()] = None
registry._COMPILER_FNS[STANDING_IN.lower()] = compiled


def build(case: Case) -> Iterator[Built]:
    """Yield every rank that is asked for; a step is traced of the first of those that are built alike."""
    like: dict[str, int] = {}
    for rank in case["ranks"]:
        found = apart(rank_of, case, rank, like)
        if "untraced" not in found:
            like.setdefault(repr(found["shard_bytes"]), rank)
        yield {"rank": rank, **found}


def join(case: Case, rank: int) -> None:
    """Become one rank of the launch, with groups that send nothing."""
    os.environ.update(launched(case))
    if "ACCELERATE_DYNAMO_BACKEND" in os.environ:
        os.environ["ACCELERATE_DYNAMO_BACKEND"] = STANDING_IN
    os.environ.update(
        RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(case["world_size"]),
        MASTER_ADDR="localhost", MASTER_PORT="29500",
        FSDP_CPU_RAM_EFFICIENT_LOADING="false",  # would read a checkpoint
    )  # fmt: skip
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=rank, world_size=case["world_size"]
    )


def launched(case: Case) -> dict[str, str]:
    """Return the variables that ``accelerate launch`` sets for the processes that it starts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accelerate.yaml"
        path.write_text(case["files"]["accelerate.yaml"])
        place = ["--machine_rank", "0", "--main_process_port", "29500", "--main_process_ip", "localhost"]
        args, _defaults, _precision = _validate_launch_command(
            launch_command_parser().parse_args(["--config_file", str(path), *place, "train.py"])
        )
    return {name: value for name, value in prepare_multi_gpu_env(args).items() if value is not None}


def rank_of(case: Case, rank: int, like: Mapping[str, int]) -> Built:
    """Return a rank's shards of the model and of its optimizer; ``like``: ranks that were traced before."""
    join(case, rank)
    accelerator = Accelerator()
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    sharded = plugin is not None
    if not sharded:
        torch.nn.Module._apply = converted  # type: ignore[method-assign]
    with nullcontext() if sharded else without_data():
        model = unsharded_model(case["model"], "meta" if sharded else "cpu")
        if accelerator.parallelism_config and accelerator.parallelism_config.tp_enabled:
            split(model, accelerator.torch_device_mesh["tp"])
        if case["recompute_every_layer"] and not sharded:  # FSDP's plugin does it itself
            model.gradient_checkpointing_enable()
            model.train()
        layers = model.model.layers
        found: Built = {
            "stage": 0,
            "layers": [len(layers)],
            "parameters": sum(local(weight).numel() for weight in model.parameters()),
            "matrices": matrices(joined(layers)),
            "whole_matrices": True,
        }
        prepared, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    found["shard_bytes"] = bytes_of(prepared.parameters())
    if sharded and isinstance(plugin.cpu_offload, CPUOffloadPolicy):
        return found | {"untraced": OFFLOADED}
    if repr(found["shard_bytes"]) in like:
        return found | {"like": like[repr(found["shard_bytes"])]}
    with without_data():
        if sharded:
            prepared.to_empty(device="cpu")
        return found | step_of(accelerator, prepared, case)


def split(model: Any, mesh: Any) -> None:
    """Give tensor ranks their parts of the weights, as ``from_pretrained`` of transformers does first."""
    model._tp_size, model._device_mesh = mesh.size(), mesh
    plan, _experts, _shards = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh.size()))
    apply_tensor_parallelism(model, mesh, plan)


def states_of(weights: list[Any]) -> tuple[Built, list[Any]]:
    """Return the bytes of weights and of the trainer's optimizer, and the optimizer's states."""
    optimizer = torch.optim.AdamW(weights)  # prepare's own finds its weights by addresses, which these lack
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    states = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
    return {"weight_bytes": bytes_of(weights), "optimizer_bytes": bytes_of(states)}, states


def step_of(accelerator: Any, model: Any, case: Case) -> Built:
    """Return the bytes of states, and a step as the trainer runs it."""
    found, states = states_of(list(model.parameters()))
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    stays_gathered = plugin is not None and not plugin.reshard_after_forward
    if plugin is None:  # of fp32 weights two bytes are priced as the model's, two as their copy
        found["weight_bytes"] //= 2
        found["optimizer_bytes"] += found["weight_bytes"]
        found["uncompared"] = REPLICAS
    told = {} if stays_gathered else dict(found)  # such weights are gathered in a step alone
    if not case["trace"]:
        return told
    tokens = torch.zeros(case["micro_batch_size"], case["seq_length"], dtype=torch.int64)
    seen: list[tuple[int, int]] = []

    def step() -> None:
        for last in range(case["trace"] - 1, -1, -1):
            with accelerator.no_sync(model) if last else nullcontext():
                loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
                seen.append((bytes_of(gathered(model)), bytes_of(gradients(model))))
                accelerator.backward(loss)
        seen.append((0, bytes_of(gradients(model))))

    try:
        step()
        model.zero_grad()
        whole, found["gradient_bytes"] = (max(sizes) for sizes in zip(*seen, strict=True))
        if stays_gathered:  # whole weights are the model's, fp32 shards the optimizer's copy of them
            found["weight_bytes"] = whole
            found["optimizer_bytes"] += bytes_of(shards(model))
        told = found | traced(step, [model, *states], case["trace"])
        if plugin is None:
            del told["peak_bytes"]
    except Exception as error:  # noqa: BLE001 - what is built stays, only the step is not traced
        told["untraced"] = said(error)
    return told


if __name__ == "__main__":
    answer(build)
