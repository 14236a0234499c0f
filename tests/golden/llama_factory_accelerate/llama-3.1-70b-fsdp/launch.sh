#!/usr/bin/env bash
# LLaMA-Factory 0.9.5 on accelerate 1.11.0, plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 70B, 8192 tokens a sequence
# Model shape: {"name": "llama-3.1-70b", "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64, "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "rotary_base": 500000, "rotary_scaling": {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, "norm_epsilon": 1e-05}
# World size 64: tp 1 * cp 1 * pp 1 * dp 64
# Micro-batches: 2 of 1
# Nodes: 8 of 8 × H100 SXM 80 GB
# Layers of each chunk: 80
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Needs: flash-attn
# Warning: load the model that was planned, of 70553706496 parameters: 80 layers, hidden 8192, MLP 28672, 64 heads, 8 key/value heads, vocabulary 128256; llama3 rotary scaling
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

# What the plan does not decide.
: ${LLAMA_FACTORY_DIR:?"set it to a checkout of LLaMA-Factory; model_name_or_path=… dataset=… template=… output_dir=… follow"}

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
needs_package 'flash-attn (the prediction assumes FlashAttention'"'"'s kernels)' \
    'from importlib.metadata import version; version("flash_attn")' \
    flash_attn 'pip install flash-attn --no-build-isolation, or plan with workload.framework_options: {attention_kernel: cudnn}'

# Further arguments may follow on the command line, but none may silently replace what the plan decided: not
# by its name or the beginning of it, not by its opposite, and not where the plan counts on a default.
readonly PLAN_DECIDES=(
    additional-target bf16 cutoff-len deepspeed do-train enable-liger-kernel finetuning-type
    flash-attn fp16 fp8 freeze-extra-modules freeze-trainable-layers fsdp fsdp-config
    gradient-accumulation-steps gradient-checkpointing load-in-4bit load-in-8bit lora-rank
    lora-target loraplus-lr-ratio neat-packing oft-block-size optim packing
    per-device-train-batch-size pref-loss pure-bf16 quantization-bit quantization-method ref-model
    stage torch-compile upcast-layernorm use-adam-mini use-apollo use-asft-loss use-badam use-dora
    use-galore use-llama-pro use-muon use-unsloth
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

# The allocator's blocks grow in place, so that less memory is lost between them.
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-${PYTORCH_ALLOC_CONF:-expandable_segments:True}}"
exec accelerate launch --config_file "${here}/accelerate.yaml" \
    --machine_rank "${NODE_RANK}" --main_process_ip "${MASTER_ADDR}" \
    --main_process_port "${MASTER_PORT}" \
    --gradient_accumulation_steps 2 \
    "${LLAMA_FACTORY_DIR}/src/train.py" "${here}/llama_factory_train.yaml" "$@"
