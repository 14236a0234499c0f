#!/usr/bin/env bash
# Plan 0123456789ab of Meshwright for TRL 1.16.0: apart, in turn.
# Predicted: 100 s a step, 80 to 125.
# Run it on the node that generates, before training.
set -euo pipefail
: "${MODEL:?the model: a folder or a name of the hub}"
export VLLM_SERVER_DEV_MODE=1 # for new weights
exec vllm serve "${MODEL}" \
    --host 0.0.0.0 --port "${PORT:-8000}" \
    --tensor-parallel-size 2 \
    --data-parallel-size 4 \
    --gpu-memory-utilization 0.6 \
    --max-model-len 8192 \
    --max-num-seqs 256 \
    --dtype bfloat16 \
    --weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1 "$@"
