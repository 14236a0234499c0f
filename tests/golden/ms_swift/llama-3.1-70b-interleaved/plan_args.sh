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

PLAN_ARGS=(
    # Parallel sizes; data parallel size and micro-batches follow from them
    --tensor_model_parallel_size 8
    --sequence_parallel true
    --pipeline_model_parallel_size 4
    --context_parallel_size 1
    --microbatch_group_size_per_vp_stage 4
    --overlap_p2p_comm true
    --tp_comm_overlap true
    # Pipeline split
    --virtual_pipeline_model_parallel_size 5
    # Batch and sequence
    --micro_batch_size 1
    --global_batch_size 512
    --max_length 8192
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
)
