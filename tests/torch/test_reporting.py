"""What counts the steps of a running job, under the real trainers on the CPU."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from meshwright_client.reporting import (
    Reporter,
    lightning_callback,
    transformers_callback,
    watch_optimizers,
)


def a_reporter() -> Reporter:
    """It counts every step, and has nobody to tell."""
    return Reporter("aaa", run_id="1", url="http://127.0.0.1:9", warm_up=0, steps=1000)


def data() -> TensorDataset:
    return TensorDataset(torch.randn(24, 4), torch.randn(24, 1))


def test_optimizer_steps_are_counted_once_each_however_many_optimizers_there_are() -> None:
    first, second = (torch.optim.AdamW(nn.Linear(4, 4).parameters()) for _ in range(2))
    reporter = a_reporter()
    stop = watch_optimizers(reporter)
    for _ in range(5):  # as a chained optimizer does
        first.step()
        second.step()
    stop()
    first.step()
    assert len(reporter.seconds) == 4  # five steps have four times between them


def test_the_trainer_of_transformers_reports_optimizer_steps_not_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    class Model(nn.Module):  # type: ignore[misc] # torch is in its own environment
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    rows = [{"x": x, "labels": y} for x, y in data()]
    reporter = a_reporter()
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=3,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    callback = transformers_callback(reporter)
    monkeypatch.setattr(reporter, "close", lambda: None)  # nobody listens
    Trainer(model=Model(), args=arguments, train_dataset=rows, callbacks=[callback]).train()
    assert len(reporter.seconds) == 3  # of four steps, each of three micro-batches


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Lightning asks torch in a way that it gives up
@pytest.mark.filterwarnings("ignore:The .srun. command is available")  # on machines with Slurm
def test_lightning_reports_optimizer_steps_not_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lightning.pytorch as lightning  # noqa: PLC0415

    class Model(lightning.LightningModule):  # type: ignore[misc] # the same
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return ((self.layer(batch[0]) - batch[1]) ** 2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    reporter = a_reporter()
    monkeypatch.setattr(reporter, "close", lambda: None)  # nobody listens
    trainer = lightning.Trainer(
        max_steps=4, accumulate_grad_batches=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[lightning_callback(reporter)],
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(data(), batch_size=2))
    assert len(reporter.seconds) == 3  # of four steps, each of two micro-batches
