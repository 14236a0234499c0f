import pytest

from meshwright.profiles.profile import level_of, level_values, stack_names

LEVELS = (None, *stack_names())


@pytest.mark.parametrize("stack", LEVELS)
def test_every_constant_stands_beside_its_uncertainty_and_its_source(stack: str | None) -> None:
    level = level_of(stack)
    assert level.constants
    assert level.fitted_on
    for constant in level.constants.values():
        assert constant.value > 0.0
        assert 0.0 < constant.log_sd <= 1.1
        assert constant.source


def test_a_stack_takes_from_the_global_level_what_it_does_not_name() -> None:
    own = level_of("zero").constants
    assert "attention" not in own
    assert level_values("zero")["attention"] == level_of(None).constants["attention"].value
    assert level_values("zero")["gemm"] == own["gemm"].value


def test_a_stack_that_nobody_measured_has_the_global_constants() -> None:
    assert level_of("my own trainer").constants == {}
    assert level_values("my own trainer") == level_values(None)


def test_what_six_runs_of_zero_cannot_tell_is_marked_as_such() -> None:
    own = level_of("zero").constants
    assert not own["gemm"].identified
    assert level_of("megatron-deepspeed").constants["floor_s"].identified
