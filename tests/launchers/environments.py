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
from dataclasses import replace
from pathlib import Path

from meshwright.service.verify.environments import (
    ACCELERATE,
    DEEPSPEED,
    MEGATRON_LM,
    TORCH,
    TORCHTITAN,
    Environment,
    make,
)
from tests.processes.warm_python import RANKS, python

ROOT = Path(__file__).parents[2] / ".venv-launchers"
TORCH_ENVIRONMENT = Environment("torch", TORCH, root=ROOT)
TRAINERS = (  # what ms-swift and LLaMA-Factory both ask for
    "transformers==4.57.6", "accelerate==1.11.0", "peft==0.18.1", "trl==0.24.0", "datasets==4.0.0",
)  # fmt: skip
ENVIRONMENTS = {
    found.name: replace(found, root=ROOT)
    for found in (
        MEGATRON_LM,
        Environment(
            "megatron-bridge",
            ("triton==3.9.0", "einops==0.8.2", "hydra-core==1.3.2", "omegaconf==2.3.0"),
            ("megatron-bridge==0.3.1", "megatron-core==0.16.1"),
        ),
        Environment(
            "ms-swift",
            (
                *TRAINERS,
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
                *TRAINERS,
                "omegaconf==2.3.0",
                "triton==3.9.0",
            ),
            ("llamafactory==0.9.5", "megatron-core==0.19.2"),
            checkout="MCORE_ADAPTER",
        ),
        Environment(
            "llama-factory-accelerate",
            (
                *TRAINERS,
                "omegaconf==2.3.0",
                "typing_extensions",
            ),
            ("llamafactory==0.9.5",),
        ),
        DEEPSPEED,
        Environment("nanotron", (), ("nanotron==0.4",)),
        ACCELERATE,
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
            ("axolotl==0.19.0",),  # 0.21.0 exchanges heads by ringmaster, which is not priced: judged.yaml
        ),
        Environment("trl", ("trl==1.16.0", "peft==0.21.2", "transformers==5.23.0", "accelerate==1.15.0")),
        TORCHTITAN,
        # Its wheel asks for Python 3.12, which its parser does not need.
        Environment(
            "maxtext",
            (
                "jax==0.7.2",
                "flax==0.11.2",
                "orbax-checkpoint==0.12.8",
                "pydantic==2.14.4",
                "omegaconf==2.4.0",
                "Jinja2",
                "psutil",
                "requests",
                "absl-py",
                "packaging",
                "pathwaysutils==0.1.6",
                "fastapi",
                "uvicorn",
            ),
            ("maxtext==0.2.5",),
            torch=False,
        ),
        Environment(  # no package index has it; its rules of process meshes need no torch
            "flagscale",
            ("numpy", "omegaconf==2.3.0"),
            checkout="FLAGSCALE",
            torch=False,
        ),
    )
}

# The release that is made to train on a CPU.
TORCHTITAN_ON_CPU = Environment("torchtitan-0.2", ("triton==3.9.0", "torchtitan==0.2.2"), root=ROOT)

# What several judges of an environment load alike, and none of them changes beforehand.
LOADED = {
    "torch": ("torch.distributed.run",),
    "megatron-lm": RANKS,
    "deepspeed": ("torch",),
    "accelerate": ("accelerate.commands.launch", "transformers.training_args_seq2seq"),
    "trl": ("trl.trainer.sft_config", "trl.trainer.model_config"),
    "torchtitan-0.3": RANKS,
}


def interpreter(environment: Environment) -> str:
    """The environment's Python; of several judges one whose processes have loaded what they share."""
    own = str(environment.python)
    return python(own, *LOADED[environment.name]) if environment.name in LOADED else own


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
    try:
        make(environment)
    except subprocess.CalledProcessError as error:
        return str(error.stderr or error)[-300:].replace("\n", " ")
    return None


def versions(environment: Environment) -> str:
    """The pinned packages as they are installed, torch among them."""
    latest = not any("==" in name for name in (*environment.packages, *environment.unpacked))
    pinned = [name for name in environment.packages if latest or "==" in name]
    shared = ("torch==2.13.0",) if environment.torch else ()
    names = [package.partition("==")[0] for package in dict.fromkeys((*pinned, *shared))]
    code = "import importlib.metadata as m, sys\nprint(*(f'{n} {m.version(n)},' for n in sys.argv[1:]))"
    done = subprocess.run(
        [str(environment.python), "-c", code, *names], check=True, capture_output=True, text=True
    )
    wheels = [path.name.split("-cp")[0].split("-py")[0] for path in sorted(environment.path.glob("*.whl"))]
    return " ".join([done.stdout.strip().replace("+cpu", ""), *wheels])
