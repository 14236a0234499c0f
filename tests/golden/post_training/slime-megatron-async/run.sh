#!/usr/bin/env bash
# Plan 0123456789ab of Meshwright for slime 0.3.1: apart, at most 1 step off policy.
# Predicted: 100 s a step, 80 to 125.
# Run it in slime's checkout, on the head node of a Ray cluster of 4 nodes.
set -euo pipefail
: "${HF_CHECKPOINT:?the model's folder}" "${REF_LOAD:?the same, by tools/convert_hf_to_torch_dist.py}"
: "${PROMPT_DATA:?the training data}" "${NUM_ROLLOUT:?the number of steps}"
exec python3 train_async.py \
    --actor-num-nodes 2 \
    --actor-num-gpus-per-node 8 \
    --num-gpus-per-node 8 \
    --rollout-num-gpus 16 \
    --rollout-num-gpus-per-engine 2 \
    --sglang-mem-fraction-static 0.6 \
    --sglang-max-running-requests 256 \
    --rollout-batch-size 128 \
    --n-samples-per-prompt 16 \
    --num-steps-per-rollout 2 \
    --rollout-max-prompt-len 512 \
    --rollout-max-response-len 7680 \
    --rollout-max-context-len 8192 \
    --use-dynamic-batch-size \
    --max-tokens-per-gpu 8192 \
    --advantage-estimator grpo \
    --use-kl-loss \
    --tensor-model-parallel-size 2 \
    --sequence-parallel \
    --tp-comm-overlap \
    --pipeline-model-parallel-size 4 \
    --context-parallel-size 1 \
    --num-layers 36 \
    --hidden-size 4096 \
    --ffn-hidden-size 12288 \
    --num-attention-heads 32 \
    --kv-channels 128 \
    --group-query-attention \
    --num-query-groups 8 \
    --swiglu \
    --disable-bias-linear \
    --normalization RMSNorm \
    --norm-epsilon 1e-06 \
    --qk-layernorm \
    --untie-embeddings-and-output-weights \
    --position-embedding-type rope \
    --rotary-base 1000000 \
    --vocab-size 151936 \
    --make-vocab-size-divisible-by 128 \
    --hf-checkpoint "${HF_CHECKPOINT}" --ref-load "${REF_LOAD}" \
    --prompt-data "${PROMPT_DATA}" --num-rollout "${NUM_ROLLOUT}" "$@"
