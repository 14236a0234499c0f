#!/usr/bin/env bash
# Megatron-Bridge (NeMo), plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 405B, 8192 tokens a sequence
# World size 1024: tp 8 * cp 1 * pp 16 * dp 8
# Micro-batches: 64 of 1
# Nodes: 128 of 8 × H100 SXM 80 GB
# Layers of each chunk: 7 8 8 8 8 8 8 8 8 8 8 8 8 8 8 7
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: attention backend, tokenizer, data and learning rate come from the recipe
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${here}/plan_args.sh"  # PLAN_ARGS: every value that the plan decided

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=128 GPUS_PER_NODE=8
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-}"
MASTER_PORT="${MASTER_PORT:-29500}"
: ${MASTER_ADDR:?"set it to the host of node rank 0"}
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# What the plan does not decide.
: ${BRIDGE_SCRIPT:?"set it to a recipe script of Megatron-Bridge that takes key=value overrides"}

# Further arguments may follow on the command line, but none may silently replace what the plan decided: not
# by its name or the beginning of it, not by its opposite, and not where the plan counts on a default.
readonly PLAN_DECIDES=(
    checkpoint.ckpt-format checkpoint.dist-ckpt-optim-fully-reshardable comm-overlap
    dataset.sequence-length ddp.grad-reduce-in-fp32 ddp.num-distributed-optimizer-instances
    ddp.overlap-grad-reduce ddp.overlap-param-gather ddp.use-distributed-optimizer mixed-precision
    model.account-for-embedding-in-pipeline-split model.account-for-loss-in-pipeline-split
    model.activation-func-clamp-value model.add-bias-linear model.add-qkv-bias
    model.apply-layernorm-1p model.attention-backend model.attention-dropout
    model.attention-output-gate model.bf16 model.context-parallel-size model.cp-comm-type
    model.cpu-offloading-num-layers model.cross-entropy-fusion-impl model.cross-entropy-loss-fusion
    model.cuda-graph-impl model.cuda-graph-modules model.cuda-graph-scope model.ddp-bucket-size
    model.ddp-num-buckets model.decoder-first-pipeline-num-layers
    model.decoder-last-pipeline-num-layers model.delay-wgrad-compute model.disable-bias-linear
    model.enable-cuda-graph model.exp-avg-dtype model.exp-avg-sq-dtype
    model.experimental-attention-variant model.expert-model-parallel-size
    model.expert-tensor-parallel-num-weight-shards model.expert-tensor-parallel-size
    model.external-cuda-graph model.extra-vocab-size model.ffn-hidden-size
    model.fine-grained-activation-offloading model.fp16 model.fp4-format model.fp4-recipe
    model.fp8-dot-product-attention model.fp8-format model.fp8-param-gather model.fp8-recipe
    model.gated-linear-unit model.global-batch-size model.glu-linear-offset
    model.grad-reduce-in-bf16 model.group-query-attention model.hidden-dropout model.hidden-size
    model.hierarchical-context-parallel-sizes model.hybrid-context-parallel
    model.hybrid-layer-pattern model.kv-channels model.kv-lora-rank model.layernorm-epsilon
    model.layernorm-zero-centered-gamma model.main-grads-dtype model.main-params-dtype
    model.make-vocab-size-divisible-by model.max-padding-length model.max-position-embeddings
    model.max-seqlen-per-dp-cp-rank model.micro-batch-size
    model.microbatch-group-size-per-virtual-pipeline-stage model.moe-enable-deepep
    model.moe-expert-capacity-factor model.moe-ffn-hidden-size model.moe-flex-dispatcher-backend
    model.moe-grouped-gemm model.moe-layer-freq model.moe-pad-expert-input-to-capacity
    model.moe-permute-fusion model.moe-router-enable-expert-bias
    model.moe-router-force-load-balancing model.moe-router-group-topk model.moe-router-num-groups
    model.moe-router-pre-softmax model.moe-router-score-function model.moe-router-topk
    model.moe-router-topk-scaling-factor model.moe-shared-expert-gate
    model.moe-shared-expert-intermediate-size model.moe-shared-expert-overlap
    model.moe-token-dispatcher-type model.mscale model.mscale-all-dim model.mtp-num-layers
    model.multi-latent-attention model.no-bias-dropout-fusion model.no-bias-gelu-fusion
    model.no-bias-swiglu-fusion model.no-overlap-p2p-communication model.no-rope-freq
    model.no-rope-fusion model.no-yarn-correction-range-round-to-int model.normalization
    model.num-attention-heads model.num-distributed-optimizer-instances model.num-experts
    model.num-layers model.num-layers-per-virtual-pipeline-stage model.num-moe-experts
    model.num-query-groups model.num-virtual-stages-per-pipeline-rank model.offload-modules
    model.optimizer model.optimizer-cpu-offload model.optimizer-offload-fraction
    model.overlap-grad-reduce model.overlap-moe-expert-parallel-comm model.overlap-param-gather
    model.padded-vocab-size model.pipeline-model-parallel-layout model.pipeline-model-parallel-size
    model.position-embedding-type model.q-lora-rank model.qk-head-dim model.qk-layernorm
    model.qk-pos-emb-head-dim model.quick-geglu model.rampup-batch-size model.recompute-activations
    model.recompute-granularity model.recompute-method model.recompute-modules
    model.recompute-num-layers model.reuse-grad-buf-for-mxfp8-param-ag model.rope-scaling
    model.rope-scaling-factor model.rotary-base model.rotary-percent model.seq-length
    model.sequence-parallel model.share-embeddings-and-output-weights model.should-pad-vocab
    model.softmax-type model.squared-relu model.step-batch-size-schedule model.swiglu
    model.tensor-model-parallel-size model.tensor-parallel-num-weight-shards model.tp-comm-overlap
    model.transformer-impl model.untie-embeddings-and-output-weights model.use-custom-fsdp
    model.use-distributed-optimizer model.use-flash-attn model.use-megatron-fsdp
    model.use-precision-aware-optimizer model.use-rope-scaling model.use-tp-pp-dp-mapping
    model.v-head-dim model.virtual-pipeline-model-parallel-size model.vocab-size
    model.window-attn-skip-freq model.window-size model.yarn-beta-fast model.yarn-beta-slow
    model.yarn-correction-range-round-to-int model.yarn-original-max-position-embeddings
    optimizer.exp-avg-dtype optimizer.exp-avg-sq-dtype optimizer.optimizer
    optimizer.use-distributed-optimizer optimizer.use-precision-aware-optimizer
    train.global-batch-size train.micro-batch-size
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

# Before Blackwell, one hardware queue keeps tensor and context traffic ahead of GEMMs.
export CUDA_DEVICE_MAX_CONNECTIONS=1
# The allocator's blocks grow in place, so that less memory is lost between them.
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-${PYTORCH_ALLOC_CONF:-expandable_segments:True}}"
run_args=("logger.log_interval=${LOG_INTERVAL:-1}" "checkpoint.save_interval=${SAVE_INTERVAL:-500}"
    "dist.distributed_timeout_minutes=${TIMEOUT_MINUTES:-30}" "optimizer.clip_grad=${CLIP_GRAD:-1.0}")
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${BRIDGE_SCRIPT}" "${PLAN_ARGS[@]}" "${run_args[@]}" "$@"
