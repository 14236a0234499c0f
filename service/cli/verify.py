"""``meshwright verify``: a plan before its launcher's own code, without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright.launchers.registry import launcher_of
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.units import GIB
from meshwright.service.cli.saved_plans import chosen_plan, keep_verdict
from meshwright.service.cli.terminal import (
    BAD_INPUT,
    FOUND,
    NO_PLAN,
    print_json,
    require_above_0,
    say_error,
    say_warnings,
)
from meshwright.service.requests.checks import check_launcher
from meshwright.service.verify.environments import MEMORY_BYTES, TIME_S, make
from meshwright.service.verify.verify import BUILDERS, Verification, VerifiedQuantity, verify
from meshwright.solver.answer import settled_problem

_EXIT = {"verified": FOUND, "partly verified": FOUND, "differs": NO_PLAN, "not built": NO_PLAN}


def verify_command(
    plan_id: Annotated[
        str | None, typer.Argument(help="Plan id (or its first characters), or a rank.")
    ] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="Answer file, e.g. answer.json.")] = None,
    rank: Annotated[int, typer.Option(help="Rank of the plan in --from.")] = 1,
    launcher: Annotated[str | None, typer.Option(help="Another launcher than the problem's.")] = None,
    install: Annotated[
        list[str] | None,
        typer.Option(metavar="LAUNCHER|all", help="Install the pinned environment of a launcher and exit."),
    ] = None,
    memory_gib: Annotated[
        float, typer.Option(help="Memory limit of the launcher's process, in GiB.")
    ] = MEMORY_BYTES / GIB,
    time_limit: Annotated[
        float, typer.Option(help="Time limit of the launcher's process, in seconds.")
    ] = TIME_S,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Let the launcher's own code build every distinct rank of a plan on this CPU, and compare."""
    if install:
        raise typer.Exit(_install(install, plan_id or ("--from" if source else None)))
    require_above_0("--memory-gib", memory_gib)
    require_above_0("--time-limit", time_limit)
    if launcher is not None:
        check_launcher(launcher, at="--launcher")
    chosen = chosen_plan(plan_id, source, rank)
    found = verify(
        chosen.plan, chosen.problem, launcher, memory_bytes=int(memory_gib * GIB), time_s=time_limit
    )
    own = launcher_of(settled_problem(chosen.plan, chosen.problem), None)
    if found.launcher == own:
        say_warnings(keep_verdict(found.plan_id, found.verdict))
    else:
        say_warnings([f"the plan is for {own}: the verdict of {found.launcher} is not saved with it"])
    if json_output:
        print_json(found.to_json())
    else:
        sys.stdout.write("\n".join(verification_lines(found)) + "\n")
    raise typer.Exit(_EXIT[found.verdict])


def _install(names: list[str], beside: str | None) -> int:
    wanted = list(BUILDERS) if "all" in names else names
    for name in wanted:
        check_launcher(name, at="--install")
        if name not in BUILDERS:
            raise InvalidProblemError.of(
                "--install",
                f"{name} can't build a rank without a GPU",
                allowed=", ".join((*BUILDERS, "all")),
            )
    if beside is not None:
        raise InvalidProblemError.of(
            beside,
            "--install only installs: remove the other options",
            allowed=f"--install {beside}" if beside in BUILDERS else "--install alone",
        )
    for name in wanted:
        environment = BUILDERS[name]
        try:
            make(environment)
        except subprocess.CalledProcessError as fault:
            said = " ".join(str(fault.stderr or fault).split())
            say_error(f"the environment of {name} cannot be made: {said[-300:]}")
            return BAD_INPUT
        sys.stdout.write(f"{name} {environment.pinned} in {environment.folder}\n")
    return FOUND


def verification_lines(found: Verification) -> list[str]:
    """The verification as a table, one line for each quantity of each rank."""
    lines = [f"plan {found.plan_id[:10]} built by {found.launcher} {found.version}: {found.verdict}"]
    lines += [f"  {text}" for text in found.reasons]
    if found.quantities:
        lines += ["", f"  {'rank':>5} {'stage':>5}  {'quantity':<16} {'priced':>22} {'built':>22}"]
        lines += [_line(one) for one in found.quantities]
    if found.peak_memory_bytes is not None:
        whole = found.peak_memory_bytes / GIB
        lines += ["", f"  Traced peak with context, buffers and reserve: {whole:.1f} GiB of a GPU."]
    return lines


def _line(one: VerifiedQuantity) -> str:
    said = {True: "exact", False: "differs", None: ""}[one.exact]
    if one.exact is None and one.error is not None:
        said = f"{100 * one.error:+.1f} %"
    priced, built = _shown(one.name, one.priced), _shown(one.name, one.built)
    return (
        f"  {one.rank:>5} {one.stage:>5}  {one.name.replace('_', ' '):<16} {priced:>22} {built:>22}  {said}"
    )


def _shown(name: str, value: object) -> str:
    """A figure with its unit; of lists how much they hold."""
    if isinstance(value, list):
        if name == "layers":
            return " ".join(map(str, value)) if len(value) <= 6 else f"{sum(value)} in {len(value)} chunks"  # noqa: PLR2004
        return f"{len(value)} shapes" if name == "matrices" else f"{len(value)} layers"
    number = float(str(value))
    if name.endswith("bytes"):
        return f"{number / GIB:.3f} GiB"
    return f"{number / 1e12:.2f} TFLOP" if name == "flops" else f"{number:.0f}"
