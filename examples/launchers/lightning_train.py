"""Lightning's Trainer with the plan that fits this job.

torchrun --nproc-per-node 8 … examples/launchers/lightning_train.py problem.json run/
"""

import json
import os
import sys
from pathlib import Path

import lightning.pytorch as lightning
import torch

from meshwright_client import Reporter, choose
from meshwright_client.reporting import lightning_callback


class Model(lightning.LightningModule):  # type: ignore[misc] # lightning may not be installed
    """A model of your own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def training_step(self, rows: torch.Tensor, _: int) -> torch.Tensor:
        """The loss of a micro-batch."""
        return self.layer(rows).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Of all weights."""
        return torch.optim.AdamW(self.parameters())


problem = json.loads(Path(sys.argv[1]).read_text())
choice = choose(problem, cluster_from="torchelastic", save_dir=sys.argv[2], limit_s=60.0)
trainer = lightning.Trainer(
    max_steps=6, devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", logger=False,
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), accumulate_grad_batches=choice.config.num_microbatches,
    enable_checkpointing=False, enable_progress_bar=False,
    callbacks=[lightning_callback(Reporter.of(choice, warm_up=1, steps=3))],
)  # fmt: skip
rows = torch.utils.data.DataLoader(torch.randn(256, 64), batch_size=choice.config.micro_batch_size)
trainer.fit(Model(), rows)
