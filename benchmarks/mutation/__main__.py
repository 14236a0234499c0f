"""``make bench ARGS=mutants``: count how many small faults, drawn from the product, the tests notice.

Cosmic Ray makes the mutants and runs them. This module draws which; ``covering.py`` runs the tests that
execute the changed line. ``--draw 1000 --seed 1`` names the same mutants for the same commit. A run that
was interrupted continues from its folder. ``survivors.yaml`` gives each survivor its reason: *equivalent*,
or a gap. The committed state is tried, in clones below the folder; the checkout itself is never changed.
The job engine and the workers are left out: their tests are the integration tests, which are not run here.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from cosmic_ray.commands.init import _all_work_items
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkItem

from benchmarks.mutation.silent import silent

ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("survivors.yaml")
AREAS = {
    "cost": ("solver/cost",),
    "rules": ("solver/space", "solver/check.py"),
    "bounds": ("solver/search",),
    "readers": ("launchers", "shell", "service/requests"),
    "importers": ("profiles/importers",),
}
BITWISE = re.compile(r"BinaryOperator_\w+_(RShift|LShift|BitAnd|BitOr|BitXor)$")
TESTS = ("tests/unit", "tests/property", "tests/golden")
AIM = 0.95
TIMEOUT_S = 300
PROCESSES = 2


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
    """Return the drawn mutants, an equal share from each area: the largest does not decide the figure.

    Places are drawn first and then one change of each, so that an operator with many replacements counts
    once. Arithmetic is never replaced by bitwise operators: those fail on every float, and would flatter.
    """
    chance, drawn = random.Random(seed), list[WorkItem]()  # noqa: S311 - a draw, not a secret
    files = modules()
    for area in areas:
        places = defaultdict[tuple[str, tuple[int, int]], list[WorkItem]](list)
        for file in (file for file, of in files.items() if of == area):
            quiet = silent((ROOT / file).read_text(encoding="utf-8"))
            for item in _all_work_items([file], {}):
                one = item.mutations[0]
                if tuple(one.start_pos) not in quiet and not BITWISE.search(one.operator_name):
                    places[str(file), one.start_pos].append(item)
        for place in chance.sample(sorted(places), min(len(places), count // len(areas))):
            items = sorted(places[place], key=_order)
            drawn += [item for item in chance.sample(items, len(items)) if _is_python(item)][:1]
    return drawn


def _is_python(item: WorkItem) -> bool:
    """Return whether a mutant can be read: a ``*`` between parameters counts as an operator, too."""
    try:
        ast.parse(mutated(item.mutations[0]))
    except SyntaxError:
        return False
    return True


def _order(item: WorkItem) -> tuple[str, int]:
    return (item.mutations[0].operator_name, item.mutations[0].occurrence)


def clone(to: Path) -> None:
    """Check out the current commit; modules are compiled so that Python sees a change within a second."""
    if not to.exists():
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(to)], check=True)
    subprocess.run(["git", "-C", str(to), "checkout", "-q", "-f", "."], check=True)
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "."]
    subprocess.run(command, cwd=to, check=True)


def measure(where: Path, database: Path) -> None:
    """Record which test executes which line with pytest-cov."""
    rooms = [f"--cov={room}" for room in ("solver", "profiles", "shell", "launchers", "service")]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not alone"]
    command += [*rooms, "--cov-context=test", "--cov-report=", *TESTS]
    code = subprocess.run(command, cwd=where, env=_environment(where), check=False).returncode
    if code > pytest.ExitCode.TESTS_FAILED:  # limits in seconds may fail here
        raise SystemExit(f"error: the tests did not run (pytest ended with {code})")
    (where / ".coverage").rename(database)


def _environment(where: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (where / "src", where, where / "client")))}


def run(where: Path, session: Path, coverage_file: Path) -> None:
    """Let Cosmic Ray try the mutants without a result."""
    config = where.parent / f"{session.stem}.toml"
    config.write_text(
        "[cosmic-ray]\nmodule-path = '.'\n"
        f"timeout = {TIMEOUT_S}\n"
        f"test-command = '{sys.executable} -m benchmarks.mutation.covering {coverage_file}'\n"
        "[cosmic-ray.distributor]\nname = 'local'\n"
    )
    command = [sys.executable, "-m", "cosmic_ray.cli", "exec", str(config), str(session)]
    subprocess.run(command, cwd=where, env=_environment(where), check=True)


def survivors(session: Path) -> tuple[Counter[str], dict[str, str]]:
    """Return how many mutants of each outcome there are, and each survivor's change by its place."""
    outcomes, alive = Counter[str](), {}
    with use_db(session, WorkDB.Mode.open) as database:
        items: dict[str, WorkItem] = {item.job_id: item for item in database.work_items}
        for job, result in database.results:
            outcome = str(result.test_outcome.value if result.test_outcome else result.worker_outcome.value)
            outcomes[outcome] += 1
            if result.test_outcome == TestOutcome.SURVIVED:
                alive[name_of(items[job].mutations[0])] = change_of(items[job].mutations[0])
    return outcomes, alive


def name_of(mutation: MutationSpec) -> str:
    """Return a name that lines added above do not change: file, definition, operator and line of text."""
    line = (ROOT / mutation.module_path).read_text().splitlines()[mutation.start_pos[0] - 1].strip()
    operator = mutation.operator_name.removeprefix("core/")
    return (
        f"{mutation.module_path}:{mutation.definition_name or ''}:{operator}#{mutation.occurrence}: {line}"
    )


def change_of(mutation: MutationSpec) -> str:
    """Return the changed line."""
    code = (ROOT / mutation.module_path).read_text()
    pairs = zip(code.splitlines(), mutated(mutation).splitlines(), strict=False)
    return next((new.strip() for old, new in pairs if old != new), "")


def mutated(mutation: MutationSpec) -> str:
    """Return the code of the changed file."""
    code = (ROOT / mutation.module_path).read_text()
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    changed: str = mutate_code(code, operator, mutation.occurrence) or code
    return changed


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
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    halves = [out / f"half-{number}.sqlite" for number in range(PROCESSES)]
    if not all(half.exists() for half in halves):
        drawn = draw(asked.only, asked.draw, asked.seed)
        for number, half in enumerate(halves):
            with use_db(half, WorkDB.Mode.create) as database:
                database.add_work_items(drawn[number::PROCESSES])
    clones = [out / f"clone-{number}" for number in range(PROCESSES)]
    for place in clones:
        clone(place)
    lines = out / "lines.coverage"
    if not lines.exists():
        measure(clones[0], lines)
    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(run, clones, halves, [lines] * PROCESSES))
    outcomes, alive = Counter[str](), dict[str, str]()
    for half in halves:
        counted, names = survivors(half)
        outcomes, alive = outcomes + counted, alive | names
    return report(outcomes, alive)


def report(outcomes: Counter[str], alive: dict[str, str]) -> int:
    """Print the share and the survivors without a reason; return 1 if there are any, or too many of all."""
    listed: dict[str, str] = yaml.safe_load(LISTED.read_text()) if LISTED.exists() else {}
    tried = sum(outcomes.values())
    killed = tried - outcomes["survived"]
    print(f"mutants={tried} killed={killed} ({killed / max(tried, 1):.1%}) {dict(outcomes)}")
    unlisted = {name: change for name, change in alive.items() if name not in listed}
    for name, change in sorted(unlisted.items()):
        print(f"SURVIVED {name}\n      -> {change}")
    equivalent = sum(listed.get(name, "").startswith("equivalent") for name in alive)
    share = killed / max(tried - equivalent, 1)
    print(f"killed of those that are not equivalent: {share:.1%} (aim {AIM:.0%})")
    return int(bool(unlisted) or share < AIM)


if __name__ == "__main__":
    sys.exit(main())
