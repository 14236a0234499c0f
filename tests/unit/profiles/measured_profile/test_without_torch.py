"""torch is optional: nothing loads it before something is measured."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_no_module_loads_torch_when_it_is_imported() -> None:
    files = sorted((ROOT / "profiles" / "measure").glob("*.py"))
    names = [f"meshwright.profiles.measure.{file.stem}" for file in files if file.stem != "__init__"]
    code = f"import importlib, sys\n[importlib.import_module(name) for name in {names!r}]\n"
    run = python(code + "import meshwright.service.cli.profile\nprint('torch' in sys.modules)")
    assert run.stdout.strip() == "False", run.stderr


def test_without_torch_the_command_says_what_to_install_and_ends_with_2(tmp_path: Path) -> None:
    arguments = ["meshwright", "profile", "--model", "llama-3.1-8b", "--seq-length", "128", "--out"]
    code = (
        f"import sys\nsys.modules['torch'] = None\nsys.argv = {[*arguments, str(tmp_path / 'p.json')]!r}\n"
    )
    run = python(code + "from meshwright.service.cli.main import main\nmain()")
    assert run.returncode == 2
    assert run.stderr.startswith(
        "error: measuring needs PyTorch 2.5 or newer, which is not installed: .venv/bin/pip"
    )
    assert run.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
