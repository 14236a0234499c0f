"""``meshwright explain``: the user's own configuration next to the best plan."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.launch_files import ConfigurationOptions, own_of
from meshwright.service.cli.options import (
    FROM_ARGS_HELP,
    IGNORE_HELP,
    OF_A_RANKING,
    PROFILE_HELP,
    RUN_HELP,
    SET_HELP,
    VAR_HELP,
    Request,
    with_request,
)
from meshwright.service.cli.post_training import explain_roles, starts_post_training
from meshwright.service.cli.progress import ProgressLine, cancellable
from meshwright.service.cli.saved_plans import SavedPlan, find_plan, keep, path_of
from meshwright.service.cli.terminal import code_of, print_json, say_warnings, screen
from meshwright.service.jobs.answers import answer_document
from meshwright.service.library import PlanResult, compared_with_best, recommended
from meshwright.service.report.comparison import reading_lines
from meshwright.service.report.levers import render_levers
from meshwright.service.report.question import header
from meshwright.service.report.terminal import profile_words, render_own, render_plan, render_summary
from meshwright.service.requests.assignments import asked_values
from meshwright.service.requests.launch_files import Own
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.parts import is_post_training
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.clock import Watch
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict, predict_all
from meshwright.solver.problem import Problem, ShouldStop

if TYPE_CHECKING:
    from meshwright.solver.explain.node_groups import GroupUse


def explain(
    request: Request,
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", "--configuration", help="Configuration as a JSON or YAML file."),
    ] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET_HELP)] = None,
    from_args: Annotated[list[Path] | None, typer.Option("--from-args", help=FROM_ARGS_HELP)] = None,
    variable: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help=VAR_HELP)
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option("--ignore", metavar="FLAG", help=IGNORE_HELP)] = None,
    run: Annotated[int | None, typer.Option("--run", min=1, help=RUN_HELP)] = None,
    plan: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Explain a saved plan in full, instead of your configuration."),
    ] = None,
    levers: Annotated[
        bool,
        typer.Option(
            "--levers",
            help="Search every change that may train faster: gradient type, optimizer, precision, storage "
            "of frozen weights, packing or padding, batch, offload, layouts, switches, launcher, one of "
            "unlike node groups. With --objective energy_per_token, the power limit. With --gpus fewest, "
            "changes that fit on fewer nodes. Takes a request, or --plan. Without either, it takes your "
            "newest answer.",
        ),
    ] = False,
    why_not: Annotated[
        list[str] | None,
        typer.Option(
            "--why-not",
            metavar="NAME=VALUE",
            help="Show what excludes plans with these values (tp=4,pp=2): the smallest set of "
            "reasons, or how much slower the best of them is.",
        ),
    ] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Price your own configuration next to the best plan, with the seconds that each difference buys."""
    stated = ConfigurationOptions(
        config=config, assign=assign, from_args=from_args, variables=variable, ignored=ignored, run=run
    )
    if is_post_training(request) or starts_post_training(from_args):
        if not from_args or len(from_args) > 1:
            raise typer.BadParameter("kind: post_training takes one recipe: --from-args recipe.yaml")
        if config or variable or ignored or run or plan or levers or why_not or profile:
            raise typer.BadParameter("a recipe of kind: post_training takes --set alone")
        raise typer.Exit(explain_roles(request, from_args[0], assign, json_output=json_output))
    has_own = bool(config or assign or from_args or variable)
    if levers and has_own:
        raise typer.BadParameter(
            "--levers is about the best plan: remove the options that state your own configuration"
        )
    if why_not and (has_own or levers or plan is not None):
        raise typer.BadParameter(
            "--why-not takes a request alone: remove --set, --config, --levers and --plan"
        )
    if plan is not None and (request or profile or has_own):
        raise typer.BadParameter(_PLAN_ALONE)
    if why_not:
        _explain_why_not(request, why_not, profile, as_json=json_output)
    elif levers:
        _explain_levers(request, plan, profile, as_json=json_output)
    elif plan is not None:
        _explain_plan(plan, as_json=json_output)
    else:
        _explain_configuration(request, stated, profile, as_json=json_output)


explain_options = with_request(explain, left_out=OF_A_RANKING)


def _answered(problem: Problem, costs: Profile, should_stop: ShouldStop) -> Answer:
    """Search, and show how far it is."""
    line = ProgressLine()
    answer = ask(problem, costs, on_progress=line.show, should_stop=should_stop)
    line.clear()
    return answer


def _explain_configuration(
    request: Request, stated: ConfigurationOptions, calibration: list[Path] | None, *, as_json: bool
) -> None:
    """Print the user's configuration next to the best plan of a search.

    Args:
        request: the question, without the configuration.
        stated: the options that state the configuration.
        calibration: profile files to price both with.
        as_json: print one document instead of text.

    Raises:
        InvalidProblemError: the question or the configuration is wrong.
        typer.Exit: the search found no plan.
    """
    own = own_of(request, stated)
    problem = recommended(own.question)
    costs = profile_for(problem, calibration)
    with cancellable() as should_stop:
        answer = _answered(problem, costs, should_stop)
    unkept = keep(answer_document(answer, problem), problem)
    say_warnings(unkept)
    console = screen()
    if not answer.plans:
        _say_no_plan(problem, answer, own, calibration, is_kept=not unkept, as_json=as_json)
        raise typer.Exit(code_of(answer, cancelled=should_stop()))
    ranking = PlanResult(problem=problem, answer=answer, profile=costs)
    own_costs = None if own.planned is None else profile_for(own.problem, calibration)
    comparison = compared_with_best(ranking, own.problem, own.configuration, own_costs)
    if as_json:
        print_json({**comparison.to_json(), "notes": list(own.notes), "unread": list(own.unread)})
        return
    console.print(header(problem, console.width))
    console.print(comparison.render(console.width, title=own.title, notes=own.notes, unread=own.unread))


def _say_no_plan(
    problem: Problem, answer: Answer, own: Own, calibration: list[Path] | None, *,
    is_kept: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print what would help the user's configuration, with the command that asks its question."""
    document = answer_document(answer, problem)
    seen = predict(own.problem, profile_for(own.problem, calibration), own.configuration)
    if as_json:
        found = {"yours": asdict(own.configuration), "prediction": asdict(seen), "status": answer.status}
        read = {"notes": list(own.notes), "unread": list(own.unread)}
        print_json({**found, "answer": document, **read})
        return
    console = screen()
    question = shlex.join(["meshwright", "plan", str(path_of(document, problem))]) if is_kept else ""
    console.print(render_summary(answer, problem, width=console.width, question=question))
    console.print(render_own(own.configuration, seen, title=own.title, width=console.width))
    console.print(reading_lines(own.notes, own.unread, width=console.width))


_PLAN_ALONE = "--plan already contains the question and its answer: remove the other options"


def _explain_levers(
    request: Request, plan_id: str | None, calibration: list[Path] | None, *, as_json: bool
) -> None:
    """Print every change that trains faster than the first plan, each searched."""
    from meshwright.solver.planner.levers.levers import every_lever, has_levers  # noqa: PLC0415 - asked for by few

    with cancellable() as should_stop:
        is_stated = bool(request or calibration)
        kept = find_plan(plan_id) if plan_id is not None else None if is_stated else _newest()
        if kept is not None:
            problem, answer = kept.problem, kept.answer
            costs = profile_for(problem, None)
        else:
            problem = parse_problem(request)
            costs = profile_for(problem, calibration)
            answer = _answered(problem, costs, should_stop)
        console = screen()
        if not answer.ranking:
            console.print(render_summary(answer, problem, width=console.width))
            raise typer.Exit(code_of(answer, cancelled=should_stop()))
        watch = Watch(time_limit_s=_LEVERS_S, should_stop=should_stop)
        found, sought = every_lever(problem, costs, answer, watch), has_levers(problem, answer)
    complete = sought and not watch.stopped
    if as_json:
        print_json({"levers": [asdict(one) for one in found], "complete": complete})
        return
    console.print(header(problem, console.width))
    shown = render_levers(
        found, answer.ranking[0], objective=problem.options.objective,
        fewest=problem.options.gpus == "fewest", sought=sought, complete=complete, width=console.width,
    )  # fmt: skip
    console.print(shown)


def _newest() -> SavedPlan | None:
    """Return the first plan of the newest answer, which printed the command; None if none is kept."""
    with suppress(InvalidProblemError):
        return find_plan("1")
    return None


def _explain_why_not(
    request: Request, texts: Sequence[str], calibration: list[Path] | None, *, as_json: bool
) -> None:
    """Print why the best plan does not have some values.

    Raises:
        InvalidProblemError: a name or a value is unknown.
    """
    from meshwright.service.report.why_not import render_why_not  # noqa: PLC0415 - asked for by few
    from meshwright.solver.planner.why_not import why_not  # noqa: PLC0415 - the same

    values = asked_values("--why-not", texts)
    problem = parse_problem(request)
    costs = profile_for(problem, calibration)
    with cancellable() as should_stop:
        answer = _answered(problem, costs, should_stop)
        watch = Watch(time_limit_s=problem.options.time_limit_s, should_stop=should_stop)
        found = why_not(problem, costs, values, answer, watch)
    if as_json:
        print_json({**asdict(replace(found, plan=None)), "plan": found.plan and found.plan.to_json()})
        return
    console = screen()
    console.print(header(problem, console.width))
    console.print(render_why_not(found, console.width))


_LEVERS_S = 300.0  # for the searches of all changes


def _explain_plan(plan_id: str, *, as_json: bool) -> None:
    kept = find_plan(plan_id)
    plan = kept.plan
    uses = _uses_of_groups(plan, kept) if plan.config.classes[0].stage_groups else []
    if as_json:
        own = {"node_groups": [asdict(one) for one in uses]} if uses else {}
        print_json({**plan.to_json(), **own})
        return
    console = screen()
    console.print(
        render_plan(
            plan,
            kept.problem,
            width=console.width,
            profile=profile_words(kept.answer, kept.problem),
            answer=kept.answer,
            groups=uses,
        )
    )


def _uses_of_groups(plan: Plan, kept: SavedPlan) -> list[GroupUse]:
    """Return what a placed plan does with each node group, and what one more node would bring."""
    from meshwright.service.reporting import settled_for  # noqa: PLC0415 - placed plans alone
    from meshwright.solver.explain.node_groups import SEARCH_S, group_uses, with_one_more_node  # noqa: PLC0415

    problem, profile = settled_for(plan, kept.problem, profile_for(kept.problem, None))
    seen, best = predict_all(problem, profile, [plan.config, kept.answer.plans[0].config])
    uses = group_uses(problem, profile, replace(plan, prediction=seen))
    with cancellable() as should_stop:
        return with_one_more_node(
            problem,
            profile,
            best.step_time_s,
            uses,
            Watch(time_limit_s=SEARCH_S * (len(uses) + 1), should_stop=should_stop),
        )
