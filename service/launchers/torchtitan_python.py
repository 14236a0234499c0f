"""torchtitan 0.3: a Python module with one function that returns the whole configuration.

Calls: torchtitan 0.3.0, models/llama3/__init__.py, models/common/config_utils.py, trainer.py.
"""

from __future__ import annotations

import json

from service.launchers.target import Target
from service.launchers.torchtitan_values import (
    Values,
    compiled_parts,
    flavor,
    norm_epsilon,
    parallelism_values,
    rotary_factor,
    training_values,
)

MODULE = "torchtitan_plan"
PYTHON_FILE = f"{MODULE}.py"

_TEXT = '''\
"""One configuration of torchtitan 0.3: --module torchtitan_plan --config plan."""

import os
from functools import partial

from torch import nn
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

RECOMPUTATION = {"none": lambda: None, "selective": SelectiveAC.Config, "full": FullAC.Config}

# The model's shape.
@MODEL@

# What does not change the cost of a step: from the environment, or a dry start's.
HF_ASSETS_PATH = os.environ.get("HF_ASSETS_PATH", "./tests/assets/tokenizer")
DATASET = os.environ.get("DATASET", "c4_test")
LEARNING_RATE = float(os.environ.get("LR", "3e-4"))

_LINEAR = {"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}
_NORM = {"weight": nn.init.ones_}
_EMBEDDING = {"weight": partial(nn.init.normal_, std=1.0)}


def layer():
    """One transformer layer."""
    rope = ComplexRoPE.Config(
        dim=HIDDEN_SIZE // NUM_HEADS,
        max_seq_len=MAX_SEQ_LEN,
        theta=ROTARY_BASE,
        scaling=ROTARY_SCALING,
        scaling_factor=ROTARY_SCALING_FACTOR,
    )
    return Llama3TransformerBlock.Config(
        attention_norm=RMSNorm.Config(normalized_shape=HIDDEN_SIZE, eps=NORM_EPSILON, param_init=_NORM),
        ffn_norm=RMSNorm.Config(normalized_shape=HIDDEN_SIZE, eps=NORM_EPSILON, param_init=_NORM),
        attention=make_gqa_config(
            dim=HIDDEN_SIZE,
            n_heads=NUM_HEADS,
            n_kv_heads=NUM_KV_HEADS,
            wqkv_param_init=_LINEAR,
            wo_param_init=_LINEAR,
            inner_attention=get_attention_config("flex"),
            fuse_qkv=True,
            rope=rope,
        ),
        feed_forward=make_ffn_config(
            dim=HIDDEN_SIZE,
            hidden_dim=FFN_HIDDEN_SIZE,
            w1_param_init=_LINEAR,
            w2w3_param_init=_LINEAR,
        ),
    )


def model_spec():
    """The model as torchtitan builds it."""
    model = Llama3Model.Config(
        dim=HIDDEN_SIZE,
        vocab_size=VOCAB_SIZE,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim=HIDDEN_SIZE, param_init=_EMBEDDING
        ),
        norm=RMSNorm.Config(normalized_shape=HIDDEN_SIZE, eps=NORM_EPSILON, param_init=_NORM),
        lm_head=Linear.Config(in_features=HIDDEN_SIZE, out_features=VOCAB_SIZE, param_init=_LINEAR),
        layers=[layer() for _ in range(NUM_LAYERS)],
    )
    return ModelSpec(
        name="llama3",
        flavor="@FLAVOR@",
        model=model,
        parallelize_fn=parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=Llama3StateDictAdapter,
    )


def plan() -> Trainer.Config:
    """Everything that the plan decided."""
    return Trainer.Config(
        model_spec=model_spec(),
        hf_assets_path=HF_ASSETS_PATH,
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCAB_SIZE),
        dataloader=HuggingFaceTextDataLoader.Config(dataset=DATASET),
        optimizer=default_adamw(lr=LEARNING_RATE),
        training=TrainingConfig(
@TRAINING@
        ),
        parallelism=ParallelismConfig(
@PARALLELISM@
        ),
        activation_checkpoint=RECOMPUTATION["@RECOMPUTE@"](),
        compile=CompileConfig(enable=True, components=@COMPILED@),
    )
'''


def python_file(head: str, target: Target) -> str:
    """The module's text."""
    model, workload = target.model, target.workload
    shape: Values = {
        "NUM_LAYERS": model.num_layers,
        "HIDDEN_SIZE": model.hidden_size,
        "FFN_HIDDEN_SIZE": model.ffn_hidden_size,
        "NUM_HEADS": model.num_attention_heads,
        "NUM_KV_HEADS": model.num_kv_heads,
        "VOCAB_SIZE": model.vocab_size,
        "MAX_SEQ_LEN": max(workload.seq_length, model.max_position_embeddings or 0),
        "ROTARY_BASE": float(model.rotary_base or 10_000),
        "ROTARY_SCALING": "llama" if model.rotary_scaling else "none",
        "ROTARY_SCALING_FACTOR": rotary_factor(target),
        "NORM_EPSILON": norm_epsilon(target),
    }
    # CUDA graphs are on by default, refused with pipelines, and not part of the prediction.
    training = training_values(target) | {"disable_cuda_graphs": True}
    parallelism = parallelism_values(target, "lm_head")
    parallelism["enable_sequence_parallel"] = target.config.sequence_parallel
    text = _TEXT
    for name, value in {
        "MODEL": "\n".join(f"{name} = {value!r}" for name, value in shape.items()),
        "FLAVOR": flavor(target),
        "TRAINING": _arguments(training),
        "PARALLELISM": _arguments(parallelism),
        "RECOMPUTE": target.config.recompute_granularity,
        "COMPILED": json.dumps(compiled_parts(target)),
    }.items():
        text = text.replace(f"@{name}@", value)
    return head + text


def _arguments(values: Values) -> str:
    lines = []
    for name, value in values.items():
        if name == "module_fqns_per_model_part":
            lines.append(f"            {name}=[")
            lines += [f"                {part!r}," for part in value]  # type: ignore[attr-defined]
            lines.append("            ],")
        else:
            lines.append(f"            {name}={value!r},")
    return "\n".join(lines)
