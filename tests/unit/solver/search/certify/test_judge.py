"""The judge: a child that may be late, dead or wrong."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.clock import Watch
from meshwright.solver.problem import ProofMismatchError, SearchOptions
from meshwright.solver.search.certify.judge import (
    _KEPT,
    Certificate,
    Judge,
    _compare,
    inquiry_of,
    kept_child,
)
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.priced_space import priced_space
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_model, a_problem
from tests.processes.cpu_clock import count_seconds
from tests.processes.quiet_clock import quiet_seconds

EVERY = SearchOptions(certify="cp-sat-all", top_k=1)


@pytest.fixture(autouse=True)
def _a_child_of_its_own() -> Iterator[None]:
    """None that other tests leave waiting."""
    before = _KEPT.set(None)
    yield
    _KEPT.reset(before)


@pytest.fixture(scope="module")
def frontier() -> Frontier:
    """A finished search for one plan."""
    model = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=1), batch=32)
    space = enumerate_space(problem)
    profile = default_profile(problem.cluster, problem.launcher)
    found = Frontier.of(priced_space(problem, profile, space.columns.take(space.legal)), 1)
    found.run(lambda _: False)
    return found


def judged(frontier: Frontier, judge: Judge, watch: Watch) -> Certificate:
    """The certificate of the first plan's row alone."""
    inquiry = inquiry_of(frontier, (frontier.ranked[0].row,), judge._options)
    return Certificate() if inquiry is None else judge.answer(inquiry, watch)


def test_the_first_plan_is_confirmed(frontier: Frontier) -> None:
    with Judge(EVERY) as judge:
        certificate = judged(frontier, judge, Watch(time_limit_s=30.0))
    assert certificate == Certificate(rows=frozenset({frontier.ranked[0].row}))


def test_without_certification_no_process_starts(frontier: Frontier) -> None:
    with Judge(SearchOptions(certify="none")) as judge:
        assert judge._child is None
        assert judged(frontier, judge, Watch(time_limit_s=30.0)) == Certificate()


def test_a_child_that_dies_leaves_a_warning_not_an_error(frontier: Frontier) -> None:
    with Judge(EVERY) as judge:
        child = judge._child
        assert child is not None
        assert child.stdout is not None
        child.kill()
        child.wait()
        certificate = judged(frontier, judge, Watch(time_limit_s=30.0))
    assert child.stdout.closed
    assert certificate.rows == frozenset()
    assert certificate.warnings == ("CP-SAT did not finish in time for 1 of 1 certificates",)


def test_searches_in_a_block_take_turns_with_one_child_which_ends_with_it(frontier: Frontier) -> None:
    with kept_child():
        with Judge(EVERY) as first:
            child, certificate = first._child, judged(frontier, first, Watch(time_limit_s=30.0))
        assert certificate.rows
        with kept_child(), Judge(EVERY) as second:
            assert second._child is child
            assert judged(frontier, second, Watch(time_limit_s=30.0)) == certificate
        assert child is not None
        assert child.poll() is None
    assert child.poll() == -signal.SIGKILL


def test_a_child_that_dies_while_it_waits_or_whose_search_fails_is_not_asked_again(
    frontier: Frontier,
) -> None:
    with kept_child():
        with Judge(EVERY) as first:
            dead = first._child
        assert dead is not None
        dead.kill()
        dead.wait()
        with suppress(ProofMismatchError), Judge(EVERY) as second:
            failed = second._child
            raise ProofMismatchError
        with Judge(EVERY) as third:
            assert third._child not in (dead, failed)
            assert judged(frontier, third, Watch(time_limit_s=30.0)).rows


def test_a_frozen_child_is_killed_when_the_search_is_cancelled(frontier: Frontier) -> None:
    count_seconds()
    with Judge(EVERY) as judge:
        child = judge._child
        assert child is not None
        os.kill(child.pid, signal.SIGSTOP)
        start = time.monotonic()
        watch = Watch(time_limit_s=30.0, should_stop=lambda: time.monotonic() - start > 0.2)
        with quiet_seconds() as clock:
            assert judged(frontier, judge, watch).rows == frozenset()
        assert clock.took_s < 2.0
        assert child.poll() == -signal.SIGKILL


def test_a_frozen_child_is_killed_a_second_after_the_time_limit(frontier: Frontier) -> None:
    count_seconds()
    with Judge(EVERY) as judge:
        assert judge._child is not None
        os.kill(judge._child.pid, signal.SIGSTOP)
        with quiet_seconds() as clock:
            judged(frontier, judge, Watch(time_limit_s=0.2))
        assert clock.took_s < 2.5


def test_another_minimum_is_an_error(frontier: Frontier) -> None:
    first = frontier.ranked[0].row
    solved, inquiry = frontier.solved[first], inquiry_of(frontier, (first,), EVERY)
    assert inquiry is not None
    verdict = {"row": 0, "split": solved.split, "objective_us": round(solved.objective_s * 1e6)}
    _compare(inquiry.overall, verdict)
    with pytest.raises(ProofMismatchError, match="exact program"):
        _compare(replace(inquiry.overall, least_s=solved.objective_s - 1e-4), verdict)


def test_asking_the_judge_loads_no_ortools_here() -> None:
    code = "import sys, meshwright.solver.search.search; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
