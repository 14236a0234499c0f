"""``meshwright``: every command of the product; each stands in its own file and loads what it needs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from profiles.errors import InternalError, PlannerError
from service.cli import (
    calibrate,
    catalogs,
    compare,
    database,
    demo,
    explain,
    export,
    import_file,
    jobs,
    keys,
    plan,
    plot,
    predict,
    processes,
    profile,
    report,
    shapes,
    validate,
)
from service.cli.examples import with_examples
from service.cli.exits import report as report_fault
from service.cli.exits import report_usage
from service.cli.screen import spell_plainly

app = typer.Typer(
    name="meshwright",
    help="Which parallel configuration should this training run use, and how sure are we?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    """``--version``."""
    if wanted:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - 20 ms for this alone

        try:
            typer.echo(f"meshwright {version('meshwright')}")
        except PackageNotFoundError:
            typer.echo("meshwright (run from a checkout, not installed)")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Say the version.")
    ] = False,
) -> None:
    """Which parallel configuration should this training run use, and how sure are we?"""


app.command("plan")(plan.plan)
app.command("predict")(predict.predict)
app.command("explain")(explain.explain)
app.command("compare")(compare.compare)
app.command("shapes")(shapes.shapes)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("plot")(plot.plot)
app.command("calibrate")(calibrate.calibrate)
app.command("validate")(validate.validate)
app.command("profile")(profile.profile)
app.command("import")(import_file.import_file)
app.command("models")(catalogs.models)
app.command("clusters")(catalogs.clusters)
app.command("gpus")(catalogs.gpus)
app.command("serve")(processes.serve)
app.command("worker")(processes.worker)
app.command("demo")(demo.demo)
app.add_typer(jobs.app, name="jobs")
app.add_typer(keys.app, name="keys")
app.add_typer(database.app, name="db")
with_examples(app)


def main() -> None:
    """The console script; errors the user can mend become one line and exit code 2."""
    spell_plainly()
    try:
        sys.exit(app(prog_name="meshwright", standalone_mode=False))
    except InternalError:
        raise  # a bug: the traceback is wanted, the exit code is 1
    except PlannerError as fault:
        sys.exit(report_fault(fault))
    except TyperException as fault:
        sys.exit(report_usage(fault))


if __name__ == "__main__":
    main()
