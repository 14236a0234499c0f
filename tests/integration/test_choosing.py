"""A launcher that asks a real service as it starts: one node, two, nobody there, and what it reports."""

import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright_client import Client, Reporter, choose
from meshwright_client.choosing import NoAnswerError, NoPlanError, question_of
from meshwright_client.errors import InvalidRequestError
from meshwright_client.launching import filled, plan_flags
from meshwright_client.nodes import Nodes
from tests.processes.quiet_clock import quiet_seconds
from tests.processes.servers import HANGS_S, RunningServer, free_port, serving
from tests.processes.warm import ROOT, Warm
from tests.served.job_records import TINY_PROBLEM, TINY_SEARCH

SLURM = {"SLURM_JOB_ID": "7001", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8"}
PROBLEM = {**TINY_PROBLEM, "workload": {"global_batch_size": 32, "seq_length": 512}}
# A training script as Megatron-LM logs its steps: 10 of them, 250 ms each, 12 GiB.
TRAIN = """
import os, sys
sys.stdout.write(f"flags {len(sys.argv) - 1}\\n")  # in one piece, as nodes share a pipe
if os.environ["RANK"] == "0":
    sys.exit()  # Megatron-LM logs on its last rank
for step in range(1, 11):
    print(f" iteration {step:8}/ 10 | elapsed time per iteration (ms): 250.0 | loss: 2.0", flush=True)
print("[Rank 0] (after 1 iterations) memory (MB) | allocated: 9000.0 | max allocated: 12288.0", flush=True)
"""


def node(rank: int = 0, *, run_id: str = "start-1", num_nodes: int = 2) -> Nodes:
    return Nodes(source="slurm", run_id=run_id, rank=rank, num_nodes=num_nodes, gpus_per_node=8)


def with_batch(batch: int, **search: object) -> dict[str, object]:
    """A problem of another answer, searched in a third of a second; ``search`` adds to its search."""
    asked = {**PROBLEM, "workload": {"global_batch_size": batch, "seq_length": 512}}
    return {**asked, "search": {**TINY_SEARCH, **search}}


def launched(server_url: str, folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """``meshwright launch`` in ``folder``, as a node of a Slurm job."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    variables = {**clean, **SLURM, **environment, "MESHWRIGHT_URL": server_url}
    variables["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT / 'client'}"
    command = ["-m", "meshwright", "launch", *words]
    return Warm(command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_start_gets_a_plan_for_its_own_nodes_and_the_same_one_again(
    server: RunningServer, tmp_path: Path
) -> None:
    first = choose(PROBLEM, nodes=node(), save_dir=tmp_path, url=server.url)
    again = choose(PROBLEM, nodes=node(), save_dir=tmp_path, url=server.url)
    assert (first.source, again.job_id) == ("service", first.job_id)
    with Client(server.url) as client:
        request = client.job(first.job_id).request or {}
    assert request["cluster"]["groups"][0]["num_nodes"] == 2  # not the one node that the problem states
    assert (tmp_path / "megatron_args.sh").is_file()
    flags = plan_flags(first)
    assert flags[flags.index("--tensor-model-parallel-size") + 1] == str(first.config.tensor_parallel_size)
    assert filled(["python", "train.py"], first) == ["python", "train.py", *flags]
    own = ["bash", os.path.relpath(tmp_path / "launch.sh")]
    assert filled(own, first) == own  # which has them


def test_the_other_nodes_take_what_node_0_has_chosen_for_this_start_alone(
    server: RunningServer, tmp_path: Path
) -> None:
    chosen = choose(with_batch(48), nodes=node(), save_dir=tmp_path, url=server.url)
    assert choose(with_batch(48), nodes=node(1), save_dir=tmp_path, url="http://nobody.invalid") == chosen
    for other, why in (
        (node(1, run_id="start-2"), "or this node does not see its files"),
        (node(1, num_nodes=3), "it has asked another question: this node has other GPUs"),
    ):
        with pytest.raises(NoAnswerError, match=why):
            choose(with_batch(48), nodes=other, save_dir=tmp_path, limit_s=0.3)


def test_the_last_accepted_answer_counts_where_the_service_is_away(
    server: RunningServer, tmp_path: Path
) -> None:
    accepted = choose(with_batch(64), nodes=node(), save_dir=tmp_path, url=server.url)
    (tmp_path / "megatron_args.sh").unlink()
    away = f"http://127.0.0.1:{free_port()}"
    again = choose(with_batch(64), nodes=node(run_id="2"), save_dir=tmp_path, url=away, limit_s=1.0)
    assert (again.source, again.plan_id, again.run_id) == ("last answer", accepted.plan_id, "2")
    assert "ServiceUnavailableError" in again.why
    assert (tmp_path / "megatron_args.sh").is_file()
    fewer = Nodes(source="torchelastic", run_id="2", rank=0, num_nodes=2, gpus_per_node=4, world=8)
    for other in (node(num_nodes=3), fewer):  # the plan uses 16 GPUs
        with pytest.raises(NoAnswerError, match="nothing was accepted before"):
            choose(with_batch(64), nodes=other, save_dir=tmp_path, url=away, limit_s=1.0)


def test_a_service_that_never_answers_holds_up_a_start_no_longer_than_the_limit(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with quiet_seconds() as clock, pytest.raises(NoAnswerError, match=r"within 1 s|Timeout"):
            choose(PROBLEM, nodes=node(), save_dir=tmp_path, url=url, limit_s=1.0)
        assert clock.took_s < 2.0
    assert not list(tmp_path.iterdir())  # nothing half-written


def test_nodes_that_wait_for_a_silent_service_together_all_get_the_last_answer_within_the_limit(
    server: RunningServer, tmp_path: Path
) -> None:
    accepted = choose(with_batch(144), nodes=node(run_id="1"), save_dir=tmp_path, url=server.url)
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as threads:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        starts = [
            threads.submit(
                choose,
                with_batch(144),
                nodes=node(rank, run_id="2"),
                save_dir=tmp_path,
                url=url,
                limit_s=8.0,
            )
            for rank in (1, 0)
        ]  # fmt: skip
        choices = [one.result() for one in starts]
    assert [(one.plan_id, one.source, one.run_id) for one in choices] == [
        (accepted.plan_id, "last answer", "2")
    ] * 2


class Spoilt(BaseHTTPRequestHandler):
    """Passes requests on to a service, and spoils what it answers to some."""

    url = ""
    path_end, body = "", b""  # whose answer is replaced, and by what

    def do_GET(self) -> None:
        self.passed_on(None)

    def do_POST(self) -> None:
        self.passed_on(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def passed_on(self, body: bytes | None) -> None:
        named = ("Content-Type", "Idempotency-Key")
        headers = {name: self.headers[name] for name in named if name in self.headers}
        reply = httpx.request(self.command, self.url + self.path, content=body, headers=headers)
        spoilt = self.path.partition("?")[0].endswith(self.path_end)
        content = self.body if spoilt else reply.content
        self.send_response(reply.status_code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("path_end", "body"),
    [
        ("/v1/jobs", b""),
        ("/v1/jobs", b'{"id": "a'),
        ("/v1/jobs", b"[]"),
        ("/v1/jobs", b'{"id": 7}'),
        ("/plans", b"{}"),
        ("/export", b'{"launcher": "megatron-lm", "files": {"../outside.sh": ""}, "warnings": []}'),
    ],
)
def test_half_an_answer_is_none_and_leaves_nothing_behind(
    server: RunningServer, tmp_path: Path, path_end: str, body: bytes
) -> None:
    with Client(server.url) as client:  # whose search may take longer than the limit below
        client.wait(client.submit(question_of(with_batch(160), node())))
    with ThreadingHTTPServer(("127.0.0.1", 0), type("One", (Spoilt,), {
        "url": server.url, "path_end": path_end, "body": body,
    })) as between:  # fmt: skip
        threading.Thread(target=between.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{between.server_port}"
        with pytest.raises(NoAnswerError, match=r"UnexpectedAnswerError|WaitTimeout"):
            choose(with_batch(160), nodes=node(), save_dir=tmp_path / "run", url=url, limit_s=5.0)
        between.shutdown()
    assert not list(tmp_path.iterdir())


def test_a_start_that_has_chosen_stays_with_its_choice_whatever_the_service_says_later(
    server: RunningServer, tmp_path: Path
) -> None:
    first = choose(with_batch(176), nodes=node(), save_dir=tmp_path, url=server.url)
    (tmp_path / "launch.sh").unlink()
    nobody = f"http://127.0.0.1:{free_port()}"  # whom it need not ask
    assert choose(with_batch(176), nodes=node(), save_dir=tmp_path, url=nobody) == first
    assert (tmp_path / "launch.sh").is_file()


def test_two_that_ask_for_one_start_at_once_get_one_plan_whose_files_are_whole(
    server: RunningServer, tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as threads:
        asking = [
            threads.submit(choose, with_batch(192), nodes=node(), save_dir=tmp_path, url=server.url)
            for _ in range(4)
        ]
        plans = {one.result().plan_id for one in asking}
    assert len(plans) == 1
    chosen = asking[0].result()
    assert {name: (tmp_path / name).read_text() for name in chosen.files} == chosen.files
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_disk_that_is_full_is_named_and_keeps_the_files_of_the_start_before(
    server: RunningServer, tmp_path: Path
) -> None:
    choose(with_batch(208), nodes=node(run_id="1"), save_dir=tmp_path, url=server.url)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    script = (
        "import json, resource, sys\n"
        "from meshwright_client import choose\n"
        "from meshwright_client.nodes import Nodes\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"  # of a file: launch.sh has more
        "nodes = Nodes(source='slurm', run_id='2', rank=0, num_nodes=2, gpus_per_node=8)\n"
        "choose(json.loads(sys.argv[1]), nodes=nodes, save_dir=sys.argv[2], url=sys.argv[3])\n"
    )
    words = [json.dumps(with_batch(208)), str(tmp_path), server.url]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
    )
    assert "NotWrittenError" in done.stderr, done.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_wrong_problem_and_one_without_a_plan_are_refused_not_answered_from_before(
    server: RunningServer, tmp_path: Path
) -> None:
    wrong = {**PROBLEM, "search": {"time_limit_s": "soon"}}
    with pytest.raises(InvalidRequestError, match="/search/time_limit_s"):
        choose(wrong, nodes=node(), save_dir=tmp_path, url=server.url)
    wrong = {**PROBLEM, "search": {"time_limit_s": -5.0}}
    with pytest.raises(InvalidRequestError, match="/search/time_limit_s"):
        choose(wrong, nodes=node(), save_dir=tmp_path, url=server.url)
    with pytest.raises(ValueError, match="must be a number of seconds above 0"):
        choose(PROBLEM, nodes=node(), save_dir=tmp_path, url=server.url, limit_s=float("nan"))
    with pytest.raises(InvalidRequestError, match="/launcher"):
        choose({**PROBLEM, "launcher": "megatron-ml"}, nodes=node(), save_dir=tmp_path, url=server.url)
    huge = {**PROBLEM, "model": {"name": "gpt-3-175b"}, "search": {**TINY_SEARCH, "time_limit_s": 1.0}}
    with pytest.raises(NoPlanError, match="is infeasible"):
        choose(huge, nodes=node(num_nodes=1), save_dir=tmp_path, url=server.url)
    world = Nodes(source="torchelastic", run_id="1", rank=0, num_nodes=2, gpus_per_node=4, world=8)
    with pytest.raises(NoPlanError, match="uses 16 GPUs, torchrun has started 8 processes"):
        choose(PROBLEM, nodes=world, save_dir=tmp_path, url=server.url)  # on nodes of eight
    assert not list(tmp_path.iterdir())


def test_two_nodes_launch_one_plan_and_what_it_took_answers_the_next_start(
    server: RunningServer, tmp_path: Path
) -> None:
    """``meshwright launch`` on both nodes; node 1 begins first and waits."""
    (tmp_path / "problem.json").write_text(json.dumps(with_batch(80)))
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--", sys.executable, "train.py")
    second = launched(server.url, tmp_path, *words, SLURM_NODEID="1", RANK="8")
    first = launched(server.url, tmp_path, *words, SLURM_NODEID="0", RANK="0")
    told = [one.communicate(timeout=HANGS_S) for one in (first, second)]
    assert [one.returncode for one in (first, second)] == [0, 0], told
    flags = {out.partition("\n")[0] for out, _ in told}
    assert len(flags) == 1  # both were started with the same flags
    assert int(flags.pop().split()[1]) > 20
    assert "H100 SXM 80 GB under megatron-core, uncalibrated" in told[0][1]
    third = launched(server.url, tmp_path, *words, SLURM_JOB_ID="7002", RANK="0")
    _, fault = third.communicate(timeout=HANGS_S)
    assert third.returncode == 0, fault
    assert "version 1 of this cluster's" in fault  # the latest calibration, named
    with Client(server.url) as client:
        measured = list(client.find_plans(measured=True))
        (profile,) = [one for one in client.profiles() if one.version == 1]
    assert {one.measured.step_time_s for one in measured if one.measured} == {0.25}
    assert profile.kind == "calibration"


def test_a_launch_goes_on_without_a_calibration_that_cannot_be_and_says_which(
    server: RunningServer, tmp_path: Path
) -> None:
    """Tensor 8 is expected at a third of the peak; said twice to reach 65 %, it lifts others too far."""
    whole = {
        "model": {"name": "llama-3.1-8b"}, "cluster": {"name": "dgx-h200", "num_nodes": 4},
        "workload": {"global_batch_size": 256, "seq_length": 8192},
    }  # fmt: skip
    pinned = {**TINY_SEARCH, "pin": {"tensor_parallel_size": 8, "micro_batch_size": 1}}
    with Client(server.url) as client:
        job = client.wait(client.submit({**whole, "search": pinned}), timeout_s=60.0)
        plan = client.plans(job).plans[0].plan_id
        for seconds in (5.21, 5.2):  # one run alone would move others half as far
            learnt = client.measure(plan, {"step_time_s": seconds})
    (tmp_path / "problem.json").write_text(json.dumps({**whole, "search": TINY_SEARCH}))
    words = ("--", sys.executable, "-c", "print('started')")
    start = launched(server.url, tmp_path, *words, RANK="0", SLURM_JOB_NUM_NODES="4")
    out, told = start.communicate(timeout=HANGS_S)
    assert (start.returncode, out) == (0, "started\n"), told
    assert f"profile {learnt.profile}, the latest calibration of this cluster, is left out" in told
    assert "uncalibrated" in told.splitlines()[-1]


def test_a_command_that_fails_or_is_not_there_says_so(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    failing = launched(server.url, tmp_path, "--", sys.executable, "-c", "raise SystemExit(3)", RANK="0")
    _, fault = failing.communicate(timeout=HANGS_S)
    assert failing.returncode == 3, fault
    missing = launched(server.url, tmp_path, "--", "no-such-program", RANK="0")
    _, fault = missing.communicate(timeout=HANGS_S)
    assert (missing.returncode, "no-such-program" in fault) == (2, True), fault
    endless = launched(server.url, tmp_path, "--limit-s", "inf", RANK="0")
    _, fault = endless.communicate(timeout=HANGS_S)
    assert (endless.returncode, "--limit-s" in fault, "Traceback" in fault) == (2, True, False), fault


def test_a_start_whose_node_0_is_killed_ends_on_the_others_and_the_next_one_is_free(
    server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(with_batch(112)))
    words = ("--", sys.executable, "-c", "print('started')")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        asks = launched(url, tmp_path, "--limit-s", "3", *words, SLURM_NODEID="0", RANK="0")
        waits = launched(url, tmp_path, "--limit-s", "3", *words, SLURM_NODEID="1", RANK="8")
        with silent.accept()[0]:
            asks.kill()
        asks.communicate()
        assert (
            "node 0 has written no meshwright-run/meshwright.json" in waits.communicate(timeout=HANGS_S)[1]
        )
        assert (asks.returncode, waits.returncode) == (-9, 2)
    nodes = [launched(server.url, tmp_path, *words, SLURM_NODEID=str(one)) for one in (0, 1)]
    assert [one.communicate(timeout=HANGS_S)[0] for one in nodes] == [
        "started\n"
    ] * 2  # of the same Slurm job


def test_a_start_without_a_usable_key_says_so_and_goes_on_with_what_was_accepted_before(
    tmp_path: Path,
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'meshwright.db'}")
    migrations.upgrade(database)
    _, token = Keys(database, actor="test").create(NewKey(tenant="ours"))
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    words = ("--", sys.executable, "-c", "print('started')")
    with serving({"database_url": str(database.url), "workers": "1"}) as keyed:

        def start(key: str, job: str) -> tuple[int, str, str]:
            one = launched(keyed.url, tmp_path, *words, MESHWRIGHT_KEY=key, SLURM_JOB_ID=job)
            out, told = one.communicate(timeout=HANGS_S)
            return one.returncode, out, told

        for key, says in (
            ("", "commands take from MESHWRIGHT_KEY"),
            ("mw_x", "unknown, revoked or expired"),
        ):
            code, out, told = start(key, "1")
            assert (code, out, says in told, "Traceback" in told) == (2, "", True, False), told
        assert start(f"{token}\n", "2")[:2] == (0, "started\n")  # as a secret's file holds it
        code, out, told = start("mw_x", "3")
        assert (code, out) == (0, "started\n")
        assert "this key is unknown, revoked or expired" in told
        assert "using the last accepted plan for this question" in told


def test_a_run_out_of_memory_is_reported_as_such(server: RunningServer, tmp_path: Path) -> None:
    elsewhere = {**with_batch(96), "cluster": {"name": "dgx-a100"}}  # the others learn nothing from it
    chosen = choose(elsewhere, nodes=node(), save_dir=tmp_path, url=server.url)
    reporter = Reporter.of(chosen, url=server.url, active=True)
    reporter.out_of_memory()
    reporter.close()
    assert reporter.fault is None
    with Client(server.url) as client:
        (plan,) = [one for one in client.find_plans(measured=True) if one.plan_id == chosen.plan_id]
    assert plan.measured is not None
    assert plan.measured.out_of_memory


def test_profiles_and_reports_are_calls_of_the_client(server: RunningServer, tmp_path: Path) -> None:
    chosen = choose(with_batch(128), nodes=node(), save_dir=tmp_path, url=server.url)
    with Client(server.url) as client:
        learnt = client.measure(chosen.plan_id, {"step_time_s": 0.5}, idempotency_key="run-128")
        assert client.measure(chosen.plan_id, {"step_time_s": 0.5}, idempotency_key="run-128") == learnt
        kept = client.profile(learnt.profile)
        assert kept.version == learnt.profile_version
        assert kept.document is not None
        assert client.keep_profile(kept.document).id == learnt.profile
        assert client.report(client.job(chosen.job_id)).startswith("<!doctype html>")


def test_a_report_that_nobody_takes_leaves_the_job_alone(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    reporter = Reporter("aaa", run_id="1", url=url, warm_up=0, steps=3)
    for _ in range(9):
        reporter.step(0.25)
    reporter.close(timeout_s=0.1)
    assert (reporter.measured()["step_time_s"], reporter.learnt) == (0.25, None)
    assert not list(tmp_path.iterdir())


def test_a_job_that_lost_a_node_goes_on_with_files_from_the_service(
    server: RunningServer, tmp_path: Path
) -> None:
    with Client(server.url) as service:
        job = service.wait(service.submit(with_two_nodes()), timeout_s=60.0)
        changed = {"lost_nodes": 1, "steps_done": 500, "steps_total": 1000, "saved_step": 450}
        found = service.replan(job, changed, save_dir=tmp_path / "run")
        assert (found.lost_steps, found.remaining_steps) == (50, 500)  # 500 - 450, 1000 - 500
        assert {way.kind for way in found.ways} >= {"new layout", "wait for repair"}
        assert [way.finish_s for way in found.ways] == sorted(way.finish_s for way in found.ways)
        assert all(way.layout.num_gpus <= 8 for way in found.ways if way.kind == "new layout")
        assert {path.name for path in (tmp_path / "run").iterdir()} >= {"launch.sh", "resume.sh"}
        with pytest.raises(InvalidRequestError) as fault:
            service.replan(job, {**changed, "lost_nodes": 3}, save_dir=tmp_path / "other")
        assert [one.pointer for one in fault.value.problem.errors or ()] == ["/lost_nodes"]
        assert not (tmp_path / "other").exists()


def with_two_nodes() -> dict[str, object]:
    return {**with_batch(64), "cluster": {"name": "dgx-h100", "num_nodes": 2}}
