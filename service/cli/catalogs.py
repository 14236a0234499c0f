"""``meshwright models``, ``clusters`` and ``gpus``: the names that problems may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import typer

from meshwright.profiles.errors import UnknownNameError, faults_as
from meshwright.profiles.inline import cluster_from_mapping
from meshwright.profiles.library import (
    cluster_names,
    find_gpu,
    find_model,
    gpu_names,
    model_names,
)
from meshwright.profiles.units import GB, GIB, TERA
from meshwright.service.cli.terminal import print_json, screen

Row = dict[str, str | int | float]
NAMES = ("name", "gpu")  # columns of names that problems use: never cut
SAID = (*NAMES, "title")
Words = Annotated[list[str] | None, typer.Argument(help="Only names with all of these words.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")]


def models(words: Words = None, json_output: AsJson = False) -> None:
    """List the models of the catalog."""
    _show(_named("model", model_rows(), words, _model_row), json_output=json_output)


def clusters(words: Words = None, json_output: AsJson = False) -> None:
    """List the clusters of the catalog."""
    _show(_named("cluster", cluster_rows(), words, _cluster_row), json_output=json_output)


def gpus(words: Words = None, json_output: AsJson = False) -> None:
    """List the GPU types of the catalog."""
    _show(_named("gpu", gpu_rows(), words, _gpu_row), json_output=json_output)


def values(
    option: Annotated[str, typer.Argument(help="Option, as you type it: launcher, allow, pin, …")],
    json_output: AsJson = False,
) -> None:
    """List the values that an option takes."""
    from meshwright.service.requests.schema import listed_values, names_with_values  # noqa: PLC0415 - slow

    name = option.removeprefix("--")
    found = listed_values(name)
    if not found:
        raise UnknownNameError.among("option", name, names_with_values())
    if json_output:
        print_json([*found])
    else:
        typer.echo("\n".join(found))


def _named(
    kind: str, rows: list[Row], words: Sequence[str] | None, read: Callable[[str], Row]
) -> list[Row]:
    """Return the rows with all words in their name, title or GPU, or the one that ``plan`` reads from them.

    Raises:
        InvalidProblemError: there is none.
    """
    wanted = [word.lower() for word in words or ()]
    found = [
        row
        for row in rows
        if all(any(word in str(row.get(key, "")).lower() for key in SAID) for word in wanted)
    ]
    if found:
        return found
    with faults_as(lambda fault: replace(fault, pointer=kind)):
        return [read(" ".join(wanted))]


def _show(rows: list[Row], *, json_output: bool) -> None:
    if json_output:
        print_json(rows)
        return
    from rich.table import Table  # noqa: PLC0415 - the same

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, value in rows[0].items():
        longest = max(len(str(row[name])) for row in rows) if name in NAMES else None
        justify: Literal["left", "right"] = "left" if isinstance(value, str) else "right"
        table.add_column(name.replace("_", " "), justify=justify, min_width=longest)
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:g}" for value in row.values()))
    screen().print(table)


# --------------------------------------------------------------------------------------------------
# The catalog as rows of plain values; units are part of the names.


_BILLION = 1e9


def model_rows() -> list[Row]:
    """Every model: name, parameters, shape."""
    return [_model_row(name) for name in model_names()]


def _model_row(name: str) -> Row:
    model = find_model(name)
    return {
        "name": model.name,
        "title": model.title,
        "billion_parameters": round(model.num_parameters() / _BILLION, 1),
        "layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "experts": model.moe.num_experts if model.moe else 0,
    }


def cluster_rows() -> list[Row]:
    """Every cluster: name and what one of its nodes is."""
    return [_cluster_row(name) for name in cluster_names()]


def _cluster_row(name: str) -> Row:
    cluster = cluster_from_mapping({"name": name})  # a cloud's instance, too
    group = cluster.groups[0]
    return {
        "name": name if cluster.name == "custom" else cluster.name,
        "gpu": group.gpu.slug,
        "gpus_per_node": group.gpus_per_node,
        "gpus_on_fast_link": group.island_gpus,
        "fast_link_gb_per_s": round(group.intra_node.bytes_per_s / GB, 1),
        "network_gb_per_s": round(group.inter_node.bytes_per_s / GB, 1),
    }


def gpu_rows() -> list[Row]:
    """Every GPU type, once: memory as its driver reports it, dense peak, memory bandwidth."""
    return [_gpu_row(name) for name in gpu_names() if find_gpu(name).slug == name]


def _gpu_row(name: str) -> Row:
    gpu = find_gpu(name)
    return {
        "name": gpu.slug,
        "memory_gib": round(gpu.memory_bytes / GIB, 1),
        "bf16_tflops": round(gpu.peak_bf16_flops / TERA, 1),
        "hbm_gb_per_s": round(gpu.hbm_bytes_per_s / GB),
        "architecture": "" if gpu.nearest else gpu.architecture,
        "priced_as": gpu.nearest,
    }
