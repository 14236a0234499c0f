"""The parallel layout of a Megatron-LM command: world size, mesh, shards, micro-batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from meshwright.launchers.megatron_core.names import STAGES_BEFORE_DATA, WHOLE_LAYER, WHOLE_STEP
from meshwright.launchers.megatron_core.read import context_mode
from meshwright.launchers.megatron_lm.flags import FP8_RECIPES, FRAMEWORK
from meshwright.launchers.megatron_lm.read_forks import DEEPSPEED, DEEPSPEED_STAGES, OFFLOAD, partition
from meshwright.launchers.megatron_lm.read_model import PATTERN
from meshwright.launchers.megatron_lm.refusals import require_divides
from meshwright.launchers.reading.given import Given
from meshwright.launchers.rules import near_divisors, near_multiples
from meshwright.profiles.documents import shown
from meshwright.profiles.frameworks import (
    EXPERT_OPTIONS,
    OPTION_PARTS,
    FrameworkFacts,
    framework_facts,
    with_options,
)
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import Configuration, holds_layers, plain_order
from meshwright.solver.cost.packages import may_overlap_experts
from meshwright.solver.problem import Workload

# --------------------------------------------------------------------------------------------------
# The layers of each chunk of a Megatron-LM command, and those that recompute.


_REPEATED = re.compile(r"(\([^()]*\)|.)\*(\d{1,5})")
_MAX_LAYOUT = 20_000
_LAYOUT = "pipeline-model-parallel-layout"


def chunks_of(given: Given, num_layers: int, pp: int) -> tuple[int, ...]:
    """Return the layers of each chunk in model order; faults are left in ``given``."""
    if pp > num_layers + 2:
        given.fault("pipeline-model-parallel-size", f"{pp} stages for {num_layers} layers")
        return ()
    if f"--{DEEPSPEED}" in given.others:
        return partition(given, num_layers, pp)
    if given.has(_LAYOUT) or _has_staged_pattern(given):
        return _segments(given, pp) if _has_staged_pattern(given) else _layout(given, num_layers, pp)
    if given.has("decoder-first-pipeline-num-layers") or given.has("decoder-last-pipeline-num-layers"):
        return _uneven_ends(given, num_layers, pp)
    embedding = int(given.has("account-for-embedding-in-pipeline-split"))
    loss = int(given.has("account-for-loss-in-pipeline-split"))
    whole = num_layers + embedding + loss
    chunks = pp * _virtual(given, whole, pp)
    if whole % max(chunks, 1):
        counted = (
            f"{whole} layers (embedding or loss counted)" if whole > num_layers else f"{num_layers} layers"
        )
        given.fault(
            "pipeline-model-parallel-size",
            f"{counted} are not split evenly by {chunks} chunks; use --pipeline-model-parallel-layout",
        )
        return ()
    split = [whole // chunks] * chunks
    split[0] -= embedding
    split[-1] -= loss
    return tuple(split)


def _virtual(given: Given, whole: int, pp: int) -> int:
    """Return the chunks per rank, given directly or by the layers of one."""
    direct, layers = "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage"
    if given.has(direct) and given.has(layers):
        given.fault(layers, f"contradicts --{direct}: Megatron-LM takes one of them")
    if given.has(layers):
        each = given.integer(layers, 1)
        if not each or whole % (pp * each):
            given.fault(layers, f"{each} layers a chunk do not divide {whole} layers over {pp} stages")
            return 1
        chunks = whole // pp // each
    else:
        chunks = max(given.integer(direct, 1), 1)
    if chunks > 1 and pp == 1:
        given.fault(
            layers if given.has(layers) else direct,
            f"makes {chunks} chunks of one stage, which Megatron-LM refuses",
            allowed="--pipeline-model-parallel-size 2 and more",
        )
    return chunks


def _uneven_ends(given: Given, num_layers: int, pp: int) -> tuple[int, ...]:
    """Return the given first and last stage, and an even split of the others."""
    names = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
    first, last = (given.optional(name) for name in names)
    middle = pp - (first is not None) - (last is not None)
    left = num_layers - (first or 0) - (last or 0)
    vpp = given.integer("num-virtual-stages-per-pipeline-rank", 1)
    name = names[0] if first is not None else names[1]
    if vpp > 1:
        given.fault(name, "with virtual stages is not read; use --pipeline-model-parallel-layout")
    elif middle < 0 or left < 0 or (left % middle if middle else left):
        given.fault(name, f"leaves {left} layers, which {middle} stages between do not share evenly")
    else:
        ends = [[] if end is None else [end] for end in (first, last)]
        return (*ends[0], *[left // middle if middle else 0] * middle, *ends[1])
    return ()


def _has_staged_pattern(given: Given) -> bool:
    """Return whether the pattern of layers states the chunks."""
    return "|" in given.word(PATTERN)


def _segments(given: Given, pp: int) -> tuple[int, ...]:
    """Return the layers of each chunk of a pattern with ``|`` between chunks."""
    split = tuple(len(chunk) for chunk in given.word(PATTERN).split("|"))
    if len(split) % pp:
        given.fault(PATTERN, f"has {len(split)} stages, which {pp} pipeline ranks do not share evenly")
    elif not all(split):
        given.fault(PATTERN, "has a stage without a layer, which is not supported")
    else:
        return split
    return ()


def _layout(given: Given, num_layers: int, pp: int) -> tuple[int, ...]:
    """Parse ``Et*3|(tt|)*29,m|L``: stages between bars, t for a layer; x*N repeats x."""
    name = _LAYOUT
    text = given.word(name).replace(" ", "").replace(",", "")
    while (found := _REPEATED.search(text)) is not None and len(text) < _MAX_LAYOUT:
        piece = found[1].removeprefix("(").removesuffix(")") if len(found[1]) > 1 else found[1]
        text = text[: found.start()] + piece * min(int(found[2]), _MAX_LAYOUT) + text[found.end() :]
    if len(text) >= _MAX_LAYOUT or set(text) - set("Etm|L"):
        given.fault(name, "is not a layout", allowed="E, t, m, L, |, (…)*N")
        return ()
    stages = text.split("|")
    split = tuple(stage.count("t") for stage in stages)
    if len(split) % pp:
        given.fault(name, f"has {len(split)} stages, which {pp} pipeline ranks do not share evenly")
    elif sum(split) != num_layers:
        given.fault(name, f"holds {sum(split)} layers, --num-layers is {num_layers}")
    elif _misplaced(stages):
        given.fault(
            name,
            "has multi-token prediction neither next to the loss nor alone in the stage before",
            allowed="…m|L with no layer next to m or L, or …mL",
        )
    elif not holds_layers(split, (1, 1 + any("m" in stage for stage in stages[:-1]))):
        given.fault(
            name, "has a stage without a layer between the first and the last, which is not supported"
        )
    else:
        return split
    return ()


def _misplaced(stages: Sequence[str]) -> bool:
    """Return whether multi-token prediction is at a place that no split of layers can express.

    Next to the loss it is part of the head; otherwise it fills a stage, and the loss the last one.
    """
    before, last = stages[:-1], stages[-1]
    alone = bool(before) and set(before[-1]) == {"m"} and last == "L"
    return any("m" in stage for stage in (before[:-1] if alone else before))


def recompute_of(given: Given, split: tuple[int, ...]) -> tuple[str, int]:
    """Return granularity and recomputed layers of each chunk; all of the model if it is every layer."""
    granularity = given.word("recompute-granularity")
    if given.has("recompute-activations"):
        if granularity == "full":
            given.fault("recompute-activations", "means selective, --recompute-granularity is full")
        granularity = granularity or "selective"
    if granularity != "full":
        if given.has("recompute-method"):
            given.note("--recompute-method does nothing without --recompute-granularity full")
        others = set(given.words("recompute-modules")) - {*OPTION_PARTS["recompute_modules"][0]}
        if granularity and others:
            names = ", ".join(sorted(others))[:80]
            given.note(f"recomputed modules {names} are predicted as if they were kept")
        return granularity or "none", 0
    return "full", _recomputed_layers(given, split or (1,))


def _recomputed_layers(given: Given, split: tuple[int, ...]) -> int:
    """Return the recomputed layers per chunk: all for uniform, the first ones for block."""
    method, count = given.word("recompute-method"), given.integer("recompute-num-layers", 1)
    if method not in ("uniform", "block"):
        given.fault("recompute-method", "is needed with full recomputation", allowed="uniform or block")
    if method == "uniform":
        if count > 1:
            given.note(f"recomputation in groups of {count} layers is predicted as groups of one")
        return sum(split)
    if count > max(split):
        given.note(f"--recompute-num-layers {count} is more than a chunk has: every layer recomputes")
    return sum(split) if count >= max(split) else max(count, 1)


# --------------------------------------------------------------------------------------------------
# The workload of a Megatron-LM command: batch, precision, optimizer, and options of the framework.


Option = str | int | float | bool
_RECIPES = {recipe: name for name, recipe in FP8_RECIPES.items() if name != "none"}
_KERNELS = {"flash": "flash2", "fused": "cudnn", "unfused": "megatron-fused"}
_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon", "dist_muon": "muon"}
_SMALL_STATES = {"bf16": "adamw-bf16", "fp16": "adamw-bf16", "fp8": "adamw-8bit"}
_SCHEDULE = "step-batch-size-schedule"
_THOUSANDS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MAX_DIGITS = 15
_MAX_STEPS = 32  # batches of one schedule; each is priced
_DROPOUT = 0.1  # Megatron-LM's own default


def workload_of(given: Given, framework: str = FRAMEWORK) -> Workload:
    """Return the workload, with options in which the command differs from the catalog's ``framework``."""
    if not given.has("seq-length"):
        given.fault("seq-length", "is not given")
    if given.has(_SCHEDULE) and given.has("global-batch-size"):
        given.fault(_SCHEDULE, "contradicts --global-batch-size: Megatron-LM takes one of them")
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
    """Return the workload without expert options that the configuration cannot apply.

    Its file leaves the flag out (or sets false) whatever the framework can do, and its price is
    the same with either. So are all flags about experts for a model that has none.
    """
    idle = set() if model.moe else {*EXPERT_OPTIONS}
    idle |= set() if may_overlap_experts(configuration, model) else {"overlap_experts"}
    options = {name: value for name, value in workload.framework_options.items() if name not in idle}
    return replace(workload, framework_options=options)


def with_buckets(
    given: Given, workload: Workload, configuration: Configuration, model: ModelSpec, framework: str
) -> Workload:
    """Return the workload with the size of gradient buckets where the command states one that is priced.

    ``--ddp-num-buckets`` divides the parameters of a rank (Megatron-LM 0.19 training/training.py).
    """
    size, count = given.integer(_BUCKET, 0), given.integer(_BUCKETS, 0)
    if size and count:
        given.fault(_BUCKETS, "contradicts --ddp-bucket-size: Megatron-LM takes one of them")
    if not (size or count):
        return workload
    facts = with_options(framework_facts(framework), workload.framework_options)
    stage, stages = configuration.zero_stage, configuration.pipeline_parallel_size
    name = _BUCKET if size else _BUCKETS
    if not facts.overlap_gradients or stage not in facts.bucketed_stages or stages > 1:
        given.note(
            f"--{name} is priced with --overlap-grad-reduce, one pipeline stage and ZeRO 0 or 1 "
            "alone: here each layer's gradients are reduced together"
        )
        return workload
    size = size or max(_parameters_of_rank(model, configuration) // count, 1)
    options = {**workload.framework_options, "bucket_bytes": float(size * facts.gradient_bytes)}
    return replace(workload, framework_options=dict(sorted(options.items())))


_BUCKET, _BUCKETS = "ddp-bucket-size", "ddp-num-buckets"


def _parameters_of_rank(model: ModelSpec, configuration: Configuration) -> int:
    """Return the parameters of one rank of a single stage; norms are counted as if they were split too."""
    layers = sum(kind != "dense" for kind in model.layer_kinds())
    routed = layers * model.moe.num_experts * model.expert_parameters() if model.moe else 0
    dense = model.num_parameters() - routed
    return dense // configuration.tensor_parallel_size + routed // configuration.expert_ranks


def global_batch(given: Given) -> int:
    """Return the sequences per step, the last size of a growing batch; the earlier ones are noted."""
    if given.has("rampup-batch-size"):
        given.note("--rampup-batch-size is ignored by Megatron-LM 0.19, and priced as if it were")
    if not given.has(_SCHEDULE):
        return given.integer("global-batch-size", 1)
    steps = batch_steps(given)
    if not steps:
        given.fault(
            _SCHEDULE,
            "is not a list of tokens and batches that begins at 0",
            allowed=f"0:256 1B:512, up to {_MAX_STEPS} of them",
        )
        return 1
    last = steps[-1][1]
    if steps[:-1]:
        given.note(f"the batch grows from {steps[0][1]} to {last}: time and memory are for {last}")
    return last


def batch_steps(given: Given) -> list[tuple[int, int]]:
    """Return (first token, batch) of each batch size; empty without a valid schedule."""
    words = given.word(_SCHEDULE).split()
    steps = [step for word in words[:_MAX_STEPS] if (step := _step(word)) is not None]
    starts = [start for start, _ in steps]
    whole = len(steps) == len(words)
    return steps if whole and starts[:1] == [0] and starts == sorted(set(starts)) else []


def batch_ramp(given: Given) -> tuple[tuple[int, int], ...]:
    """Return the batches before the last, each with the tokens until which it holds."""
    return tuple((batch, end) for (_, batch), (end, _) in pairwise(batch_steps(given)))


def _step(word: str) -> tuple[int, int] | None:
    start, _colon, batch = word.partition(":")
    factor = _THOUSANDS.get(start[-1:].upper(), 1)
    digits = start[:-1] if factor > 1 else start
    if not (digits.isascii() and digits.isdecimal() and batch.isascii() and batch.isdecimal()):
        return None
    if len(digits) > _MAX_DIGITS or len(batch) > _MAX_DIGITS or int(batch) < 1:
        return None
    return int(digits) * factor, int(batch)


def _precision(given: Given) -> tuple[str, str]:
    if given.has("bf16") and given.has("fp16"):
        given.fault("fp16", "contradicts --bf16: Megatron-LM takes one of them", allowed="no --fp16")
    if not (given.has("bf16") or given.has("fp16")):
        given.fault("bf16", "neither --bf16 nor --fp16 is given: training in fp32 is not supported")
    if given.has("fp8-format"):
        recipe = given.word("fp8-recipe", "delayed")
        return "fp8", "" if recipe == "delayed" else _RECIPES.get(recipe, "")
    return ("fp16" if given.has("fp16") else "bf16"), ""


def _optimizer(given: Given) -> str:
    name = given.word("optimizer", "adam")
    aware = given.has("use-precision-aware-optimizer")
    moments = [given.word(f"exp-avg{part}-dtype", "fp32") for part in ("", "-sq")]
    if not aware and set(moments) != {"fp32"}:  # OptimizerConfig.__post_init__ asserts it
        one = "exp-avg-dtype" if moments[0] != "fp32" else "exp-avg-sq-dtype"
        given.fault(one, "needs --use-precision-aware-optimizer", allowed="fp32", nearest="fp32")
    elif moments[0] != moments[1]:
        given.note(f"--exp-avg-sq-dtype {moments[1]} is predicted as {moments[0]}, the other moment's")
    if name == "adam" and aware:
        return _SMALL_STATES.get(given.word("exp-avg-dtype", "fp32"), "adamw")
    return _OPTIMIZERS.get(name, "adamw")


def _options(given: Given, framework: str) -> dict[str, Option | None]:
    """Return the options in which this command differs from the catalog's framework; None: equal."""
    known = framework_facts(framework)
    found = {name: read(given, known) for name, read in _FACTS.items()}
    for name, note in _COSTLY.items():
        if found[name] is False and getattr(known, name):
            given.note(note)
    _note_slower_runs(given)
    if found["dropout"]:
        given.note("dropout is on: Megatron-LM's default is 0.1 unless --hidden-dropout is 0")
    return {name: None if value == getattr(known, name) else value for name, value in found.items()}


def _note_slower_runs(given: Given) -> None:
    """Note what runs slower than it is priced: gathers that nothing hides, experts one by one."""
    if (
        given.has("overlap-grad-reduce")
        and given.has("use-distributed-optimizer")
        and not (given.has("overlap-param-gather") or given.has("use-megatron-fsdp"))
    ):
        given.note(
            "without --overlap-param-gather weights are gathered before the first forward pass, but "
            "the prediction overlaps them"
        )
    # Launchers over Megatron-Core take it from the model's provider, unless a name turns it off.
    unset = given.has("num-experts") and not given.called
    if not given.has("moe-grouped-gemm") and (unset or "--moe-grouped-gemm" in given.called):
        given.note("experts run one by one without --moe-grouped-gemm, but are predicted as one product")


def _gradient_dtype(given: Given, known: FrameworkFacts) -> str:
    """Return the type of the kept gradients: bf16 training accumulates in fp32 by default."""
    if given.has("grad-reduce-in-bf16") and not given.has("fp16"):  # without effect on fp16
        return "bf16"  # with any --accumulate-allreduce-grads-in-fp32
    own = "fp16" if known.gradient_dtype == "fp32" else known.gradient_dtype  # else also of two bytes
    kept = given.has("bf16") and given.word("main-grads-dtype", "fp32") == "fp32"
    exact = kept or given.has("accumulate-allreduce-grads-in-fp32")
    return "fp32" if exact else own if given.has("fp16") else "bf16"


def _kernel(given: Given, known: FrameworkFacts) -> str:
    """Return the attention backend's kernel; auto leaves it to Transformer Engine."""
    backend = given.word("attention-backend", "flash" if given.has("use-flash-attn") else "auto")
    same = _KERNELS.get(backend) is None or (
        backend == "flash" and known.attention_kernel.startswith("flash")
    )
    return known.attention_kernel if same else _KERNELS[backend]


def _overlap_transfer(given: Given, known: FrameworkFacts) -> bool:
    """Return whether transfers overlap: the default is on with interleaved chunks."""
    stated = any(given.has(name) for name in ("num-layers-per-virtual-pipeline-stage", _LAYOUT))
    several = given.integer("num-virtual-stages-per-pipeline-rank", 1) > 1
    interleaves = several or stated or _has_staged_pattern(given)
    return known.overlap_transfer and not (given.has("no-overlap-p2p-communication") and interleaves)


def _parts(option: str, stated: Sequence[str]) -> str:
    """Return the stated parts of an option, in its own order."""
    return "+".join(name for name in OPTION_PARTS[option][0] if name in stated)


def _graph(given: Given, _: FrameworkFacts) -> str:
    """Return the scope of CUDA graphs; since 0.19 it has another flag, and a step is an impl."""
    impl = given.word("cuda-graph-impl", "none")
    scope = (*given.words("cuda-graph-scope"), *given.words("cuda-graph-modules"))
    switched = given.has("enable-cuda-graph") or given.has("external-cuda-graph")
    if impl == "none" and not switched:
        return "none"
    if WHOLE_STEP in (impl, *scope):
        return WHOLE_STEP
    return _parts("cuda_graph", scope) or WHOLE_LAYER


def _dispatcher(given: Given, known: FrameworkFacts) -> str:
    """Return the token dispatcher of experts; Megatron-Core's default is allgather."""
    if not (given.has("num-experts") or given.has("moe-token-dispatcher-type")):
        return known.moe_dispatcher
    kind = given.word("moe-token-dispatcher-type", "allgather")
    if kind == "flex":
        return "deepep" if given.has("moe-enable-deepep") else given.word(_BACKEND, "deepep")
    return kind.removesuffix("_seq")  # named alltoall_seq before Megatron-Core 0.13


def _low_weights(given: Given, known: FrameworkFacts) -> bool:
    """Return whether weights are stored in 8 bits; Megatron-Bridge's recipes set it themselves."""
    off = "--fp8-param-gather" in given.called and not given.has("fp8-param-gather")
    return (known.low_precision_weights and not off) or (
        given.has("fp8-param-gather") and given.has("fp8-format")
    )


_BACKEND = "moe-flex-dispatcher-backend"
_LAYERS_AWAY = "cpu-offloading-num-layers"
_FACTS: Mapping[str, Callable[[Given, FrameworkFacts], Option]] = {
    "attention_kernel": _kernel,
    "cuda_graph": _graph,
    "delay_wgrad": lambda given, _: given.has("delay-wgrad-compute"),
    "dropout": lambda given, _: any(
        given.number(f"{kind}-dropout", _DROPOUT) > 0 for kind in ("hidden", "attention")
    ),
    "dynamic_context_parallel": lambda given, _: given.has("hybrid-context-parallel"),
    "elementwise_fused": lambda given, _: (
        not (given.has("no-bias-swiglu-fusion") or given.has("no-bias-dropout-fusion"))
    ),
    "fp8_attention": lambda given, _: given.has("fp8-dot-product-attention"),
    "gradient_dtype": _gradient_dtype,
    "loss_fused": lambda given, _: given.has("cross-entropy-loss-fusion"),
    "low_precision_weights": _low_weights,
    "moe_capacity_factor": lambda given, _: max(given.number("moe-expert-capacity-factor", 0.0), 0.0),
    "moe_dispatcher": _dispatcher,
    "moe_force_balance": lambda given, _: given.has("moe-router-force-load-balancing"),
    # off by default, except in a recipe that has it on
    "moe_permute_fusion": lambda given, known: (
        given.has("moe-permute-fusion")
        or (known.moe_permute_fusion and "--moe-permute-fusion" not in given.called)
    ),
    "offload_layers": lambda given, known: given.number(_LAYERS_AWAY, known.offload_layers),
    "offload_modules": lambda given, known: (
        (
            given.has("fine-grained-activation-offloading")
            and _parts("offload_modules", given.words("offload-modules"))
        )
        or known.offload_modules
    ),
    "optimizer_offload_fraction": lambda given, known: (
        given.number("optimizer-offload-fraction", 1.0)
        if given.has("optimizer-cpu-offload")
        else known.optimizer_offload_fraction
    ),
    "overlap_experts": lambda given, _: given.has("overlap-moe-expert-parallel-comm"),
    "overlap_gradients": lambda given, _: given.has("overlap-grad-reduce"),
    # of sequence-parallel collectives, if there are any
    "overlap_tensor": lambda given, known: (
        given.has("tp-comm-overlap") if given.has("sequence-parallel") else known.overlap_tensor
    ),
    "overlap_transfer": _overlap_transfer,
    "recompute_modules": lambda given, known: (
        (
            given.word("recompute-granularity") != "full"
            and _parts("recompute_modules", given.words("recompute-modules"))
        )
        or known.recompute_modules
    ),
    "shared_expert_overlap": lambda given, _: given.has("moe-shared-expert-overlap"),
}
_COSTLY: Mapping[str, str] = {
    "overlap_gradients": "gradients are reduced after the last backward pass: no --overlap-grad-reduce",
    "overlap_tensor": "tensor-parallel collectives don't overlap with products: no --tp-comm-overlap",
    "overlap_transfer": "transfers between stages don't overlap with compute",
}

# Flags of the values that the user may supply, by glossary name.
SUPPLIED_FLAGS = {
    "tensor_parallel_size": "--tensor-model-parallel-size",
    "pipeline_parallel_size": "--pipeline-model-parallel-size",
    "context_parallel_size": "--context-parallel-size",
    "expert_parallel_size": "--expert-model-parallel-size",
    "expert_tensor_parallel_size": "--expert-tensor-parallel-size",
    "weight_shard_size": "--tensor-parallel-num-weight-shards",
    "expert_weight_shard_size": "--expert-tensor-parallel-num-weight-shards",
    "virtual_pipeline_size": "--num-virtual-stages-per-pipeline-rank",
    "micro_batch_size": "--micro-batch-size",
    "global_batch_size": "--global-batch-size",
    "seq_length": "--seq-length",
    "vocab_size": "--vocab-size",
    "sequence_parallel": "--sequence-parallel",
}
_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def configuration_of(
    given: Given, model: ModelSpec, workload: Workload, world: int | None
) -> Configuration:
    """Return the configuration; sizes that do not fit are raised with their flags.

    Raises:
        InvalidProblemError: sizes contradict one another.
    """
    tp = given.integer("tensor-model-parallel-size", 1)
    pp = given.integer("pipeline-model-parallel-size", 1)
    cp = given.integer("context-parallel-size", 1)
    dp = _data_parallel(given, world, tp * pp * cp)
    split = chunks_of(given, model.num_layers, pp)
    granularity, layers = recompute_of(given, split)
    micro = given.integer("micro-batch-size", 1)
    count = _micro_batches(given, workload.global_batch_size, dp * micro)
    vpp = max(len(split) // pp, 1)
    _check_interleaving(given, pp, vpp, count)
    _check_experts(given, model, tp, cp * dp)
    shared, experts_shared = _weight_shards(given, model, tp, dp, tp * cp * dp)
    zero, shard = _sharding(given, dp * cp // shared)
    sequence = given.has("sequence-parallel")
    if sequence and tp == 1:
        given.note("--sequence-parallel does nothing at tp 1")
    given.stop()
    found = Configuration(
        tensor_parallel_size=tp,
        sequence_parallel=sequence and tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=cp,
        context_parallel_mode=context_mode(given, cp),
        expert_parallel_size=given.integer("expert-model-parallel-size", 1),
        expert_tensor_parallel_size=_expert_tensor(given, model, tp),
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=shard,
        weight_shard_size=shared,
        expert_weight_shard_size=experts_shared,
        micro_batch_size=micro,
        num_microbatches=count,
        pipeline_schedule="none" if pp == 1 else "1f1b" if vpp == 1 else "interleaved_1f1b",
        recompute_granularity=granularity,
        recompute_layers=layers,
        offload=_offload(given),
        rank_order=STAGES_BEFORE_DATA if given.has("use-tp-pp-dp-mapping") else "tp-cp-dp-pp",
        stage_layers=split,
    )
    return replace(found, rank_order=plain_order(found))


def _offload(given: Given) -> str:
    """Return what is on the host: optimizer states, all or a share of them, and activations."""
    if OFFLOAD in given.others:
        return given.other(OFFLOAD[2:])
    modules, layers = given.has("fine-grained-activation-offloading"), given.integer(_LAYERS_AWAY, 0) > 0
    if modules and not given.words("offload-modules"):
        given.fault("fine-grained-activation-offloading", "needs --offload-modules")
    modules = modules or layers
    if not given.has("optimizer-cpu-offload"):
        return "activations" if modules else "none"
    if not given.has("use-precision-aware-optimizer"):
        given.fault("optimizer-cpu-offload", "needs --use-precision-aware-optimizer")
    return "optimizer+activations" if modules else "optimizer"


def _data_parallel(given: Given, world: int | None, model_gpus: int) -> int:
    if world is None:
        given.refuse(
            "num_gpus",
            "the number of GPUs is missing (torchrun --nnodes and --nproc-per-node, or #SBATCH --nodes)",
            allowed="--cluster with --num-nodes, or --set num_gpus=… next to the file",
        )
        return 1
    if world % model_gpus:
        sizes = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
        wrong = next((name for name in sizes if world % given.integer(name, 1)), sizes[0])
        given.fault(
            wrong,
            f"tp × pp × cp = {model_gpus} does not divide the {world} GPUs that start",
            allowed=f"tp × pp × cp that divides {world}",
            nearest=near_divisors(model_gpus, world),
        )
    return max(world // model_gpus, 1)


def _micro_batches(given: Given, batch: int, each: int) -> int:
    """Return the micro-batches of each pipeline, with Megatron-LM's default for the batch."""
    if not batch:
        return 1
    batches = [("step-batch-size-schedule", f"its batch {early}", early) for early, _ in batch_ramp(given)]
    for flag, words, sequences in [*batches, ("global-batch-size", f"{batch}", batch)]:
        if sequences % each:
            given.fault(
                flag,
                f"{words} is not a multiple of micro-batch × data parallel = {each}",
                allowed=f"multiples of {each}",
                nearest=near_multiples(sequences, each),
            )
    return max(batch // each, 1)


def _check_interleaving(given: Given, pp: int, vpp: int, count: int) -> None:
    """Check the groups of g micro-batches (default pp): pp <= g <= M, with a remainder of 0 or at least pp.

    Megatron-Core checks it in ``forward_backward_pipelining_with_interleaving``, when the first step runs.
    """
    if vpp == 1:
        return
    name = "microbatch-group-size-per-virtual-pipeline-stage"
    group = given.integer(name, pp)
    at = name if given.has(name) else "global-batch-size"
    if group != pp:
        given.note(f"--{name} {group} is predicted as {pp}, one of each stage")
    if not pp <= group <= count:
        given.fault(
            at,
            f"groups of {group} micro-batches, of which there are {count}, over {pp} stages",
            allowed=f"{pp} to {count}" if count >= pp else f"{pp} micro-batches at least",
        )
    elif 0 < count % group < pp:
        message = f"{count} micro-batches in groups of {group} leave {count % group} for {pp} stages"
        given.fault(at, message, allowed=f"micro-batches in multiples of {group}",
                    nearest=near_multiples(count, group))  # fmt: skip


def _check_experts(given: Given, model: ModelSpec, tp: int, rest: int) -> None:
    """Check that expert ranks fill those of a stage (Megatron-Core ``initialize_model_parallel``)."""
    if model.moe is None:
        return
    ranks = given.integer("expert-model-parallel-size", 1) * _expert_tensor(given, model, tp)
    words = f"the {tp * rest} ranks of a stage"
    require_divides(
        given, "expert-model-parallel-size", ranks, tp * rest, words, called="ep × expert tp = "
    )


def _weight_shards(given: Given, model: ModelSpec, tp: int, dp: int, stage: int) -> tuple[int, int]:
    """Return the ranks that share each dense matrix, and each expert: parts over tensor-parallel ranks.

    (Megatron-Core ``resolve_tensor_parallel_weight_shards``.) Sizes that replicas cannot share are raised.
    """
    etp = _expert_tensor(given, model, tp)
    expert_ranks = given.integer("expert-model-parallel-size", 1) * etp
    found = []
    for name, split, replicas in (
        ("tensor-parallel-num-weight-shards", tp, dp),
        ("expert-tensor-parallel-num-weight-shards", etp, max(stage // expert_ranks, 1)),
    ):
        parts = given.integer(name, split)
        if parts % split or replicas % (parts // split or 1):
            given.fault(
                name,
                f"{parts} parts of each matrix are not tp = {split} times a divisor of {replicas} replicas",
                allowed=f"{split} times a divisor of {replicas}",
                nearest=str(split),
            )
        found.append(max(parts // split, 1))
    return found[0], found[1] if model.moe is not None else 1


def _sharding(given: Given, ranks: int) -> tuple[int, int]:
    stage = int(given.has("use-distributed-optimizer") or given.word("optimizer", "adam") == "dist_muon")
    if (engine := given.others.get(f"--{DEEPSPEED}")) is not None:
        said = given.other("zero-stage")
        if said in DEEPSPEED_STAGES:
            stage = int(said)
        else:
            stated = f"ZeRO stage {shown(said)}" if said else "no ZeRO stage"
            given.fault_of(f"--{DEEPSPEED}", engine, f"with {stated}", allowed="--zero-stage 0 to 3")
    if given.has("use-megatron-fsdp") or given.has("use-custom-fsdp"):
        # --use-megatron-fsdp's own since 3499efef (April 2026); configurations keep no_shard
        own = "--use-megatron-fsdp" in {*given.values} - {*given.called}
        stage = _STRATEGIES.get(
            given.word("data-parallel-sharding-strategy", "optim_grads_params" if own else "no_shard"), 0
        )
    elif given.has("data-parallel-sharding-strategy"):
        given.note("--data-parallel-sharding-strategy does nothing without --use-megatron-fsdp")
    if given.has("overlap-param-gather") and not stage:
        given.fault("overlap-param-gather", "needs --use-distributed-optimizer")
    name = "num-distributed-optimizer-instances"
    instances = given.integer(name, 1)
    require_divides(given, name, instances, ranks, f"dp × cp = {ranks}")
    return stage, max(ranks // instances, 1) if stage else 1


def _expert_tensor(given: Given, model: ModelSpec, tp: int) -> int:
    """Return the tensor ranks of experts; Megatron-Core's default is those of the other layers."""
    return given.integer("expert-tensor-parallel-size", tp) if model.moe is not None else 1
