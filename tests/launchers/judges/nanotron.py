"""nanotron 0.4 on a CPU: its ``build_model`` assigns the blocks of its own Llama to pipeline stages.

The published wheel does not import: its packages import one another in a circle, and FlashAttention needs
a GPU. The packages in the circle are entered without their ``__init__``, logging and what is not installed
are stand-ins, and no block is built, since no rank is this process's. ``build_model``, the model's list
of blocks and their costs are nanotron's, unmodified; the same functions of the repository's Qwen2, which
exported files start, compute the same costs (src/nanotron/models/qwen.py:813).
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml

sys.path.remove(str(Path(__file__).parent))  # this file has the name of the package
sys.path.append(str(Path(__file__).parent))  # ... which comes first now
from protocol import Case, Seen, serve
from stand_ins import StandIns

ABSENT = ("flash_attn", "dacite", "functorch", "datasets", "safetensors", "transformers")
ENTERED = ("nanotron.models", "nanotron.parallel.pipeline_parallel")  # submodules are nanotron's own


StandIns(ENTERED, ("nanotron.logging", *ABSENT))

distributed = import_module("nanotron.distributed")
base = import_module("nanotron.models.base")
sys.modules["nanotron.models"].NanotronModel = base.NanotronModel  # as its ``__init__`` has it
llama = import_module("nanotron.models.llama")
p2p, block = (import_module(f"nanotron.parallel.pipeline_parallel.{name}") for name in ("p2p", "block"))
tensor_parallel = import_module("nanotron.parallel.tensor_parallel.nn")
config, helpers = import_module("nanotron.config"), import_module("nanotron.helpers")
utils_config = import_module("nanotron.config.utils_config")

llama.P2P = lambda group, device: p2p.P2P(group, torch.device("cpu"))  # noqa: ARG005 - its buffers
distributed.get_rank = lambda *_args: -1  # no rank is here, so that no block's weights are made
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"


class Group:
    """A process group of which only the size is asked."""

    def __init__(self, size: int) -> None:
        self.ranks = size

    def size(self) -> int:
        """Number of ranks."""
        return self.ranks


def judge(case: Case) -> Seen:
    """Layers of each stage that nanotron's ``build_model`` makes of its YAML, and the head's stage."""
    raw = yaml.safe_load(case["files"]["nanotron.yaml"])
    sizes, shape = raw["parallelism"], raw["model"]["model_config"]
    names = {field.name for field in fields(config.LlamaConfig)}
    own = config.LlamaConfig(**{name: value for name, value in shape.items() if name in names})
    own.vocab_size = helpers._vocab_size_with_padding(
        own.vocab_size,
        pg_size=sizes["tp"],
        make_vocab_size_divisible_by=raw["model"]["make_vocab_size_divisible_by"],
    )
    context = SimpleNamespace(
        pp_pg=Group(sizes["pp"]), tp_pg=Group(sizes["tp"]), world_pg=Group(case["world_size"])
    )
    parallel = config.ParallelismArgs(dp=sizes["dp"], pp=sizes["pp"], tp=sizes["tp"])
    model = base.build_model(
        model_builder=lambda: llama.LlamaForTraining(
            config=own, parallel_context=context, parallel_config=parallel, random_states=None
        ),
        parallel_context=context,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    stages, head = [0] * sizes["pp"], -1
    for one in model.modules():
        if isinstance(one, block.PipelineBlock):
            stages[one.rank] += one.module_builder is llama.LlamaDecoderLayer
            if one.module_builder is tensor_parallel.TensorParallelColumnLinear:
                head = one.rank
    return {
        **arguments_of(raw),
        "num_layers": sum(stages),
        "stage_layers": stages,
        "head_stage": head,
        "pipeline_parallel_size": sizes["pp"],
        "tensor_parallel_size": sizes["tp"],
        "data_parallel_size": sizes["dp"],
        "num_gpus": sizes["dp"] * sizes["pp"] * sizes["tp"] * sizes["context_parallel_size"],
    }


def arguments_of(raw: dict[str, Any]) -> Seen:
    """Tokens, optimizer and ranks by the release's own classes; what came since, as it is."""
    tokens = config.TokensArgs(**raw["tokens"])
    config.LRSchedulerArgs(**raw["optimizer"]["learning_rate_scheduler"])
    names = {field.name for field in fields(config.ParallelismArgs)}
    ranks = config.ParallelismArgs(**{k: v for k, v in raw["parallelism"].items() if k in names})
    shape, dtype = raw["model"]["model_config"], raw["model"]["dtype"]
    if ranks.tp_linear_async_communication or not shape["is_qwen2_config"] or shape["hidden_act"] != "silu":
        raise ValueError("not what was priced")
    return {
        "seq_length": tokens.sequence_length,
        "micro_batch_size": tokens.micro_batch_size,
        "num_microbatches": tokens.batch_accumulation_per_replica,
        "zero_stage": raw["optimizer"]["zero_stage"],
        "facts.gradient_dtype": "fp32" if raw["optimizer"]["accumulate_grad_in_fp32"] else "bf16",
        "precision": {torch.bfloat16: "bf16"}[utils_config.cast_str_to_torch_dtype(dtype)],
        "expert_parallel_size": ranks.expert_parallel_size,
        "context_parallel_size": raw["parallelism"]["context_parallel_size"],
        "sequence_parallel": ranks.tp_mode.name == "REDUCE_SCATTER",
        "first_forward": type(ranks.pp_engine).__name__.startswith("AllForward"),
        "recompute_granularity": "full" if raw["parallelism"]["recompute_layer"] else "none",
        "model": {
            "qkv_bias": shape["attention_bias"],
            "hidden_size": shape["hidden_size"],
            "ffn_hidden_size": shape["intermediate_size"],
            "num_attention_heads": shape["num_attention_heads"],
            "num_kv_heads": shape["num_key_value_heads"],
            "norm_epsilon": shape["rms_norm_eps"],
            "rotary_base": shape["rope_theta"],
            "tied_embeddings": shape["tie_word_embeddings"],
            "vocab_size": shape["vocab_size"],
        },
    }


if __name__ == "__main__":
    serve(judge)
