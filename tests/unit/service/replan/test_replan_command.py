"""``meshwright replan`` and ``POST /v1/jobs/{id}:replan``: one answer, nothing half-written."""

import json
import pickle
import subprocess
from functools import cache
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.cli.main import app
from meshwright.service.cli.replan import _of_option
from meshwright.service.jobs.answers import answer_document
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.replan.checkpoint import read_checkpoint
from meshwright.service.replan.request import changed_job, read_replan_request
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.planner.plan import ask
from meshwright.workers.outcome import outcome_of
from tests.processes.bounded import output_of
from tests.served.api_client import BODY, submit
from tests.served.job_records import claimed

PROBLEM = {**BODY, "launcher": "megatron-lm", "search": {"top_k": 2, "certify": "none"}}
# What saves states that any layout loads → what loads them.
BRIDGE = """checkpoint.dist_ckpt_optim_fully_reshardable=true → \
checkpoint.load='{saved}' checkpoint.save='{saved}' checkpoint.ckpt_step=100"""
MS_SWIFT = """--dist_ckpt_optim_fully_reshardable true → \
--mcore_model {saved}/checkpoint-100 --finetune false"""
CHANGE = {"lost_nodes": 1, "steps_done": 1000, "steps_total": 5000, "saved_step": 900}


@cache
def found() -> Answer:
    """Two plans."""
    problem = parse_problem(PROBLEM)
    return ask(problem, default_profile(problem.cluster, problem.launcher))


@pytest.fixture
def answer_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(answer_document(found(), parse_problem(PROBLEM))))
    return path


@pytest.fixture
def job(client: TestClient, engine: JobEngine) -> str:
    """A job that a worker has answered with two plans."""
    job_id = submit(client)
    outcome = outcome_of(found(), cache_key="k", cancelled=False)
    assert engine.complete(claimed(engine), outcome)
    return job_id


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["replan", *words], standalone_mode=False)
    if isinstance(done.exception, InvalidProblemError):
        return 2, done.stdout, str(done.exception)
    code = done.return_value if isinstance(done.return_value, int) else done.exit_code
    return code, done.stdout, done.stderr


def test_the_command_and_the_service_answer_alike(client: TestClient, job: str, answer_file: Path) -> None:
    reply = client.post(f"/v1/jobs/{job}:replan", json=CHANGE)
    assert reply.status_code == 200, reply.text
    code, out, _ = run("--from", str(answer_file), "--lost-nodes", "1", "--steps-done", "1000",
                       "--steps-total", "5000", "--saved-step", "900", "--json")  # fmt: skip
    assert code == 0
    ours, theirs = json.loads(out), reply.json()
    assert [one["kind"] for one in ours["ways"]] == [one["kind"] for one in theirs["ways"]]
    assert [one["finish_s"] for one in ours["ways"]] == [one["finish_s"] for one in theirs["ways"]]
    assert "resume.sh" in theirs["files"]


@pytest.mark.parametrize("columns", [50, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(
    answer_file: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run("--from", str(answer_file), "--lost-nodes", "1", "--steps-done", "1000",
                       "--steps-total", "5000")  # fmt: skip
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    assert ("#  way" in out) == (columns == 200)
    assert ("\n1. " in out) == (columns < 200)
    assert out.count("downtime") == (
        1 if columns == 200 else sum(line[0].isdigit() for line in lines if line)
    )


@pytest.mark.parametrize(
    ("gpus", "warned"),
    [("4", "warning: slurm reports 4 GPUs of this node, but the plan needs nodes of 8\n"), ("8", "")],
)
def test_the_scheduler_counts_the_nodes_and_a_warning_tells_those_of_other_sizes_than_the_plans(
    answer_file: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, warned: str
) -> None:
    told = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": gpus}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    words = ("--from", str(answer_file), "--steps-total", "5000", "--json", "--cluster-from")
    code, out, said = run(*words, "slurm")
    assert (code, said) == (0, warned)
    assert json.loads(out)["ways"][0]["layout"]["num_gpus"] == 8
    assert run(*words, "slrum")[::2] == (2, '--cluster-from: unknown "slrum". Did you mean slurm?')


def test_another_plan_of_the_job_can_be_the_one_that_runs(client: TestClient, job: str) -> None:
    second = client.get(f"/v1/jobs/{job}/plans").json()["plans"][1]["plan_id"]
    assert (
        client.post(f"/v1/jobs/{job}:replan", json={**CHANGE, "plan_id": second}).json()["plan_id"]
        == second
    )
    assert client.post(f"/v1/jobs/{job}:replan", json={**CHANGE, "plan_id": "none"}).status_code == 404


def test_a_job_without_an_answer_and_one_that_is_not_there(client: TestClient) -> None:
    waiting = submit(client)
    assert client.post(f"/v1/jobs/{waiting}:replan", json=CHANGE).status_code == 409
    assert client.post("/v1/jobs/nobody:replan", json=CHANGE).status_code == 404


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"lost_nodes": 5}, "/lost_nodes"),
        ({"lost_nodes": True}, "/lost_nodes"),
        ({"slow_nodes": {"0": 2}}, "/slow_nodes/0"),
        ({"strange": 1}, "/strange"),
        ({"checkpoint": {"num_parameters": 1000}}, "/checkpoint/num_parameters"),
        ({"checkpoint": {"place": {}}}, "/checkpoint/place"),
        ({"checkpoint": {"layers": 1}}, "/checkpoint/layers"),
    ],
)  # fmt: skip
def test_the_service_names_the_field_that_is_wrong(
    client: TestClient, job: str, change: dict[str, object], pointer: str
) -> None:
    reply = client.post(f"/v1/jobs/{job}:replan", json={**CHANGE, **change})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["pointer"].startswith(pointer)


def test_the_files_of_a_way_start_it_from_a_whole_checkpoint(answer_file: Path, tmp_path: Path) -> None:
    words = ("--lost-nodes", "1", "--steps-done", "9", "--steps-total", "50")
    code, _, said = run("--from", str(answer_file), *words, "--save-dir", str(tmp_path / "run"))
    assert code == 0, said
    saved = tmp_path / "checkpoints"
    for step, whole in ((100, True), (90, True), (110, False)):  # the last one was broken off
        (saved / f"iter_{step:07d}").mkdir(parents=True)
        if whole:
            (saved / f"iter_{step:07d}" / ".metadata").touch()

    def started(**given: str) -> tuple[int, str]:
        environment = {"PATH": "/usr/bin:/bin", "START": "echo", "CHECKPOINTS": str(saved), **given}
        words = ["bash", str(tmp_path / "run" / "resume.sh"), "--exit-interval", "5"]
        done = subprocess.run(
            words, capture_output=True, text=True, env=environment, timeout=100, check=False
        )
        return done.returncode, done.stdout + done.stderr

    code, said = started(STEP="110")
    assert (code, "holds no whole checkpoint" in said) == (2, True)  # it says so, and starts nothing
    for given in ({}, {"STEP": "100"}, {"STEP": "0000100"}):  # the newest whole one, unless one is named
        code, said = started(**given)
        assert (code, "--ckpt-step 100" in said, "--exit-interval 5" in said) == (0, True, True)
        assert "goes on from" in said
    facts = json.loads((tmp_path / "run" / "resume.json").read_text())
    assert facts["global_batch_size"] == 256 == _batch(facts["after"])  # kept by accumulation


@pytest.mark.parametrize(
    ("launcher", "folder", "arguments"),
    [
        ("megatron-bridge", "iter_0000100", BRIDGE),
        ("ms-swift", "checkpoint-100/iter_0000100", MS_SWIFT),
    ],
)
def test_bridge_and_ms_swift_save_what_any_layout_loads_and_go_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, folder: str, arguments: str
) -> None:
    saves, _, loads = arguments.partition(" → ")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    search = {"top_k": 2, "certify": "none", "pin": {"zero_stage": 1}}
    problem = parse_problem({**PROBLEM, "launcher": launcher, "search": search})
    answer = ask(problem, default_profile(problem.cluster, launcher))
    (tmp_path / "answer.json").write_text(json.dumps(answer_document(answer, problem)))
    words = ("--lost-nodes", "1", "--steps-done", "109", "--steps-total", "500", "--json")
    code, out, said = run(
        "--from", str(tmp_path / "answer.json"), *words, "--save-dir", str(tmp_path / "run")
    )
    assert code == 0, said
    assert json.loads(out)["checkpoint_format"] == "torch_dist_fully_reshardable"
    assert saves in (tmp_path / "run" / "plan_args.sh").read_text()
    saved = tmp_path / "check points"
    (saved / folder).mkdir(parents=True)
    (saved / folder / ".metadata").touch()
    environment = {"PATH": "/usr/bin:/bin", "START": "echo", "CHECKPOINTS": str(saved)}
    started = output_of(
        ["bash", str(tmp_path / "run" / "resume.sh")], timeout_s=60, environment=environment
    )
    assert loads.format(saved=saved) in started


def _batch(sizes: dict[str, int]) -> int:
    return sizes["data_parallel_size"] * sizes["micro_batch_size"] * sizes["num_microbatches"]


def test_a_folder_of_something_else_is_left_as_it_is(answer_file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    words = ("--from", str(answer_file), "--lost-nodes", "1", "--steps-total", "50")
    code, _, said = run(*words, "--save-dir", str(tmp_path / "mine"))
    assert (code, "contains other files" in said) == (2, True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "words",
    [
        ("--lost-nodes", "x"),
        ("--lost-nodes", "9" * 5000),
        ("--lost-nodes", "1", "--lost-nodes", "2"),
        ("--slow-node", "3=fast"),
    ],
)
def test_words_that_are_no_nodes_are_refused(answer_file: Path, words: tuple[str, ...]) -> None:
    code, _, said = run("--from", str(answer_file), *words, "--steps-total", "50")
    assert (code, " is not " in said, "Allowed: " in said) == (2, True, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--lost-nodes", "5"), ("--lost-nodes", "4")),  # the job has 4
        (("--lost-nodes", "4"), ("--lost-nodes", "no node is left", "1 to 3, or spare_nodes above 0")),
        (("--lost-nodes", "0"), ("--lost-nodes", "from 1", "Nearest: 1")),
        (("--lost-nodes", "-1"), ("--lost-nodes", "'-1' is not a number", "from 1")),
        (("--lost-nodes", "elsewhere=1"), ("--lost-nodes", "elsewhere", "h100-sxm-80gb")),
        (("--slow-node", "0=1.2"), ("--slow-node 0", "below 1")),
        (("--slow-node", "0=nan"), ("--slow-node 0",)),
        (("--slow-node", "0=0"), ("--slow-node 0", "from 0.001")),
        (("--slow-node", "4=.5"), ("--slow-node 4", "0 to 3", "Nearest: 3")),
        (("--slow-node", "0=.5", "--slow-node", "0=.7"), ("--slow-node", "0 is stated twice")),
        (("--lost-nodes", "a=1", "--lost-nodes", "a=2"), ("--lost-nodes", "a is stated twice")),
        (("--num-nodes", "0"), ("--num-nodes", "1")),
        (("--num-nodes", "4", "--lost-nodes", "1"), ("--num-nodes", "lost_nodes")),
        ((), ("nothing changed",)),
        (("--lost-nodes", "1", "--steps-done", "-1"), ("--steps-done", "0")),
        (("--lost-nodes", "1", "--steps-done", "51"), ("--steps-done", "0 to 50", "Nearest: 50")),
        (("--lost-nodes", "1", "--saved-step", "7"), ("--saved-step", "not reached")),
        (("--lost-nodes", "1", "--spare-nodes", "-2"), ("--spare-nodes", "0")),
        (("--lost-nodes", "1", "--repair-hours", "nan"), ("--repair-hours", "nan", "above 0, to 277777")),
        (("--lost-nodes", "1", "--repair-hours", "277778"), ("--repair-hours", "277777")),  # 1e9 s
        (("--lost-nodes", "1", "--top-k", "0"), ("--top-k", "1")),
        (
            ("--lost-nodes", "1", "--checkpoint-format", "torch-dist"),
            ("--checkpoint-format", "Did you mean torch_dist"),
        ),
        (("--lost-nodes", "1", "--checkpoint-place", "moon"), ("--checkpoint-place", "shared")),
        (("--lost-nodes", "1", "--checkpoint", "nowhere"), ("nowhere",)),
        (("--lost-nodes", "1", "--way", "99"), ("no way of rank 99", "1 to 6")),
    ],
)
def test_what_a_job_cannot_have_met_is_refused_by_name_and_nothing_is_written(
    answer_file: Path, tmp_path: Path, words: tuple[str, ...], told: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    code, out, said = run(
        "--from", str(answer_file), "--steps-total", "50", *words, "--save-dir", str(folder)
    )
    assert (code, out) == (2, ""), said
    assert all(part in said for part in told), said
    assert not folder.exists()


@pytest.mark.parametrize(
    ("pointer", "option"),
    [
        ("/checkpoint/format", "--checkpoint-format"),
        ("/checkpoint/place", "--checkpoint-place"),
        ("/checkpoint/bytes", "--checkpoint"),  # read off the folder
        ("/steps_total", "--steps-total"),
        ("/slow_nodes/17", "--slow-node 17"),
        ("/repair_s", "--repair-hours"),
    ],
)
def test_a_fault_of_a_field_is_reported_for_the_option_that_gives_it(pointer: str, option: str) -> None:
    assert _of_option(FieldError(pointer=pointer, message="is not usable")).pointer == option


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('a checkpoint was run')",)


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps({"a": 1}), pickle.dumps(_Bomb())])
def test_a_file_that_is_no_metadata_is_refused_and_runs_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(InvalidProblemError, match=r"not a \.metadata file"):
        read_checkpoint(tmp_path)


def test_a_folder_without_a_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step-10").mkdir()
    with pytest.raises(InvalidProblemError, match="no whole checkpoint"):
        read_checkpoint(tmp_path)


class Size(tuple[int, ...]):
    """As ``torch.Size`` is pickled."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type, tuple[tuple[int, ...]]]:
        return Size, (tuple(self),)


class Entry:
    """As torch's ``TensorStorageMetadata`` is pickled."""

    def __init__(self, *size: int) -> None:
        self.size = Size(size)


class Listed:
    """As torch's ``Metadata`` is pickled."""

    def __init__(self, **tensors: Entry) -> None:
        self.state_dict_metadata = {name.replace("__", "."): entry for name, entry in tensors.items()}


def saved(folder: Path, **tensors: Entry) -> None:
    folder.mkdir(parents=True)
    (folder / ".metadata").write_bytes(pickle.dumps(Listed(**tensors)))


@pytest.mark.parametrize("named", ["", "checkpoint-20", "checkpoint-20/pytorch_model_fsdp_0"])
def test_the_checkpoint_of_a_trainer_under_fsdp_is_found_in_its_folders(tmp_path: Path, named: str) -> None:
    layers = {"model__model__layers__0__w": Entry(4, 8), "model__model__layers__1__w": Entry(4, 8)}
    for step in (10, 20):
        saved(tmp_path / f"checkpoint-{step}" / "pytorch_model_fsdp_0", **layers)
        saved(tmp_path / f"checkpoint-{step}" / "optimizer_0", optimizer__state__w__exp_avg=Entry(4, 8))
    saved(tmp_path / "checkpoint-30" / "pytorch_model_fsdp_0", **layers)  # its states are not yet there
    one = read_checkpoint(tmp_path / named)
    assert (one.format, one.step, one.num_layers, one.num_parameters) == ("dcp", 20, 2, 2 * 4 * 8)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"num_nodes": 2}, None),  # as many as before
        ({"num_nodes": 3}, None),
        ({"num_nodes": 1}, "/num_nodes"),
        ({"lost_nodes": 1}, "/lost_nodes"),
        ({"slow_nodes": {"0": 0.5}}, "/slow_nodes"),
    ],
)
def test_links_that_differ_allow_only_changes_that_take_no_host_away(
    change: dict[str, object], pointer: str | None
) -> None:
    links = {"bytes_per_s": [[0, 4e10], [4e10, 0]]}
    cluster = {"name": "dgx-h100", "num_nodes": 2, "links": links}
    problem = parse_problem({**PROBLEM, "cluster": cluster})
    asked = read_replan_request({"steps_done": 100, "steps_total": 500, "saved_step": 90, **change})
    if pointer is None:
        assert changed_job(asked, problem, found().plans[0]).left.num_nodes == change["num_nodes"]
        return
    with pytest.raises(InvalidProblemError, match="does not know which hosts are left") as refused:
        changed_job(asked, problem, found().plans[0])
    assert [one.pointer for one in refused.value.errors] == [pointer]
