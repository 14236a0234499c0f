"""What requests and commands say, in the process of the test."""

from collections.abc import Mapping

import pytest

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.service.cli.main import main
from meshwright.service.requests.parse import parse_problem


def faults(raw: Mapping[str, object]) -> list[FieldError]:
    """What is wrong with a request."""
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(raw)
    return list(caught.value.errors)


def fault(raw: Mapping[str, object]) -> FieldError:
    """The one thing that is wrong with a request."""
    (found,) = faults(raw)
    return found


def run_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """``meshwright WORDS``: the exit code, and what was printed on either stream."""
    monkeypatch.setattr("sys.argv", ["meshwright", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err
