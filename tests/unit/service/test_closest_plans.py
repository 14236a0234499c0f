"""The plan closest to fitting: found by its id and exported where its risk is accepted, and in no list."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from meshwright.service.jobs.engine import JobEngine
from meshwright.service.report.sentences import option_words
from meshwright.service.requests.fields import OPTIONS
from meshwright.workers.outcome import outcome_of
from tests.problems.tight import TIGHT, tight_answer
from tests.served.api_client import submit
from tests.served.job_records import claimed
from tests.served.reports import Page
from tests.served.requests import run_here

WORDS = (
    "plan", "--model", "qwen3-8b", "--gpu", "a100-sxm-40gb", "--gpus-per-node", "4", "--launcher", "trl",
    "--global-batch-size", "16", "--seq-length", "4096", "--max-oom-probability", "0.01",
)  # fmt: skip


@pytest.fixture
def closest(client: TestClient, engine: JobEngine) -> tuple[str, str]:
    """A job in which nothing fits, and the id of its closest plan."""
    job_id = submit(client, **TIGHT)
    assert engine.complete(claimed(engine), outcome_of(tight_answer(), cache_key="k", cancelled=False))
    found = client.get(f"/v1/jobs/{job_id}").json()["infeasible"]
    return job_id, found["closest"]["plan_id"]


def test_the_closest_plan_is_read_by_its_id_and_no_list_holds_it(
    client: TestClient, closest: tuple[str, str]
) -> None:
    job_id, plan_id = closest
    assert client.get(f"/v1/jobs/{job_id}/plans").json()["plans"] == []
    assert client.get("/v1/plans").json()["plans"] == []
    assert client.get("/v1/plans", params={"job_id": job_id}).json()["plans"] == []
    seen = client.get(f"/v1/plans/{plan_id}").json()
    assert (seen["job_id"], seen["plan"]["rank"], seen["plan"]["ranked"]) == (job_id, 0, False)
    assert 0.04 < seen["plan"]["prediction"]["out_of_memory_probability"] < 0.05
    assert "fits with 95 %" in Page(client.get(f"/v1/plans/{plan_id}/report").text).text


def test_its_files_need_the_risk_to_be_accepted(client: TestClient, closest: tuple[str, str]) -> None:
    _, plan_id = closest
    refused = client.get(f"/v1/plans/{plan_id}/export")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/query/accept_risk"
    assert "a risk of 4.7 %, and the request accepts 1 %" in refused.json()["errors"][0]["message"]
    files = client.get(f"/v1/plans/{plan_id}/export", params={"accept_risk": "true"}).json()["files"]
    one = client.get(f"/v1/plans/{plan_id}/export/launch.sh", params={"accept_risk": "true"})
    assert one.text == files["launch.sh"]


def test_the_command_line_finds_the_closest_plan_and_names_the_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code, printed, _ = run_here(monkeypatch, capsys, *WORDS)
    said = " ".join(printed.split())
    assert code == 3
    plan_id = said.partition("meshwright export ")[2].split()[0]
    assert f"meshwright export {plan_id} --accept-risk" in said
    assert "--max-oom-probability 0.048" in said  # its risk is 4.7 %, rounded up to what accepts it
    code, _, refusal = run_here(monkeypatch, capsys, "export", plan_id, "--save-dir", str(tmp_path / "run"))
    assert code == 2
    assert f"meshwright export {plan_id} --accept-risk" in refusal
    accepted = ("export", plan_id, "--accept-risk", "--save-dir", str(tmp_path / "run"))
    assert run_here(monkeypatch, capsys, *accepted)[0] == 0
    assert (tmp_path / "run" / "launch.sh").is_file()


@pytest.mark.parametrize("path", [row.path for row in OPTIONS.values() if row.path != "cluster"])
def test_a_change_names_the_options_of_the_command_line(path: str) -> None:
    named = option_words({path: 1}).removeprefix("--").removesuffix(" 1").replace("-", "_")
    assert OPTIONS[named].path == path


def test_options_that_repeat_are_stated_once_for_each_value() -> None:
    both = {"search.allow": ["gradient_dtype", "offload"], "launcher": "trl"}
    assert option_words(both) == "--allow gradient_dtype --allow offload --launcher trl"
    facts = {"search.allow": ["switches"], "workload.framework_options": {"dora": True, "fp32_ends": 1}}
    assert option_words(facts) == (
        "--allow switches --framework-options dora=true --framework-options fp32_ends=1"
    )
