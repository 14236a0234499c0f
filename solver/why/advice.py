"""What might lower each loss of a step: changes to try, with the words for those that turn out to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from profiles.frameworks import FrameworkFacts
from solver.plan import Configuration
from solver.problem import Problem
from solver.why.alternatives import Alternative

_WIDE_HEAD = 128  # attention kernels reach their best rate from this head size on
_RECOMPUTATION = ("recompute_granularity", "recompute_layers")
_LIGHT_STATES = "adamw-8bit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One change to try: of the problem, whose ``name`` tells it from others, or the configuration."""

    words: str
    problem: Problem
    configuration: Configuration
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Start:
    """What ways begin from."""

    term: str
    problem: Problem
    facts: FrameworkFacts
    configuration: Configuration
    moves: Sequence[Alternative]

    def moved(self, words: str, name: str, sign: int) -> list[Way]:
        """The single legal change of a size in one direction that lowers the term most, in closed form."""
        own, keep = self.configuration, () if name in _RECOMPUTATION else _RECOMPUTATION
        batch = self.problem.workload.global_batch_size
        able = [
            one
            for one in self.moves
            if one.stands
            and one.move.configuration.global_batch_size == batch
            and sign * (getattr(one.move.configuration, name) - getattr(own, name)) > 0
            and all(getattr(one.move.configuration, field) == getattr(own, field) for field in keep)
        ]
        if not able:
            return []
        best = min(able, key=lambda one: one.waterfall_s[self.term])
        return [Way(words=words, problem=self.problem, configuration=best.move.configuration)]

    def option(self, words: str, name: str, value: str | bool = True) -> list[Way]:
        """A fact of the software changed; none where it is so already."""
        if getattr(self.facts, name) == value:
            return []
        options = {**self.problem.workload.framework_options, name: value}
        return [self._worked(f"{words} ({name})", f"{name}={value}", framework_options=options)]

    def worked(self, words: str, name: str, value: str) -> list[Way]:
        """Another precision or optimizer; none where it is so already."""
        same = getattr(self.problem.workload, name) == value
        return [] if same else [self._worked(words, f"{name}={value}", **{name: value})]

    def set(self, words: str, **values: object) -> list[Way]:
        """Parts of the configuration changed; none where they are so already."""
        changed = replace(self.configuration, **values)  # type: ignore[arg-type]
        same = changed == self.configuration
        return [] if same else [Way(words=words, problem=self.problem, configuration=changed)]

    def _worked(self, words: str, name: str, **values: object) -> Way:
        workload = replace(self.problem.workload, **values)  # type: ignore[arg-type]
        problem = replace(self.problem, workload=workload)
        return Way(words=words, problem=problem, configuration=self.configuration, name=name)


def ways_of(
    term: str,
    problem: Problem,
    facts: FrameworkFacts,
    configuration: Configuration,
    moves: Sequence[Alternative],
) -> list[Way]:
    """The changes that are worth trying against one term of the waterfall; not all of them help."""
    found = _WAYS.get(term)
    return found(_Start(term, problem, facts, configuration, moves)) if found else []


def _gemm(start: _Start) -> list[Way]:
    """Larger products, another precision."""
    able = all("fp8" in group.gpu.peak_flops for group in start.problem.cluster.groups)
    eighth = able and start.facts.precision_recipe == "none"
    return [
        *start.moved("a smaller tp", "tensor_parallel_size", -1),
        *start.moved("a larger micro-batch", "micro_batch_size", 1),
        *(start.worked("fp8", "precision", "fp8") if eighth else ()),
    ]


def _attention(start: _Start) -> list[Way]:
    """A kernel without score matrix, wider heads."""
    model = start.problem.model
    ways = [] if start.facts.flash else start.option("flash attention", "attention_kernel", "flash2")
    factor = _WIDE_HEAD // model.head_dim
    if factor < 2 or model.mla or model.num_kv_heads % factor or _WIDE_HEAD % model.head_dim:  # noqa: PLR2004
        return ways
    heads, kv_heads = model.num_attention_heads // factor, model.num_kv_heads // factor
    wide = replace(model, head_dim=_WIDE_HEAD, num_attention_heads=heads, num_kv_heads=kv_heads)
    if heads % start.configuration.tensor_parallel_size or start.configuration.is_placed:
        return ways
    words = f"heads of {_WIDE_HEAD} instead of {model.head_dim}"
    problem = replace(start.problem, model=wide)
    return [*ways, Way(words=words, problem=problem, configuration=start.configuration, name=words)]


def _memory_bound(start: _Start) -> list[Way]:
    """Fused operators, and sequence parallelism where norms see whole sequences."""
    split = start.configuration.tensor_parallel_size > 1
    return [
        *start.option("fused element-wise operators", "elementwise_fused"),
        *start.option("fused norms", "norm_fused"),
        *(start.set("sequence parallelism", sequence_parallel=True) if split else ()),
    ]


def _tensor(start: _Start) -> list[Way]:
    """Less of it, or under the products."""
    hidden = start.option("collectives under the products", "overlap_tensor")
    return [
        *start.moved("a smaller tp", "tensor_parallel_size", -1),
        *(hidden if start.configuration.sequence_parallel else ()),
    ]


def _bubble(start: _Start) -> list[Way]:
    """More micro-batches for fewer, finer stages."""
    return [
        *start.moved("a smaller micro-batch", "micro_batch_size", -1),
        *start.moved("a smaller dp", "data_parallel_size", -1),
        *start.moved("more chunks a rank (vpp)", "virtual_pipeline_size", 1),
        *start.moved("fewer stages", "pipeline_parallel_size", -1),
    ]


def _recompute(start: _Start) -> list[Way]:
    """Less of it, which takes memory."""
    return [
        *start.moved("fewer recomputed layers", "recompute_layers", -1),
        *start.set("no recomputation", recompute_granularity="none", recompute_layers=0),
    ]


_WAYS: Mapping[str, Callable[[_Start], list[Way]]] = {
    "gemm_efficiency": _gemm,
    "attention_efficiency": _attention,
    "memory_bound": _memory_bound,
    "launch_floor": lambda start: [
        *start.option("CUDA graphs", "cuda_graphs"),
        *start.moved("a larger micro-batch", "micro_batch_size", 1),
    ],
    "offload": lambda start: start.set(
        "activations kept on the GPU",
        offload="optimizer" if "optimizer" in start.configuration.offload else "none",
    ),
    "recompute": _recompute,
    "tensor_parallel": _tensor,
    "context_parallel": lambda start: start.moved("a smaller cp", "context_parallel_size", -1),
    "expert_parallel": lambda start: [
        *start.moved("a smaller ep", "expert_parallel_size", -1),
        *start.option("all-to-alls under computing", "overlap_experts"),
    ],
    "pipeline_transfer": lambda start: [
        *start.moved("fewer chunks a rank", "virtual_pipeline_size", -1),
        *start.moved("fewer stages", "pipeline_parallel_size", -1),
        *start.option("transfers under computing", "overlap_transfer"),
    ],
    "imbalance": lambda start: start.moved("fewer stages", "pipeline_parallel_size", -1),
    "bubble": _bubble,
    "data_parallel": lambda start: [
        *start.option("reduction under the backward pass", "overlap_gradients"),
        *start.option("gradients reduced in bf16", "reduced_gradient_dtype", "bf16"),
    ],
    "optimizer": lambda start: [
        *start.moved("a higher ZeRO stage", "zero_stage", 1),
        *start.worked("states in 8 bits", "optimizer", _LIGHT_STATES),
    ],
    "fixed": lambda start: start.option("CUDA graphs", "cuda_graphs"),
}
