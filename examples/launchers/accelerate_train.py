"""A loop of one's own under accelerate with the plan that fits this job.

torchrun --nproc-per-node 8 … examples/launchers/accelerate_train.py problem.json run/
"""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from meshwright_client import Reporter, choose
from meshwright_client.reporting import watch_optimizers

problem = json.loads(Path(sys.argv[1]).read_text())
choice = choose(problem, cluster_from="torchelastic", save_dir=sys.argv[2], limit_s=60.0)
accelerator = Accelerator(
    gradient_accumulation_steps=choice.config.num_microbatches, cpu=not torch.cuda.is_available()
)
model = torch.nn.Linear(64, 64)  # a model of your own
data = torch.utils.data.DataLoader(torch.randn(256, 64), batch_size=choice.config.micro_batch_size)
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
reporter = Reporter.of(choice, warm_up=1, steps=3)
watch_optimizers(reporter)  # counts steps of optimizers, not micro-batches
for rows, _ in zip(data, range(6 * choice.config.num_microbatches), strict=False):
    with accelerator.accumulate(model):
        accelerator.backward(model(rows).square().mean())
        optimizer.step()
        optimizer.zero_grad()
reporter.close()
model, optimizer, data = accelerator.free_memory(model, optimizer, data)  # DDP keeps the group as well
accelerator.end_training()  # Gloo's threads may abort a process that keeps its group
