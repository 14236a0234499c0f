#!/usr/bin/env bash
# MaxText 0.2.5, plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 70B, 8192 tokens a sequence
# World size 64: tp 1 * cp 1 * pp 1 * dp 64
# Micro-batches: 2 of 1
# Nodes: 8 of 8 × H100 SXM 80 GB
# Layers of each chunk: 80
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Needs: Transformer Engine for JAX
# Warning: data, tokenizer, number of steps and learning rate are placeholders: set your own
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=8 GPUS_PER_NODE=8
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-}"
MASTER_PORT="${MASTER_PORT:-29500}"
: ${MASTER_ADDR:?"set it to the host of node rank 0"}
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# Packages that the plan needs; CHECK_PACKAGES=0 starts without looking for them.
needs_package() {
    [[ "${CHECK_PACKAGES:-1}" == 1 ]] || return 0
    python3 -c "$2" >/dev/null 2>&1 && return 0
    local has
    has="$3 $(python3 -c "from importlib.metadata import *; print(version('$3'))" 2>/dev/null)" ||
        has="no $3"
    echo "error: the plan needs $1; ${HOSTNAME} has ${has}" >&2
    echo "$4; CHECK_PACKAGES=0 starts without this check" >&2
    exit 2
}
needs_package 'Transformer Engine for JAX (attention runs on cuDNN'"'"'s fused kernels)' \
    'from importlib.metadata import version; version("transformer_engine_jax")' \
    transformer_engine_jax 'pip install "transformer_engine[jax]", or plan with workload.framework_options: {attention_kernel: triton}'

# Further arguments may follow on the command line, but none may silently replace what the plan decided: not
# by its name or the beginning of it, not by its opposite, and not where the plan counts on a default.
readonly PLAN_DECIDES=(
    activations-in-float32 allow-split-physical-axes attention attention-bias attention-out
    attention-sink attention-type attn-logits-soft-cap base-emb-dim base-mlp-dim base-moe-mlp-dim
    base-num-decoder-layers base-num-kv-heads base-num-query-heads capacity-factor
    cast-logits-to-fp32 chunk-attn-window-size context context-parallel-load-balance
    context-parallel-strategy context-sharding custom-mesh custom-mesh-and-rule
    dcn-autoregressive-parallelism dcn-context-autoregressive-parallelism dcn-context-parallelism
    dcn-context-usp-ulysses-parallelism dcn-data-parallelism dcn-diloco-parallelism
    dcn-expert-parallelism dcn-fsdp-parallelism dcn-fsdp-transpose-parallelism
    dcn-pipeline-parallelism dcn-sequence-parallelism dcn-tensor-parallelism
    dcn-tensor-sequence-parallelism decoder-block decoder-layer-input defer-small-all-reduces
    dense-fsdp-use-two-stage-all-gather dropout-rate dtype elastic-enabled enable-diloco
    enable-rampup-batch-size enable-single-controller enable-streaming-diloco engram-layers
    final-logits-soft-cap first-num-dense-layers first-phase-ragged-buffer-factor float32-logits
    float32-qk-product force-q-layout global-num-kv-heads global-parameter-scale grad-dtype
    gradient-accumulation-steps hardware head-dim hf-lora-adapter-path hidden-size-per-layer-input
    ici-autoregressive-parallelism ici-context-autoregressive-parallelism ici-context-parallelism
    ici-context-usp-ulysses-parallelism ici-data-parallelism ici-diloco-parallelism
    ici-expert-parallelism ici-fsdp-parallelism ici-fsdp-transpose-parallelism
    ici-pipeline-parallelism ici-sequence-parallelism ici-tensor-parallelism
    ici-tensor-sequence-parallelism inhomogeneous-layer-cycle-interval interleave-moe-layer-step
    key-proj kv-proj logical-axis-rules logits-dot-in-fp32 logits-via-embedding lora
    lora-input-adapters-path matmul-precision max-checkify max-inflight-computations
    max-target-length mesh-axes mhc-expansion-rate mlp-activations mlp-activations-limit mlp-bias
    mlpwi mlpwi-0 mlpwi-1 mlpwo moba model-call-mode model-name moe-chunk-barrier
    moe-dispatch-no-expert-sharding moe-dropless-fallback moe-fsdp-use-two-stage-all-gather
    moe-mlpwi-0 moe-mlpwi-1 moe-mlpwo moe-pin-sparse-core-all-gathers
    moe-pin-sparse-core-ep-all-gathers moe-pin-sparse-core-fsdp-all-gathers
    moe-pin-sparse-core-fsdp-all-gathers-fwd-only moe-quantize-combine-bwd-method
    moe-quantize-token-all-gather moe-routing-maps moe-topk-before-ep-all-gather
    moe-use-direct-token-gather moe-x-sorted mtp-num-layers mu-dtype n-routing-groups
    nope-layer-interval normalization-layer-epsilon num-experts num-experts-per-tok
    num-kv-shared-layers num-layers-per-pipeline-stage num-moe-emb-chunks num-moe-token-chunks
    num-pipeline-microbatches num-pipeline-repeats num-vocab-tiling opt-type
    optimize-mesh-for-tpu-v6e optimizer-memory-host-offload out-proj override-logical-axis-rules
    parameter-memory-host-offload partial-rotary-factor per-device-batch-size
    pipeline-delay-activation-forwarding pipeline-fsdp-ag-once pipeline-fsdp-ag-per-repeat
    pipeline-parallel-layers qkv-proj quant-cfg-path quantization query-proj ragged-buffer-factor
    ragged-gather-fallback ragged-gather-reduce-fallback ragged-sort-use-single-sparsecore
    remat-policy retry-dropless-first-steps rope-linear-scaling-factor rope-max-timescale rope-type
    rope-use-scale routed-bias routed-score-func set-remat-policy-on-layers-per-stage
    set-remat-policy-on-pipeline-iterations shard-exp-on-fsdp shard-optimizer-over-data
    sharding-strategy share-kv-projections shared-experts sliding-window-size subslice-shape
    te-comm-gemm-overlap te-gmm-quantization te-moe-block topk-routing-group
    trainable-parameters-mask training-objective ulysses-context-sharding use-2d-fsdp-sharding
    use-audio use-batch-split-schedule use-custom-sort-vjp use-double-wide-mlp use-dpo
    use-gather-mosaic-kernel use-gmm-v2 use-gmm-v2-heuristic-tiling use-grpo use-indexer
    use-iota-embed use-lineage use-m3-model use-multimodal use-post-attn-norm use-post-ffw-norm
    use-qk-clip use-qk-norm use-ragged-attention use-ragged-sort use-random-routing
    use-ring-of-experts use-tokamax-gmm use-tunix-gradient-accumulation
    use-untrainable-positional-embedding value-proj vocab-size weight-dtype weight-sparsity-m
    weight-sparsity-n
)
plain_name() {
    REPLY="${1%%[= ]*}"
    REPLY="${REPLY#"${REPLY%%[!-+~]*}"}"
    REPLY="${REPLY//_/-}"
    REPLY="${REPLY,,}"
    REPLY="${REPLY#no-}"
    REPLY="${REPLY#disable-}"
}
for given in "$@"; do
    [[ "${given}" == @(--*|+*|~*|*=*) ]] || continue
    plain_name "${given}"
    for decided in "${PLAN_DECIDES[@]}"; do
        if [[ -n "${REPLY}" && "${decided}" == "${REPLY}"* ]]; then
            echo "error: ${given%%=*} belongs to the plan (${decided}); change the plan instead" >&2
            exit 2
        fi
    done
done

# JAX takes three quarters of a GPU's memory by default; the plan counts on more.
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.95
# Gathers and reductions run under computing, as they were priced.
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true ${XLA_FLAGS:-}"
export NODE_RANK NNODES="${NUM_NODES}"
export JAX_COORDINATOR_IP="${MASTER_ADDR}" JAX_COORDINATOR_PORT="${MASTER_PORT}"
exec python3 -m maxtext.trainers.pre_train.train "${here}/maxtext.yml" "$@"
