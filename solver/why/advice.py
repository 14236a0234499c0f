"""What would lower each loss of a step, in words that fit the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from profiles.frameworks import FrameworkFacts
from solver.plan import Configuration
from solver.problem import Problem

_WIDE_HEAD = 128  # attention kernels reach their best rate from this head size on


def advice(term: str, problem: Problem, facts: FrameworkFacts, configuration: Configuration) -> str:
    """One phrase for a term of the waterfall."""
    conditional = _CONDITIONAL.get(term)
    if conditional is not None:
        return conditional(problem, facts, configuration)
    return _PLAIN[term]


def _gemm(problem: Problem, facts: FrameworkFacts, c: Configuration) -> str:
    """Larger products, another precision, better shapes."""
    ways = ["a smaller tp"] if c.tensor_parallel_size > 1 else []
    ways.append("a larger micro-batch")
    able = "fp8" in problem.cluster.groups[0].gpu.peak_flops
    if able and problem.workload.precision != "fp8" and facts.precision_recipe == "none":
        ways.append("fp8")
    return f"larger matrix products: {', '.join(ways)}; shapes that run faster (meshwright shapes)"


def _attention(problem: Problem, facts: FrameworkFacts, _: Configuration) -> str:
    """A kernel without score matrix, wider heads."""
    if not facts.flash:
        return "flash attention (attention_kernel)"
    if problem.model.head_dim < _WIDE_HEAD:
        return f"heads of {_WIDE_HEAD} instead of {problem.model.head_dim}; a newer attention kernel"
    return "a newer attention kernel"


def _memory_bound(_: Problem, facts: FrameworkFacts, c: Configuration) -> str:
    """Fused operators, and sequence parallelism where norms see whole sequences."""
    ways = [] if facts.elementwise_fused else ["fused element-wise operators"]
    ways += [] if facts.norm_fused else ["fused norms"]
    if c.tensor_parallel_size > 1 and not c.sequence_parallel:
        ways.append("sequence parallelism")
    return ", ".join(ways) or "memory bandwidth: these operators are fused already"


def _tensor(_: Problem, facts: FrameworkFacts, c: Configuration) -> str:
    """Less of it, or under the products."""
    ways = ["a smaller tp"]
    if not facts.overlap_tensor and c.sequence_parallel:
        ways.append("collectives under the products (overlap_tensor)")
    return ", ".join(ways)


def _bubble(_: Problem, __: FrameworkFacts, c: Configuration) -> str:
    """More micro-batches for fewer, finer stages."""
    if c.pipeline_parallel_size == 1:
        return "nothing: there is no pipeline"
    if c.is_placed:
        return "more micro-batches (smaller mbs or dp), fewer stages, a split nearer to the groups' speeds"
    return "more micro-batches (smaller mbs or dp), more chunks a rank (vpp), fewer stages"


def _data(_: Problem, facts: FrameworkFacts, __: Configuration) -> str:
    """Under the passes, or less often."""
    ways = [] if facts.overlap_gradients else ["reduction under the backward pass (overlap_gradients)"]
    return ", ".join([*ways, "more sequences a step for each replica, gradients reduced in bf16"])


_CONDITIONAL: Mapping[str, Callable[[Problem, FrameworkFacts, Configuration], str]] = {
    "gemm_efficiency": _gemm,
    "attention_efficiency": _attention,
    "memory_bound": _memory_bound,
    "tensor_parallel": _tensor,
    "bubble": _bubble,
    "data_parallel": _data,
}
_PLAIN: Mapping[str, str] = {
    "launch_floor": "CUDA graphs, a larger micro-batch: the CPU launches slower than the GPU runs",
    "offload": "a faster link to the host, or memory enough to keep activations",
    "recompute": "memory: more ZeRO, tp or pp lets fewer layers recompute",
    "context_parallel": "a smaller cp, or longer slices for each rank",
    "expert_parallel": "a smaller ep inside one island, all-to-alls under computing (overlap_experts)",
    "pipeline_transfer": "fewer chunks a rank, transfers under computing (overlap_transfer)",
    "imbalance": "a split whose stages cost the same: layers, embedding and head weigh differently",
    "optimizer": "a higher ZeRO stage, or states in 2 bytes",
    "straggler": "fewer, evener nodes",
    "fixed": "CUDA graphs; work that a step has whatever its size",
}
