#!/usr/bin/env bash
# Axolotl 0.19.0, plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 70B, 8192 tokens a sequence
# Model shape: {"name": "llama-3.1-70b", "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64, "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "rotary_base": 500000, "rotary_scaling": {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, "norm_epsilon": 1e-05}
# World size 64: tp 1 * cp 1 * pp 1 * dp 64
# Micro-batches: 2 of 1
# Nodes: 8 of 8 × H100 SXM 80 GB
# Layers of each chunk: 80
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: load the model that was planned, of 70553706496 parameters: 80 layers, hidden 8192, MLP 28672, 64 heads, 8 key/value heads, vocabulary 128256; llama3 rotary scaling
# Warning: Axolotl keeps weights and both moments in bf16 (its FSDP2 casts nothing up), as was priced
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
: ${RUN_CONFIG:?"set it to a YAML of your own: base_model, datasets, learning_rate, num_epochs, output_dir, …"}

# Further arguments may follow on the command line, but none may silently replace what the plan decided: not
# by its name or the beginning of it, not by its opposite, and not where the plan counts on a default.
readonly PLAN_DECIDES=(
    adapter attn-implementation batch-size bf16 bfloat16 context-parallel-size deepspeed
    dp-replicate-size dp-shard-size expert-parallel-size flash-attention float16 fp16 fp8 fsdp
    fsdp-config fsdp-version gemma4-hybrid-attn-impl gradient-accumulation-steps
    gradient-checkpointing load-in-4bit load-in-8bit lora-modules-to-save lora-r lora-target-linear
    lora-target-modules micro-batch-size optimizer pad-to-sequence-len precompute-ref-log-probs qat
    reward-model rl rl-adapter-ref-model sample-packing sdp-attention sequence-len
    sequence-parallel-degree tensor-parallel-size tiled-mlp tiled-mlp-num-shards torch-compile
    unfrozen-parameters use-onebitllms
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

# The allocator's blocks grow in place, so that less memory is lost between them.
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-${PYTORCH_ALLOC_CONF:-expandable_segments:True}}"
for key in \
    attn_implementation bf16 context_parallel_size dp_replicate_size dp_shard_size fp16 fsdp_config \
    fsdp_version gradient_accumulation_steps gradient_checkpointing micro_batch_size optimizer \
    pad_to_sequence_len sample_packing sequence_len tensor_parallel_size adapter batch_size bfloat16 \
    deepspeed expert_parallel_size flash_attention float16 fp8 fsdp load_in_4bit load_in_8bit lora_r \
    lora_target_linear lora_target_modules lora_modules_to_save sdp_attention sequence_parallel_degree \
    torch_compile rl rl_adapter_ref_model reward_model precompute_ref_log_probs qat use_onebitllms \
    gemma4_hybrid_attn_impl unfrozen_parameters tiled_mlp tiled_mlp_num_shards; do
    if grep -q "^${key}:" "${RUN_CONFIG}"; then
        echo "error: ${key} in ${RUN_CONFIG} belongs to the plan; change the plan instead" >&2
        exit 2
    fi
done
joined="$(mktemp -d)/run"
cat "${here}/axolotl.yaml" "${RUN_CONFIG}" >"${joined}"

exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    -m axolotl.cli.train "${joined}" "$@"
