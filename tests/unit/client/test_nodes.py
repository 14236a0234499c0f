"""The nodes of a job, from what its scheduler sets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright_client.nodes
from meshwright.profiles.library import find_gpu
from meshwright_client.choosing import question_of
from meshwright_client.nodes import Nodes, UnknownNodesError, detect, gpu_of
from tests.processes import slurm

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_GPUS_PER_NODE": "h100:8",
    "SLURM_NODEID": "3",
}
UNLIKE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS": "h100:12"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "job", "WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "8", "RANK": "9",
    "MASTER_ADDR": "a", "MASTER_PORT": "29500",
}  # fmt: skip
# As kubeflow/trainer, release-1.9, sets them (pkg/controller.v1/pytorch/envvar.go) for train-worker-1.
PYTORCHJOB = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-worker-1", "PYTHONUNBUFFERED": "1",
    "MASTER_PORT": "23456", "PET_MASTER_PORT": "23456", "MASTER_ADDR": "train-master-0",
    "PET_MASTER_ADDR": "train-master-0", "WORLD_SIZE": "32", "RANK": "2", "PET_NODE_RANK": "2",
    "PET_NPROC_PER_NODE": "8", "PET_NNODES": "4",
}  # fmt: skip
# The same with an elasticPolicy and without a master (elastic.go): nothing tells a pod's rank but its name.
ELASTIC = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-worker-2", "PYTHONUNBUFFERED": "1",
    "PET_NPROC_PER_NODE": "8", "PET_RDZV_ENDPOINT": "train-worker-0:23456", "PET_RDZV_BACKEND": "c10d",
    "PET_NNODES": "4", "PET_MAX_RESTARTS": "3",
}  # fmt: skip
# A TrainJob (pkg/runtime/framework/plugins/torch/torch.go) is an indexed Job of a JobSet.
TRAINJOB = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-node-0-3", "JOB_COMPLETION_INDEX": "3",
    "PET_NNODES": "4", "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": "3", "CUDA_VISIBLE_DEVICES": "0,1",
    "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29400",
}  # fmt: skip
JOBSET = {
    "HOSTNAME": "train-workers-3-0", "JOB_COMPLETION_INDEX": "0", "RANK": "3", "NNODES": "4",
    "MASTER_ADDR": "train-workers-0-0.train", "PET_NPROC_PER_NODE": "8",
}  # fmt: skip
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
INDEXED = {
    "JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1", "NNODES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "environ", "found"),
    [
        ("slurm", SLURM, (3, 4, 8)),
        ("slurm", {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "4"}, (0, 2, 4)),
        ("slurm", {**UNLIKE, "SLURM_GPUS": "16", "SLURM_GPUS_ON_NODE": "8"}, (0, 2, 8)),
        ("torchelastic", TORCHRUN, (9, 4, 8)),  # 32 processes, 8 on each node; one of them asks
        ("k8s", PYTORCHJOB, (2, 4, 8)),
        ("k8s", ELASTIC, (2, 4, 8)),
        ("k8s", {**ELASTIC, "PET_NNODES": "4:4"}, (2, 4, 8)),
        ("k8s", TRAINJOB, (3, 4, 2)),
        ("k8s", INDEXED, (1, 2, 4)),
        # four Jobs of one pod each in a JobSet: its yaml gives RANK, the index is that of each Job
        ("k8s", JOBSET, (3, 4, 8)),
        ("k8s", {"HOSTNAME": "notebook", "NNODES": "1", "CUDA_VISIBLE_DEVICES": "0"}, (0, 1, 1)),
        # a worker of torchrun, whatever is read: one of the 8 of node 0 asks
        ("k8s", {**PYTORCHJOB, "PET_NODE_RANK": "0", **TORCHRUN, "RANK": "1"}, (1, 4, 8)),
        ("slurm", {**SLURM, "SLURM_NODEID": "0", **TORCHRUN, "RANK": "1"}, (1, 4, 8)),
        ("k8s", {**ELASTIC, "PET_NNODES": "1:6", **TORCHRUN, "GROUP_WORLD_SIZE": "4"}, (9, 4, 8)),
    ],
)
def test_each_scheduler_tells_this_nodes_rank_and_how_many_there_are(
    source: str, environ: dict[str, str], found: tuple[int, int, int]
) -> None:
    nodes = detect(source, environ)
    assert (nodes.rank, nodes.num_nodes, nodes.gpus_per_node) == found


def test_no_gpus_are_counted_where_salloc_was_typed_but_on_a_node_of_the_job() -> None:
    """``salloc -N 2 --gpus 16`` on a login node that has two GPUs of another type."""
    shell = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS": "16", "CUDA_VISIBLE_DEVICES": "0,1",
    }  # fmt: skip
    assert detect("slurm", shell).gpus_per_node is None
    with pytest.raises(UnknownNodesError, match="does not tell the type of GPU"):
        detect("slurm", shell).cluster_of(None)
    eight = {**shell, "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    assert detect("slurm", eight).gpus_per_node == 8
    assert detect("slurm", {**eight, "SLURM_GPUS": "", "CUDA_VISIBLE_DEVICES": "-1"}).gpus_per_node is None


def test_the_innermost_scheduler_counts_unless_one_is_named() -> None:
    both = {**SLURM, **TORCHRUN}
    assert detect(None, both).source == "torchelastic"
    assert detect("slurm", both).source == "slurm"
    with pytest.raises(UnknownNodesError, match="SLURM_JOB_ID"):
        detect(None, {})


def test_all_nodes_of_a_start_have_one_name_for_it_and_a_restart_has_another() -> None:
    names = {detect("slurm", {**SLURM, "SLURM_NODEID": str(rank)}).run_id for rank in range(4)}
    assert len(names) == 1
    assert detect("slurm", {**SLURM, "SLURM_RESTART_COUNT": "1"}).run_id not in names


@pytest.mark.parametrize(
    ("environ", "node_0", "first"),
    [
        (PYTORCHJOB, {"HOSTNAME": "train-master-0", "PET_NODE_RANK": "0"}, "train-master-0"),
        (ELASTIC, {"HOSTNAME": "train-worker-0"}, "train-worker-0"),
        (TRAINJOB, {"HOSTNAME": "train-node-0-0", "PET_NODE_RANK": "0"}, "train-node-0-0.train"),
        (JOBSET, {"HOSTNAME": "train-workers-0-0", "RANK": "0"}, "train-workers-0-0.train"),
        (INDEXED, {"HOSTNAME": "train-0", "JOB_COMPLETION_INDEX": "0"}, None),
    ],
    ids=["PyTorchJob", "elastic PyTorchJob", "TrainJob", "JobSet", "indexed Job"],
)
def test_pods_of_one_job_of_kubernetes_are_one_start_and_those_of_another_job_are_not(
    environ: dict[str, str], node_0: dict[str, str], first: str | None
) -> None:
    nodes, zero = detect("k8s", environ), detect("k8s", {**environ, **node_0})
    assert (zero.rank, zero.run_id, zero.first_host) == (0, nodes.run_id, first)
    other = {name: value.replace("train", "other") for name, value in environ.items()}
    assert detect("k8s", other).run_id != nodes.run_id
    assert detect("k8s", {**environ, "JOB_ATTEMPT": "1"}).run_id != nodes.run_id


PART = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_NNODES": "2", "SLURM_GPUS": "h100:8",
    "SLURM_GPUS_ON_NODE": "2", "SLURM_STEP_ID": "0", "SLURM_NODEID": "1", "SLURM_PROCID": "1",
    "SLURM_JOB_NODELIST": "gpu-[007-010]", "SLURM_STEP_NODELIST": "gpu-[009-010]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NUM_NODES": "2",
}  # fmt: skip


def test_a_step_on_a_part_of_an_allocation_is_a_start_on_these_nodes() -> None:
    """As Slurm 22.05 sets them for ``salloc -N4 --gpus=h100:8`` and ``srun -N2`` in it."""
    nodes = detect("slurm", PART)
    assert (nodes.num_nodes, nodes.gpus_per_node, nodes.gpu) == (2, 2, "h100")
    assert (nodes.node_rank, nodes.first_host, nodes.tasks_per_node) == (1, "gpu-009", 1)
    assert detect("slurm", {**PART, "SLURM_STEP_ID": "1"}).run_id != nodes.run_id  # the next srun


def test_an_allocation_is_the_nodes_that_slurm_has_left_it_and_no_other_tasks_of_its_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = slurm.allocation(tmp_path, 4)
    for name, value in {**environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "failed").write_text("n1\n")
    (tmp_path / "cluster.json").write_text('{"name": "dgx-h100"}')
    found = detect("slurm", environ)
    assert (found.num_nodes, found.first_host) == (3, "n2")
    assert detect(tmp_path / "cluster.json", environ).first_host == "n2"


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("n1", "n1"), ("n[1-2,7]", "n1"), ("a-[07,09-12]-ib,b3", "a-07-ib"), ("r[1-2]n[05-08]", "r1n05")],
)
def test_the_first_of_a_host_list_is_node_0(hosts: str, first: str) -> None:
    assert detect("slurm", {**SLURM, "SLURM_JOB_NODELIST": hosts}).first_host == first


@pytest.mark.parametrize(
    ("step", "tasks", "found"),
    [("", "", 0), ("4294967290", "1", 0), ("0", "8(x4)", 8), ("3", "2(x3),1", 2)],
)
def test_a_batch_script_and_an_interactive_shell_are_no_task_of_srun(
    step: str, tasks: str, found: int
) -> None:
    environ = {**SLURM, "SLURM_STEP_ID": step, "SLURM_STEP_TASKS_PER_NODE": tasks}
    nodes = detect("slurm", environ)
    assert nodes.tasks_per_node == found
    assert nodes.node_rank == (3 if found else None)  # its own srun would tell every task that rank


@pytest.mark.parametrize(
    "environ",
    [
        SLURM,
        {**SLURM, "SLURM_RESTART_COUNT": "1"},
        TORCHRUN,
        {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"},
        {**TORCHRUN, "MASTER_PORT": "29501"},
        {**SLURM, **TORCHRUN},
        PYTORCHJOB,
        ELASTIC,
        TRAINJOB,
        {**INDEXED, **POD},
    ],
)
def test_a_cluster_file_leaves_it_to_the_scheduler_to_tell_starts_and_nodes_apart(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"name": "dgx-h100", "num_nodes": 4}')
    stated, found = detect(file, environ), detect(None, environ)
    for one in ("run_id", "rank", "node_rank", "world"):
        assert getattr(stated, one) == getattr(found, one), one


@pytest.mark.parametrize("source", ["torchelastic", "slurm", "k8s"])
@pytest.mark.parametrize("environ", [{**SLURM, **INDEXED}, {**SLURM, **JOBSET}])
def test_a_worker_of_torchrun_is_one_of_its_world_whatever_tells_the_nodes(
    source: str, environ: dict[str, str]
) -> None:
    """Its RANK is no node's: the 10th of 32 processes in a job of 4 pods is not node 9."""
    nodes = detect(source, {**environ, **TORCHRUN})
    assert (nodes.rank, nodes.world, nodes.node_rank, nodes.tasks_per_node) == (9, 32, None, None)


def test_a_pod_that_no_job_names_is_a_start_of_its_own() -> None:
    alone = detect("k8s", {"HOSTNAME": "notebook", "NNODES": "1"})
    assert "notebook" not in alone.run_id  # where the next process would get what this one has chosen


def test_a_problem_keeps_its_cluster_and_gets_the_number_of_nodes() -> None:
    nodes = detect("slurm", SLURM)
    assert nodes.cluster_of({"name": "dgx-h100", "num_nodes": 1}) == {"name": "dgx-h100", "num_nodes": 4}
    own = {"name": "ours", "groups": [{"gpu": "h100", "num_nodes": 1, "gpus_per_node": 8}]}
    assert nodes.cluster_of(own)["groups"][0]["num_nodes"] == 4
    made = nodes.cluster_of(None)
    assert made["groups"] == [{"gpu": "h100", "num_nodes": 4, "gpus_per_node": 8}]


def test_unlike_nodes_need_a_file(tmp_path: Path) -> None:
    groups = [{"gpu": "h100", "num_nodes": 1}, {"gpu": "a100", "num_nodes": 1}]
    with pytest.raises(UnknownNodesError, match="2 groups"):
        detect("slurm", SLURM).cluster_of({"groups": groups})
    file = tmp_path / "cluster.json"
    file.write_text('{"name": "dgx-a100", "num_nodes": 3}')
    nodes = detect(file, {"NODE_RANK": "1"})
    assert (nodes.rank, nodes.cluster_of({"name": "dgx-h100"})["num_nodes"]) == (1, 3)


def test_a_process_alone_with_a_file_is_a_start_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"name": "dgx-a100"}')
    told = "from meshwright_client.nodes import detect; import sys; print(detect(sys.argv[1], {}).run_id)"
    command = [sys.executable, "-c", told, str(file)]
    own = {"PYTHONPATH": str(Path(meshwright_client.nodes.__file__).parents[1])}
    first, later = (
        subprocess.run(command, env=own, capture_output=True, check=True).stdout for _ in range(2)
    )
    assert first != later
    assert detect(file, {}).run_id == detect(file, {}).run_id
    assert detect(file, {"NODE_RANK": "0"}).run_id == detect(file, {"NODE_RANK": "1"}).run_id
    assert detect(file, {"MESHWRIGHT_RUN_ID": "9"}).run_id == "9"


@pytest.mark.parametrize(
    ("source", "environ", "named"),
    [
        ("slurm", {}, "SLURM_JOB_ID"),
        ("slurm", {**SLURM, "SLURM_JOB_NUM_NODES": "-1"}, "SLURM_JOB_NUM_NODES"),
        ("slurm", {**SLURM, "SLURM_HET_SIZE": "2"}, "heterogeneous"),
        # --nodes=2 --gpus=12: eight on the first and four on the second, each of which knows its own
        (
            "slurm",
            {**UNLIKE, "SLURM_GPUS_ON_NODE": "8"},
            "--gpus h100:12 on 2 nodes, 8 of them on this one: they are unlike",
        ),
        ("slurm", {**UNLIKE, "SLURM_GPUS": "h100:8,a100:8", "SLURM_GPUS_ON_NODE": "8"}, "unlike"),
        ("slurm", {**UNLIKE, "SLURM_GPUS_ON_NODE": "4"}, "cluster file"),
        ("torchelastic", {**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, "is 32, not 6 nodes × LOCAL_WORLD_SIZE 5"),
        ("torchelastic", {"WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE"),
        ("torchelastic", {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, "RANK"),
        ("torchelastic", {**TORCHRUN, "GROUP_WORLD_SIZE": "5"}, "not 5 nodes"),
        ("k8s", {}, "PET_NNODES or NNODES is not set; .* 1 for one alone"),
        ("k8s", {**PYTORCHJOB, "PET_NODE_RANK": "4"}, "node 4 of 4, which are 0 to 3"),
        (
            "k8s",
            {**ELASTIC, "PET_NNODES": "1:4"},
            "PET_NNODES is '1:4'; .* torchrun --no-python meshwright",
        ),
        ("k8s", {**ELASTIC, "HOSTNAME": "train"}, "PET_NODE_RANK or NODE_RANK or RANK or JOB_COMPLETION"),
        ("k8s", {"JOB_COMPLETION_INDEX": "1", "NNODES": "2"}, "nothing names this start; set JOB_NAME"),
        ("nowhere.json", {}, "nowhere.json: .* allowed: slurm, k8s, torchelastic, or a JSON file"),
    ],
)
def test_what_is_missing_or_wrong_is_named(source: str, environ: dict[str, str], named: str) -> None:
    with pytest.raises(UnknownNodesError, match=named):
        detect(source, environ)


@pytest.mark.parametrize(
    ("told", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        ("NVIDIA B200", "b200-sxm-180gb"),
        ("NVIDIA L40S", "l40s"),
    ],
)
def test_what_a_driver_calls_a_gpu_is_known_to_the_catalog(told: str, slug: str) -> None:
    assert find_gpu(gpu_of(told) or "").slug == slug


@pytest.mark.parametrize(
    ("search", "asked"),
    [
        ({}, {"time_limit_s": 30.0, "num_nodes": [2]}),
        ({"num_nodes": [1]}, {"num_nodes": [1], "time_limit_s": 30.0}),
        ({"reserve_nodes": 1}, {"reserve_nodes": 1, "time_limit_s": 30.0}),
        ({"gpus": "fewest"}, {"gpus": "fewest", "time_limit_s": 30.0}),
        ("deep", "deep"),
    ],
    ids=str,
)
def test_a_plan_of_nodes_that_all_start_uses_them_all_unless_the_problem_says_how_many(
    search: object, asked: object
) -> None:
    """One GPU may be as fast as two for a small batch; torchrun has started both."""
    nodes = Nodes(source="torchelastic", run_id="1", rank=0, num_nodes=2, gpus_per_node=8, world=16)
    problem = {"cluster": {"name": "dgx-h100"}, "search": search}
    assert question_of(problem, nodes, on_all_nodes=True)["search"] == asked
    assert "num_nodes" not in question_of({"cluster": {"name": "dgx-h100"}}, nodes)["search"]
