"""What launchers can express."""

import pytest

from profiles.capabilities import launcher_capabilities, launcher_names
from profiles.errors import UnknownNameError


def test_megatron_runs_zero_2_and_3_only_without_stages() -> None:
    able = launcher_capabilities("megatron-lm")
    assert able.zero_stages == (0, 1, 2, 3)
    assert able.max_zero_stage_with_pipeline == 1


def test_no_launcher_has_no_launchers_limits() -> None:
    assert launcher_capabilities("none").max_zero_stage_with_pipeline == 3


def test_every_launcher_of_the_catalog_names_its_source() -> None:
    assert all(launcher_capabilities(name).source for name in launcher_names())


def test_an_unknown_launcher_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean megatron-lm"):
        launcher_capabilities("megatron")
