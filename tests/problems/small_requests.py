"""Requests for one GPU or one node, as most people ask, and every layout of them by brute force."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd
from random import Random
from typing import Any

from meshwright.profiles.capabilities import Capabilities, launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.problem import Problem
from meshwright.solver.space.launcher_rules import own_faults, problem_faults
from meshwright.solver.space.rules import host_rules
from meshwright.solver.splits import divisors, even_split, launcher_split

MODELS = (
    "llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "mistral-7b", "gemma-2-2b",
    "llama-2-13b", "codellama-34b", "llama-3.1-70b", "olmoe-1b-7b", "qwen3-30b-a3b", "phi-2",
)  # fmt: skip
# From 11 to 141 GB, by their generations.
GPUS = ("rtx-2080-ti", "t4", "v100-sxm-32gb", "rtx-3090", "rtx-4080", "rtx-4090", "rtx-5090", "l40s",
        "a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb")  # fmt: skip
WITHOUT_BF16 = ("rtx-2080-ti", "t4", "v100-sxm-32gb")
OPTIMIZERS = ("adamw", "adamw-bf16", "adamw-8bit", "sgd-momentum")
_TARGETS = {"fused": ["linear_qkv", "linear_proj"], "single": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def methods_of(able: Capabilities) -> Iterator[str]:
    """Yield the ways to train that a launcher has."""
    yield "full"
    if able.adapters:
        yield "lora"
    if "nf4" in able.base_precisions:
        yield "qlora"
    if len(able.offload) > 1:
        yield "offload"
    if len(able.optimizers) != 1:
        yield "optimizer"


def a_small_request(launcher: str, random: Random) -> Problem | None:
    """Draw one; None where its launcher does not train that model so."""
    able = launcher_capabilities(launcher)
    method, half = random.choice([*methods_of(able)]), "fp16" in (able.precisions or ("fp16",))
    gpu = random.choice([one for one in GPUS if half or one not in WITHOUT_BF16])
    group = {"gpu": gpu, "gpus_per_node": random.choice((1, 1, 2, 4, 8)), "num_nodes": 1}
    work: dict[str, Any] = {
        "global_batch_size": random.choice((1, 2, 4, 8, 16, 32)),
        "seq_length": random.choice((512, 1024, 2048, 4096, 8192)),
        "precision": "fp16" if gpu in WITHOUT_BF16 else "bf16",
    }
    if method in ("lora", "qlora"):
        work |= {"lora_rank": 16, "lora_targets": _TARGETS[able.adapters[-1]]}
    if method == "qlora":
        work |= {"base_precision": "nf4"}
    if method == "optimizer":
        work |= {"optimizer": random.choice(able.optimizers or OPTIMIZERS)}
    raw = {
        "model": random.choice(MODELS),
        "cluster": {"groups": [group]},
        "workload": work,
        "launcher": launcher,
        "search": {"top_k": 1, "certify": "none", "allow": ["offload"] if method == "offload" else []},
    }
    try:
        problem = parse_problem(raw)
    except InvalidProblemError as refused:
        if {one.pointer for one in refused.errors} != {"/workload/precision"}:
            raise
        return None  # fp16 under an optimizer of bf16 weights
    return None if list(problem_faults(problem, able)) else problem


def layouts(problem: Problem) -> Iterator[Configuration]:
    """Yield every layout of all GPUs, with what the launcher says it has, whether it starts or not."""
    able, work = launcher_capabilities(problem.launcher), problem.workload
    words = able.offload if "offload" in problem.options.allow else ("none",)
    for mesh in meshes(problem, able):
        batch = divisors(work.global_batch_size // mesh["data_parallel_size"])
        for size, zero, kind, word in product(batch, able.zero_stages, able.recompute, words):
            yield layout(problem, able, {**mesh, "micro_batch_size": size, "zero_stage": zero}, kind, word)


def meshes(problem: Problem, able: Capabilities) -> Iterator[dict[str, int]]:
    """Yield the sizes of every mesh of all GPUs."""
    gpus, moe = problem.cluster.num_gpus, problem.model.moe
    for tp, cp, pp in product(divisors(gpus), repeat=3):
        dp, left = divmod(gpus, tp * cp * pp)
        lacking = (cp > 1 and not able.context_parallel) or (pp > 1 and able.schedules == ("none",))
        if left or lacking or pp > problem.model.num_layers or problem.workload.global_batch_size % dp:
            continue
        ranks = divisors(gcd(moe.num_experts, tp * cp * dp)) if moe and able.expert_parallel else (1,)
        for ep, etp in product(ranks, {1, tp} if moe else (1,)):
            yield {"tensor_parallel_size": tp, "context_parallel_size": cp, "pipeline_parallel_size": pp,
                   "data_parallel_size": dp, "expert_parallel_size": ep,
                   "expert_tensor_parallel_size": etp}  # fmt: skip


def layout(
    problem: Problem, able: Capabilities, sizes: dict[str, int], kind: str, word: str
) -> Configuration:
    """One of them, with what follows from its sizes."""
    dp, tp, pp = (sizes[f"{axis}_parallel_size"] for axis in ("data", "tensor", "pipeline"))
    layers = problem.model.num_layers
    plain = Configuration(
        **sizes,  # type: ignore[arg-type]
        sequence_parallel=tp > 1 and able.sequence_parallel,
        zero_shard_size=dp * sizes["context_parallel_size"] if sizes["zero_stage"] else 1,
        num_microbatches=problem.workload.global_batch_size // (dp * sizes["micro_batch_size"]),
        pipeline_schedule="none" if pp == 1 else "1f1b" if "1f1b" in able.schedules else "gpipe",
        recompute_granularity=kind,
        recompute_layers=layers if kind == "full" else 0,
        offload=word,
        stage_layers=even_split(layers, pp),
    )
    split = launcher_split(problem, plain) or plain.stage_layers
    return Configuration(**{**plain.__dict__, "stage_layers": split})


def starts(problem: Problem, config: Configuration) -> bool:
    """Whether a layout starts: what it divides divides, hosts hold it, and the launcher's data let it pass.

    Written without the rules of the space, which may forbid no more than this.
    """
    able, work = launcher_capabilities(problem.launcher), problem.workload
    tp, cp, pp = config.tensor_parallel_size, config.context_parallel_size, config.pipeline_parallel_size
    return (
        heads_divide(problem.model, tp)
        and all(  # a deliberate limit
            group.island_gpus % tp == 0 or config.num_gpus <= group.island_gpus
            for group in problem.cluster.groups
        )
        and work.seq_length % (tp * cp * (2 if cp > 1 else 1)) == 0
        and experts_divide(problem.model, able, config)
        and (pp == 1 or config.zero_stage <= able.max_zero_stage_with_pipeline)
        and (problem.model.num_layers % pp == 0 or able.uneven_stages)
        and not own_faults(problem, able, [config])[0]
        and not any(rule.violated(Columns.of([config])).any() for rule in host_rules(problem))
    )


def heads_divide(model: ModelSpec, tp: int) -> bool:
    """Whether tensor ranks have whole heads, keys and values of them or copies, and a part of every MLP."""
    kv, shared = model.num_kv_heads, model.moe.shared_ffn_hidden_size if model.moe else 0
    cut = (model.num_attention_heads, model.ffn_hidden_size, shared)
    return not any(size % tp for size in cut) and not (kv % tp and tp % kv)


def experts_divide(model: ModelSpec, able: Capabilities, config: Configuration) -> bool:
    """Whether every rank has as many experts, or an equal part of each, if the launcher can."""
    ep, etp, moe = config.expert_parallel_size, config.expert_tensor_parallel_size, model.moe
    ranks = config.tensor_parallel_size * config.context_parallel_size * config.data_parallel_size
    if moe is None:
        return ep * etp == 1
    whole = not (ranks % (ep * etp) or moe.num_experts % ep or moe.ffn_hidden_size % etp)
    return whole and (etp == 1 or able.expert_tensor_parallel)
