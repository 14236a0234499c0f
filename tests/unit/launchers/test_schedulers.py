"""Files of schedulers: they follow the published schemas and start launch.sh on every node."""

from __future__ import annotations

import json
import os
import subprocess
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.schedulers import SCHEDULERS, scheduled
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.errors import InvalidProblemError, PlannerError, RefusedExportError
from meshwright.solver.answer import Plan
from meshwright.solver.problem import Problem
from tests.served.reports import small_answer

FIXTURES = Path(__file__).parents[2] / "fixtures"
IMAGE = "registry.example/train:1"


def schema(name: str, kind: str | None = None) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((FIXTURES / name).read_text())
    return whole if kind is None else {"$ref": f"#/$defs/{whole['kinds'][kind]}", "$defs": whole["$defs"]}


def asked(launcher: str = "megatron-lm") -> tuple[Plan, Problem, ExportBundle]:
    problem, answer = small_answer()
    first = answer.plans[0]
    plan = replace(first, config=replace(first.config, zero_stage=1))  # as every launcher shards
    return plan, problem, export(plan, problem, launcher)


def files_for(scheduler: str, image: str | None = IMAGE) -> dict[str, str]:
    plan, problem, bundle = asked()
    return scheduled(bundle, plan, problem, scheduler, image=image).files


def documents(scheduler: str, file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(files_for(scheduler)[file]))


KUBEFLOW = [("trainjob", "trainjob.yaml", "TrainJob"), ("pytorchjob", "pytorchjob.yaml", "PyTorchJob")]


@pytest.mark.parametrize(("scheduler", "file", "kind"), KUBEFLOW)
def test_a_kubeflow_job_and_its_config_map_follow_their_schemas(
    scheduler: str, file: str, kind: str
) -> None:
    config_map, job = documents(scheduler, file)
    core = schema("kubernetes/schemas.json", "ConfigMap")
    jsonschema.Draft202012Validator(core).validate(config_map)
    kubeflow = schema("kubernetes/kubeflow.json", kind)
    jsonschema.Draft202012Validator(kubeflow).validate(job)
    broken = deepcopy(job)
    broken["spec"]["numberOfNodes"] = 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(kubeflow).validate(broken)


def test_a_sky_task_follows_its_schema() -> None:
    (task,) = documents("skypilot", "sky.yaml")
    jsonschema.Draft202012Validator(schema("skypilot.json")).validate(task)
    assert task["num_nodes"] == 2
    ((name, count),) = task["resources"]["accelerators"].items()
    assert (name, count) == ("H100", 8)


def test_nodes_and_gpus_are_the_plans() -> None:
    trainer = documents("trainjob", "trainjob.yaml")[1]["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 8}
    assert trainer["image"] == IMAGE
    specs = documents("pytorchjob", "pytorchjob.yaml")[1]["spec"]["pytorchReplicaSpecs"]
    assert {kind: one["replicas"] for kind, one in specs.items()} == {"Master": 1, "Worker": 1}


@pytest.mark.parametrize("launcher", ["megatron-lm"])
def test_the_files_reach_the_container_byte_for_byte_and_start_with_rank_and_host(
    launcher: str, tmp_path: Path
) -> None:
    """Run the very command of the TrainJob with the variables that Kubernetes and the Trainer would set."""
    plan, problem, bundle = asked(launcher)
    text = scheduled(bundle, plan, problem, "trainjob").files["trainjob.yaml"]
    config_map, job = yaml.safe_load_all(text)
    trainer = job["spec"]["trainer"]
    given = {
        one["name"]: config_map["data"][one["valueFrom"]["configMapKeyRef"]["key"]]
        for one in trainer["env"]
    }
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "torchrun").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    (programs / "torchrun").chmod(0o755)
    folder = tmp_path / "plan"
    command = [word.replace("/tmp/meshwright", str(folder)) for word in trainer["command"]]  # noqa: S108
    environment = {
        **os.environ, **given, "PATH": f"{programs}:{os.environ['PATH']}", "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29500", "MOCK_DATA": "1",
        "MEGATRON_LM_DIR": str(tmp_path), "CHECK_PACKAGES": "0", "CHECKPOINTS": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    written = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    expected = {n: t for n, t in bundle.files.items() if n not in {"README.md", "launch.sbatch"}}
    assert written == expected
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[words.index("--master-addr") + 1] == "train-node-0-0.train"


def test_slurm_is_the_bundle_as_it_is_and_others_replace_its_script() -> None:
    plan, problem, bundle = asked()
    assert scheduled(bundle, plan, problem, "slurm") == bundle
    for scheduler in set(SCHEDULERS) - {"slurm"}:
        files = files_for(scheduler)
        assert "launch.sbatch" not in files
        assert set(bundle.files) - {"launch.sbatch"} < set(files)
        assert "launch.sbatch" not in files["README.md"]


def test_every_launcher_has_files_that_every_scheduler_can_carry() -> None:
    plan, problem, _ = asked()
    carried = 0
    for launcher in launcher_names():
        try:
            bundle = export(plan, problem, launcher)
        except RefusedExportError:
            continue
        if launcher == "flagscale":  # starts the other nodes itself
            continue
        for scheduler in set(SCHEDULERS) - {"slurm"}:
            files = scheduled(bundle, plan, problem, scheduler, image=IMAGE).files
            assert "launch.sh" in files
            carried += 1
    assert carried >= 6


def test_what_a_scheduler_cannot_do_is_refused_with_its_reason() -> None:
    plan, problem, bundle = asked()
    with pytest.raises(InvalidProblemError, match="nomad"):
        scheduled(bundle, plan, problem, "nomad")
    with pytest.raises(InvalidProblemError, match="--image"):
        scheduled(bundle, plan, problem, "pytorchjob")
    with pytest.raises(InvalidProblemError, match="--image"):
        scheduled(bundle, plan, problem, "slurm", image=IMAGE)


@pytest.mark.parametrize("image", ["", "x:1\nevil: y", "x y", "--privileged"])
def test_an_image_that_no_registry_names_is_refused(image: str) -> None:
    with pytest.raises(InvalidProblemError, match="--image"):
        files_for("pytorchjob", image)


@pytest.mark.parametrize("scheduler", ["trainjob", "pytorchjob", "skypilot"])
def test_a_launcher_that_starts_the_other_nodes_itself_is_not_started_on_every_node(scheduler: str) -> None:
    plan, problem, bundle = asked("flagscale")
    with pytest.raises(RefusedExportError, match="every node"):
        scheduled(bundle, plan, problem, scheduler, image=IMAGE)


def test_gpus_without_a_name_at_the_scheduler_are_refused() -> None:
    plan, problem, bundle = asked()
    (group,) = problem.cluster.groups
    odd = replace(group, gpu=replace(group.gpu, slug="tpu-v5p", architecture="tpu"))
    other = replace(problem, cluster=replace(problem.cluster, groups=(odd,)))
    for scheduler in ("trainjob", "pytorchjob", "skypilot"):
        with pytest.raises(PlannerError, match=r"not known|no known"):
            scheduled(bundle, plan, other, scheduler, image=IMAGE)


def test_a_mixed_cluster_is_left_to_slurm() -> None:
    plan, problem, bundle = asked()
    (group,) = problem.cluster.groups
    slower = replace(group, gpu=replace(group.gpu, slug="a100-sxm-80gb", hbm_bytes_per_s=2e12))
    mixed = replace(problem, cluster=replace(problem.cluster, groups=(group, slower)))
    with pytest.raises(RefusedExportError, match="slurm"):
        scheduled(bundle, plan, mixed, "trainjob")
