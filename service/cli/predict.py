"""``meshwright predict``: price one configuration, or a plan that was found before."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.launch_files import ConfigurationOptions, own_of
from meshwright.service.cli.options import (
    FROM_ARGS_HELP,
    IGNORE_HELP,
    OF_A_SEARCH,
    PROFILE_HELP,
    RUN_HELP,
    SET_HELP,
    VAR_HELP,
    Request,
    with_request,
)
from meshwright.service.cli.saved_plans import plan_named
from meshwright.service.cli.terminal import faults_also_as_json, print_json, screen
from meshwright.service.library import PredictResult, predict
from meshwright.service.report.comparison import reading_lines
from meshwright.service.report.formatting import seconds, wrapped
from meshwright.service.requests.launch_files import ramp_notes
from meshwright.service.requests.parts import is_post_training
from meshwright.solver.answer import settled_problem
from meshwright.solver.configuration import SHORT_NAMES


def predict_command(
    request: Request,
    *,
    pin: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", hidden=True)] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration as a JSON or YAML file.")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET_HELP)] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="ID|FILE",
            help="Predict a saved plan (id or answer file) instead of a configuration.",
        ),
    ] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    from_args: Annotated[list[Path] | None, typer.Option("--from-args", help=FROM_ARGS_HELP)] = None,
    variable: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help=VAR_HELP)
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option("--ignore", metavar="FLAG", help=IGNORE_HELP)] = None,
    run: Annotated[int | None, typer.Option("--run", min=1, help=RUN_HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Price one configuration: step time, memory by stage, risk of running out of it."""
    if is_post_training(request):
        from meshwright.service.cli.post_training import predict_roles  # noqa: PLC0415 - only for this kind

        if config or assign or plan or from_args or variable or ignored or run:
            raise typer.BadParameter("the roles of kind: post_training are stated in the file")
        raise typer.Exit(predict_roles(request, json_output=json_output))
    if from_args:
        from meshwright.service.cli.post_training import (  # noqa: PLC0415 - only for this kind
            predict_recipe,
            starts_post_training,
        )

        if starts_post_training(from_args):
            if config or variable or ignored or run or plan or profile:
                raise typer.BadParameter("a recipe of kind: post_training takes --set alone")
            raise typer.Exit(predict_recipe(request, from_args[0], assign, json_output=json_output))
    if pin:
        raise InvalidProblemError.of(
            "--pin",
            "predict doesn't search, so there is nothing to pin: use --set",
            nearest=" ".join(f"--set {shlex.quote(one)}" for one in pin),
        )
    if plan is not None:
        if request or config or assign or from_args or variable or ignored or run:
            raise typer.BadParameter(
                "--plan already contains the question: only --profile and --json go with it"
            )
        _predict_plan(plan, profile, as_json=json_output)
        return
    with faults_also_as_json(as_json=json_output):
        _require_one(request)
        own = own_of(
            request,
            ConfigurationOptions(
                config=config,
                assign=assign,
                from_args=from_args,
                variables=variable,
                ignored=ignored,
                run=run,
            ),
        )
        costs = profile_for(own.problem, profile)
        found = predict(own.problem, own.configuration, profile=costs)
    _print(
        found,
        [*own.notes, *ramp_notes(own, costs), *found.notes],
        own.unread,
        as_json=json_output,
        assumed=own.assumed,
    )


predict_options = with_request(predict_command, left_out=OF_A_SEARCH, searches=False)


def _predict_plan(word: str, calibration: Sequence[Path] | None, *, as_json: bool) -> None:
    kept = plan_named(word)
    found = predict(
        kept.problem, kept.plan, profile=profile_for(settled_problem(kept.plan, kept.problem), calibration)
    )
    plan_id = kept.plan.plan_id
    then_s, now_s = kept.plan.prediction.step_time_s, found.prediction.step_time_s
    _print(
        found, found.notes, (), as_json=as_json, more={"plan_id": plan_id, "step_time_s_when_found": then_s}
    )
    if not as_json:
        before = (
            f"Plan {plan_id} was predicted {seconds(then_s)} when it was found, and {seconds(now_s)} now."
        )
        console = screen()
        console.print(wrapped(before, console.width, indent=2))


def _print(
    found: PredictResult,
    notes: Sequence[str],
    unread: Sequence[str],
    *,
    as_json: bool,
    assumed: Mapping[str, object] = MappingProxyType({}),
    more: Mapping[str, object] = MappingProxyType({}),
) -> None:
    if as_json:
        print_json(
            {
                **found.to_json(),
                "assumed": dict(assumed),
                **more,
                "notes": list(notes),
                "unread": list(unread),
            }
        )
    else:
        console = screen()
        console.print(found.render(console.width))
        if assumed:
            words = (f"{SHORT_NAMES.get(name, name)} {_word(value)}" for name, value in assumed.items())
            console.print(wrapped(f"Assumed: {', '.join(words)}.", console.width, indent=2))
        console.print(reading_lines(notes, unread, width=console.width))


def _require_one(request: Request) -> None:
    for part, name in (("cluster", "num_nodes"), ("workload", "global_batch_size")):
        given = request.get(part)
        value = given.get(name) if isinstance(given, dict) else None
        if isinstance(value, list | dict):
            raise InvalidProblemError.of(
                pointer(part, name), "predict takes one configuration: give one number"
            )


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
