set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${here}/@ARGUMENTS@"  # MEGATRON_ARGS: every value that the plan decided

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=@NODES@ GPUS_PER_NODE=@GPUS@
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-@MASTER@}"
MASTER_PORT="${MASTER_PORT:-29500}"
: ${MEGATRON_LM_DIR:?"set it to a checkout of Megatron-LM @VERSIONS@"}
: ${MASTER_ADDR:?"set it to the host of node rank 0"}
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

@MOCK@
else
    : ${DATA_PATH:?"set it to @DATA@@OR_MOCK@"}
    : ${TOKENIZER_TYPE:?"set it, @TOKENIZER@@OR_MOCK@"}
    : ${TOKENIZER_MODEL:?"set it to the file, folder or name of the tokenizer@OR_MOCK@"}
    : ${TRAIN_ITERS:?"set it to the number of steps@OR_MOCK@"}
    : ${LR:?"set it to the learning rate@OR_MOCK@"}
    run_args=(--data-path "${DATA_PATH}" --tokenizer-type "${TOKENIZER_TYPE}"
        --tokenizer-model "${TOKENIZER_MODEL}"
        --padded-vocab-size @ROWS@  # the plan's, however few tokens the tokenizer has
        --train-iters "${TRAIN_ITERS}" --lr "${LR}"
        --log-interval "${LOG_INTERVAL:-10}" --log-throughput
        --eval-interval "${EVAL_INTERVAL:-1000}"  # 0.17 and later do not start without one
        # A run that is started again goes on from the last checkpoint.
        --save "${CHECKPOINTS:-${here}/checkpoints}" --load "${CHECKPOINTS:-${here}/checkpoints}"
        --save-interval "${SAVE_INTERVAL:-1000}"@RESHARDS@)
fi
# A rank that waits this long for the others has lost one; gradients are clipped as GPT-3's were.
run_args+=(--distributed-timeout-minutes "${TIMEOUT_MINUTES:-30}" --clip-grad "${CLIP_GRAD:-1.0}")

@PACKAGES@@GUARD@

@ENVIRONMENT@
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${MEGATRON_LM_DIR}/@PROGRAM@" "${MEGATRON_ARGS[@]}" "${run_args[@]}" "$@"
