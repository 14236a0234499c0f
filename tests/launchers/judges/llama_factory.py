"""LLaMA-Factory 0.9.5 on a CPU: its parser of a YAML over the argument classes of ROLL's ``mcore_adapter``.

No package index has that adapter: MCORE_ADAPTER names ``mcore_adapter/src`` of a checkout of ROLL, of which
the modules with the arguments and the model's configuration are imported without their packages'
``__init__``. Of the model the configuration is told the sizes that its rules ask for.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import tempfile
import types
import typing
from pathlib import Path

import torch
import typing_extensions
import yaml
from packaging.version import Version

sys.path.remove(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent))  # this folder has the names of packages
import megatron_core
from protocol import Case, Seen, serve
from stand_ins import StandIns

typing.override = typing_extensions.override  # type: ignore[attr-defined]
STDOUT = os.dup(1)
os.dup2(2, 1)  # what is said while it is imported is no answer
os.environ |= {"USE_MCA": "1", "DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
adapter = types.ModuleType("mcore_adapter")
adapter.__path__ = [str(Path(os.environ["MCORE_ADAPTER"]) / "mcore_adapter")]
adapter.__spec__ = importlib.machinery.ModuleSpec("mcore_adapter", None, is_package=True)
sys.modules["mcore_adapter"] = adapter
arguments = importlib.import_module("mcore_adapter.training_args")
adapter.TrainingArguments = arguments.TrainingArguments
adapter.Seq2SeqTrainingArguments = arguments.Seq2SeqTrainingArguments

torch.cuda.get_device_capability = lambda *_args: (9, 0)
torch.cuda.get_device_properties = lambda *_args: type("Hopper", (), {"major": 9, "minor": 0})()
import megatron.core.models.common.embeddings.rope_utils as rope  # noqa: E402
import megatron.core.utils as core_utils  # noqa: E402

core_utils._te_version = Version("2.9.0")
rope.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb or (lambda *_args: None)
_CONVERTER = "mcore_adapter.models.converter"
StandIns(("mcore_adapter.models",), ("mcore_adapter.initialize", _CONVERTER, f"{_CONVERTER}.template"))
import towers  # noqa: E402
from llamafactory.hparams import parser  # noqa: E402

model_config = importlib.import_module("mcore_adapter.models.model_config")
model_config.check_and_get_attention_backend_by_env = lambda backend: backend


def configured(run: typing.Any, text: str) -> typing.Any:
    """Megatron-Core's configuration as the adapter makes it for a checkpoint of the plan's model."""
    named = text.partition("# Model shape: ")[2].partition("\n")[0]
    shape = json.loads(named)
    kind = model_config.MLAMcaModelConfig if shape.get("mla") else model_config.McaModelConfig
    ready = kind.__post_init__
    kind.__post_init__ = lambda _self: None  # as its from_pretrained does
    config = kind(
        num_layers=shape["num_layers"],
        hidden_size=shape["hidden_size"],
        num_attention_heads=shape["num_attention_heads"],
        num_query_groups=shape["num_kv_heads"],
        num_moe_experts=(shape.get("moe") or {}).get("num_experts"),
        mtp_num_layers=shape.get("num_mtp_layers"),
        add_bias_linear=False,
        swiglu=True,
        attention_dropout=0.0,  # as every template of a model has them
        hidden_dropout=0.0,
    )
    config.update_with_args(run)
    kind.__post_init__ = ready
    config.post_init()
    return config


def judge(case: Case) -> Seen:
    """What LLaMA-Factory makes of its YAML."""
    given = yaml.safe_load(case["files"]["llama_factory.yaml"])
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "model_name_or_path": "m",
            "dataset": "d",
            "output_dir": folder,
            "template": "default",
            "use_cpu": True,
        }
        model, data, run, tuning, _ = parser._parse_train_mca_args(given | own)
    # with packing it takes a token away and its collator pads it back (data_args.py:189, mca/workflow.py)
    if not (
        data.packing
        and tuning.stage == "sft"
        and run.do_train
        and run.bf16 is not run.fp16
        and run.optimizer == "adam"
    ):
        raise ValueError(f"packing {data.packing}, trained {run.do_train}, by {run.optimizer}")
    if run.accumulate_allreduce_grads_in_fp32 != given["accumulate_allreduce_grads_in_fp32"]:
        raise ValueError("accumulate_allreduce_grads_in_fp32 is written over")
    config = configured(run, case["files"]["llama_factory.yaml"])
    latent, stretched = config.multi_latent_attention, config.rotary_scaling_factor
    if not config.bias_activation_fusion or config.apply_rope_fusion is latent:
        raise ValueError("element by element")
    ranks = config.tensor_model_parallel_size * config.pipeline_model_parallel_size
    shape = towers.shape_in(case["files"]["llama_factory.yaml"])
    return {
        **(images_of(shape, model, tuning) if shape else {}),
        "seq_length": data.cutoff_len + 1,
        "tensor_parallel_size": config.tensor_model_parallel_size,
        "pipeline_parallel_size": config.pipeline_model_parallel_size,
        "virtual_pipeline_size": config.virtual_pipeline_model_parallel_size or 1,
        "context_parallel_size": config.context_parallel_size,
        "expert_parallel_size": config.expert_model_parallel_size or 1,
        "data_parallel_size": case["world_size"] // (ranks * config.context_parallel_size),
        "sequence_parallel": config.sequence_parallel,
        "zero_stage": int(run.use_distributed_optimizer),
        "micro_batch_size": run.per_device_train_batch_size,
        "num_microbatches": run.gradient_accumulation_steps,
        "precision": "bf16" if config.bf16 else "fp16",
        "stage_layers": megatron_core.split_of(config),
        "facts.gradient_dtype": "fp32" if run.accumulate_allreduce_grads_in_fp32 else "bf16",
        "facts.overlap_gradients": run.overlap_grad_reduce,
        "facts.cuda_graph": graphs_of(config),
        **megatron_core.recomputation_of(config),
        **megatron_core.switches_of(config),
        "model": {
            "num_mtp_layers": config.mtp_num_layers or 0,
            **({} if latent else {"rotary_scaling.factor": stretched if stretched != 1 else None}),
            **(balance_of(config) if config.num_moe_experts else {}),
        },
    }


def images_of(shape: dict[str, typing.Any], model: typing.Any, tuning: typing.Any) -> Seen:
    """Return what of the tower is trained, by LLaMA-Factory's own function, and the largest image."""
    name = "llamafactory/train/mca/workflow.py"
    path = next(Path(folder) / name for folder in sys.path if (Path(folder) / name).exists())
    (own,) = (
        one
        for one in ast.parse(path.read_text()).body
        if isinstance(one, ast.FunctionDef) and one.name == "_freeze_model_parameters"
    )
    found: dict[str, typing.Any] = {"Any": typing.Any}
    code = compile(ast.Module([own], []), str(path), "exec")  # its module imports the whole trainer
    exec(code, found)  # noqa: S102 - LLaMA-Factory's own function
    whole = torch.nn.Module()
    whole.config = types.SimpleNamespace(hf_model_type=shape["tower"]["model_type"])
    whole.vision_model, whole.decoder = towers.tower_of(shape), torch.nn.Linear(8, 8, device="meta")
    found["_freeze_model_parameters"](whole, tuning)
    return {
        "trained_tower": towers.trained(whole.vision_model),
        "trained_language": towers.trained(whole.decoder) > 0,
        "most_pixels": model.image_max_pixels,
    }


def graphs_of(config: typing.Any) -> str:
    """What CUDA graphs capture."""
    if config.cuda_graph_impl in ("none", "full_iteration"):
        return str(config.cuda_graph_impl)
    return "+".join(one.name for one in config.cuda_graph_modules) or "layer"


def balance_of(config: typing.Any) -> Seen:
    """The loss that balances experts."""
    return {
        "moe.balance_coefficient": config.moe_aux_loss_coeff,
        "moe.balanced_by_sequence": config.moe_router_load_balancing_type == "seq_aux_loss",
    }


if __name__ == "__main__":
    os.dup2(STDOUT, 1)
    serve(judge)
