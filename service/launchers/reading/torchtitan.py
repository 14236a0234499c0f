"""Reads configurations of torchtitan: TOML for 0.2, a Python module for 0.3, which is never run.

Names and defaults: torchtitan 0.2.2, config/job_config.py; 0.3.0, config/configs.py and trainer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.profiles.documents import shown
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_from_shape
from meshwright.service.launchers.reading.base import LaunchFile, Source, Told, refused
from meshwright.service.launchers.reading.commands import script_of
from meshwright.service.launchers.reading.documents import Found, document_of, looks_like_document
from meshwright.service.launchers.reading.fields import Fields
from meshwright.service.launchers.reading.known import Known, known_of
from meshwright.service.launchers.reading.python_values import (
    SHAPE,
    flavor_values,
    looks_like_module,
    module_values,
)
from meshwright.service.launchers.reading.split import divided, first_larger
from meshwright.service.launchers.rules import near_divisors, near_multiples
from meshwright.service.launchers.torchtitan import FLAVOR_FILE, SCHEDULES
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload

# --------------------------------------------------------------------------------------------------
# Flags of a torchtitan command, which count before its configuration: ``--training.seq_len 8192``.


_RECOMPUTE = "activation-checkpoint:"
_SECTIONS = ("parallelism", "training", "activation_checkpoint", "optimizer", "model")


def overrides(known: Known) -> dict[str, Found]:
    """Values by dotted name, of the commands in the scripts beside the configuration; the last counts."""
    found: dict[str, Found] = {}
    for source in known.source.scripts():
        for words in script_of(source, known.told).commands:
            texts = [word.text for word in words]
            found |= {name: Found(text, words[at].line) for at, name, text in _flags(texts)}
    return found


def _flags(texts: list[str]) -> Iterator[tuple[int, str, str]]:
    """Place, name and value of each flag with a section."""
    for at, text in enumerate(texts):
        if text.startswith(_RECOMPUTE):  # 0.3: activation-checkpoint:full
            yield at, "activation_checkpoint.mode", text.removeprefix(_RECOMPUTE)
        name, equals, value = text.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        section, dot, _ = name.partition(".")
        if text.startswith("--") and dot and section in _SECTIONS:
            following = texts[at + 1] if at + 1 < len(texts) else "--"
            yield at, name, value if equals else "true" if following.startswith("--") else following


def over(values: dict[str, Found], known: Known) -> tuple[dict[str, Found], list[str]]:
    """The configuration's values with the command's over them, and what that changed."""
    given = overrides(known)
    notes = [
        f"line {found.line} of the command: {shown(name)} is {shown(str(found.value))}, not the file's"
        for name, found in given.items()
        if name not in values or str(values[name].value).lower() != str(found.value).lower()
    ]
    return values | given, notes


# --------------------------------------------------------------------------------------------------
# The model of a torchtitan configuration: a flavor of its own, one beside the file, or a told one.


# torchtitan 0.2.2 and 0.3.0, models/llama3/__init__.py.
_Shape = dict[str, object]
_FLAVORS = {"8B": "llama-3.1-8b", "70B": "llama-3.1-70b", "405B": "llama-3.1-405b"}


def _qwen3(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, *, tied: bool = False) -> _Shape:
    """A dense Qwen3 of torchtitan 0.2.2, models/qwen3/__init__.py."""
    return {
        "hidden_size": hidden, "num_layers": layers, "num_attention_heads": heads, "num_kv_heads": kv_heads,
        "ffn_hidden_size": ffn, "head_dim": 128, "vocab_size": 151_936, "rotary_base": 1_000_000,
        "query_key_norm": "per_head", "norm_epsilon": 1e-6, "tied_embeddings": tied,
        "max_position_embeddings": 40_960,
    }  # fmt: skip


def _deepseek(sizes: tuple[int, int, int, int], moe: _Shape, *, q_rank: int, vocabulary: int) -> _Shape:
    """A DeepSeek of torchtitan 0.2.2, models/deepseek_v3/__init__.py: hidden, layers, heads, width."""
    hidden, layers, heads, ffn = sizes
    return {
        "hidden_size": hidden, "num_layers": layers, "num_attention_heads": heads, "ffn_hidden_size": ffn,
        "vocab_size": vocabulary, "rotary_base": 10_000, "norm_epsilon": 1e-6, "moe": moe,
        "max_position_embeddings": 16_384,
        "mla": {
            "q_lora_rank": q_rank, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
    }  # fmt: skip


_SHAPES: dict[tuple[str, str], _Shape] = {
    ("llama3", "debugmodel"): {
        "hidden_size": 256, "num_layers": 6, "num_attention_heads": 16, "ffn_hidden_size": 768,
        "vocab_size": 2048, "rotary_base": 500_000, "norm_epsilon": 1e-5,
        "max_position_embeddings": 131_072,
    },
    ("qwen3", "0.6B"): _qwen3(1024, 28, 16, 8, 3072, tied=True),
    ("qwen3", "1.7B"): _qwen3(2048, 28, 16, 8, 6144, tied=True),
    ("qwen3", "4B"): _qwen3(2560, 36, 32, 8, 9728, tied=True),
    ("qwen3", "8B"): _qwen3(4096, 36, 32, 8, 12_288),
    ("qwen3", "14B"): _qwen3(5120, 40, 40, 8, 17_408),
    ("qwen3", "32B"): _qwen3(5120, 64, 64, 8, 25_600),
    ("qwen3", "30B-A3B"): _qwen3(2048, 48, 32, 4, 6144)
    | {"moe": {"num_experts": 128, "top_k": 8, "ffn_hidden_size": 768}},
    ("qwen3", "235B-A22B"): _qwen3(4096, 94, 64, 4, 12_288)
    | {"moe": {"num_experts": 128, "top_k": 8, "ffn_hidden_size": 1536}},
    ("deepseek_v3", "16B"): _deepseek(
        (2048, 27, 16, 10_944),
        {"num_experts": 64, "top_k": 6, "ffn_hidden_size": 1408, "num_shared_experts": 2,
         "shared_ffn_hidden_size": 2816, "num_dense_layers": 1, "normalized_top_k": False},
        q_rank=0, vocabulary=102_400,
    ),
    ("deepseek_v3", "236B"): _deepseek(
        (5120, 60, 128, 12_288),
        {"num_experts": 160, "top_k": 6, "ffn_hidden_size": 1536, "num_shared_experts": 2,
         "shared_ffn_hidden_size": 3072, "num_dense_layers": 1, "normalized_top_k": False,
         "router_groups": 8, "router_top_groups": 3, "router_scaling": 16.0},
        q_rank=1536, vocabulary=102_400,
    ),
    ("deepseek_v3", "671B"): _deepseek(
        (7168, 61, 128, 18_432),
        {"num_experts": 256, "top_k": 8, "ffn_hidden_size": 2048, "num_shared_experts": 1,
         "shared_ffn_hidden_size": 2048, "num_dense_layers": 3, "router_score": "sigmoid",
         "router_groups": 8, "router_top_groups": 4, "router_scaling": 2.5, "selection_bias": True},
        q_rank=1536, vocabulary=129_280,
    ),
}  # fmt: skip
_NEEDED = {
    "dim": "hidden_size", "n_layers": "num_layers", "n_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
}  # fmt: skip
_MAX_FACTOR = 1_000_000.0


def model_of(fields: Fields, known: Known) -> ModelSpec:
    """The model.

    Raises:
        InvalidProblemError: neither the files nor anybody names one that is known.
    """
    flavor = fields.word("model.flavor") if fields.has("model.flavor") else ""
    fields.word("model.name")
    if known.told.model is not None:
        return known.told.model
    if fields.has(f"{SHAPE}dim"):
        return _shape(fields)
    if FLAVOR_FILE in known.source.files:
        text = known.source.files[FLAVOR_FILE]
        return _shape(Fields(FLAVOR_FILE, flavor_values(FLAVOR_FILE, text)))
    name = fields.word("model.name", "llama3")
    if name == "llama3" and flavor in _FLAVORS:
        return find_model(_FLAVORS[flavor])
    if (name, flavor) in _SHAPES:
        return model_from_shape(_SHAPES[name, flavor], name=f"{name}-{flavor}".lower())
    if known.header.model is not None:
        return known.header.model
    flavors = [*_FLAVORS] if name == "llama3" else []
    flavors += [one for model, one in _SHAPES if model == name]
    fields.fault(
        "model.flavor",
        f'"{flavor[:40]}" of "{name[:40]}" is no model of torchtitan that is read; name it with --model',
        allowed=", ".join(flavors) or "models llama3, qwen3, deepseek_v3",
    )
    fields.stop()
    raise refused("no model is named")


def _shape(fields: Fields) -> ModelSpec:
    """A shape in torchtitan's own names.

    Raises:
        InvalidProblemError: a size is missing, or the shape is none that can be priced.
    """
    for name in _NEEDED:
        fields.expect(SHAPE + name)
    fields.stop()
    raw: dict[str, object] = {wanted: fields.integer(SHAPE + name, 1) for name, wanted in _NEEDED.items()}
    heads = fields.integer(f"{SHAPE}n_heads", 1)
    raw |= {
        "num_kv_heads": fields.integer(f"{SHAPE}n_kv_heads", heads),
        "ffn_hidden_size": fields.optional(f"{SHAPE}ffn_hidden_size") or _ffn(fields),
        "rotary_base": max(int(min(fields.number(f"{SHAPE}rope_theta", 10_000.0), 2e9)), 1),
        "norm_epsilon": fields.number(f"{SHAPE}norm_eps", 1e-5),
        "max_position_embeddings": fields.integer(f"{SHAPE}max_seq_len", 131_072),
        "query_key_norm": "per_head" if fields.has(f"{SHAPE}qk_norm") else "none",
        "tied_embeddings": fields.has(f"{SHAPE}enable_weight_tying"),
    }
    if fields.has(f"{SHAPE}head_dim"):
        raw["head_dim"] = fields.integer(f"{SHAPE}head_dim", 1)
    factor = fields.number(f"{SHAPE}scaling_factor", 1.0)
    if factor != 1:
        raw["rotary_scaling"] = {
            "kind": "llama3", "factor": factor, "original_max_position_embeddings": 8192,
        }  # fmt: skip
    fields.stop()
    return model_from_shape(raw, name="launch file")


def _ffn(fields: Fields) -> int:
    """Width of the MLP: torchtitan 0.2.2, models/llama3/model/model.py FeedForward.

    ``multiple_of * ceil(int(multiplier * int(8 dim / 3)) / multiple_of)``.
    """
    hidden, unit = fields.integer(f"{SHAPE}dim", 1), fields.integer(f"{SHAPE}multiple_of", 256)
    factor = fields.number(f"{SHAPE}ffn_dim_multiplier", 1.0)
    if not 0 < factor < _MAX_FACTOR:
        fields.fault(f"{SHAPE}ffn_dim_multiplier", "is out of range")
        fields.stop()
    plain = int(factor * int(2 * 4 * hidden / 3))
    return unit * -(-plain // unit)


# --------------------------------------------------------------------------------------------------
# Which layers each stage of torchtitan holds: its list of modules, or its own split.


_LAYER = re.compile(r"layers\.(\d{1,5})")
_NAME = "parallelism.module_fqns_per_model_part"
_EACH = "parallelism.pipeline_parallel_layers_per_stage"
_LESS = "parallelism.pipeline_parallel_{}_stage_less_layers"
_ENDS = ("tok_embeddings", "norm", "output", "lm_head")
_TWO_CHUNKS = ("zb_v", "dualpipe_v")
_LOOPED = ("interleaved_1f1b", "looped_bfs", "interleaved_zb")


def split_of(fields: Fields, model: ModelSpec, pp: int, schedule: str) -> tuple[int, ...]:
    """Layers of each stage in model order; faults are left in ``fields``."""
    if pp == 1:
        return (model.num_layers,)
    parts = fields.raw(_NAME)
    if parts is None:
        return _own(fields, model, pp, schedule)
    names = parts if isinstance(parts, list) and all(isinstance(part, list) for part in parts) else []
    layers = [[_layer(name) for name in part if name not in _ENDS] for part in names]
    flat = [layer for part in layers for layer in part]
    if not names or len(names) % pp:
        fields.fault(_NAME, f"{len(names)} stages, which {pp} pipeline ranks do not share evenly")
    elif flat != list(range(model.num_layers)):
        fields.fault(
            _NAME,
            f"the stages do not hold layers.0 to layers.{model.num_layers - 1} once each and in order; "
            "torchtitan would not notice",
        )
    elif not all(layers):
        fields.fault(_NAME, "a stage without a layer is not priced")
    else:
        return tuple(len(part) for part in layers)
    fields.stop()
    return ()


def _layer(name: object) -> int:
    """The number of ``layers.7``; -1 for anything else."""
    match = _LAYER.fullmatch(name) if isinstance(name, str) else None
    return int(match[1]) if match else -1


def _own(fields: Fields, model: ModelSpec, pp: int, schedule: str) -> tuple[int, ...]:
    """Its own split: embedding and head count as some layers each, first stages take what is left over.

    Source: torchtitan 0.3.0, distributed/pipeline_parallel.py:194-264 ``_get_pipeline_metadata`` and
    :367-430 ``_generate_llm_fqn_per_model_part``, which raises where this leaves a fault.
    """
    first, last = (fields.integer(_LESS.format(end), 1, low=0) for end in ("first", "last"))
    counted = model.num_layers + first + last
    each = fields.optional(_EACH)
    several = schedule in (*_TWO_CHUNKS, *_LOOPED)
    stages = -(-counted // each) if each else pp * (2 if several else 1)
    if stages % pp or (stages > pp) != several:
        fields.fault(
            _EACH,
            f"makes {stages} stages of {counted} layers, embedding and head counted as {first} and {last}, "
            f"for {pp} ranks",
            allowed=f"a multiple of {pp} stages, {'2 or more' if several else '1'} a rank",
            nearest=str(-(-counted // (pp * (2 if several else 1)))),
        )
        fields.stop()
    split = list(first_larger(counted, stages, field="parallelism.pipeline_parallel_degree"))
    for weight, end, name in ((first, 0, "first"), (last, -1, "last")):
        if weight > counted // stages:
            message = f"{weight} exceeds the {counted // stages} layers of a stage"
            most = str(counted // stages)
            fields.fault(_LESS.format(name), message, allowed=f"0 to {most}", nearest=most)
        split[end] -= weight
    fields.note(f"no list of modules: torchtitan splits the layers {' '.join(map(str, split))}")
    if min(split) < 1:
        fields.fault("parallelism.pipeline_parallel_degree", "leaves a stage without a layer: not priced")
    fields.stop()
    return tuple(split)


_OWN = (
    "parallelism.tensor_parallel_degree", "training.local_batch_size", "training.seq_len",
    "job.dump_folder", "parallelism.data_parallel_shard_degree", "model.flavor",
)  # fmt: skip
_NAMES = {titan.lower(): name for name, titan in SCHEDULES.items()} | {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved_1f1b", "loopedbfs": "looped_bfs",
    "interleavedzerobubble": "interleaved_zb", "zbvzerobubble": "zb_v", "dualpipev": "dualpipe_v",
}  # fmt: skip
_ONE_EACH = ("1f1b", "dualpipe_v")  # schedules that need a micro-batch for every stage
_RESHARD = ("default", "always", "never")
_DTYPES = {"bfloat16": "bf16"}
_IRRELEVANT = (
    "job.", "model.", "experimental.", "optimizer.", "lr_scheduler.", "checkpoint.", "metrics.",
    "profiling.", "compile.", "comm.", "validation.", "debug.", "fault_tolerance.", "training.dataset",
    "training.steps", "training.max_norm", "training.dtype", "training.mixed_precision", "training.gc_",
    "memory_estimation.", "training.disable_cuda_graphs", "activation_checkpoint.selective",
    "parallelism.disable_loss", "parallelism.context_parallel_rotate", "dataloader", "hf_assets_path",
    "profiler", "training.seed", "activation_checkpoint.per_op", "activation_checkpoint.preserve",
    "activation_checkpoint.early", "training.deterministic", "training.enable_cpu_offload",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mesh:
    """Degrees of parallelism."""

    replicate: int
    shard: int
    tp: int
    cp: int
    pp: int


class TorchtitanReader:
    """Reads torchtitan's TOML and Python configurations."""

    name = "torchtitan"

    def recognises(self, source: Source) -> bool:
        """Whether a file has torchtitan's own names."""
        if source.suffix == ".py":
            return looks_like_module(source)
        names = looks_like_document(source) if source.suffix == ".toml" else {}
        return sum(name in names for name in _OWN) > 1

    def read(self, source: Source, told: Told) -> LaunchFile:
        """The run that the file configures.

        Raises:
            InvalidProblemError: what cannot be read, or contradicts itself, with line and name.
        """
        is_module = source.suffix == ".py"
        known = known_of(source, told)
        values, notes = over(module_values(source) if is_module else document_of(source), known)
        fields = Fields(source.name, values)
        for note in notes:
            fields.note(note)
        model = model_of(fields, known)
        configuration, batch = _configuration(fields, known, model, is_module=is_module)
        workload = _workload(fields, known, batch)
        positions = model.max_position_embeddings
        if told.model is None and positions and workload.seq_length > positions:
            fields.fault(
                "training.seq_len", f"{workload.seq_length}, but the model has {positions} positions"
            )
        fields.stop()
        return LaunchFile(
            launcher=self.name,
            model=model,
            workload=workload,
            configuration=configuration,
            num_nodes=known.world.num_nodes,
            gpus_per_node=known.world.gpus_per_node,
            notes=tuple(fields.notes),
            unread=fields.unread(_IRRELEVANT),
            places={
                "tensor_parallel_size": fields.place("parallelism.tensor_parallel_degree"),
                "seq_length": fields.place("training.seq_len"),
            },
        )


def _mesh(fields: Fields, known: Known) -> _Mesh:
    """The degrees; -1 shards over what is left of the GPUs."""
    at = "parallelism."
    replicate = fields.integer(f"{at}data_parallel_replicate_degree", 1)
    tp, cp, pp = (
        fields.integer(f"{at}{name}_parallel_degree", 1) for name in ("tensor", "context", "pipeline")
    )
    shard = fields.integer(f"{at}data_parallel_shard_degree", -1, low=-1)
    if shard == 0:
        name = f"{at}data_parallel_shard_degree"
        fields.fault(name, "0 ranks share nothing", allowed="-1 for all that are left, or 1 and more")
    fields.stop()
    if shard < 1:
        world = known.num_gpus() or known.required(
            "num_gpus", None, f"{at}data_parallel_shard_degree, or the cluster's --num-nodes"
        )
        others = replicate * tp * cp * pp
        shard = divided(world, others, field=f"{at}data_parallel_shard_degree", what="the other degrees")
        fields.note(f"data_parallel_shard_degree -1 is {shard} on {world} GPUs")
    return _Mesh(replicate=replicate, shard=shard, tp=tp, cp=cp, pp=pp)


def _configuration(
    fields: Fields, known: Known, model: ModelSpec, *, is_module: bool
) -> tuple[Configuration, int]:
    """The configuration and the global batch."""
    mesh = _mesh(fields, known)
    dp = mesh.replicate * mesh.shard
    micro, count = _batch(fields, known, mesh, dp)
    schedule = _schedule(fields, mesh.pp)
    split = split_of(fields, model, mesh.pp, schedule)
    vpp = max(len(split) // mesh.pp, 1)
    recompute = _recompute(fields)
    zero = _zero(fields, mesh)
    sequence = fields.flag("parallelism.enable_sequence_parallel", default=True) and mesh.tp > 1
    _check(fields, model, mesh, (schedule, len(split), count))
    experts = _expert_ranks(fields, model, mesh)
    fields.stop()
    found = Configuration(
        tensor_parallel_size=mesh.tp,
        sequence_parallel=sequence if is_module else mesh.tp > 1,  # 0.2 always splits the sequence
        pipeline_parallel_size=mesh.pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=mesh.cp,
        expert_parallel_size=experts,
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=mesh.shard * mesh.cp if zero else 1,
        micro_batch_size=micro,
        num_microbatches=count,
        pipeline_schedule=schedule,
        recompute_granularity=recompute,
        recompute_layers=sum(split) if recompute == "full" else 0,
        stage_layers=split,
    )
    return found, found.global_batch_size


def _expert_ranks(fields: Fields, model: ModelSpec, mesh: _Mesh) -> int:
    """Ranks that experts are spread over, of the shards (``ParallelDims``)."""
    name = "parallelism.expert_parallel_degree"
    ranks = fields.integer(name, 1)
    if model.moe is None:
        return 1  # torchtitan passes it by
    if fields.integer("parallelism.expert_tensor_parallel_degree", 1) > 1 and mesh.tp > 1:
        fields.fault(name.replace("expert_", "expert_tensor_"), "experts over tensor ranks are not read")
    if (mesh.shard * mesh.cp * mesh.tp) % ranks or model.moe.num_experts % ranks:
        fields.fault(name, f"{ranks} does not divide the shards, or {model.moe.num_experts} experts")
    return ranks


def _check(fields: Fields, model: ModelSpec, mesh: _Mesh, pipeline: tuple[str, int, int]) -> None:
    """What torchtitan refuses when model or trainer are built: heads, halves of slices, micro-batches."""
    schedule, stages, count = pipeline
    heads, seq = model.num_kv_heads, fields.integer("training.seq_len", 1)
    slices = mesh.tp * mesh.cp * (2 if mesh.cp > 1 else 1)
    if heads % mesh.tp:
        why = f"{mesh.tp} does not divide {heads} key/value heads"
        name, near = "parallelism.tensor_parallel_degree", near_divisors(mesh.tp, heads)
        fields.fault(name, why, allowed=f"divisors of {heads}", nearest=near)
    if fields.has("training.seq_len") and seq % slices:
        why, near = f"tp × 2 cp = {slices} does not divide {seq}", near_multiples(seq, slices)
        fields.fault("training.seq_len", why, allowed=f"multiples of {slices}", nearest=near)
    if schedule in _ONE_EACH and count < stages:
        why = f"{count} micro-batches for {stages} stages of {schedule}"
        name = "training.local_batch_size"
        fields.fault(name, why, allowed=f"{stages} micro-batches and more", nearest=str(stages))


def _batch(fields: Fields, known: Known, mesh: _Mesh, dp: int) -> tuple[int, int]:
    """Micro-batch and how many: with a pipeline the local batch holds all, else gradients accumulate."""
    local_name, all_name = "training.local_batch_size", "training.global_batch_size"
    stated = fields.optional(local_name)
    fields.slip_for(local_name)
    fields.stop()
    local = known.required("local_batch_size", stated, f"{local_name} in the file")
    batch = fields.integer(all_name, -1, low=-1)
    if batch < 1:
        batch = local * dp
        fields.note(f"global_batch_size is not given: local batch × dp = {batch}, no accumulation")
    steps = divided(batch, local * dp, field=all_name, what="local batch × dp")
    if mesh.pp == 1:
        return local, steps
    name = "parallelism.pipeline_parallel_microbatch_size"
    if not fields.has(name):
        fields.note("pipeline_parallel_microbatch_size is not given: 1")
    micro = fields.integer(name, 1)
    if steps > 1:
        fields.fault(all_name, f"{batch} accumulates {steps} local batches over a pipeline: not priced",
                     nearest=str(local * dp))  # fmt: skip
    return micro, divided(local, micro, field=name, what="the pipeline's micro-batch")


def _schedule(fields: Fields, pp: int) -> str:
    """The pipeline's schedule; 1F1B is the default."""
    name = "parallelism.pipeline_parallel_schedule"
    titan = fields.word(name, "1F1B")
    if pp == 1:
        return "none"
    if titan.lower() not in _NAMES:
        fields.fault(name, f'"{titan[:40]}" is unknown', allowed=", ".join(sorted(SCHEDULES.values())))
    return _NAMES.get(titan.lower(), "1f1b")


def _recompute(fields: Fields) -> str:
    """None, selective or full; memory budgets are not priced."""
    modes = ("none", "selective", "full")
    mode = fields.word("activation_checkpoint.mode", "selective", allowed=modes)
    if not fields.has("activation_checkpoint.mode"):
        fields.note("activation_checkpoint.mode is not given: selective is torchtitan's default")
    return mode


def _zero(fields: Fields, mesh: _Mesh) -> int:
    """Sharded weights, those that stay after the forward pass, or plain replicas."""
    reshard = fields.word("parallelism.fsdp_reshard_after_forward", "default", allowed=_RESHARD)
    if mesh.shard * mesh.cp == 1 and reshard == "default" and mesh.tp * mesh.pp * mesh.cp == 1:
        return 0
    if reshard == "default":
        return 3 if mesh.pp == 1 else 2  # "default" keeps weights under a pipeline
    return 3 if reshard == "always" else 2


def _workload(fields: Fields, known: Known, batch: int) -> Workload:
    """Batch, sequence and precision; AdamW."""
    dtype = fields.word("training.mixed_precision_param", "bfloat16")
    if dtype not in _DTYPES:
        fields.fault("training.mixed_precision_param", "is not priced", allowed="bfloat16")
    if fields.word("optimizer.name", "AdamW") not in ("AdamW", "Adam"):
        fields.fault("optimizer.name", "is not priced", allowed="AdamW")
    seq_length = fields.optional("training.seq_len")
    return Workload(
        global_batch_size=batch,
        seq_length=known.required("seq_length", seq_length, "training.seq_len in the file"),
        precision="bf16",
    )
