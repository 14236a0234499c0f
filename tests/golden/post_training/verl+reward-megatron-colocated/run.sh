#!/usr/bin/env bash
# Plan 0123456789ab of Meshwright for verl 0.7.0: colocated.
# Predicted: 100 s a step, 80 to 125.
# Run it in verl's checkout, on the head node of a Ray cluster of 2 nodes.
set -euo pipefail
: "${TRAIN_FILES:?the training data, a parquet file}" "${VAL_FILES:?the validation data}"
exec python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer \
    algorithm.adv_estimator=gae \
    data.max_prompt_length=512 \
    data.max_response_length=7680 \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.strategy=megatron \
    critic.strategy=megatron \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.sequence_parallel=True \
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1 \
    actor_rollout_ref.actor.megatron.context_parallel_size=1 \
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=1 \
    actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1 \
    actor_rollout_ref.actor.megatron.param_offload=True \
    actor_rollout_ref.actor.megatron.grad_offload=True \
    actor_rollout_ref.actor.megatron.optimizer_offload=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.mode=async \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.max_num_seqs=256 \
    actor_rollout_ref.rollout.max_model_len=8192 \
    critic.model.path=Qwen/Qwen3-8B \
    critic.ppo_mini_batch_size=64 \
    critic.use_dynamic_bsz=True \
    critic.ppo_max_token_len_per_gpu=8192 \
    critic.megatron.tensor_model_parallel_size=2 \
    critic.megatron.sequence_parallel=True \
    critic.megatron.pipeline_model_parallel_size=1 \
    critic.megatron.context_parallel_size=1 \
    critic.megatron.expert_model_parallel_size=1 \
    critic.megatron.expert_tensor_parallel_size=1 \
    critic.megatron.param_offload=True \
    critic.megatron.grad_offload=True \
    critic.megatron.optimizer_offload=True \
    reward_model.enable=True \
    reward_model.model.path=Qwen/Qwen3-8B \
    reward_model.rollout.name=vllm \
    reward_model.rollout.tensor_model_parallel_size=1 \
    reward_model.rollout.gpu_memory_utilization=0.85 \
    reward_model.rollout.prompt_length=512 \
    reward_model.rollout.response_length=7680 \
    reward_model.rollout.max_model_len=8192 \
    reward_model.enable_resource_pool=True \
    reward_model.nnodes=1 \
    reward_model.n_gpus_per_node=8 \
    data.train_batch_size=128 \
    trainer.nnodes=1 \
    trainer.n_gpus_per_node=8 \
    data.train_files="${TRAIN_FILES}" data.val_files="${VAL_FILES}" "$@"
