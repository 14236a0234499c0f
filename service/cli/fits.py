"""``meshwright fits``: how a model can be trained on some GPUs, by method and launcher, in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.service.cli.options import completion_of
from meshwright.service.methods import (
    RANK,
    FitRow,
    memory_words,
    methods_of,
    time_words,
    what_fits,
    with_speeds,
)

if TYPE_CHECKING:  # help loads no table
    from rich.console import RenderableType

_TOKENS = 10_000_000
_LINES = 12  # of the table, unless all rows are asked for


def fits(  # noqa: PLR0913 - the signature is the list of options
    model: Annotated[
        str,
        typer.Argument(
            help="Catalog name, Hugging Face id, or config.json (./PATH).",
            autocompletion=completion_of("model"),
        ),
    ],
    *,
    gpus: Annotated[str | None, typer.Option(help="GPUs by type, e.g. RTX-4090 or 8xH100.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Catalog name, file, or here for this machine.", autocompletion=completion_of("cluster")
        ),
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="Launcher, or any to try all.", autocompletion=completion_of("launcher"))
    ] = "any",
    seq_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens per sequence [default: 4096, or all positions if fewer]"),
    ] = None,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Sequences per step [default: 32 for each GPU]")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="bf16, fp16, fp8, … [default: bf16, or fp16 where a GPU lacks it]")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Optimizer of full training [default: adamw, and adamw-8bit]")
    ] = None,
    lora_rank: Annotated[int, typer.Option(min=1, help="Rank of the LoRA and QLoRA adapters.")] = RANK,
    sample: Annotated[
        str | None, typer.Option(help="Samples: sequence, pair (DPO, rewards) or unpaired (KTO)")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="frozen: DPO and KTO. Adapters are their own reference, turned off.")
    ] = None,
    images_per_sample: Annotated[
        float | None,
        typer.Option(min=0, help="Images in a sequence of a vision model [default: 0, text alone]"),
    ] = None,
    image_tokens: Annotated[str | None, typer.Option(help="Tokens of an image, e.g. 1024.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of your data set, e.g. 10M.")] = _TOKENS,
    full: Annotated[bool, typer.Option("--full", help="Show every launcher.")] = False,
    every: Annotated[
        bool, typer.Option("--commands", help="Print the command of every row, which writes its files.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Show whether a model can be trained on your GPUs: in full, with offload, LoRA or QLoRA, by launcher.

    yes: the out-of-memory risk is at most 5 %. tight: it is at most 50 %. no: it runs out of memory.
    """
    from meshwright.profiles.inline import cluster_from_mapping, model_from_mapping  # noqa: PLC0415 - help loads no solver
    from meshwright.service.cli.problem_options import one_of, request_of  # noqa: PLC0415 - the same
    from meshwright.service.cli.terminal import FOUND, INFEASIBLE, print_json, screen  # noqa: PLC0415 - the same
    from meshwright.service.report.summary import gpus_words  # noqa: PLC0415 - the same
    from meshwright.service.requests.parse import parse_problem  # noqa: PLC0415 - the same

    of_data: dict[str, object] = {
        "sample": sample, "reference": reference, "images_per_sample": images_per_sample,
        "image_tokens": image_tokens,
    }  # fmt: skip
    of_run = {
        "gpus": one_of(gpus), "cluster": cluster, "seq_length": seq_length, "precision": precision,
        "global_batch_size": None if global_batch_size is None else str(global_batch_size),
    }  # fmt: skip
    given = {name: value for name, value in {**of_run, **of_data}.items() if value is not None}
    request = request_of(model, given)
    hardware = {name: value for name, value in (("gpus", of_run["gpus"]), ("cluster", cluster)) if value}
    if "cluster" not in request:
        hardware["cluster"] = "here"
        request = request_of(model, {**given, **hardware})
    if "model" not in request:
        parse_problem(request)  # says what is missing
    spec = model_from_mapping(request["model"])
    if alone := spec.tower is not None and images_per_sample is None:
        of_data["images_per_sample"] = 0.0
        request = request_of(model, {**given, **hardware, "images_per_sample": 0.0})
    typed = [model, *(word for name, value in hardware.items() for word in (f"--{name}", str(value)))]
    rows = what_fits(
        request, launcher=launcher, optimizer=optimizer, lora_rank=lora_rank, typed=of_data, asked=typed
    )
    shown = None if full or every or json_output else _rows_of_a_method(rows)
    rows = with_speeds(rows, shown)
    able = [row for row in rows if row.fit.verdict != "no"]
    if json_output:
        print_json([row.record(tokens) for row in rows])
        raise typer.Exit(FOUND if able else INFEASIBLE)
    console = screen()
    place = cluster_from_mapping(request["cluster"])
    half, where = precision or place.usual_precision, f"{spec.title} on {gpus_words(place)}"
    if not rows:
        console.print(f"No: {launcher} can't train {where} so. Try --launcher any", soft_wrap=True)
        raise typer.Exit(INFEASIBLE)
    console.print(f"{where} ({half}, {rows[0].seq_length} tokens a sequence)")
    console.print(_answer(able, tokens))
    console.print()
    fitting = _fitting_by_method(rows)
    most = len(rows) if full else _rows_of_a_method(rows)
    console.print(_table(rows, fitting, tokens, most=most))
    console.print()
    titles = dict.fromkeys(one.title for one in methods_of(optimizer, lora_rank, spec.stored_as))
    if absent := [one for one in titles if one not in fitting]:
        who = "no launcher trains" if launcher == "any" else f"{launcher} doesn't train"
        console.print(f"{', '.join(absent)}: {who} {spec.title} so on {gpus_words(place)}")
    if any(len(able) > most for able in fitting.values()):
        console.print("All launchers: --full")
    if alone:
        console.print("note: text alone. With images: --images-per-sample 1 --image-tokens 1024")
    for line in _commands(able, every=every):
        console.print(line, soft_wrap=True)
    raise typer.Exit(FOUND if able else INFEASIBLE)


def _answer(able: Sequence[FitRow], tokens: int) -> str:
    """Return the answer in one line: the methods that fit, each with its shortest time."""
    best = _fastest(able)
    if not best:
        return "No: nothing fits. Try GPUs with more memory, more GPUs, or a shorter --seq-length"
    words = [
        f"{title} {time_words(row.seconds_for(tokens))}{' (tight)' * (row.fit.verdict == 'tight')}"
        for title, row in best.items()
    ]
    return f"Yes, for {tokens / 1e6:g}M tokens: {', '.join(words)}"


def _fastest(able: Sequence[FitRow]) -> Mapping[str, FitRow]:
    """Return the first row of each method: rows that fit come first, fastest first."""
    first = dict[str, FitRow]()
    for row in able:
        first.setdefault(row.method.title, row)
    return first


def _fitting_by_method(rows: Sequence[FitRow]) -> Mapping[str, Sequence[FitRow]]:
    titles = dict.fromkeys(row.method.title for row in rows)
    able = [row for row in rows if row.fit.verdict != "no"]
    return {title: [row for row in able if row.method.title == title] for title in titles}


def _rows_of_a_method(rows: Sequence[FitRow]) -> int:
    """Return how many launchers of a method the table shows, one at least; a line counts the others."""
    fitting = _fitting_by_method(rows)
    short = len({row.method.title for row in rows if row.fit.verdict == "no"})
    room = _LINES - short

    def has_room(most: int) -> bool:
        return sum(min(len(able), most + 1) for able in fitting.values()) <= room

    return max(takewhile(has_room, range(1, len(rows) + 1)), default=1)


def _table(
    rows: Sequence[FitRow], fitting: Mapping[str, Sequence[FitRow]], tokens: int, *, most: int
) -> RenderableType:
    """Return lines of a method's fastest launchers, one of the others, and one of what does not fit."""
    from rich.table import Table  # noqa: PLC0415 - help loads no table

    table = Table(
        "", "\nlauncher", "\nfits", box=None, pad_edge=False, collapse_padding=True, header_style="dim"
    )
    for title in ("least GiB\na GPU", "micro-\nbatch", "tokens\nper s", f"{tokens / 1e6:g}M\ntokens"):
        table.add_column(title, justify="right", no_wrap=True)
    for method, able in fitting.items():
        shown = able if len(able) <= most + 1 else able[:most]
        for row in shown:
            table.add_row(
                method, row.launched, row.fit.verdict, memory_words(row), row.micro_batch,
                f"{row.fit.tokens_per_s:,.0f}", time_words(row.seconds_for(tokens)),
            )  # fmt: skip
        short = [row for row in rows if row.method.title == method and row.fit.verdict == "no"]
        for others in (able[len(shown) :], short):
            if others:
                least = min(others, key=lambda one: one.fit.lightest.prediction.peak_memory_bytes)
                names = f"all {len(others)}" if not able else _others(others)
                verdicts = "/".join(dict.fromkeys(one.fit.verdict for one in others))
                table.add_row(method, names, verdicts, memory_words(least), "–", "–", "–")
    return table


def _others(rows: Sequence[FitRow]) -> str:
    return rows[0].launched if len(rows) == 1 else f"{len(rows)} others"


def _commands(able: Sequence[FitRow], *, every: bool) -> Iterator[str]:
    """Yield the commands that write launch files: of all rows, or of each method's fastest."""
    for row in able if every else _fastest(able).values():
        yield f"tip: {row.command}"
