#!/usr/bin/env bash
# Megatron-LM 0.16 to 0.19, plan 0123456789ab (rank 1), by Meshwright
# Model Mixtral 8x7B, 4096 tokens a sequence
# World size 32: tp 2 * cp 1 * pp 2 * dp 8
# Micro-batches: 16 of 2
# Nodes: 4 of 8 × H100 SXM 80 GB
# Layers of each chunk: 16 16
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: the model does not state its rotary base: add --rotary-base if it is not 10000
# Warning: nothing balances the experts: add --moe-aux-loss-coeff, unless you balance them otherwise
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${here}/megatron_args.sh"  # MEGATRON_ARGS: every value that the plan decided

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=4 GPUS_PER_NODE=8
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-}"
MASTER_PORT="${MASTER_PORT:-29500}"
: ${MEGATRON_LM_DIR:?"set it to a checkout of Megatron-LM 0.16 to 0.19"}
: ${MASTER_ADDR:?"set it to the host of node rank 0"}
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# What the plan does not decide. MOCK_DATA=1 is a dry start: synthetic tokens, ten steps, no tokenizer, no
# checkpoint. It logs the time of every step for `meshwright import`; Megatron-LM's interval is 100 steps.
if [[ "${MOCK_DATA:-0}" == 1 ]]; then
    run_args=(--mock-data --tokenizer-type NullTokenizer --train-iters "${TRAIN_ITERS:-10}"
        --lr "${LR:-1e-4}" --eval-iters 0 --eval-interval 1000
        --log-interval "${LOG_INTERVAL:-1}" --log-throughput)
else
    : ${DATA_PATH:?"set it to the prefix of an indexed data set, or set MOCK_DATA=1"}
    : ${TOKENIZER_TYPE:?"set it, for instance HuggingFaceTokenizer, or set MOCK_DATA=1"}
    : ${TOKENIZER_MODEL:?"set it to the file, folder or name of the tokenizer, or set MOCK_DATA=1"}
    : ${TRAIN_ITERS:?"set it to the number of steps, or set MOCK_DATA=1"}
    : ${LR:?"set it to the learning rate, or set MOCK_DATA=1"}
    run_args=(--data-path "${DATA_PATH}" --tokenizer-type "${TOKENIZER_TYPE}"
        --tokenizer-model "${TOKENIZER_MODEL}"
        --padded-vocab-size 32000  # the plan's, however few tokens the tokenizer has
        --train-iters "${TRAIN_ITERS}" --lr "${LR}"
        --log-interval "${LOG_INTERVAL:-10}" --log-throughput
        --eval-interval "${EVAL_INTERVAL:-1000}"  # 0.17 and later do not start without one
        # A run that is started again goes on from the last checkpoint.
        --save "${CHECKPOINTS:-${here}/checkpoints}" --load "${CHECKPOINTS:-${here}/checkpoints}"
        --save-interval "${SAVE_INTERVAL:-1000}"
        # Optimizer states that another tp or pp can load, not other replicas alone.
        --ckpt-format torch_dist --dist-ckpt-optim-fully-reshardable)
fi
# A rank that waits this long for the others has lost one; gradients are clipped as GPT-3's were.
run_args+=(--distributed-timeout-minutes "${TIMEOUT_MINUTES:-30}" --clip-grad "${CLIP_GRAD:-1.0}")

# Further arguments may follow on the command line, but none may silently replace what the plan decided: not
# by its name or the beginning of it, not by its opposite, and not where the plan counts on a default.
readonly PLAN_DECIDES=(
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
    accumulate-allreduce-grads-in-fp32 activation-func-clamp-value add-qkv-bias apply-layernorm-1p
    attention-backend attention-dropout attention-output-gate batch-invariant-mode bf16
    bias-dropout-fusion bias-gelu-fusion bias-linear bias-swiglu-fusion
    clone-scatter-output-in-embedding context-parallel-size cp-comm-type cpu-offloading-num-layers
    create-all-gather-group cross-entropy-fusion-impl cross-entropy-loss-fusion cuda-graph-impl
    cuda-graph-modules cuda-graph-scope ddp-bucket-size ddp-num-buckets
    ddp-param-name-patterns-for-fp32-local-accumulation ddp-reduce-scatter-with-fp32-accumulation
    decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers decoder-num-layers
    decoder-seq-length defer-embedding-wgrad-compute delay-wgrad-compute deterministic-mode
    enable-cuda-graph encoder-num-layers ep-overlap-early-attn-memory-release error-injection-rate
    exp-avg-dtype exp-avg-sq-dtype experimental-attention-variant expert-model-parallel-size
    expert-tensor-parallel-num-weight-shards expert-tensor-parallel-size external-cuda-graph
    extra-vocab-size fake-process-group ffn-hidden-size fine-grained-activation-offloading
    first-last-layers-bf16 fp16 fp32-residual-connection fp4-format fp4-param-gather
    fp4-quantizer-factory fp4-recipe fp8-dot-product-attention fp8-format fp8-output-proj
    fp8-param-gather fp8-quantizer-factory fp8-recipe fp8-wgrad freeze-all-layers global-batch-size
    glu-linear-offset grad-reduce-in-bf16 group-query-attention
    heterogeneous-layers-config-encoded-json heterogeneous-layers-config-path hidden-dropout
    hidden-size hierarchical-context-parallel-sizes hybrid-context-parallel hybrid-layer-pattern
    hybrid-override-pattern img-h img-w inference-shards is-hybrid-model jit-fuser
    kitchen-config-file kv-channels kv-lora-rank logits-load-dir logits-save-dir main-grads-dtype
    main-params-dtype make-vocab-size-divisible-by max-padding-length max-position-embeddings
    max-seqlen-per-dp-cp-rank micro-batch-size microbatch-group-size-per-virtual-pipeline-stage
    mlp-chunks-for-training moe-enable-deepep moe-enable-routing-replay moe-expert-capacity-factor
    moe-expert-rank-capacity-factor moe-ffn-hidden-size moe-flex-dispatcher-backend moe-grouped-gemm
    moe-latent-size moe-layer-freq moe-layer-recompute moe-pad-expert-input-to-capacity
    moe-paged-stash moe-permute-fusion moe-router-dtype moe-router-enable-expert-bias
    moe-router-force-biased moe-router-force-load-balancing moe-router-group-topk
    moe-router-num-groups moe-router-pre-softmax moe-router-score-function moe-router-topk
    moe-router-topk-scaling-factor moe-routing-trace-path moe-shared-expert-gate
    moe-shared-expert-intermediate-size moe-shared-expert-overlap moe-token-dispatcher-type
    moe-use-upcycling mrope-section mscale mscale-all-dim mtp-detach-heads
    mtp-hybrid-override-pattern mtp-num-layers mtp-use-repeated-layer multi-latent-attention
    muon-fp32-matmul-prec muon-num-ns-steps muon-scalar-optimizer muon-tp-mode normalization
    num-attention-heads num-channels num-distributed-optimizer-instances num-experts num-layers
    num-layers-per-virtual-pipeline-stage num-query-groups num-virtual-stages-per-pipeline-rank
    offload-modules offload-optimizer-states optimizer optimizer-cpu-offload
    optimizer-offload-fraction overlap-dispatch-backward-with-experts-wgrad overlap-grad-reduce
    overlap-moe-expert-parallel-comm overlap-p2p-communication
    overlap-p2p-communication-warmup-flush overlap-param-gather padded-vocab-size patch-dim
    perform-rl-step pipeline-model-parallel-layout pipeline-model-parallel-size
    position-embedding-type q-lora-rank qk-clip qk-head-dim qk-l2-norm qk-layernorm
    qk-pos-emb-head-dim quick-geglu rampup-batch-size recompute-activations recompute-granularity
    recompute-method recompute-modules recompute-num-layers reuse-grad-buf-for-mxfp8-param-ag
    rope-freq rope-fusion seq-length sequence-parallel skip-train softmax-type squared-relu
    step-batch-size-schedule swiglu swin-backbone-type symmetric-ar-type te-precision-config-file
    tensor-model-parallel-size tensor-parallel-num-weight-shards test-mode tp-comm-overlap
    transformer-impl untie-embeddings-and-output-weights use-checkpoint-args use-custom-fsdp
    use-distributed-optimizer use-flash-attn use-grouped-gemm-for-dense-mlp
    use-grouped-gemm-for-shared-expert use-kitchen-attention use-layer-wise-param-layout
    use-megatron-fsdp use-mp-args-from-checkpoint-args use-precision-aware-optimizer
    use-ring-exchange-p2p use-rope-scaling use-sharp use-torch-fsdp2 use-tp-pp-dp-mapping
    use-transformer-engine-op-fuser v-head-dim vision-backbone-type vision-pretraining
    vision-pretraining-type vocab-extra-ids vocab-size wgrad-deferral-limit window-attn-skip-freq
    window-size yaml-cfg yarn-beta-fast yarn-beta-slow yarn-correction-range-round-to-int
    yarn-original-max-position-embeddings
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
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${MEGATRON_LM_DIR}/pretrain_gpt.py" "${MEGATRON_ARGS[@]}" "${run_args[@]}" "$@"
