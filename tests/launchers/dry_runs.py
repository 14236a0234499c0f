"""Plans that launchers build rank by rank without a GPU: layers and weights must be those we priced.

Every pipeline rank is built, and the last rank of all. Sizes are chosen to divide: where a vocabulary does
not, both sides pad it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.launchers.target import Target
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.service.verify.priced import rank_kinds, rank_layers, rank_matrices, rank_weights
from meshwright.solver.configuration import Configuration
from tests.launchers.cases import CASES, DEEPSEEK_V3, GPT3_175B, MIXTRAL, target
from tests.launchers.mutants import CHUNKS, LLAMA, SHARDED, STAGES, TENSOR
from tests.launchers.plans import CASES as OTHER_CASES

REAL_CONFIGS = Path(__file__).parents[1] / "unit" / "profiles" / "fixtures" / "real-configs.json"
TIED = replace(
    GPT3_175B, name="small-tied", num_layers=30, hidden_size=1024, ffn_hidden_size=4096,
    num_attention_heads=16, num_kv_heads=16, head_dim=64, vocab_size=50257,
)  # fmt: skip
SIXTEEN = MoeSpec(
    num_experts=16, top_k=4, ffn_hidden_size=1408, num_shared_experts=2, shared_ffn_hidden_size=2816,
    num_dense_layers=2,
)  # fmt: skip
SHARED = replace(
    MIXTRAL, name="small-experts", num_layers=14, num_kv_heads=4, tied_embeddings=True, moe=SIXTEEN
)


@dataclass(frozen=True)
class DryRun:
    """One plan, and how many ranks share a stage's weights beyond what the model splits."""

    name: str
    target: Target
    shards: int | None = 1  # None: they may share unevenly, which the judge has undone

    ends: bool = False  # of the stages only the first and the last are built

    def ranks(self) -> list[int]:
        """A rank of every pipeline stage, and the last of all."""
        config = self.target.config
        step = config.num_gpus // config.pipeline_parallel_size
        if config.rank_order == "tp-cp-pp-dp":
            step = config.tensor_parallel_size * config.context_parallel_size
        stages = (0,) if self.ends else range(config.pipeline_parallel_size)
        return [*dict.fromkeys([*(stage * step for stage in stages), config.num_gpus - 1])]


def megatron_lm() -> list[DryRun]:
    """Uneven, interleaved, tied, padded, with experts, their own tensor ranks, and without stages.

    Plans whose data-parallel ranks share weights are left out: Transformer Engine cuts those weights, and
    without it and a GPU the launcher builds them whole (core/tensor_parallel/gtp_api.py, HAVE_GTP).
    """
    uneven = replace(STAGES, tensor_parallel_size=4, sequence_parallel=True, stage_layers=(7, 8, 8, 7))
    three = replace(CHUNKS, virtual_pipeline_size=3, pipeline_parallel_size=2,
                    stage_layers=(4, 5, 5, 5, 6, 5), tensor_parallel_size=2)  # fmt: skip
    experts = replace(STAGES, pipeline_parallel_size=2, tensor_parallel_size=4, sequence_parallel=True,
                      expert_parallel_size=4, expert_tensor_parallel_size=2,
                      stage_layers=(8, 6))  # fmt: skip
    wide = replace(TENSOR, tensor_parallel_size=8)
    whole = {name: one for name, one in CASES.items() if one.config.weight_shard_size == 1}
    found = {
        **whole,
        "tied and uneven": target(TIED, uneven, seq_length=2048),
        "tied and interleaved": target(TIED, three, seq_length=2048),
        "tied on one stage": target(TIED, replace(TENSOR, stage_layers=(30,)), seq_length=2048),
        "experts with tensor ranks": target(SHARED, experts, seq_length=4096),
        "fewer key heads than tensor ranks": target(replace(LLAMA, num_kv_heads=4), wide, seq_length=4096),
    }
    return [*(DryRun(name, one) for name, one in found.items()), *real_models(), *hybrids()]


def hybrids() -> Iterator[DryRun]:
    """Published patterns of Mamba 2, attention, MLPs and experts: alone, on tensor ranks and on stages."""
    configs = {one["name"]: one["config"] for one in json.loads(REAL_CONFIGS.read_text("utf-8"))}
    tensor = replace(TENSOR, tensor_parallel_size=4)
    for name in ("nemotron-3-nano-30b-a3b", "nemotron-h-56b"):
        model = model_from_config(configs[name], name=name)
        layers, experts = model.num_layers, model.moe is not None
        uneven = (layers // 2 - 3, layers - layers // 2 + 3)
        for kind, config in (
            ("on one rank", Configuration(num_microbatches=8, stage_layers=(layers,))),
            ("on tensor ranks", replace(tensor, stage_layers=(layers,))),
            ("on stages", replace(STAGES, pipeline_parallel_size=2, stage_layers=uneven,
                                  expert_parallel_size=4 if experts else 1)),
        ):  # fmt: skip
            yield DryRun(f"{name} {kind}", target(model, config, seq_length=4096))


def real_models() -> Iterator[DryRun]:
    """Published models on one rank a stage: the whole count, which ``transformers`` counted too."""
    alone = Configuration(num_microbatches=8, stage_layers=(1,))
    for name in (
        "qwen3-8b",
        "qwen3-30b-a3b",
        "qwen2.5-7b",
        "llama-3.2-1b",
        "glm-4.5-air",
        "llama-3.1-8b",
        "gpt-oss-20b",
    ):
        model = find_model(name)
        yield DryRun(name, target(model, replace(alone, stage_layers=(model.num_layers,)), seq_length=4096))


def torchtitan() -> list[DryRun]:
    """Tensor ranks and stages, chunks uneven; every ZeRO stage, replicas beside shards."""
    return [
        DryRun("stages", _titan(STAGES, zero_stage=3, zero_shard_size=8, stage_layers=(7, 8, 9, 8)),
               shards=8),
        DryRun("tensor ranks", _titan(TENSOR, zero_stage=2, zero_shard_size=8), shards=8),
        DryRun("replicas of shards", _titan(SHARDED, zero_shard_size=4), shards=4),
        DryRun(
            "chunks, tensor ranks and shards",
            _titan(CHUNKS, tensor_parallel_size=2, sequence_parallel=True, zero_stage=3, zero_shard_size=4,
                   stage_layers=(3, 4, 4, 4, 5, 4, 4, 4)),
            shards=4,
        ),
        DryRun("both ends on one rank", _titan(CHUNKS, zero_stage=2, zero_shard_size=8,
                                                pipeline_schedule="zb_v"), shards=8),
        DryRun("rings", OTHER_CASES["torchtitan"]["llama-3.1-70b-stages"], shards=4),
        *_titan_experts(),
    ]  # fmt: skip


def _titan_experts() -> Iterator[DryRun]:
    """Experts over shards, over tensor ranks too, split by these, over stages, with latent attention.

    Which ranks share which weights is the judge's to undo: experts have shard sets of their own.
    """
    experts = replace(SHARED, tied_embeddings=False)
    alone = replace(SHARDED, zero_shard_size=8, data_parallel_size=8, stage_layers=(14,))
    tensor = replace(alone, tensor_parallel_size=2, sequence_parallel=True)
    stages = replace(STAGES, pipeline_parallel_size=2, zero_stage=2, zero_shard_size=8, stage_layers=(8, 6))
    grouped = replace(
        SIXTEEN, router_score="sigmoid", selection_bias=True, router_groups=4, router_top_groups=2
    )
    latent = replace(
        DEEPSEEK_V3, num_layers=4, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16,
        num_kv_heads=16, vocab_size=4096, moe=grouped,
    )  # fmt: skip
    for name, model, config in (
        ("experts over shards", experts, replace(alone, expert_parallel_size=4)),
        ("experts over shards and tensor ranks", experts, replace(tensor, expert_parallel_size=8)),
        ("experts split by tensor ranks", SHARED, replace(tensor, expert_tensor_parallel_size=2)),
        ("experts on stages", experts, replace(stages, expert_parallel_size=2)),
        ("fewer experts than shards", replace(experts, moe=replace(SIXTEEN, num_experts=4)),
         replace(tensor, expert_parallel_size=2)),
        ("latent attention", latent, replace(alone, expert_parallel_size=8, stage_layers=(4,))),
        ("latent attention on tensor ranks", replace(latent, num_mtp_layers=0),
         replace(tensor, expert_parallel_size=2, stage_layers=(4,))),
    ):  # fmt: skip
        yield DryRun(name, _titan(config, model), shards=None)


def _titan(config: Configuration, model: ModelSpec = LLAMA, **changes: object) -> Target:
    changed = replace(config, **changes)  # type: ignore[arg-type]
    found = target(model, changed, seq_length=4096)
    return replace(found, problem=replace(found.problem, launcher="torchtitan"))


def unlike(run: DryRun, seen: Mapping[str, list[dict[str, object]]]) -> Iterator[str]:
    """Ranks whose layers or weights are not those we priced."""
    layers, weights = rank_layers(run.target), rank_weights(run.target)
    shapes: dict[str, Sequence[object]] = {
        "kinds": rank_kinds(run.target),
        "matrices": rank_matrices(run.target),
    }
    if run.target.model.num_kv_heads < run.target.config.tensor_parallel_size:
        del shapes["matrices"]  # Megatron-LM's ranks then hold parts of heads, and gather what they yield
    shapes["whole_matrices"] = rank_matrices(run.target, whole=True)
    for rank, found in zip(run.ranks(), seen["ranks"], strict=True):
        stage = int(str(found["stage"]))
        if found["layers"] != layers[stage]:
            yield f"rank {rank}: layers {found['layers']} instead of {layers[stage]}"
        held = found["unsharded" if run.shards is None else "weights"]
        wanted = weights[stage] / (run.shards or 1)
        if held != wanted:
            yield f"rank {rank}: {held} weights instead of {wanted}"
        for name, stages in shapes.items():
            if name in found and found[name] != stages[stage]:
                yield f"rank {rank}: {name} {found[name]} instead of {stages[stage]}"


DRY_RUNS: Mapping[str, tuple[str, Callable[[], list[DryRun]]]] = {
    "megatron-lm": ("megatron_lm_ranks", megatron_lm),
    "torchtitan-0.3": ("torchtitan_ranks", torchtitan),
}
