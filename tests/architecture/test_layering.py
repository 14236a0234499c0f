"""The house stands: layers, empty packages, and what each process may load."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("profiles", "solver", "service", "workers", "migrations")
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
    names = [*modules_of("profiles"), *modules_of("solver")]
    assert loaded_after_importing(names, WEB_DATABASE_QUEUE) == ""


def test_only_the_cp_sat_child_loads_ortools() -> None:
    names = [*modules_of("profiles"), *modules_of("solver")]
    models = ("split_model", "placement_model", "child")
    names = [name for name in names if not name.endswith(tuple(f".certify.{model}" for model in models))]
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


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        (
            "profiles/units.py",
            "import meshwright.solver.problem",
            "profiles <- solver <- service <- workers",
        ),
        ("solver/problem.py", "import pydantic", "the pure core knows no web, database or queue"),
        ("service/jobs/jobs.py", "import ortools.sat", "only the CP-SAT model knows OR-Tools"),
        ("workers/tasks.py", "import meshwright.service.api.app", "workers never import the API"),
        (
            "service/launchers/target.py",
            "import meshwright.service.settings",
            "launchers and reports are pure",
        ),
        (
            "service/db/tables.py",
            "import meshwright.service.jobs.jobs",
            "the parts of the service know each other in one direction",
        ),
        ("solver/cost/price.py", "import meshwright.solver.predict", "the solver is built in floors"),
        ("migrations/env.py", "import meshwright.profiles.units", "migrations know the database only"),
    ],
)
def test_a_broken_contract_is_caught(tmp_path: Path, file: str, line: str, contract: str) -> None:
    house = copy_of_the_house(tmp_path)
    broken = house / "meshwright" / file
    broken.write_text(broken.read_text() + f"\n{line}\n")
    run = lint_imports(house)
    assert run.returncode == 1
    assert f"{contract} BROKEN" in run.stdout


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
