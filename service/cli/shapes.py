"""``meshwright shapes``: nearby model shapes that would run faster or split better."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.options import (
    OF_A_RANKING,
    PROFILE_HELP,
    Request,
    with_request,
)
from meshwright.service.cli.terminal import (
    INFEASIBLE,
    NO_PLAN,
    print_json,
    say_error,
    screen,
)
from meshwright.service.report.shapes import render_shapes
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.explain.model_shapes import shape_advice


def shapes(
    request: Request,
    *,
    tolerance: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Largest relative change of the parameters.")
    ] = 0.02,
    most: Annotated[int, typer.Option(min=1, max=64, help="Shapes to show.")] = 8,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """List nearby model shapes that train faster for their size, or split better."""
    problem = parse_problem(request)
    advice = shape_advice(problem, profile_for(problem, profile), tolerance=tolerance, most=most)
    if advice is None:
        say_error("the model has no plan on this cluster. For the reasons, run meshwright plan")
        raise typer.Exit(INFEASIBLE)
    if advice == "unknown":
        say_error("the model has too many configurations here to search them all: pin some sizes")
        raise typer.Exit(NO_PLAN)
    if json_output:
        print_json(asdict(advice))
    else:
        console = screen()
        console.print(render_shapes(advice, problem, width=console.width))


# Of each shape the fastest plan is found by the closed form, on all GPUs, however long that takes.
_OF_A_PROOF = frozenset({"time_limit_s", "seed", "gpu_hour_price", "grid_co2_g_per_kwh", "certify"})
shapes_options = with_request(shapes, left_out=OF_A_RANKING | _OF_A_PROOF, searches=False)
