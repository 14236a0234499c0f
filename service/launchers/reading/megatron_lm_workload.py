"""What a Megatron-LM command trains with: batch, precision, optimizer, and what the framework is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

from profiles.frameworks import FrameworkFacts, framework_facts
from profiles.model import ModelSpec
from service.launchers.megatron_lm_facts import FP8_RECIPES, FRAMEWORK
from service.launchers.megatron_names import may_overlap_experts
from service.launchers.reading.given import Given
from solver.plan import Configuration
from solver.problem import Workload

Option = str | int | float | bool
_RECIPES = {recipe: name for name, recipe in FP8_RECIPES.items() if name != "none"}
_KERNELS = {"flash": "flash2", "fused": "cudnn", "unfused": "megatron-fused"}
_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon", "dist_muon": "muon"}
_SMALL_STATES = {"bf16": "adamw-bf16", "fp8": "adamw-8bit"}
_SCHEDULE = "step-batch-size-schedule"
_THOUSANDS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MAX_DIGITS = 15
_MAX_STEPS = 32  # batches of one schedule; each is priced
_DROPOUT = 0.1  # Megatron-LM's own default


def workload_of(given: Given, framework: str = FRAMEWORK) -> Workload:
    """The workload; its options are where the command differs from the catalog's facts of ``framework``."""
    if not given.has("seq-length"):
        given.fault("seq-length", "is not given")
    if given.has(_SCHEDULE):
        if given.has("global-batch-size"):
            given.fault(_SCHEDULE, "contradicts --global-batch-size: Megatron-LM takes one of them")
    elif not given.has("global-batch-size"):
        given.fault("global-batch-size", "is not given; Megatron-LM would take one micro-batch a replica")
    given.stop()
    precision, recipe = _precision(given)
    options = {name: value for name, value in _options(given, framework).items() if value is not None}
    if recipe:
        options["precision_recipe"] = recipe
    return Workload(
        global_batch_size=global_batch(given),
        seq_length=given.integer("seq-length", 1),
        precision=precision,
        optimizer=_optimizer(given),
        framework_options=dict(sorted(options.items())),
    )


def settled(workload: Workload, configuration: Configuration, model: ModelSpec) -> Workload:
    """The workload of a configuration: one that cannot overlap experts says nothing of their overlap.

    Its file leaves the flag out (or says false) whatever the framework does where it can, and its price is
    the same with either.
    """
    if may_overlap_experts(configuration, model):
        return workload
    options = {
        name: value for name, value in workload.framework_options.items() if name != "overlap_experts"
    }
    return replace(workload, framework_options=options)


def global_batch(given: Given) -> int:
    """Sequences of a step, of a growing batch the last; what grows before is noted."""
    if given.has("rampup-batch-size"):
        given.note("--rampup-batch-size is ignored by Megatron-LM 0.19, and priced as if it were")
    if not given.has(_SCHEDULE):
        return given.integer("global-batch-size", 1)
    steps = batch_steps(given)
    if not steps:
        allowed = f"0:256 1B:512, up to {_MAX_STEPS} of them"
        given.fault(_SCHEDULE, "is no list of tokens and batches that begins at 0", allowed=allowed)
        return 1
    last = steps[-1][1]
    if steps[:-1]:
        given.note(f"the batch grows from {steps[0][1]} to {last}: time and memory are those of {last}")
    return last


def batch_steps(given: Given) -> list[tuple[int, int]]:
    """Tokens from which each batch holds, with the batch; empty without a schedule, or with a wrong one."""
    words = given.word(_SCHEDULE).split()
    steps = [step for word in words[:_MAX_STEPS] if (step := _step(word)) is not None]
    starts = [start for start, _ in steps]
    whole = len(steps) == len(words)
    return steps if whole and starts[:1] == [0] and starts == sorted(set(starts)) else []


def batch_ramp(given: Given) -> tuple[tuple[int, int], ...]:
    """The batches before the last, each with the tokens until which it holds."""
    return tuple((batch, end) for (_, batch), (end, _) in pairwise(batch_steps(given)))


def _step(word: str) -> tuple[int, int] | None:
    """``250B:1536`` as tokens and batch; None for anything else."""
    start, _colon, batch = word.partition(":")
    factor = _THOUSANDS.get(start[-1:].upper(), 1)
    digits = start[:-1] if factor > 1 else start
    if not (digits.isascii() and digits.isdecimal() and batch.isascii() and batch.isdecimal()):
        return None
    if len(digits) > _MAX_DIGITS or len(batch) > _MAX_DIGITS or int(batch) < 1:
        return None
    return int(digits) * factor, int(batch)


def _precision(given: Given) -> tuple[str, str]:
    """What linear layers run in, and the recipe where it is not the default one."""
    if given.has("bf16") and given.has("fp16"):
        given.fault("fp16", "contradicts --bf16: Megatron-LM takes one of them")
    if not (given.has("bf16") or given.has("fp16")):
        given.fault("bf16", "neither --bf16 nor --fp16 is given: training in fp32 is not priced")
    if given.has("fp8-format"):
        recipe = given.word("fp8-recipe", "delayed")
        if recipe not in _RECIPES:
            given.fault("fp8-recipe", "is not priced", allowed=", ".join(_RECIPES))
        return "fp8", "" if recipe == "delayed" else _RECIPES.get(recipe, "")
    return ("fp16" if given.has("fp16") else "bf16"), ""


def _optimizer(given: Given) -> str:
    """By its states."""
    name = given.word("optimizer", "adam")
    if name not in _OPTIMIZERS:
        given.fault("optimizer", "is not priced", allowed=", ".join(_OPTIMIZERS))
    if name == "adam" and given.has("use-precision-aware-optimizer"):
        return _SMALL_STATES.get(given.word("exp-avg-dtype", "fp32"), "adamw")
    return _OPTIMIZERS.get(name, "adamw")


def _options(given: Given, framework: str) -> dict[str, Option | None]:
    """Facts of the framework that this command has otherwise than the catalog; None: as there."""
    known = framework_facts(framework)
    found = {name: read(given, known) for name, read in _FACTS.items()}
    for name, note in _COSTLY.items():
        if found[name] is False and getattr(known, name):
            given.note(note)
    if found["dropout"]:
        given.note("dropout is on: Megatron-LM's default is 0.1 unless --hidden-dropout says 0")
    return {name: None if value == getattr(known, name) else value for name, value in found.items()}


def _gradient_dtype(given: Given, _: FrameworkFacts) -> str:
    """Of the gradients that are kept: bf16 training accumulates in fp32 unless told otherwise."""
    if given.has("grad-reduce-in-bf16"):
        if given.has("accumulate-allreduce-grads-in-fp32"):
            given.fault("grad-reduce-in-bf16", "contradicts --accumulate-allreduce-grads-in-fp32")
        return "bf16"
    exact = given.has("accumulate-allreduce-grads-in-fp32") or given.has("bf16")
    return "fp32" if exact else "bf16"  # 2 bytes


def _kernel(given: Given, known: FrameworkFacts) -> str:
    """Attention as the backend names it; auto leaves it to Transformer Engine."""
    backend = given.word("attention-backend", "flash" if given.has("use-flash-attn") else "auto")
    same = _KERNELS.get(backend) is None or (
        backend == "flash" and known.attention_kernel.startswith("flash")
    )
    return known.attention_kernel if same else _KERNELS[backend]


def _interleaves(given: Given) -> bool:
    """Whether chunks interleave, so that overlapped transfers are a question."""
    return given.integer("num-virtual-stages-per-pipeline-rank", 1) > 1 or any(
        given.has(name)
        for name in ("num-layers-per-virtual-pipeline-stage", "pipeline-model-parallel-layout")
    )


def _overlap_transfer(given: Given, known: FrameworkFacts) -> bool:
    """On by default where chunks interleave."""
    off = given.has("no-overlap-p2p-communication") and _interleaves(given)
    return known.overlap_transfer and not off


def _overlap_tensor(given: Given, known: FrameworkFacts) -> bool:
    """Only where there is a sequence-parallel collective to overlap."""
    if not given.has("sequence-parallel"):
        return known.overlap_tensor
    return given.has("tp-comm-overlap")


def _dropout(given: Given, _: FrameworkFacts) -> bool:
    """Either dropout that is not 0."""
    return any(given.number(f"{kind}-dropout", _DROPOUT) > 0 for kind in ("hidden", "attention"))


_FACTS: Mapping[str, Callable[[Given, FrameworkFacts], Option]] = {
    "attention_kernel": _kernel,
    "dropout": _dropout,
    "gradient_dtype": _gradient_dtype,
    "loss_fused": lambda given, _: given.has("cross-entropy-loss-fusion"),
    "overlap_experts": lambda given, _: given.has("overlap-moe-expert-parallel-comm"),
    "overlap_gradients": lambda given, _: given.has("overlap-grad-reduce"),
    "overlap_tensor": _overlap_tensor,
    "overlap_transfer": _overlap_transfer,
}
_COSTLY: Mapping[str, str] = {
    "overlap_gradients": "gradients are reduced after the last backward pass: no --overlap-grad-reduce",
    "overlap_tensor": "tensor-parallel collectives do not run under the products: no --tp-comm-overlap",
    "overlap_transfer": "transfers between stages do not run under computing",
}
