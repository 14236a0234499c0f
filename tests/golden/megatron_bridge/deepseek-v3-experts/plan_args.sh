# Megatron-Bridge (NeMo), plan 0123456789ab (rank 1), by Meshwright
# Model DeepSeek-V3, 4096 tokens a sequence
# World size 512: tp 1 * cp 1 * pp 8 * dp 64
# Micro-batches: 64 of 1
# Nodes: 64 of 8 × H100 SXM 80 GB
# Layers of each chunk: 3 4 4 4 4 4 4 4 4 4 4 4 4 4 4 2
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: attention backend, tokenizer, data and learning rate come from the recipe
# Warning: latent attention comes from the recipe's model provider. Only its sizes are overridden

PLAN_ARGS=(
    # Parallel sizes; data parallel size and micro-batches follow from them
    model.tensor_model_parallel_size=1
    model.sequence_parallel=false
    model.pipeline_model_parallel_size=8
    model.context_parallel_size=1
    model.expert_model_parallel_size=64
    model.expert_tensor_parallel_size=1
    comm_overlap=null
    model.tp_comm_overlap=false
    # Pipeline split
    model.virtual_pipeline_model_parallel_size=2
    'model.pipeline_model_parallel_layout=Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*2mL'
    model.microbatch_group_size_per_vp_stage=8
    model.overlap_p2p_comm=true
    # Batch and sequence
    train.micro_batch_size=1
    train.global_batch_size=4096
    model.seq_length=4096
    dataset.sequence_length=4096
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
    checkpoint.ckpt_format=torch_dist
    checkpoint.dist_ckpt_optim_fully_reshardable=true
    # Activation recomputation
    model.recompute_granularity=full
    model.recompute_method=uniform
    model.recompute_num_layers=1
    # Experts over the network
    model.overlap_moe_expert_parallel_comm=false
    model.moe_permute_fusion=true
    model.moe_token_dispatcher_type=alltoall
    model.moe_grouped_gemm=true
    model.moe_router_dtype=fp32
    # Precision
    mixed_precision=null
    'mixed_precision={_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,bf16:true,params_dtype:{_target_:torch.bfloat16,_call_:false},pipeline_dtype:{_target_:torch.bfloat16,_call_:false},grad_reduce_in_fp32:false}'
    # Kernels
    model.cross_entropy_loss_fusion=true
    model.attention_dropout=0.0
    model.hidden_dropout=0.0
    # Model
    model.num_layers=61
    model.hidden_size=7168
    model.ffn_hidden_size=18432
    model.num_attention_heads=128
    model.num_query_groups=128
    model.kv_channels=192
    model.vocab_size=129280
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
    model.layernorm_zero_centered_gamma=false
    model.qk_layernorm=true
    model.rotary_percent=1.0
    model.rope_type=yarn
    model.rotary_scaling_factor=40.0
    model.mscale=1.0
    model.mscale_all_dim=1.0
    model.mtp_num_layers=1
    model.num_moe_experts=256
    model.moe_router_topk=8
    model.moe_ffn_hidden_size=2048
    'model.moe_layer_freq='"'"'([0]*3+[1]*58)'"'"''
    model.moe_shared_expert_intermediate_size=2048
    model.moe_shared_expert_gate=false
    model.moe_router_score_function=sigmoid
    model.moe_router_pre_softmax=false
    model.moe_router_enable_expert_bias=true
    model.moe_router_num_groups=8
    model.moe_router_group_topk=4
    model.moe_router_topk_scaling_factor=2.5
    model.moe_router_load_balancing_type=seq_aux_loss
    model.moe_aux_loss_coeff=0.0001
    model.multi_latent_attention=true
    model.q_lora_rank=1536
    model.kv_lora_rank=512
    model.qk_head_dim=128
    model.qk_pos_emb_head_dim=64
    model.v_head_dim=128
)
