from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fit.spreads import Errors, fitted_causes, sigma_of_unknown_stack, stack_sigmas
from meshwright.solver.configuration import FloatArray

RUNS = 400


def errors(own: float, launch: float) -> Errors:
    """Normal errors of one stack in four clusters; half of the runs hang on launches."""
    rng = np.random.default_rng(0)
    causes = np.zeros((RUNS, 4))
    causes[::2, 0] = 1.0
    sigma = np.sqrt(own**2 + (launch * causes[:, 0]) ** 2)
    return Errors(
        log_error=rng.normal(size=RUNS) * sigma,
        causes=causes,
        weights=np.full(RUNS, 0.25),
        clusters=tuple(str(i % 4) for i in range(RUNS)),
        stacks=("one",) * RUNS,
    )


def test_what_launches_add_is_told_from_what_every_run_is_off_by() -> None:
    own, added = fitted_causes(errors(own=0.05, launch=0.5))
    assert own == pytest.approx(0.05, rel=0.3)
    assert added[0] == pytest.approx(0.5, rel=0.3)


def test_a_stack_of_four_clusters_covers_eighty_per_cent_of_its_runs() -> None:
    seen = errors(own=0.2, launch=0.0)
    nothing: FloatArray = np.zeros(4)
    own = stack_sigmas(seen, nothing, general=0.05, unknown=0.3)["one"]
    assert own == pytest.approx(0.2, rel=0.1)
    everything = np.ones(RUNS, dtype=bool)
    assert seen.coverage(seen.sigma(own, nothing), everything) == pytest.approx(0.8, abs=0.01)


def test_a_stack_of_one_cluster_stays_as_doubtful_as_an_unknown_one() -> None:
    # sqrt(0.05^2 + (0.3^2 - 0.05^2) / 1) = 0.3; with two clusters sqrt(0.0025 + 0.0875 / 2) = 0.2151
    alone = replace(errors(own=0.01, launch=0.0), clusters=("only",) * RUNS)
    nothing: FloatArray = np.zeros(4)
    assert stack_sigmas(alone, nothing, general=0.05, unknown=0.3)["one"] == pytest.approx(0.3)
    two = replace(alone, clusters=("a", "b") * (RUNS // 2))
    assert stack_sigmas(two, nothing, general=0.05, unknown=0.3)["one"] == pytest.approx(0.2151, abs=1e-4)


def test_a_large_stack_does_not_decide_alone_what_an_unknown_one_is_off_by() -> None:
    # 300 runs of one stack off by 0.01, 100 of another by 0.5: as many of each count
    seen = replace(
        errors(own=0.0, launch=0.0),
        log_error=np.where(np.arange(RUNS) < 300, 0.01, 0.5),
        causes=np.zeros((RUNS, 4)),
        weights=np.ones(RUNS),
        stacks=("large",) * 300 + ("small",) * 100,
    )
    assert sigma_of_unknown_stack(seen, np.zeros(4)) == pytest.approx(0.5 / 1.2816, rel=0.01)
