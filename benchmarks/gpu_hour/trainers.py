"""Twenty runs of TRL's and transformers' own trainers: drawn, predicted from their commands, then trained.

Each run is predicted from the command that starts it, as ``predict --from-args`` reads it, with nothing but
the catalog's facts of the GPU. ``trainer_host`` then trains a model of the same config, filled with
random weights, on random tokens of equal length.
"""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from benchmarks.gpu_hour.drawn import one_gpu
from benchmarks.gpu_hour.work import Item, Journal, run_items
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_gpu, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests" / "unit" / "profiles" / "fixtures" / "real-configs.json"
SEED = 5077
RELEASE = "5.17"  # of transformers on the machines with a GPU, whose choice of attention holds
ROOM = 0.75  # of the GPU's memory that a run may fill by the formula below
IMPORT_S = 60.0  # of the host, at its first run
WARM_STEPS = 2
_NEEDED = ("torch", "transformers", "peft", "trl", "datasets")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
WHOLE = ("all-linear",)
_STEPS_S = 5.0  # of timed steps
_FULL = (
    "smollm2-135m",
    "qwen3-0.6b",
    "gemma-3-1b",
    "tinyllama-1.1b",
    "llama-3.2-1b",
    "qwen2.5-3b",
    "gemma-2-2b",
)
_ADAPTED = (
    "smollm3-3b", "phi-4-mini", "qwen2.5-7b", "olmo-2-7b", "olmoe-1b-7b", "llama-3.1-8b", "qwen3-8b",
    "gemma-2-9b", "qwen3-14b", "gpt-oss-20b",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRun:
    """One run of a trainer on one GPU."""

    name: str
    trainer: str  # trl or transformers
    model: str
    seq_length: int
    micro_batch_size: int
    accumulation: int
    checkpointing: bool
    weights: str = "float32"  # dtype that they are loaded in
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    attention: str = ""  # attn_implementation; empty: the model's own, as most people leave it
    liger: bool = False
    optimizer: str = "adamw_torch_fused"

    def command(self) -> str:
        """Return the command that starts it."""
        words = {
            "model_name_or_path": self.model,
            "max_length" if self.trainer == "trl" else "block_size": self.seq_length,
            "per_device_train_batch_size": self.micro_batch_size,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_checkpointing": str(self.checkpointing).lower(),
            "bf16": "true",
            "dtype" if self.trainer == "trl" else "torch_dtype": self.weights,
            **({"attn_implementation": self.attention} if self.attention else {}),
            "optim": self.optimizer,
            **({"use_liger_kernel": "true"} if self.liger else {}),
            **({} if self.trainer == "trl" else {"do_train": "true"}),
        }
        if self.lora_rank:
            targets = " ".join(self.lora_targets)
            words |= {
                "use_peft": "true",
                "lora_r": self.lora_rank,
                "lora_target_modules": targets,
                "lora_dropout": 0,
            }
        start = "trl sft" if self.trainer == "trl" else "torchrun --nproc_per_node 1 train.py"
        return " ".join([start, *(f"--{name} {value}" for name, value in words.items())]) + "\n"

    def read(self, model: ModelSpec) -> LaunchFile:
        """Return what the reader makes of the command.

        Raises:
            InvalidProblemError: it cannot be read.
        """
        source = Source(name="train.sh", text=self.command())
        return read_launch_files(source, Overrides(model=model, num_gpus=1))

    def asked(self, *, steps: int, tiny: bool) -> dict[str, Any]:
        """Return what ``trainer_host`` is told."""
        config = config_of(self.model)
        if tiny:
            config |= _TINY
            config |= {"layer_types": config["layer_types"][:2]} if config.get("layer_types") else {}
        run = {**asdict(self), "config": config, "steps": steps, "cpu": tiny}
        return {**run, "seq_length": 64} if tiny else run


_TINY = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000,
}  # fmt: skip


def run_of(fields: Mapping[str, Any]) -> TrainerRun:
    """Return a run from the fields that a journal has."""
    return TrainerRun(**{**fields, "lora_targets": tuple(fields["lora_targets"])})


def config_of(name: str) -> dict[str, Any]:
    """Return Hugging Face's config of a model."""
    return next(
        dict(one["config"]) for one in json.loads(CONFIGS.read_text("utf-8")) if one["name"] == name
    )


def model_of(name: str) -> ModelSpec:
    """Return the model of that config."""
    return model_from_config(config_of(name), name=name)


def runs_drawn(memory_bytes: float) -> tuple[TrainerRun, ...]:
    """Return the twenty runs that the seed draws; what would not fit by ``kept_bytes`` is drawn again."""
    dice, found = random.Random(SEED), list[TrainerRun]()  # noqa: S311 - a committed draw, not a secret
    kinds = (
        [("trl", False)] * 6
        + [("trl", True)] * 7
        + [("transformers", False)] * 4
        + [("transformers", True)] * 3
    )
    for number, (trainer, adapts) in enumerate(kinds, start=1):
        names = [
            one for one in (_ADAPTED if adapts else _FULL) if one not in {run.model for run in found[-5:]}
        ]
        while True:
            run = _drawn(dice, f"trainer-{number:02d}", trainer, dice.choice(names), adapts=adapts)
            if kept_bytes(run) <= ROOM * memory_bytes:
                break
        found.append(run)
    return tuple(found)


def _drawn(dice: random.Random, name: str, trainer: str, model: str, *, adapts: bool) -> TrainerRun:
    return TrainerRun(
        name=name, trainer=trainer, model=model,
        seq_length=dice.choice((1024, 2048, 4096, 8192)),
        micro_batch_size=dice.choice((1, 2, 3, 4, 8)),
        accumulation=dice.choice((1, 2, 4)),
        checkpointing=dice.choice((True, False)),
        weights="bfloat16" if adapts else dice.choice(("float32", "float32", "bfloat16")),
        lora_rank=dice.choice((8, 16, 64)) if adapts else 0,
        lora_targets=dice.choice((ATTENTION, WHOLE)) if adapts else (),
        attention=dice.choice(("", "", "", "eager")),
        liger=dice.choice((False, False, False, True)),
        optimizer=dice.choice(("adamw_torch_fused", "adamw_torch_fused", "adamw_torch")),
    )  # fmt: skip


def kept_bytes(run: TrainerRun) -> float:
    """Return bytes of states, activations and logits by a formula that is not the cost model's."""
    model, tokens = find_model(run.model), run.micro_batch_size * run.seq_length
    each = 2.0 if run.lora_rank else 16.0 if run.weights == "float32" else 8.0
    routed = model.moe.top_k * 3.0 if model.moe else 1.0
    wide = 60.0 * model.hidden_size + 14.0 * model.ffn_hidden_size * routed
    eager = run.attention == "eager" or run.model.startswith(("gpt-oss", "gemma-2"))
    scores = 8.0 * model.num_attention_heads * run.seq_length if eager else 0.0
    layers = 1 if run.checkpointing else model.num_layers
    kept = layers * (wide + scores) + 4.0 * model.num_layers * model.hidden_size
    logits = model.vocab_size * (1.0 if run.trainer == "trl" or run.liger else 16.0)
    return float(each * model.num_parameters() + tokens * (kept + logits))


def forecast_of(run: TrainerRun, gpu: str) -> dict[str, Any]:
    """Predict a run from its command, on one GPU of the catalog: seconds of a step, bytes of the device.

    Raises:
        InvalidProblemError: the command cannot be read or priced.
    """
    read = run.read(model_of(run.model))
    options = {**read.workload.framework_options, "transformers_release": RELEASE}
    workload = replace(read.workload, framework_options=options)
    problem = Problem(model=read.model, cluster=one_gpu(gpu), workload=workload, launcher=read.launcher)
    found = predict(problem, default_profile(problem.cluster, problem.priced_as), read.configuration)
    if found.memory is None:
        raise ValueError("a prediction without its peak")
    return {
        **asdict(found.memory),
        "step_time_s": found.step_time_s,
        "step_time_low_s": found.step_time_low_s,
        "step_time_high_s": found.step_time_high_s,
        "peak_memory_bytes": float(found.peak_memory_bytes),
        "out_of_memory_probability": found.out_of_memory_probability,
    }


@dataclass(slots=True, kw_only=True)
class TrainerPart:
    """The items of this part, and the host that trains."""

    journal: Journal
    gpu: str
    tiny: bool
    log: Path  # of what the trainers print
    process: subprocess.Popen[str] | None = None

    def items(self) -> list[Item]:
        """Return the check of the packages, the predictions and the runs."""
        first = Item(name="trainers", estimate_s=2.0, run=self._packages)
        predictions = Item(name="predict-trainers", estimate_s=30.0, run=self._predict, wants=("trainers",))
        return [first, predictions, *(self._item(run) for run in self.runs())]

    def runs(self) -> tuple[TrainerRun, ...]:
        """Return the draw; of the rehearsal, the first runs of transformers' Trainer."""
        found = runs_drawn(find_gpu(self.gpu).memory_bytes if not self.tiny else 80e9)
        return tuple(run for run in found if run.trainer == "transformers")[2:6] if self.tiny else found

    def _item(self, run: TrainerRun) -> Item:
        seconds = 3.0 * _STEPS_S + (IMPORT_S if self.process is None else 10.0)
        return Item(
            name=run.name, estimate_s=seconds, run=partial(self._train, run), wants=("predict-trainers",)
        )

    def _packages(self) -> dict[str, Any]:
        needed = _NEEDED[:3] if self.tiny else _NEEDED
        lacking = [name for name in needed if importlib.util.find_spec(name) is None]
        if lacking:
            raise ModuleNotFoundError(f"not installed: {', '.join(lacking)}")
        self._host()
        return {"seed": SEED, "runs": [asdict(run) for run in self.runs()]}

    def _predict(self) -> dict[str, Any]:
        return {"predictions": {run.name: forecast_of(run, self.gpu) for run in self.runs()}}

    def _train(self, run: TrainerRun) -> dict[str, Any]:
        said = self.journal.found("predict-trainers")
        step_s = said["result"]["predictions"][run.name]["step_time_s"] if said else 1.0
        steps = WARM_STEPS + (2 if self.tiny else max(4, min(12, int(_STEPS_S / step_s))))
        answer = self._ask(run.asked(steps=steps, tiny=self.tiny))
        if "fault" in answer:
            raise RuntimeError(answer["fault"])
        return {"run": asdict(run), "command": run.command(), **answer["found"]}

    def _ask(self, run: Mapping[str, Any]) -> dict[str, Any]:
        host = self._host()
        pipes = _pipes(host)
        print(json.dumps(run), file=pipes[0], flush=True)
        line = pipes[1].readline()
        if not line:
            self._lost()
        found: dict[str, Any] = json.loads(line)
        return found

    def _host(self) -> subprocess.Popen[str]:
        """Return the host, started and imported."""
        if self.process is None:
            command = [sys.executable, "-m", "benchmarks.gpu_hour.trainer_host"]
            began_s = time.monotonic()
            with self.log.open("a", encoding="utf-8") as log:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
            ready = _pipes(self.process)[1].readline()
            if not ready:
                self._lost()
            seconds = time.monotonic() - began_s
            self.journal.write("trainers", "host", seconds=seconds, **json.loads(ready))
        return self.process

    def _lost(self) -> NoReturn:
        host, self.process = self.process, None
        code = host.wait() if host is not None else None
        raise RuntimeError(f"the host of the trainers ended with code {code}; see {self.log.name}")

    def close(self) -> None:
        """End the host."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _pipes(host: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if host.stdin is None or host.stdout is None:
        raise RuntimeError("the host of the trainers has no pipes")
    return host.stdin, host.stdout


def work(folder: Path, deadline_s: float, *, gpu: str | None, tiny: bool) -> None:
    """Do what the journal of a folder lacks of this part.

    Args:
        folder: of the journal.
        deadline_s: on the monotonic clock.
        gpu: the catalog's slug; without one, that which the other parts recognised, or an H100.
        tiny: train tiny models on this CPU.
    """
    journal = Journal(folder)
    machine = journal.found("machine")
    slug = gpu or (machine["result"]["priced_as"] if machine and not tiny else "h100-sxm-80gb")
    part = TrainerPart(journal=journal, gpu=slug, tiny=tiny, log=folder.parent / "trainers.log")
    try:
        run_items(part.items(), journal, deadline_s)
    finally:
        part.close()
