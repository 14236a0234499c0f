"""Illegal plans: each breaks one thing, and says whether the launcher's own parser notices.

The lists are those of the launchers' own sources; that a parser does or does not notice is checked anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from meshwright.launchers.target import Target
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload
from tests.launchers.cases import target
from tests.launchers.plans import CASES

LLAMA = ModelSpec(
    name="small", num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32,
    num_kv_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=131072, rotary_base=500_000,
)  # fmt: skip
EXPERTS = replace(LLAMA, moe=MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=14336))
LEARNED = replace(LLAMA, learned_position_embeddings=True, max_position_embeddings=2048, rotary_base=None)
WIDE = replace(LLAMA, num_attention_heads=96, num_kv_heads=4, head_dim=128)
PLAIN = Configuration(data_parallel_size=8, num_microbatches=4, stage_layers=(32,))
TENSOR = replace(PLAIN, tensor_parallel_size=4, sequence_parallel=True)
STAGES = replace(
    PLAIN, pipeline_parallel_size=4, pipeline_schedule="1f1b", num_microbatches=8, stage_layers=(8,) * 4
)
CHUNKS = replace(
    STAGES, virtual_pipeline_size=2, pipeline_schedule="interleaved_1f1b", stage_layers=(4,) * 8
)
SHARDED = replace(PLAIN, zero_stage=3, zero_shard_size=8)


@dataclass(frozen=True)
class Mutant:
    """One illegal plan of one launcher."""

    name: str
    target: Target
    noticed: bool  # by the launcher's own parser, of every version that is tried
    edit: tuple[str, str] | None = None  # text in the files that our exporter would not write so


def of(
    model: ModelSpec,
    config: Configuration,
    *,
    seq_length: int = 4096,
    per_node: int = 8,
    **workload: object,
) -> Target:
    """A target whose workload differs from the one that its configuration conserves."""
    plain = Workload(global_batch_size=config.global_batch_size, seq_length=seq_length)
    changed = replace(plain, **workload)  # type: ignore[arg-type]
    return target(model, config, workload=changed, gpus_per_node=per_node)


def _batch(config: Configuration) -> Target:
    return of(LLAMA, config, global_batch_size=config.global_batch_size + 1)


def megatron_lm() -> list[Mutant]:
    """What Megatron-LM refuses, fails on later, or never notices."""
    return [*_megatron_lm_notices(), *_megatron_lm_lets_pass(), *_megatron_lm_options()]


def _megatron_lm_options() -> list[Mutant]:
    """Options that contradict the precision, the model or each other."""
    replayed = replace(PLAIN, recompute_granularity="selective")
    whole = replace(PLAIN, recompute_granularity="full", recompute_layers=32)
    sharded = replace(PLAIN, zero_stage=1, zero_shard_size=8)
    ranks = replace(PLAIN, expert_parallel_size=8)
    biased = replace(EXPERTS, qkv_bias=True)
    behind = {"overlap_experts": True, "delay_wgrad": True}
    cases: list[tuple[str, ModelSpec, Configuration, str, dict[str, object], bool]] = [
        ("norms replayed under delayed scaling", LLAMA, replayed, "fp8",
         {"recompute_modules": "layernorm"}, True),
        ("activations of experts replayed under delayed scaling", EXPERTS, replayed, "fp8",
         {"recompute_modules": "moe_act", "precision_recipe": "fp8-delayed"}, True),
        ("activations of no experts replayed", LLAMA, replayed, "bf16",
         {"recompute_modules": "mlp+moe_act"}, True),
        ("projections of no latent attention replayed", LLAMA, replayed, "bf16",
         {"recompute_modules": "mla_up_proj+layernorm"}, True),
        ("no experts replayed", LLAMA, replayed, "bf16", {"recompute_modules": "moe"}, False),
        ("fp16 and gradients in bf16", LLAMA, PLAIN, "fp16", {"gradient_dtype": "bf16"}, False),
        ("bf16 and gradients in fp16", LLAMA, PLAIN, "bf16", {"gradient_dtype": "fp16"}, False),
        ("8-bit weights of bf16 products", LLAMA, sharded, "bf16", {"low_precision_weights": True}, False),
        ("8-bit attention beside bf16 products", LLAMA, PLAIN, "bf16", {"fp8_attention": True}, False),
        ("graphs of no router", LLAMA, PLAIN, "bf16", {"cuda_graph": "attn+moe_router"}, True),
        ("graphs of no experts", LLAMA, PLAIN, "bf16", {"cuda_graph": "attn+moe"}, True),
        ("graphs of no dense MLP", EXPERTS, PLAIN, "bf16", {"cuda_graph": "attn+mlp"}, True),
        ("graphs of uneven experts", EXPERTS, PLAIN, "bf16", {"cuda_graph": "attn+moe"}, True),
        ("graphs of experts that DeepEP leaves unpadded", EXPERTS, ranks, "bf16",
         {"cuda_graph": "attn+moe", "moe_capacity_factor": 1.0, "moe_dispatcher": "deepep"}, True),
        ("a graph of layers with uneven experts", EXPERTS, PLAIN, "bf16", {"cuda_graph": "layer"}, False),
        ("a graph of steps with uneven experts", EXPERTS, PLAIN, "bf16",
         {"cuda_graph": "full_iteration"}, False),
        ("attention replayed in a graph, with dropout", LLAMA, replayed, "bf16",
         {"recompute_modules": "core_attn", "cuda_graph": "attn", "dropout": True}, True),
        ("MLPs replayed in a graph, with dropout", LLAMA, replayed, "bf16",
         {"recompute_modules": "mlp", "cuda_graph": "layer", "dropout": True}, True),
        ("the default modules replayed in a graph, with dropout", LLAMA, replayed, "bf16",
         {"cuda_graph": "layer", "dropout": True}, True),
        ("graphs of parts and full recomputation", LLAMA, whole, "bf16", {"cuda_graph": "layer"}, True),
        ("biased attention in a graph, weight gradients put off", biased, ranks, "bf16",
         {"cuda_graph": "attn", **behind}, True),
        ("states of 8-bit weights on the host", LLAMA, replace(sharded, offload="optimizer"), "fp8",
         {"low_precision_weights": True, "precision_recipe": "fp8-current"}, True),
        ("inputs of no experts on the host", LLAMA, replace(PLAIN, offload="activations"), "bf16",
         {"offload_modules": "moe_act"}, False),
        ("all layers on the host", LLAMA, replace(PLAIN, offload="activations"), "bf16",
         {"offload_layers": LLAMA.num_layers}, True),
        ("replayed layers on the host", LLAMA, replace(replayed, offload="activations"), "bf16",
         {"offload_layers": 3}, True),
        ("layers on the host in graphs of parts", LLAMA, replace(PLAIN, offload="activations"), "bf16",
         {"offload_layers": 3, "cuda_graph": "attn"}, True),
    ]  # fmt: skip
    return [
        Mutant(name, of(model, config, precision=precision, framework_options=options), noticed=noticed)
        for name, model, config, precision, options, noticed in cases
    ]


def _megatron_lm_notices() -> list[Mutant]:
    ring = replace(PLAIN, context_parallel_size=4)
    three = replace(PLAIN, tensor_parallel_size=3, sequence_parallel=True)
    six = replace(PLAIN, tensor_parallel_size=6, sequence_parallel=True)
    alone = replace(CHUNKS, pipeline_parallel_size=1, stage_layers=(16, 16))
    two = replace(CHUNKS, pipeline_parallel_size=2, stage_layers=(8,) * 4)
    return [
        Mutant("batch of a sequence too many", _batch(PLAIN), noticed=True),
        Mutant("30 layers over 4 stages", of(replace(LLAMA, num_layers=30), STAGES), noticed=True),
        Mutant("virtual stages without stages", of(LLAMA, alone), noticed=True),
        Mutant("virtual stages on two ranks without overlapped transfers",
               of(LLAMA, two, framework_options={"overlap_transfer": False}), noticed=True),
        Mutant("odd slices of a sequence", of(LLAMA, ring, seq_length=4100), noticed=True),
        Mutant("heads not divided by tp", of(LLAMA, three), noticed=True),
        Mutant("query groups and tp", of(WIDE, six), noticed=True),
        Mutant("experts not divided by ep",
               of(EXPERTS, replace(PLAIN, expert_parallel_size=3, data_parallel_size=24)), noticed=True),
        Mutant("sequences beyond the learned positions", of(LEARNED, PLAIN), noticed=True,
               edit=("--max-position-embeddings 4096", "--max-position-embeddings 2048")),
        Mutant("experts' ranks without experts", of(LLAMA, replace(PLAIN, expert_parallel_size=2)),
               noticed=True, edit=("--context-parallel-size 1",
                                   "--context-parallel-size 1\n    --expert-model-parallel-size 2")),
        Mutant("a layout with a layer too many", of(LLAMA, replace(STAGES, stage_layers=(9, 8, 8, 8))),
               noticed=True),
    ]  # fmt: skip


def _megatron_lm_lets_pass() -> list[Mutant]:
    block = replace(PLAIN, recompute_granularity="full", recompute_layers=99)
    split = replace(STAGES, expert_parallel_size=8, data_parallel_size=12)
    tensor_experts = replace(TENSOR, sequence_parallel=False, expert_parallel_size=8)
    count = "--recompute-num-layers"
    return [
        Mutant("a stage's layers are lost", of(LLAMA, replace(STAGES, stage_layers=(7,) * 4)),
               noticed=False),
        Mutant("ranks of a stage and experts", of(EXPERTS, split), noticed=False),
        Mutant("MLP not divided by tp", of(replace(LLAMA, ffn_hidden_size=14338), TENSOR), noticed=False),
        Mutant("micro-batches and groups", of(LLAMA, replace(CHUNKS, num_microbatches=6)), noticed=False),
        Mutant("experts and tp without sequence parallelism", of(EXPERTS, tensor_experts), noticed=False),
        Mutant("sequence not divided by tp", of(LLAMA, TENSOR, seq_length=4098), noticed=False),
        Mutant("states on the host without the distributed optimizer",
               of(LLAMA, replace(PLAIN, offload="optimizer")), noticed=False),
        Mutant("an empty stage", of(LLAMA, replace(STAGES, stage_layers=(11, 0, 11, 10))), noticed=False),
        Mutant("a layout of twice the stages", of(LLAMA, replace(STAGES, stage_layers=(3, *(4,) * 6, 5))),
               noticed=False),
        Mutant("tensor ranks across nodes", of(LLAMA, TENSOR, per_node=2), noticed=False),
        Mutant("more recomputed layers than a chunk has", of(LLAMA, block), noticed=False,
               edit=(f"uniform\n    {count} 1", f"block\n    {count} 99")),
    ]  # fmt: skip


def deepspeed() -> list[Mutant]:
    """What DeepSpeed's configuration refuses or never notices."""
    two = replace(PLAIN, zero_stage=2, zero_shard_size=8)
    return [
        Mutant("batch of a sequence too many", _batch(PLAIN), noticed=True),
        Mutant("a fourth ZeRO stage", of(LLAMA, replace(SHARDED, zero_stage=4)), noticed=True),
        Mutant("a negative ZeRO stage", of(LLAMA, replace(SHARDED, zero_stage=-1)), noticed=True),
        Mutant("stages beside ZeRO-2", of(LLAMA, replace(STAGES, zero_stage=2, zero_shard_size=8)),
               noticed=False),
        Mutant("uneven stages", of(LLAMA, replace(STAGES, stage_layers=(9, 8, 8, 7))), noticed=False),
        Mutant("tensor ranks beside stages", of(LLAMA, replace(STAGES, tensor_parallel_size=2)),
               noticed=False),
        Mutant("rings", of(LLAMA, replace(two, context_parallel_size=2, zero_shard_size=16)), noticed=True),
        Mutant("ZeRO in fp32", of(LLAMA, two, precision="fp32"), noticed=False),
        Mutant("experts over too few ranks", of(EXPERTS, replace(two, expert_parallel_size=16)),
               noticed=False),
        Mutant("shards of half the ranks", of(LLAMA, replace(two, zero_shard_size=4)), noticed=False),
    ]  # fmt: skip


def torchtitan() -> list[Mutant]:
    """What both versions of torchtitan refuse or never notice."""
    titan = replace(STAGES, zero_stage=2, zero_shard_size=8)
    mesh = replace(SHARDED, tensor_parallel_size=4, sequence_parallel=True, context_parallel_size=2,
                   zero_shard_size=16)  # fmt: skip
    return [
        Mutant("shards that do not divide the ranks", of(LLAMA, replace(SHARDED, zero_shard_size=3)),
               noticed=True),
        Mutant("a mesh of fewer ranks", of(LLAMA, replace(SHARDED, zero_shard_size=5)), noticed=True),
        Mutant("batch of a sequence too many", _batch(SHARDED), noticed=False),
        Mutant("sequence not divided by tp and slices", of(LLAMA, mesh, seq_length=4104), noticed=False),
        Mutant("a layer dropped", of(LLAMA, replace(titan, stage_layers=(8, 8, 8, 7))), noticed=False),
        Mutant("a layer too many", of(LLAMA, replace(titan, stage_layers=(8, 8, 8, 9))), noticed=False),
        Mutant("fewer micro-batches than stages", of(LLAMA, replace(titan, num_microbatches=2)),
               noticed=False),
        Mutant("experts' ranks in a dense model", of(LLAMA, replace(SHARDED, expert_parallel_size=3)),
               noticed=False),
    ]  # fmt: skip


def maxtext() -> list[Mutant]:
    """What MaxText's parser refuses or never notices."""
    shards = replace(SHARDED, recompute_granularity="full", recompute_layers=32)
    stages = replace(STAGES, pipeline_schedule="gpipe", recompute_granularity="full", recompute_layers=32)
    return [
        Mutant("shards that do not divide the ranks", of(LLAMA, replace(shards, zero_shard_size=3)),
               noticed=True),
        Mutant("fewer micro-batches than stages", of(LLAMA, replace(stages, num_microbatches=2)),
               noticed=True),
        Mutant("a layer dropped", of(LLAMA, replace(stages, stage_layers=(8, 8, 8, 7))), noticed=False),
        Mutant("batch of a sequence too many", _batch(shards), noticed=False),
        Mutant("experts' ranks in a dense model", of(LLAMA, replace(shards, expert_parallel_size=8)),
               noticed=False),
        Mutant("nothing replayed", of(LLAMA, SHARDED), noticed=False),
        Mutant("key heads that tensor ranks do not divide",
               of(WIDE, replace(shards, tensor_parallel_size=8, sequence_parallel=True)), noticed=False),
    ]  # fmt: skip


def accelerate() -> list[Mutant]:
    """What accelerate refuses or never notices."""
    two = replace(SHARDED, tensor_parallel_size=2)
    return [
        Mutant("tensor ranks beside plain replicas", of(LLAMA, replace(two, zero_shard_size=1)),
               noticed=True),
        Mutant("an unknown precision", of(LLAMA, SHARDED, precision="fp9"), noticed=True),
        Mutant("ranks that are in no mesh", of(LLAMA, replace(SHARDED, zero_shard_size=3)), noticed=False),
        Mutant("stages", of(LLAMA, replace(STAGES, zero_stage=3, zero_shard_size=8)), noticed=False),
        Mutant("experts' ranks", of(EXPERTS, replace(SHARDED, expert_parallel_size=8)), noticed=False),
        Mutant("selective recomputation", of(LLAMA, replace(SHARDED, recompute_granularity="selective")),
               noticed=False),
        Mutant("batch of a sequence too many", _batch(SHARDED), noticed=False),
    ]  # fmt: skip


def axolotl() -> list[Mutant]:
    """What Axolotl refuses or never notices."""
    ring = replace(SHARDED, context_parallel_size=2, zero_shard_size=16)
    return [
        Mutant("rings of packed batches", of(LLAMA, replace(ring, micro_batch_size=2)), noticed=True),
        Mutant("stages", of(LLAMA, replace(STAGES, zero_stage=3, zero_shard_size=8)), noticed=False),
        Mutant("experts' ranks", of(EXPERTS, replace(SHARDED, expert_parallel_size=8)), noticed=False),
    ]


def trl() -> list[Mutant]:
    """What TRL leaves to accelerate."""
    return [one for one in accelerate() if one.name in ("an unknown precision", "stages")]


def megatron_bridge() -> list[Mutant]:
    """Those of Megatron-LM without an edit of its flags; it looks at fewer things before it builds."""
    noticed = ("batch of a sequence too many", "odd slices of a sequence", "heads not divided by tp",
               "query groups and tp", "a layout with a layer too many",
               "states on the host without the distributed optimizer")  # fmt: skip
    plain = [one for one in (*_megatron_lm_notices(), *_megatron_lm_lets_pass()) if one.edit is None]
    return [replace(one, noticed=one.name in noticed) for one in plain]


def ms_swift() -> list[Mutant]:
    """What ms-swift's arguments refuse before Megatron-Core sees them."""
    stages = replace(STAGES, tensor_parallel_size=2, sequence_parallel=True)
    return [
        Mutant("batch of a sequence too many", _batch(PLAIN), noticed=True),
        Mutant("heads not divided by tp",
               of(LLAMA, replace(PLAIN, tensor_parallel_size=3, sequence_parallel=True)), noticed=False),
        Mutant("a stage's layers are lost", of(LLAMA, replace(stages, stage_layers=(7,) * 4)),
               noticed=False),
        Mutant("experts not divided by ep",
               of(EXPERTS, replace(PLAIN, expert_parallel_size=3, data_parallel_size=24)), noticed=False),
    ]  # fmt: skip


def llama_factory() -> list[Mutant]:
    """What its adapter's configuration refuses."""
    return [replace(one, noticed=one.name == "heads not divided by tp") for one in ms_swift()]


def flagscale() -> list[Mutant]:
    """Process meshes that FlagScale's own checks refuse, or number otherwise than was planned."""
    placed = CASES["flagscale"]["llama-3.1-70b-placed"]
    config, model = placed.config, placed.model
    old, new = config.stage_groups[0], config.stage_groups[-1]
    tied = replace(placed, problem=replace(placed.problem, model=replace(model, tied_embeddings=True)))

    def on(**changes: object) -> Target:
        return replace(placed, plan=replace(placed.plan, config=replace(config, **changes)))  # type: ignore[arg-type]

    return [
        Mutant("a layer too few", on(stage_layers=(26, 27, 26)), noticed=True),
        Mutant("tied ends of unlike tensor-parallel sizes", tied, noticed=True),
        Mutant(
            "a device type in two places of the pipeline", on(stage_groups=(old, new, old)), noticed=True
        ),
    ]


MUTANTS: Mapping[str, Callable[[], list[Mutant]]] = {
    "megatron-lm": megatron_lm,
    "megatron-bridge": megatron_bridge,
    "ms-swift": ms_swift,
    "llama-factory": llama_factory,
    "deepspeed": deepspeed,
    "torchtitan": torchtitan,
    "maxtext": maxtext,
    "accelerate": accelerate,
    "axolotl": axolotl,
    "trl": trl,
    "flagscale": flagscale,
    "llama-factory-accelerate": trl,
}
