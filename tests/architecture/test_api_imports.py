"""What the API process may load: it answers requests, it never searches."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
