"""Reads an exported arguments file back, knowing only Megatron-LM's own meaning of its flags."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

SWITCHES = [
    "accumulate-allreduce-grads-in-fp32", "attention-output-gate", "bf16", "cross-entropy-loss-fusion",
    "disable-bias-linear", "fp16", "grad-reduce-in-bf16", "group-query-attention",
    "moe-grouped-gemm", "multi-latent-attention", "no-overlap-p2p-communication",
    "overlap-grad-reduce", "overlap-moe-expert-parallel-comm", "overlap-param-gather", "sequence-parallel",
    "swiglu", "tp-comm-overlap",
    "untie-embeddings-and-output-weights", "use-distributed-optimizer", "use-megatron-fsdp",
    "use-tp-pp-dp-mapping",
    "use-precision-aware-optimizer", "optimizer-cpu-offload", "add-qkv-bias", "apply-layernorm-1p",
    "moe-router-enable-expert-bias", "moe-router-pre-softmax", "moe-shared-expert-gate",
    "no-bias-gelu-fusion", "no-rope-fusion", "qk-layernorm", "quick-geglu", "squared-relu",
    "use-rope-scaling", "yarn-correction-range-round-to-int", "no-yarn-correction-range-round-to-int",
]  # fmt: skip
WORDS = [
    "attention-backend", "ckpt-format", "cp-comm-type", "cross-entropy-fusion-impl",
    "data-parallel-sharding-strategy", "experimental-attention-variant", "fp8-format", "fp8-recipe",
    "moe-layer-freq",
    "moe-router-score-function", "no-rope-freq", "rope-type", "softmax-type",
    "moe-router-dtype", "moe-router-load-balancing-type", "moe-token-dispatcher-type", "normalization",
    "optimizer", "pipeline-model-parallel-layout",
    "position-embedding-type", "recompute-granularity", "recompute-method", "recompute-modules",
    "rampup-batch-size", "step-batch-size-schedule", "transformer-impl", "window-attn-skip-freq",
    "window-size",
]  # fmt: skip
NUMBERS = [
    "context-parallel-size", "expert-model-parallel-size",
    "expert-tensor-parallel-size", "tensor-parallel-num-weight-shards",
    "expert-tensor-parallel-num-weight-shards", "ffn-hidden-size", "global-batch-size",
    "hidden-size", "linear-attention-freq", "linear-conv-kernel-dim", "linear-key-head-dim",
    "linear-num-key-heads", "linear-num-value-heads", "linear-value-head-dim",
    "kv-channels", "kv-lora-rank", "make-vocab-size-divisible-by",
    "max-position-embeddings", "micro-batch-size", "rotary-base",
    "microbatch-group-size-per-virtual-pipeline-stage", "moe-ffn-hidden-size", "moe-router-topk",
    "moe-router-num-groups", "moe-router-group-topk", "rotary-seq-len-interpolation-factor",
    "moe-shared-expert-intermediate-size", "mtp-num-layers", "num-attention-heads",
    "num-distributed-optimizer-instances", "num-experts", "num-layers", "num-query-groups",
    "num-virtual-stages-per-pipeline-rank", "pipeline-model-parallel-size", "q-lora-rank",
    "qk-head-dim", "qk-pos-emb-head-dim", "recompute-num-layers", "seq-length",
    "tensor-model-parallel-size", "v-head-dim", "vocab-size",
    "yarn-original-max-position-embeddings",
]  # fmt: skip
FRACTIONS = [
    "activation-func-clamp-value", "attention-dropout", "glu-linear-offset", "hidden-dropout", "mscale",
    "mscale-all-dim", "moe-aux-loss-coeff", "moe-router-topk-scaling-factor", "norm-epsilon",
    "optimizer-offload-fraction",
    "rope-scaling-factor", "rotary-percent", "rotary-scaling-factor",
    "yarn-beta-fast", "yarn-beta-slow",
]  # fmt: skip


@cache
def parser() -> argparse.ArgumentParser:
    """Megatron-LM's flags that the exporter may write; any other is an error."""
    found = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in SWITCHES:
        found.add_argument(f"--{name}", action="store_true")
    for name in WORDS:
        found.add_argument(f"--{name}")
    for name in NUMBERS:
        found.add_argument(f"--{name}", type=int)
    for name in FRACTIONS:
        found.add_argument(f"--{name}", type=float)
    return found


def words_by_bash(path: Path) -> list[str]:
    """The array as Bash itself reads it."""
    script = 'source "$1"; printf "%s\\0" "${MEGATRON_ARGS[@]}"'
    done = subprocess.run(["bash", "-c", script, "read", path], check=True, capture_output=True, text=True)
    return done.stdout.split("\0")[:-1]


def words(text: str) -> list[str]:
    """The same by ``shlex``: quick enough for many examples."""
    body = text.partition("MEGATRON_ARGS=(\n")[2].rpartition("\n)")[0]
    return shlex.split(body, comments=True)


def stages(layout: str) -> list[str]:
    """The stages of a layout string with every repetition written out."""
    return re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), layout).split("|")


def stage_layers(args: argparse.Namespace) -> tuple[int, ...]:
    """Layers of each chunk in model order, as Megatron-LM would build them."""
    if args.pipeline_model_parallel_layout:
        return tuple(stage.count("t") for stage in stages(args.pipeline_model_parallel_layout))
    chunks = args.pipeline_model_parallel_size * (args.num_virtual_stages_per_pipeline_rank or 1)
    return (int(args.num_layers) // chunks,) * int(chunks)


def recompute_layers(args: argparse.Namespace) -> int:
    """Fully recomputed layers of each chunk: uniform groups of 1 are all layers of the model."""
    if args.recompute_granularity != "full":
        return 0
    if args.recompute_method == "uniform":
        assert args.recompute_num_layers == 1
        return sum(stage_layers(args))
    return int(args.recompute_num_layers)


def zero_stage(args: argparse.Namespace) -> int:
    """0: DDP; 1: distributed optimizer; 2 and 3: Megatron-FSDP's sharding strategies."""
    if args.use_megatron_fsdp:
        return {"optim_grads": 2, "optim_grads_params": 3}[args.data_parallel_sharding_strategy]
    return int(args.use_distributed_optimizer)
