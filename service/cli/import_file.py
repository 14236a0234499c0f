"""``meshwright import``: its options; the work is done in ``service.cli.importing``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_file(  # noqa: PLR0913 - the signature is the list of options
    file: Annotated[Path, typer.Argument(help="The foreign file.")],
    *,
    format_name: Annotated[
        str | None, typer.Option("--format", help="Its format; told from its content where left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; stdout where left out.")] = None,
    into: Annotated[Path | None, typer.Option(help="Cluster file or table of runs to add it to.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Catalog name or config.json: what was measured.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU type that it was measured on.")] = None,
    num_nodes: Annotated[int | None, typer.Option(help="Nodes of a new cluster file.")] = None,
    group: Annotated[int, typer.Option(min=0, help="Which node group of the cluster file.")] = 0,
    seq_length: Annotated[int | None, typer.Option(help="Tokens per sequence of measured layers.")] = None,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32 of measured layers.")] = "bf16",
    cluster: Annotated[str | None, typer.Option(help="What to call the cluster.")] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="What a training log leaves out."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="ID|FILE", help="The plan that a training log is of: its facts are the row's."
        ),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Which plan of the answer in that file.")] = 1,
) -> None:
    """Turn a foreign file into one of ours: a cluster file, a measured profile, a model, a row of runs.

    nccl-tests log, nvidia-smi topo -m, NCCL topology XML, Slurm topology.conf: a cluster file, for
    --cluster. Sailor, Metis, Galvatron, SimuMax: a measured profile, for --profile. Hugging Face
    config.json: a model file, for --model. Training logs: a row of runs, for calibrate; with --plan
    every fact of the run is the plan's, and a log that contradicts it is refused.
    """
    from service.cli.importing import ImportRequest, run_import  # noqa: PLC0415 - loaded when needed

    request = ImportRequest(
        file=file,
        format_name=format_name,
        out=out,
        into=into,
        model=model,
        gpu=gpu,
        num_nodes=num_nodes,
        group=group,
        seq_length=seq_length,
        dtype=dtype,
        cluster=cluster,
        assign=tuple(assign or ()),
        plan=plan,
        rank=rank,
    )
    raise typer.Exit(run_import(request))
