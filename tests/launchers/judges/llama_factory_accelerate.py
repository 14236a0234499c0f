"""LLaMA-Factory's own trainer on a CPU: its parser and checks, and what it trains of a small model.

For the mesh accelerate's judge speaks, under the accelerate that LLaMA-Factory asks for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import typing
from pathlib import Path

import typing_extensions
import yaml

HERE = str(Path(__file__).parent)
sys.path.remove(HERE)  # this folder has the names of packages
sys.path.append(HERE)
import towers  # noqa: E402
from protocol import Case, Seen, serve  # noqa: E402

typing.override = typing_extensions.override  # type: ignore[attr-defined]
STDOUT = os.dup(1)
os.dup2(2, 1)  # what is said while it is imported is no answer
os.environ |= {"DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}

import torch  # noqa: E402
from llamafactory.hparams import parser  # noqa: E402
from llamafactory.model.adapter import init_adapter  # noqa: E402
from llamafactory.v1.config import arg_parser  # noqa: E402
from llamafactory.v1.plugins.trainer_plugins.distributed import fsdp2  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

_spec = importlib.util.spec_from_file_location("accelerate_judge", f"{HERE}/accelerate.py")
accelerate_judge = importlib.util.module_from_spec(_spec)
sys.path.insert(0, HERE)  # which it removes
_spec.loader.exec_module(accelerate_judge)

BEFORE = dict(os.environ)
NEW = "llama_factory_v1.yaml"
NEW_KERNELS = {"flash_attention_2": "flash2", "sdpa": "sdpa", "eager": "torch"}
KERNELS = {"fa2": "flash2", "sdpa": "sdpa", "disabled": "torch"}
SMALL = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2,
)  # fmt: skip


def judge(case: Case) -> Seen:
    """What LLaMA-Factory and accelerate make of their YAML, or its new trainer of its own."""
    if NEW in case["files"]:
        return _judge_new(case)
    seen = accelerate_judge.judge(case)
    os.environ.clear()
    os.environ.update(BEFORE)
    given = yaml.safe_load(case["files"]["llama_factory_train.yaml"])
    with tempfile.TemporaryDirectory() as folder:
        own = {"model_name_or_path": "m", "dataset": "d", "template": "default", "output_dir": folder,
               "learning_rate": 1e-4, "use_cpu": True}  # fmt: skip
        # its bf16 asks for a GPU; ours is checked as it stands
        if (given["bf16"], given["fp16"]) not in ((True, False), (False, True)):
            raise ValueError("neither bf16 nor fp16")
        plain = {"bf16": False, "fp16": False}
        model, data, run, tuning, _ = parser._parse_train_args(given | plain | own)
        parser._verify_model_args(model, data, tuning)
    # with packing it takes a token away and pads it back (data_args.py, processor/supervised.py)
    if not data.packing or data.neat_packing:
        raise ValueError(f"packing {data.packing}, of whole documents {data.neat_packing}")
    if not run.do_train or tuning.stage != "sft":
        raise ValueError(f"trained {run.do_train}, stage {tuning.stage}")
    if not model.disable_gradient_checkpointing:
        seen["recompute_granularity"] = "full"
    if model.quantization_bit and model.quantization_method != "bnb":
        raise ValueError(f"weights in 4 bits by {model.quantization_method}")
    base = {True: "nf4-double", False: model.quantization_type}[model.double_quantization]
    shape = towers.shape_in(case["files"]["llama_factory_train.yaml"])
    if shape is not None:
        seen |= _images(shape, model, tuning)
    trained = _trained(model, tuning)
    seen |= {
        "lora_rank": tuning.lora_rank if tuning.finetuning_type == "lora" else 0,
        "lora_targets": sorted({name.split(".")[-4] for name in trained if ".lora_A." in name}),
        "trained_modules": sorted(
            {
                name.split(".modules_to_save.")[0].split(".")[-1]
                for name in trained
                if ".modules_to_save." in name
            }
        ),
        "base_precision": {4: base, 8: "int8"}.get(model.quantization_bit, "bf16"),
        "optimizer_bits": 8 if "8bit" in str(getattr(run.optim, "value", run.optim)) else 32,
        "orthogonalised": tuning.use_muon,
        "moments_of_rows": tuning.use_adam_mini,
    }
    if tuning.finetuning_type == "full":
        (dtype,) = {str(one).removeprefix("torch.") for one in trained.values()}
        seen["loaded_as"] = dtype
    else:
        seen["loaded_as"] = "bfloat16"  # of what is frozen
        seen["dora"] = tuning.use_dora
    if run.ddp_bucket_cap_mb:
        seen["facts.bucket_bytes"] = run.ddp_bucket_cap_mb * 2**20
    return seen | {
        "optimizer_rank": _projected(tuning),
        "facts.loss_kernel": "liger" if model.enable_liger_kernel else "whole",
        "seq_length": data.cutoff_len + 1,
        "facts.attention_kernel": KERNELS[str(getattr(model.flash_attn, "value", model.flash_attn))],
        "micro_batch_size": run.per_device_train_batch_size,
        "num_microbatches": run.gradient_accumulation_steps,
    }


def _projected(tuning: object) -> int:
    """The rank to which GaLore or APOLLO projects gradients, of every layer and as seldom as by default."""
    own = "galore" if tuning.use_galore else "apollo" if tuning.use_apollo else ""
    if not own:
        return 0
    kept = [getattr(tuning, f"{own}_{name}") for name in ("target", "update_interval", "layerwise")]
    if kept != [["all"], 200, False] or tuning.apollo_proj != "random":
        raise ValueError(f"{own} of {kept}")
    return getattr(tuning, f"{own}_rank")


def _judge_new(case: Case) -> Seen:
    """What the new trainer makes of its YAML: its parser, and its engine's reading of the mesh."""
    given, world = yaml.safe_load(case["files"][NEW]), case["world_size"]
    own = {"model": "m", "train_dataset": "d", "template": "default", "output_dir": "o"}
    model, _, run, _ = arg_parser.get_args(given | own)
    engine, adapters = fsdp2.FSDP2Engine.__new__(fsdp2.FSDP2Engine), model.peft_config or {}
    with contextlib.suppress(AttributeError, RuntimeError, ValueError):  # ranks that are not there
        engine.__init__(dict(run.dist_config))
    if str(getattr(model.model_class, "value", model.model_class)) != "llm":
        raise ValueError(f"a class of {model.model_class}")
    if run.dist_config["name"] != "fsdp2" or not run.bf16 or str(run.batching_strategy) != "normal":
        raise ValueError(f"{run.dist_config}, bf16 {run.bf16}, {run.batching_strategy}")
    targets = adapters.get("target_modules", [])
    return {
        "num_gpus": world, "data_parallel_size": world, "zero_shard_size": world,
        "zero_stage": 3 if engine.reshard_after_forward else 2,
        "offload": "optimizer+parameters" if engine.offload_params else "none",
        "micro_batch_size": run.micro_batch_size,
        "num_microbatches": run.global_batch_size // (run.micro_batch_size * world),
        "seq_length": run.cutoff_len,
        "recompute_granularity": "full" if run.enable_activation_checkpointing else "none",
        "facts.attention_kernel": NEW_KERNELS[str(getattr(model.flash_attn, "value", model.flash_attn))],
        "lora_rank": adapters.get("r", 0),
        "lora_targets": sorted(targets),
    }  # fmt: skip


def _images(shape: dict[str, object], model: object, tuning: object) -> Seen:
    """Return what of a tower is trained once LLaMA-Factory has set it up, and the largest image."""
    small = towers.small_model(shape)
    ready = init_adapter(small.config, small, model, tuning, is_trainable=True)
    language = [one for name, one in ready.named_parameters() if "visual" not in name]
    found = {"trained_tower": towers.trained(ready.model.visual), "most_pixels": model.image_max_pixels}
    if tuning.finetuning_type == "full":
        found["trained_language"] = all(one.requires_grad for one in language)
    return found


def _trained(model: object, tuning: object) -> dict[str, torch.dtype]:
    """What is trained of a small model in bf16, and in which dtype, once LLaMA-Factory has set it up."""
    small = LlamaForCausalLM(SMALL).to(torch.bfloat16)
    ready = init_adapter(SMALL, small, model, tuning, is_trainable=True)
    return {name: one.dtype for name, one in ready.named_parameters() if one.requires_grad}


if __name__ == "__main__":
    os.dup2(STDOUT, 1)
    serve(judge)
