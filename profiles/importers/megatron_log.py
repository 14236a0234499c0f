"""Reads training logs of Megatron-LM, and of its kin Megatron-DeepSpeed and GPT-NeoX.

Format: ``training_log`` in github.com/NVIDIA/Megatron-LM, ``megatron/training/training.py``: iterations in
ms (Megatron-DeepSpeed also in s), TFLOP/s per GPU; ``report_memory`` prints MB of 2**20 bytes, once for
each rank with data-parallel rank 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.profiles.importers.foreign_file import MAX_PAYLOAD_BYTES, MAX_SECONDS
from meshwright.profiles.importers.run_logs import (
    MAX_BATCH,
    MAX_FLOPS_PER_S,
    LogFormat,
    LoggedStep,
    LogLine,
    RunLog,
)
from meshwright.profiles.units import GIB, MIB, MILLISECOND_S, TERA

_ITERATION = re.compile(r"\biteration\s+(\d{1,12})\s*/\s*(?:\d{1,12}|infinity)\s*\|")
_ELAPSED = re.compile(r"elapsed time per iteration \((\w+)\)")
_MEMORY = re.compile(
    r"(?:\[Rank (?P<rank>\d{1,6})\] )?\(after \d+ iterations\) memory \((?P<unit>\w+)\) \|(?P<rest>.*)"
)
_PEAK = re.compile(r"max (allocated|reserved): ([^|\s]+)")
_ARGUMENT = re.compile(r"^\s*(\w{1,64}) \.{3,} (\w{1,64})\s*$")
_SIZES = {
    "num_gpus": re.compile(r"using world size: (\d{1,9})"),
    "data_parallel_size": re.compile(r"\bdata-parallel[- ]size: (\d{1,9})"),
}
_STARTS = ("[before the start of training step]", "[after dataloaders are built]")
_SECONDS = {"ms": MILLISECOND_S, "s": 1.0}
_BYTES = {"MB": MIB, "GB": GIB}
_FLOPS = ("throughput per GPU (TFLOP/s/GPU)", "TFLOPs", "approx flops per GPU")
_ARGUMENTS: Mapping[str, str] = {  # Megatron's arguments → glossary
    "tensor_model_parallel_size": "tensor_parallel_size",
    "pipeline_model_parallel_size": "pipeline_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_model_parallel_size": "expert_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "virtual_pipeline_model_parallel_size": "virtual_pipeline_size",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "seq_length": "seq_length",
    "world_size": "num_gpus",
    "zero_stage": "zero_stage",
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_experts": "num_experts",
}
_PRECISIONS = ("fp8", "bf16", "fp16")  # the first that is on: FP8 runs keep bf16 as well
_SHARDED: Mapping[str, int] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_OFF = ("None", "False")
_WORDS = (
    *_PRECISIONS, "recompute_granularity", "transformer_impl", "use_distributed_optimizer",
    "use_megatron_fsdp", "data_parallel_sharding_strategy",
)  # fmt: skip


def _step(log: RunLog, line: LogLine, number: int) -> None:
    file = log.file
    if not log.is_of_first_rank(line.rank):
        return
    parts = (part.partition(":") for part in line.text.split("|"))
    fields = {name.strip(): value.strip() for name, colon, value in parts if colon}
    elapsed = next((_ELAPSED.fullmatch(name) for name in fields if _ELAPSED.fullmatch(name)), None)
    if elapsed is None or elapsed[1] not in _SECONDS:
        raise file.fault(line.where, 'expected "elapsed time per iteration" in (ms) or (s)')
    scale, text = _SECONDS[elapsed[1]], fields[elapsed[0]].split("/")[0]
    seconds = file.positive(text, f"{line.where}, {elapsed[0]}", high=MAX_SECONDS / scale) * scale
    batch = fields.get("global batch size")
    sequences = None
    if batch is not None:
        sequences = file.whole(batch, f"{line.where}, global batch size", high=MAX_BATCH)
    flops, per_gpu = next((fields[name] for name in _FLOPS if name in fields), None), None
    if flops is not None:
        digits, where = flops.removesuffix("TFLOPS"), f"{line.where}, throughput"
        per_gpu = file.number(digits, where, high=MAX_FLOPS_PER_S / TERA) * TERA
    log.add(
        LoggedStep(number=number, seconds=seconds, global_batch_size=sequences, flops_per_s_per_gpu=per_gpu)
    )


def _memory(log: RunLog, line: LogLine, match: re.Match[str]) -> None:
    unit = _BYTES.get(match["unit"])
    peaks = {
        name: log.file.number(value, f"{line.where}, max {name}", high=MAX_PAYLOAD_BYTES / MIB)
        * (unit or 0)
        for name, value in _PEAK.findall(match["rest"])
    }
    if unit is None or not peaks:
        raise log.file.fault(line.where, 'expected "max allocated: …" in MB or GB')
    log.saw_memory(
        int(match["rank"]) if match["rank"] else line.rank, peaks.get("allocated"), peaks.get("reserved")
    )


def _argument(log: RunLog, name: str, value: str, where: str) -> None:
    """Read an argument that Megatron prints at the start (``_print_args``, training/arguments.py)."""
    if name in _ARGUMENTS and value.isascii() and value.isdigit():
        log.note(_ARGUMENTS[name], value, where)
    if name == "sequence_parallel" and value in ("True", "False"):
        log.configuration[name] = int(value == "True")
    if name in _WORDS:
        log.arguments[name] = value


def _settle(log: RunLog) -> None:
    arguments = log.arguments
    found = [name for name in _PRECISIONS if arguments.get(name, "None") not in _OFF]
    if found or {"bf16", "fp16"} <= arguments.keys():
        log.words["precision"] = found[0] if found else "fp32"
    if "recompute_granularity" in arguments:
        granularity = arguments["recompute_granularity"]
        log.words["recompute"] = "none" if granularity in _OFF else granularity
    if "use_distributed_optimizer" in arguments:
        log.configuration["zero_stage"] = int(arguments["use_distributed_optimizer"] == "True")
    strategy = arguments.get("data_parallel_sharding_strategy", "")
    if arguments.get("use_megatron_fsdp") == "True" and strategy in _SHARDED:
        log.configuration["zero_stage"] = _SHARDED[strategy]
    if arguments.get("transformer_impl") == "transformer_engine":
        log.words["framework_family"] = "megatron-core"


def read_arguments(log: RunLog, arguments: Mapping[str, str], where: str) -> None:
    """Read Megatron's arguments from elsewhere than a log: names and values as text."""
    for name, value in arguments.items():
        _argument(log, name, value, where)
    _settle(log)


def _line(log: RunLog, line: LogLine) -> None:
    argument, memory = _ARGUMENT.search(line.text), _MEMORY.search(line.text)
    if memory and not line.is_cut:
        _memory(log, line, memory)
    if argument:
        _argument(log, argument[1], argument[2], line.where)
    for name, pattern in _SIZES.items():
        if size := pattern.search(line.text):
            log.note(name, size[1], line.where)
    if any(start in line.text for start in _STARTS):
        log.started()


def _end(log: RunLog) -> None:
    if "deepspeed" in log.file.text.lower():
        log.framework = "megatron-deepspeed"
    _settle(log)


MEGATRON_LOG = LogFormat(
    framework="megatron-lm",
    names_itself="model_parallel_size ..",
    signs=((_ELAPSED, _ITERATION),),
    step=_ITERATION,
    on_step=_step,
    on_line=_line,
    on_end=_end,
)
