"""What a rule states to read decides it: whatever the other columns hold, its verdict stays."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_names
from meshwright.solver.configuration import ALL_LAYERS, PER_STAGE, VARIABLE_OF, Columns, IntArray
from meshwright.solver.space.rules import rules_of
from tests.builders import a_cluster, a_model, a_moe_model, a_problem

ROWS = 400


def some_rows(rng: np.random.Generator) -> Columns:
    """Rows with any values, legal or not."""

    def drawn(name: str) -> IntArray:
        variable = VARIABLE_OF[name]
        if name == "recompute_layers":
            return rng.choice([0, 1, 2, ALL_LAYERS, PER_STAGE], ROWS)
        if variable.is_integer:
            return rng.choice([0, 1, 2, 3] if variable.least == 0 else [1, 2, 3, 4, 8], ROWS)
        return rng.integers(0, len(variable.words) or 2, ROWS)

    return Columns(**{name: drawn(name) for name in VARIABLE_OF})


def with_other_columns_shuffled(rows: Columns, kept: tuple[str, ...], rng: np.random.Generator) -> Columns:
    """The same rows where every column but ``kept`` is permuted on its own."""
    others = {name: rng.permutation(getattr(rows, name)) for name in VARIABLE_OF if name not in kept}
    return replace(rows, **others)


CASES = {
    "experts": a_problem(model=a_moe_model(), cluster=a_cluster(num_nodes=2), batch=64, allow=("offload",)),
    "limits": a_problem(
        cluster=a_cluster(num_nodes=2),
        batch=64,
        pin={"recompute_granularity": "full"},
        forbid={"pipeline_schedule": ("gpipe",)},
        bounds={"recompute_layers": (0, 4)},
        constraints=("num_gpus >= 8", "global_batch_size == 64 and recompute_granularity == 'full'"),
    ),
    "ramp": a_problem(batch=64, batch_ramp=((16, 1000), (32, 2000)), total_tokens=10**6),
    "split": a_problem(
        model=a_model(num_layers=8), batch=64, stage_layers=(1, 3, 3, 1), cluster=a_cluster(num_nodes=1)
    ),
}


@pytest.mark.parametrize("launcher", launcher_names())
@pytest.mark.parametrize("case", CASES)
def test_no_rule_depends_on_a_column_that_it_does_not_state(case: str, launcher: str) -> None:
    problem, rng = replace(CASES[case], launcher=launcher), np.random.default_rng(1)
    rows = some_rows(rng)
    for rule in rules_of(problem):
        assert set(rule.reads) <= set(VARIABLE_OF), rule.name
        verdict = rule.violated(rows)
        for _ in range(3):
            shuffled = with_other_columns_shuffled(rows, rule.reads, rng)
            assert rule.violated(shuffled).tolist() == verdict.tolist(), rule.name
