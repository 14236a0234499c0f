"""Megatron-Bridge 0.3 on a CPU: Hydra's overrides of a recipe, then what a run does to its configuration.

The recipe is Megatron-Bridge's own for pre-training, with a plain model of the plan's kind. Two packages of
its are entered without their ``__init__``, which import every model and converter; ``datasets``, six, regex
and Transformer Engine are stand-ins that no check here asks, once Megatron-Core knows that the last is not
there.
"""

from __future__ import annotations

import os
import shlex
import sys
import typing
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
import typing_extensions
from packaging.version import Version

sys.path.remove(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent))  # this folder has the names of packages
from protocol import Case, Seen, serve
from stand_ins import StandIns

ENTERED = (
    "megatron.bridge", "megatron.bridge.models", "megatron.bridge.models.gpt_oss", "megatron.bridge.recipes"
)  # fmt: skip
SILENT = ("megatron.bridge.peft.lora", "megatron.bridge.peft.dora", "datasets", "six", "regex")


stand_ins = StandIns(ENTERED, SILENT)
typing.override = typing_extensions.override  # type: ignore[attr-defined]
torch.cuda.get_device_capability = lambda *_args: (9, 0)
torch.cuda.get_device_properties = lambda *_args: type("Hopper", (), {"major": 9, "minor": 0})()

import megatron.core.utils as core_utils  # noqa: E402

core_utils._te_version = Version("2.9.0")
import megatron.core.models.common.embeddings.rope_utils as rope  # noqa: E402
from megatron.core import num_microbatches_calculator as calculator  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402

for kernel in (
    "permute",
    "permute_with_probs",
    "sort_chunks_by_index",
    "sort_chunks_by_index_with_probs",
    "unpermute",
):
    setattr(moe_utils, f"fused_{kernel}", lambda *_args: None)  # Transformer Engine's
rope.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb or (lambda *_args: None)
stand_ins.silent.add("transformer_engine")
import transformer_engine.pytorch.optimizers as te_optimizers  # noqa: E402


class FusedAdam:
    """The arguments by which Megatron-Core tells an Adam of several dtypes (Transformer Engine 2.9)."""

    def __init__(
        self,
        params: object,
        master_weight_dtype: object = None,
        exp_avg_dtype: object = None,
        exp_avg_sq_dtype: object = None,
        use_decoupled_grad: object = None,
    ) -> None:
        """Nothing to run."""


te_optimizers.FusedAdam = FusedAdam

from megatron.bridge import models  # noqa: E402
from megatron.bridge.models.gpt_provider import GPTModelProvider  # noqa: E402

models.GPTModelProvider = GPTModelProvider  # as its ``__init__`` has it
from megatron.bridge.models.gpt_oss.gpt_oss_provider import GPTOSSProvider  # noqa: E402
from megatron.bridge.models.mla_provider import MLAModelProvider  # noqa: E402
from megatron.bridge.recipes.common import _pretrain_common  # noqa: E402
from megatron.bridge.training.config import runtime_config_update  # noqa: E402
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides  # noqa: E402

SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def recipe(words: list[str]) -> typing.Any:
    """A run of a small model of the plan's kind; what the plan decides has another value here."""
    latent = any(word.startswith("model.kv_lora_rank=") for word in words)
    yarn = "model.position_embedding_type=yarn" in words
    config = _pretrain_common()
    sizes = {
        "num_layers": 1,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "vocab_size": 1024,
        "seq_length": 512,
    }
    if yarn:
        config.model = GPTOSSProvider(**sizes, num_query_groups=1, yarn_rotary_scaling_factor=2.0,
                                      yarn_original_max_position_embeddings=64)  # fmt: skip
    else:
        config.model = (MLAModelProvider if latent else GPTModelProvider)(**sizes, activation_func=F.silu)
    config.tokenizer.tokenizer_type, config.tokenizer.vocab_size = "NullTokenizer", 1024
    return config


def judge(case: Case) -> Seen:
    """What Megatron-Bridge makes of the overrides."""
    body = case["files"]["plan_args.sh"].partition("PLAN_ARGS=(\n")[2].rpartition("\n)")[0]
    words = shlex.split(body, comments=True)
    os.environ.update(RANK="0", WORLD_SIZE=str(case["world_size"]), LOCAL_RANK="0")
    os.environ.update(case["environment"])
    config = process_config_with_overrides(recipe(words), cli_overrides=words)
    runtime_config_update(config)
    calculator.unset_num_microbatches_calculator()
    calculator.init_num_microbatches_calculator(
        0, None, config.train.global_batch_size, config.train.micro_batch_size, config.data_parallel_size
    )
    return seen_of(config)


def seen_of(config: typing.Any) -> Seen:
    """The plan as Megatron-Bridge understood it."""
    model, optimizer = config.model, config.optimizer
    virtual = model.virtual_pipeline_model_parallel_size or 1
    chunks = model.pipeline_model_parallel_size * virtual
    split = [model.num_layers // chunks] * chunks
    if model.pipeline_model_parallel_layout is not None:
        stages = model.pipeline_model_parallel_layout.layout  # by pipeline rank, then virtual stage
        flat = [stages[rank][part] for part in range(len(stages[0])) for rank in range(len(stages))]
        split = [sum(kind.name == "decoder" for kind in stage) for stage in flat]
    fsdp = config.ddp.use_megatron_fsdp
    stage = SHARDED[config.ddp.data_parallel_sharding_strategy] if fsdp else None
    return {
        "tensor_parallel_size": model.tensor_model_parallel_size,
        "pipeline_parallel_size": model.pipeline_model_parallel_size,
        "virtual_pipeline_size": virtual,
        "context_parallel_size": model.context_parallel_size,
        "context_parallel_mode": context_mode(model),
        "expert_parallel_size": model.expert_model_parallel_size,
        "data_parallel_size": config.data_parallel_size,
        "sequence_parallel": model.sequence_parallel,
        "zero_stage": int(optimizer.use_distributed_optimizer) if stage is None else stage,
        "micro_batch_size": config.train.micro_batch_size,
        "num_microbatches": calculator.get_num_microbatches(),
        "global_batch_size": config.train.global_batch_size,
        "recompute_granularity": model.recompute_granularity or "none",
        "stage_layers": split,
        "num_layers": model.num_layers,
        "num_kv_heads": model.num_query_groups,
        "ffn_hidden_size": model.ffn_hidden_size,
        "moments": str(optimizer.exp_avg_dtype).removeprefix("torch."),
        "model": facts_of(model),
    }


MODES = {None: "ring", "p2p": "ring", "a2a": "all_to_all", "a2a+p2p": "all_to_all_{}+ring"}


def context_mode(found: typing.Any) -> str:
    """How ranks share attention, by one word for all layers; of both ways, how many exchange heads."""
    words = found.cp_comm_type if found.context_parallel_size > 1 else None
    (kind,) = {*words} if isinstance(words, list) else {words}
    sizes = found.hierarchical_context_parallel_sizes or [0]
    return MODES[kind].format(sizes[0])


def facts_of(model: typing.Any) -> Seen:
    """The model's facts as Megatron-Bridge understood them."""
    latent = bool(model.multi_latent_attention)
    scaling = model.rope_scaling_factor if model.rope_scaling else None
    found: Seen = {}
    if model.position_embedding_type == "yarn":
        scaling = model.yarn_rotary_scaling_factor
        found = {
            "rotary_scaling.original_max_position_embeddings": model.yarn_original_max_position_embeddings,
            "rotary_scaling.truncate": model.yarn_correction_range_round_to_int,
        }
    experts = model.num_moe_experts
    return {
        **found,
        "attention_sinks": model.softmax_type == "learnable",
        "activation_clamp": model.activation_func_clamp_value,
        "gate_offset": model.glu_linear_offset,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "normalization": {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm"}[model.normalization],
        "norm_epsilon": model.layernorm_epsilon,
        "gated_mlp": model.gated_linear_unit,
        "qkv_bias": model.add_bias_linear or model.add_qkv_bias,
        "attention_output_bias": model.add_bias_linear,
        "mlp_bias": model.add_bias_linear,
        "query_key_norm": "per_head" if model.qk_layernorm and not latent else "none",
        "mla.norms": model.qk_layernorm if latent else None,
        "mla.kv_lora_rank": model.kv_lora_rank if latent else None,
        "zero_centered_norm": model.layernorm_zero_centered_gamma,
        "tied_embeddings": model.share_embeddings_and_output_weights,
        "learned_position_embeddings": model.position_embedding_type == "learned_absolute",
        "rotary_fraction": model.rotary_percent,
        "rotary_scaling.factor": model.rotary_scaling_factor if latent else scaling,
        "moe.num_experts": experts,
        "moe.top_k": model.moe_router_topk if experts else None,
        "moe.router_score": model.moe_router_score_function if experts else None,
        "moe.normalized_top_k": not model.moe_router_pre_softmax if experts else None,
        "moe.selection_bias": model.moe_router_enable_expert_bias if experts else None,
        "moe.router_scaling": (model.moe_router_topk_scaling_factor or 1.0) if experts else None,
        "moe.shared_expert_gate": model.moe_shared_expert_gate if experts else None,
        "moe.balance_coefficient": model.moe_aux_loss_coeff if experts else None,
    }


if __name__ == "__main__":
    serve(judge)
