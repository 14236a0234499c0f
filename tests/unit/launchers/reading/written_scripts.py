"""A small script for each launcher, of which no value is the launcher's default."""

# ruff: noqa: E501 - one command of a launcher each

from __future__ import annotations

DEEPSPEED = (
    '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, '
    '"train_micro_batch_size_per_gpu": "auto"}'
)
ACCELERATE = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\n"
    "num_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
)
TRAINER = (
    "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 3 --gradient_accumulation_steps 5 "
    "--max_length 4096 --bf16 true --gradient_checkpointing true --optim adamw_bnb_8bit "
    "--learning_rate 1e-5 --output_dir out --logging_steps 7 --seed 3 "
    "--attn_implementation flash_attention_2 --use_liger_kernel true --torch_dtype bfloat16"
)
FACTORY = (
    "stage: sft\ndo_train: true\nmodel_name_or_path: Qwen/Qwen2.5-7B\nfinetuning_type: lora\nlora_rank: 9\n"
    "lora_target: all\ntemplate: qwen\ndataset: a\ncutoff_len: 4096\nper_device_train_batch_size: 2\n"
    "gradient_accumulation_steps: 4\nbf16: true\noutput_dir: o\n"
)
TITAN = (
    '[job]\ndump_folder="o"\n[model]\nname="llama3"\nflavor="8B"\n[training]\nlocal_batch_size=1\n'
    'seq_len=8192\n[parallelism]\ntensor_parallel_degree=1\n[activation_checkpoint]\nmode="none"\n'
)
NANOTRON = (
    "checkpoints:\n  checkpoint_interval: 1000\n  checkpoints_path: out\ngeneral:\n  project: p\n  run: r\n"
    "  seed: 42\nmodel:\n  ddp_bucket_cap_mb: 30\n  dtype: bfloat16\n  make_vocab_size_divisible_by: 64\n"
    "  model_config:\n    attention_bias: true\n    hidden_act: silu\n    hidden_size: 1024\n"
    "    intermediate_size: 4096\n    is_qwen2_config: true\n    max_position_embeddings: 4096\n"
    "    num_attention_heads: 16\n    num_hidden_layers: 8\n    num_key_value_heads: 4\n"
    "    rms_norm_eps: 1.0e-05\n    rope_theta: 500000.0\n    tie_word_embeddings: true\n"
    "    vocab_size: 32000\noptimizer:\n  accumulate_grad_in_fp32: true\n  clip_grad: 1.0\n"
    "  learning_rate_scheduler:\n    learning_rate: 0.0003\n    lr_decay_style: linear\n"
    "  optimizer_factory:\n    adam_beta1: 0.8\n    name: adamW\n  weight_decay: 0.1\n  zero_stage: 1\n"
    "parallelism:\n  context_parallel_size: 1\n  dp: 4\n  expert_parallel_size: 1\n  pp: 2\n"
    "  pp_engine: 1f1b\n  recompute_layer: true\n  tp: 2\n  tp_linear_async_communication: true\n"
    "  tp_mode: REDUCE_SCATTER\ntokens:\n  batch_accumulation_per_replica: 16\n  micro_batch_size: 2\n"
    "  sequence_length: 4096\n  train_steps: 10\n"
)
# By launcher: the script, and the files next to it.
SCRIPTS: dict[str, tuple[str, dict[str, str]]] = {
    "megatron-lm": (
        (
            "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
            "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 "
            "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 --global-batch-size 64 "
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 2 "
            "--sequence-parallel --swiglu --untie-embeddings-and-output-weights --disable-bias-linear "
            "--normalization RMSNorm --position-embedding-type rope --rotary-base 500000 "
            "--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B --bf16 "
            "--use-distributed-optimizer --recompute-granularity full --recompute-method block "
            "--recompute-num-layers 3 --lr 1e-4 --train-iters 100 --attention-dropout 0.0 --hidden-dropout 0 "
            "--log-interval 3 --num-layers-per-virtual-pipeline-stage 4 --cross-entropy-fusion-impl te "
            "--attention-backend flash\n"
        ),
        {},
    ),
    "deepspeed": (
        (
            "deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
            "--num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 "
            "--global-batch-size 64 --tensor-model-parallel-size 2 --bf16 --deepspeed "
            "--deepspeed_config ds.json --vocab-file v.json --merge-file m.txt --no-pipeline-parallel\n"
        ),
        {"ds.json": '{"zero_optimization": {"stage": 1}}'},
    ),
    "megatron-bridge": (
        (
            "torchrun --nnodes 2 --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config "
            "--config-file o.yaml model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=2 "
            "train.micro_batch_size=2 model.seq_length=4096 dataset.sequence_length=4096 "
            "ddp.overlap_grad_reduce=false model.recompute_granularity=full model.recompute_method=uniform "
            "model.recompute_num_layers=1 train.train_iters=33 logger.log_interval=5 "
            "mixed_precision=bf16_with_fp8_current_scaling_mixed comm_overlap.tp_comm_overlap=true "
            "optimizer.lr=0.1\n"
        ),
        {"o.yaml": "train:\n  global_batch_size: 64\n"},
    ),
    "ms-swift": (
        (
            "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B --tensor_model_parallel_size 4 "
            "--pipeline_model_parallel_size 2 --micro_batch_size 2 --global_batch_size 32 --max_length 4096 "
            "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1 "
            "--tuner_type lora --lora_rank 16 --target_modules all-linear --torch_dtype bfloat16 --lr 1e-4 "
            "--sequence_parallel true --save out --max_epochs 3\n"
        ),
        {},
    ),
    "transformers": (
        (
            f"torchrun --nnodes 2 --nproc_per_node 4 train.py {TRAINER} --fsdp full_shard "
            "--fsdp_config f.json\n"
        ),
        {"f.json": '{"version": 2}'},
    ),
    "transformers, adapters": (
        (
            f"torchrun --nproc_per_node 4 train.py {TRAINER} --use_peft true --lora_r 64 "
            "--lora_target_modules q_proj,o_proj --lora_alpha 12 --load_in_4bit true "
            "--bnb_4bit_quant_type nf4\n"
        ),
        {},
    ),
    "transformers, deepspeed": (
        f"deepspeed --num_gpus 8 train.py {TRAINER} --deepspeed ds.json\n",
        {"ds.json": DEEPSPEED},
    ),
    "transformers, a file that the script writes": (
        (
            'cat > ds.json <<EOT\n{"zero_optimization": {"stage": 2},\n "bf16": {"enabled": true},\n'
            ' "train_micro_batch_size_per_gpu": 3,\n "gradient_accumulation_steps": 5}\nEOT\n'
            f"deepspeed --num_gpus 8 train.py {TRAINER} --deepspeed ds.json\n"
        ),
        {"ds.json": DEEPSPEED},
    ),
    "accelerate": (
        (
            f"accelerate launch --config_file acc.yaml --num_processes 4 --mixed_precision bf16 train.py "
            f"{TRAINER}\n"
        ),
        {"acc.yaml": ACCELERATE},
    ),
    "accelerate, options": (
        (
            "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 4 --num_machines 2 "
            "--main_process_ip 10.0.0.1 --mixed_precision bf16 --fsdp_reshard_after_forward false "
            f"train.py {TRAINER}\n"
        ),
        {},
    ),
    "accelerate, deepspeed": (
        (
            "accelerate launch --use_deepspeed --zero_stage 3 --num_processes 4 "
            f"--offload_optimizer_device cpu train.py {TRAINER}\n"
        ),
        {},
    ),
    "swift sft": (
        (
            "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B --tuner_type lora --lora_rank 16 "
            "--target_modules all-linear --torch_dtype bfloat16 --per_device_train_batch_size 2 "
            "--gradient_accumulation_steps 4 --max_length 4096 --deepspeed zero2 --learning_rate 1e-4 "
            "--dataset a --gradient_checkpointing false --attn_impl flash_attn --packing true\n"
        ),
        {},
    ),
    "llama-factory": (
        (
            "NPROC_PER_NODE=4 llamafactory-cli train --stage sft --do_train true --finetuning_type lora "
            "--model_name_or_path Qwen/Qwen2.5-7B --lora_rank 16 --lora_target q_proj,v_proj --template qwen "
            "--dataset a --cutoff_len 4096 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 "
            "--bf16 true --output_dir o --deepspeed ds.json --optim adamw_torch "
            "--disable_gradient_checkpointing true\n"
        ),
        {"ds.json": DEEPSPEED},
    ),
    "llama-factory, a file": (
        (
            "NPROC_PER_NODE=4 llamafactory-cli train a.yaml per_device_train_batch_size=3 cutoff_len=2048 "
            "learning_rate=1e-5 lora_rank=12\n"
        ),
        {"a.yaml": FACTORY},
    ),
    "llama-factory, a file that the script writes": (
        f"cat > a.yaml <<EOT\n{FACTORY}EOT\nNPROC_PER_NODE=4 llamafactory-cli train a.yaml\n",
        {},
    ),
    "trl": (
        (
            "accelerate launch --config_file acc.yaml trl/scripts/sft.py --config sft.yaml "
            "--per_device_train_batch_size 3 --gradient_accumulation_steps 5 --max_length 2048 "
            "--learning_rate 1e-4 --bf16 true --dtype bfloat16\n"
        ),
        {
            "acc.yaml": ACCELERATE,
            "sft.yaml": "model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 4096\npacking: true\n"
            "per_device_train_batch_size: 1\n",
        },
    ),
    "trl sft": (
        (
            "trl sft --model_name_or_path Qwen/Qwen2.5-7B --accelerate_config zero2 --num_processes 4 "
            "--per_device_train_batch_size 3 --gradient_accumulation_steps 5 --max_length 2048 "
            "--use_peft true --lora_r 24 --lora_target_modules all-linear --optim adamw_torch "
            "--gradient_checkpointing false --dtype bfloat16\n"
        ),
        {},
    ),
    "axolotl": (
        (
            "accelerate launch --num_processes 8 -m axolotl.cli.train ax.yaml --micro-batch-size 3 "
            "--gradient-accumulation-steps 5 --sequence-len 2048 --learning-rate 0.1 --dp-shard-size 4\n"
        ),
        {
            "ax.yaml": "base_model: Qwen/Qwen2.5-7B\nmicro_batch_size: 1\nsequence_len: 4096\n"
            "sample_packing: true\nbf16: true\ngradient_checkpointing: true\nflash_attention: true\n"
            "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
        },
    ),
    "torchtitan": (
        (
            "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b "
            "--parallelism.tensor_parallel_degree 4 --parallelism.data_parallel_shard_degree 2 "
            "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule 1F1B "
            "--training.local_batch_size 8 --training.seq_len 4096 --optimizer.lr 0.1 --metrics.log_freq 3 "
            "--training.steps 4 --parallelism.pipeline_parallel_microbatch_size 2 activation-checkpoint:full\n"
        ),
        {},
    ),
    "torchtitan, a file": (
        (
            "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file t.toml "
            "--parallelism.tensor_parallel_degree 4 --training.local_batch_size 8 --training.seq_len 4096 "
            "--activation_checkpoint.mode full\n"
        ),
        {"t.toml": TITAN},
    ),
    "llama-factory, on Megatron-Core": (
        "USE_MCA=1 NPROC_PER_NODE=8 llamafactory-cli train a.yaml\n",
        {
            "a.yaml": "stage: pt\ndo_train: true\nmodel_name_or_path: Qwen/Qwen2.5-7B\n"
            "finetuning_type: full\ndataset: a\ncutoff_len: 4096\nper_device_train_batch_size: 2\n"
            "gradient_accumulation_steps: 4\nbf16: true\noutput_dir: o\n"
            "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\nsequence_parallel: true\n"
            "use_distributed_optimizer: true\nrecompute_granularity: full\nbias_activation_fusion: true\n"
        },
    ),
    "nanotron": (
        "torchrun --nnodes 2 --nproc_per_node 8 run_train.py --config-file n.yaml\n",
        {"n.yaml": NANOTRON},
    ),
}
# By script: whose arguments its command takes (launchers.flags).
PROGRAMS: dict[str, tuple[str, ...]] = {
    "megatron-lm": ("megatron-lm",),
    "deepspeed": ("megatron-lm",),
    "ms-swift": ("ms-swift", "megatron-lm"),
    "transformers": ("transformers",),
    "accelerate": ("transformers",),
    "swift sft": ("ms-swift", "transformers"),
    "llama-factory": ("llama-factory", "transformers"),
    "trl": ("trl", "transformers"),
    "axolotl": ("axolotl",),
    "torchtitan": ("torchtitan",),
    "megatron-bridge": ("megatron-bridge",),
}
