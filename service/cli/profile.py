"""``meshwright profile``: measures operators, a layer and collectives on the machine at hand."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from meshwright.profiles.adapters import ATTENTION_TARGETS
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.profiles.inline import model_from_mapping
from meshwright.profiles.measure.collectives import ranks_from
from meshwright.profiles.measure.device import open_device
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
from meshwright.service.cli.terminal import CANCELLED, require_above_0, screen

MAX_SEQ_LENGTH = 2**24
MAX_SIZE = 65_536  # of an axis, or of a micro-batch
MAX_SIZES = 32  # values of one list
MILLISECONDS = 1e3
PASSES = ("forward", "backward", "recompute_backward", "optimizer")
_SIZE = re.compile(r"[1-9][0-9]{0,4}")


def profile(  # noqa: PLR0913 - the signature is the list of options
    *,
    model: Annotated[str, typer.Option(help="Catalog name, or a Hugging Face config.json.")],
    seq_length: Annotated[int, typer.Option(min=1, max=MAX_SEQ_LENGTH, help="Tokens per sequence.")],
    out: Annotated[
        Path, typer.Option(help="Measured profile (JSON) to write. An existing one is resumed.")
    ],
    tp: Annotated[
        str, typer.Option(metavar="N[,N]", help="Tensor parallel sizes to cut shards for.")
    ] = "1",
    micro_batch: Annotated[str, typer.Option(metavar="N[,N]", help="Sequences per micro-batch.")] = "1",
    ep: Annotated[
        int, typer.Option(min=1, max=MAX_SIZE, help="Expert parallel size to cut shards for.")
    ] = 1,
    lora_rank: Annotated[
        int, typer.Option(min=0, max=MAX_SIZE, help="LoRA rank of the layers (0 trains every weight).")
    ] = 0,
    lora_target: Annotated[
        str, typer.Option(metavar="NAME[,NAME]", help="Modules that LoRA adapts, e.g. linear_qkv.")
    ] = ",".join(ATTENTION_TARGETS),
    only: Annotated[
        str | None,
        typer.Option(help="Measure only these: collectives, gemm, attention, memory_bound, layer."),
    ] = None,
    dtype: Annotated[Literal["bf16", "fp16", "fp32"], typer.Option(help="Type of tensors.")] = "bf16",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device to measure.")] = "auto",
    budget_s: Annotated[
        float | None, typer.Option(help="Stop starting measurements after this many seconds.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats and fewer payload sizes.")] = False,
) -> None:
    """Measure this machine with PyTorch; under torchrun, the collectives of its processes as well."""
    began_s = time.monotonic()
    if budget_s is not None:
        require_above_0("--budget-s", budget_s)
    targets = tuple(dict.fromkeys(word.strip() for word in lora_target.split(",")))
    wanted = WantedMeasurements(
        subject=Subject(
            model=model_from_mapping(model_part(model)),
            seq_length=seq_length,
            dtype=dtype,
            expert_parallel_size=ep,
            quick=quick,
            lora_rank=lora_rank,
            lora_targets=targets if lora_rank else (),  # the shard refuses unknown ones
        ),
        tensor_parallel_sizes=_sizes("--tp", tp),
        micro_batch_sizes=_sizes("--micro-batch", micro_batch),
        groups=_groups(only),
    )
    compute_tasks(wanted)  # refuses impossible shards before anything heavy is loaded
    ranks = ranks_from(os.environ)
    start = MeasuringOptions(
        device=open_device(device, dtype=dtype, index=ranks.local_rank),
        ranks=ranks,
        command=("meshwright", *sys.argv[1:]),
        deadline_s=math.inf if budget_s is None else began_s + budget_s,
        say=_say if ranks.leads else lambda _line: None,
    )
    try:
        outcome = measure(wanted, out, start)
    except KeyboardInterrupt:
        _say("interrupted: finished measurements are saved. To continue, run the same command")
        raise typer.Exit(CANCELLED) from None
    if outcome is not None:
        _show(outcome, out)


def _groups(only: str | None) -> tuple[MeasuredGroup, ...]:
    if only is None:
        return MEASURED_GROUPS
    words = [word.strip().replace("-", "_") for word in only.split(",")]
    for word in words:
        if word not in MEASURED_GROUPS:
            raise UnknownNameError.among("--only", word, MEASURED_GROUPS)
    return tuple(group for group in MEASURED_GROUPS if group in words)


def _sizes(option: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if len(words) > MAX_SIZES or not all(_SIZE.fullmatch(word) and int(word) <= MAX_SIZE for word in words):
        raise InvalidProblemError.of(
            option,
            f'"{shown(text)}" is not a list of sizes',
            allowed=f"whole numbers from 1 to {MAX_SIZE} with commas between them, at most {MAX_SIZES}",
        )
    return tuple(sorted({int(word) for word in words}))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


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
        words += ". Time is up: to continue, run the same command"
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
