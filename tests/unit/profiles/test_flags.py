"""The tables of launchers' arguments: exact names, and what is free decides nothing."""

from __future__ import annotations

import pytest

from meshwright.profiles.flags import FLAGS_FOLDER, flag_names, flags_of
from meshwright.service.launchers.reading.fields import decided_by
from meshwright.service.launchers.reading.foreign import PREFERENCES

PROGRAMS = sorted(path.stem for path in FLAGS_FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_free_argument_is_one_that_decides_a_run(program: str) -> None:
    free = [name for name, flag in flags_of(program).items() if flag.role == "free"]
    assert free
    assert [name for name in free if name in PREFERENCES] == []
    own = [name for name in free if decided_by(name) and not name.startswith("lighteval.")]  # it evaluates
    assert own == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_argument_has_a_type_and_a_role(program: str) -> None:
    assert [
        name
        for name, flag in flags_of(program).items()
        if not flag.type or flag.role not in ("free", "open")
    ] == []


def test_a_name_is_free_by_itself_or_by_its_section_and_never_by_its_beginning() -> None:
    names = flag_names("transformers", "deepspeed")
    assert all(
        map(names.is_free, ("logging_steps", "--logging-steps", "scheduler.params.warmup_num_steps"))
    )
    for other in ("logging_parallel_size", "data_parallel_size", "schedulers.params", "scheduler_params"):
        assert not names.is_free(other)
        assert other not in names
    assert "deepspeed" in names
    assert not names.is_free("deepspeed")


def test_defaults_are_those_of_the_newest_release_that_has_the_argument() -> None:
    assert flags_of("transformers")["warmup_ratio"].until == "transformers-4.57.6"
    assert flags_of("transformers")["seed"].default == 42
    names = flag_names("transformers")
    assert names.is_default("group_by_length", "False")
    assert not names.is_default("group_by_length", True)
    assert not names.is_default("not_an_argument", None)
