"""ms-swift 4.6 on a CPU: the parser of ``swift.cli._megatron.pt`` and all that it checks and fills in.

Of the model it is told a folder with a small Llama's config: no argument hangs on it. What mcore-bridge
does to Megatron-Core and Transformer Engine, process groups and the inference engine are stand-ins.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
import tempfile
import typing
from pathlib import Path
from types import SimpleNamespace

import torch
import typing_extensions

sys.path.remove(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent))  # this folder has the names of packages
import megatron_core
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

import towers  # noqa: E402
from megatron.core.transformer.pipeline_parallel_layer_layout import (  # noqa: E402
    PipelineParallelLayerLayout,
)
from swift.megatron.arguments import megatron_args, pretrain_args, sft_args  # noqa: E402
from swift.utils import parse_args  # noqa: E402
from swift.utils.transformers_utils import activate_parameters, freeze_parameters  # noqa: E402


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
    refuse_other_kernels(args)
    if args.apply_rope_fusion is ('"mla":' in case["files"]["plan_args.sh"]):
        raise ValueError("fused rotary embeddings of latent attention, or none")
    images = images_of(args, case["files"]) if "--freeze_vit" in words else {}
    return {
        **seen_of(args),
        **images,
        **(exchanges_of(args) if "--moe_token_dispatcher_type" in words else {}),
    }


def seen_of(args: typing.Any) -> Seen:
    """The plan as ms-swift understood it."""
    (moments,) = {str(one).removeprefix("torch.") for one in (args.exp_avg_dtype, args.exp_avg_sq_dtype)}
    seen: Seen = {
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
        **megatron_core.recomputation_of(args),
        "context_parallel_mode": megatron_core.context_mode(args),
        "offload": "optimizer" if args.optimizer_cpu_offload else "none",
        "lora_rank": args.lora_rank if args.tuner_type == "lora" else 0,
        "lora_targets": sorted(args.target_modules) if args.tuner_type == "lora" else [],
        "model": {"num_mtp_layers": args.mtp_num_layers or 0},
    }
    if args.main_grads_dtype != torch.bfloat16:  # which needs that optimizer too
        seen["precision_aware"] = args.use_precision_aware_optimizer
    if args.optimizer_cpu_offload:
        seen["facts.optimizer_offload_fraction"] = args.optimizer_offload_fraction
    if args.virtual_pipeline_model_parallel_size:
        seen["facts.overlap_transfer"] = args.overlap_p2p_comm
        seen["microbatch_group"] = args.microbatch_group_size_per_vp_stage
    if args.pipeline_model_parallel_layout:
        layout = PipelineParallelLayerLayout(
            args.pipeline_model_parallel_layout, args.pipeline_model_parallel_size
        )
        seen["stage_layers"] = megatron_core.split_of(SimpleNamespace(
            pipeline_model_parallel_size=args.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
            pipeline_model_parallel_layout=layout,
        ))  # fmt: skip
    return seen


def exchanges_of(args: typing.Any) -> Seen:
    """How tokens reach their experts, and what balances them."""
    if args.moe_router_dtype != "fp32":
        raise ValueError(f"the router computes in {args.moe_router_dtype}")
    word = args.moe_token_dispatcher_type
    if word == "flex":  # whose backend is no argument of its own (swift/megatron/model/utils.py:74)
        word = (args.megatron_extra_kwargs or {})["moe_flex_dispatcher_backend"]
    return {
        "expert_tensor_parallel_size": args.expert_tensor_parallel_size,
        "facts.moe_dispatcher": word,
        "one_product_of_experts": args.moe_grouped_gemm,
        "model": {
            "num_mtp_layers": args.mtp_num_layers or 0,
            "moe.balance_coefficient": args.moe_aux_loss_coeff,
            "moe.balanced_by_sequence": args.moe_router_load_balancing_type == "seq_aux_loss",
        },
    }


def images_of(args: typing.Any, files: dict[str, str]) -> Seen:
    """Return what of the tower is trained, by ms-swift's own rules, and the largest image.

    The names of the tower and its projector are those of mcore-bridge's class (mm_gpts/qwen3_vl.py).
    """
    shape = towers.shape_in(files["plan_args.sh"])
    model, visual = torch.nn.Module(), torch.nn.Module()
    visual.visual = towers.tower_of(shape)
    model.visual, model.language_model = visual, torch.nn.Linear(8, 8, device="meta")
    args.is_multimodal, args.megatron_model_meta = True, SimpleNamespace(visual_cls=visual_class())
    args.freeze_parameters, args.trainable_parameters = [], []
    args._init_multimodal_full()
    freeze_parameters(model, args.freeze_parameters_ratio, args.freeze_parameters)
    if args.trainable_parameters:
        activate_parameters(model, args.trainable_parameters)
    limit = re.search(r"^export MAX_PIXELS=(\d+)$", files["launch.sh"], re.MULTILINE)
    if limit is None or int(limit[1]) != args.max_pixels:
        raise ValueError("MAX_PIXELS is not max_pixels")
    return {
        "trained_tower": towers.trained(visual),
        "trained_language": all(one.requires_grad for one in model.language_model.parameters()),
        "replayed_tower": bool(args.vit_gradient_checkpointing),
        "most_pixels": args.max_pixels,
    }


def visual_class() -> SimpleNamespace:
    """Return the names of tower and projector in mcore-bridge's class."""
    name = "mcore_bridge/model/mm_gpts/qwen3_vl.py"
    path = next(Path(folder) / name for folder in sys.path if (Path(folder) / name).exists())
    (body,) = (
        one.body
        for one in ast.parse(path.read_text()).body
        if isinstance(one, ast.ClassDef) and one.name == "Qwen3VL_Vit"
    )
    parts = (one for one in body if isinstance(one, ast.Assign))
    return SimpleNamespace(**{one.targets[0].id: ast.literal_eval(one.value) for one in parts})


def refuse_other_kernels(args: typing.Any) -> None:
    """What is priced of every plan, and the same optimizer and dtypes wherever they stand.

    Raises:
        ValueError: the arguments say otherwise.
    """
    kind = {(True, False): torch.bfloat16, (False, True): torch.float16}[args.bf16, args.fp16]
    sharded = args.use_distributed_optimizer and args.overlap_grad_reduce
    wanted = {
        "torch_dtype": kind,
        "optimizer": "adam",
        "overlap_param_gather": sharded,
        "masked_softmax_fusion": True,
    }
    other = {name: getattr(args, name) for name in wanted if getattr(args, name) != wanted[name]}
    if other:
        raise ValueError(f"not what is priced: {other}")


if __name__ == "__main__":
    serve(judge)
