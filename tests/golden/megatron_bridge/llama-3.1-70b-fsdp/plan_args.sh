# Megatron-Bridge (NeMo), plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 70B, 8192 tokens a sequence
# World size 64: tp 1 * cp 1 * pp 1 * dp 64
# Micro-batches: 2 of 1
# Nodes: 8 of 8 × H100 SXM 80 GB
# Layers of each chunk: 80
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Needs: Transformer Engine 2.10 or newer
# Warning: attention backend, tokenizer, data and learning rate come from the recipe

PLAN_ARGS=(
    # Parallel sizes; data parallel size and micro-batches follow from them
    model.tensor_model_parallel_size=1
    model.sequence_parallel=false
    model.pipeline_model_parallel_size=1
    model.context_parallel_size=1
    comm_overlap=null
    model.tp_comm_overlap=false
    # Pipeline split
    model.virtual_pipeline_model_parallel_size=null
    # Batch and sequence
    train.micro_batch_size=1
    train.global_batch_size=128
    model.seq_length=8192
    dataset.sequence_length=8192
    # Data parallelism
    ddp.use_distributed_optimizer=true
    ddp.overlap_grad_reduce=true
    ddp.overlap_param_gather=true
    ddp.grad_reduce_in_fp32=false
    optimizer.use_distributed_optimizer=true
    optimizer.optimizer=adam
    ddp.num_distributed_optimizer_instances=1
    optimizer.use_precision_aware_optimizer=false
    optimizer.exp_avg_dtype=torch.float32
    optimizer.exp_avg_sq_dtype=torch.float32
    ddp.use_megatron_fsdp=true
    dist.use_megatron_fsdp=true
    ddp.data_parallel_sharding_strategy=optim_grads_params
    checkpoint.ckpt_format=fsdp_dtensor
    # Activation recomputation
    model.recompute_granularity=full
    model.recompute_method=uniform
    model.recompute_num_layers=1
    # Precision
    mixed_precision=null
    'mixed_precision={_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,bf16:true,params_dtype:{_target_:torch.bfloat16,_call_:false},pipeline_dtype:{_target_:torch.bfloat16,_call_:false},grad_reduce_in_fp32:false}'
    # Kernels
    model.cross_entropy_loss_fusion=true
    model.attention_dropout=0.0
    model.hidden_dropout=0.0
    # Model
    model.num_layers=80
    model.hidden_size=8192
    model.ffn_hidden_size=28672
    model.num_attention_heads=64
    model.num_query_groups=8
    model.kv_channels=128
    model.vocab_size=128256
    model.should_pad_vocab=true
    model.make_vocab_size_divisible_by=128
    model.gated_linear_unit=true
    model.add_bias_linear=false
    model.add_qkv_bias=false
    model.share_embeddings_and_output_weights=false
    model.normalization=RMSNorm
    model.position_embedding_type=rope
    model.softmax_type=vanilla
    model.activation_func_clamp_value=null
    model.glu_linear_offset=0.0
    model.layernorm_epsilon=1e-05
    model.layernorm_zero_centered_gamma=false
    model.qk_layernorm=false
    model.rotary_base=500000
    model.rotary_percent=1.0
    model.rope_scaling=true
    model.rope_scaling_factor=8.0
    model.num_moe_experts=null
)
