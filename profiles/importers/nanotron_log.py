"""Reads training logs of nanotron.

Format: ``train_step_logs`` in github.com/huggingface/nanotron, ``src/nanotron/trainer.py``: one line a
step, its numbers by ``human_format`` (``src/nanotron/logging/base.py``), three significant digits and a
power of 1000 as a letter; ``log_memory`` adds the first rank's peaks in MiB, and the trainer prints its
configuration with ``pformat`` at the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod

from meshwright.profiles.importers.foreign_file import MAX_SECONDS, ForeignFile
from meshwright.profiles.importers.run_logs import (
    MAX_FLOPS_PER_S,
    MAX_GIB,
    LogFormat,
    LoggedStep,
    LogLine,
    RunLog,
)
from meshwright.profiles.units import GIB, MIB, MILLISECOND_S, TERA

MAX_TOKENS_PER_S = 1e9
_STEP = re.compile(r"\biteration: (\d{1,12}) / \d{1,12} \| ")
# Until 2025 the time of a step was called elapsed_time_per_iteration_ms.
_TIME = re.compile(r"\b(?:elapsed_)?time_per_iteration_ms: ([^\s|]+)")
_TOKENS = re.compile(r"\btokens_per_sec_per_gpu: ([^\s|]+)")
_FLOPS = re.compile(r"\bmodel_tflops_per_gpu: ([^\s|]+)")
_MEMORY = re.compile(r"Peak allocated ([0-9.]+)MiB\. Peak reserved: ([0-9.]+)MiB")
_VALUE = re.compile(r"\b(\w{1,64})=(\d{1,12})[,)]")
_START = "Start training"
_POWERS: Mapping[str, float] = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_ARGUMENTS: Mapping[str, str] = {  # nanotron's configuration → glossary
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_parallel_size": "expert_parallel_size",
    "micro_batch_size": "micro_batch_size",
    "batch_accumulation_per_replica": "num_microbatches",
    "sequence_length": "seq_length",
    "zero_stage": "zero_stage",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
}
_BATCH = ("data_parallel_size", "micro_batch_size", "num_microbatches")
_WORLD = ("tensor", "pipeline", "data", "context", "expert")


def _human(file: ForeignFile, text: str, where: str, *, high: float) -> float:
    """Read a number as nanotron's ``human_format`` writes it: ``6.91K`` is 6910."""
    letter = text[-1] if text[-1:].isalpha() else ""
    if letter not in _POWERS:
        raise file.fault(where, f"expected a number with one of {', '.join(filter(None, _POWERS))}")
    power = _POWERS[letter]
    return file.positive(text.removesuffix(letter), where, high=high / power) * power


def _step(log: RunLog, line: LogLine, number: int) -> None:
    file, where = log.file, line.where
    if not log.is_of_first_rank(line.rank):
        return
    time, tokens, flops = (found.search(line.text) for found in (_TIME, _TOKENS, _FLOPS))
    if time is None:
        raise file.fault(where, 'expected "time_per_iteration_ms: …"')
    milliseconds = _human(file, time[1], f"{where}, {time[0]}", high=MAX_SECONDS / MILLISECOND_S)
    log.add(
        LoggedStep(
            number=number,
            seconds=milliseconds * MILLISECOND_S,
            global_batch_size=log.configuration.get("global_batch_size"),
            tokens_per_s_per_gpu=(
                None if tokens is None else _human(file, tokens[1], where, high=MAX_TOKENS_PER_S)
            ),
            flops_per_s_per_gpu=(
                None if flops is None else _human(file, flops[1], where, high=MAX_FLOPS_PER_S / TERA) * TERA
            ),
        )
    )


def _configuration(log: RunLog, line: LogLine) -> None:
    memory = _MEMORY.search(line.text)
    if memory:
        where, most = f"{line.where}, memory", MAX_GIB * GIB / MIB
        allocated, reserved = (log.file.number(one, where, high=most) * MIB for one in memory.groups())
        log.saw_memory(line.rank, allocated, reserved)
    if _START in line.text and log.is_of_first_rank(line.rank):
        log.started()
    read_arguments(log, _VALUE.findall(line.text), line.where)


def read_arguments(log: RunLog, arguments: Iterable[tuple[str, str]], where: str) -> None:
    """Read names and values of nanotron's configuration, and the sizes that follow from them."""
    for name, value in arguments:
        if name in _ARGUMENTS and value.isascii() and value.isdigit():
            log.note(_ARGUMENTS[name], value, where)
    sizes = log.configuration
    if all(name in sizes for name in _BATCH):
        sizes["global_batch_size"] = prod(sizes[name] for name in _BATCH)
    if all(f"{axis}_parallel_size" in sizes for axis in _WORLD[:3]):
        sizes["num_gpus"] = prod(sizes.get(f"{axis}_parallel_size", 1) for axis in _WORLD)


NANOTRON_LOG = LogFormat(
    framework="nanotron",
    names_itself="nanotron",
    signs=((_STEP, _TIME),),
    step=_STEP,
    on_step=_step,
    on_line=_configuration,
)
