"""Megatron-LM trains a GPT on the processes of this machine: its ``pretrain_gpt.py``, without a GPU.

    MEGATRON_LM_DIR=examples/cpu_training/launchers MOCK_DATA=1 bash run/launch.sh

Arguments, model, optimizer, schedule, checkpoints and log are Megatron-LM's own, with its local layers in
place of Transformer Engine's and gloo in place of NCCL. The data are sequences drawn by their number, so
that any layout sees the same ones in the same step.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import on_cpu
import torch
import typing_extensions

typing.override = typing_extensions.override  # type: ignore[attr-defined] # the wheel is for Python 3.12
torch.compile = lambda function=None, **_options: function or (lambda given: given)

from megatron.core.enums import ModelType
from megatron.core.tensor_parallel import random
from megatron.training import get_args, initialize, pretrain
from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
from megatron.training.arguments import parse_args, validate_args
from megatron.training.global_vars import set_global_variables

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
