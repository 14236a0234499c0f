# ms-swift 4.6.0, plan 0123456789ab (rank 1), by Meshwright
# Model Mixtral 8x7B, 4096 tokens a sequence
# Model shape: {"name": "mixtral-8x7b", "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "num_kv_heads": 8, "head_dim": 128, "vocab_size": 32000, "moe": {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 14336}}
# World size 32: tp 2 * cp 1 * pp 2 * dp 8
# Micro-batches: 16 of 2
# Nodes: 4 of 8 × H100 SXM 80 GB
# Layers of each chunk: 16 16
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: load the model that was planned, of 46702792704 parameters: 32 layers, hidden 4096, MLP 14336, 32 heads, 8 key/value heads, vocabulary 32000, 8 experts; experts

PLAN_ARGS=(
    # Parallel sizes; data parallel size and micro-batches follow from them
    --tensor_model_parallel_size 2
    --sequence_parallel true
    --pipeline_model_parallel_size 2
    --context_parallel_size 1
    --expert_model_parallel_size 8
    --expert_tensor_parallel_size 1
    --tp_comm_overlap true
    # Batch and sequence
    --micro_batch_size 2
    --global_batch_size 256
    --max_length 4096
    --packing true
    # Data parallelism
    --use_distributed_optimizer true
    --overlap_grad_reduce true
    --overlap_param_gather true
    --dist_ckpt_optim_fully_reshardable true
    # Activation recomputation
    --recompute_granularity none
    # Precision
    --torch_dtype bfloat16
    --bf16 true
    --fp16 false
    --accumulate_allreduce_grads_in_fp32 true
    --optimizer adam
    # Kernels
    --attention_backend fused
    --cross_entropy_loss_fusion false
    --masked_softmax_fusion true
    --bias_dropout_fusion true
    --bias_activation_fusion true
    --gradient_accumulation_fusion true
    --apply_rope_fusion true
    # Experts over the network, and what goes to Megatron-Core unchanged
    --moe_token_dispatcher_type alltoall
    --moe_grouped_gemm true
    --moe_router_dtype fp32
)
