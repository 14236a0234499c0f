"""An environment of its own for every launcher, under one git-ignored folder; torch is shared by all.

Versions are pinned. Megatron-LM's wheel asks for a newer Python than it needs, so it is unpacked, not
installed; what else it needs to run is in ``judges/megatron_lm.py``. nanotron's asks for an older NumPy and
is unpacked too; what it lacks is in ``judges/nanotron.py``. Axolotl's asks for what only a GPU's
machine builds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".venv-launchers"
TORCH = (
    "torch==2.13.0", "numpy", "packaging", "pandas", "tqdm", "pyyaml", "typing_extensions", "setuptools",
    "wheel",
)  # fmt: skip


@dataclass(frozen=True)
class Environment:
    """One launcher's environment."""

    name: str
    packages: tuple[str, ...]  # installed, dependencies included
    unpacked: tuple[str, ...] = ()  # wheels without their dependencies, put on the path
    checkout: str = ""  # a variable that names a folder of sources no package index has, put on the path

    @property
    def folder(self) -> Path:
        """Where it lives."""
        return ROOT / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def pinned(self) -> str:
        """The launcher's own version: of the package that is unpacked, or installed last."""
        return (self.unpacked or self.packages)[-1].partition("==")[2]

    @property
    def path(self) -> Path:
        """Unpacked wheels, to go first on the path."""
        return self.folder / "unpacked"


TORCH_ENVIRONMENT = Environment("torch", TORCH)
ENVIRONMENTS = {
    found.name: found
    for found in (
        Environment("megatron-lm", ("triton==3.9.0", "einops==0.8.2"), ("megatron-core==0.19.2",)),
        Environment(
            "megatron-bridge",
            ("triton==3.9.0", "einops==0.8.2", "hydra-core==1.3.2", "omegaconf==2.3.0"),
            ("megatron-bridge==0.3.1", "megatron-core==0.16.1"),
        ),
        Environment(
            "ms-swift",
            (
                "transformers==4.57.6",
                "accelerate==1.11.0",
                "peft==0.18.1",
                "trl==0.24.0",
                "datasets==4.0.0",
                "triton==3.9.0",
                "modelscope",
                "dacite",
                "json_repair",
                "pillow",
                "einops",
                "typing_extensions",
            ),
            ("ms-swift==4.6.0", "mcore-bridge==1.6.5", "megatron-core==0.19.2"),
        ),
        Environment(
            "llama-factory",
            (
                "transformers==4.57.6",
                "accelerate==1.11.0",
                "peft==0.18.1",
                "trl==0.24.0",
                "datasets==4.0.0",
                "omegaconf==2.3.0",
                "triton==3.9.0",
            ),
            ("llamafactory==0.9.5", "megatron-core==0.19.2"),
            checkout="MCORE_ADAPTER",
        ),
        Environment("deepspeed", ("deepspeed==0.19.8",)),
        Environment("nanotron", (), ("nanotron==0.4",)),
        Environment("accelerate", ("accelerate==1.15.0", "transformers==5.23.0")),
        Environment(
            "axolotl",
            (
                "transformers==5.23.0",
                "accelerate==1.15.0",
                "peft==0.21.2",
                "datasets",
                "trl==1.16.0",
                "addict",
                "fire",
                "pillow",
                "numba",
            ),
            ("axolotl==0.19.0",),
        ),
        Environment("trl", ("trl==1.16.0", "peft==0.21.2", "transformers==5.23.0", "accelerate==1.15.0")),
        Environment("torchtitan-0.3", ("triton==3.9.0", "torchtitan==0.3.0")),
        Environment("torchtitan-0.2", ("triton==3.9.0", "torchtitan==0.2.2")),
    )
}


def newest(environment: Environment) -> Environment:
    """The same with the newest releases instead of the pinned ones, made anew; torch stays as it is."""
    packages, unpacked = (
        tuple(name.partition("==")[0] for name in names)
        for names in (environment.packages, environment.unpacked)
    )
    found = replace(environment, name=f"latest-{environment.name}", packages=packages, unpacked=unpacked)
    shutil.rmtree(found.folder, ignore_errors=True)
    return found


def ready(environment: Environment) -> str | None:
    """Make the environment where it is missing; why it cannot be had, or None."""
    if environment.checkout and environment.checkout not in os.environ:
        return f"{environment.checkout} is not set to a folder of its sources"
    stamp = environment.folder / "ready"
    if stamp.exists():
        return None
    try:
        _make(environment)
    except subprocess.CalledProcessError as error:
        return str(error.stderr or error)[-300:].replace("\n", " ")
    stamp.touch()
    return None


def _make(environment: Environment) -> None:
    _run(sys.executable, "-m", "venv", str(environment.folder))
    if environment is not TORCH_ENVIRONMENT:
        shared = next(TORCH_ENVIRONMENT.folder.glob("lib/python*/site-packages"))
        own = next(environment.folder.glob("lib/python*/site-packages"))
        (own / "torch.pth").write_text(f"{shared}\n")
    if environment.packages:
        _pip(environment, "install", "--no-build-isolation", *environment.packages)
    for wheel in environment.unpacked:
        _pip(
            environment, "download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12",
            "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_24_x86_64",
            "--dest", str(environment.path), wheel,
        )  # fmt: skip
        for file in environment.path.glob("*.whl"):
            zipfile.ZipFile(file).extractall(environment.path)


def _pip(environment: Environment, command: str, *arguments: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    _run(str(environment.python), "-m", "pip", command, *quiet, *arguments)


def _run(*command: str) -> None:
    plain = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}  # DeepSpeed compiles nothing
    subprocess.run(command, check=True, capture_output=True, text=True, env=plain)


def versions(environment: Environment) -> str:
    """The pinned packages as they are installed, torch among them."""
    latest = not any("==" in name for name in (*environment.packages, *environment.unpacked))
    pinned = [name for name in environment.packages if latest or "==" in name]
    names = [package.partition("==")[0] for package in dict.fromkeys((*pinned, "torch==2.13.0"))]
    code = "import importlib.metadata as m, sys\nprint(*(f'{n} {m.version(n)},' for n in sys.argv[1:]))"
    done = subprocess.run(
        [str(environment.python), "-c", code, *names], check=True, capture_output=True, text=True
    )
    wheels = [path.name.split("-cp")[0].split("-py")[0] for path in sorted(environment.path.glob("*.whl"))]
    return " ".join([done.stdout.strip().replace("+cpu", ""), *wheels])
