"""Reads training logs of torchtitan.

Format: ``MetricsProcessor.log`` in github.com/pytorch/torchtitan, ``components/metrics.py``: ``tps`` are
tokens a second and GPU, memory is the peak that the allocator reserved, in GiB. The time of a step
follows from ``tps`` with batch, sequence and number of GPUs, else from the times of the lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from meshwright.profiles.importers.foreign_file import MAX_SECONDS
from meshwright.profiles.importers.run_logs import (
    MAX_FLOPS_PER_S,
    MAX_GIB,
    LogFormat,
    LoggedStep,
    LogLine,
    RunLog,
    timestamp,
)
from meshwright.profiles.units import GIB, TERA

MAX_TOKENS_PER_S = 1e9
_STEP = re.compile(r"(?<!validate )\bstep:\s*(\d{1,12})\s+loss:")
_FIGURE = re.compile(r"\b(memory|tps|tflops):\s*([0-9][0-9,.]*)(GiB|)")
_BATCH = re.compile(r"local batch size (\d{1,9}), global batch size (\d{1,9})")
_SEQUENCE = re.compile(r"sequence length (\d{1,9})")
_MESH = re.compile(r"Building \d-D device mesh with \[([^\]]{0,200})\], \[([\d, ]{1,100})\]")
_DEGREES = re.compile(r"Building device mesh with parallelism: ([\w=, ]{1,200})")
_START = "Training starts at step"
_AXES: Mapping[str, str] = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_parallel_size",
}
_DATA = ("dp", "dp_replicate", "dp_shard")
_NOT_IN_WORLD = ("ep", "etp")  # they reuse ranks of the other axes


def _step(log: RunLog, line: LogLine, number: int) -> None:
    file, where = log.file, line.where
    found = {name: (value.replace(",", ""), unit) for name, value, unit in _FIGURE.findall(line.text)}
    if found.get("memory", ("", ""))[1] != "GiB" or "tps" not in found:
        raise file.fault(where, 'expected "memory: …GiB" and "tps: …"')
    log.saw_memory(line.rank, None, file.number(found["memory"][0], where, high=MAX_GIB) * GIB)
    if not log.is_of_first_rank(line.rank):
        return
    tokens = file.positive(found["tps"][0], f"{where}, tps", high=MAX_TOKENS_PER_S)
    seconds = _seconds(log.configuration, tokens) or log.seconds_since(number, timestamp(line.text))
    if seconds is None:
        return
    flops = found["tflops"][0] if "tflops" in found else None
    log.add(
        LoggedStep(
            number=number,
            seconds=min(seconds, MAX_SECONDS),
            tokens_per_s_per_gpu=tokens,
            flops_per_s_per_gpu=(
                None if flops is None else file.number(flops, where, high=MAX_FLOPS_PER_S / TERA) * TERA
            ),
        )
    )


def _seconds(configuration: Mapping[str, int], tokens: float) -> float | None:
    """Return the seconds of a step from tokens a second and GPU; None where the log names no sizes."""
    sizes = [configuration.get(name, 0) for name in ("global_batch_size", "seq_length", "num_gpus")]
    return sizes[0] * sizes[1] / (tokens * sizes[2]) if all(sizes) else None


def note_mesh(log: RunLog, degrees: Mapping[str, str], where: str) -> None:
    """Note the sizes of a mesh by torchtitan's names of its axes."""
    sizes = {axis: log.file.whole(size, f"{where}, {axis}") for axis, size in degrees.items()}
    for axis, name in _AXES.items():
        if axis in sizes:
            log.configuration[name] = sizes[axis]
    log.configuration["data_parallel_size"] = math.prod(sizes.get(axis, 1) for axis in _DATA)
    log.configuration["num_gpus"] = math.prod(
        size for axis, size in sizes.items() if axis not in _NOT_IN_WORLD
    )


def _configuration(log: RunLog, line: LogLine) -> None:
    batch, sequence = _BATCH.search(line.text), _SEQUENCE.search(line.text)
    if batch:
        log.note("global_batch_size", batch[2], line.where)
        if sequence:
            log.note("seq_length", sequence[1], line.where)
    mesh, degrees = _MESH.search(line.text), _DEGREES.search(line.text)
    if mesh:
        axes = [axis.strip(" '\"") for axis in mesh[1].split(",")]
        sizes = [size.strip() for size in mesh[2].split(",")]
        if len(axes) != len(sizes):
            raise log.file.fault(line.where, "expected as many sizes as axes of the mesh")
        note_mesh(log, dict(zip(axes, sizes, strict=True)), line.where)
    if degrees:
        pairs = (pair.strip().partition("=") for pair in degrees[1].split(","))
        note_mesh(log, {axis: size for axis, equals, size in pairs if equals}, line.where)
    if _START in line.text and log.is_of_first_rank(line.rank):
        log.started()


TORCHTITAN_LOG = LogFormat(
    framework="torchtitan",
    names_itself="torchtitan",
    signs=((re.compile(rf"{_STEP.pattern}.*tps:"),),),
    step=_STEP,
    on_step=_step,
    on_line=_configuration,
)
