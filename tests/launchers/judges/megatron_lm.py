"""Megatron-LM 0.19 on a CPU: parse_args, validate_args, the transformer's configuration, micro-batches.

The wheel is for Python 3.12 and GPUs; four things are put in place before its import: ``typing.override``,
a CUDA capability of 9.0, Transformer Engine 2.9, and a fused rotary function that is not None.
"""

from __future__ import annotations

import os
import shlex
import sys
import typing
from pathlib import Path

import torch
import typing_extensions

sys.path.insert(0, str(Path(__file__).parent))
from protocol import Case, Seen, serve

typing.override = typing_extensions.override  # type: ignore[attr-defined]
torch.cuda.get_device_capability = lambda *_args: (9, 0)
torch.cuda.get_device_properties = lambda *_args: type("Hopper", (), {"major": 9, "minor": 0})()

import megatron.core.utils as core_utils  # noqa: E402
from packaging.version import Version  # noqa: E402

core_utils._te_version = Version("2.9.0")

import megatron.core.models.common.embeddings.rope_utils as rope  # noqa: E402

rope.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb or (lambda *_args: None)

from megatron.core import num_microbatches_calculator as calculator  # noqa: E402
from megatron.training.argument_utils import core_transformer_config_from_args  # noqa: E402
from megatron.training.arguments import parse_args, validate_args  # noqa: E402


def configured(case: Case) -> tuple[typing.Any, typing.Any]:
    """The arguments as Megatron-LM validated them, and the transformer's configuration."""
    text = case["files"]["megatron_args.sh"]
    body = text.partition("MEGATRON_ARGS=(\n")[2].rpartition("\n)")[0]
    words = shlex.split(body, comments=True)
    dry = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "10", "--lr", "1e-4"]
    sys.argv = ["pretrain_gpt.py", *words, *dry]
    os.environ.update(RANK="0", WORLD_SIZE=str(case["world_size"]), LOCAL_RANK="0")
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["environment"])
    args = validate_args(parse_args())
    return args, core_transformer_config_from_args(args)


def judge(case: Case) -> Seen:
    """What Megatron-LM makes of the arguments file."""
    args, config = configured(case)
    calculator.unset_num_microbatches_calculator()
    calculator.init_num_microbatches_calculator(
        0, None, args.global_batch_size, args.micro_batch_size, args.data_parallel_size,
        step_batch_size_schedule=args.step_batch_size_schedule, seq_length=args.seq_length,
    )  # fmt: skip
    if args.step_batch_size_schedule:
        calculator.update_num_microbatches(10**12)  # the last batch
        args.global_batch_size = calculator.get_current_global_batch_size()
    return seen_of(args, config)


def seen_of(args: typing.Any, config: typing.Any) -> Seen:
    """The plan as Megatron-LM understood it."""
    chunks = args.pipeline_model_parallel_size * (args.virtual_pipeline_model_parallel_size or 1)
    split = [args.num_layers // chunks] * chunks
    if config.pipeline_model_parallel_layout is not None:
        stages = config.pipeline_model_parallel_layout.layout  # by pipeline rank, then virtual stage
        virtual = len(stages[0])
        flat = [stages[rank][part] for part in range(virtual) for rank in range(len(stages))]
        split = [sum(kind.name == "decoder" for kind in stage) for stage in flat]
    return {
        "tensor_parallel_size": args.tensor_model_parallel_size,
        "pipeline_parallel_size": args.pipeline_model_parallel_size,
        "virtual_pipeline_size": args.virtual_pipeline_model_parallel_size or 1,
        "context_parallel_size": args.context_parallel_size,
        "data_parallel_size": args.data_parallel_size,
        "sequence_parallel": args.sequence_parallel,
        "micro_batch_size": args.micro_batch_size,
        "num_microbatches": calculator.get_num_microbatches(),
        "recompute_granularity": args.recompute_granularity or "none",
        "stage_layers": split,
        "num_layers": config.num_layers,
        "num_kv_heads": config.num_query_groups,
        "ffn_hidden_size": config.ffn_hidden_size,
        "global_batch_size": args.global_batch_size,
    }


if __name__ == "__main__":
    serve(judge)
