"""Megatron-Bridge (0.3, 0.6) on a CPU: Hydra's overrides of a recipe, then what a run does to its values.

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
import megatron_core
from protocol import Case, Seen, serve
from stand_ins import StandIns

ENTERED = (
    "megatron.bridge", "megatron.bridge.models", "megatron.bridge.models.gpt_oss", "megatron.bridge.recipes"
)  # fmt: skip
SILENT = (
    "megatron.bridge.peft.lora", "megatron.bridge.peft.dora", "datasets", "six", "regex",
    # what newer ones (0.6) import as well
    "megatron.bridge.models.conversion", "megatron.bridge.models.conversion.transformers_compat",
    "megatron.bridge.training.utils.checkpoint_utils", "megatron.energon", "transformers", "safetensors",
    "huggingface_hub", "PIL", "torch.utils.tensorboard", "torch.utils.tensorboard.writer",
)  # fmt: skip


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

try:
    from megatron.bridge.models.gpt_oss.gpt_oss_provider import GPTOSSProvider
except ModuleNotFoundError:  # since 0.6 any provider has YaRN's numbers
    GPTOSSProvider = GPTModelProvider
from megatron.bridge.models.mla_provider import MLAModelProvider  # noqa: E402
from megatron.bridge.recipes.common import _pretrain_common  # noqa: E402
from megatron.bridge.training.config import runtime_config_update  # noqa: E402
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides  # noqa: E402
from megatron.bridge.utils.vocab_utils import calculate_padded_vocab_size  # noqa: E402


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
    model, optimizer, ddp = config.model, config.optimizer, config.ddp
    if ddp.use_megatron_fsdp != config.dist.use_megatron_fsdp:
        raise ValueError("half of Megatron-FSDP")
    ranks = config.data_parallel_size * model.context_parallel_size
    head_rows = calculate_padded_vocab_size(
        model.vocab_size, model.make_vocab_size_divisible_by, model.tensor_model_parallel_size
    )
    return {
        "tensor_parallel_size": model.tensor_model_parallel_size,
        "pipeline_parallel_size": model.pipeline_model_parallel_size,
        "virtual_pipeline_size": model.virtual_pipeline_model_parallel_size or 1,
        "context_parallel_size": model.context_parallel_size,
        "context_parallel_mode": megatron_core.context_mode(model),
        "expert_parallel_size": model.expert_model_parallel_size,
        "data_parallel_size": config.data_parallel_size,
        "rank_order": "tp-cp-pp-dp" if config.dist.use_tp_pp_dp_mapping else "tp-cp-dp-pp",
        "sequence_parallel": model.sequence_parallel,
        "micro_batch_size": config.train.micro_batch_size,
        "num_microbatches": calculator.get_num_microbatches(),
        "global_batch_size": config.train.global_batch_size,
        "padded_vocab_size": head_rows if model.should_pad_vocab else model.vocab_size,
        "facts.vocabulary_multiple": model.make_vocab_size_divisible_by,
        "stage_layers": megatron_core.split_of(model),
        "facts.gradient_dtype": "fp32" if ddp.grad_reduce_in_fp32 else "fp16" if model.fp16 else "bf16",
        **megatron_core.recomputation_of(model),
        **megatron_core.sharding_of(ddp, optimizer, ranks),
        **megatron_core.switches_of(model),
        "model": facts_of(model),
    }


def facts_of(model: typing.Any) -> Seen:
    """The model's facts as Megatron-Bridge understood them; its activation is the provider's."""
    kind = model.position_embedding_type
    rotates = kind != "learned_absolute"
    found: Seen = {
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.share_embeddings_and_output_weights,
        "learned_position_embeddings": not rotates,
        "rotary_fraction": model.rotary_percent,
        "rotary_base": model.rotary_base if rotates else None,
    }
    if kind == "yarn":
        found |= megatron_core.yarn_of(model)
    elif not model.multi_latent_attention:
        stretched = model.rope_scaling_factor if model.rope_scaling else model.seq_len_interpolation_factor
        found["rotary_scaling.factor"] = stretched
    return found | megatron_core.model_of(model)


if __name__ == "__main__":
    serve(judge)
