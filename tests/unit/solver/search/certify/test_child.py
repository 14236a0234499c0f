"""The child process: what it writes, how much memory it may take, what becomes of it."""

import ast
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.clock import Watch
from meshwright.solver.problem import ProofMismatchError, SearchOptions
from meshwright.solver.search.certify.child import MEMORY_LIMIT_BYTES
from meshwright.solver.search.certify.judge import _KEPT, Judge
from meshwright.solver.search.certify.row_request import row_request
from meshwright.solver.search.cp_sat import _TypesAlone
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.priced_space import priced_space
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_model, a_problem
from tests.processes.postgres_server import is_alive
from tests.processes.servers import until
from tests.unit.solver.search.certify.test_judge import judged

LATE = ("CP-SAT did not finish in time for 1 of 1 certificates",)


@pytest.fixture(autouse=True)
def _a_child_of_its_own() -> Iterator[None]:
    """None that other tests leave waiting."""
    before = _KEPT.set(None)
    yield
    _KEPT.reset(before)


@pytest.fixture(scope="module")
def frontier() -> Frontier:
    """A finished search for one plan."""
    problem = a_problem(model=a_model(num_layers=8), cluster=a_cluster(num_nodes=1), batch=16)
    space = enumerate_space(problem)
    profile = default_profile(problem.cluster, problem.launcher)
    found = Frontier.of(priced_space(problem, profile, space.columns.take(space.legal)), 1)
    found.run(lambda _: False)
    return found


@pytest.fixture
def judge() -> Iterator[Judge]:
    """A judge with its child."""
    with Judge(SearchOptions(certify="cp-sat-all")) as one:
        yield one


def asked(frontier: Frontier) -> dict[str, object]:
    """The first plan's row as the child is asked about it."""
    best = frontier.ranked[0]
    layout = frontier.rows.layout
    row = row_request(frontier.rows.take([best.row]), 0)
    return {
        "num_layers": layout.num_layers,
        "cumulative": layout.cumulative.T.tolist(),
        "rows": [{name: getattr(row, name) for name in row.__dataclass_fields__}],
        "hint_row": 0,
        "hint_split": best.split,
        "seed": 0,
        "time_limit_s": 10.0,
        "deterministic_limit": 10.0,
    }


def test_it_starts_without_pandas_which_takes_longer_to_load_than_all_else() -> None:
    code = (
        "import sys; from meshwright.solver.search.certify import child; child.main(); "
        "sys.exit(any(name.startswith('pandas.') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, check=True)


def test_the_stand_in_for_pandas_has_types_by_any_name_and_nothing_that_python_asks_for() -> None:
    pandas = _TypesAlone("pandas")
    assert isinstance(pandas.Series, type)
    assert pandas.Series is pandas.Series
    assert not hasattr(pandas, "__path__")


def test_it_writes_a_verdict_a_line_and_nothing_else(frontier: Frontier) -> None:
    line = json.dumps(asked(frontier)) + "\n"
    run = subprocess.run(
        [sys.executable, "-m", "meshwright.solver.search.certify.child"],
        input=2 * line,
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts = [json.loads(answer) for answer in run.stdout.splitlines()]
    assert [verdict["status"] for verdict in verdicts] == ["OPTIMAL", "OPTIMAL"]
    assert verdicts[0] == verdicts[1]
    assert run.stderr == ""


def test_a_copy_of_this_process_gives_the_verdict_of_a_new_one(frontier: Frontier) -> None:
    code = (
        "import sys; from meshwright.solver.search.certify.processes import copied, started; "
        "question = sys.stdin.buffer.readline(); children = [copied(), started()]; "
        "[(one.stdin.write(question), one.stdin.close()) for one in children]; "
        "print([one.stdout.read() for one in children], [one.wait() for one in children], sep='\\n'); "
        "assert type(children[0]) is not type(children[1])"
    )
    line = json.dumps(asked(frontier)) + "\n"
    run = subprocess.run(
        [sys.executable, "-c", code], input=line, capture_output=True, text=True, check=True
    )
    verdicts, statuses = (ast.literal_eval(each) for each in run.stdout.splitlines())
    assert verdicts[0] == verdicts[1]
    assert json.loads(verdicts[0])["status"] == "OPTIMAL"
    assert statuses == [0, 0]


def limited(judge: Judge) -> int:
    """The child's process number, once it has limited its memory."""
    assert judge._child is not None
    limits, deadline = Path(f"/proc/{judge._child.pid}/limits"), time.monotonic() + 20.0
    wanted = f"Max address space {MEMORY_LIMIT_BYTES} {MEMORY_LIMIT_BYTES} bytes"
    while wanted not in " ".join(limits.read_text().split()):
        assert time.monotonic() < deadline, "no limit"
        time.sleep(0.02)
    return judge._child.pid


def test_it_is_a_new_process_with_limited_memory(judge: Judge) -> None:
    assert isinstance(judge._child, subprocess.Popen)  # a copy of this one is for certificates of later
    assert limited(judge)


def test_a_child_without_memory_leaves_a_warning_not_an_error(frontier: Frontier, judge: Judge) -> None:
    child = judge._child
    resource.prlimit(limited(judge), resource.RLIMIT_AS, (2**24, 2**24))  # 16 MiB: less than it has
    certificate = judged(frontier, judge, Watch(time_limit_s=30.0))
    assert (certificate.rows, certificate.warnings) == (frozenset(), LATE)
    assert child is not None
    assert child.poll() is not None


def answering(judge: Judge, verdict: dict[str, object]) -> None:
    """Put a child in its place that says this, whatever it is asked."""
    judge._stop()
    code = f"import sys; sys.stdin.readline(); print({json.dumps(verdict)!r}, flush=True); sys.stdin.read()"
    judge._child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


@pytest.mark.parametrize("status", ["UNKNOWN", "FEASIBLE"])
def test_a_verdict_that_proves_nothing_certifies_nothing(
    frontier: Frontier, judge: Judge, status: str
) -> None:
    answering(judge, {"status": status})
    certificate = judged(frontier, judge, Watch(time_limit_s=30.0))
    assert (certificate.rows, certificate.warnings) == (frozenset(), LATE)


@pytest.mark.parametrize("status", ["INFEASIBLE", "MODEL_INVALID"])
def test_a_verdict_against_a_known_plan_is_an_error(frontier: Frontier, judge: Judge, status: str) -> None:
    answering(judge, {"status": status})
    with pytest.raises(ProofMismatchError, match=status):
        judged(frontier, judge, Watch(time_limit_s=30.0))


def test_a_certified_search_prints_nothing() -> None:
    code = (
        "from meshwright.solver.search.search import search\n"
        "from meshwright.profiles.profile import default_profile\n"
        "from tests.builders import a_cluster, a_model, a_problem\n"
        "problem = a_problem(model=a_model(num_layers=8), cluster=a_cluster(num_nodes=1), batch=16)\n"
        "answer = search(problem, default_profile(problem.cluster, problem.launcher))\n"
        "assert 'cp-sat' in answer.certified_by, answer.certified_by\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_child_at_work_leaves_with_the_process_that_asked(tmp_path: Path) -> None:
    """A worker that is killed leaves no solver behind; here something else holds the child's stdin open."""
    told = tmp_path / "pid"
    asker = (
        "import pathlib, subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-m', 'meshwright.solver.search.certify.child']); "
        f"pathlib.Path({str(told)!r}).write_text(str(child.pid)); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", asker], stdin=subprocess.PIPE) as parent:
        until(lambda: told.exists() and bool(told.read_text()))
        child = Path(f"/proc/{told.read_text()}/task")
        until(lambda: len(list(child.iterdir())) > 1)  # it watches
        parent.kill()
        parent.wait()
        until(lambda: not is_alive(int(told.read_text())))
