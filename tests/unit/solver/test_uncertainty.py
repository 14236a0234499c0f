from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fit.evidence import TIME, Linear
from benchmarks.fit.uncertainty import at_bound, level_constants, posterior_log_sds
from meshwright.profiles.profile import stack_constants

QUANTITY = replace(TIME, widths={"gemm": 0.12, "network": 0.35})


def runs_of_gemm(count: int) -> Linear:
    """Runs whose time is all GEMM: one per cent of its level is one per cent of them."""
    return Linear(
        quantity=QUANTITY,
        at=stack_constants(None),
        left=np.zeros(count),
        jacobian=np.tile([-1.0, 0.0], (count, 1)),
        weights=np.ones(count),
    )


def test_four_runs_at_4_percent_noise_narrow_what_they_depend_on_to_2_percent() -> None:
    # precision 4 / 0.04^2 + 1 / 0.12^2 = 2500 + 69.4: sd 0.01973; of the network its prior, 0.35
    sds = posterior_log_sds(runs_of_gemm(4), QUANTITY.widths)
    assert sds == pytest.approx([0.01973, 0.35], abs=1e-5)


def test_what_no_run_depends_on_is_not_identified() -> None:
    found = level_constants(stack_constants(None), runs_of_gemm(4), QUANTITY.widths)
    assert found["gemm"].identified
    assert not found["network"].identified


def test_a_constant_at_its_bound_is_not_identified_however_many_runs_push_it_there() -> None:
    there = replace(stack_constants(None), gather_exposed=1.0)
    assert at_bound("gather_exposed", there.gather_exposed)
    assert not at_bound("gather_exposed", 0.5)
    assert at_bound("reserve", 1.0)
    quantity = replace(TIME, widths={"gather_exposed": 0.4})
    many = Linear(
        quantity=quantity, at=there, left=np.zeros(9), jacobian=np.ones((9, 1)), weights=np.ones(9)
    )
    assert not level_constants(there, many, quantity.widths)["gather_exposed"].identified
