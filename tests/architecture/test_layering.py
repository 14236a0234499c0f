"""The house stands: layers, empty packages, and what each process may load."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("profiles", "solver", "shell", "launchers", "service", "workers", "migrations")
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


def modules_of(room: str) -> list[str]:
    files = sorted((ROOT / room).rglob("*.py"))
    names = [".".join(("meshwright", *file.relative_to(ROOT).with_suffix("").parts)) for file in files]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def loaded_after_importing(names: list[str], banned: list[str]) -> str:
    code = "import importlib, sys\n"
    code += f"[importlib.import_module(name) for name in {names!r}]\n"
    code += f"print(*[name for name in {banned!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def test_the_pure_core_loads_no_web_database_or_queue_library() -> None:
    names = [name for room in ("profiles", "solver", "shell", "launchers") for name in modules_of(room)]
    assert loaded_after_importing(names, WEB_DATABASE_QUEUE) == ""


def test_only_the_cp_sat_child_loads_ortools() -> None:
    names = [*modules_of("profiles"), *modules_of("solver")]
    models = (".certify.split_model", ".certify.child", ".decision.model", ".decision.reasons")
    names = [name for name in names if not name.endswith(models)]
    assert loaded_after_importing([*names, "meshwright.solver.search.search"], ["ortools", "pandas"]) == ""


@pytest.mark.parametrize("room", ROOMS)
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


def test_the_contracts_hold() -> None:
    run = lint_imports(ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


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
# What a process may load: the API answers requests, it never searches; a worker serves nobody.


def loaded_by(code: str, *names: str) -> list[str]:
    script = f"{code}\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.split()


def test_the_api_process_loads_neither_ortools_nor_pandas_nor_celery() -> None:
    code = "import meshwright.service.serving.serve, meshwright.service.api.app\n"
    code += "from meshwright.service.settings import Settings\n"
    code += "meshwright.service.api.app.create_app(Settings(database_url='sqlite:///unused.db')).openapi()"
    assert (
        loaded_by(
            code, "ortools", "pandas", "celery", "meshwright.workers", "meshwright.solver.search.search"
        )
        == []
    )


def test_a_worker_loads_no_web_framework() -> None:
    assert (
        loaded_by(
            "import meshwright.workers.__main__", "fastapi", "starlette", "uvicorn", "ortools", "celery"
        )
        == []
    )


def test_a_celery_worker_loads_no_web_framework_either() -> None:
    assert (
        loaded_by("import meshwright.workers.celery_app", "fastapi", "starlette", "uvicorn", "ortools")
        == []
    )
