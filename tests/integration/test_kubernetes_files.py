"""The Kubernetes manifests against schemas of its API and the code they start; no cluster is needed.

The schemas of Kubernetes' own kinds are its own (NOTICE); those of KEDA are written for this repository.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from sqlalchemy import delete, text, update

from meshwright.service.api.metrics import Metrics
from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from meshwright.service.settings import Settings
from meshwright.service.verify.environments import FOLDER_VARIABLE
from tests.integration.test_compose_file import DOCKERFILE, PROJECT, ROOT, SERVICES, run
from tests.served.job_records import add_tiny_job

Manifest = dict[str, Any]
FOLDER = ROOT / "deploy" / "kubernetes"
FIXTURES = ROOT / "tests" / "fixtures" / "kubernetes"
MANIFESTS: list[Manifest] = [
    manifest
    for path in sorted(FOLDER.rglob("*.yaml"))
    for manifest in yaml.load_all(path.read_text(), yaml.CSafeLoader)
]
OURS = ["api", "worker", "verifier", "migrate"]


def schemas() -> dict[str, Manifest]:
    """The schema of every kind."""
    found = {}
    for name in ("schemas.json", "keda.json"):
        whole = json.loads((FIXTURES / name).read_text())
        for kind, definition in whole["kinds"].items():
            found[kind] = {"$ref": f"#/$defs/{definition}", "$defs": whole["$defs"]}
    return found


SCHEMAS = schemas()


def named(kind: str, name: str) -> Manifest:
    (found,) = [one for one in MANIFESTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def workload(name: str) -> Manifest:
    (found,) = [
        one
        for one in MANIFESTS
        if one["kind"] in {"Deployment", "StatefulSet", "Job"} and one["metadata"]["name"] == name
    ]
    return found


def pod(name: str) -> Manifest:
    found: Manifest = workload(name)["spec"]["template"]["spec"]
    return found


def container(name: str) -> Manifest:
    (found,) = pod(name)["containers"]
    return dict(found)


def variables(name: str) -> dict[str, str]:
    """What the processes of a workload of ours read."""
    own = {one["name"]: one["value"] for one in container(name).get("env", ())}
    settings: dict[str, str] = named("ConfigMap", "meshwright-settings")["data"]
    return {**settings, **own}


def bytes_of(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * {"Mi": 2**20, "Gi": 2**30}[unit]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_every_manifest_follows_the_schema_of_its_kind(manifest: Manifest) -> None:
    jsonschema.Draft202012Validator(SCHEMAS[manifest["kind"]]).validate(manifest)
    assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "meshwright"


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("api", ["spec", "replica"], 2),
        ("api", ["spec", "replicas"], "two"),
        ("api", ["spec", "template", "spec", "containers", 0, "readinessProbe", "httpGet", "url"], "/"),
        ("worker", ["spec", "template", "spec", "containers", 0, "env", 0, "value"], 7),
        ("postgres", ["spec", "volumeClaimTemplates", 0, "spec", "accessModes"], "ReadWriteOnce"),
        ("migrate", ["apiVersion"], "batch/v1beta1"),
    ],
)
def test_the_schemas_refuse_a_wrong_key_or_kind(name: str, path: list[Any], value: object) -> None:
    broken = deepcopy(workload(name))
    place: Any = broken
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMAS[broken["kind"]]).validate(broken)


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_one_that_the_settings_read_and_accept(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = variables(name)
    own = {key: value for key, value in given.items() if key.startswith("MESHWRIGHT_")}
    fields = {f"MESHWRIGHT_{field.upper()}" for field in Settings.model_fields}
    assert set(given) - set(own) == {"DATABASE_PASSWORD_FILE", "REDIS_PASSWORD_FILE"}
    assert set(own) <= {*fields, FOLDER_VARIABLE}
    for key in fields:
        monkeypatch.delenv(key, raising=False)
    for key, value in own.items():
        monkeypatch.setenv(key, value)
    settings = Settings()
    assert not settings.migrates  # the job does
    assert not settings.insecure
    assert str(settings.redis_url).startswith("redis://redis:")


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_the_one_of_the_compose_file_and_exists(name: str) -> None:
    words = container(name)["args"]
    assert words == SERVICES[name]["command"]
    assert "command" not in container(name)  # which would replace the image's entry point and its init
    done = run([*words, "--help"])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_readiness_of_a_worker_is_a_command_that_exists() -> None:
    words = container("worker")["readinessProbe"]["exec"]["command"]
    assert words[0] == "meshwright-entrypoint"  # it hands on the password
    assert run([*words[1:], "--help"]).returncode == 0


def test_ports_probes_and_images_agree_with_the_code_and_the_compose_file() -> None:
    port = int(variables("api")["MESHWRIGHT_PORT"])
    assert f"EXPOSE {port}\n" in DOCKERFILE
    assert container("api")["ports"] == [{"name": "http", "containerPort": port}]
    assert named("Service", "api")["spec"]["ports"][0]["port"] == port
    paths = set(json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"])
    probes = {
        name: container("api")[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")
    }
    assert probes == {"liveness": "/livez", "readiness": "/readyz"}
    assert set(probes.values()) <= paths
    for name in OURS:
        assert container(name)["image"] == f"meshwright:{PROJECT['project']['version']}"
    for name in ("postgres", "redis"):
        assert container(name)["image"] == SERVICES[name]["image"]
        assert str(pod(name)["securityContext"]["runAsUser"]) == SERVICES[name]["user"].split(":")[0]


@pytest.mark.parametrize("name", [*OURS, "postgres", "redis"])
def test_no_pod_is_root_writes_to_its_image_or_takes_all_of_a_node(name: str) -> None:
    rights, own = pod(name)["securityContext"], container(name)["securityContext"]
    assert rights["runAsNonRoot"]
    assert rights["runAsUser"] > 0
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(name)["automountServiceAccountToken"] is False
    resources = container(name)["resources"]
    assert set(resources["limits"]) == set(resources["requests"]) == {"cpu", "memory"}
    if name in OURS:
        assert f"--uid {rights['runAsUser']} " in DOCKERFILE


@pytest.mark.parametrize("name", [*OURS, "postgres", "redis"])
def test_every_mount_has_its_volume_and_the_password_is_a_file(name: str) -> None:
    claims = workload(name)["spec"].get("volumeClaimTemplates", ())
    volumes = {one["name"] for one in pod(name).get("volumes", ())} | {
        one["metadata"]["name"] for one in claims
    }
    mounts = {one["name"]: one["mountPath"] for one in container(name)["volumeMounts"]}
    assert set(mounts) == volumes
    if "password" in mounts:
        key = "POSTGRES_PASSWORD_FILE" if name == "postgres" else "DATABASE_PASSWORD_FILE"
        env = {one["name"]: one["value"] for one in container(name).get("env", ())}
        where = env[key] if name == "postgres" else variables(name)[key]
        assert where == f"{mounts['password']}/password"
    if "redis-password" in mounts and name != "redis":
        assert variables(name)["REDIS_PASSWORD_FILE"] == f"{mounts['redis-password']}/password"
    for secret in ("meshwright-database", "meshwright-redis"):
        assert list(named("Secret", secret)["stringData"]) == ["password"]


def test_every_process_has_time_to_leave() -> None:
    grace_s = {name: pod(name)["terminationGracePeriodSeconds"] for name in ("api", "worker", "postgres")}
    routed_s = container("api")["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert grace_s["api"] >= routed_s + 2 * float(variables("api")["MESHWRIGHT_GRACE_S"])
    assert grace_s["worker"] >= 2.0 + 10.0  # a search is stopped, then stored
    assert grace_s["postgres"] >= 60


def test_a_search_meets_its_own_memory_limit_before_its_container_does() -> None:
    limit = bytes_of(container("worker")["resources"]["limits"]["memory"])
    assert int(variables("worker")["MESHWRIGHT_WORKER_MEMORY_BYTES"]) <= 0.75 * limit


def test_a_launcher_meets_its_own_memory_limit_before_its_container_does() -> None:
    limit = bytes_of(container("verifier")["resources"]["limits"]["memory"])
    assert int(variables("verifier")["MESHWRIGHT_VERIFY_MEMORY_BYTES"]) <= 0.75 * limit


def test_selectors_find_their_pods() -> None:
    for manifest in MANIFESTS:
        if manifest["kind"] in {"Deployment", "StatefulSet"}:
            wanted = manifest["spec"]["selector"]["matchLabels"]
            assert wanted.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()
        if manifest["kind"] == "Service":
            labels = workload(manifest["metadata"]["name"])["spec"]["template"]["metadata"]["labels"]
            assert manifest["spec"]["selector"].items() <= labels.items()
    budget = named("PodDisruptionBudget", "api")["spec"]
    assert budget["minAvailable"] < named("Deployment", "api")["spec"]["replicas"]


def test_the_example_of_a_job_asks_the_service_that_is_deployed() -> None:
    job = yaml.safe_load((ROOT / "examples" / "launchers" / "pytorchjob.yaml").read_text())
    service = named("Service", "api")
    (port,) = service["spec"]["ports"]
    place = f"http://api.{service['metadata']['namespace']}:{port['port']}"
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        (asks,) = replica["template"]["spec"]["containers"]
        assert {"name": "MESHWRIGHT_URL", "value": place} in asks["env"]


def test_every_way_that_is_needed_is_open_and_no_other_port() -> None:
    policies = [one for one in MANIFESTS if one["kind"] == "NetworkPolicy"]
    assert named("NetworkPolicy", "nothing")["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }
    rules = [rule for one in policies for way in ("ingress", "egress") for rule in one["spec"].get(way, ())]
    assert {port["port"] for rule in rules for port in rule["ports"]} == {53, 443, 5432, 6379, 8420}
    outside = named("NetworkPolicy", "verifier-to-packages")["spec"]
    assert outside["podSelector"]["matchLabels"] == {"app.kubernetes.io/component": "verifier"}
    assert outside["egress"] == [{"ports": [{"port": 443}]}]  # and nobody else's
    url, queue = variables("worker")["MESHWRIGHT_DATABASE_URL"], variables("worker")["MESHWRIGHT_REDIS_URL"]
    assert "@postgres:5432/" in url
    assert "//redis:6379/" in queue


@pytest.fixture
def queue_of_ten(postgres: Database) -> Iterator[Database]:
    """Ten jobs that wait, three that run, a sweep that runs, and one that has ended."""
    with postgres.write() as connection:
        connection.execute(delete(jobs))
    names = [add_tiny_job(postgres, f"job-{number}") for number in range(15)]
    with postgres.write() as connection:
        for state, some in {"running": names[:4], "succeeded": names[4:5]}.items():
            connection.execute(update(jobs).where(jobs.c.id.in_(some)).values(state=state))
        connection.execute(update(jobs).where(jobs.c.id == names[0]).values(num_children=8))
    yield postgres
    with postgres.write() as connection:
        connection.execute(delete(jobs))


def test_the_autoscaler_keeps_busy_workers_and_adds_one_for_every_four_that_wait(
    queue_of_ten: Database,
) -> None:
    (trigger,) = named("ScaledObject", "worker")["spec"]["triggers"]
    with queue_of_ten.read() as connection:
        value = float(connection.execute(text(trigger["metadata"]["query"])).scalar_one())
    assert value == 3 + math.ceil(10 / 4)  # 6 workers
    assert trigger["metadata"]["targetQueryValue"] == "1"
    assert (
        trigger["authenticationRef"]["name"]
        == named("TriggerAuthentication", "meshwright-database")["metadata"]["name"]
    )
    assert named("ScaledObject", "worker")["spec"]["scaleTargetRef"]["name"] == "worker"


def test_the_plain_autoscaler_names_figures_that_the_api_tells(queue_of_ten: Database) -> None:
    told = {metric.name: metric for metric in Metrics(queue_of_ten).registry.collect()}
    for metric in named("HorizontalPodAutoscaler", "worker")["spec"]["metrics"]:
        wanted = metric["external"]["metric"]
        samples = told[wanted["name"]].samples
        assert wanted["selector"]["matchLabels"] in [sample.labels for sample in samples]
