"""Plans of every launcher: those that the golden files show, and rows of the search's own space."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np

from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.cluster import ClusterSpec, NodeGroup
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_cluster, find_gpu, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import framework_of
from meshwright.profiles.sequences import SequenceLengths
from meshwright.profiles.switches import Setting, switches
from meshwright.profiles.towers import FrozenPart
from meshwright.solver.configuration import RECOMPUTE, Columns, Configuration, StageGroup
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.launcher_rules import problem_faults, unwritten
from meshwright.solver.splits import launcher_split
from tests.launchers.cases import (
    DEEPSEEK_EXPERTS,
    DEEPSEEK_STANDALONE,
    DEEPSEEK_V3,
    LLAMA_3_70B,
    LLAMA_70B,
    LLAMA_70B_EVEN,
    LLAMA_70B_FSDP,
    LLAMA_70B_NEAR_STAGES,
    LLAMA_70B_OFFLOADED,
    LLAMA_405B,
    LLAMA_405B_UNEVEN,
    MIXTRAL,
    MIXTRAL_EXPERTS,
    plan,
    target,
)

# cut leaves out the head, and with it its fake quantiser
ROUNDED = {"loss_kernel": "cut", "fake_quantization": "int8-int4", "fake_quantized_group": 256.0}
BLOCKS = {"loss_kernel": "cut", "fake_quantization": "mxfp4"}
DECOMPOSED = {"dora": True, "adapter_dropout": True}
SHARDED = replace(LLAMA_70B_FSDP, zero_stage=3)
STAGES = Configuration(
    pipeline_parallel_size=4, data_parallel_size=16, zero_stage=1, zero_shard_size=16, num_microbatches=8,
    pipeline_schedule="1f1b", recompute_granularity="full", recompute_layers=80, stage_layers=(20,) * 4,
)  # fmt: skip
TENSOR = Configuration(
    tensor_parallel_size=8, data_parallel_size=8, zero_stage=2, zero_shard_size=8, num_microbatches=16,
    stage_layers=(80,),
)  # fmt: skip
MESH = Configuration(
    tensor_parallel_size=2, context_parallel_size=2, data_parallel_size=16, zero_stage=2, zero_shard_size=8,
    micro_batch_size=2, num_microbatches=4, stage_layers=(80,),
)  # fmt: skip
TITAN = Configuration(
    tensor_parallel_size=4, sequence_parallel=True, pipeline_parallel_size=4, virtual_pipeline_size=2,
    context_parallel_size=2, data_parallel_size=4, zero_stage=3, zero_shard_size=4, micro_batch_size=2,
    num_microbatches=8, pipeline_schedule="interleaved_1f1b", recompute_granularity="selective",
    stage_layers=(9, 10, 10, 10, 10, 11, 11, 9),
)  # fmt: skip
TITAN_STANDALONE = replace(
    TITAN, context_parallel_size=1, data_parallel_size=8, zero_shard_size=8, num_microbatches=4,
    stage_layers=(0, 13, 13, 14, 14, 13, 13, 0),
)  # fmt: skip
TITAN_TENSOR = replace(TENSOR, sequence_parallel=True, zero_stage=3)
TITAN_EXPERTS = Configuration(
    tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=64, expert_parallel_size=32,
    zero_stage=3, zero_shard_size=64, num_microbatches=16, recompute_granularity="full",
    recompute_layers=61, stage_layers=(61,),
)  # fmt: skip
NANOTRON = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=8, num_microbatches=16,
    recompute_granularity="full", recompute_layers=80, stage_layers=(80,),
)  # fmt: skip
MAXTEXT_STAGES = Configuration(
    tensor_parallel_size=4, sequence_parallel=True, pipeline_parallel_size=4, virtual_pipeline_size=5,
    data_parallel_size=4, zero_stage=3, zero_shard_size=4, num_microbatches=8,
    pipeline_schedule="looped_bfs", recompute_granularity="full", recompute_layers=80,
    stage_layers=(4,) * 20,
)  # fmt: skip
MAXTEXT_EXPERTS = Configuration(
    tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=16, expert_parallel_size=8,
    expert_tensor_parallel_size=2, zero_stage=3, zero_shard_size=16, micro_batch_size=2, num_microbatches=4,
    recompute_granularity="selective", stage_layers=(32,),
)  # fmt: skip
EXPERTS = Configuration(
    data_parallel_size=16, expert_parallel_size=8, zero_stage=2, zero_shard_size=16, micro_batch_size=2,
    num_microbatches=8, recompute_granularity="full", recompute_layers=32, stage_layers=(32,),
)  # fmt: skip


def _for(launcher: str, model: ModelSpec, config: Configuration, seq_length: int = 8192) -> Target:
    found = target(model, config, seq_length=seq_length)
    return replace(found, problem=replace(found.problem, launcher=launcher))


def _asked(found: Target, precision: str, **options: str | float) -> Target:
    """The same plan of a workload with options of the framework."""
    workload = replace(found.workload, precision=precision, framework_options=dict(sorted(options.items())))
    return replace(found, problem=replace(found.problem, workload=workload))


def _seeing(launcher: str, name: str) -> Target:
    """A model with a tower on shards, which reads two images of 64 to 256 tokens in a sequence."""
    model = find_model(name)
    layers = model.num_layers
    found = _for(launcher, model, replace(SHARDED, stage_layers=(layers,), recompute_layers=layers), 4096)
    sizes = SequenceLengths(percentiles=((0.0, 64), (100.0, 256)))
    workload = replace(found.workload, images_per_sample=2.0, image_tokens=sizes)
    return replace(found, problem=replace(found.problem, workload=workload))


def _nodes(name: str, count: int) -> NodeGroup:
    gpu = find_gpu(name)
    return NodeGroup(
        gpu=gpu, num_nodes=count, gpus_per_node=8, island_gpus=8, intra_node=gpu.intra_node,
        inter_node=gpu.inter_node,
    )  # fmt: skip


def _on_groups() -> Target:
    """Llama 3.1 70B on two nodes of A100 and one of H100, with unlike tensor-parallel sizes."""
    cluster = ClusterSpec(
        name="a100-and-h100",
        groups=(
            _nodes("a100-sxm-80gb", 4),
            _nodes("h100-sxm-80gb", 1),
        ),
    )
    old, new = cluster.group_names
    stages = (
        StageGroup(group=old, num_gpus=16, num_nodes=2.0, tensor_parallel_size=8),
        StageGroup(group=old, num_gpus=16, num_nodes=2.0, tensor_parallel_size=8),
        StageGroup(group=new, num_gpus=8, num_nodes=1.0, tensor_parallel_size=4),
    )
    config = Configuration(
        tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=3, data_parallel_size=2,
        zero_stage=1, zero_shard_size=2, num_microbatches=64, pipeline_schedule="1f1b",
        recompute_granularity="full", recompute_layers=80, stage_layers=(26, 27, 27), stage_groups=stages,
    )  # fmt: skip
    found = _for("flagscale", LLAMA_70B, config)
    return replace(found, problem=replace(found.problem, cluster=cluster))


def placed_targets(count: int, rng: random.Random) -> Iterator[Target]:
    """Random stages on two or three node groups, of which some are refused; those that are not count."""
    found = 0
    while found < count:
        model = rng.choice([LLAMA_70B, find_model("llama-3.1-8b"), find_model("llama-3.2-1b"), MIXTRAL])
        names = rng.sample(["a100-sxm-80gb", "h100-sxm-80gb", "l40s"], rng.choice([2, 3]))
        dp, stages, groups = rng.choice([1, 2, 4, 8]), list[StageGroup](), list[NodeGroup]()
        for name in names:
            size, own = rng.choice([1, 2, 4, 8]), rng.randint(1, 3)
            groups.append(_nodes(name, -(-own * size * dp // 8)))
            stages += own * [
                StageGroup(
                    group=name, num_gpus=size * dp, num_nodes=size * dp / 8, tensor_parallel_size=size
                )
            ]
        cuts = sorted(rng.sample(range(1, model.num_layers), len(stages) - 1))
        layers = tuple(end - start for start, end in pairwise((0, *cuts, model.num_layers)))
        largest = max(one.tensor_parallel_size for one in stages)
        again = rng.choice(["none", "selective", "full"])
        config = Configuration(
            tensor_parallel_size=largest, sequence_parallel=largest > 1, pipeline_parallel_size=len(stages),
            data_parallel_size=dp, zero_stage=int(dp > 1), zero_shard_size=dp, pipeline_schedule="1f1b",
            micro_batch_size=rng.choice([1, 2]), num_microbatches=rng.choice([8, 64]),
            recompute_granularity=again, stage_layers=layers, stage_groups=tuple(stages),
            stage_recompute_layers=tuple(rng.randint(0, one) for one in layers) if again == "full" else (),
        )  # fmt: skip
        one = _for("flagscale", model, config, 4096)
        cluster = ClusterSpec(name="mixed", groups=tuple(groups))
        one = replace(one, problem=replace(one.problem, cluster=cluster))
        try:
            export(one.plan, one.problem, "flagscale")
        except RefusedExportError:
            continue
        found += 1
        yield one


CASES: dict[str, dict[str, Target]] = {
    "megatron-bridge": {
        "llama-3.1-405b-uneven": _for("megatron-bridge", LLAMA_405B, LLAMA_405B_UNEVEN),
        "deepseek-v3-experts": _for("megatron-bridge", DEEPSEEK_V3, DEEPSEEK_EXPERTS, 4096),
        "deepseek-v3-standalone": _for("megatron-bridge", DEEPSEEK_V3, DEEPSEEK_STANDALONE, 4096),
        "llama-3.1-70b-fsdp": _for("megatron-bridge", LLAMA_70B, LLAMA_70B_FSDP),
        "llama-3.1-70b-offloaded": _for("megatron-bridge", LLAMA_70B, LLAMA_70B_OFFLOADED),
        "llama-3.1-70b-near-stages": _for("megatron-bridge", LLAMA_70B, LLAMA_70B_NEAR_STAGES),
    },
    "deepspeed": {
        "llama-3.1-70b-zero3": _for("deepspeed", LLAMA_70B, SHARDED),
        "llama-3.1-70b-offloaded": _for("deepspeed", LLAMA_70B, replace(SHARDED, offload="optimizer")),
        "llama-3.1-70b-swapped": _for(
            "deepspeed", LLAMA_70B, replace(SHARDED, offload="optimizer@nvme+parameters@nvme")
        ),
        "llama-3.1-70b-stages": _for("deepspeed", LLAMA_70B, STAGES),
        "llama-3.1-70b-tensor": _for("deepspeed", LLAMA_70B, TENSOR),
        "mixtral-8x7b-experts": _for("deepspeed", MIXTRAL, EXPERTS, 4096),
    },
    "torchtitan": {
        "llama-3.1-70b-fsdp": _for("torchtitan", LLAMA_70B, SHARDED),
        "llama-3.1-70b-stages": _for("torchtitan", LLAMA_70B, TITAN),
        "llama-3.1-70b-standalone": _for("torchtitan", LLAMA_70B, TITAN_STANDALONE),
        "llama-3.1-70b-fp8": _asked(
            _for("torchtitan", LLAMA_70B, TITAN_TENSOR),
            precision="fp8",
            precision_recipe="fp8-rowwise",
            overlap_tensor=True,
        ),
        "deepseek-v3-experts": _for(
            "torchtitan", replace(DEEPSEEK_V3, norm_epsilon=1e-6), TITAN_EXPERTS, 4096
        ),
        "qwen3.5-9b-images": _seeing("torchtitan", "qwen3.5-9b"),
    },
    "accelerate": {
        "llama-3.1-70b-fsdp": _for("accelerate", LLAMA_70B, SHARDED),
        "llama-3.1-70b-mesh": _for("accelerate", LLAMA_70B, MESH),
    },
    "axolotl": {
        "llama-3.1-70b-fsdp": _for("axolotl", LLAMA_70B, SHARDED),
        "llama-3.1-70b-mesh": _for("axolotl", LLAMA_70B, replace(MESH, micro_batch_size=1)),
    },
    "trl": {
        "llama-3.1-70b-fsdp": _for("trl", LLAMA_70B, SHARDED),
        "llama-3.1-70b-mesh": _for("trl", LLAMA_70B, MESH),
    },
    "llama-factory-accelerate": {
        "llama-3.1-70b-fsdp": _for("llama-factory-accelerate", LLAMA_70B, SHARDED),
        "llama-3.1-70b-v1": replace(
            _asked(
                _for("llama-factory-accelerate", LLAMA_70B, SHARDED), "bf16", optimizer_kernel="foreach"
            ),
            version="v1",
        ),
    },
    "nanotron": {"llama-3-70b-tensor": _for("nanotron", LLAMA_3_70B, NANOTRON)},
    "maxtext": {
        "llama-3.1-70b-fsdp": _for(
            "maxtext", LLAMA_70B, replace(SHARDED, recompute_granularity="selective", recompute_layers=0)
        ),
        "llama-3.1-70b-stages": _for("maxtext", LLAMA_70B, MAXTEXT_STAGES),
        "llama-3.1-70b-offloaded": _for("maxtext", LLAMA_70B, replace(SHARDED, offload="activations")),
        "mixtral-8x7b-experts": _for("maxtext", MIXTRAL, MAXTEXT_EXPERTS, 4096),
    },
    "ms-swift": {
        "llama-3.1-70b-interleaved": _for("ms-swift", LLAMA_70B, LLAMA_70B_EVEN),
        "llama-3.1-70b-offloaded": _for("ms-swift", LLAMA_70B, LLAMA_70B_OFFLOADED),
        "mixtral-8x7b-experts": _for("ms-swift", MIXTRAL, MIXTRAL_EXPERTS, 4096),
    },
    "llama-factory": {
        "llama-3.1-405b-uneven": _for("llama-factory", LLAMA_405B, LLAMA_405B_UNEVEN),
        "mixtral-8x7b-experts": _for("llama-factory", MIXTRAL, MIXTRAL_EXPERTS, 4096),
    },
    "flagscale": {
        "llama-3.1-405b-uneven": _for("flagscale", LLAMA_405B, LLAMA_405B_UNEVEN),
        "mixtral-8x7b-experts": _for("flagscale", MIXTRAL, MIXTRAL_EXPERTS, 4096),
        "llama-3.1-70b-placed": _on_groups(),
    },
}


# Adapters and 8-bit Adam as people run them on one node.
REPLICAS = Configuration(data_parallel_size=8, num_microbatches=16, stage_layers=(32,))
SHARDS = replace(REPLICAS, zero_stage=3, zero_shard_size=8)
STATES = replace(REPLICAS, zero_stage=1, zero_shard_size=8)
BOTH_MODES = replace(
    STATES, data_parallel_size=1, context_parallel_size=8, num_microbatches=128,
    context_parallel_mode="all_to_all_4+ring",
)  # fmt: skip
WHOLE: dict[str, object] = {"trained_modules": ("embed_tokens", "lm_head")}
RECIPES: tuple[dict[str, object], ...] = tuple(
    {"framework_options": {"precision_recipe": recipe}}
    for recipe in ("fp8-current", "fp8-blockwise", "mxfp8", "nvfp4")
)
LOW: tuple[tuple[Configuration, dict[str, object]], ...] = tuple(
    (STATES, {"precision": "fp8", **options})
    for options in ({}, *RECIPES)  # without one: delayed scaling, which readers do not state either
)
GRAPHS: tuple[tuple[Configuration, dict[str, object]], ...] = tuple(
    (STATES, {"framework_options": {"cuda_graph": scope}}) for scope in ("attn", "full_iteration")
)
LAYERS_AWAY: tuple[Configuration, dict[str, object]] = (
    replace(STATES, offload="activations"),
    {"framework_options": {"offload_layers": 3}},
)
TUNED: dict[str, tuple[tuple[Configuration, dict[str, object]], ...]] = {
    "accelerate": (
        (REPLICAS, {"lora_rank": 16, "lora_targets": ("q_proj", "v_proj"), "base_precision": "nf4"}),
        (REPLICAS, {"lora_rank": 8, "lora_targets": ("o_proj",), "base_precision": "fp32", **WHOLE}),
        (SHARDS, {"lora_rank": 64, "lora_targets": ("q_proj", "down_proj"), "optimizer": "adamw-8bit"}),
        (REPLICAS, {"optimizer": "adamw-8bit"}),
    ),
    "trl": (
        (REPLICAS, {"lora_rank": 16, "lora_targets": ("q_proj", "v_proj"), "base_precision": "nf4"}),
        (REPLICAS, {"lora_rank": 8, "lora_targets": ("o_proj",), "base_precision": "nf4-double"}),
        (REPLICAS, {"lora_rank": 4, "lora_targets": ("down_proj",), "base_precision": "int8"}),
        (SHARDS, {"lora_rank": 64, "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj")}),
        (REPLICAS, {"lora_rank": 16, "lora_targets": ("q_proj",), "base_precision": "fp32", **WHOLE}),
        (REPLICAS, {"lora_rank": 8, "lora_targets": ("q_proj",), "framework_options": DECOMPOSED}),
        (REPLICAS, {"optimizer": "adamw-8bit"}),
        (SHARDS, {"optimizer": "adamw-8bit"}),
        (REPLICAS, {"optimizer": "adamw-8bit-bf16"}),
        (REPLICAS, {"optimizer": "adamw-pure-bf16"}),
        (REPLICAS, {"optimizer": "adamw-paged-bf16"}),
        (replace(REPLICAS, offload="optimizer"), {"optimizer": "adamw-8bit-paged"}),
    ),
    "axolotl": (
        (SHARDS, {"lora_rank": 32, "lora_targets": ("q_proj", "gate_proj", "up_proj", "down_proj")}),
        (SHARDS, {"lora_rank": 32, "lora_targets": ("q_proj",), **WHOLE}),
        (SHARDS, {"lora_rank": 8, "lora_targets": ("q_proj",), "framework_options": DECOMPOSED}),
        (SHARDS, {"optimizer": "adamw-8bit-bf16"}),
        (SHARDS, {"optimizer": "muon-pure-bf16"}),
        (REPLICAS, {"optimizer": "adamw-8bit-paged-bf16"}),
        (SHARDS, {"framework_options": ROUNDED}),
        (SHARDS, {"framework_options": BLOCKS}),
    ),
    "llama-factory-accelerate": (
        (REPLICAS, {"lora_rank": 16, "lora_targets": ("q_proj", "v_proj"), "base_precision": "nf4"}),
        (REPLICAS, {"lora_rank": 8, "lora_targets": ("o_proj",), "base_precision": "nf4-double"}),
        (REPLICAS, {"lora_rank": 4, "lora_targets": ("down_proj",), "base_precision": "int8"}),
        (SHARDS, {"lora_rank": 64, "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj")}),
        (REPLICAS, {"lora_rank": 16, "lora_targets": ("q_proj",), **WHOLE}),
        (REPLICAS, {"lora_rank": 8, "lora_targets": ("q_proj",), "framework_options": DECOMPOSED}),
        (REPLICAS, {"optimizer": "galore-8bit-bf16", "optimizer_rank": 64}),
        (REPLICAS, {"optimizer": "apollo-pure-bf16", "optimizer_rank": 64}),
        (REPLICAS, {"optimizer": "adam-mini"}),
        (REPLICAS, {"optimizer": "adamw-8bit"}),
        (REPLICAS, {"optimizer": "adamw-8bit-bf16"}),
        (REPLICAS, {"optimizer": "adamw-pure-bf16"}),
        (REPLICAS, {"optimizer": "muon"}),
    ),
    "deepspeed": ((SHARDS, {"optimizer": "adamw-pure-bf16"}),),
    "megatron-lm": ((STATES, {"optimizer": "adamw-bf16"}), (BOTH_MODES, {}), *LOW, *GRAPHS, LAYERS_AWAY),
    "megatron-bridge": (
        (STATES, {"optimizer": "adamw-bf16"}), (BOTH_MODES, {}), *LOW, *GRAPHS, LAYERS_AWAY
    ),
    "ms-swift": (
        (STATES, {"optimizer": "adamw-bf16"}),
        (STATES, {"framework_options": {"gradient_dtype": "bf16"}}),
        (REPLICAS, {"lora_rank": 16, "lora_targets": ("linear_qkv", "linear_proj")}),
        (
            replace(REPLICAS, data_parallel_size=4, tensor_parallel_size=2, num_microbatches=32,
                    zero_stage=1, zero_shard_size=4),
            {"lora_rank": 8, "lora_targets": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")},
        ),
    ),
}  # fmt: skip


def tuned(launcher: str) -> Iterator[Target]:
    """Plans of Llama 3.1 8B that train adapters, by 8-bit Adam or in 8 and 4 bits, where there are such."""
    problem = problem_of(launcher, find_model("llama-3.1-8b"), num_nodes=1)
    for config, changes in TUNED.get(launcher, ()):
        workload = replace(problem.workload, **changes)  # type: ignore[arg-type]
        yield Target(plan=plan(config), problem=replace(problem, workload=workload))


# A small Qwen3-VL, and what is frozen of it.
SEEING = model_from_config(
    {
        "model_type": "qwen3_vl",
        "text_config": {
            "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64, "num_hidden_layers": 32,
            "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1024,
        },
        "vision_config": {
            "depth": 3, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4,
            "out_hidden_size": 512, "num_position_embeddings": 64, "deepstack_visual_indexes": [1],
        },
    },
    name="small-qwen3-vl",
)  # fmt: skip
FROZEN: tuple[tuple[FrozenPart, ...], ...] = (
    (), ("vision",), ("projector",), ("vision", "projector"), ("language",), ("vision", "language"),
    ("projector", "language"),
)  # fmt: skip


def with_towers(launcher: str) -> Iterator[Target]:
    """Plans of a model with a tower, of each choice of frozen parts that the launcher has."""
    able = launcher_capabilities(launcher)
    one_size = SequenceLengths(percentiles=((0.0, 64), (100.0, 256)))
    plain = problem_of(launcher, SEEING, num_nodes=1)
    for frozen in FROZEN:
        workload = replace(plain.workload, images_per_sample=2.0, image_tokens=one_size, frozen=frozen)
        problem = replace(plain, workload=workload)
        if not list(problem_faults(problem, able)):
            for kind in ("none", "full") if launcher == "ms-swift" else ("none",):
                layers = 32 if kind == "full" else 0
                config = replace(REPLICAS, recompute_granularity=kind, recompute_layers=layers)
                if launcher == "axolotl":  # which trains fp32 weights on shards alone
                    config = replace(SHARDS, recompute_granularity=kind)
                yield Target(plan=plan(config), problem=problem)


def problem_of(
    launcher: str, model: ModelSpec, *, seq_length: int = 4096, num_nodes: int = 8, batch: int = 128
) -> Problem:
    """A problem on H100 nodes."""
    return Problem(
        model=model,
        cluster=find_cluster("dgx-h100", num_nodes=num_nodes),
        workload=Workload(global_batch_size=batch, seq_length=seq_length),
        launcher=launcher,
    )


def random_targets(problem: Problem, count: int, rng: random.Random) -> Iterator[Target]:
    """Legal rows of the search's own space, drawn at random, each with a split that the launcher takes."""
    if not count or unwritten(problem):  # plans are priced, their files are refused
        return
    rows = enumerate_space(problem, legal_only=True).rows
    drawn = rng.sample(range(len(rows)), min(count, len(rows)))
    columns = rows.take(np.array(drawn, dtype=np.int64))
    for row in range(len(columns)):
        yield target_of_row(problem, columns, row, rng)


def pairs_of(launcher: str) -> list[tuple[Setting, Setting]]:
    """Every two settings of two switches that the launcher takes: the cross product, pair by pair."""
    taken = [
        [one for one in switch.settings if launcher in one.launchers]
        for switch in switches().values()
        if switch.name != "power_limit_w"  # set by no file
    ]
    return [pair for one, other in combinations(taken, 2) for pair in product(one, other)]


def problem_under(plain: Problem, some: Sequence[Setting]) -> Problem:
    """The problem with settings of switches stated, for the configurations that they are about."""
    kinds = tuple(kind for kind in RECOMPUTE if any(kind not in one.recompute for one in some))
    only = tuple({one.only for one in some if one.only})
    options = replace(
        plain.options,
        allow=("offload",),
        forbid={"recompute_granularity": kinds},
        constraints=only,
        pin={"micro_batch_size": 1},
    )
    stated = {name: value for one in some for name, value in one.options.items()}
    return replace(plain, options=options, workload=replace(plain.workload, framework_options=stated))


def legal_targets(problem: Problem) -> list[Target]:
    """A legal row of the problem's space; none where its rules refuse all of them."""
    if list(problem_faults(problem, launcher_capabilities(problem.launcher))):
        return []
    try:
        with_options(framework_facts(framework_of(problem.priced_as)), problem.workload.framework_options)
        return list(random_targets(problem, 1, random.Random(problem.model.name)))
    except InvalidProblemError:
        return []


def target_of_row(problem: Problem, columns: Columns, row: int, rng: random.Random) -> Target:
    """One row, with a split that the launcher takes."""
    chunks = int(columns.pipeline_parallel_size[row] * columns.virtual_pipeline_size[row])
    able = launcher_capabilities(problem.launcher)
    whole = not able.standalone_constraints or int(columns.context_parallel_size[row]) == 1
    split = _split(problem, chunks, rng, alone=whole)
    own = launcher_split(problem, columns.configuration(row, split))
    config = columns.configuration(row, own or split)
    return Target(plan=plan(config), problem=problem)


def _split(problem: Problem, chunks: int, rng: random.Random, *, alone: bool = True) -> list[int]:
    """Any split of at least one layer a chunk, where the launcher takes any; else the even one.

    One in four leaves the embedding and the head alone, where the launcher has such stages.
    """
    layers, able = problem.model.num_layers, launcher_capabilities(problem.launcher)
    if any(able.alone(problem.model)) and alone and chunks > 2 and rng.randrange(4) == 0:
        most = able.alone(problem.model)[1]  # with prediction layers another one, before the head's
        last = rng.randint(1, most) if most > 1 and chunks > most + 1 else 1
        inner = _split(replace(problem, launcher="none"), chunks - 1 - last, rng, alone=False)
        return [0, *inner, *[0] * last]
    if not able.uneven_stages or chunks == layers:
        return [layers // chunks] * chunks
    least = 1 + (layers // chunks - 1) // 2  # recomputed layers of the row fit into most chunks
    rest = layers - least * chunks
    extra = [rng.randrange(chunks) for _ in range(rest)]
    return [least + extra.count(chunk) for chunk in range(chunks)]
