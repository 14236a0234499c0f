"""Trains with TRL's ``SFTTrainer`` and transformers' ``Trainer``: a child of one process for each run.

The parent imports them, reads a run as one JSON object a line and answers with one line. It never touches
the GPU: a child, forked after the imports, has a context and an allocator of its own.

A run has the fields of ``trainers.TrainerRun`` and ``config`` (Hugging Face's), ``steps``, ``cpu``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "datasets", "liger_kernel")
_QUIET = {
    "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "true",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TRL_EXPERIMENTAL_SILENCE": "1",
}  # fmt: skip


def releases() -> dict[str, str]:
    """Return the releases of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def trained(run: dict[str, Any]) -> dict[str, Any]:
    """Train one run in this process: seconds of each step, and peaks of memory in bytes.

    Raises:
        ImportError: a package is missing.
        torch.OutOfMemoryError: it does not fit.
    """
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    settings = {name: value for name, value in run["config"].items() if name != "quantization_config"}
    config = transformers.AutoConfig.for_model(**settings)
    config.use_cache = False
    with torch.device("cpu" if run["cpu"] else "cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, run["weights"]), attn_implementation=run["attention"] or None
        )
    count = run["micro_batch_size"] * run["accumulation"] * run["steps"]
    dice = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, config.vocab_size, (count, run["seq_length"]), generator=dice)
    callback = type("Callback", (Watch, transformers.TrainerCallback), {})
    watch = callback(None if run["cpu"] else torch.cuda)
    begun = _trainers()[run["trainer"]](run, model, tokens, watch)
    _watch_forward(begun, watch)
    if not run["cpu"]:
        torch.cuda.reset_peak_memory_stats()
    begun.train()
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "trained_parameters": sum(one.numel() for one in model.parameters() if one.requires_grad),
        "attention_taken": str(getattr(model.config, "_attn_implementation", run["attention"])),
        "steps_s": watch.steps_s,
        "peaks": watch.peaks,
        **watch.whole(),
    }


class Watch:
    """Times steps and takes the allocator's peak of each moment; ``cuda`` is None on a CPU."""

    def __init__(self, cuda: Any) -> None:  # noqa: ANN401 - torch.cuda
        self.steps_s: list[float] = []
        self.peaks: dict[str, int] = {}
        self._cuda, self._reserved, self._began_s = cuda, 0, 0.0

    def took(self, moment: str) -> None:
        """Book the peak since the last moment."""
        if self._cuda is not None:
            self._reserved = max(self._reserved, self._cuda.max_memory_reserved())
            self.peaks[moment] = max(self.peaks.get(moment, 0), self._cuda.max_memory_allocated())
            self._cuda.reset_peak_memory_stats()

    def whole(self) -> dict[str, int]:
        """Return the bytes of the whole run: of tensors, of the allocator, of the device."""
        if self._cuda is None:
            return {}
        free, total = self._cuda.mem_get_info()
        reserved = max(self._reserved, self._cuda.max_memory_reserved())
        allocated = max(self.peaks.values())
        return {"allocated_bytes": allocated, "reserved_bytes": reserved, "device_bytes": total - free}

    def _now_s(self) -> float:
        if self._cuda is not None:
            self._cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, *_given: object, **_more: object) -> None:
        """Start the clock."""
        self._began_s = self._now_s()

    def on_pre_optimizer_step(self, *_given: object, **_more: object) -> None:
        """End the last backward pass."""
        self.took("backward")

    def on_optimizer_step(self, *_given: object, **_more: object) -> None:
        """End the optimizer's step."""
        self.took("optimizer")

    def on_step_end(self, *_given: object, **_more: object) -> None:
        """Stop the clock."""
        self.steps_s.append(self._now_s() - self._began_s)


def _watch_forward(trainer: Any, watch: Any) -> None:  # noqa: ANN401
    """Book the peaks before and in each forward pass; what follows it is backward."""
    plain: Callable[..., Any] = trainer.compute_loss

    def compute_loss(*given: object, **more: object) -> object:
        watch.took("backward" if watch.peaks else "before")
        found = plain(*given, **more)
        watch.took("forward")
        return found

    trainer.compute_loss = compute_loss


def _trainers() -> dict[str, Callable[..., Any]]:
    return {"trl": _by_trl, "transformers": _by_transformers}


def _arguments(run: dict[str, Any]) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(), "per_device_train_batch_size": run["micro_batch_size"],
        "gradient_accumulation_steps": run["accumulation"], "max_steps": run["steps"], "bf16": True,
        "optim": run["optimizer"], "gradient_checkpointing": run["checkpointing"],
        "gradient_checkpointing_kwargs": {"use_reentrant": False} if run["checkpointing"] else None,
        "logging_steps": 1, "save_strategy": "no", "report_to": [], "learning_rate": 1e-5,
        "use_cpu": run["cpu"], "disable_tqdm": True, "use_liger_kernel": run["liger"],
    }  # fmt: skip


def _adapters(run: dict[str, Any]) -> Any:  # noqa: ANN401
    if not run["lora_rank"]:
        return None
    targets = run["lora_targets"]
    return importlib.import_module("peft").LoraConfig(
        r=run["lora_rank"], lora_alpha=2 * run["lora_rank"], lora_dropout=0.0, task_type="CAUSAL_LM",
        target_modules=targets[0] if targets == ["all-linear"] else targets,
    )  # fmt: skip


def _by_trl(run: dict[str, Any], model: Any, tokens: Any, watch: Any) -> Any:  # noqa: ANN401
    trl, datasets = importlib.import_module("trl"), importlib.import_module("datasets")
    return trl.SFTTrainer(
        model=model, args=trl.SFTConfig(max_length=run["seq_length"], packing=False, **_arguments(run)),
        train_dataset=datasets.Dataset.from_dict({"input_ids": tokens.tolist()}),
        processing_class=_tokenizer(), peft_config=_adapters(run), callbacks=[watch],
    )  # fmt: skip


def _by_transformers(run: dict[str, Any], model: Any, tokens: Any, watch: Any) -> Any:  # noqa: ANN401
    transformers = importlib.import_module("transformers")
    adapters = _adapters(run)
    if adapters is not None:
        if run["checkpointing"]:
            model.enable_input_require_grads()  # the base is frozen: without it nothing has a gradient
        model = importlib.import_module("peft").get_peft_model(model, adapters)
    rows = [{"input_ids": one, "labels": one} for one in tokens]
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**_arguments(run)),
        train_dataset=rows,
        callbacks=[watch],
    )


def _tokenizer() -> Any:  # noqa: ANN401
    """Return a tokenizer of three words: TRL asks for one, and reads nothing with it."""
    tokenizers = importlib.import_module("tokenizers")
    special = {"unk_token": "a", "pad_token": "<pad>", "eos_token": "<eos>"}
    words = tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token=special["unk_token"])
    fast = importlib.import_module("transformers").PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizers.Tokenizer(words), **special)


def _outcome(run: dict[str, Any]) -> dict[str, Any]:
    """Train and return what was found, or why not."""
    try:
        return {"found": trained(run)}
    except BaseException as fault:  # noqa: BLE001 - one run must not end the host
        out = type(fault).__name__ == "OutOfMemoryError"
        said = str(fault).strip().partition("\n")[0][:300]
        traceback.print_exc()
        return {"fault": "out of memory" if out else f"{type(fault).__name__}: {said}"}


def _forked(run: dict[str, Any]) -> dict[str, Any]:
    """Train one run in a child; what it says through a pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(2, 1)  # what the trainers print is no answer
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps(_outcome(run)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    _, code = os.waitpid(child, 0)
    return json.loads(said) if said else {"fault": f"its process ended with code {code}"}


def _asked() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    """Import what there is, say so, then train what is asked."""
    os.environ.update(_QUIET)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for name in ("torch", "transformers", "peft", "datasets", "trl", "trl.trainer.sft_trainer"):
        try:
            importlib.import_module(name)
        except ImportError:
            traceback.print_exc()
    transformers = importlib.import_module("transformers")
    _ = transformers.Trainer, transformers.AutoModelForCausalLM  # imported when first named
    print(json.dumps({"ready": releases()}), file=answers, flush=True)
    for run in _asked():
        print(json.dumps(_forked(run)), file=answers, flush=True)


if __name__ == "__main__":
    main()
