"""``meshwright profile``: measures operators, a layer and collectives on the machine at hand."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from meshwright.profiles.adapters import ATTENTION_TARGETS
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.profiles.inline import model_from_mapping
from meshwright.profiles.measure.collectives import ranks_from
from meshwright.profiles.measure.device import DEVICES, DTYPES, open_device
from meshwright.profiles.measure.session import (
    NO_MEMORY,
    MeasuringOptions,
    MeasuringOutcome,
    WantedMeasurements,
    compute_tasks,
    measure,
)
from meshwright.profiles.measured.profile import MEASURED_GROUPS, MeasuredGroup, MeasuredProfile, Subject
from meshwright.profiles.units import MIB
from meshwright.service.cli.problem_options import model_part
from meshwright.service.cli.terminal import CANCELLED, FOUND, screen


def profile(  # noqa: PLR0913 - the signature is the list of options
    *,
    model: Annotated[str, typer.Option(help="Catalog name, or a Hugging Face config.json.")],
    seq_length: Annotated[int, typer.Option(help="Tokens per sequence.")],
    out: Annotated[Path, typer.Option(help="Measured profile (JSON) to write; resumed where it exists.")],
    tp: Annotated[
        str, typer.Option(metavar="N[,N]", help="Tensor parallel sizes to cut shards for.")
    ] = "1",
    micro_batch: Annotated[str, typer.Option(metavar="N[,N]", help="Sequences per micro-batch.")] = "1",
    ep: Annotated[int, typer.Option(help="Expert parallel size to cut shards for.")] = 1,
    lora_rank: Annotated[int, typer.Option(help="LoRA rank of the layers; 0 trains every weight.")] = 0,
    lora_target: Annotated[
        str, typer.Option(metavar="NAME[,NAME]", help="Modules that LoRA adapts, e.g. linear_qkv.")
    ] = ",".join(ATTENTION_TARGETS),
    only: Annotated[
        str | None,
        typer.Option(help="Measure these alone: collectives, gemm, attention, memory_bound, layer."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    budget_s: Annotated[
        float | None, typer.Option(help="Start no further measurement after this many seconds.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats and fewer payload sizes.")] = False,
) -> None:
    """Measure this machine with PyTorch; under torchrun, the collectives of its processes as well."""
    request = ProfileRequest(
        model=model,
        seq_length=seq_length,
        tensor_parallel_sizes=tp,
        micro_batch_sizes=micro_batch,
        expert_parallel_size=ep,
        lora_rank=lora_rank,
        lora_targets=lora_target,
        only=only,
        dtype=dtype,
        device=device,
        budget_s=budget_s,
        quick=quick,
    )
    raise typer.Exit(run_profile(request, out))


# --------------------------------------------------------------------------------------------------
# Measures the machine at hand: progress on stderr, the outcome on stdout.


MAX_SEQ_LENGTH = 2**24
MAX_SIZE = 65_536  # of an axis, or of a micro-batch
MAX_SIZES = 32  # values of one list
MILLISECONDS = 1e3
PASSES = ("forward", "backward", "recompute_backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """The options as they were typed."""

    model: str
    seq_length: int
    tensor_parallel_sizes: str
    micro_batch_sizes: str
    expert_parallel_size: int
    lora_rank: int
    lora_targets: str
    only: str | None
    dtype: str
    device: str
    budget_s: float | None
    quick: bool


def run_profile(request: ProfileRequest, out: Path) -> int:
    """Measure, and print the layers' times; the exit code.

    Raises:
        InvalidProblemError: an option is wrong, or the file holds other measurements.
        ProfileError: PyTorch is missing, or the file is broken or cannot be written.
    """
    began_s = time.monotonic()
    wanted = _wanted(request)
    compute_tasks(wanted)  # refuses impossible shards before anything heavy is loaded
    _refuse_folder(out)
    budget_s = _budget(request.budget_s)
    ranks = ranks_from(os.environ)
    kind = _choice("--device", request.device, DEVICES)
    device = open_device(kind, dtype=wanted.subject.dtype, index=ranks.local_rank)
    start = MeasuringOptions(
        device=device,
        ranks=ranks,
        command=("meshwright", *sys.argv[1:]),
        deadline_s=began_s + budget_s,
        say=_say if ranks.leads else _say_nothing,
    )
    try:
        outcome = measure(wanted, out, start)
    except KeyboardInterrupt:
        _say("interrupted: what was measured is kept, the same command goes on from there")
        return CANCELLED
    if outcome is not None:
        _show(outcome, out)
    return FOUND


def _wanted(request: ProfileRequest) -> WantedMeasurements:
    targets = tuple(dict.fromkeys(word.strip() for word in request.lora_targets.split(",")))
    subject = Subject(
        model=model_from_mapping(model_part(request.model)),
        seq_length=_size("--seq-length", request.seq_length, MAX_SEQ_LENGTH),
        dtype=_choice("--dtype", request.dtype, tuple(DTYPES)),
        expert_parallel_size=_size("--ep", request.expert_parallel_size, MAX_SIZE),
        quick=request.quick,
        lora_rank=_size("--lora-rank", request.lora_rank, MAX_SIZE) if request.lora_rank else 0,
        lora_targets=targets if request.lora_rank else (),  # the shard refuses unknown ones
    )
    return WantedMeasurements(
        subject=subject,
        tensor_parallel_sizes=_sizes("--tp", request.tensor_parallel_sizes),
        micro_batch_sizes=_sizes("--micro-batch", request.micro_batch_sizes),
        groups=_groups(request.only),
    )


def _groups(only: str | None) -> tuple[MeasuredGroup, ...]:
    if only is None:
        return MEASURED_GROUPS
    words = [word.strip().replace("-", "_") for word in only.split(",")]
    for word in words:
        _choice("--only", word, MEASURED_GROUPS)
    return tuple(group for group in MEASURED_GROUPS if group in words)


def _choice(option: str, word: str, allowed: tuple[str, ...]) -> str:
    if word not in allowed:
        raise UnknownNameError.among(option, word, allowed)
    return word


def _sizes(option: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if len(words) > MAX_SIZES or not all(_is_size(word) for word in words):
        allowed = f"whole numbers from 1 to {MAX_SIZE} with commas between them, at most {MAX_SIZES}"
        raise InvalidProblemError.of(option, f'"{shown(text)}" is not a list of sizes', allowed=allowed)
    return tuple(sorted({int(word) for word in words}))


def _is_size(word: str) -> bool:
    return (
        word.isascii() and word.isdigit() and len(word) <= len(str(MAX_SIZE)) and 1 <= int(word) <= MAX_SIZE
    )


def _size(option: str, size: int, high: int) -> int:
    if not 1 <= size <= high:
        raise InvalidProblemError.of(option, "is out of range", allowed=f"1 to {high}")
    return size


def _budget(budget_s: float | None) -> float:
    if budget_s is None:
        return math.inf
    if not 0 < budget_s < math.inf:
        raise InvalidProblemError.of("--budget-s", "must be a positive number of seconds")
    return budget_s


def _refuse_folder(out: Path) -> None:
    """Better now than after the first measurement."""
    if out.is_dir():
        raise InvalidProblemError.of("--out", f"{shown(str(out))} is a folder", nearest="a file in it")
    if not out.parent.is_dir():
        raise InvalidProblemError.of("--out", f"{shown(str(out.parent))} is not a folder")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _say_nothing(_line: str) -> None:
    """Of the processes that only take part."""


def _show(outcome: MeasuringOutcome, out: Path) -> None:
    layers = _layer_table(outcome.profile)
    if layers.row_count:
        screen().print(layers)
    device = outcome.profile.machine.device
    words = f"{outcome.held} of {outcome.planned} measured on {device}, kept in {out}"
    if outcome.skipped:
        short = outcome.profile.skipped and all(one.reason == NO_MEMORY for one in outcome.profile.skipped)
        words += f"; {outcome.skipped} skipped" + (" for lack of memory" if short else ", see above")
    if outcome.held + outcome.skipped < outcome.planned:
        words += "; the time was up, the same command goes on from there"
    sys.stdout.write(f"{words}\n")


def _layer_table(profile: MeasuredProfile) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in (
        "layer",
        "tp",
        "micro batch",
        *(f"{one.replace('_', ' ')} ms" for one in PASSES),
        "kept MiB",
    ):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for one in profile.measurements:
        if one.group == "layer" and one.kind == "forward":
            sizes = {name: one.shape[name] for name in ("tensor_parallel_size", "micro_batch_size")}
            passes = [profile.find("layer", one.operator, kind, **sizes) for kind in PASSES]
            figures = [
                f"{found[0].timing.median_s * MILLISECONDS:.3g}" if found else "–" for found in passes
            ]
            kept = f"{one.activation_bytes / MIB:.4g}" if one.activation_bytes else "–"
            table.add_row(one.operator, *(str(size) for size in sizes.values()), *figures, kept)
    return table
