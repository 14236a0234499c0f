"""Pinned environments in which launchers build plans: one folder each, made by one command.

torch is shared by all: the interpreter's own where it is the pinned version (``pip install
'meshwright[verify]'``), else an environment next to the others. Megatron-LM's wheel asks for a newer Python
than it needs, so it is unpacked, not installed.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from meshwright.profiles.errors import PlannerError

TORCH_VERSION = "2.13.0"
TORCH = (
    f"torch=={TORCH_VERSION}", "numpy", "packaging", "pandas", "tqdm", "pyyaml", "typing_extensions",
    "setuptools", "wheel",
)  # fmt: skip
FOLDER_VARIABLE = "MESHWRIGHT_VERIFY_DIR"
MEMORY_BYTES = 8 * 2**30  # a launcher's process may take; fake tensors need none, torch and its graphs do
TIME_S = 600.0  # it may run


class MissingEnvironmentError(PlannerError):
    """A plan cannot be verified here: its launcher's environment was not made."""

    code = "missing_extra"


@dataclass(frozen=True)
class Environment:
    """One launcher's environment."""

    name: str
    packages: tuple[str, ...]  # installed, dependencies included
    unpacked: tuple[str, ...] = ()  # wheels without their dependencies, put on the path
    checkout: str = ""  # a variable that names a folder of sources no package index has, put on the path
    root: Path | None = None  # folder of all environments; None: that of ``environments_folder``
    tools: tuple[str, ...] = ()  # that build packages which are published as sources
    torch: bool = True  # shared with the others; else the launcher runs on JAX

    @property
    def folder(self) -> Path:
        """Return the folder of the environment."""
        return (self.root or environments_folder()) / self.name

    @property
    def python(self) -> Path:
        """Return the interpreter's path."""
        return self.folder / "bin" / "python"

    @property
    def pinned(self) -> str:
        """Return the launcher's own version: of the package that is unpacked, or installed last."""
        return (self.unpacked or self.packages)[-1].partition("==")[2]

    @property
    def path(self) -> Path:
        """Return the unpacked wheels, to go first on the path."""
        return self.folder / "unpacked"

    @property
    def unpacking(self) -> Path:
        """Return pip's temporary folder: torch's wheels would fill one in memory."""
        return self.folder / "tmp"

    @property
    def is_ready(self) -> bool:
        """Return whether it is complete, of the present pins, and the torch it shares still exists."""
        stamp = self.folder / "ready"
        shared = (
            path.read_text().strip() for path in self.folder.glob("lib/python*/site-packages/torch.pth")
        )
        there = all((Path(one) / "torch").is_dir() for one in shared)
        return stamp.exists() and stamp.read_text() == self.stamp and there

    @property
    def stamp(self) -> str:
        """Return the stamp of its contents."""
        return "\n".join([*self.packages, *self.unpacked, ""])


def environments_folder() -> Path:
    """Return the folder of environments: ``MESHWRIGHT_VERIFY_DIR``, or in the user's data folder (XDG)."""
    named = os.environ.get(FOLDER_VARIABLE)
    base = Path(os.environ.get("XDG_DATA_HOME", "") or Path.home() / ".local" / "share")
    return Path(named) if named else base / "meshwright" / "verify"


MEGATRON_LM = Environment("megatron-lm", ("triton==3.9.0", "einops==0.8.2"), ("megatron-core==0.19.2",))
TORCHTITAN = Environment("torchtitan-0.3", ("triton==3.9.0", "torchao==0.18.0", "torchtitan==0.3.0"))
DEEPSPEED = Environment(
    "deepspeed", ("transformers==5.23.0", "deepspeed==0.19.8"), tools=("setuptools", "wheel", "packaging")
)
ACCELERATE = Environment("accelerate", ("transformers==5.23.0", "accelerate==1.15.0"))


def make(environment: Environment) -> None:
    """Make an environment where it is missing or pinned otherwise by now.

    Raises:
        subprocess.CalledProcessError: packages cannot be had; its stderr states why.
    """
    folder = environment.folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not environment.is_ready:
            _make(environment)


def _make(environment: Environment) -> None:
    """Make it anew; whoever else wants one waits."""
    shutil.rmtree(environment.folder, ignore_errors=True)
    # uv or our own pip installs into it, where we have one: a pip of its own takes three seconds.
    _run(sys.executable, "-m", "venv", *["--without-pip"] * _has_pip(), str(environment.folder))
    environment.unpacking.mkdir()
    if environment.torch and environment.packages is not TORCH:
        own = next(environment.folder.glob("lib/python*/site-packages"))
        (own / "torch.pth").write_text(f"{_shared_torch(environment.root)}\n")
    if environment.tools:
        _install(environment, *environment.tools)
    if environment.packages:
        _install(environment, "--no-build-isolation", *environment.packages)
    if environment.unpacked:
        _pip(
            environment, "download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12",
            "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_24_x86_64",
            "--dest", str(environment.path), *environment.unpacked,
        )  # fmt: skip
        for file in environment.path.glob("*.whl"):
            zipfile.ZipFile(file).extractall(environment.path)
    shutil.rmtree(environment.unpacking)
    (environment.folder / "ready").write_text(environment.stamp)


def _shared_torch(root: Path | None) -> Path:
    try:
        if importlib.metadata.version("torch").partition("+")[0] == TORCH_VERSION:
            return Path(sysconfig.get_paths()["purelib"])
    except importlib.metadata.PackageNotFoundError:
        pass
    shared = Environment("torch", TORCH, root=root)
    if not shared.is_ready:
        _make(shared)
    return next(shared.folder.glob("lib/python*/site-packages"))


def _install(environment: Environment, *arguments: str) -> None:
    """Install packages by uv where it is on the path and finds them, else by pip.

    uv takes seconds, but knows neither pip's configuration nor that torch is shared: it is told to leave
    torch out. Another copy of its modules would be compiled in each environment.
    """
    uv = shutil.which("uv")
    if uv:
        shared = environment.unpacking / "shared.txt"
        shared.write_text("" if environment.packages is TORCH else "torch\n" * environment.torch)
        own = ("--quiet", "--python", str(environment.python), "--excludes", str(shared))
        with suppress(subprocess.CalledProcessError):
            _run(uv, "pip", "install", *own, *arguments)
            return
    # Modules are compiled when they are first imported: most of transformers never is.
    _pip(environment, "install", "--no-compile", *arguments)


def _pip(environment: Environment, command: str, *arguments: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    apart = {"TMPDIR": str(environment.unpacking)}
    its = str(environment.python)
    pip = (sys.executable, "-m", "pip", "--python", its) if _has_pip() else (its, "-m", "pip")
    _run(*pip, command, *quiet, *arguments, **apart)


def _has_pip() -> bool:
    return find_spec("pip") is not None


def _run(*command: str, **variables: str) -> None:
    nothing_compiled = {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}  # by DeepSpeed
    plain = {**os.environ, **variables, **nothing_compiled}
    subprocess.run(command, check=True, capture_output=True, text=True, env=plain)  # noqa: S603 - pip
