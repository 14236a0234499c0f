"""What ``cost.py`` prices: configurations of one problem, and the time that Meshwright takes for them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.configuration import ALL_LAYERS, RECOMPUTE, Columns, IntArray
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout, assemble, objective_s
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.enumerate import enumerate_space

PRICED_ROWS = 16384  # at once: what the array operations cost to start is spread over many rows
ASSEMBLED_CHUNKS = 16384  # at once: arrays of 64 KiB stay in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Configurations of one problem, in the order of their pipeline, with an even split of the layers."""

    name: str
    problem: Problem
    profile: Profile
    columns: Columns

    @classmethod
    def of(cls, model: str, cluster: str, num_nodes: int, batch: int, seq_length: int) -> Batch:
        """Every legal configuration of a model on a cluster."""
        problem = Problem(
            model=find_model(model),
            cluster=find_cluster(cluster, num_nodes=num_nodes),
            workload=Workload(global_batch_size=batch, seq_length=seq_length),
        )
        space = enumerate_space(problem)
        columns = space.columns.take(space.legal)
        order = np.lexsort((columns.virtual_pipeline_size, columns.pipeline_parallel_size))
        return cls(
            name=f"{problem.model.title}, {problem.cluster.num_gpus} GPUs: the whole space",
            problem=problem,
            profile=default_profile(problem.cluster, problem.launcher),
            columns=columns.take(order),
        )

    def common(self) -> Batch:
        """Those that the other tools can express: no context parallelism, one chunk a rank."""
        c = self.columns
        whole = (c.recompute_layers == 0) | (c.recompute_layers == ALL_LAYERS)
        plain = (c.virtual_pipeline_size == 1) & (c.context_parallel_size == 1) & (c.zero_stage <= 1)
        even = self.problem.model.num_layers % c.pipeline_parallel_size == 0
        return Batch(
            name="configurations that all tools can express",
            problem=self.problem,
            profile=self.profile,
            columns=c.take(whole & plain & even),
        )

    @property
    def num_chunks(self) -> IntArray:
        """Pipeline stages of each configuration, interleaved ones counted, shape (n,)."""
        return self.columns.pipeline_parallel_size * self.columns.virtual_pipeline_size

    def rows(self) -> list[dict[str, int | str]]:
        """The configurations in plain words."""
        c = self.columns
        return [
            {
                "tensor": int(c.tensor_parallel_size[row]),
                "pipeline": int(c.pipeline_parallel_size[row]),
                "data": int(c.data_parallel_size[row]),
                "micro_batch": int(c.micro_batch_size[row]),
                "batch": self.problem.workload.global_batch_size,
                "recompute": RECOMPUTE[int(c.recompute[row])],
                "zero": int(c.zero_stage[row]),
            }
            for row in range(len(c))
        ]

    def cpu_seconds(self) -> tuple[float, float]:
        """CPU seconds to price all rows, and to assemble time and memory of every stage, and the step."""
        layout = LayerLayout.of(self.problem.model)
        layers, chunks = layout.num_layers, self.num_chunks
        priced = assembled = 0.0
        for begin in range(0, len(chunks), PRICED_ROWS):
            start = time.process_time()
            columns = self.columns.take(slice(begin, begin + PRICED_ROWS))
            prices = price(self.problem, columns, self.profile)
            middle = time.process_time()
            counts, ranks, at = chunks[begin : begin + PRICED_ROWS], columns.pipeline_parallel_size, 0
            while at < len(counts):
                alike = int(np.searchsorted(ranks, ranks[at], side="right"))  # rows of one pipeline size
                block = slice(at, min(alike, at + max(ASSEMBLED_CHUNKS // int(counts[at]), 1)))
                widest = int(counts[block.stop - 1])
                block = slice(at, min(block.stop, at + max(ASSEMBLED_CHUNKS // widest, 1)))
                some = columns.take(block)
                own = prices.take(block)
                stages = assemble(own, some, layout, even_split(layers, counts[block]))
                worst_case(objective_s(own, some, stages), stages.peak_memory_bytes)
                at = block.stop
            priced += middle - start
            assembled += time.process_time() - middle
        return priced, assembled


def even_split(num_layers: int, num_chunks: IntArray) -> IntArray:
    """Layers of each chunk, the earlier ones one more where they do not divide: (n, C)."""
    index, count = np.arange(int(num_chunks.max()))[None, :], num_chunks[:, None]
    each = num_layers // count + (index < num_layers % count)
    return np.where(index < count, each, 0)


def worst_case(step_s: np.ndarray, peak_bytes: np.ndarray) -> None:
    """Refuse a figure that is no number: what was timed has to have been computed.

    Raises:
        ArithmeticError: a step or a peak is not a positive finite number.
    """
    if not (np.isfinite(step_s).all() and (step_s > 0.0).all() and (peak_bytes.max(axis=1) > 0.0).all()):
        raise ArithmeticError("a configuration has no step time or no memory")
