"""A plan in the names of Megatron-Core's own configuration, which several launchers share.

Names: TransformerConfig and ModelParallelConfig of Megatron-Core 0.17 to 0.19. None stands for "not set".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from meshwright.launchers.export import EnvironmentVariable, bucket_units, written_bucket
from meshwright.launchers.flags import Flag, Kind, Role, flags_of, plain_name
from meshwright.launchers.target import Target
from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.requirements import Requirement
from meshwright.solver.configuration import HIERARCHICAL, Configuration, predicts_alone
from meshwright.solver.cost.packages import may_overlap_experts, packages_of

# --------------------------------------------------------------------------------------------------
# Flags of Megatron-LM, by their table. The writer writes some; the reader reads all.


FROM_CHECKPOINT = "--use-checkpoint-args"  # a checkpoint overrides flags of the model


def table() -> Mapping[str, Flag]:
    """Return Megatron-LM's arguments by name; the table is read when it is first asked for."""
    return flags_of("megatron-lm")


def spelled(name: str) -> str:
    """Return a name of the table as the command line spells it."""
    return "--" + name.replace("_", "-")


@cache
def flag_kinds() -> Mapping[str, Kind]:
    """Return the kind of every flag with values that are read, each checked for it."""
    return {spelled(name): table()[name].kind for name in _set()}


@cache
def flags_of_fields() -> Mapping[str, Mapping[str, str]]:
    """Return the flags that alone set a field, by record (``model.mla``) and by the field's name."""
    paths = _set()
    times = Counter(paths.values())
    found: dict[str, dict[str, str]] = {"model": {}, "model.mla": {}, "model.mixer": {}, "model.moe": {}}
    for name, path in paths.items():
        record, _, field = path.rpartition(".")
        if record in found and times[path] == 1:
            found[record][field] = name
    return found


def flag_meanings(name: str) -> Mapping[str, object]:
    """Return the arguments of Megatron-LM that a name of Megatron-Core stands for: ``$`` is its value."""
    row = flags_of("megatron-core").get(name)
    return row.means if row is not None and row.means else {name: "$"}


@cache
def _set() -> Mapping[str, str]:
    return {name: flag.sets for name, flag in table().items() if flag.sets and flag.kind != "text"}


def decided_flags() -> tuple[str, ...]:
    """Return the flags that affect a price, whether a plan writes them or relies on their defaults."""
    return tuple(name for name in flag_kinds() if _counts(table()[plain_name(name)], "priced"))


def refused_flags() -> tuple[str, ...]:
    """Return Megatron-LM's own flags with which a plan would not run as it was priced."""
    own = (name for name, flag in table().items() if flag.of != "forks" and _counts(flag, "refused"))
    return tuple(spelled(name) for name in own)


def _counts(flag: Flag, role: Role) -> bool:
    """Return whether a flag has a role by itself and with any value."""
    return flag.role == role and flag.needs is None and not flag.unless


# --------------------------------------------------------------------------------------------------
# Megatron-LM's notation of a pipeline split.
#
# ``--pipeline-model-parallel-layout``: stages in model order, ``|`` between them; E is the embedding, t a
# transformer layer, m a multi-token-prediction layer, L the loss; ``x*N`` repeats x. Stage i runs on
# pipeline rank i mod pp as virtual stage i div pp
# (megatron/core/transformer/pipeline_parallel_layer_layout.py, Megatron-Core 0.19.2).


def is_even(stage_layers: Sequence[int]) -> bool:
    """Return whether all chunks have equal numbers of layers, so that plain flags express the split."""
    return len(set(stage_layers)) == 1


def layout(stage_layers: Sequence[int], num_mtp_layers: int = 0) -> str:
    """Return the layout of ``stage_layers`` (pp * vpp entries, model order): ``Et*7|t*9|t*9|t*7L``.

    Multi-token-prediction layers come before the loss, in the last stage or in one of their own.
    """
    stages = [_repeated("t", count) for count in stage_layers]
    stages[0] = "E" + stages[0]
    stages[-2 if predicts_alone(stage_layers) else -1] += _repeated("m", num_mtp_layers)
    stages[-1] += "L"
    return "|".join(stages)


def _repeated(letter: str, count: int) -> str:
    if count <= 1:
        return letter * count
    return f"{letter}*{count}"


Values = dict[str, object]
STAGES_BEFORE_DATA = "tp-cp-pp-dp"  # with use_tp_pp_dp_mapping; without it tp-cp-dp-pp
CONTEXT_MODES = {"ring": "p2p", "all_to_all": "a2a", **dict.fromkeys(HIERARCHICAL, "a2a+p2p")}


def context_values(config: Configuration) -> Values:
    """Return the attention mode of context-parallel ranks; for both modes, the sizes of each."""
    if config.context_parallel_size == 1:
        return {}
    mode = config.context_parallel_mode
    values: Values = {"cp_comm_type": CONTEXT_MODES[mode]}
    if mode in HIERARCHICAL:
        inner = HIERARCHICAL[mode]
        values["hierarchical_context_parallel_sizes"] = (inner, config.context_parallel_size // inner)
    return values


FIRST_ARCHITECTURES_WITHOUT_ONE_CONNECTION = ("blackwell",)
# Megatron-LM 0.16.1, training/arguments.py:940-950: "set CUDA_DEVICE_MAX_CONNECTIONS to 1 or 32", which
# depends on whether tensor parallelism or overlapped experts come first.
MANY_CONNECTIONS = "32"
MANY_CONNECTIONS_REASON = "All-to-alls of experts overlap with compute on hardware queues of their own."


def parallel_values(target: Target) -> Values:
    """Return the sizes of all axes, and sequence parallelism; data parallelism follows from them."""
    config = target.config
    values: Values = {
        "tensor_model_parallel_size": config.tensor_parallel_size,
        "sequence_parallel": config.sequence_parallel and config.tensor_parallel_size > 1,
        "pipeline_model_parallel_size": config.pipeline_parallel_size,
        "context_parallel_size": config.context_parallel_size,
    }
    if target.model.moe:
        values["expert_model_parallel_size"] = config.expert_parallel_size
        # Unset, Megatron-Core splits experts as it splits attention.
        values["expert_tensor_parallel_size"] = config.expert_tensor_parallel_size
    return values


def weight_shard_values(config: Configuration) -> Values:
    """Return the parts that each matrix is stored in: tensor-parallel ranks times those that gather it."""
    shards = {
        "tensor_parallel_num_weight_shards": (config.weight_shard_size, config.tensor_parallel_size),
        "expert_tensor_parallel_num_weight_shards": (
            config.expert_weight_shard_size,
            config.expert_tensor_parallel_size,
        ),
    }
    return {name: size * split for name, (size, split) in shards.items() if size > 1}


def split_values(target: Target) -> Values:
    """Return virtual stages, and the layout of a split that is not even."""
    config = target.config
    virtual = config.virtual_pipeline_size
    values: Values = {"virtual_pipeline_model_parallel_size": virtual if virtual > 1 else None}
    if not is_even(config.stage_layers):
        values["pipeline_model_parallel_layout"] = layout(config.stage_layers, target.model.num_mtp_layers)
    return values


def recompute_values(target: Target, facts: FrameworkFacts) -> Values:
    """Return granularity, modules, method and count; ``uniform`` with groups of 1 is every layer."""
    config = target.config
    if config.recompute_granularity == "none":
        return {"recompute_granularity": None}
    if config.recompute_granularity == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": facts.recomputed}
    every = config.recompute_layers >= max(config.stage_layers)
    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform" if every else "block",
        "recompute_num_layers": 1 if every else config.recompute_layers,
    }


# --------------------------------------------------------------------------------------------------
# Switches that are priced next to the configuration: dispatchers, CUDA graphs, fused kernels, copies.
#
# Fields that TransformerConfig (and, of delay_wgrad_compute, ModelParallelConfig) has in Megatron-Core
# 0.17.0 and 0.19.2 alike; lines of 0.19.2: CUDA graphs from 1032, dispatchers from 862, capacity 888,
# permutation 912, forced balance 812, shared experts 696, offloaded modules 1234, attention in 8 bits 619,
# delayed weight gradients 348. Absent values are Megatron-Core's defaults.


# Facts that the functions below write. Others have no field in Megatron-Core, or not in every version.
SWITCH_FACTS = (
    "cuda_graph", "delay_wgrad", "elementwise_fused", "fp8_attention", "moe_capacity_factor",
    "moe_dispatcher", "moe_force_balance", "moe_permute_fusion", "offload_layers", "offload_modules",
    "shared_expert_overlap",
)  # fmt: skip
# Switches that every launcher over Megatron-Core writes.
SWITCHES_OF_ALL = (
    *(name for name in SWITCH_FACTS if not name.startswith("offload_")), "cuda_graphs", "dropout",
    "gradient_dtype", "launch_blocking", "loss_fused", "optimizer_offload_fraction", "overlap_experts",
    "overlap_gradients", "overlap_tensor", "overlap_transfer", "precision_recipe", "recompute_modules",
)  # fmt: skip
DISPATCHERS = {"allgather": "allgather", "alltoall": "alltoall", "deepep": "flex", "hybridep": "flex"}
# cuda_graph_scope is cuda_graph_modules since 0.19, which still takes it under its old name.
DROPOUT = 0.1  # Megatron-LM's own default if dropout is on
WHOLE_STEP, WHOLE_LAYER = "full_iteration", "layer"


def kernel_values(target: Target, facts: FrameworkFacts) -> Values:
    """Return CUDA graphs, kernels that are not fused, and attention in 8 bits."""
    unfused = () if facts.elementwise_fused else ("bias_activation_fusion", "bias_dropout_fusion")
    values: Values = dict.fromkeys(unfused, False)
    if facts.cuda_graph == WHOLE_STEP:
        values |= {"cuda_graph_impl": "local", "cuda_graph_scope": (WHOLE_STEP,)}
    elif facts.cuda_graph != "none":
        values["cuda_graph_impl"] = "transformer_engine"
        if facts.cuda_graph != WHOLE_LAYER:
            values["cuda_graph_scope"] = tuple(facts.cuda_graph.split("+"))
    if facts.fp8_attention and (target.workload.precision == "fp8" or facts.precision_recipe != "none"):
        values["fp8_dot_product_attention"] = True
    return values


def dropout_values(facts: FrameworkFacts) -> Values:
    """Return dropout if it is on, for launchers that otherwise take it from the model."""
    return {"attention_dropout": DROPOUT, "hidden_dropout": DROPOUT} if facts.dropout else {}


def offloaded_optimizer(facts: FrameworkFacts) -> Values:
    """Return the share of optimizer states that CPUs hold and update; Megatron-Core's OptimizerConfig."""
    return {
        "use_precision_aware_optimizer": True,
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": facts.optimizer_offload_fraction,
    }


def moment_values(target: Target) -> Values:
    """Return AdamW's moments in bf16, if planned; Megatron-Core's OptimizerConfig."""
    if target.workload.optimizer != "adamw-bf16":
        return {}
    return {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}


def offload_values(target: Target, facts: FrameworkFacts) -> Values:
    """Return the layers on the host, or the modules with inputs there, if activations are offloaded."""
    if "activations" not in target.config.offload:
        return {}
    if facts.offload_layers:
        return {"cpu_offloading_num_layers": int(facts.offload_layers)}
    return {
        "fine_grained_activation_offloading": True,
        "offload_modules": tuple(facts.offload_modules.split("+")),
    }


def exchange_values(target: Target, facts: FrameworkFacts) -> Values:
    """Return the token dispatcher of experts, and its overlaps; nothing for a dense model."""
    moe = target.model.moe
    if moe is None:
        return {}
    overlaps, capacity = overlapped(target, facts), facts.moe_capacity_factor
    values: Values = {
        "moe_token_dispatcher_type": DISPATCHERS[facts.moe_dispatcher],
        "moe_flex_dispatcher_backend": facts.moe_dispatcher if facts.deduplicates else None,
        "moe_grouped_gemm": True,
        # Router logits and weights, as in the recipes of DeepSeek-V3 and Qwen3 (Megatron-Bridge 0.3.1,
        # qwen_provider.py:453); DeepEP takes no others (token_dispatcher.py: "only supports float32
        # probs").
        "moe_router_dtype": "fp32",
        "moe_permute_fusion": facts.moe_permute_fusion,
        "moe_router_force_load_balancing": facts.moe_force_balance,
        "moe_expert_capacity_factor": capacity,
        # TransformerConfig refuses to pad next to DeepEP
        "moe_pad_expert_input_to_capacity": bool(capacity) and facts.moe_dispatcher != "deepep",
        "moe_shared_expert_overlap": facts.shared_expert_overlap and moe.shared_ffn_hidden_size > 0,
        "overlap_moe_expert_parallel_comm": overlaps,
        "delay_wgrad_compute": overlaps and facts.delay_wgrad,
    }
    return {name: value for name, value in values.items() if value}


def balance_values(moe: MoeSpec) -> Values:
    """Return the loss that balances experts, under the number of the model's config.

    Megatron-Bridge v0.7 takes it unchanged (``conversion/model_bridge.py:483``).
    """
    if not moe.balance_coefficient:
        return {}
    return {
        "moe_router_load_balancing_type": "seq_aux_loss" if moe.balanced_by_sequence else "aux_loss",
        "moe_aux_loss_coeff": moe.balance_coefficient,
    }


def overlapped(target: Target, facts: FrameworkFacts) -> bool:
    """Return whether the plan was priced with all-to-alls of experts under other micro-batches."""
    return facts.overlap_experts and may_overlap_experts(target.config, target.model)


def megatron_packages(target: Target, facts: FrameworkFacts) -> tuple[Requirement, ...]:
    """Return the packages that the plan needs over Megatron-Core; it was priced under ``facts``."""
    return packages_of(target.problem.launcher, facts, target.model, target.config)


def environment(target: Target, facts: FrameworkFacts) -> Iterator[EnvironmentVariable]:
    """Yield the variables that Megatron-Core and Transformer Engine read for this plan."""
    yield from _queues(target, facts)
    if facts.cuda_graph != "none":
        yield EnvironmentVariable(
            name="NCCL_GRAPH_REGISTER",
            value="0",
            reason="Megatron-LM requires it with CUDA graphs where the allocator's blocks grow in place.",
        )
    if "activations" in target.config.offload and not facts.offload_layers:
        reason = (
            "Or Transformer Engine 2.10 would send weights to the host along with the named activations."
        )
        yield EnvironmentVariable(name="NVTE_CPU_OFFLOAD_V1", value="1", reason=reason)


def _queues(target: Target, facts: FrameworkFacts) -> Iterator[EnvironmentVariable]:
    config = target.config
    split = config.tensor_parallel_size > 1 or config.context_parallel_size > 1
    if config.zero_stage > 1:
        reason = "Megatron-FSDP overlaps collectives on several hardware queues and refuses a single one."
        yield EnvironmentVariable(name="CUDA_DEVICE_MAX_CONNECTIONS", value=None, reason=reason)
    elif overlapped(target, facts):
        yield EnvironmentVariable(
            name="CUDA_DEVICE_MAX_CONNECTIONS", value=MANY_CONNECTIONS, reason=MANY_CONNECTIONS_REASON
        )
    elif split and target.gpu.architecture not in FIRST_ARCHITECTURES_WITHOUT_ONE_CONNECTION:
        yield EnvironmentVariable(
            name="CUDA_DEVICE_MAX_CONNECTIONS",
            value="1",
            reason="Before Blackwell, one hardware queue keeps tensor and context traffic ahead of GEMMs.",
        )


def distributed_optimizer(target: Target, facts: FrameworkFacts) -> Values:
    """Return ZeRO 0 or 1 with its overlaps: gradients in the backward pass, weights in the forward.

    Muon deals its matrices itself: distributed ``dist_muon`` excludes the distributed optimizer.
    """
    sharded = target.config.zero_stage > 0 and target.workload.optimizer != "muon"
    return {
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": facts.overlap_gradients,
        "overlap_param_gather": sharded and facts.overlap_gradients,
    }


def written_cut(target: Target, facts: FrameworkFacts) -> tuple[str, ...]:
    """Return ``bucket_bytes`` if a whole number of parameters states the priced size."""
    return written_bucket(target, facts.gradient_bytes)


def cut_bucket(target: Target, facts: FrameworkFacts) -> int | None:
    """Return the parameters of a gradient bucket; None where Megatron-Core chooses or cuts none."""
    cut = facts.overlap_gradients and target.config.zero_stage in facts.bucketed_stages
    return bucket_units(target, facts.gradient_bytes) if cut else None
