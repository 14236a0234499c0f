"""The house stands: layers, empty packages, and what each process may load."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.house import ROOMS, modules

ROOT = Path(__file__).parents[2]
WEB_DATABASE_QUEUE = [
    "fastapi",
    "starlette",
    "uvicorn",
    "pydantic",
    "sqlalchemy",
    "alembic",
    "celery",
    "redis",
    "psycopg",
    "httpx",
]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("room", [*ROOMS, "migrations"])
def test_packages_are_empty_so_that_importing_a_room_costs_nothing(room: str) -> None:
    filled = [
        str(path.relative_to(ROOT)) for path in (ROOT / room).rglob("__init__.py") if path.read_text()
    ]
    assert filled in ([], ["profiles/catalog/__init__.py"])  # which names the folder of the data


def copy_of_the_house(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "*.csv", "*.json", "*.yaml")
    shutil.copytree(ROOT / "src" / "meshwright", folder / "meshwright", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


BROKEN = {  # contract: a file, and what it may not import
    "profiles <- solver <- launchers <- service <- workers": (
        "profiles/units.py",
        "meshwright.solver.problem",
    ),
    "the pure core knows no web, database or queue": ("solver/problem.py", "pydantic"),
    "only the CP-SAT model knows OR-Tools": ("service/jobs/jobs.py", "ortools"),
    "workers never import the API": ("workers/tasks.py", "meshwright.service.api.app"),
    "reports are pure": ("service/report/sentences.py", "meshwright.service.settings"),
    "the interpreter of shell scripts knows no launcher": (
        "shell/script.py",
        "meshwright.launchers.target",
    ),
    "the parts of the service know each other in one direction": (
        "service/db/tables.py",
        "meshwright.service.jobs.jobs",
    ),
    "migrations know the database only": ("migrations/env.py", "meshwright.profiles.units"),
    "the solver is built in floors": ("solver/search/rows.py", "meshwright.solver.explain.reasons"),
}


def test_every_broken_contract_is_caught_and_the_import_named(tmp_path: Path) -> None:
    house = copy_of_the_house(tmp_path)
    for file, imported in BROKEN.values():
        path = house / "meshwright" / file
        path.write_text(path.read_text() + f"\nimport {imported}\n")
    run = lint_imports(house)
    assert run.returncode == 1
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert set(BROKEN) == {contract["name"] for contract in contracts}
    broken = run.stdout.partition("Broken contracts")[2]
    _, *told = re.split(r"^(.+)\n-+\n", broken, flags=re.MULTILINE)
    chains = dict(zip(told[::2], told[1::2], strict=True))
    for contract, (file, imported) in BROKEN.items():
        assert f"{contract} BROKEN" in run.stdout
        importer = f"meshwright.{file.removesuffix('.py').replace('/', '.')}"
        assert f"{importer} -> {imported} (" in chains[contract]


# --------------------------------------------------------------------------------------------------
# What a process has loaded after each of some steps.


def loaded_after(*steps: str) -> list[set[str]]:
    """Return the modules that one process has loaded after each step of code, run from the root."""
    lines = ["import importlib, sys, typing"]
    for step in steps:
        lines += [step, "print(*sys.modules)"]
    command = [sys.executable, "-c", "\n".join(lines)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return [set(line.split()) for line in run.stdout.splitlines()]


def import_of(rooms: Iterable[str], *left_out: str) -> str:
    """Return the step that imports the modules of some rooms, but for those with such a part of a name."""
    names = [
        module.name
        for room in rooms
        for module in modules(room)
        if not any(f".{part}." in f"{module.name}." for part in ("__main__", *left_out))
    ]
    return f"for name in {names!r}: importlib.import_module(name)"


def test_a_room_loads_what_it_may_know_and_nothing_else() -> None:
    """From the root ``import solver`` would work as well, and make every class twice."""
    facts, solver, core, product = loaded_after(
        import_of(["profiles"], "measure"),
        import_of(["profiles", "solver"], "split_model", "child", "decision.model", "decision.reasons"),
        import_of(["profiles", "solver", "shell", "launchers"]),
        import_of(ROOMS, "verify.inside"),  # of a launcher's environment, which has torch
    )
    assert "meshwright.profiles.library" in facts
    assert {name.split(".")[1] for name in facts if name.startswith("meshwright.")} == {"profiles"}
    assert facts.isdisjoint({"pydantic", "ortools", "rich", "typer"})
    assert "meshwright.solver.search.search" in solver
    assert solver.isdisjoint({"ortools", "pandas"}), "only the models of CP-SAT load it"
    assert {"ortools", "meshwright.launchers.registry"} <= core
    assert core.isdisjoint(WEB_DATABASE_QUEUE)
    assert {"fastapi", "meshwright.workers.tasks"} <= product
    assert product.isdisjoint({*ROOMS, "migrations"}), "these are meshwright's, and imported under its name"


def test_the_api_process_loads_neither_ortools_nor_pandas_nor_celery() -> None:
    code = "import meshwright.service.serving.serve, meshwright.service.api.app\n"
    code += "from meshwright.service.settings import Settings\n"
    code += "meshwright.service.api.app.create_app(Settings(database_url='sqlite:///unused.db')).openapi()"
    (loaded,) = loaded_after(code)
    assert loaded.isdisjoint(
        {"ortools", "pandas", "celery", "meshwright.workers", "meshwright.solver.search.search"}
    )


def test_a_worker_loads_no_web_framework_and_celery_only_for_celery() -> None:
    own, of_celery = loaded_after(
        "import meshwright.workers.__main__", "import meshwright.workers.celery_app"
    )
    assert own.isdisjoint({"fastapi", "starlette", "uvicorn", "ortools", "celery"})
    assert "celery" in of_celery
    assert of_celery.isdisjoint({"fastapi", "starlette", "uvicorn", "ortools"})


def test_a_name_of_the_interface_loads_what_it_needs_and_no_service() -> None:
    nothing, package, error, plan = loaded_after(
        "", "import meshwright", "meshwright.InvalidProblemError", "meshwright.plan"
    )
    assert package - nothing == {"meshwright"}
    assert error.isdisjoint({"meshwright.solver", "meshwright.service", "numpy", "pydantic"})
    assert plan.isdisjoint({"ortools", "fastapi", "sqlalchemy", "celery", "httpx", "meshwright.service.db"})
