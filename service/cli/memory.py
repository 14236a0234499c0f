"""``meshwright memory``: how much memory training takes, by method and launcher, in a table of seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.profiles.units import GIB
from meshwright.service.cli.options import completion_of
from meshwright.service.methods import RANK, Method, methods_of, usual_length

if TYPE_CHECKING:  # help loads no solver
    from rich.console import RenderableType

    from meshwright.solver.planner.least_memory import Need
    from meshwright.solver.problem import Problem

_LARGEST = 1024  # GPUs that are tried
_NODE = 8
_NAMES = 24  # characters of a line's launchers


def memory(
    model: Annotated[
        str,
        typer.Argument(
            help="Catalog name, Hugging Face id, or config.json (./PATH).",
            autocompletion=completion_of("model"),
        ),
    ],
    *,
    gpu: Annotated[
        str, typer.Option(help="GPU type, e.g. h100 or 2xh100.", autocompletion=completion_of("gpu"))
    ] = "h100-sxm-80gb",
    num_gpus: Annotated[
        int | None, typer.Option(help="GPUs that you have, up to 8 per node [default: the fewest that fit]")
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="Launcher, or any to try all.", autocompletion=completion_of("launcher"))
    ] = "any",
    seq_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens per sequence, one sequence per GPU [default: 4096, or all positions if fewer]"
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="bf16, fp16, fp8, … [default: bf16, or fp16 where the GPU lacks it]")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Optimizer of full training [default: adamw, and adamw-8bit]")
    ] = None,
    lora_rank: Annotated[int, typer.Option(help="Rank of the LoRA and QLoRA adapters.")] = RANK,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Show on how many GPUs a model can be trained: in full, with offload, LoRA or QLoRA, by launcher.

    Each figure is the least memory of one GPU. The fastest plan on more GPUs takes more: meshwright plan.
    """
    from meshwright.profiles.inline import (  # noqa: PLC0415 - help loads no solver
        cluster_of_words,
        is_counted,
        model_from_mapping,
    )
    from meshwright.service.cli.problem_options import gpu_part, model_part  # noqa: PLC0415 - the same
    from meshwright.service.cli.terminal import print_json, screen  # noqa: PLC0415 - the same

    counted = cluster_of_words(gpu) if is_counted(gpu) else {}
    if isinstance(number := counted.get("num_gpus"), int):  # 1xRTX-4090, as other commands are asked
        gpu, num_gpus = str(counted["gpu"]), num_gpus or number
    part = model_part(model)
    spec = model_from_mapping(part)
    text, seq_length = spec.tower is not None, seq_length or usual_length(spec)
    images = {"images_per_sample": 0} if text else {}
    asked = Asked(
        model=part, gpu=gpu_part(gpu),
        work={"seq_length": seq_length, **({"precision": precision} if precision else {}), **images},
    )  # fmt: skip
    counts = _counts(num_gpus)
    first = dict[tuple[str, str], Row]()  # of a launcher with both of two ways to do the same
    for method in methods_of(optimizer, lora_rank, spec.stored_as):
        for row in _rows(asked, method, launcher, counts):
            first.setdefault((row.method.title, row.launcher), row)
    rows = [*first.values()]
    if json_output:
        print_json([row.record() for row in rows])
        return
    console = screen()
    console.print(
        f"{asked.title} · {seq_length} tokens, one sequence a GPU{', no images' * text} · {asked.precision}"
    )
    fewest = "Fewest GPUs" if num_gpus is None else "GPUs"
    console.print(f"{fewest} × the least memory in GiB per GPU, by method:\n")
    console.print(_table(rows))
    console.print()
    for line in _advice(
        rows, {"model": model, "gpu": gpu, "seq-length": seq_length, "precision": precision}
    ):
        console.print(line, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be trained, on which GPU."""

    model: Any
    gpu: Any
    work: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Return model and GPU as a headline names them."""
        problem = self._alone
        return f"{problem.model.title} · {problem.cluster.groups[0].gpu.display_name}"

    @property
    def precision(self) -> str:
        """Return the precision that is stated, or that the GPU has."""
        return self._alone.workload.precision

    @property
    def _alone(self) -> Problem:
        return self.on(1, Method(title="", option="", workload={}))

    def on(self, gpus: int, method: Method) -> Problem:
        """Return the question on so many GPUs, of a node or whole nodes, under any launcher."""
        from meshwright.service.requests.parse import parse_problem  # noqa: PLC0415 - help loads no solver

        nodes, each = max(gpus // _NODE, 1), min(gpus, _NODE)
        return parse_problem(
            {
                "model": self.model,
                "cluster": {"groups": [{"gpu": self.gpu, "num_nodes": nodes, "gpus_per_node": each}]},
                "workload": {"global_batch_size": gpus, **self.work, **method.workload},
                "launcher": "any",
                "search": {"allow": [*method.allow]},
            }
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one launcher needs to train by one method, of the numbers of GPUs that were tried."""

    method: Method
    launcher: str
    need: Need
    tried: tuple[int, ...]

    @property
    def cell(self) -> str:
        """Return it in a few words."""
        if not self.need.fits and len(self.tried) > 1:
            return f"> {self.tried[-1]}"
        peak = self.need.prediction.peak_memory_bytes / GIB
        return f"{self.need.num_gpus} × {peak:.1f}{'' if self.need.fits else ' ✗'}"

    def record(self) -> dict[str, object]:
        """Return it as JSON."""
        from meshwright.service.report.formatting import LONG_NAMES, configuration_words  # noqa: PLC0415 - help loads no solver

        seen = self.need.prediction
        return {
            "method": self.method.title,
            "launcher": self.launcher,
            "options": self.method.option,
            "fits": self.need.fits,
            "num_gpus": self.need.num_gpus,
            "peak_memory_bytes": seen.peak_memory_bytes,
            "memory_limit_bytes": seen.memory_limit_bytes,
            "out_of_memory_probability": seen.out_of_memory_probability,
            "memory_bytes": dict(seen.stages[seen.heaviest_stage].memory_bytes),
            "configuration": configuration_words(self.need.config, LONG_NAMES),
        }


def _counts(num_gpus: int | None) -> tuple[int, ...]:
    """Return the numbers of GPUs to try.

    Raises:
        InvalidProblemError: so many are no whole nodes.
    """
    from meshwright.profiles.errors import InvalidProblemError  # noqa: PLC0415 - help loads no solver

    if num_gpus is None:
        return tuple(1 << bit for bit in range(_LARGEST.bit_length()))
    if num_gpus < 1 or (num_gpus > _NODE and num_gpus % _NODE):
        raise InvalidProblemError.of(
            "/num_gpus", f"{num_gpus} GPUs are not one node or several of {_NODE}",
            allowed=f"1 to {_NODE}, or a multiple of {_NODE}",
            nearest=str(max(round(num_gpus / _NODE), 1) * _NODE if num_gpus > 1 else 1),
        )  # fmt: skip
    return (num_gpus,)


def _rows(asked: Asked, method: Method, launcher: str, counts: tuple[int, ...]) -> Iterator[Row]:
    """Yield what each launcher needs that can train so.

    Raises:
        InvalidProblemError: the question is invalid under every launcher and method.
    """
    from meshwright.profiles.errors import InvalidProblemError  # noqa: PLC0415 - the same
    from meshwright.service.requests.checks import check_launcher  # noqa: PLC0415 - help loads no solver
    from meshwright.solver.planner.least_memory import first_that_fits  # noqa: PLC0415 - the same
    from meshwright.solver.space.launcher_choice import bound, launchers_able  # noqa: PLC0415 - the same

    check_launcher(launcher)
    try:
        able = launchers_able(asked.on(counts[0], method))
    except InvalidProblemError:
        if method.is_first:
            raise
        return
    on = cache(lambda gpus: asked.on(gpus, method))
    for name in able if launcher == "any" else [one for one in able if one == launcher]:
        need = first_that_fits([bound(on(gpus), name) for gpus in counts])
        if need is not None:
            yield Row(method=method, launcher=name, need=need, tried=counts)


def _table(rows: Sequence[Row]) -> RenderableType:
    """Return launchers by method; those with the same figures share a line."""
    from rich.table import Table  # noqa: PLC0415 - help loads no table

    titles = list(dict.fromkeys(row.method.title for row in rows))
    lines = dict[tuple[str, ...], list[str]]()
    for name in dict.fromkeys(row.launcher for row in rows):
        own = {row.method.title: row.cell for row in rows if row.launcher == name}
        lines.setdefault(tuple(own.get(title, "–") for title in titles), []).append(name)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", max_width=_NAMES)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for cells, names in lines.items():
        table.add_row(", ".join(names), *cells)
    return table


def _advice(rows: Sequence[Row], given: Mapping[str, object]) -> Iterator[str]:
    """Yield what the table's marks mean, and the commands with the fewest GPUs, in full and as adapters."""
    if any("✗" in row.cell for row in rows):
        yield "✗ does not fit within the accepted out-of-memory risk"
    fitting = [row for row in rows if row.need.fits]
    if not fitting:
        yield "Nothing fits here. Try GPUs with more memory, or more GPUs with --num-gpus"
        return
    whole = [row for row in fitting if "lora_rank" not in row.method.workload]
    adapters = [row for row in fitting if "lora_rank" in row.method.workload]
    for able in filter(None, (whole, adapters)):
        yield f"tip: {_command(min(able, key=lambda one: one.need.num_gpus), given)}"


def _command(row: Row, given: Mapping[str, object]) -> str:
    """Return the command that plans what a row is of."""
    need = row.need
    words = {
        "gpus": f"{need.num_gpus}x{given['gpu']}", "global-batch-size": need.num_gpus,
        "seq-length": given["seq-length"], "launcher": row.launcher,
    }  # fmt: skip
    if given["precision"]:
        words["precision"] = given["precision"]
    said = " ".join(f"--{name} {value}" for name, value in words.items())
    return f"meshwright plan {given['model']} {said} {row.method.option}".rstrip()
