"""``meshwright compare``: two plans, term by term."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.saved_plans import SavedPlan, find_plan, plan_of_file
from meshwright.service.cli.terminal import print_json, screen
from meshwright.service.library import side_of
from meshwright.service.report.comparison import render_comparison
from meshwright.service.report.question import header
from meshwright.solver.explain.compare import compared

_PLAN_HELP = "Plan id (or its first characters), or a rank in the newest answer or in --from."


def compare(
    plan_a: Annotated[str, typer.Argument(help=_PLAN_HELP)],
    plan_b: Annotated[str, typer.Argument(help=_PLAN_HELP)],
    *,
    source: Annotated[Path | None, typer.Option("--from", help="Answer file, e.g. answer.json.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Show what each difference between two plans buys, in seconds that add up."""
    first, second = (plan_of_file(source, one) if source else find_plan(one) for one in (plan_a, plan_b))
    _require_same_question(first, second)
    sides = [side_of(one.plan, one.problem) for one in (first, second)]
    sides = [replace(one, profile=profile_for(one.problem, None)) for one in sides]
    found = compared(profile_for(sides[1].problem, None), *sides)
    if json_output:
        print_json({"plans": [first.plan.plan_id, second.plan.plan_id], **asdict(found)})
        return
    console = screen()
    console.print(header(second.problem, console.width))
    titles = tuple(f"#{one.plan.rank} {one.plan.plan_id[:4]}" for one in (first, second))
    configurations = (first.plan.config, second.plan.config)
    console.print(render_comparison(found, (titles[0], titles[1]), configurations, width=console.width))


def _require_same_question(first: SavedPlan, second: SavedPlan) -> None:
    one, other = first.problem, second.problem
    for name in ("model", "cluster", "launcher", "profile"):
        if getattr(one, name) != getattr(other, name):
            raise InvalidProblemError.of("plan_b", f"the plans answer different questions: another {name}")
    batches = (first.plan.config.global_batch_size, second.plan.config.global_batch_size)
    if batches[0] != batches[1] or one.workload.seq_length != other.workload.seq_length:
        raise InvalidProblemError.of("plan_b", "the plans answer different questions: their batches differ")
