"""How many configurations a second the cost model prices."""

from __future__ import annotations

import time

import numpy as np

from profiles.library import find_cluster, find_model
from profiles.profile import default_profile
from solver.columns import Columns
from solver.cost.assemble import assemble, objective_s
from solver.cost.price import price
from solver.cost.prices import LayerLayout
from solver.plan import Configuration
from solver.problem import Problem, Workload

ROWS = 16_384
REPEATS = 5


def main() -> None:
    """Price and assemble a chunk of rows, several times, and print the best rates."""
    cluster = find_cluster("dgx-h100", num_nodes=16)
    for name, stages in (("llama-3.1-70b", (20, 20, 20, 20)), ("deepseek-v3", (16, 15, 15, 15))):
        model = find_model(name)
        problem = Problem(
            model=model, cluster=cluster, workload=Workload(global_batch_size=512, seq_length=8192)
        )
        profile = default_profile(cluster, problem.launcher)
        one = Configuration(
            tensor_parallel_size=4,
            sequence_parallel=True,
            pipeline_parallel_size=4,
            data_parallel_size=8,
            zero_stage=1,
            zero_shard_size=8,
            num_microbatches=64,
            pipeline_schedule="1f1b",
            stage_layers=stages,
        )
        columns = Columns.of([one]).take(np.zeros(ROWS, dtype=np.int64))
        splits = np.tile(np.array(stages, dtype=np.int64), (ROWS, 1))
        layout = LayerLayout.of(model)
        pricing, whole = [], []
        for _ in range(REPEATS):
            start = time.perf_counter()
            prices = price(problem, columns, profile)
            pricing.append(time.perf_counter() - start)
            objective_s(prices, columns, assemble(prices, columns, layout, splits))
            whole.append(time.perf_counter() - start)
        print(
            f"{name}: {ROWS / min(pricing):,.0f} rows/s priced, "
            f"{ROWS / min(whole):,.0f} rows/s priced, assembled and scored ({ROWS} rows a chunk)"
        )


if __name__ == "__main__":
    main()
