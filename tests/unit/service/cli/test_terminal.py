"""Exit codes, progress, answers read back, and configurations completed."""

import io
import json
import os
import signal
import sys
from dataclasses import replace

import pytest
from typer.exceptions import TyperException

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.main import app
from meshwright.service.cli.progress import ProgressLine, bar_of, cancellable, progress_words
from meshwright.service.cli.terminal import code_of, report_usage, spell_plainly
from meshwright.service.jobs.answers import answer_from_json
from meshwright.service.requests.configuration import broken_rules, completed
from meshwright.solver.answer import Answer
from meshwright.solver.explain.alternatives import settle
from meshwright.solver.problem import Progress
from tests.builders import a_configuration, a_problem, an_answer, an_infeasible_answer
from tests.processes.cpu_clock import count_seconds
from tests.served.commands import commands


@pytest.mark.parametrize(
    ("answer", "cancelled", "code"),
    [
        (an_answer(), False, 0),
        (an_answer(status="feasible"), False, 0),
        (an_answer(status="feasible"), True, 0),  # cancelled with an incumbent
        (an_infeasible_answer(), False, 3),
        (an_answer(status="unknown", plans=()), False, 4),
        (an_answer(status="unknown", plans=()), True, 130),
    ],
)
def test_how_a_search_ended_decides_the_exit_code(answer: Answer, cancelled: bool, code: int) -> None:
    assert code_of(answer, cancelled=cancelled) == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "plan --seq-length 4kk",
            '"4kk" is not an integer. Allowed: from 1 to 10000000\ntip: meshwright plan --help',
        ),
        (
            "plan --measure-next -1",
            "-1 is out of range. Allowed: from 0. Nearest: 0\ntip: meshwright plan --measure-next 0",
        ),
        (
            "profile --model a --seq-length 4kk --out b",
            "Allowed: from 1 to 16777216\ntip: meshwright ",
        ),  # not plan's
        (
            "tune x --confidence 2",
            "Allowed: from 0.5 to 0.999. Nearest: 0.999\ntip: meshwright tune x --confidence 0.999",
        ),
        (
            "report --what-if serch",
            '"serch" is not supported. Allowed: search, predict, none. Nearest: search',
        ),
        ("plan --model a --seq-length 4096 --seq-length 4k", "--seq-length is given twice. Give it once"),
    ],
)
def test_a_bad_option_is_one_line_with_what_is_allowed(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TyperException) as refused:
        app(words.split(), prog_name="meshwright", standalone_mode=False)
    assert report_usage(refused.value, commands(), words.split()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("answer", [an_answer(), an_infeasible_answer()])
def test_an_answer_survives_json_and_what_the_service_adds(answer: Answer) -> None:
    sent = {**json.loads(json.dumps(answer.to_json())), "job_id": "1", "next_page_token": None}
    plans = [{**plan, "point": 0} for plan in sent["plans"]]  # as of a sweep
    assert answer_from_json({**sent, "plans": plans}) == answer


def test_an_answer_of_another_version_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="another version"):
        answer_from_json({"status": "optimal", "plans": [{"old": 1}]})


def test_the_first_interrupt_asks_to_stop_and_the_second_one_interrupts(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with cancellable() as should_stop:
        assert not should_stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert should_stop()
        assert "stopping: the best so far follows" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):  # and afterwards Ctrl-C is an interrupt again
        os.kill(os.getpid(), signal.SIGINT)


def test_progress_shows_incumbent_bound_and_gap() -> None:
    progress = Progress(
        stage="solving",
        explored=3912,
        total=184320,
        incumbent_step_time_s=33.6,
        bound_step_time_s=32.6,
        gap=0.03,
        elapsed_s=0.4,
    )
    assert progress_words(progress) == (
        "searching: 3 912 of 184 320 configurations settled · "
        "best so far 33.6 s, at most 3.0 % from the best possible · 400 ms"
    )
    early = replace(progress, incumbent_step_time_s=None, bound_step_time_s=None, gap=None)
    assert progress_words(early) == "searching: 3 912 of 184 320 configurations settled · 400 ms"
    proving = replace(early, stage="certifying", explored=0, total=0)
    assert progress_words(proving) == "proving the best plan · 400 ms"
    assert (bar_of(replace(early, explored=92160)), bar_of(proving)) == ("██████────── ", "")


def test_a_pipe_gets_a_line_every_few_seconds_of_each_search(monkeypatch: pytest.MonkeyPatch) -> None:
    count_seconds()
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    line = ProgressLine()
    for elapsed_s in (
        0.1,
        4.9,
        5.0,
        6.0,
        9.9,
        10.0,
        0.2,
        5.1,
        5.3,
    ):  # the last three: the next point of a sweep
        line.show(
            Progress(
                stage="solving",
                explored=1,
                total=2,
                incumbent_step_time_s=None,
                bound_step_time_s=None,
                gap=None,
                elapsed_s=elapsed_s,
            )
        )
    line.clear()
    ends = [one.rpartition(" · ")[2] for one in pipe.getvalue().splitlines()]
    assert ends == ["5.00 s", "10.0 s", "5.30 s"]


def test_a_line_of_progress_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "20")
    progress = Progress(
        stage="solving",
        explored=3912,
        total=184320,
        incumbent_step_time_s=None,
        bound_step_time_s=None,
        gap=None,
        elapsed_s=0.4,
    )
    ProgressLine().show(progress)
    assert terminal.getvalue() == "\r\x1b[2K──────────── search"  # 19 characters


def test_what_a_configuration_leaves_out_follows_from_the_rest() -> None:
    # 128 GPUs / (8 * 4) = dp 4; 512 / (4 * 1) = 128 micro-batches; 80 layers in 20 chunks: 4 each
    sizes = {"tensor_parallel_size": 8, "pipeline_parallel_size": 4, "virtual_pipeline_size": 5}
    assert completed({**sizes, "zero_stage": 1}, a_problem()) == a_configuration()


def test_what_names_no_split_is_split_alike_wherever_it_comes_from() -> None:
    # 80 layers on 6 stages: 13 each and two left over for the middle; embedding and head are at the ends
    problem, sizes = a_problem(), {"tensor_parallel_size": 8, "pipeline_parallel_size": 6}
    given = completed({**sizes, "data_parallel_size": 2, "micro_batch_size": 1}, problem)
    moved = settle(problem, replace(given, stage_layers=()))
    assert moved is not None
    assert given.stage_layers == moved.stage_layers == (13, 13, 14, 14, 13, 13)


def test_nanotrons_own_split_completes_a_configuration_and_another_one_breaks_its_rules() -> None:
    # 80 layers of 973 M and a head of 1 051 M on 4 stages: shares of 20.27 are exceeded by layer 21
    problem = replace(a_problem(), launcher="nanotron")
    sizes = {"tensor_parallel_size": 8, "pipeline_parallel_size": 4}
    given = completed(sizes, problem)
    assert given.stage_layers == (21, 20, 20, 19)
    assert not broken_rules(problem, given)
    even = completed({**sizes, "stage_layers": [20, 20, 20, 20]}, problem)
    assert broken_rules(problem, even) == ["nanotron splits the layers itself, as 21 20 20 19"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"tensor_parallel_size": 0}, "must be 1 or more. Nearest: 1"),
        ({"tensor_parallel_size": -1}, "must be an integer. Allowed: from 1 to 2147483647"),
        ({"zero_stage": "1"}, "must be an integer. Allowed: from 0 to 2147483647"),
        ({"sequence_parallel": 1}, "sequence_parallel: must be true or false$"),
        (
            {"stage_layers": [40, 0, 20, 20], "pipeline_parallel_size": 4},
            "Allowed: at least one layer in every chunk",
        ),
        ({"num_microbatches": 7}, "but the global batch is 512. Nearest: 4"),
        ({"tpp": 8}, 'unknown "tpp"'),
        ({"data_parallel_size": 256}, "there are 128 GPUs. Nearest: 128"),
        (
            {"data_parallel_size": 3},
            "data_parallel_size: .* the global batch is 512. Allowed: a divisor of 512. Nearest: 2$",
        ),
        (  # the first cause, not that 128 // 3 = 42 replicas do not share 512 sequences
            {"tensor_parallel_size": 3},
            "tensor_parallel_size: 3 can't start: .*heads.* Allowed: 1, 2, 4, 8, 16, 32, 64. Nearest: 2$",
        ),
        (  # 512 / 128 = 4 sequences for each replica
            {"micro_batch_size": 3},
            "micro_batch_size: 3 does not divide the 4 sequences .* Nearest: 2 or 4$",
        ),
        ({"stage_layers": [40, 39]}, "2 chunks with 79 layers, but 1 chunks share 80 layers"),
        ({"pipeline_parallel_size": 128}, "128 chunks share 80 layers"),
    ],
)
def test_a_configuration_that_cannot_hold_this_problem_is_refused(
    raw: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words):
        completed(raw, a_problem())


# What is printed where the encoding has none of our signs.


def printed(text: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, encoding=encoding, write_through=True) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        spell_plainly()
        stream.write(text)
        return buffer.getvalue()


def test_signs_that_an_encoding_lacks_become_plain_ones_of_the_same_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "16 × DGX · ±4 % │ – ← best └─ −8 ms …"
    plain = printed(text, "ascii", monkeypatch).decode()
    assert plain == "16 x DGX * ~4 % | - < best +- -8 ms ."
    assert len(plain) == len(text)


def test_other_signs_become_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed("模", "ascii", monkeypatch) == b"?"


def test_what_an_encoding_has_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed("× │", "latin-1", monkeypatch) == b"\xd7 |"
    assert printed("│", "utf-8", monkeypatch) == "│".encode()
