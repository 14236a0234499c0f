"""A plan's reasons in two sentences: where its time goes, and what binds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.profiles.figures import percent, seconds_like, tied
from meshwright.profiles.units import GIB
from meshwright.solver.answer import HostMemory, Limit, Plan, Why

_NAMED = 3  # losses
_LOSSES: Mapping[str, str] = {
    "gemm_efficiency": "matrix products below the peak",
    "attention_efficiency": "attention below the peak",
    "memory_bound": "memory-bound operators",
    "launch_floor": "waiting for the CPU to launch kernels",
    "offload": "offloading",
    "recompute": "recomputing",
    "tensor_parallel": "tensor-parallel collectives",
    "context_parallel": "context-parallel exchange",
    "expert_parallel": "expert all-to-alls",
    "pipeline_transfer": "transfers between stages",
    "unequal_lengths": "waiting for longer documents",
    "reference": "the reference model",
    "imbalance": "unequal stages",
    "bubble": "the pipeline's bubble",
    "data_parallel": "data-parallel collectives",
    "straggler": "waiting for the slowest node",
    "fixed": "fixed costs of a step",
}


def time_sentence(why: Why) -> str:
    """Return how much of the step is the model's own work, and the largest of what is not."""
    step_s = sum(why.waterfall_s.values())
    share = tied(percent(why.waterfall_s["ideal"] / step_s))
    ideal = f"{share} of the step is useful work at peak speed"
    lost = [f"{_loss_words(loss.term)} ({_seconds(loss.seconds, step_s)})" for loss in why.losses[:_NAMED]]
    if not lost:
        return f"Time: {ideal}."
    return f"Time: {ideal}. Biggest losses: {listed(lost)}."


def limit_sentence(why: Why) -> str:
    """Return the one limit that stops the best change; if there is none, what a change costs or gains."""
    step_s = sum(why.waterfall_s.values())
    if why.limits:
        return f"Binds: {limit_words(why.limits[0], step_s)}"
    changes = [
        (one, one.change, one.step_change_s) for one in why.losses if one.change and one.step_change_s
    ]
    if not changes:
        return "Nothing to gain: no single change of a size lowers these losses."
    loss, change, longer_s = next((one for one in changes if one[2] < 0), changes[0])
    words, cost = _loss_words(loss.term), _seconds(longer_s, step_s)
    if longer_s < 0:
        return f"Try next: {tied(change)} lowers {words} most and makes the step {cost} shorter."
    return f"Nothing to gain: even {tied(change)}, which lowers {words} most, makes the step {cost} longer."


def loading_warnings(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return which plans fill the host memory of a node while they load or save, and what to set."""
    full = dict[str, list[str]]()
    for plan in plans:
        seen = plan.prediction.host
        if seen is None or seen.peak_bytes <= seen.limit_bytes:
            continue
        full.setdefault(_full_host(seen), []).append(f"#{plan.rank}")
    return tuple(f"{', '.join(which)}: {text}" if which != ["#0"] else text for text, which in full.items())


def _full_host(seen: HostMemory) -> str:
    limit = f"and {seen.limit_bytes / GIB:.0f} GiB of its host memory may be filled"
    if seen.loading_bytes > seen.limit_bytes:
        who = "its first rank reads" if seen.readers == 1 else f"{seen.readers} ranks read"
        shards = "" if seen.readers == 1 else ", or FSDP or ZeRO-3, where one rank reads"
        return (
            f"loading takes {seen.loading_bytes / GIB:.0f} GiB of a node, where {who} all weights, "
            f"{limit}: set dtype to bfloat16{shards}, or start from shards (torch.distributed.checkpoint)"
        )
    needed = seen.training_bytes + seen.saving_bytes
    return (
        f"saving takes {needed / GIB:.0f} GiB of a node, whose first rank gathers all weights beside what "
        f"is offloaded, {limit}: set fsdp_state_dict_type to SHARDED_STATE_DICT, and merge the shards later"
    )


def limit_words(limit: Limit, step_s: float) -> str:
    """Return a limit: ``tp 4 would save 0.15 s, but memory is the limit (activations of stage 1, …)``."""
    kind, colon, detail = limit.name.partition(": ")
    faster = f"{tied(limit.change)} would save {_seconds(limit.gain_s, step_s)}"
    if not colon:
        return f"{faster}, but breaks the rule that {limit.name}."
    if kind.startswith("GPUs of "):
        return f"{faster}, but there are {detail} {kind}."
    return f"{faster}, but {kind} is the limit ({detail})."


def listed(words: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _loss_words(term: str) -> str:
    return _LOSSES.get(term, term.replace("_", " "))


def _seconds(value_s: float, step_s: float) -> str:
    return tied(seconds_like(abs(value_s), step_s))
