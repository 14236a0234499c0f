"""The embedded service as a user starts it: one process tree, one SQLite file, the real search."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters

from tests.processes.postgres_server import is_alive
from tests.processes.quiet_clock import quiet_seconds
from tests.processes.servers import HANGS_S, SERVE, RunningServer, Settings, environment, serving, until
from tests.processes.warm import run_warm
from tests.reliability.figures import measured
from tests.served.job_records import TINY_PROBLEM, TINY_SEARCH
from tests.served.migrated import migrated

PROBLEM: dict[str, Any] = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 4},
    "workload": {"global_batch_size": 256, "seq_length": 8192},
    "search": {"top_k": 3},
}
QUICK = {**TINY_PROBLEM, "search": {**TINY_SEARCH, "top_k": 3}}
# 175 B parameters * 18 B = 3.1 TB of states; one node of 8 x 79.6 GiB has 0.68 TB
NO_ROOM = {**TINY_PROBLEM, "model": {"name": "gpt-3-175b"}}


def settings_in(folder: Path) -> Settings:
    return {"database_url": f"sqlite:///{folder / 'meshwright.db'}", "lease_s": "60", "sweep_s": "0.5"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(settings_in(tmp_path_factory.mktemp("embedded"))) as running:
        yield running


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    others = [
        child
        for task in Path(f"/proc/{process.pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return sorted({int(child) for child in (*children, *others)})


def test_a_problem_becomes_ranked_plans_and_launch_files(server: RunningServer) -> None:
    job = server.finished_job(server.post_job(PROBLEM)["id"])
    assert (job["state"], job["attempts"]) == ("succeeded", 1)
    answer = httpx.get(server.url + job["links"]["plans"]).json()
    assert answer["status"] == "optimal"
    assert [plan["rank"] for plan in answer["plans"]] == [1, 2, 3]
    steps_s = [plan["prediction"]["step_time_s"] for plan in answer["plans"]]
    assert steps_s == sorted(steps_s)
    plan_id = answer["plans"][0]["plan_id"]
    export = httpx.get(f"{server.url}/v1/plans/{plan_id}/export", params={"launcher": "megatron-lm"})
    assert export.status_code == 200, export.text
    tensor = answer["plans"][0]["config"]["tensor_parallel_size"]
    assert f"--tensor-model-parallel-size {tensor}" in " ".join(
        "".join(export.json()["files"].values()).split()
    )


@pytest.mark.parametrize("more", [{}, {"problem": PROBLEM}], ids=["alone", "with its problem"])
def test_the_prediction_of_a_plan_is_the_plans_own(server: RunningServer, more: dict[str, Any]) -> None:
    job = server.finished_job(server.post_job(PROBLEM)["id"])
    plan = httpx.get(server.url + job["links"]["plans"]).json()["plans"][0]
    assert plan["workload"]  # it has switches
    answer = httpx.post(f"{server.url}/v1/predictions", json={"plan": plan["plan_id"], **more})
    assert answer.status_code == 200, answer.text
    assert answer.json()["prediction"] == plan["prediction"]


def test_a_cluster_that_cannot_hold_the_model_is_infeasible_with_reasons(server: RunningServer) -> None:
    job = server.finished_job(server.post_job(NO_ROOM)["id"])
    assert job["state"] == "infeasible"
    assert job["infeasible"]["reasons"]
    assert httpx.get(server.url + job["links"]["plans"]).json()["plans"] == []


def test_an_answered_problem_is_answered_at_once_and_a_fresh_one_again(server: RunningServer) -> None:
    proved = {**QUICK, "search": {**TINY_SEARCH, "top_k": 3, "certify": "cp-sat"}}
    first = server.finished_job(server.post_job(proved)["id"])
    assert server.post_job(proved)["id"] == first["id"]
    fresh = server.post_job(proved, params={"fresh": "true"})
    assert fresh["id"] != first["id"]
    again = httpx.get(server.url + server.finished_job(fresh["id"])["links"]["plans"]).json()
    plans = httpx.get(server.url + first["links"]["plans"]).json()["plans"]
    assert again["plans"] == plans  # the same seed gives the same answer


def test_an_assistant_s_plan_is_a_job_of_the_service(server: RunningServer) -> None:
    asked = {"model": "smollm-135m", "gpus": "1xH100", "launcher": "trl",
             "workload": {"global_batch_size": 8, "seq_length": 2048}}  # fmt: skip
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "meshwright", "mcp", "--server", server.url],
        env=dict(os.environ),
    )

    async def talk() -> tuple[Any, Any]:
        async with Client(command) as client:
            planned = await client.call_tool("plan", asked)
            assert not planned.is_error, planned.content
            job = planned.structured_content["job"]["id"]
            return planned.structured_content, (
                await client.call_tool("job", {"job": job})
            ).structured_content

    planned, again = anyio.run(talk)
    job = httpx.get(f"{server.url}/v1/jobs/{planned['job']['id']}").json()
    assert job["state"] == "succeeded"
    plans = httpx.get(server.url + job["links"]["plans"]).json()["plans"]
    assert [one["plan_id"] for one in planned["answer"]["plans"]] == [one["plan_id"] for one in plans]
    assert again["job"]["id"] == job["id"]


def test_an_unknown_launcher_is_refused_at_export(server: RunningServer) -> None:
    job = server.finished_job(server.post_job(PROBLEM)["id"])
    plan_id = httpx.get(server.url + job["links"]["plans"]).json()["plans"][0]["plan_id"]
    answer = httpx.get(f"{server.url}/v1/plans/{plan_id}/export", params={"launcher": "megatron"})
    assert answer.status_code == 422
    assert "megatron-lm" in answer.json()["errors"][0]["message"]


def test_a_killed_worker_is_replaced_and_its_job_done(server: RunningServer) -> None:
    until(lambda: len(workers_of(server.process)) == 1)
    (worker,) = workers_of(server.process)
    os.kill(worker, signal.SIGKILL)
    job = server.finished_job(server.post_job(QUICK, params={"fresh": "true"})["id"])
    assert job["state"] == "succeeded"
    assert workers_of(server.process) != [worker]


def test_f21_second_server_on_the_same_file_refuses_and_names_the_owner(tmp_path: Path) -> None:
    settings = {**settings_in(tmp_path), "workers": "0"}
    with serving(settings) as owner:
        started_at = time.monotonic()
        second = run_warm("-c", SERVE, env=environment({"port": "0", **settings}))
        assert second.returncode != 0
        assert f"already served by process {owner.process.pid}" in second.stderr
        measured(21, "refused after, its start included", time.monotonic() - started_at, "s")


def test_a_stopped_server_leaves_no_worker_behind_and_starts_again_with_its_jobs(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with serving(settings) as running:
        job = running.post_job(QUICK)
        until(lambda: len(workers_of(running.process)) == 1)
        workers = workers_of(running.process)
        with quiet_seconds() as clock:
            running.process.terminate()
            assert running.process.wait(HANGS_S) == 0
        assert clock.took_s < 7.0  # the grace period of 5 s, and 2 s
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    with serving(settings) as again:
        assert again.finished_job(job["id"])["state"] == "succeeded"


def test_ctrl_c_in_the_terminal_ends_everything_quietly_even_while_it_starts(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE],
        env=environment({"port": "0", **settings_in(tmp_path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as a terminal does: Ctrl-C goes to the whole group
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("http://")  # its worker is still being imported
        until(lambda: len(workers_of(server)) == 1)
        time.sleep(0.3)
        os.killpg(server.pid, signal.SIGINT)
        _, said = server.communicate(timeout=HANGS_S)
    assert server.returncode == 0
    assert "Traceback" not in said


SLOW = f"""import pathlib, time
from meshwright.service.api.routes import predictions
def own_of_body(*_):
    with pathlib.Path({{arrived!r}}).open("a") as file:
        file.write("one ")
    time.sleep(5)
predictions.own_of_body = own_of_body
{SERVE}"""


def test_requests_that_a_stopping_server_cannot_finish_are_to_be_sent_again(tmp_path: Path) -> None:
    settings = {**settings_in(tmp_path), "workers": "0", "grace_s": "1"}
    arrived = tmp_path / "arrived"
    start = SLOW.format(arrived=str(arrived))
    with serving(settings, start=start) as running, ThreadPoolExecutor(4) as pool:
        address = f"{running.url}/v1/predictions"
        asked = [
            pool.submit(httpx.post, address, json={"problem": QUICK}, timeout=HANGS_S) for _ in range(2)
        ]
        until(lambda: arrived.exists() and arrived.read_text() == "one " * len(asked))
        running.process.terminate()
        answers = [one.result() for one in asked]
        assert running.process.wait(HANGS_S) == 0
    assert {(one.status_code, one.headers["retry-after"], one.json()["type"]) for one in answers} == {
        (503, "2", "urn:meshwright:problem:stopping")
    }


def test_an_open_long_poll_does_not_hold_up_the_servers_end(tmp_path: Path) -> None:
    with serving({**settings_in(tmp_path), "workers": "0"}) as running:
        job = running.post_job(QUICK)
        answers: list[httpx.Response] = []
        address = f"{running.url}/v1/jobs/{job['id']}"
        poll = threading.Thread(
            target=lambda: answers.append(httpx.get(address, params={"wait": 60}, timeout=HANGS_S))
        )
        poll.start()
        time.sleep(0.5)
        stopped_at = time.monotonic()
        running.process.terminate()
        assert running.process.wait(HANGS_S) == 0
        poll.join()
        assert time.monotonic() - stopped_at < 50.0  # the poll itself would last 60 s
    assert [(answer.status_code, answer.json()["state"]) for answer in answers] == [(200, "queued")]


def test_workers_leave_when_their_server_is_killed(tmp_path: Path) -> None:
    with serving(settings_in(tmp_path)) as running:
        until(lambda: len(workers_of(running.process)) == 1)
        (worker,) = workers_of(running.process)
        running.process.kill()
        running.process.wait()
        until(lambda: not is_alive(worker))  # who buries it, and when, is the machine's affair


NOT_AT_A_START = {
    "alembic",
    "ortools",
    "meshwright.launchers.megatron_lm.read",
    "meshwright.solver.planner.variants",
    "meshwright.solver.search.feasible",
}


def test_a_server_starts_without_search_readers_and_migrations(tmp_path: Path) -> None:
    ready = (
        f"lambda _: (print(*({NOT_AT_A_START} & set(sys.modules))), os.kill(os.getpid(), signal.SIGTERM))"
    )
    code = f"import os, signal, sys\n{SERVE}".replace("partial(print, flush=True)", ready)
    settings = {"database_url": migrated(tmp_path / "meshwright.db"), "workers": "0", "port": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment(settings), capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""


def test_a_kept_connection_is_answered_in_milliseconds(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url) as client:
        client.get("/livez")
        with quiet_seconds() as clock:
            for _ in range(20):
                client.get("/livez")
    # 20 answers, each held back by 40 ms while Nagle's algorithm waits for an acknowledgement: 0.8 s
    assert clock.took_s < 0.5


def has_a_plan(job: dict[str, Any]) -> bool:
    """Whether its search has reported one."""
    return bool(job.get("progress", {}).get("incumbent_step_time_s"))


def test_a_worker_outlives_a_heavy_search_that_is_cancelled_and_takes_the_next_job(tmp_path: Path) -> None:
    heavy: dict[str, Any] = {
        "model": {"name": "deepseek-v3"},
        "cluster": {"name": "dgx-h100", "num_nodes": 64},
        "workload": {"global_batch_size": 1024, "seq_length": 4096},
        "launcher": "none",
        "search": {"time_limit_s": 100, "allow": ["offload"]},
    }
    with serving({**settings_in(tmp_path), "workers": "1"}) as server:
        until(lambda: len(workers_of(server.process)) == 1)
        workers = workers_of(server.process)
        job = server.post_job(heavy)["id"]
        until(lambda: has_a_plan(server.job(job)))
        assert httpx.post(f"{server.url}/v1/jobs/{job}:cancel").status_code == 200
        done = server.finished_job(job)
        assert (done["state"], done["attempts"]) == ("cancelled", 1)
        assert httpx.get(server.url + done["links"]["plans"]).json()["plans"]
        assert server.finished_job(server.post_job(QUICK)["id"])["state"] == "succeeded"
        assert workers_of(server.process) == workers  # one with a search that does not stop in 2 s leaves
