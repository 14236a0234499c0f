"""Reads training logs of DeepSpeed.

Format: ``ThroughputTimer`` in github.com/deepspeedai/DeepSpeed, ``deepspeed/utils/timer.py``: samples a
second of the whole job (the last step's, or the mean since the start in old releases), memory of the
rank that logs in GB of 2**30 bytes. ``see_memory_usage`` adds what the allocator reserved (``Max_CA``).
The time of a step is the batch over the samples a second, else it follows from the lines' times. A
``PipelineEngine`` prints the mean time of its steps (``deepspeed/runtime/pipe/engine.py``, train_batch).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.profiles.importers.foreign_file import MAX_SECONDS
from meshwright.profiles.importers.run_logs import (
    MAX_BATCH,
    MAX_GIB,
    LogFormat,
    LoggedStep,
    LogLine,
    RunLog,
    timestamp,
)
from meshwright.profiles.units import GIB

MAX_SAMPLES_PER_S = 1e9
_STEP = re.compile(r"(?:\bglobal_step=|\b\d{1,9}/|\bsteps: )(\d{1,12})(?:, (?:Running|Samples)| loss: )")
_PIPELINE_STEP = re.compile(r"\bsteps: \d{1,12} loss: .*\biter time \(s\): ([^\s]+) samples/sec: ")
_RATE = re.compile(r"\bCurrSamplesPerSec=([^,\s]+)")
_MEMORY = re.compile(r"\bMaxMemAllocated=([^,\s]+?)GB\b")
_USAGE = re.compile(r"\bMax_MA ([0-9.]+) GB\s+CA [0-9.]+ GB\s+Max_CA ([0-9.]+) GB")
_ARGUMENT = re.compile(r"\b(\w{1,64}) (?:\.+|) (\d{1,20})\s*$")  # names of 29 letters and more: no dots
_ARGUMENTS: Mapping[str, str] = {  # DeepSpeed's settings → glossary
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "num_microbatches",
    "zero_optimization_stage": "zero_stage",
    "world_size": "num_gpus",
    "seq_length": "seq_length",
}


def _step(log: RunLog, line: LogLine, number: int) -> None:
    file, where = log.file, line.where
    pipeline = _PIPELINE_STEP.search(line.text)
    if pipeline:
        mean = file.positive(pipeline[1], f"{where}, iter time (s)", high=MAX_SECONDS)
        batch = log.configuration.get("global_batch_size")
        log.add(LoggedStep(number=number, seconds=mean, global_batch_size=batch))
        return
    memory, rate = _MEMORY.search(line.text), _RATE.search(line.text)
    if memory is None:
        raise file.fault(where, 'expected "MaxMemAllocated=…GB"')
    log.saw_memory(line.rank, file.number(memory[1], f"{where}, MaxMemAllocated", high=MAX_GIB) * GIB, None)
    if not log.is_of_first_rank(line.rank):
        return
    between = log.seconds_since(number, timestamp(line.text))
    batch = log.configuration.get("global_batch_size")
    seconds = between
    if rate and batch:
        samples = file.positive(rate[1], f"{where}, CurrSamplesPerSec", high=MAX_SAMPLES_PER_S)
        seconds = file.whole(batch, "train_batch_size", high=MAX_BATCH) / samples
    if seconds is not None:
        log.add(LoggedStep(number=number, seconds=min(seconds, MAX_SECONDS), global_batch_size=batch))


def _configuration(log: RunLog, line: LogLine) -> None:
    argument, usage = _ARGUMENT.search(line.text), _USAGE.search(line.text)
    if argument and argument[1] in _ARGUMENTS:
        log.note(_ARGUMENTS[argument[1]], argument[2], line.where)
    if argument and argument[1] == "train_batch_size":
        log.started()
    if usage:
        allocated, reserved = (
            log.file.number(usage[i], f"{line.where}, memory", high=MAX_GIB) * GIB for i in (1, 2)
        )
        log.saw_memory(line.rank, allocated, reserved)


DEEPSPEED_LOG = LogFormat(
    framework="deepspeed",
    names_itself="deepspeed",
    signs=((_STEP, re.compile("MaxMemAllocated=")), (_PIPELINE_STEP,)),
    step=_STEP,
    on_step=_step,
    on_line=_configuration,
)
