#!/usr/bin/env bash
# ms-swift 4.6.0, plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 70B, 8192 tokens a sequence
# Model shape: {"name": "llama-3.1-70b", "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64, "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "rotary_base": 500000, "rotary_scaling": {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, "norm_epsilon": 1e-05}
# World size 128: tp 8 * cp 1 * pp 4 * dp 4
# Micro-batches: 128 of 1
# Nodes: 16 of 8 × H100 SXM 80 GB
# Layers of each chunk: 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: load the model that was planned, of 70553706496 parameters: 80 layers, hidden 8192, MLP 28672, 64 heads, 8 key/value heads, vocabulary 128256; llama3 rotary scaling
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${here}/plan_args.sh"  # PLAN_ARGS: every value that the plan decided

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=16 GPUS_PER_NODE=8
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-}"
MASTER_PORT="${MASTER_PORT:-29500}"
: ${MASTER_ADDR:?"set it to the host of node rank 0"}
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# What the plan does not decide.
: ${SWIFT_DIR:?"set it to the folder of the installed package swift"}
: ${SWIFT_COMMAND:?"set it to pt or sft; model, dataset and learning rate follow on the command line"}

# Further arguments may follow on the command line, but none may silently replace what the plan decided: not
# by its name or the beginning of it, not by its opposite, and not where the plan counts on a default.
readonly PLAN_DECIDES=(
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
    accumulate-allreduce-grads-in-fp32 activation-func-clamp-value add-qkv-bias apply-layernorm-1p
    apply-rope-fusion attention-backend attention-dropout attention-output-gate bf16
    bias-activation-fusion bias-dropout-fusion bias-gelu-fusion bias-linear bias-swiglu-fusion
    context-parallel-size cp-comm-type cpu-offloading-num-layers cross-entropy-fusion-impl
    cross-entropy-loss-fusion cuda-graph-impl cuda-graph-modules cuda-graph-scope ddp-bucket-size
    ddp-num-buckets decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers
    delay-wgrad-compute dist-ckpt-optim-fully-reshardable enable-cuda-graph exp-avg-dtype
    exp-avg-sq-dtype experimental-attention-variant expert-model-parallel-size
    expert-tensor-parallel-num-weight-shards expert-tensor-parallel-size external-cuda-graph
    extra-vocab-size ffn-hidden-size fine-grained-activation-offloading fp16 fp4-format fp4-recipe
    fp8-dot-product-attention fp8-format fp8-param-gather fp8-recipe global-batch-size
    glu-linear-offset grad-reduce-in-bf16 gradient-accumulation-fusion group-query-attention
    hidden-dropout hidden-size hierarchical-context-parallel-sizes hybrid-context-parallel
    hybrid-layer-pattern kv-channels kv-lora-rank lora-rank main-grads-dtype main-params-dtype
    make-vocab-size-divisible-by masked-softmax-fusion max-length max-padding-length
    max-position-embeddings max-seqlen-per-dp-cp-rank megatron-extra-kwargs micro-batch-size
    microbatch-group-size-per-virtual-pipeline-stage microbatch-group-size-per-vp-stage
    moe-enable-deepep moe-expert-capacity-factor moe-ffn-hidden-size moe-flex-dispatcher-backend
    moe-grouped-gemm moe-layer-freq moe-pad-expert-input-to-capacity moe-permute-fusion
    moe-router-enable-expert-bias moe-router-force-load-balancing moe-router-group-topk
    moe-router-num-groups moe-router-pre-softmax moe-router-score-function moe-router-topk
    moe-router-topk-scaling-factor moe-shared-expert-gate moe-shared-expert-intermediate-size
    moe-shared-expert-overlap moe-token-dispatcher-type mscale mscale-all-dim mtp-num-layers
    multi-latent-attention normalization num-attention-heads num-distributed-optimizer-instances
    num-experts num-layers num-layers-per-virtual-pipeline-stage num-query-groups
    num-virtual-stages-per-pipeline-rank offload-modules optimizer optimizer-cpu-offload
    optimizer-offload-fraction overlap-grad-reduce overlap-moe-expert-parallel-comm overlap-p2p-comm
    overlap-p2p-communication overlap-param-gather packing padded-vocab-size padding-free
    pipeline-model-parallel-layout pipeline-model-parallel-size position-embedding-type q-lora-rank
    qk-head-dim qk-layernorm qk-pos-emb-head-dim quick-geglu rampup-batch-size recompute-activations
    recompute-granularity recompute-method recompute-modules recompute-num-layers
    reuse-grad-buf-for-mxfp8-param-ag rope-freq rope-fusion rope-scaling seq-length
    sequence-parallel softmax-type squared-relu step-batch-size-schedule swiglu
    tensor-model-parallel-size tensor-parallel-num-weight-shards torch-dtype tp-comm-overlap
    transformer-impl tuner-type untie-embeddings-and-output-weights use-custom-fsdp
    use-distributed-optimizer use-flash-attn use-megatron-fsdp use-precision-aware-optimizer
    use-rope-scaling use-tp-pp-dp-mapping v-head-dim virtual-pipeline-model-parallel-size vocab-size
    window-attn-skip-freq window-size yarn-beta-fast yarn-beta-slow
    yarn-correction-range-round-to-int yarn-original-max-position-embeddings
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
    [[ "${given}" == --* ]] || continue
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
run_args=(--logging_steps "${LOG_INTERVAL:-1}" --save_steps "${SAVE_INTERVAL:-500}"
    --ddp_timeout "${TIMEOUT_S:-1800}" --clip_grad "${CLIP_GRAD:-1.0}")
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${SWIFT_DIR}/cli/_megatron/${SWIFT_COMMAND}.py" "${PLAN_ARGS[@]}" "${run_args[@]}" "$@"
