"""The Trainer of transformers with the plan that fits this job.

torchrun --nproc-per-node 8 … examples/launchers/transformers_trainer.py problem.json run/
"""

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from meshwright_client import Reporter, choose
from meshwright_client.reporting import transformers_callback

problem = json.loads(Path(sys.argv[1]).read_text())
choice = choose(problem, cluster_from="torchelastic", save_dir=sys.argv[2], limit_s=60.0)
size, length = problem["model"], problem["workload"]["seq_length"]
names = {"hidden_size": "hidden_size", "num_layers": "num_hidden_layers", "vocab_size": "vocab_size",
         "ffn_hidden_size": "intermediate_size", "num_attention_heads": "num_attention_heads"}  # fmt: skip
maybe = {"num_kv_heads": "num_key_value_heads", "head_dim": "head_dim"}  # else as there are heads
names |= {ours: theirs for ours, theirs in maybe.items() if ours in size}
model = LlamaForCausalLM(LlamaConfig(**{theirs: size[ours] for ours, theirs in names.items()}))
arguments = TrainingArguments(
    output_dir=sys.argv[2], max_steps=6, report_to=[], save_strategy="no", disable_tqdm=True,
    per_device_train_batch_size=choice.config.micro_batch_size,
    gradient_accumulation_steps=choice.config.num_microbatches, use_cpu=not torch.cuda.is_available(),
)  # fmt: skip
rows = [{"input_ids": row, "labels": row} for row in torch.randint(size["vocab_size"], (64, length))]
reporting = transformers_callback(Reporter.of(choice, warm_up=1, steps=3))
Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[reporting]).train()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()  # Gloo's threads may abort a process that keeps it
