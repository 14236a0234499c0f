"""nanotron's logs: what is no number is named."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.nanotron_log import NANOTRON_LOG

LOGS = Path(__file__).parents[1] / "fixtures" / "importers" / "logs"


def written(folder: Path, text: str) -> Path:
    path = folder / "run.log"
    path.write_text(text)
    return path


def test_a_nanotron_step_with_a_broken_time_is_refused_with_its_name(tmp_path: Path) -> None:
    text = (LOGS / "nanotron.log").read_text().replace("iteration_ms: 6.9K", "iteration_ms: 6.9s", 1)
    with pytest.raises(ProfileError, match=r"line 11, time_per_iteration_ms: 6\.9s: expected a number"):
        NANOTRON_LOG.read(written(tmp_path, text))
