"""``meshwright memory``: whether a model fits on how many GPUs, in a table of seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Annotated

import typer

from meshwright.service.cli.options import completion_of

_LARGEST = 1024  # GPUs that are tried
_NODE = 8
_BAR = 24  # characters of a full GPU
_LEAST_ROOM = 16  # characters of a configuration, however narrow the terminal
_ENOUGH = 3  # numbers of GPUs that fit


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
        str, typer.Option(help="GPU type.", autocompletion=completion_of("gpu"))
    ] = "h100-sxm-80gb",
    seq_length: Annotated[int, typer.Option(help="Tokens per sequence.")] = 4096,
    precision: Annotated[str, typer.Option(help="bf16, fp16, fp8, …")] = "bf16",
    optimizer: Annotated[str, typer.Option(help="adamw, adamw-8bit, …")] = "adamw",
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Show how much memory training a model takes on 1, 2, 4, 8, … GPUs, and how many it needs."""
    from meshwright.profiles.inline import model_from_mapping  # noqa: PLC0415 - help loads no solver
    from meshwright.profiles.profile import default_profile  # noqa: PLC0415 - the same
    from meshwright.service.cli.problem_options import gpu_part, model_part  # noqa: PLC0415 - the same
    from meshwright.service.cli.terminal import screen  # noqa: PLC0415 - the same
    from meshwright.service.report.formatting import LONG_NAMES, configuration_words  # noqa: PLC0415 - the same
    from meshwright.service.requests.parse import parse_problem  # noqa: PLC0415 - the same
    from meshwright.solver.explain.remedies import fastest  # noqa: PLC0415 - the same

    chip, part = gpu_part(gpu), model_part(model)
    sees = model_from_mapping(part).tower is not None
    rows, gpus, fitting, title = list[dict[str, object]](), 1, 0, ""
    while gpus <= _LARGEST and fitting < _ENOUGH:
        nodes, each = max(gpus // _NODE, 1), min(gpus, _NODE)
        problem = parse_problem(
            {
                "model": part,
                "cluster": {"groups": [{"gpu": chip, "num_nodes": nodes, "gpus_per_node": each}]},
                "workload": {
                    "global_batch_size": max(gpus, _NODE),
                    "seq_length": seq_length,
                    "precision": precision,
                    "optimizer": optimizer,
                    **({"images_per_sample": 0} if sees else {}),
                },
            }
        )
        title = (
            f"{problem.model.title} · {problem.cluster.groups[0].gpu.display_name} · {seq_length} tokens"
        )
        found = fastest(problem, default_profile(problem.cluster, problem.priced_as))
        row: dict[str, object] = {"num_gpus": gpus, "fits": isinstance(found, tuple)}
        if isinstance(found, tuple):
            config, seen = found
            fitting += 1
            row |= {
                "peak_memory_bytes": seen.peak_memory_bytes,
                "memory_limit_bytes": seen.memory_limit_bytes,
                "memory_bytes": dict(seen.stages[seen.heaviest_stage].memory_bytes),
                "configuration": configuration_words(config, LONG_NAMES),
            }
        rows.append(row)
        gpus *= 2
    if json_output:
        typer.echo(json.dumps(rows, indent=1))
        return
    console = screen()
    console.print(f"{title}{', no images' * sees} · {precision} · {optimizer}")
    for line in _lines(rows, console.width):
        console.print(line)


def _lines(rows: Sequence[Mapping[str, object]], width: int) -> Iterator[str]:
    """Yield one line for all counts of GPUs that are too few, and one for each that fits."""
    from meshwright.service.report.formatting import gib, wrapped  # noqa: PLC0415 - help loads no solver

    few = len(list(takewhile(lambda row: not row["fits"], rows)))
    for row in rows[max(few - 1, 0) :]:
        line = f"{row['num_gpus']:>6} GPU{'s' if row['num_gpus'] != 1 else ' '}  "
        if not row["fits"]:
            yield line + (
                "does not fit, nor on fewer" if row is rows[few - 1] and few > 1 else "does not fit"
            )
            continue
        peak, limit = int(str(row["peak_memory_bytes"])), int(str(row["memory_limit_bytes"]))
        bar = "█" * max(round(_BAR * peak / limit), 1)
        line += f"{gib(peak):>6} of {gib(limit)} GiB  {bar:<{_BAR}}  "
        words = wrapped(str(row["configuration"]), max(width - len(line), _LEAST_ROOM), hang=0).plain
        yield line + words.replace("\n", "\n" + " " * len(line))
