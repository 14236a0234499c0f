"""The search and the exporter agree: whatever row the search may propose can be exported."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.profiles.capabilities import launchers_stating
from meshwright.profiles.library import find_cluster, find_model, model_names
from meshwright.service.launchers.megatron_lm import MegatronLm
from meshwright.service.launchers.target import Target
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.enumerate import enumerate_space
from tests.launcher_cases import plan
from tests.megatron_arguments import parser, stage_layers, words

ROWS_A_MODEL = 40


def nearly_even(num_layers: int, chunks: int) -> list[int]:
    """Layers of each chunk; the first ones take the remainder."""
    return [num_layers // chunks + (chunk < num_layers % chunks) for chunk in range(chunks)]


def proposed(problem: Problem) -> list[Configuration]:
    """Legal rows of the search's own space, evenly spread over it, each with a split."""
    space = enumerate_space(problem)
    legal = np.flatnonzero(space.legal)
    chosen = legal[np.linspace(0, len(legal) - 1, ROWS_A_MODEL).astype(int)]
    chunks = space.columns.pipeline_parallel_size * space.columns.virtual_pipeline_size
    return [
        space.columns.configuration(row, nearly_even(problem.model.num_layers, int(chunks[row])))
        for row in chosen
    ]


TRAINED = [name for name in model_names() if "megatron-lm" in launchers_stating(find_model(name))]


@pytest.mark.parametrize("name", TRAINED)
def test_every_kind_of_row_of_a_catalog_model_is_exported_with_all_its_layers(name: str) -> None:
    model = find_model(name)
    cluster = find_cluster("dgx-h100", num_nodes=16)
    problem = Problem(
        model=model, cluster=cluster, workload=Workload(global_batch_size=256, seq_length=2048)
    )
    for config in proposed(problem):
        bundle = MegatronLm().export(Target(plan=plan(config), problem=problem))
        args = parser().parse_args(words(bundle.files["megatron_args.sh"]))
        assert stage_layers(args) == config.stage_layers
        assert args.global_batch_size == config.global_batch_size
