#!/usr/bin/env bash
# Plan 0123456789ab of Meshwright for slime 0.2.4: apart, in turn.
# Predicted: 100 s a step, 80 to 125.
# Run it in slime's checkout, on the head node of a Ray cluster of 4 nodes.
set -euo pipefail
: "${HF_CHECKPOINT:?the model's folder}" "${REF_LOAD:?the same, by tools/convert_hf_to_torch_dist.py}"
: "${PROMPT_DATA:?the training data}" "${NUM_ROLLOUT:?the number of steps}"
exec python3 train.py \
    --actor-num-nodes 1 \
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
    --advantage-estimator ppo \
    --use-kl-loss \
    --critic-num-nodes 1 \
    --critic-num-gpus-per-node 8 \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 1 \
    --context-parallel-size 1 \
    --expert-model-parallel-size 8 \
    --expert-tensor-parallel-size 1 \
    --num-layers 27 \
    --hidden-size 2048 \
    --ffn-hidden-size 11264 \
    --num-attention-heads 16 \
    --kv-channels 192 \
    --swiglu \
    --disable-bias-linear \
    --normalization RMSNorm \
    --norm-epsilon 1e-05 \
    --qk-layernorm \
    --untie-embeddings-and-output-weights \
    --position-embedding-type rope \
    --rotary-base 50000 \
    --rope-type rope \
    --no-rope-fusion \
    --vocab-size 163840 \
    --make-vocab-size-divisible-by 128 \
    --num-experts 64 \
    --moe-router-topk 6 \
    --moe-ffn-hidden-size 1408 \
    --moe-layer-freq '([0]*1+[1]*26)' \
    --moe-shared-expert-intermediate-size 2816 \
    --moe-router-score-function sigmoid \
    --moe-router-enable-expert-bias \
    --moe-router-topk-scaling-factor 2.446 \
    --moe-router-load-balancing-type seq_aux_loss \
    --moe-aux-loss-coeff 0.001 \
    --moe-token-dispatcher-type alltoall \
    --moe-grouped-gemm \
    --moe-router-dtype fp32 \
    --multi-latent-attention \
    --kv-lora-rank 512 \
    --qk-head-dim 128 \
    --qk-pos-emb-head-dim 64 \
    --v-head-dim 128 \
    --hf-checkpoint "${HF_CHECKPOINT}" --ref-load "${REF_LOAD}" \
    --prompt-data "${PROMPT_DATA}" --num-rollout "${NUM_ROLLOUT}" "$@"
