"""Megatron-LM trains a GPT on the processes of this machine: its ``pretrain_gpt.py``, without a GPU.

    MEGATRON_LM_DIR=examples/cpu_training/launchers MOCK_DATA=1 bash run/launch.sh

Arguments, model, optimizer, schedule, checkpoints and log are Megatron-LM's own, with its local layers in
place of Transformer Engine's and gloo in place of NCCL. The data are sequences drawn by their number, so
that any layout sees the same ones in the same step.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import on_cpu
import torch
import typing_extensions
from torch.optim.adamw import adamw

typing.override = typing_extensions.override  # type: ignore[attr-defined] # the wheel is for Python 3.12
torch.compile = lambda function=None, **_options: function or (lambda given: given)


class FusedAdam(torch.optim.Optimizer):  # type: ignore[misc] # torch is in its own environment
    """AdamW that keeps its step as Apex and Transformer Engine do: beside the weights, not with each.

    Megatron-LM's checkpoints count on that: with torch's own it cannot load what it has saved.
    """

    def __init__(self, params: Any, **options: Any) -> None:
        named = ("lr", "weight_decay", "betas", "eps")
        super().__init__(params, {name: options[name] for name in named})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step of every weight that has a gradient."""
        del closure
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            weights = [one for one in group["params"] if one.grad is not None]
            for one in weights:
                if not self.state[one]:
                    self.state[one] = {name: torch.zeros_like(one) for name in ("exp_avg", "exp_avg_sq")}
            states = [self.state[one] for one in weights]
            adamw(
                weights, [one.grad for one in weights], [one["exp_avg"] for one in states],
                [one["exp_avg_sq"] for one in states], [],
                [torch.tensor(group["step"] - 1.0) for _ in weights], foreach=False, amsgrad=False,
                beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
                weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
            )  # fmt: skip


sys.modules["apex.optimizers"] = types.SimpleNamespace(FusedAdam=FusedAdam, FusedSGD=torch.optim.SGD)  # type: ignore[assignment]

from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.enums import ModelType
from megatron.core.tensor_parallel import random
from megatron.training import get_args, initialize, pretrain
from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
from megatron.training.arguments import parse_args, validate_args
from megatron.training.global_vars import set_global_variables

filesystem_async._process_memory = lambda: on_cpu.resident_bytes("VmRSS")  # without psutil
random._set_cuda_rng_state = lambda state, **_options: torch.set_rng_state(state)
initialize._compile_dependencies = lambda: None  # of indexed data sets, and kernels
initialize.set_jit_fusion_options = lambda **_options: None

LOCAL = (  # what a CPU cannot run, and what takes its place
    "--transformer-impl", "local", "--distributed-backend", "gloo", "--no-persist-layer-norm",
    "--no-masked-softmax-fusion", "--no-gradient-accumulation-fusion", "--no-rope-fusion",
    "--no-bias-swiglu-fusion", "--no-bias-gelu-fusion", "--no-bias-dropout-fusion", "--num-workers", "0",
    "--attention-backend", "auto",
)  # fmt: skip


class Sequences(torch.utils.data.Dataset):  # type: ignore[misc] # torch is in its own environment
    """Sequences of tokens, each drawn by its number."""

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """What GPTDataset gives for a sequence."""
        tokens = on_cpu.sequence(int(number), self.length)
        return {
            "tokens": tokens[:-1], "labels": tokens[1:], "loss_mask": torch.ones(self.length),
            "position_ids": torch.arange(self.length),
        }  # fmt: skip


def datasets(counts: Any, **_options: Any) -> tuple[Any, ...]:
    """Training, validation and test: the first alone is used."""
    return tuple(Sequences(max(count or 0, 1), get_args().seq_length) for count in counts)


datasets.is_distributed = True  # type: ignore[attr-defined] # every rank draws its own


def forward_step(data: Iterator[dict[str, torch.Tensor]], model: Any, **_options: Any) -> tuple[Any, Any]:
    """As Megatron-LM's own: losses of a micro-batch, and how they become one."""
    one = next(data)
    output = model(
        one["tokens"], one["position_ids"], None, labels=one["labels"], loss_mask=one["loss_mask"]
    )
    return output, partial(summed, one["loss_mask"])


def summed(mask: torch.Tensor, losses: torch.Tensor) -> tuple[Any, Any, dict[str, Any]]:
    """Sum of the losses, tokens, and both to be reported."""
    mask = mask.view(-1)
    total, tokens = torch.sum(losses.view(-1).float() * mask), mask.sum().to(torch.int)
    return total, tokens, {"lm loss": torch.cat([total.detach().view(1), tokens.view(1)])}


def main() -> None:
    """Train as the arguments say."""
    on_cpu.limit_memory()
    sys.argv += LOCAL
    args = validate_args(parse_args())
    set_global_variables(args)
    model = gpt_config_from_args(args)
    pretrain(
        pretrain_cfg_container_from_args(args, model), datasets, ModelType.encoder_or_decoder, forward_step
    )


if __name__ == "__main__":
    main()
