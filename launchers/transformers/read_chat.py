"""DeepSpeed-Chat's own programs: supervised fine-tuning, DPO and reward models on DeepSpeed's engine.

Names and defaults: deepspeedai/DeepSpeedExamples 45b4b715, applications/DeepSpeed-Chat:
training/step*/main.py (step 1: :38-220), dschat/utils/ds_utils.py (get_train_ds_config) and module/lora.py.
"""

from __future__ import annotations

from typing import Any

from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.preferences import KINDS, REWARD, Kind
from meshwright.profiles.adapters import SINGLE_TARGETS, TRAINED_MODULES
from meshwright.profiles.documents import shown
from meshwright.profiles.model import ModelSpec

_STAGE, _RANK = "zero_stage", "lora_dim"
# Options of the three programs; one with another option is somebody else's main.py.
_OPTIONS = (
    "data_path", "data_split", "sft_only_data_path", "data_output_path", "model_name_or_path",
    "num_padding_at_beginning", "per_device_train_batch_size", "per_device_eval_batch_size", "max_seq_len",
    "learning_rate", "weight_decay", "num_train_epochs", "gradient_accumulation_steps", "lr_scheduler_type",
    "num_warmup_steps", "output_dir", "seed", "local_rank", "gradient_checkpointing", "dropout", "offload",
    "dtype", "zero_stage", "lora_dim", "lora_module_name", "only_optimize_lora", "lora_learning_rate",
    "eval_interval", "eval_iters", "compute_fp32_loss", "enable_tensorboard", "tensorboard_path",
    "add_eot_token", "eot_token", "print_loss", "deepspeed", "deepspeed_config", "beta", "label_smoothing",
)  # fmt: skip
_OF_REWARDS = ("num_padding_at_beginning", "eval_interval", "eval_iters")
_OF_DPO = ("beta", "label_smoothing")
_OF_LAYERS = ("layers.", "decoder.layers.", "model.layers.", "transformer.h.", "h.", "gpt_neox.layers.")
_HARMLESS = (
    "data_path", "data_split", "sft_only_data_path", "data_output_path", "lora_module_name",
    "lora_learning_rate", "enable_tensorboard", "tensorboard_path", "add_eot_token", "eot_token",
    "print_loss", "compute_fp32_loss", "dropout", "local_rank", *_OF_REWARDS, *_OF_DPO,
)  # fmt: skip


def is_chats(fields: Fields, program: str) -> bool:
    """Return whether a program is one of DeepSpeed-Chat's, by its name and all of its options."""
    named = program.rpartition("/")[2] == "main.py" and fields.peek("deepspeed") is True
    return named and fields.has(_STAGE) and {*fields.sections()} <= {*_OPTIONS}


def kind_of(fields: Fields, folder: str) -> Kind | None:
    """Return the kind of training on preferences, by folder or options; None for supervised fine-tuning."""
    fields.take(*_HARMLESS)
    steps = {"step1_supervised": None, "step2_dpo": KINDS["dpo"], "step2_reward": REWARD}
    if (step := next((step for step in steps if step in folder), None)) is not None:
        return steps[step]
    for options, kind in ((_OF_DPO, KINDS["dpo"]), (_OF_REWARDS, REWARD)):
        if any(fields.has(name) for name in options):
            return kind
    fields.note("main.py is taken for DeepSpeed-Chat's step 1; step 2 may have the same options")
    return None


def adapters_of(fields: Fields, model: ModelSpec) -> dict[str, Any]:
    """Return rank and targets of its own LoRA; without only_optimize_lora what has none is trained in full.

    Its layers keep the frozen weight of each linear layer that has ``lora_module_name`` in its name.
    """
    rank = fields.integer(_RANK, 0, low=0)
    alone = fields.flag("only_optimize_lora")
    if not rank:
        return {"lora_rank": 0}
    within = str(fields.raw("lora_module_name") or "decoder.layers.")
    if within not in _OF_LAYERS:
        fields.fault("lora_module_name", f"{shown(within)} is not supported", allowed=", ".join(_OF_LAYERS))
    if not alone:
        fields.note(
            "only_optimize_lora is off: embedding, head and norms are trained in full, which is priced as "
            "peft's copies of them; biases of layers are left out"
        )
    modules = () if alone else tuple(one for one in TRAINED_MODULES if one != "lm_head" or not _ties(model))
    return {"lora_rank": rank, "lora_targets": SINGLE_TARGETS, "trained_modules": modules}


def _ties(model: ModelSpec) -> bool:
    return model.tied_embeddings or model.num_labels > 0
