"""Flags of Megatron-LM that decide a plan: what each takes. The writer writes some; the reader reads all.

Names and defaults: megatron/training/arguments.py and the dataclasses it builds flags from, Megatron-Core
0.17.0 and 0.19.2; those that older scripts still use are marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["switch", "integer", "number", "word", "words"]

_SWITCHES = (
    "accumulate-allreduce-grads-in-fp32", "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split", "bf16", "cross-entropy-loss-fusion", "disable-bias-linear",
    "fp16", "grad-reduce-in-bf16", "group-query-attention", "moe-grouped-gemm", "multi-latent-attention",
    "no-overlap-p2p-communication", "optimizer-cpu-offload", "overlap-grad-reduce",
    "overlap-moe-expert-parallel-comm", "overlap-param-gather",
    "recompute-activations", "sequence-parallel", "swiglu", "tp-comm-overlap",
    "untie-embeddings-and-output-weights", "use-distributed-optimizer", "use-flash-attn",
    "use-megatron-fsdp", "use-custom-fsdp", "use-precision-aware-optimizer",
    "no-rope-fusion", "add-qkv-bias", "use-tp-pp-dp-mapping", "qk-layernorm", "apply-layernorm-1p",
    "use-rope-scaling", "quick-geglu", "squared-relu", "no-bias-gelu-fusion", "moe-shared-expert-gate",
    "moe-router-pre-softmax", "moe-router-enable-expert-bias",
)  # fmt: skip
_WORDS = (
    "attention-backend", "ckpt-format", "cross-entropy-fusion-impl",
    "data-parallel-sharding-strategy", "exp-avg-dtype", "exp-avg-sq-dtype", "fp8-format", "fp8-recipe",
    "moe-layer-freq", "moe-token-dispatcher-type", "normalization", "optimizer",
    "pipeline-model-parallel-layout", "position-embedding-type", "recompute-granularity",
    "moe-router-score-function", "no-rope-freq", "recompute-method", "rope-type", "softmax-type",
    "step-batch-size-schedule", "transformer-impl", "window-size",
)  # fmt: skip
_LISTS = ("cp-comm-type", "rampup-batch-size", "recompute-modules")
_INTEGERS = (
    "context-parallel-size", "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
    "expert-model-parallel-size", "expert-tensor-parallel-size", "ffn-hidden-size", "global-batch-size",
    "hidden-size", "kv-channels", "kv-lora-rank", "make-vocab-size-divisible-by",
    "max-position-embeddings", "micro-batch-size", "microbatch-group-size-per-virtual-pipeline-stage",
    "moe-ffn-hidden-size", "moe-router-topk", "moe-shared-expert-intermediate-size", "mtp-num-layers",
    "num-attention-heads", "num-distributed-optimizer-instances", "num-experts", "num-layers",
    "num-layers-per-virtual-pipeline-stage", "num-query-groups", "num-virtual-stages-per-pipeline-rank",
    "pipeline-model-parallel-size", "q-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim",
    "recompute-num-layers", "rotary-base", "seq-length", "tensor-model-parallel-size", "v-head-dim",
    "moe-router-num-groups", "moe-router-group-topk", "vocab-size", "window-attn-skip-freq",
)  # fmt: skip
_NUMBERS = (
    "activation-func-clamp-value", "attention-dropout", "glu-linear-offset", "hidden-dropout", "mscale",
    "mscale-all-dim", "moe-router-topk-scaling-factor", "norm-epsilon", "optimizer-offload-fraction",
    "rope-scaling-factor", "rotary-percent", "rotary-scaling-factor",
    "rotary-seq-len-interpolation-factor",
)  # fmt: skip
_KINDS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("switch", _SWITCHES),
    ("word", _WORDS),
    ("words", _LISTS),
    ("integer", _INTEGERS),
    ("number", _NUMBERS),
)
FLAGS: Mapping[str, Kind] = {f"--{name}": kind for kind, names in _KINDS for name in names}

# What changes the model or the plan in ways that no flag of the script tells.
REFUSED: Mapping[str, str] = {
    "--use-checkpoint-args": "the model's flags come from a checkpoint; write them out",
    "--yaml-cfg": "the flags come from a YAML file; write them out",
    "--hybrid-override-pattern": "hybrid state-space models are not priced",
    "--hybrid-layer-pattern": "hybrid state-space models are not priced",
    "--is-hybrid-model": "hybrid state-space models are not priced",
    "--encoder-num-layers": "encoder-decoder models are not priced",
    "--decoder-num-layers": "encoder-decoder models are not priced",
    "--use-torch-fsdp2": "torch FSDP2 under Megatron-LM is not priced; --use-megatron-fsdp is",
    "--heterogeneous-layers-config-path": "layers of many kinds are not priced",
}
# What a step's time and memory do not hang on: data, logging, checkpoints, learning rates, seeds.
IRRELEVANT = (
    "--adam-", "--adlr-", "--async-save", "--check-for-", "--ckpt-", "--clip-grad", "--data-",
    "--dataloader-", "--dist-ckpt-", "--distributed-", "--end-weight-decay", "--eval-", "--eval_",
    "--exit-", "--finetune",
    "--init-method", "--initial-loss-scale", "--load", "--log-", "--loss-scale", "--lr", "--manual-gc",
    "--merge-file", "--min-lr", "--mock-data", "--moe-aux-loss", "--moe-router-bias", "--moe-router-dtype",
    "--moe-router-load-balancing", "--moe-z-loss",
    "--no-load-", "--no-save-", "--num-workers", "--override-opt_param-scheduler", "--profile",
    "--rotary-", "--save", "--seed", "--split", "--start-weight-decay",
    "--tensorboard-", "--test-data-path", "--timing-log", "--tokenizer-", "--train-", "--train_",
    "--use-dist-ckpt", "--use-rotary-position-embeddings", "--valid-data-path",
    "--vocab-file", "--wandb-", "--weight-decay", "--norm-epsilon", "--rope-",
    "--use-mcore-models", "--no-masked-softmax-fusion", "--no-gradient-accumulation-fusion",
    "--ddp-bucket-size", "--local-rank", "--accumulate-",
)  # fmt: skip


def is_irrelevant(name: str) -> bool:
    """Whether the prediction does not hang on a flag."""
    return name.startswith(IRRELEVANT)
