"""The file that starts a plan under a scheduler: Slurm, Kubeflow (two kinds of job) or SkyPilot.

Every one of them starts ``launch.sh`` on each node, with its rank and the host of rank 0; what the plan
decides stays in the launcher's own files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from meshwright.launchers.export import SLURM_FILE, TORCHRUN_FILE
from meshwright.launchers.target import ExportBundle, Target, target_of
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, RefusedExportError, UnknownNameError
from meshwright.solver.answer import Plan
from meshwright.solver.problem import Problem

README_FILE = "README.md"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,499}")
_FOLDER = "/tmp/meshwright"  # noqa: S108 - in a container of its own
_NVIDIA = frozenset({"volta", "turing", "ampere", "ada", "hopper", "blackwell"})
_AMD = frozenset({"cdna2", "cdna3", "cdna4"})
# SkyPilot's names (sky/utils/accelerator_registry.py, and its YAML reference) of the catalog's GPUs.
_SKY_NAMES = {
    "a100-pcie-40gb": "A100", "a100-sxm-40gb": "A100", "a100-pcie-80gb": "A100-80GB",
    "a100-sxm-80gb": "A100-80GB", "a10g": "A10G", "b200-sxm-180gb": "B200", "h100-sxm-80gb": "H100",
    "h200-sxm-141gb": "H200", "l4": "L4", "l40s": "L40S", "t4": "T4", "v100-sxm-16gb": "V100",
    "v100-pcie-16gb": "V100", "v100-sxm-32gb": "V100-32GB", "v100-pcie-32gb": "V100-32GB",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The scheduler that starts a job, and the container image with the launcher."""

    scheduler: str = "slurm"
    image: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scheduled:
    """One plan, its files, and what the scheduler must know of the site."""

    target: Target
    files: Mapping[str, str]  # that every node needs
    image: str | None
    where: str  # what errors name the image by, without its name

    @property
    def name(self) -> str:
        """A name that is a DNS label (RFC 1035), as both Kubeflow kinds ask for."""
        letters = "".join(
            char for char in self.target.plan.plan_id.lower() if char.isascii() and char.isalnum()
        )
        return f"meshwright-{letters[:24]}"


def scheduled(
    bundle: ExportBundle,
    plan: Plan,
    problem: Problem,
    scheduler: str,
    *,
    image: str | None = None,
    where: str = "--",
) -> ExportBundle:
    """Return the files of a bundle with that of another scheduler in place of Slurm's.

    Args:
        bundle: files of one launcher.
        plan: plan that they start.
        problem: problem that it answers.
        scheduler: one of ``SCHEDULERS``.
        image: container image with the launcher; None: the scheduler's own default.
        where: what errors name the two by: of options, or of a request's query.

    Raises:
        UnknownNameError: there is no such scheduler.
        InvalidProblemError: an image is missing, or Slurm was given one.
        RefusedExportError: the scheduler cannot start the plan.
    """
    if scheduler not in SCHEDULERS:
        raise UnknownNameError.among(f"{where}scheduler", scheduler, tuple(SCHEDULERS))
    write = SCHEDULERS[scheduler]
    if write is None:
        if image is not None:
            raise InvalidProblemError.of(
                f"{where}image", "Slurm's script uses no image", allowed="leave it out"
            )
        return bundle
    target = target_of(plan, problem)
    if not problem.cluster.is_homogeneous:
        raise _refused(
            where,
            f"{scheduler} can't place node ranks on node groups. Use slurm with HOSTS_FILE",
            allowed="slurm",
        )
    if SLURM_FILE not in bundle.files:
        raise _refused(
            where,
            f"{scheduler} starts launch.sh on every node, but this launcher's launch.sh starts the "
            "other nodes itself",
            allowed="slurm, which adds no file here",
        )
    warnings = list(bundle.warnings)
    if target.ordered_nodes:
        message = f"{scheduler} does not place node ranks on chosen nodes"
        warnings.append(f"{message}, but the predicted step depends on their order. Use slurm")
    if image is not None and not _IMAGE.fullmatch(image):
        raise InvalidProblemError.of(
            f"{where}image", f"{shown(image)} is not an image", allowed="IMAGE:TAG"
        )
    files = {name: text for name, text in bundle.files.items() if name != SLURM_FILE}
    needed = {name: text for name, text in files.items() if name != README_FILE}
    name, text, start = write(_Scheduled(target=target, files=needed, image=image, where=where))
    if README_FILE in files:
        files[README_FILE] = _started_by(files[README_FILE], scheduler, name, start)
    return replace(bundle, files={**files, name: text}, warnings=warnings)


def _started_by(readme: str, scheduler: str, name: str, start: str) -> str:
    """Return the page with the command and the file of another scheduler than Slurm."""
    readme = readme.replace("Under Slurm, from", f"Under {scheduler}, from")
    readme = re.sub(rf"(?m)^.*\bsbatch {re.escape(SLURM_FILE)}$", start, readme)
    return readme.replace(SLURM_FILE, name)


def _refused(where: str, message: str, *, allowed: str) -> RefusedExportError:
    return RefusedExportError([FieldError(pointer=f"{where}scheduler", message=message, allowed=allowed)])


# --------------------------------------------------------------------------------------------------
# Kubeflow. A ConfigMap holds the plan's files; each container writes them to a folder and starts
# launch.sh. They arrive as variables: a volume would need the runtime's pod template, which every release
# of the Trainer patches in another way (podTemplateOverrides in 2.0, runtimePatches in 2.2).


def _config_map(asked: _Scheduled) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": asked.name},
        "data": dict(asked.files),
    }


def _variables(asked: _Scheduled) -> list[dict[str, Any]]:
    return [
        {
            "name": f"PLAN_FILE_{number}",
            "valueFrom": {"configMapKeyRef": {"name": asked.name, "key": file}},
        }
        for number, file in enumerate(asked.files)
    ]


def _command(asked: _Scheduled, rank: str, host: str, port: str) -> list[str]:
    writes = [
        f'printf "%s" "${{PLAN_FILE_{number}}}" > {_FOLDER}/{file}'
        for number, file in enumerate(asked.files)
    ]
    variables = f'NODE_RANK="{rank}" MASTER_ADDR="{host}" MASTER_PORT="{port}"'
    lines = [
        "set -euo pipefail",
        f"mkdir -p {_FOLDER}",
        *writes,
        f"export {variables}",
        f'exec bash {_FOLDER}/{TORCHRUN_FILE} "$@"',
    ]
    return ["bash", "-c", "\n".join(lines) + "\n", "launch"]


def _gpus(asked: _Scheduled) -> dict[str, Any]:
    """Return the limit of GPUs of one node, by the name of its vendor's device plugin.

    Raises:
        RefusedExportError: the name is not known.
    """
    architecture = asked.target.gpu.architecture
    vendor = (
        "nvidia.com/gpu" if architecture in _NVIDIA else "amd.com/gpu" if architecture in _AMD else None
    )
    if vendor is None:
        raise _refused(
            asked.where,
            f"{asked.target.gpu.display_name} has no known Kubernetes resource",
            allowed="GPUs of NVIDIA and AMD",
        )
    return {"limits": {vendor: asked.target.gpus_per_node}}


def _train_job(asked: _Scheduled) -> tuple[str, str, str]:
    """Return a TrainJob (trainer.kubeflow.org/v1alpha1) for the runtime ``torch-distributed``.

    Its Torch plugin sets the PET variables of torchrun (pkg/runtime/framework/plugins/torch/torch.go).
    """
    trainer: dict[str, Any] = {} if asked.image is None else {"image": asked.image}
    trainer |= {
        "numNodes": asked.target.num_nodes,
        "numProcPerNode": asked.target.gpus_per_node,
        "resourcesPerNode": _gpus(asked),
        "command": _command(asked, "${PET_NODE_RANK}", "${PET_MASTER_ADDR}", "${PET_MASTER_PORT}"),
        "env": _variables(asked),
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": asked.name},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    }
    head = (
        "# Kubeflow Trainer 2: the runtime's container needs /dev/shm (an emptyDir in memory) and the\n"
        "# variables that launch.sh asks for: append them under trainer.env.\n"
    )
    return "trainjob.yaml", head + _documents(_config_map(asked), job), "kubectl create -f trainjob.yaml"


def _pytorch_job(asked: _Scheduled) -> tuple[str, str, str]:
    """Return a PyTorchJob (kubeflow.org/v1): one master, and workers for the other nodes.

    Raises:
        InvalidProblemError: no image is given, which the kind requires.
    """
    if asked.image is None:
        raise InvalidProblemError.of(
            f"{asked.where}image", "is needed for a PyTorchJob", allowed="IMAGE:TAG"
        )
    container = {
        "name": "pytorch",  # the operator looks for this name
        "image": asked.image,
        "command": _command(asked, "${PET_NODE_RANK:-${RANK}}", "${MASTER_ADDR}", "${MASTER_PORT}"),
        "env": _variables(asked),
        "resources": _gpus(asked),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - NCCL's
    }
    shm = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    pod = {"spec": {"containers": [container], "volumes": [shm]}}
    replicas = {
        kind: {"replicas": count, "restartPolicy": "OnFailure", "template": pod}
        for kind, count in {"Master": 1, "Worker": asked.target.num_nodes - 1}.items()
        if count
    }
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": asked.name},
        "spec": {"nprocPerNode": str(asked.target.gpus_per_node), "pytorchReplicaSpecs": replicas},
    }
    head = "# Kubeflow Training Operator 1: append the variables that launch.sh asks for under env.\n"
    return (
        "pytorchjob.yaml",
        head + _documents(_config_map(asked), job),
        "kubectl create -f pytorchjob.yaml",
    )


# --------------------------------------------------------------------------------------------------
# SkyPilot copies the folder (workdir) to every node, and sets each node's rank and all addresses.


def _sky_task(asked: _Scheduled) -> tuple[str, str, str]:
    """Return a task of SkyPilot.

    Raises:
        RefusedExportError: SkyPilot's name of the GPU is not known.
    """
    gpu = asked.target.gpu
    if gpu.slug not in _SKY_NAMES:
        raise _refused(
            asked.where,
            f"SkyPilot's name of {gpu.display_name} is not known",
            allowed=", ".join(sorted(_SKY_NAMES)),
        )
    resources: dict[str, Any] = {"accelerators": {_SKY_NAMES[gpu.slug]: asked.target.gpus_per_node}}
    if asked.image is not None:
        resources["image_id"] = f"docker:{asked.image}"
    run = (
        'export NODE_RANK="${SKYPILOT_NODE_RANK}"\n'
        'export MASTER_ADDR="$(head -n 1 <<<"${SKYPILOT_NODE_IPS}")"\n'
        f"bash {TORCHRUN_FILE}\n"
    )
    task = {
        "name": asked.name,
        "workdir": ".",
        "num_nodes": asked.target.num_nodes,
        "resources": resources,
        "run": run,
    }
    head = (
        "# Start in this folder. Variables that launch.sh asks for: sky launch --env NAME=VALUE sky.yaml\n"
    )
    return "sky.yaml", head + _documents(task), "sky launch sky.yaml"


Writer = Callable[
    [_Scheduled], tuple[str, str, str]
]  # name and text of the file, and the command that starts it
SCHEDULERS: Mapping[str, Writer | None] = {
    "slurm": None,  # every bundle has its script
    "pytorchjob": _pytorch_job,
    "trainjob": _train_job,
    "skypilot": _sky_task,
}


class _BlockDumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and repeats what is shared."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - of the base class
        """Return True: anchors are hard to edit."""
        return True


def _text(dumper: _BlockDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockDumper.add_representer(str, _text)


def _documents(*documents: Mapping[str, Any]) -> str:
    return "---\n".join(
        yaml.dump(one, Dumper=_BlockDumper, sort_keys=False, width=10**6) for one in documents
    )
