"""GPU seconds that no step takes less than, on however many GPUs.

``least_gpu_s`` is the model's FLOPs at the peak of its GPUs, in no time. ``least_pass_gpu_s`` prices the
passes of one micro-batch: what they read of a row beside the ranks that share a layer is whether there are
several stages and replicas, and chunks where experts overlap, so that few rows stand for all numbers of
GPUs. They are known by what they read most of (``LeastPasses``): most meshes on fewer GPUs are never
enumerated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.profiles.frameworks import with_options
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import BoolArray, Columns, FloatArray, IntArray, distinct
from meshwright.solver.cost.price import least_passes_s
from meshwright.solver.problem import Problem, altered
from meshwright.solver.search.bounds import SAFETY, filled_and_emptied
from meshwright.solver.search.priced_space import CHUNK
from meshwright.solver.space.enumerate import passes_on_any_number, plain_rows, run_alone, same_rows


def least_gpu_s(problem: Problem, profile: Profile, ways: Sequence[Problem] = ()) -> float:
    """Return the GPU seconds of the model's FLOPs at peak: no step takes less, on however many GPUs.

    The peak is the one of 16 bits unless products may run in fewer. Where experts may drop tokens, or a
    residual scales a step, nothing is known: 0.
    """
    gpu, work, facts = profile.group.gpu, problem.workload, profile.framework
    options = [one.workload.framework_options for one in (problem, *ways)]
    named = {name for some in options for name in some}
    if profile.residual is not None or facts.moe_capacity_factor or "moe_capacity_factor" in named:
        return 0.0
    narrow = work.precision == "fp8" or facts.precision_recipe != "none" or "precision_recipe" in named
    peak = max(gpu.peak_flops.values()) if narrow else gpu.peak_bf16_flops
    return problem.model_flops_per_token * work.global_batch_size * work.tokens_per_sequence / peak


_SIZES = ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size", "micro_batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastPasses:
    """GPU seconds of the passes of a whole batch, exchanges free, by the sizes that they read most of."""

    sizes: IntArray  # (k, 4), ``_SIZES``; none where nothing is known
    gpu_s: FloatArray  # (k,)

    @property
    def least_gpu_s(self) -> float:
        """Return what no row of any sizes takes less than; 0 where nothing is known."""
        return float(self.gpu_s.min()) if len(self.gpu_s) else 0.0

    @property
    def of_rows(self) -> Callable[[Columns, BoolArray], FloatArray] | None:
        """Return ``step_s``; None where nothing is known."""
        return self.step_s if len(self.sizes) else None

    def step_s(self, rows: Columns, alone: BoolArray) -> FloatArray:
        """Return what no step of rows, nor its closed form, takes less than, (n,); 0 of unknown sizes.

        ``alone``: rows that have one chunk a rank and whole backward passes, however they are run.
        """
        own = np.stack([getattr(rows, name) for name in _SIZES], axis=1)
        first, number = distinct(list(np.concatenate([self.sizes, own]).T))
        known = np.zeros(len(first))
        known[number[: len(self.sizes)]] = self.gpu_s
        m, p = rows.num_microbatches.astype(np.float64), rows.pipeline_parallel_size
        stretch = np.where(alone, np.maximum(filled_and_emptied(m, p) * p / m, 1.0), 1.0)
        return np.asarray(known[number[len(self.sizes) :]] * stretch / rows.num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """Rows before they are widened and chunked, and what no row that is made of them scores less than."""

    columns: Columns
    least_s: FloatArray  # (n,)

    @classmethod
    def of(
        cls,
        problem: Problem,
        ways: Sequence[Problem],
        numbers: IntArray,
        passes: LeastPasses,
        *,
        wide: bool,
    ) -> PlainRows:
        """Return those on some numbers of GPUs."""
        columns = plain_rows(problem, numbers, wide=wide)
        unlike = {same_rows(one): one for one in (problem, *ways)}
        alone = np.logical_and.reduce([run_alone(one, columns) for one in unlike.values()])
        return cls(columns=columns, least_s=passes.step_s(columns, alone))

    def take(self, index: IntArray) -> PlainRows:
        """Return some of the rows."""
        return PlainRows(columns=self.columns.take(index), least_s=self.least_s[index])

    def of_numbers_s(self, numbers: IntArray) -> FloatArray:
        """Return what no row on each number of GPUs scores less than, (k,); +inf where none is legal."""
        own, least = self.columns.num_gpus, np.full(len(numbers), np.inf)
        order = np.argsort(numbers)
        np.minimum.at(least, order[np.searchsorted(numbers, own, sorter=order)], self.least_s)
        return least


_UNKNOWN = LeastPasses(sizes=np.zeros((0, len(_SIZES)), dtype=np.int64), gpu_s=np.zeros(0))


def least_pass_gpu_s(
    problem: Problem, profile: Profile, ways: Sequence[Problem] = (), *, wide: bool
) -> float:
    """Return the GPU seconds that no step takes less than by ``least_passes``; 0 where nothing is known."""
    return least_passes(problem, profile, ways, wide=wide).least_gpu_s


def least_passes(
    problem: Problem, profile: Profile, ways: Sequence[Problem] = (), *, wide: bool
) -> LeastPasses:
    """Return the GPU seconds of the passes of a whole batch, exchanges free.

    A rank has the mean of all passes or more to run: of n GPUs that is t c m whole / n of each micro-batch,
    for p ranks of a pipeline run the layers of one together and replicas share micro-batches.

    Args:
        problem: the request.
        profile: its prices.
        ways: the same under other switches.
        wide: whether all candidates count.
    """
    offloads = "offload" in problem.options.allow or "offload" in problem.options.named
    if profile.residual is not None or offloads:
        return _UNKNOWN
    sizes, gpu_s, rows_of = list[IntArray](), list[FloatArray](), dict[Hashable, Columns]()
    alike = dict[tuple[Hashable, bool], list[Problem]]()
    for one in _unlike(problem, ways):
        facts = with_options(profile.framework, one.workload.framework_options)
        alike.setdefault((same_rows(one), facts.overlap_experts), []).append(one)
    for (key, overlaps), some in alike.items():
        if key not in rows_of:
            rows_of[key] = passes_on_any_number(some[0], wide=wide)
        every = rows_of[key]
        if not len(every):
            return _UNKNOWN
        if not overlaps:
            every = every.take(every.virtual_pipeline_size == 1)  # nothing else of a pass reads chunks
        for rows in (every.take(slice(at, at + CHUNK)) for at in range(0, len(every), CHUNK)):
            seconds = least_passes_s(some, rows, profile)
            if seconds is None:
                return _UNKNOWN
            ranks = rows.tensor_parallel_size * rows.context_parallel_size
            sizes.append(np.stack([getattr(rows, name) for name in _SIZES], axis=1))
            gpu_s.append(seconds * ranks / rows.micro_batch_size)
    every_size = np.concatenate(sizes)
    first, number = distinct(list(every_size.T))
    least = np.full(len(first), np.inf)
    np.minimum.at(least, number, np.concatenate(gpu_s))
    scale = problem.workload.global_batch_size * min(profile.time_factor, 1.0) * SAFETY
    return LeastPasses(sizes=every_size[first], gpu_s=least * scale)


def _unlike(problem: Problem, ways: Sequence[Problem]) -> Iterator[Problem]:
    """Yield the ways that differ in more than what is recomputed, which is priced as free."""
    seen = set[tuple[tuple[str, object], ...]]()
    for one in (problem, *ways):
        options = {
            name: value
            for name, value in one.workload.framework_options.items()
            if name not in ("recompute_modules", "offload_modules")
        }
        key = tuple(sorted(options.items()))
        if key not in seen:
            seen.add(key)
            yield altered(one, workload=replace(one.workload, framework_options=options))
