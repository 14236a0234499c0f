"""LLaMA-Factory 0.9.5 on a CPU: its parser of a YAML over the argument classes of ROLL's ``mcore_adapter``.

No package index has that adapter: MCORE_ADAPTER names ``mcore_adapter/src`` of a checkout of ROLL, of which
the module with the arguments is imported without the package's ``__init__``.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import types
import typing
from pathlib import Path

import typing_extensions
import yaml

sys.path.remove(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent))  # this folder has the names of packages
from protocol import Case, Seen, serve

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

from llamafactory.hparams import parser  # noqa: E402
from megatron.core.transformer.pipeline_parallel_layer_layout import (  # noqa: E402
    PipelineParallelLayerLayout,
)


def judge(case: Case) -> Seen:
    """What LLaMA-Factory makes of its YAML."""
    given = yaml.safe_load(case["files"]["llama_factory.yaml"])
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "model_name_or_path": "m",
            "dataset": "d",
            "output_dir": folder,
            "stage": "pt",
            "use_cpu": True,
        }
        _, data, run, _, _ = parser._parse_train_mca_args(given | own)
    if run.accumulate_allreduce_grads_in_fp32 != given["accumulate_allreduce_grads_in_fp32"]:
        raise ValueError("accumulate_allreduce_grads_in_fp32 is written over")
    # with packing it takes a token away and its collator pads it back (data_args.py:189, mca/workflow.py)
    if (data.cutoff_len + 1, data.packing) != (given["cutoff_len"], True):
        raise ValueError(f"cutoff_len {data.cutoff_len}, packing {data.packing}")
    sizes = run.get_config_dict()
    pp, virtual = run.pipeline_model_parallel_size, run.virtual_pipeline_model_parallel_size or 1
    ranks = run.tensor_model_parallel_size * pp * run.context_parallel_size
    seen: Seen = {
        "tensor_parallel_size": run.tensor_model_parallel_size,
        "pipeline_parallel_size": pp,
        "virtual_pipeline_size": virtual,
        "context_parallel_size": run.context_parallel_size,
        "expert_parallel_size": run.expert_model_parallel_size or 1,
        "expert_tensor_parallel_size": sizes.get("expert_tensor_parallel_size") or 1,
        "data_parallel_size": case["world_size"] // ranks,
        "sequence_parallel": run.sequence_parallel,
        "zero_stage": int(run.use_distributed_optimizer),
        "micro_batch_size": run.per_device_train_batch_size,
        "num_microbatches": run.gradient_accumulation_steps,
        "recompute_granularity": run.recompute_granularity or "none",
    }
    if run.pipeline_model_parallel_layout is not None:
        layout = PipelineParallelLayerLayout.from_str(run.pipeline_model_parallel_layout, pp).layout
        flat = [layout[rank][part] for part in range(virtual) for rank in range(pp)]
        seen["stage_layers"] = [sum(kind.name == "decoder" for kind in stage) for stage in flat]
    return seen


if __name__ == "__main__":
    os.dup2(STDOUT, 1)
    serve(judge)
