"""The nodes that a job was given, as its scheduler tells them in the environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any
from uuid import uuid4

from meshwright_client.errors import MeshwrightError

SCHEDULERS = ("slurm", "k8s", "torchelastic")
_GPU_FILE = re.compile(r"nvidia\d+")
_SMI = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
SMI_TIMEOUT_S = 10.0
_PROCESS = uuid4().hex  # tells this process's start from earlier ones


class UnknownNodesError(MeshwrightError):
    """The environment does not say which nodes this job has; the message names what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What a job runs on."""

    source: str  # slurm, k8s, torchelastic or a path
    run_id: str  # of this start of the job, the same on all of its nodes
    rank: int  # of this process, or of this node where one process starts it; 0 asks, the others wait
    num_nodes: int | None = None  # None: the cluster file says
    node_rank: int | None = None  # of this node, where the scheduler tells it
    first_host: str | None = None  # node 0, where the scheduler tells it
    tasks_per_node: int | None = None  # of srun; 0: it has started none yet
    is_node: bool = True  # this machine is one of them; a shell of salloc may be on another
    gpus_per_node: int | None = None
    gpu: str | None = None  # type, where the scheduler names it
    cluster: Mapping[str, Any] | None = None  # of a file, as a problem states it
    world: int | None = None  # processes of torchrun, which a plan must use all of; None: none yet

    def cluster_of(self, given: Mapping[str, Any] | None, limit_s: float = SMI_TIMEOUT_S) -> dict[str, Any]:
        """A problem's cluster on these nodes; ``given`` keeps its links and GPUs.

        ``limit_s``: a driver that is asked for its GPUs may take so long.

        Raises:
            UnknownNodesError: the problem has no cluster, and the GPU type or their number is not known.
        """
        base = dict(self.cluster if self.cluster is not None else given or {})
        if self.num_nodes is None:
            return base
        if "groups" in base:
            (group, *others) = base["groups"]
            if others:
                raise UnknownNodesError(
                    f"the cluster has {len(others) + 1} groups; {self.source} tells one number of nodes"
                )
            return {**base, "groups": [{**group, "num_nodes": self.num_nodes}]}
        if base:
            return {**base, "num_nodes": self.num_nodes}
        gpu = self.gpu or (installed_gpu(min(SMI_TIMEOUT_S, limit_s)) if self.is_node else None)
        if gpu is None or self.gpus_per_node is None:
            missing = "type of GPU" if gpu is None else "number of GPUs of a node"
            raise UnknownNodesError(
                f"{self.source} does not tell the {missing}; state the problem's cluster"
            )
        group = {"gpu": gpu, "num_nodes": self.num_nodes, "gpus_per_node": self.gpus_per_node}
        return {"name": f"{self.source}-{gpu}", "groups": [group]}


def detect(cluster_from: str | Path | None, environ: Mapping[str, str] | None = None) -> Nodes:
    """The nodes of this job; ``cluster_from`` is a scheduler, or a JSON file that states a cluster.

    None: whichever scheduler the environment shows, innermost first (a torchrun inside of Slurm counts the
    nodes that it was started on).

    Raises:
        UnknownNodesError: the environment lacks what that scheduler sets, or the file is no cluster.
    """
    environ = os.environ if environ is None else environ
    if cluster_from is None:
        found = [name for name, sign in _SIGNS.items() if sign in environ]
        if not found:
            signs = ", ".join(f"{name} ({sign})" for name, sign in _SIGNS.items())
            raise UnknownNodesError(
                f"no scheduler in the environment: looked for {signs}; elsewhere name a JSON file that "
                "states the cluster (cluster_from, --cluster-from)"
            )
        cluster_from = found[0]
    read = _READERS.get(cluster_from) if isinstance(cluster_from, str) else None
    nodes = _of_file(Path(cluster_from), environ) if read is None else read(environ)
    if "TORCHELASTIC_RUN_ID" not in environ:
        return nodes
    # A worker of torchrun, which numbers nodes as it likes and has several on each; one of all asks.
    return replace(
        nodes,
        rank=_count(environ, "torchelastic", "RANK", least=0),
        world=_count(environ, "torchelastic", "WORLD_SIZE"),
        node_rank=None,
        tasks_per_node=None,
    )


def _slurm(environ: Mapping[str, str]) -> Nodes:
    """https://slurm.schedmd.com/sbatch.html and srun.html, output environment variables."""
    job = _text(environ, "slurm", "SLURM_JOB_ID")
    if any(
        name.startswith("SLURM_JOB_NUM_NODES_HET_GROUP") or name == "SLURM_HET_SIZE" for name in environ
    ):
        raise UnknownNodesError("a heterogeneous Slurm job; state its groups in a cluster file")
    gpu, counted = _slurm_gpus(environ)
    in_job = _count(environ, "slurm", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    # srun sets SLURM_NNODES to the nodes of its step, which may be a part of the job's; Slurm's own
    # interactive step, one shell on the first node, keeps the job's.
    num_nodes = _count(environ, "slurm", "SLURM_NNODES", default=in_job)
    held = _slurm_held(environ)
    if held is not None:
        num_nodes = held[0]
    is_node = bool(_slurm_tasks(environ)) or any(map(environ.get, _SET_BY_SLURMD))
    here = _count(environ, "slurm", "SLURM_GPUS_ON_NODE", default=counted or 0) or None
    if here is None and is_node:
        here = installed(environ)
    asked = environ.get("SLURM_GPUS", "")  # of --gpus: 12, h100:12, or h100:8,a100:4
    numbers = [part.rpartition(":")[2] for part in asked.split(",")]
    in_all = sum(map(int, numbers)) if all(map(str.isdecimal, numbers)) else None
    if len(numbers) > 1 or (here and in_all is not None and in_all != in_job * here):
        raise UnknownNodesError(
            f"slurm: --gpus {asked} on {in_job} nodes, {here or 'some'} of them on this one: they are "
            "unlike; state their groups in a cluster file, or ask for --gpus-per-node"
        )
    return Nodes(
        source="slurm",
        run_id=_run(environ, _slurm_start(job, environ)),
        rank=_count(environ, "slurm", "SLURM_PROCID", "SLURM_NODEID", least=0, default=0),
        num_nodes=num_nodes,
        gpus_per_node=here,
        gpu=gpu,
        is_node=is_node,
        **_slurm_place(environ, held),
    )


def _slurm_place(environ: Mapping[str, str], held: tuple[int, str] | None) -> dict[str, Any]:
    """Which node of the step or job this is, its first one, and how many tasks each has."""
    known = "" if held is None else held[1]
    hosts = known or environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    rank, tasks = environ.get("SLURM_NODEID", ""), _slurm_tasks(environ)
    return {
        # A batch script is no node of a step: its rank would reach the tasks of its own srun on every node.
        "node_rank": int(rank) if tasks and rank.isdecimal() else None,
        "first_host": _first_host(hosts),
        "tasks_per_node": tasks,
    }


def _slurm_held(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """How many nodes a job still has, and their list; None: Slurm does not tell, or this is a step of srun.

    One that fails leaves a job of ``--no-kill``, whose environment stays as it was (Slurm 23.02
    ``slurmctld/job_mgr.c excise_node_from_job``). The last task of a job array has the array's number,
    under which squeue lists all of its tasks (``pack_one_job`` there).
    """
    job = environ.get("SLURM_JOB_ID", "")
    if _slurm_tasks(environ):
        return None
    try:
        told = subprocess.run(  # noqa: S603 - Slurm's own program
            ("squeue", "--noheader", f"--jobs={job}", "--format=%A %D %N"),  # noqa: S607
            capture_output=True, text=True, check=True, timeout=SMI_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    for number, count, hosts in re.findall(r"^(\d+) (\d+) (\S+)$", told.stdout, re.MULTILINE):
        if number == job:
            return int(count), hosts
    return None


def _slurm_start(job: str, environ: Mapping[str, str]) -> str:
    """The job, each time that it was started, and which of its steps this is: an allocation has many."""
    step = environ.get("SLURM_STEP_ID", "")
    return "-".join(filter(None, ["slurm", job, environ.get("SLURM_RESTART_COUNT", "0"), step]))


def _first_host(hosts: str) -> str | None:
    """Of a host list: ``n[07-09,12],m1`` begins with n07."""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", hosts).partition(",")[0] or None


# On nodes alone, not by salloc where it was typed.
_SET_BY_SLURMD = ("SLURMD_NODENAME", "SLURM_GPUS_ON_NODE")
_NOT_OF_SRUN = 0xFFFFFF00  # from here on steps are Slurm's own (slurm.h), as an interactive shell


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    """How many tasks srun started on this node; 0: none of them is this process."""
    step = environ.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= _NOT_OF_SRUN:
        return 0
    # 8, 8(x4) or 2(x3),1: as many as on the first node
    first = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return int(first.group()) if first else 1


def _slurm_gpus(environ: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Type and number of the GPUs of a node: ``h100:8`` or ``8``; of ``--gpus`` and the like the type."""
    for name in ("SLURM_GPUS_PER_NODE", "SLURM_TRES_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_TASK"):
        kind, _, number = (
            environ.get(name, "").rpartition("gpu:")[2].split(",")[0].split("(")[0].rpartition(":")
        )
        if number.isdecimal():
            return kind.lower() or None, int(number) if name.endswith("_NODE") else None
    return None, None


def _torchelastic(environ: Mapping[str, str]) -> Nodes:
    """What torchrun sets for its workers (docs.pytorch.org/docs/stable/elastic/run.html)."""
    world = _count(environ, "torchelastic", "WORLD_SIZE")
    local = _count(environ, "torchelastic", "LOCAL_WORLD_SIZE")
    num_nodes = _count(environ, "torchelastic", "GROUP_WORLD_SIZE", default=world // local or 1)
    if world != num_nodes * local:
        raise UnknownNodesError(
            f"torchelastic: WORLD_SIZE is {world}, not {num_nodes} nodes × LOCAL_WORLD_SIZE {local}: the "
            "nodes are unlike; state their groups in a cluster file"
        )
    return Nodes(
        source="torchelastic",
        run_id=_run(environ, _torchelastic_start(environ)),
        rank=_count(environ, "torchelastic", "RANK", least=0),
        num_nodes=num_nodes,
        gpus_per_node=local,
    )


def _torchelastic_start(environ: Mapping[str, str]) -> str:
    """The run's name, where its workers meet, and how often torchrun has started them again."""
    name = environ.get("TORCHELASTIC_RUN_ID", "none")
    place = f"{environ.get('MASTER_ADDR', '')}-{environ.get('MASTER_PORT', '')}"
    return f"torchelastic-{name}-{place}-{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _k8s(environ: Mapping[str, str]) -> Nodes:
    """A pod of a PyTorchJob or a TrainJob (PET_*), of a JobSet or an indexed Job that states NNODES itself.

    What they set: kubeflow/trainer, pkg/runtime/framework/plugins/torch/torch.go, and release-1.9,
    pkg/controller.v1/pytorch/{envvar,elastic}.go; kubernetes.io/docs/concepts/workloads/controllers/job.
    """
    if "TORCHELASTIC_RUN_ID" in environ:  # RANK is no node's any more, and a range of nodes a number
        return _torchelastic(environ)
    told = environ.get("PET_NNODES", "")
    fewest, _, most = told.partition(":")  # torchrun's own: 4, 4:4 or, elastic, 1:4
    if most not in ("", fewest):
        raise UnknownNodesError(
            f"k8s: PET_NNODES is {told[:32]!r}; how many nodes a start has, torchrun alone finds out. Ask "
            "inside of it: torchrun --no-python meshwright launch -- python train.py, or "
            'choose(problem, cluster_from="torchelastic")'
        )
    if not (fewest or environ.get("NNODES")):
        raise UnknownNodesError(
            "k8s: PET_NNODES or NNODES is not set; set NNODES to the number of pods, 1 for one alone"
        )
    num_nodes = _count({**environ, "PET_NNODES": fewest}, "k8s", "PET_NNODES", "NNODES")
    per_node = environ.get("PET_NPROC_PER_NODE", "")
    rank = _k8s_rank(environ, num_nodes)
    host = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR") or _k8s_endpoint(environ)
    return Nodes(
        source="k8s",
        run_id=_run(environ, _k8s_start(environ, num_nodes)),
        rank=rank,
        node_rank=rank,
        first_host=host or None,
        num_nodes=num_nodes,
        gpus_per_node=int(per_node) if per_node.isdecimal() else installed(environ),
    )


def _k8s_rank(environ: Mapping[str, str], num_nodes: int) -> int:
    """Of this node. An elastic PyTorchJob numbers its pods by their names alone: train-worker-2.

    Raises:
        UnknownNodesError: nothing tells it, or there are not so many nodes.
    """
    host, _, index = environ.get("HOSTNAME", "").rpartition("-")
    by_name = host and f"{host}-0" == _k8s_endpoint(environ) and index.isdecimal()
    if by_name and not any(map(environ.get, _K8S_RANKS)):
        rank = int(index)
    else:  # a pod that is alone needs no number; two that took one for theirs would both be node 0
        rank = _count(environ, "k8s", *_K8S_RANKS, least=0, default=0 if num_nodes == 1 else None)
    if rank >= num_nodes:
        raise UnknownNodesError(f"k8s: this is node {rank} of {num_nodes}, which are 0 to {num_nodes - 1}")
    return rank


_K8S_RANKS = ("PET_NODE_RANK", "NODE_RANK", "RANK", "JOB_COMPLETION_INDEX")
_K8S_PODS = ("PET_NNODES", "NNODES", "JOB_COMPLETION_INDEX")  # of a job that may have several


def _k8s_endpoint(environ: Mapping[str, str]) -> str:
    """The host where the nodes of an elastic PyTorchJob meet: its pod 0."""
    return environ.get("PET_RDZV_ENDPOINT", "").partition(":")[0]


def _k8s_start(environ: Mapping[str, str], num_nodes: int) -> str:
    """The job's name, as its nodes all know it, and its attempt.

    Raises:
        UnknownNodesError: nothing of the environment is the job's own.
    """
    known = ("JOB_NAME", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "MASTER_ADDR")
    name = next((environ[one] for one in known if environ.get(one)), "")
    pod, index = environ.get("HOSTNAME", ""), environ.get("JOB_COMPLETION_INDEX")
    if not name and index and pod.endswith(f"-{index}"):
        name = pod.removesuffix(f"-{index}")  # $(job-name)-$(index) is the name of an indexed Job's pod
    if not name and num_nodes > 1:
        raise UnknownNodesError(
            "k8s: nothing names this start; set JOB_NAME, or MESHWRIGHT_RUN_ID, alike on all nodes"
        )
    # A pod that is alone and has no job, as one to work in, begins anew with each process.
    return f"k8s-{name}-{environ.get('JOB_ATTEMPT', '0')}" if name else f"k8s-{_PROCESS}"


def _of_file(path: Path, environ: Mapping[str, str]) -> Nodes:
    """A file that states the cluster; which node this is comes from the usual variables.

    Where nodes tell their rank and no scheduler names the start, MESHWRIGHT_RUN_ID tells it from others.
    """
    try:
        cluster = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        known = f"{', '.join(SCHEDULERS)}, or a JSON file that states a cluster"
        raise UnknownNodesError(f"{path}: {fault.strerror or 'cannot be read'}; allowed: {known}") from None
    except ValueError:
        raise UnknownNodesError(f"{path}: is not JSON") from None
    if not isinstance(cluster, dict) or not cluster.keys() & {"name", "groups"}:
        raise UnknownNodesError(
            f'{path}: states no cluster; {{"name": …, "num_nodes": …}} or {{"groups": […]}}'
        )
    names = ("RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_NODEID", "PET_NODE_RANK")
    rank = _count(environ, "the environment", *names, least=0, default=0)
    place: dict[str, Any] = {}
    if environ.get("TORCHELASTIC_RUN_ID"):
        run_id = _torchelastic_start(environ)
    elif job := environ.get("SLURM_JOB_ID"):
        run_id, place = _slurm_start(job, environ), _slurm_place(environ, _slurm_held(environ))
    elif _SIGNS["k8s"] in environ and any(environ.get(name) for name in _K8S_PODS):
        pod = _k8s(environ)
        run_id, rank, place = pod.run_id, pod.rank, {"node_rank": pod.rank, "first_host": pod.first_host}
    else:  # nodes that tell their rank have to agree; a process alone is a start of its own
        run_id = "file" if any(environ.get(name) for name in names) else f"file-{_PROCESS}"
    return Nodes(source=str(path), run_id=_run(environ, run_id), rank=rank, cluster=cluster, **place)


_READERS = {"torchelastic": _torchelastic, "slurm": _slurm, "k8s": _k8s}
_SIGNS = {"torchelastic": "TORCHELASTIC_RUN_ID", "slurm": "SLURM_JOB_ID", "k8s": "KUBERNETES_SERVICE_HOST"}


def installed(environ: Mapping[str, str]) -> int | None:
    """How many GPUs this node shows to the job; None: none that can be counted."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if environ.get(name, "").strip():
            # CUDA shows those before the first that is no GPU; -1 and Slurm's NoDevFiles show none.
            told = takewhile(
                lambda one: one.strip() not in ("", "-1", "NoDevFiles"), environ[name].split(",")
            )
            return len(list(told)) or None
    return sum(bool(_GPU_FILE.fullmatch(one.name)) for one in Path("/dev").glob("nvidia*")) or None


def installed_gpu(timeout_s: float = SMI_TIMEOUT_S) -> str | None:
    """The type of the first GPU, as its driver says; None: there is none, or it says nothing in time."""
    try:
        told = subprocess.run(  # noqa: S603 - the driver's own program
            _SMI, capture_output=True, text=True, check=True, timeout=timeout_s
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return gpu_of(told.stdout.partition("\n")[0])


# As drivers spell them, and as the service's catalog does where that is not the same word.
_DRIVERS_WORDS = {
    "h100-80gb-hbm3": "h100-sxm-80gb",
    "a100-sxm4-80gb": "a100-sxm-80gb",
    "a100-sxm4-40gb": "a100-sxm-40gb",
    "a100-80gb-pcie": "a100-pcie-80gb",
    "v100-sxm2-16gb": "v100-sxm-16gb",
    "v100-sxm2-32gb": "v100-sxm-32gb",
    "v100-sxm3-32gb": "v100-sxm-32gb",
}


def gpu_of(name: str) -> str | None:
    """The catalog's word for what a driver calls a GPU: ``NVIDIA H100 80GB HBM3`` is h100-sxm-80gb."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    for vendor in ("nvidia-", "tesla-", "geforce-", "amd-", "instinct-"):
        words = words.removeprefix(vendor)
    return _DRIVERS_WORDS.get(words, words) or None


def _run(environ: Mapping[str, str], usual: str) -> str:
    return environ.get("MESHWRIGHT_RUN_ID") or usual


def _text(environ: Mapping[str, str], source: str, name: str) -> str:
    if not environ.get(name):
        raise UnknownNodesError(f"{source}: {name} is not set: this is not one of its jobs")
    return environ[name]


def _count(
    environ: Mapping[str, str], source: str, *names: str, least: int = 1, default: int | None = None
) -> int:
    """The first of some variables that is set, as a count."""
    for name in names:
        if text := environ.get(name, ""):
            if not text.isdecimal() or int(text) < least:
                raise UnknownNodesError(f"{source}: {name} is {text[:32]!r}, no number of at least {least}")
            return int(text)
    if default is None:
        raise UnknownNodesError(f"{source}: {' or '.join(names)} is not set: this is not one of its jobs")
    return default
