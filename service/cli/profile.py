"""``meshwright profile``: measures operators, a layer and collectives on the machine at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def profile(
    *,
    model: Annotated[str, typer.Option(help="Catalog name, or a Hugging Face config.json.")],
    seq_length: Annotated[int, typer.Option(help="Tokens per sequence.")],
    out: Annotated[Path, typer.Option(help="Measured profile (JSON) to write; resumed where it exists.")],
    tp: Annotated[
        str, typer.Option(metavar="N[,N]", help="Tensor parallel sizes to cut shards for.")
    ] = "1",
    micro_batch: Annotated[str, typer.Option(metavar="N[,N]", help="Sequences per micro-batch.")] = "1",
    ep: Annotated[int, typer.Option(help="Expert parallel size to cut shards for.")] = 1,
    only: Annotated[
        str | None, typer.Option(help="Of collectives, gemm, attention, memory_bound, layer.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    budget_s: Annotated[float | None, typer.Option(help="Begin nothing after this many seconds.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repeats, few payloads.")] = False,
) -> None:
    """Measure this machine with PyTorch; under torchrun, the collectives of its processes as well."""
    from service.cli.profiling import ProfileRequest, run_profile  # noqa: PLC0415 - loaded when needed

    request = ProfileRequest(
        model=model,
        seq_length=seq_length,
        tensor_parallel_sizes=tp,
        micro_batch_sizes=micro_batch,
        expert_parallel_size=ep,
        only=only,
        dtype=dtype,
        device=device,
        budget_s=budget_s,
        quick=quick,
    )
    raise typer.Exit(run_profile(request, out))
