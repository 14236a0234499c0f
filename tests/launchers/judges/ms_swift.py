"""ms-swift 4.6 on a CPU: the parser of ``swift.cli._megatron.pt`` and all that it checks and fills in.

Of the model it is told a folder with a small Llama's config: no argument hangs on it. What mcore-bridge
does to Megatron-Core and Transformer Engine, process groups and the inference engine are stand-ins.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
import typing
from pathlib import Path

import typing_extensions

sys.path.remove(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent))  # this folder has the names of packages
from protocol import Case, Seen, serve
from stand_ins import StandIns

ENTERED = ("swift.megatron",)
SILENT = ("mcore_bridge", "swift.infer_engine", "swift.megatron.init", "swift.megatron.utils")


StandIns(ENTERED, SILENT)
typing.override = typing_extensions.override  # type: ignore[attr-defined]
os.environ |= {"HF_HUB_OFFLINE": "1", "MODELSCOPE_CACHE": tempfile.gettempdir()}

import mcore_bridge.model  # noqa: E402
import swift.megatron.init  # noqa: E402

mcore_bridge.model.get_mcore_model_type = lambda name: name
mcore_bridge.model.get_model_meta = lambda _name: object()
swift.megatron.init._patch_mcore_bridge = lambda: None

from swift.megatron.arguments import megatron_args, pretrain_args, sft_args  # noqa: E402
from swift.utils import parse_args  # noqa: E402


def started(args: typing.Any) -> None:
    """What its process groups would tell of the world."""
    args.rank, args.world_size = 0, int(os.environ["WORLD_SIZE"])


megatron_args.initialize_megatron = started
sft_args.init_process_group = lambda **_options: None
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512,
    "max_position_embeddings": 1 << 20,
}  # fmt: skip
DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")  # of the script's variables


def judge(case: Case) -> Seen:
    """What ms-swift makes of the arguments, those of the script among them."""
    body = case["files"]["plan_args.sh"].partition("PLAN_ARGS=(\n")[2].rpartition("\n)")[0]
    script = case["files"]["launch.sh"].partition("run_args=(")[2].partition(")\n")[0]
    words = [*shlex.split(body, comments=True), *shlex.split(DEFAULT.sub(r"\1", script))]
    os.environ.update(RANK="0", WORLD_SIZE=str(case["world_size"]), LOCAL_RANK="0")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA))
        own = [
            "--model",
            folder,
            "--model_type",
            "llama",
            "--template",
            "llama3",
            "--dataset",
            "data",
            "--output_dir",
            f"{folder}/out",
        ]
        args, unknown = parse_args(pretrain_args.MegatronPretrainArguments, [*words, *own])
        os.chdir("/")
    if unknown:
        raise ValueError(f"remaining_argv: {unknown}")  # as swift/base.py refuses them
    (moments,) = {str(one).removeprefix("torch.") for one in (args.exp_avg_dtype, args.exp_avg_sq_dtype)}
    return {
        "seq_length": args.max_length if args.packing else None,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        "facts.gradient_dtype": "fp32" if args.accumulate_allreduce_grads_in_fp32 else "bf16",
        "facts.overlap_gradients": args.overlap_grad_reduce,
        "facts.overlap_tensor": args.tp_comm_overlap,
        "facts.loss_fused": args.cross_entropy_loss_fusion,
        "facts.elementwise_fused": args.bias_activation_fusion and args.bias_dropout_fusion,
        "optimizer_on_host": args.optimizer_cpu_offload,
        "moments": {"bf16": "bfloat16", "fp32": "float32"}.get(moments, moments),
        "tensor_parallel_size": args.tensor_model_parallel_size,
        "pipeline_parallel_size": args.pipeline_model_parallel_size,
        "virtual_pipeline_size": args.virtual_pipeline_model_parallel_size or 1,
        "context_parallel_size": args.context_parallel_size,
        "expert_parallel_size": args.expert_model_parallel_size,
        "data_parallel_size": args.data_parallel_size,
        "sequence_parallel": args.sequence_parallel,
        "zero_stage": int(args.use_distributed_optimizer),
        "micro_batch_size": args.micro_batch_size,
        "num_microbatches": args.num_microbatches,
        "global_batch_size": args.global_batch_size,
        "recompute_granularity": args.recompute_granularity or "none",
        "offload": "optimizer" if args.optimizer_cpu_offload else "none",
        "lora_rank": args.lora_rank if args.tuner_type == "lora" else 0,
        "lora_targets": sorted(args.target_modules) if args.tuner_type == "lora" else [],
    }


if __name__ == "__main__":
    serve(judge)
