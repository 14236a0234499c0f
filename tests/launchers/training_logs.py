"""What training frameworks print while they train, by the format strings of their own sources."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_HOST = {"MASTER_ADDR": "node0", "MEGATRON_LM_DIR": "/opt/megatron", "NANOTRON_DIR": "/opt/nanotron"}
_SETTINGS = {
    "TRAIN_SCRIPT": "train.py", "BRIDGE_SCRIPT": "recipe.py", "MOCK_DATA": "1", "DATASET": "c4",
    "HF_ASSETS_PATH": "tokenizer", "CHECK_PACKAGES": "0",
}  # fmt: skip
# NVIDIA/Megatron-LM, megatron/training/config/training_config.py, LoggerConfig.
_MEGATRON_INTERVAL = "100"


def words_of_start(folder: Path, **environment: str) -> list[str]:
    """What an exported ``launch.sh`` gives to torchrun, which here only prints it."""
    torchrun = folder / "bin" / "torchrun"
    torchrun.parent.mkdir(exist_ok=True)
    torchrun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    torchrun.chmod(0o755)
    path = f"{torchrun.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", folder / "launch.sh"],
        env={"PATH": path, **_HOST, **_SETTINGS, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def megatron_arguments(words: Sequence[str], num_gpus: int) -> dict[str, str]:
    """Megatron-LM's arguments after its checks, from the words of its command line.

    Flags become names as argparse has it; of the same flag the last counts. ``fp8_format`` is kept as
    ``fp8``, and sizes follow as in ``validate_args`` (megatron/training/arguments.py).
    """
    flags = [at for at, word in enumerate(words) if word.startswith("--")]
    found = {
        "bf16": "False", "fp16": "False", "fp8": "None", "sequence_parallel": "False",
        "use_distributed_optimizer": "False", "use_megatron_fsdp": "False", "num_experts": "None",
        "recompute_granularity": "None", "log_interval": _MEGATRON_INTERVAL,
        "transformer_impl": "transformer_engine",
    }  # fmt: skip
    for at, end in zip(flags, [*flags[1:], len(words)], strict=True):
        name = words[at].removeprefix("--").replace("-", "_")
        found["fp8" if name == "fp8_format" else name] = " ".join(words[at + 1 : end]) or "True"
    model = 1
    for axis in ("tensor_model", "pipeline_model", "context"):
        model *= int(found.get(f"{axis}_parallel_size", "1"))
    chunks = found.get("num_virtual_stages_per_pipeline_rank", "None")
    return found | {
        "world_size": str(num_gpus),
        "data_parallel_size": str(num_gpus // model),
        "virtual_pipeline_model_parallel_size": chunks,
    }


def megatron_log(arguments: Mapping[str, str], step_s: float) -> str:
    """What Megatron-LM prints: its arguments, then the steps that its interval lets through.

    ``_print_args`` of megatron/training/arguments.py and ``training_log`` of megatron/training/training.py
    (NVIDIA/Megatron-LM, commit d98e8a64, lines 3539 to 3640): a line where the iteration divides by
    ``log_interval``, and after the first one, which takes long.
    """
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(arguments.items())]
    lines += ["-------------------- end of arguments ---------------------"]
    lines += ["[before the start of training step] datetime: 2026-01-02 03:04:05 "]
    last, every = int(arguments["train_iters"]), int(arguments["log_interval"])
    batch = int(arguments["global_batch_size"])
    for iteration in range(1, last + 1):
        if iteration % every and iteration > 1:
            continue
        wobble = 1.0 + 0.002 * (iteration % 3 - 1)
        elapsed_s = 5.0 * step_s if iteration == 1 else step_s * wobble
        line = " [2026-01-02 03:04:05.678901]"
        line += f" iteration {iteration:8d}/{last:8d} |"
        line += f" consumed samples: {iteration * batch:12d} |"
        line += f" elapsed time per iteration (ms): {elapsed_s * 1000.0:.1f} |"
        if arguments.get("log_throughput") == "True":
            line += f" throughput per GPU (TFLOP/s/GPU): {400.0:.1f} |"
        line += f" learning rate: {1e-4:.6E} | global batch size: {batch:5d} | lm loss: {11.0:.6E} |"
        line += " loss scale: 1.0 | grad norm: 4.321 | number of skipped iterations:   0 |"
        lines.append(line + " number of nan iterations:   0 |")
    return "\n".join(lines) + "\n"


def deepspeed_log(config: Mapping[str, object], num_gpus: int, step_s: float, *, pipeline: bool) -> str:
    """What DeepSpeed prints in ten steps.

    ``DeepSpeedConfig.print`` (runtime/config.py); ``ThroughputTimer.stop`` (utils/timer.py), which counts
    from the third step on; a pipeline's own line in ``train_batch`` (runtime/pipe/engine.py);
    deepspeedai/DeepSpeed, commit edaa7221.
    """
    shown = {**config, "world_size": num_gpus}
    start = "[2026-01-02 03:04:05,678] [INFO] [config.py:1003:print]"
    lines = [
        f"{start}   {name} {'.' * (29 - len(name))} {shown[name]}"
        for name in (
            "gradient_accumulation_steps",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "world_size",
        )
    ]
    every, batch = config.get("steps_per_print"), int(str(config["train_batch_size"]))
    assert isinstance(every, int), "without steps_per_print DeepSpeed logs no time"
    for step in range(1, 11):
        if step % every:
            continue
        if pipeline:
            rate = f"iter time (s): {step_s:0.3f} samples/sec: {batch / step_s:0.3f}"
            lines.append(f"steps: {step} loss: {11.0:0.4f} {rate}")
        elif step > 2:
            lines.append(
                f"[2026-01-02 03:04:{step:02d},678] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}/"
                f"global_step={step}, RunningAvgSamplesPerSec={batch / step_s}, "
                f"CurrSamplesPerSec={batch / step_s}, MemAllocated=31.02GB, MaxMemAllocated=58.5GB"
            )
    return "\n".join(lines) + "\n"


def nanotron_log(config: Mapping[str, Mapping[str, object]], step_s: float) -> str:
    """What nanotron prints: ``pformat`` of its configuration, then ``train_step_logs``.

    huggingface/nanotron, commit 2411b022, src/nanotron/trainer.py lines 287, 590 and 773 to 786; numbers
    as ``human_format`` of src/nanotron/logging/base.py.
    """
    parallel, tokens = config["parallelism"], config["tokens"]
    shown = [
        f"{name}={parallel[name]}"
        for name in ("dp", "pp", "tp", "expert_parallel_size", "context_parallel_size")
    ]
    lines = [f"       parallelism=ParallelismArgs({(',' + chr(10) + ' ' * 35).join(shown)}),"]
    names = ("sequence_length", "train_steps", "micro_batch_size", "batch_accumulation_per_replica")
    inside = (",\n" + " " * 25).join(f"{name}={tokens[name]}" for name in names)
    lines.append(f"       tokens=TokensArgs({inside}),")
    last, every = tokens["train_steps"], config["logging"]["iteration_step_info_interval"]
    assert isinstance(last, int)
    assert isinstance(every, int)
    rank = "01/02/2026 03:04:05 [INFO|DP=0|TP=0|node0]: "
    lines.append(f"{rank}Start training")
    for step in range(1, last + 1):
        if (step - 1) % every:
            continue
        entries = [
            f"iteration: {step} / {last}", f"consumed_tokens: {human(step * 1e6)}",
            f"time_per_iteration_ms: {human(step_s * 1000.0)}", f"tokens_per_sec: {human(1e6 / step_s)}",
            f"tokens_per_sec_per_gpu: {human(1e6 / step_s / 64)}", "global_batch_size: 1.05M",
            "lm_loss: 11.2", "lr: 0.0003", "model_tflops_per_gpu: 312", "eta: 0:00:10",
        ]  # fmt: skip
        lines.append(rank + " | ".join(entries))
    return "\n".join(lines) + "\n"


def human(number: float) -> str:
    """nanotron's ``human_format``: three significant digits, and a letter for the power of 1000."""
    number, letters = float(f"{number:.3g}"), ["", "K", "M", "B"]
    while abs(number) >= 1000 and len(letters) > 1:
        number /= 1000.0
        letters.pop(0)
    return f"{number:f}".rstrip("0").rstrip(".") + letters[0]


def torchtitan_log(words: Sequence[str], tokens_per_s_per_gpu: float) -> str:
    """What torchtitan prints in ten steps (``MetricsProcessor.log``, torchtitan/components/metrics.py).

    Its default interval is 10 steps; step 1 is always logged (torchtitan ``should_log``; commit b5bcd76c).
    """
    every = int(words[words.index("--metrics.log_freq") + 1]) if "--metrics.log_freq" in words else 10
    steps = [step for step in range(1, 11) if step == 1 or step % every == 0]
    lines = [
        f"[rank0]:[titan] 2026-01-02 03:04:{step:02d},678 - root - INFO - step: {step:2}  "
        "loss: 11.00000  grad_norm:  4.3210  memory: 45.21GiB(57.11%)  "
        f"tps: {round(tokens_per_s_per_gpu):,}  tflops: 312.00  mfu: 31.55%"
        for step in steps
    ]
    return "\n".join(lines) + "\n"
