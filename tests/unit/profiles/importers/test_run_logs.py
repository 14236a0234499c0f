"""What the logs of all programs share: seconds between steps."""

from datetime import UTC, datetime, timedelta

from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.run_logs import RunLog


def test_two_steps_with_one_timestamp_have_no_step_time() -> None:
    file, noon = ForeignFile(name="run.log", text="x"), datetime(2026, 1, 1, 12, tzinfo=UTC)
    log = RunLog(file=file, framework="megatron-lm")
    assert log.seconds_since(1, noon) is None
    assert log.seconds_since(5, noon + timedelta(seconds=8)) == 2.0  # four steps
    assert log.seconds_since(9, noon + timedelta(seconds=8)) is None
