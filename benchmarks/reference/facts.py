"""docs/reference/facts.md: every fact of a model, what it is priced in, and which launch file states it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from itertools import islice
from typing import Any

from benchmarks.reference.models import STATED
from meshwright.profiles.adapters import SINGLE_TARGETS, adapter_parameters
from meshwright.profiles.capabilities import (
    TOWER,
    fact_sources,
    launcher_capabilities,
    launchers_of,
    model_facts,
)
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_families import families
from meshwright.profiles.library import find_cluster
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import IndexerSpec, MlaSpec, MoeSpec, StreamsSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload

# Facts that no type's class has by default, but configs state.
_SWITCHED: tuple[dict[str, object], ...] = (
    {"model_type": "nemotron_h", "moe_latent_size": 1024},
    {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 0, 1]},
    {"model_type": "minimax_m3_vl_text", "layer_types": ["full_attention", "minimax_m3_sparse"] * 30},
    {"model_type": "phimoe", "attention_bias": True, "lm_head_bias": True},
    {"model_type": "bloom"},
    {"model_type": "baichuan", "vocab_size": 125_696},
    {"model_type": "llama4_text", "interleave_moe_layer_step": 2},
    {"model_type": "deepseek_v2", "mlp_bias": True},
    {"model_type": "llama", "max_position_embeddings": 4096},
    {"model_type": "opt", "word_embed_proj_dim": 512},
    {"model_type": "cohere", "use_qk_norm": True},
    {"model_type": "olmo", "clip_qkv": 8.0},
    {"model_type": "qwen2", "num_hidden_layers": 4, "use_sliding_window": True, "max_window_layers": 2},
    {"model_type": "qwen3_moe", "mlp_only_layers": [5]},
    {"model_type": "deepseek_v3", "attention_bias": True, "num_nextn_predict_layers": 1},
    {"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
                                             "original_max_position_embeddings": 8192}},
    {"model_type": "minimax_m3_vl_text", "swiglu_limit": 7.0},
    {"model_type": "glm_moe_dsa", "index_topk_freq": 4},
    {"model_type": "gemma4_text", "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 8,
     "top_k_experts": 2, "moe_intermediate_size": 512},
    {"model_type": "gemma4_text", "num_hidden_layers": 24, "num_kv_shared_layers": 6,
     "use_double_wide_mlp": True, "vocab_size_per_layer_input": 1024},
    {"model_type": "internvl", "text_config": {"model_type": "qwen2"}, "vision_config": {}},
)  # fmt: skip
# What goes with a fact and cannot stay without it.
TOGETHER: Mapping[str, Mapping[str, object]] = {
    "num_shared_experts": {"shared_ffn_hidden_size": 0, "shared_expert_gate": False, "norms_apart": False},
    "shared_ffn_hidden_size": {"num_shared_experts": 0, "shared_expert_gate": False, "norms_apart": False},
    "sliding_window": {"local_attention": None},
    "borrowing_layers": {"borrowing_ffn_hidden_size": None},
    "router_groups": {"router_top_groups": 0},
    "rotary_scaling": {"rotary_local_base": None},
}
# causal: of a tower alone; block_size: of another attention; stored_as: a plan's weights have 16 bits
_NOT_FACTS = ("name", "source", "display_name", "stored_as", "layer_names", "mla", "causal", "block_size")
_PARTS: tuple[tuple[str, type], ...] = (
    ("", ModelSpec), ("moe", MoeSpec), ("mla", MlaSpec), ("indexer", IndexerSpec),
    ("streams", StreamsSpec),
)  # fmt: skip
_SEQUENCE = 32_768  # beyond every window
_TRIED = 4  # models that have a fact, until one shows it in a figure

_HEAD = """\
# Facts of a model

Run `make reference` to make this page from code. A model is a list of facts (`profiles/model.py`,
`profiles/model_parts.py`). Your [config](models.md) states some of them.

## What each is priced in

For each row, a fact is removed from a model that has it, and both models are counted and priced on one
DGX H100 (sequences of 32 768 tokens). You see ✓ where the figure moves. Adapters are on every linear layer.
A fact that moves no figure changes the launch files. A launcher that cannot state it refuses your model in
the words of the last column.

| fact | parameters | of adapters | FLOPs | time | memory | what launchers are told |
|---|---|---|---|---|---|---|
"""
_LAUNCHERS = """
## Which launch file states it

You see the source that states the fact if the launcher has it. *Script* means that your script builds the
model. Elsewhere the fact is **refused** by this name. Every launch file states sizes, the base of rotary
positions and the epsilon of norms.

"""


@dataclass(frozen=True)
class _Price:
    """What a fact may move."""

    parameters: int
    adapters: int
    flops: float
    time_s: float
    memory_bytes: float
    words: frozenset[str]


def facts_page() -> str:
    """The page."""
    lines = [_row(part, name, default) for part, name, default in _facts()]
    launchers = list(launchers_of("any"))
    table = ["| fact | " + " | ".join(launchers) + " |", "|---|" + "---|" * len(launchers)]
    sources = {launcher: fact_sources(launcher) for launcher in launchers}
    for name in sorted(
        {name for model in _models() for name in model_facts(model)}.union(*sources.values())
    ):
        if name != "any":
            cells = [_cell(sources[launcher], name) for launcher in launchers]
            if name == TOWER:
                cells = ["✓" if launcher_capabilities(one).towers else "**refused**" for one in launchers]
            table.append(f"| {name} | " + " | ".join(cells) + " |")
    return _HEAD + "\n".join(lines) + "\n" + _LAUNCHERS + "\n".join(table) + "\n"


def _cell(sources: Mapping[str, str], name: str) -> str:
    if "any" in sources:
        return "*script*"
    return sources[name].replace("|", "\\|") if name in sources else "**refused**"


def _facts() -> Iterator[tuple[str, str, object]]:
    """Part, name and plain value of every fact."""
    for part, of in _PARTS:
        for field in fields(of):
            if field.default is not MISSING and field.name not in _NOT_FACTS:
                yield part, field.name, field.default


@cache
def _models() -> tuple[ModelSpec, ...]:
    """A model of every type as its class has it, and some with switches."""
    plain = [{"model_type": name, **STATED.get(name, {})} for name in families()]
    return tuple(model_from_config({**STATED.get(str(one["model_type"]), {}), **one}, name="x")
                 for one in (*_SWITCHED, *plain))  # fmt: skip


def _row(part: str, name: str, default: object) -> str:
    """What the first model shows that has the fact, beside the same without."""
    title, shown = f"`{part}.{name}`" if part else f"`{name}`", ""
    pairs = ((model, removed(model, part, name, default)) for model in _models())
    for model, without in islice(((one, other) for one, other in pairs if other), _TRIED):
        own, other = _price(model), _price(without)
        figures = ("parameters", "adapters", "flops", "time_s", "memory_bytes")
        moved = ["✓" if getattr(own, one) != getattr(other, one) else "" for one in figures]
        words = "; ".join(sorted(own.words ^ other.words))
        shown = f"| {title} | " + " | ".join(moved) + f" | {words} |"
        if any(moved):
            break
    return shown or f"| {title} |  |  |  |  |  | *stated by launch files, not by configs* |"


def removed(model: ModelSpec, part: str, name: str, default: object) -> ModelSpec | None:
    """The model without the fact; None where it has none, or cannot be without it."""
    holder: Any = getattr(model, part) if part else model
    if holder is None or getattr(holder, name) == default:
        return None
    try:
        changed = replace(holder, **{name: default, **TOGETHER.get(name, {})})
        return replace(model, **{part: changed}) if part else changed
    except InvalidProblemError:
        return None


def _price(model: ModelSpec) -> _Price:
    """Counts, and a step of eight replicas of the model's first layers."""
    cluster = find_cluster("dgx-h100", num_nodes=1)
    workload = Workload(global_batch_size=8, seq_length=_SEQUENCE)
    problem = Problem(model=model, cluster=cluster, workload=workload, launcher="none")
    alone = Configuration(data_parallel_size=8, num_microbatches=1, stage_layers=(model.num_layers,))
    found = predict(problem, default_profile(cluster, "none"), alone)
    return _Price(
        parameters=model.num_parameters() + model.mtp_parameters(),
        adapters=adapter_parameters(model, 8, SINGLE_TARGETS),
        flops=model.model_flops_per_token(_SEQUENCE),
        time_s=found.step_time_s,
        memory_bytes=found.peak_memory_bytes,
        words=model_facts(model),
    )
