"""Megatron-LM 0.19 on a CPU: parse_args, validate_args, the transformer's configuration, micro-batches.

The wheel is for Python 3.12 and GPUs; four things are put in place before its import: ``typing.override``,
a CUDA capability of 9.0, Transformer Engine 2.9, and a fused rotary function that is not None.
"""

from __future__ import annotations

import os
import shlex
import sys
import typing
from functools import cache
from pathlib import Path

import torch
import typing_extensions

sys.path.insert(0, str(Path(__file__).parent))
import megatron_core
from protocol import Case, Seen, serve

typing.override = typing_extensions.override  # type: ignore[attr-defined]
torch.cuda.get_device_capability = lambda *_args: (9, 0)
torch.cuda.get_device_properties = lambda *_args: type("Hopper", (), {"major": 9, "minor": 0})()

import megatron.core.utils as core_utils  # noqa: E402
from packaging.version import Version  # noqa: E402

core_utils._te_version = Version("2.9.0")

import megatron.core.models.common.embeddings.rope_utils as rope  # noqa: E402

rope.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb or (lambda *_args: None)

import torch.nn.functional as F  # noqa: E402, N812
from megatron.core import num_microbatches_calculator as calculator  # noqa: E402
from megatron.core.activations import squared_relu  # noqa: E402
from megatron.core.fusions.fused_bias_geglu import quick_gelu  # noqa: E402
from megatron.core.tokenizers.utils.build_tokenizer import vocab_size_with_padding  # noqa: E402
from megatron.training.argument_utils import (  # noqa: E402
    ArgumentGroupFactory,
    core_transformer_config_from_args,
)
from megatron.training.arguments import parse_args, validate_args  # noqa: E402

_help_of = ArgumentGroupFactory._get_field_docstrings


@cache
def help_of(kind: type) -> dict[str, str]:
    """The help of a class's arguments, read from its source once: each parser reads it anew."""
    return _help_of(ArgumentGroupFactory, kind)


ArgumentGroupFactory._get_field_docstrings = staticmethod(help_of)


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
        0, None, args.global_batch_size, args.micro_batch_size,
        args.data_parallel_size * args.gtp_weight_remat_size,  # as training/global_vars.py does
        step_batch_size_schedule=args.step_batch_size_schedule, seq_length=args.seq_length,
    )  # fmt: skip
    if args.step_batch_size_schedule:
        calculator.update_num_microbatches(10**12)  # the last batch
        args.global_batch_size = calculator.get_current_global_batch_size()
    return seen_of(args, config)


def seen_of(args: typing.Any, config: typing.Any) -> Seen:
    """The plan as Megatron-LM understood it."""
    ranks = args.data_parallel_size * args.context_parallel_size
    if args.transformer_impl != "transformer_engine":
        raise ValueError(f"{args.transformer_impl} kernels are not supported")
    return {
        "seq_length": args.seq_length,
        "tensor_parallel_size": args.tensor_model_parallel_size,
        "pipeline_parallel_size": args.pipeline_model_parallel_size,
        "virtual_pipeline_size": args.virtual_pipeline_model_parallel_size or 1,
        "context_parallel_size": args.context_parallel_size,
        "context_parallel_mode": megatron_core.context_mode(args),
        "expert_parallel_size": args.expert_model_parallel_size,
        "data_parallel_size": args.data_parallel_size * args.gtp_weight_remat_size,
        "weight_shard_size": args.gtp_weight_remat_size,
        "expert_weight_shard_size": args.expert_gtp_weight_remat_size,
        "rank_order": "tp-cp-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-dp-pp",
        "sequence_parallel": args.sequence_parallel,
        "micro_batch_size": args.micro_batch_size,
        "num_microbatches": calculator.get_num_microbatches(),
        "global_batch_size": args.global_batch_size,
        "padded_vocab_size": vocab_size_with_padding(args.vocab_size, args, logging_enabled=False),
        "facts.vocabulary_multiple": args.make_vocab_size_divisible_by,
        "stage_layers": megatron_core.split_of(config),
        "facts.gradient_dtype": "fp32"
        if args.accumulate_allreduce_grads_in_fp32
        else "fp16"
        if args.fp16
        else "bf16",
        "facts.elementwise_fused": config.bias_activation_fusion and config.bias_dropout_fusion,
        **megatron_core.recomputation_of(config),
        **megatron_core.sharding_of(args, args, ranks),
        **megatron_core.switches_of(config),
        "model": facts_of(args, config),
    }


def facts_of(args: typing.Any, config: typing.Any) -> Seen:
    """The model's facts as Megatron-LM understood them."""
    activations = {F.silu: "silu", F.gelu: "gelu", quick_gelu: "quick_gelu", squared_relu: "squared_relu"}
    kind = args.position_embedding_type
    rotates = kind in ("yarn", "rope")
    found: Seen = {
        "vocab_size": args.vocab_size,
        "mlp_activation": activations[config.activation_func],
        "tied_embeddings": not args.untie_embeddings_and_output_weights,
        "learned_position_embeddings": kind == "learned_absolute",
        "layers_without_rotary": [True] * config.num_layers,
    }
    if kind == "none":
        return found | megatron_core.model_of(config)
    found |= {
        "rotary_base": args.rotary_base if rotates else None,
        "rotary_fraction": args.rotary_percent,
        "layers_without_rotary": [bool(one) for one in config.no_rope_freq or [0] * config.num_layers],
    }
    if kind == "yarn":
        found |= megatron_core.yarn_of(config)
    elif not config.multi_latent_attention:
        found["rotary_scaling.factor"] = (
            args.rope_scaling_factor if args.use_rope_scaling else args.rotary_seq_len_interpolation_factor
        )
    return found | megatron_core.model_of(config)


if __name__ == "__main__":
    serve(judge)
