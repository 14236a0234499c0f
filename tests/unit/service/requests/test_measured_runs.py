"""Rows of measured runs, from logs."""

import pytest

from meshwright.profiles.library import find_gpu
from meshwright.profiles.measurements import MeasuredRun
from meshwright.service.requests.measured_runs import RunFacts, run_row
from tests.builders import a_model


@pytest.mark.parametrize(
    ("logged", "replicas"),
    [
        ({"num_gpus": 64, "tensor_parallel_size": 4, "pipeline_parallel_size": 2}, "8"),  # 64 / 4 / 2
        ({"num_gpus": 64, "tensor_parallel_size": 4}, "16"),  # one pipeline stage, unless the log has more
        ({"num_gpus": 64, "data_parallel_size": 16}, "16"),  # the log's own
        ({"tensor_parallel_size": 4}, ""),
    ],
)
def test_replicas_are_the_gpus_over_the_ranks_of_one(logged: dict[str, int], replicas: str) -> None:
    run = MeasuredRun(
        framework="megatron-lm", step_time_s=1.0, step_time_low_s=0.9, step_time_high_s=1.1, num_steps=9,
        num_restarts=0, tokens_per_s_per_gpu=None, flops_per_s_per_gpu=None, peak_allocated_bytes=None,
        peak_reserved_bytes=None, num_memory_ranks=0, out_of_memory=False, configuration=logged,
    )  # fmt: skip
    facts = RunFacts(
        run_id="r", cluster="c", source="s", model=a_model(), gpu=find_gpu("h100-sxm-80gb"), settings={}
    )
    assert run_row(run, facts)["data_parallel_size"] == replicas
