"""Reader of MaxText's configurations: a YAML over its base.yml, and the command that starts it.

Names and defaults: maxtext 0.2.5, configs/types.py and configs/base.yml. Earlier releases have the same
names for what is read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from meshwright.launchers.dialect import rows_of
from meshwright.launchers.flags import flags_of
from meshwright.launchers.maxtext.export import (
    ALWAYS_KEPT,
    ALWAYS_REPLAYED,
    AXES,
    KEPT_BY,
    LAYER_INPUT,
    SENT_BY,
)
from meshwright.launchers.reading.base import LaunchFile, Options, Overrides, Reader, Source
from meshwright.launchers.reading.commands import commands_beside, holds_file
from meshwright.launchers.reading.documents import DOCUMENTS, LocatedValue, document_of, names_held
from meshwright.launchers.reading.fields import Fields, divided
from meshwright.launchers.reading.known import Known, known_of
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_from_shape
from meshwright.shell.values import Word, unknown_arguments
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload

_OWN = (
    "base_emb_dim", "base_num_decoder_layers", "ici_fsdp_parallelism", "dcn_data_parallelism",
    "per_device_batch_size", "max_target_length", "ici_tensor_parallelism", "remat_policy",
)  # fmt: skip
_TRAINERS = re.compile(r"maxtext\.(?:[\w.]+\.)?train(?:\.py)?", re.IGNORECASE)
_TRAINER_FILES = re.compile(r"(?:.*/)?maxtext/(?:[\w/]+/)?train\.py", re.IGNORECASE)


def _recognises(source: Source) -> bool:
    if source.is_script:
        started = next(_started(source, Overrides()), None)
        return started is not None and not any(
            word.text.endswith(DOCUMENTS) and source.other(word.text) for word in started
        )
    return names_held(source, _OWN) > 1


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    known = known_of(source, overrides)
    given = {} if source.is_script else dict(document_of(source))
    over = _assigned(known, None if source.is_script else source.name)
    values, name = given | over, "remat_policy"
    if name in values and str(values[name].value).lower() == "none":  # in any case (pyconfig.py:274)
        values[name] = LocatedValue("none", values[name].line)
    fields = Fields(source.name, values, overrides, ("maxtext",))
    if given:
        fields.note_commands(over)
    model = _model(fields, known, over)
    fields.expect("max_target_length")
    configuration = _configuration(fields, _mesh(fields, known), model)
    workload = Workload(
        global_batch_size=configuration.global_batch_size,
        seq_length=fields.integer("max_target_length"),
        precision=fields.priced("dtype"),
        optimizer=fields.priced("opt_type"),
        framework_options=_options(fields, configuration),
    )
    fields.stop()
    return known.launch_file(fields, "maxtext", model, workload, configuration)


MAXTEXT_READER = Reader(name="maxtext", recognises=_recognises, read=_read)


# --------------------------------------------------------------------------------------------------
# The command: ``python3 -m maxtext.trainers.pre_train.train base.yml name=value …``, by OmegaConf.


def _started(source: Source, overrides: Overrides) -> Iterator[list[Word]]:
    """Yield the arguments of each command that starts MaxText's trainer."""
    for _, words in commands_beside(source, overrides):
        for at, word in enumerate(words):
            module = at > 0 and words[at - 1].text == "-m" and _TRAINERS.fullmatch(word.text)
            if module or _TRAINER_FILES.fullmatch(word.text):
                yield list(words[at + 1 :])
                break


def _assigned(known: Known, name: str | None) -> dict[str, LocatedValue]:
    """Return the values that the command of a file gives itself."""
    found: dict[str, LocatedValue] = {}
    for words in _started(known.source, known.overrides):
        if name is not None and not any(holds_file(word, name) for word in words):
            continue
        if (fault := unknown_arguments(words)) is not None:
            raise fault
        for word in words:
            key, equals, text = word.text.partition("=")
            if equals and key.isidentifier():
                found[key] = LocatedValue(_value(text), word.line)
    return found


def _value(text: str) -> object:
    """Return a value as OmegaConf reads it off the command line, where it is a plain one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


# --------------------------------------------------------------------------------------------------
# The mesh.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """Sizes of the axes, inside and across slices together."""

    sizes: Mapping[str, int]
    hidden_split: bool  # tensor ranks of the axis ``tensor``

    @property
    def gpus(self) -> int:
        """Return all GPUs."""
        return math.prod(self.sizes.values())


_READ_AXES = (*AXES, "tensor")


def _mesh(fields: Fields, known: Known) -> _Axes:
    """Return the mesh; -1 is what is left of a slice's GPUs, or of the slices."""
    stated = {side: {axis: _axis(fields, side, axis) for axis in _READ_AXES} for side in ("ici", "dcn")}
    fields.take("num_slices")
    fields.stop()
    slices = fields.optional("num_slices", low=-1) or -1
    across, inside = stated["dcn"], stated["ici"]
    if slices < 1:
        open_ended = -1 in across.values()
        slices = (known.world.num_nodes or 1) if open_ended else math.prod(across.values())
        if open_ended and known.world.num_nodes is None:
            fields.note("num_slices is not given: one slice of fast links is assumed")
    across = _filled(fields, "dcn", across, slices)
    if -1 in inside.values():
        name = next(f"ici_{axis}_parallelism" for axis, size in inside.items() if size == -1)
        world = known.num_gpus() or known.required(
            "num_gpus", None, f"{name}, or the cluster's --num-nodes"
        )
        per_slice = divided(world, slices, field="num_slices", what="the GPUs of a slice")
        inside = _filled(fields, "ici", inside, per_slice)
    fields.stop()
    sizes = {axis: across[axis] * inside[axis] for axis in _READ_AXES}
    if sizes["tensor"] > 1 and sizes["tensor_sequence"] > 1:
        fields.fault("ici_tensor_parallelism", "both tensor axes together are not supported", allowed="1")
    if sizes["tensor"] > 1:
        fields.note(
            "the axis tensor splits hidden states along their size between layers: it is predicted "
            "as tensor_sequence, which splits the sequence and moves as many bytes"
        )
    split = sizes.pop("tensor")
    sizes["tensor_sequence"] *= split
    return _Axes(sizes=sizes, hidden_split=split > 1)


def _axis(fields: Fields, side: str, axis: str) -> int:
    name = f"{side}_{axis}_parallelism"
    size = fields.integer(name)
    if size == 0:
        fields.fault(name, "0 ranks share nothing", allowed="-1 for all that are left, or 1 and more")
    return size


def _filled(fields: Fields, side: str, sizes: dict[str, int], total: int) -> dict[str, int]:
    """Return the sizes with the open one filled up to a total, which they must multiply to."""
    opened = [axis for axis, size in sizes.items() if size == -1]
    stated = math.prod(size for size in sizes.values() if size != -1)
    if len(opened) > 1:
        names = ", ".join(f"{side}_{axis}_parallelism" for axis in opened)
        fields.fault(f"{side}_{opened[1]}_parallelism", f"only one of {names} may be -1")
        fields.stop()
    if not opened:
        if stated != total:
            what = "slices" if side == "dcn" else "GPUs of a slice"
            fields.fault(f"{side}_data_parallelism", f"the {side} axes make {stated}, not {total} {what}")
        return sizes
    name = f"{side}_{opened[0]}_parallelism"
    rest = divided(total, stated, field=name, what=f"the other {side} axes")
    if rest > 1:
        fields.note(f"{name} -1 is {rest}")
    return sizes | {opened[0]: rest}


# --------------------------------------------------------------------------------------------------
# The configuration.


def _configuration(fields: Fields, mesh: _Axes, model: ModelSpec) -> Configuration:
    sizes = mesh.sizes
    shards = sizes["fsdp"] * sizes["context"] * sizes["expert"]
    dp = sizes["data"] * sizes["fsdp"] * sizes["expert"]
    pp = sizes["pipeline"]
    _check(fields, mesh, model, shards)
    repeats = _repeats(fields, model, pp)
    micro, count = _batch(fields, mesh, dp)
    recompute = _recompute(fields)
    offload = "activations" if _sent(fields) else "none"
    fields.stop()
    chunks = pp * repeats
    return Configuration(
        tensor_parallel_size=sizes["tensor_sequence"],
        sequence_parallel=sizes["tensor_sequence"] > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=repeats,
        context_parallel_size=sizes["context"],
        expert_parallel_size=sizes["expert"],
        expert_tensor_parallel_size=sizes["tensor_sequence"] if model.moe else 1,
        data_parallel_size=dp,
        zero_stage=3 if shards > 1 else 0,
        zero_shard_size=shards,
        micro_batch_size=micro,
        num_microbatches=count,
        pipeline_schedule="none" if pp == 1 else "gpipe" if repeats == 1 else "looped_bfs",
        recompute_granularity=recompute,
        recompute_layers=model.num_layers if recompute == "full" else 0,
        offload=offload,
        stage_layers=(model.num_layers // chunks,) * chunks,
    )


def _check(fields: Fields, mesh: _Axes, model: ModelSpec, shards: int) -> None:
    """Record faults of axes that do not divide what JAX cuts along them."""
    sizes, tp = mesh.sizes, mesh.sizes["tensor_sequence"]
    if sizes["expert"] > 1 and (model.moe is None or model.moe.num_experts % sizes["expert"]):
        count = model.moe.num_experts if model.moe else "no"
        fields.fault("ici_expert_parallelism", f"{sizes['expert']} ranks for {count} experts")
    if model.hidden_size % shards:
        fields.fault(
            "ici_fsdp_parallelism",
            f"{shards} ranks of fsdp, context and expert do not divide {model.hidden_size} rows",
            allowed=f"divisors of {model.hidden_size}",
        )
    if model.num_kv_heads % tp or model.vocab_size % tp:
        fields.fault(
            "ici_tensor_sequence_parallelism",
            f"{tp} ranks do not divide {model.num_kv_heads} key/value heads or {model.vocab_size} rows",
        )
    strategy = fields.choice("context_parallel_strategy")
    if sizes["context"] > 1 and strategy != "ring":
        fields.fault(
            "context_parallel_strategy",
            f"{strategy} of context ranks is not supported",
            allowed="ring",
            nearest="ring",
        )


def _repeats(fields: Fields, model: ModelSpec, pp: int) -> int:
    """Return the chunks of a stage: layers of one, and how often the pipeline goes round."""
    layers = fields.integer("num_layers_per_pipeline_stage")
    repeats = fields.optional("num_pipeline_repeats")
    if pp == 1:
        return 1
    fields.stop()
    if repeats is None or repeats < 1:
        repeats = divided(
            model.num_layers, pp * layers, field="num_layers_per_pipeline_stage", what="layers of a round"
        )
    if pp * layers * repeats != model.num_layers:
        fields.fault(
            "num_layers_per_pipeline_stage",
            f"{pp} stages × {repeats} repeats × {layers} layers are not {model.num_layers}",
        )
    return repeats


def _batch(fields: Fields, mesh: _Axes, dp: int) -> tuple[int, int]:
    """Return micro-batch size and count: sequences of all GPUs, as MaxText rounds them."""
    name, pp = "per_device_batch_size", mesh.sizes["pipeline"]
    fields.expect(name)
    share = fields.number(name, 1.0)
    steps = fields.integer("gradient_accumulation_steps")
    sequences = int(mesh.gpus * share)  # types.py, calculate_global_batch_sizes
    count = fields.optional("num_pipeline_microbatches")
    count = 1 if pp == 1 else pp if count is None or count < 1 else count
    if pp > 1 and count % pp:
        what = f"{count} micro-batches for {pp} stages"
        fields.fault("num_pipeline_microbatches", what, allowed=f"multiples of {pp}", nearest=str(pp))
    if pp > 1 and steps > 1:
        fields.fault(
            "gradient_accumulation_steps",
            f"{steps} rounds of a pipeline in a step are not supported",
            allowed="1, with as many num_pipeline_microbatches",
        )
    if sequences < dp * count or sequences % (dp * count):
        fields.fault(
            name,
            f"{sequences} sequences of a pass are not a multiple of {dp * count} "
            f"({dp} data-parallel ranks × {count} micro-batches)",
            nearest=f"{dp * count / mesh.gpus:g}",
        )
    fields.stop()
    return sequences // (dp * count), count * steps


# --------------------------------------------------------------------------------------------------
# What is recomputed. Named policies as layers/nnx_decoders.py, get_remat_policy.

_KEPT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("full", "none"), ()),
    "minimal": (*ALWAYS_KEPT, *KEPT_BY["attn_proj"], *KEPT_BY["mlp_up"]),
    **dict.fromkeys(
        ("minimal_with_context", "minimal_flash"),
        (*ALWAYS_KEPT, *(one for names in KEPT_BY.values() for one in names)),
    ),  # the latter in older releases
    "save_dot_with_context_except_mlp": (*ALWAYS_KEPT, *KEPT_BY["core_attn"], *KEPT_BY["attn_proj"]),
    "save_dot_except_mlpwi": (*ALWAYS_KEPT, *KEPT_BY["attn_proj"]),
    "save_dot_except_mlp": (*ALWAYS_KEPT, *KEPT_BY["attn_proj"]),
    "save_qkv_proj": ALWAYS_KEPT,
}
_SENT: Mapping[str, tuple[str, ...]] = {
    "qkv_proj_offloaded": ALWAYS_KEPT,
    "minimal_offloaded": (*ALWAYS_KEPT, *SENT_BY["mlp_norm"], *SENT_BY["mlp_act"]),
}
_FUSED = {"qkv_proj": ALWAYS_KEPT, "kv_proj": ("key_proj", "value_proj")}
_NAMES = tuple(name for name, row in flags_of("maxtext").items() if row.sets == "option.recompute_modules")


def _kept(fields: Fields) -> tuple[str, ...]:
    """Return the tensors that are kept for the backward pass, on the device or the host."""
    policy, places = fields.choice("remat_policy"), _places(fields)
    if policy == "none":
        fields.note("remat_policy none replays every layer under scan_layers, as full does")
    if policy != "custom":
        return _SENT.get(policy) or _KEPT[policy]
    return tuple(name for name, place in places.items() if place != "remat")


def _places(fields: Fields) -> Mapping[str, str]:
    """Return the place of each tensor that a custom policy names, by itself or as a part of a fused one."""
    places = [(fields.choice(name), name) for name in _NAMES]
    places.sort(key=lambda found: found[0] != "remat")  # a replayed fused tensor may be kept in parts
    return {one: place for place, name in places for one in _FUSED.get(name, (name,))}


def _sent(fields: Fields) -> tuple[str, ...]:
    """Return the modules with inputs in host memory; all of them if nothing that is kept stays."""
    policy, kept = fields.choice("remat_policy"), {LAYER_INPUT, *_kept(fields)}
    named = {name for names in SENT_BY.values() for name in names}
    sent = _SENT.get(policy, ())
    if policy == "custom":
        sent = tuple(name for name, place in _places(fields).items() if place == "offload")
    for name in (one for one in sent if one not in named):
        fields.fault(name, "this tensor in host memory is not supported", allowed="remat, device")
    for names in SENT_BY.values():
        if lacking := [name for name in names if name not in sent and len({*names} & {*sent})]:
            fields.fault(
                lacking[0],
                "is not in host memory like the other inputs of its module, which is not supported",
                allowed=f"{' and '.join(names)} in one place",
            )
    modules = tuple(module for module, names in SENT_BY.items() if {*names} <= {*sent})
    return ("all",) if modules and kept & named <= {*sent} else modules


def _recompute(fields: Fields) -> str:
    kept = _kept(fields)
    if not {*kept} & {*ALWAYS_KEPT, *(one for names in KEPT_BY.values() for one in names)}:
        return "full"
    if not {*ALWAYS_KEPT} <= {*kept}:
        lacking = ", ".join(name for name in ALWAYS_KEPT if name not in kept)
        fields.fault("remat_policy", f"keeping some products without {lacking} is not supported")
    return "selective"


def _replayed(fields: Fields) -> str:
    """Return the modules of selective recomputation, by what is not kept."""
    kept = _kept(fields)
    dense = {module: names[0] for module, names in KEPT_BY.items()}
    found = [module for module, name in dense.items() if name not in kept]
    order = ("core_attn", "attn_proj", ALWAYS_REPLAYED, "mlp_up")
    return "+".join(module for module in order if module in (*found, ALWAYS_REPLAYED))


_USUAL_MODULES = "core_attn+layernorm+mlp_up"  # as priced without an option


def _options(fields: Fields, configuration: Configuration) -> Options:
    """Return the facts that differ from those that MaxText is priced with."""
    gradients = fields.priced("grad_dtype")
    kernel, hardware = fields.priced("attention"), fields.choice("hardware")
    found: dict[str, str | bool] = {
        "gradient_dtype": "" if gradients == "bf16" else gradients,
        "attention_kernel": "" if kernel == "cudnn" or hardware == "tpu" else kernel,
        "embedding_products": fields.flag("use_iota_embed"),
        "dropout": fields.flag("enable_dropout") and fields.number("dropout_rate", 0.0) > 0,
    }
    replayed = _replayed(fields) if configuration.recompute_granularity == "selective" else _USUAL_MODULES
    found["recompute_modules"] = "" if replayed == _USUAL_MODULES else replayed
    found["offload_modules"] = "" if (sent := "+".join(_sent(fields))) == "all" else sent
    return {name: value for name, value in sorted(found.items()) if value}


# --------------------------------------------------------------------------------------------------
# The model.

_NAMED = re.compile(r"llama(\d)")
_SIZES = {  # arguments with whole numbers of the model, but the rotary base, which has a usual one
    name: field
    for name, field, row in rows_of("maxtext", "model")
    if row.kind == "integer" and field != "rotary_base"
}
_EPSILON = "normalization_layer_epsilon"
_SCALING = {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}


def _model(fields: Fields, known: Known, over: Collection[str]) -> ModelSpec:
    """Return the supplied model, the named one, or the one of the file's sizes.

    Raises:
        InvalidProblemError: a size is missing, or the shape is not priced.
    """
    raw = _shape(fields)
    if known.overrides.model is not None:
        return known.overrides.model
    named = fields.word("model_name", "default")
    if named != "default":
        return _agreed(fields, _by_name(fields, named), over)
    for name in _SIZES:
        fields.expect(name, "is not given; add it, or name the model with --model")
    fields.stop()
    return model_from_shape(raw, name="launch file")


def _agreed(fields: Fields, model: ModelSpec, over: Collection[str]) -> ModelSpec:
    """Return the named model; its sizes replace a file's, and those of a command (``over``) are refused.

    configs/pyconfig.py: base.yml and the file first, then the model's own file, then the command.
    MaxText takes other sizes from a command with ``override_model_config`` alone.
    """
    for name, ours in _SIZES.items():
        stated, own = fields.optional(name, low=-1), getattr(model, ours)
        if stated in (None, own):
            continue
        if name in over:
            fields.fault(
                name,
                f"{stated}, but {model.title} has {own}",
                allowed="--model with the model of these sizes",
                nearest=str(own),
            )
        else:
            fields.note(f"{name} {stated} does nothing next to model_name: {model.title} has {own}")
    fields.stop()
    return model


def _by_name(fields: Fields, named: str) -> ModelSpec:
    """Return the catalog's model of one of MaxText's own configurations (configs/models)."""
    try:
        return find_model(_NAMED.sub(r"llama-\1", named).removesuffix("-Instruct"))
    except InvalidProblemError as error:
        fields.fault(
            "model_name",
            f"{shown(named)} is not in the catalog",
            allowed="--model with a catalog name or the model's config.json",
        )
        fields.stop()
        raise error from None


def _shape(fields: Fields) -> dict[str, object]:
    """Return the fields of a request's model; record faults of parts that are not priced."""
    sizes = {ours: fields.integer(name) for name, ours in _SIZES.items()}
    block = fields.choice("decoder_block")
    if (gated := fields.raw("mlp_activations")) not in (None, ["silu", "linear"]):
        fields.fault(
            "mlp_activations", f"{shown(str(gated))[:64]} is not supported", allowed='["silu", "linear"]'
        )
    if fields.flag("attention_bias") and block != "qwen2":
        fields.note(f"attention_bias does nothing in decoder_block {block}")
    experts = fields.integer("num_experts")
    found: dict[str, object] = {
        **sizes,
        "rotary_base": max(int(fields.number("rope_max_timescale", 10_000)), 1),
        "norm_epsilon": fields.number(_EPSILON, 1e-5) if fields.has(_EPSILON) else None,
        "tied_embeddings": fields.flag("logits_via_embedding"),
        "query_key_norm": "per_head" if fields.flag("use_qk_norm") else "none",
        "qkv_bias": fields.flag("attention_bias") and block == "qwen2",
        **_rotary(fields),
    }
    top, width = fields.integer("num_experts_per_tok"), fields.optional("base_moe_mlp_dim", low=-1)
    if experts > 1:
        if width is None or width < 1:
            fields.fault("base_moe_mlp_dim", "is not given, and the model has experts")
        balance = fields.number("load_balance_loss_weight", 0.0)
        found["moe"] = {
            "num_experts": experts, "top_k": top, "ffn_hidden_size": width, "balance_coefficient": balance,
        }  # fmt: skip
    return found


def _rotary(fields: Fields) -> dict[str, object]:
    kind = fields.choice("rope_type")
    scaled = fields.flag("rope_use_scale")
    if kind == "yarn" or fields.number("rope_linear_scaling_factor", 1.0) != 1.0:
        fields.fault(
            "rope_type", "this scaling of rotary positions is not read", allowed="default, llama3.1"
        )
    return {"rotary_scaling": _SCALING} if kind == "llama3.1" and scaled else {}
