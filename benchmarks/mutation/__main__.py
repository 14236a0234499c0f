"""``make bench ARGS=mutants``: count how many small faults, drawn from the product, the tests notice.

Cosmic Ray makes the mutants and keeps the results. This module draws which; ``trying.py`` runs the tests
that execute the changed line. ``--draw 1000 --seed 1`` names the same mutants for the same commit. A run
that was interrupted continues from its folder; what was tried until then is a smaller draw of all areas.
``--retry`` tries the survivors again with the current commit's tests. ``survivors.yaml`` gives each
survivor its reason: *equivalent*, or a gap. Shares are printed with their 95 % intervals. The committed
state is tried, in clones below the folder; the checkout itself is never changed.
The job engine and the workers are left out: their tests are the integration tests, which are not run here.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import zip_longest
from pathlib import Path

import pytest
import yaml
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.commands.init import _operators
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkItem

from benchmarks.mutation.silent import silent

ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("survivors.yaml")
AREAS = {
    "layers": ("profiles/layers",),
    "cost": ("solver/cost",),
    "folds": ("profiles/adapters.py", "solver/cost/parameters.py", "solver/cost/compute.py"),  # over layers
    "rules": ("solver/space", "solver/check.py"),
    "bounds": ("solver/search",),
    "readers": ("launchers", "shell", "service/requests"),
    "importers": ("profiles/importers",),
}
BITWISE = re.compile(r"BinaryOperator_\w+_(RShift|LShift|BitAnd|BitOr|BitXor)$")
TESTS = ("tests/unit", "tests/property", "tests/golden")
AIM = 0.95
LINES, TIMES = "lines.coverage", "times.xml"
UNCHANGED = ("name", "newline", "string", "trailer", "atom_expr", "arglist")  # no operator changes these


def modules() -> dict[Path, str]:
    """Return the files that are drawn from, each with its area."""
    found = dict[Path, str]()
    for area, places in AREAS.items():
        for place in places:
            path = ROOT / place
            files = [path] if path.is_file() else sorted(path.rglob("*.py"))
            found |= {file.relative_to(ROOT): area for file in files if file.stat().st_size}
    return found


def draw(areas: Sequence[str], count: int, seed: int) -> list[WorkItem]:
    """Return the drawn mutants, by turns one of each area: each part of the draw is a smaller draw.

    Places are drawn first and then one change of each, so that an operator with many replacements counts
    once. Arithmetic is never replaced by bitwise operators: those fail on every float, and would flatter.
    """
    files, turns = modules(), list[list[MutationSpec]]()
    for area in areas:
        chance = random.Random(f"{seed} {area}")  # noqa: S311 - a draw, not a secret
        places = defaultdict[tuple[str, tuple[int, int]], list[MutationSpec]](list)
        for file in (file for file, of in files.items() if of == area):
            for one in mutations(file):
                places[str(file), one.start_pos].append(one)
        drawn = chance.sample(sorted(places), min(len(places), count // len(areas)))
        turns.append([chance.choice(places[place]) for place in drawn])
    order = (one for turn in zip_longest(*turns) for one in turn if one is not None)
    return [WorkItem.single(f"{number:05}", one) for number, one in enumerate(order)]


def mutations(file: Path) -> Iterator[MutationSpec]:
    """Yield the changes of a file that may matter, named and counted as Cosmic Ray does."""
    code = (ROOT / file).read_text(encoding="utf-8")
    quiet = silent(code)
    nodes = [node for node in ast_nodes(get_ast(code)) if node.type not in UNCHANGED]
    for name, _, operator in _operators({}):
        positions = ((node, *where) for node in nodes for where in operator.mutation_positions(node))
        for occurrence, (node, start, end) in enumerate(positions):
            if start not in quiet and not BITWISE.search(name):
                definition = ASTQuery(node).get_definition_name()
                yield MutationSpec(file, name, occurrence, start, end, definition_name=definition)


def clone(to: Path) -> None:
    """Check out the current commit; modules are compiled so that Python sees a change within a second."""
    if not to.exists():
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(to)], check=True)
    subprocess.run(["git", "-C", str(to), "checkout", "-q", "-f", "."], check=True)
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "."]
    subprocess.run(command, cwd=to, check=True)


def renew_tests(where: Path) -> None:
    """Check out the current commit's tests next to the product that the mutants were drawn from."""
    subprocess.run(["git", "fetch", "-q", str(ROOT), "HEAD"], cwd=where, check=True)
    subprocess.run(["git", "checkout", "-q", "-f", "FETCH_HEAD", "--", "tests"], cwd=where, check=True)


def measure(where: Path, out: Path, tests: Sequence[str], processes: int) -> None:
    """Record with pytest-cov which test executes which line, and the CPU seconds of each."""
    rooms = [f"--cov={room}" for room in ("solver", "profiles", "shell", "launchers", "service")]
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), "--dist", "loadfile"]
    command += [*rooms, "--cov-context=test", "--cov-report="]
    command += ["-p", "benchmarks.mutation.cpu_times", f"--junitxml={out / TIMES}", *tests]
    code = subprocess.run(command, cwd=where, env=_environment(where), check=False).returncode
    if code > pytest.ExitCode.TESTS_FAILED:  # limits in seconds may fail here; those tests are not used
        raise SystemExit(f"error: the tests did not run (pytest ended with {code})")
    (where / ".coverage").rename(out / LINES)


def _environment(where: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (where / "src", where, where / "client")))}


def run(where: Path, session: Path, out: Path, most_s: float) -> None:
    """Try the mutants without a result."""
    given = (session, out / LINES, out / TIMES, most_s)
    command = [sys.executable, "-m", "benchmarks.mutation.trying", *map(str, given)]
    subprocess.run(command, cwd=where, env=_environment(where), check=True)


def forget_survivors(session: Path) -> None:
    """Delete the results of survivors, so that they are tried again."""
    with closing(sqlite3.connect(session)) as database, database:
        database.execute("DELETE FROM work_results WHERE test_outcome = 'SURVIVED'")


def survivors(session: Path, where: Path) -> tuple[Counter[str], dict[str, str]]:
    """Return how many mutants of each outcome there are, and each survivor's change by its name."""
    outcomes, alive = Counter[str](), {}
    with use_db(session, WorkDB.Mode.open) as database:
        items: dict[str, WorkItem] = {item.job_id: item for item in database.work_items}
        for job, result in database.results:
            outcome = str(result.test_outcome.value if result.test_outcome else result.worker_outcome.value)
            outcomes[outcome] += 1
            if result.test_outcome == TestOutcome.SURVIVED:
                name, change = named(items[job].mutations[0], where)
                alive[name] = change
    return outcomes, alive


def named(mutation: MutationSpec, where: Path) -> tuple[str, str]:
    """Return a name that lines added above do not change, and the changed line.

    The name is the file, definition, operator and line of text.
    """
    code = (where / mutation.module_path).read_text(encoding="utf-8")
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    changed = mutate_code(code, operator, mutation.occurrence) or code
    pairs = zip(code.splitlines(), changed.splitlines(), strict=False)
    change = next((new.strip() for old, new in pairs if old != new), "")
    line = code.splitlines()[mutation.start_pos[0] - 1].strip()
    short = f"{mutation.operator_name.removeprefix('core/')}#{mutation.occurrence}"
    return f"{mutation.module_path}:{mutation.definition_name or ''}:{short}: {line}", change


def main() -> int:
    """Draw, run and report; return 1 when too many survive or one is not listed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draw", type=int, default=1000, help="mutants to try [default: 1000]")
    parser.add_argument("--seed", type=int, default=1, help="of the draw [default: 1]")
    parser.add_argument(
        "--only", nargs="+", choices=AREAS, default=list(AREAS), help="areas [default: all]"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "mutants", help="folder of the run")
    parser.add_argument("--processes", type=int, default=2, help="run so many at a time [default: 2]")
    parser.add_argument(
        "--most-s",
        type=float,
        default=60.0,
        help="longest tests of one mutant, in CPU seconds [default: 60]",
    )
    parser.add_argument(
        "--tests", nargs="+", default=list(TESTS),
        help="folders and files of tests that may notice a mutant; fewer are measured sooner, and what"
        f" survives them is tried again with --retry [default: {' '.join(TESTS)}]",
    )  # fmt: skip
    parser.add_argument("--report", action="store_true", help="try none; report those that were tried")
    parser.add_argument(
        "--retry", action="store_true", help="try the survivors again with the current commit's tests"
    )
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    clones = [out / f"clone-{number}" for number in range(asked.processes)]
    sessions = [out / f"session-{number}.sqlite" for number in range(asked.processes)]
    if not asked.report:
        prepare(asked, clones, sessions)
        with ThreadPoolExecutor(asked.processes) as pool:
            list(pool.map(run, clones, sessions, [out] * len(clones), [asked.most_s] * len(clones)))
    outcomes, alive = Counter[str](), dict[str, str]()
    for session, where in zip(sessions, clones, strict=True):
        counted, names = survivors(session, where)
        outcomes, alive = outcomes + counted, alive | names
    return report(outcomes, alive)


def prepare(asked: argparse.Namespace, clones: Sequence[Path], sessions: Sequence[Path]) -> None:
    """Make what is missing in the folder of the run: the draw, the checkouts, the tests of each line."""
    if not all(session.exists() for session in sessions):
        drawn = draw(asked.only, asked.draw, asked.seed)
        for number, session in enumerate(sessions):
            with use_db(session, WorkDB.Mode.create) as database:
                database.add_work_items(drawn[number :: len(sessions)])
    for place in clones:
        clone(place)
        if asked.retry:
            renew_tests(place)
    if asked.retry:
        for session in sessions:
            forget_survivors(session)
        (sessions[0].parent / LINES).unlink(missing_ok=True)
    if not (sessions[0].parent / LINES).exists():
        measure(clones[0], sessions[0].parent, asked.tests, len(clones))


def report(outcomes: Counter[str], alive: dict[str, str]) -> int:
    """Print the share and the survivors without a reason; return 1 if there are any, or too many of all."""
    listed: dict[str, str] = yaml.safe_load(LISTED.read_text()) if LISTED.exists() else {}
    tried = outcomes["killed"] + outcomes["survived"]
    low, high = interval(outcomes["killed"], tried)
    share = outcomes["killed"] / max(tried, 1)
    print(f"mutants={tried} killed={tried - outcomes['survived']} ({share:.1%}; {low:.1%} to {high:.1%})")
    unlisted = {name: change for name, change in alive.items() if name not in listed}
    for name, change in sorted(unlisted.items()):
        print(f"SURVIVED {name}\n      -> {change}")
    equivalent = sum(listed.get(name, "").startswith("equivalent") for name in alive)
    share = outcomes["killed"] / max(tried - equivalent, 1)
    low, high = interval(outcomes["killed"], tried - equivalent)
    print(f"killed of those that are not equivalent: {share:.1%} ({low:.1%} to {high:.1%}; aim {AIM:.0%})")
    return int(bool(unlisted) or share < AIM)


def interval(successes: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, JASA 1927)."""
    z, of = 1.96, max(of, 1)
    share = successes / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return middle - half, middle + half


if __name__ == "__main__":
    sys.exit(main())
