"""The configurations that a launcher can express: the search proposes nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from itertools import chain
from math import lcm
from typing import Any, Literal, get_args

from meshwright.profiles.adapters import (
    ALL_LINEAR,
    adapts_every,
    bound_targets,
    language_names,
    usual_targets,
)
from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.errors import ProfileError, UnknownNameError
from meshwright.profiles.frameworks import framework_names, option_names
from meshwright.profiles.library import find_model
from meshwright.profiles.mixers import MIXER_KINDS
from meshwright.profiles.model import Activation, ModelSpec
from meshwright.profiles.model_parts import MoeSpec, RotaryScalingKind
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.tower_modules import TOWER_TARGETS
from meshwright.profiles.vendors import vendor_names

_FILE = CATALOG / "frameworks" / "capabilities.yaml"
BUILT_MODELS = CATALOG / "frameworks" / "built_models.yaml"

Limit = bool  # a fact that takes something away from a launcher: "any" lacks only what all of them lack


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The configurations that one launcher accepts."""

    launcher: str
    framework: str  # its plans are priced under the facts of that file
    schedules: tuple[str, ...]
    zero_stages: tuple[int, ...]
    max_zero_stage_with_pipeline: int  # the highest ZeRO stage with pipeline parallelism
    uneven_stages: bool  # stages may hold different numbers of layers
    recompute: tuple[str, ...]
    recompute_layer_counts: bool  # full recomputation of some layers of each chunk only
    context_parallel: bool
    expert_parallel: bool
    source: str
    # ZeRO stage of its usual launch: without pipeline stages, and with them
    usual_zero_stages: tuple[int, ...] = (0, 0)
    usual_zero_why: str = ""  # why that is its usual launch, in words
    uneven_ranks: tuple[str, ...] = ()  # what ranks may split unevenly, or pad: heads, widths, sequence
    # Whose GPUs it has files for, each with its source; or "any".
    vendors: tuple[str, ...] = ("any",)
    training_log: str = ""  # format of the log that its runs write; empty: none is read
    standalone_stages: bool = False  # the embedding, and the head with the loss, without a layer
    standalone_constraints: tuple[str, ...] = ()  # as ``constraints``, of plans with such stages
    places_pattern_layers: Limit = False  # a model's ``layer_pattern`` states its stages, each with a layer
    idle_stages: bool = False  # the last stages hold nothing, as where a launcher's own split ends early
    standalone_prediction: bool = False  # and multi-token prediction between the layers and the head
    recompute_per_stage: bool = False  # a count of its own for every stage
    stage_recompute_constraints: tuple[str, ...] = ()  # as ``constraints``, of plans with such counts
    places_stages: Limit = False  # on unlike node groups, each with its tensor-parallel size
    placed_constraints: tuple[str, ...] = ()  # as ``constraints``, of stages on unlike node groups
    placed_ends_alike: Limit = False  # first and last stage split tied embeddings or prediction alike
    unlike_replicas: Limit = False  # and data-parallel replicas of unlike sizes
    expert_tensor_parallel: bool = False  # experts split otherwise than attention
    weight_shards: bool = False  # matrices shared by data-parallel ranks, each gathered for its products
    weight_shard_constraints: tuple[str, ...] = ()  # as ``constraints``, of plans with such shards
    # Facts of a model that the pinned release cannot shard, each with what fails.
    weight_shards_without: tuple[str, ...] = ()
    short_last_node: bool = False  # it can start fewer ranks on the last node
    hybrid_sharding: bool = False  # shard sets smaller than the data-parallel group, from ZeRO 1 on
    offload: tuple[str, ...] = ("none",)
    offloads_modules: Limit = False  # ``offload_modules`` names the modules that offload activations
    offloaded_layer_constraints: tuple[str, ...] = ()  # as ``constraints``, where ``offload_layers`` does
    tensor_note: str = ""  # requirements of tensor parallelism beyond the launcher
    galore_note: str = ""  # why it runs no optimizer that projects gradients
    offload_note: str = ""  # why what the launcher calls offloading is not what is planned
    experts_need_sequence_parallel: Limit = False  # with tensor parallelism
    context_parallel_modes: tuple[str, ...] = ("ring",)
    rank_orders: tuple[str, ...] = (
        "tp-cp-dp-pp",
    )  # mesh axes, fastest first; the launcher's own comes first
    data_parallel_alike: Limit = False  # in another order experts have as many replicas as attention
    bf16_gradients_are_optimizers: bool = False  # kept as its precision-aware optimizer keeps them
    precisions: tuple[str, ...] = ("bf16", "fp16")
    optimizers: tuple[str, ...] = ()  # empty: not limited by the launcher
    recipes: tuple[
        str, ...
    ] = ()  # of 8-bit runs (``precision_recipe``); empty: not limited by the launcher
    fp8_recipe: str = ""  # what 8 bits are where a request names no recipe; empty: the framework's own
    adapters: tuple[str, ...] = ()  # on a frozen model: of "fused" layers, or of "single" ones
    # What it adapts where a request names nothing: all linear layers, or single ones of some names.
    adapter_targets: tuple[str, ...] = ALL_LINEAR
    adapts_parameters: bool = False  # weights without a layer of their own (``PARAMETER_TARGETS``)
    # How it selects layers of a vision tower and its projector (``TOWER_TARGETS``): by paths of modules, or
    # by words in them and switches that freeze parts
    adapts_towers: Literal["", "paths", "words"] = ""
    lists_linear_layers: bool = False  # all of a class itself, before it calls peft (``linear_names``)
    other_start: str = ""  # the launcher that the same program is where it is started otherwise
    adapter_constraints: tuple[str, ...] = ()  # as ``constraints``, where adapters are trained
    adapter_optimizers: tuple[str, ...] = ()  # of adapters; empty: all of ``optimizers``
    base_precisions: tuple[str, ...] = ("bf16",)  # of weights that are frozen under adapters
    samples: tuple[str, ...] = ("sequence",)  # of its batches, with a reference: ``sample_word``
    cuts_quantized: tuple[str, ...] = ()  # those that ranks of ZeRO-3 share
    rotates_inputs: bool = False  # OFT, next to LoRA
    decomposes_fused: bool = (
        False  # it has DoRA of fused layers; peft's, of single ones, all launchers have
    )
    shares_decomposed: Limit = False  # but one of all experts of a rank, unlike its LoRA
    adapters_reach_towers: Limit = False  # those of a language model are in its tower, too
    fake_quantizations: tuple[str, ...] = ("none",)  # of full training; empty: not limited by the launcher
    own_options: tuple[str, ...] = ()  # that not every launcher has: an option's name, or it and a word
    # Words of an option that its files can state; of other options all.
    option_words: tuple[tuple[str, tuple[str, ...]], ...] = ()
    # Options that it needs for samples with a reference (``sample_word``), each with its word
    sample_options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    mixes_attention: bool = False  # FlashAttention and torch's choice, each in the layers that it takes
    # Replicas keep embedding and head in fp32, not priced, unless FlashAttention or a cut loss reads them
    casts_ends_for_flash: Limit = False
    sequence_parallel: bool = True  # with tensor parallelism; else ranks repeat norms
    heads_whole_on_ranks: Limit = False  # tensor_parallel_size divides the key/value heads too
    halves_on_ranks: Limit = False  # tp * 2 cp divides the sequence, not only tp * cp and 2 cp
    overlaps_experts: bool = False  # all-to-alls of experts run under another micro-batch's computing
    rings_are_plain: Limit = False  # no attention sinks or sliding windows with them
    biased_experts_whole: Limit = False  # no tensor ranks split experts that have biases
    balances_stages: Limit = (
        False  # it splits the layers itself (``meshwright.solver.splits.nanotron_split``)
    )
    model_facts: tuple[str, ...] = ()  # of the function ``model_facts``: what it can state; or "any"
    diffusion: bool = False  # where "any": the script may train a class of diffusers, or one with labels
    # Model types with a vision tower that it trains, each with its source; or "any"
    towers: tuple[str, ...] = ()
    except_towers: tuple[str, ...] = ()  # model types that "any" doesn't mean
    tower_models: tuple[str, ...] = ()  # the shapes of models with a tower that it has; empty: any
    tower_precisions: tuple[str, ...] = ()  # of models with a tower; empty: all of ``precisions``
    packs_no_images: Limit = False  # documents with images are padded
    # Tensor- and context-parallel ranks have the whole tower each, and pass every image through it
    whole_towers: bool = False
    # But where a micro-batch has an image for each of these ranks, the images are shared out
    shares_out_images: bool = False
    # Model types of towers, or "any", whose classes have no multi-token-prediction layers there
    omits_prediction: tuple[str, ...] = ()
    # Parts of a model with a tower that it freezes without adapters: "none", "vision+projector", or "any"
    frozen_sets: tuple[str, ...] = ("any",)
    # Which layers it can train alone: "any"; "counted", the first or last, or the last of each of n parts
    freezes_layers: Literal["", "any", "counted"] = ""
    frozen_together: tuple[str, ...] = ()  # types of which it freezes tower and projector both, or neither
    projector_trained: tuple[str, ...] = ()  # types of which it trains some of the projector always
    batchings: tuple[str, ...] = ()  # how it makes sequences if document lengths are given
    batching_note: str = ""  # what it does instead
    # What the tokens of each packed document are filled up to a multiple of (``packing_multiple``).
    packed_multiples: tuple[str, ...] = ()
    batching_constraints: tuple[
        tuple[str, tuple[str, ...]], ...
    ] = ()  # as ``constraints``, of one of these
    beside_towers: tuple[str, ...] = ()  # facts that only its models with a tower have
    predicts_by_rotary: Limit = False  # multi-token prediction with plain rotary positions alone
    # Where it has several models: the facts of each; one of them must have all of a model's.
    model_families: tuple[tuple[str, ...], ...] = ()
    # A fact, or "mixers of any kind", and expressions as ``constraints`` for plans of a model with it.
    model_constraints: tuple[tuple[str, tuple[str, ...]], ...] = ()
    optimizer_constraints: tuple[tuple[str, tuple[str, ...]], ...] = ()  # the same of an optimizer
    option_constraints: tuple[
        tuple[str, tuple[str, ...]], ...
    ] = ()  # of a framework's option and its value
    # Of chips of a vendor: as ``constraints``
    vendor_constraints: tuple[tuple[str, tuple[str, ...]], ...] = ()
    constraints: tuple[
        str, ...
    ] = ()  # expressions of ``meshwright.solver.space.expressions`` that every plan satisfies

    def trains_tower(self, model_type: str) -> bool:
        """Return whether it trains models of this type, which have a tower."""
        named = {model_type} if model_type in self.except_towers else {model_type, "any"}
        return not named.isdisjoint(self.towers)

    def default_targets(self, model: ModelSpec) -> tuple[str, ...]:
        """Return the layers that it adapts where a request names none.

        Of ``any`` all linear layers, which every launcher has names for: adapters are then alike.
        """
        if self.launcher == "any":
            return ALL_LINEAR
        if self.all_is_towers(model):
            return language_names(model)
        return usual_targets(model, self.adapter_targets, self.adapters, listed=self.lists_linear_layers)

    def targets_of(self, model: ModelSpec, targets: tuple[str, ...]) -> tuple[str, ...]:
        """Return targets by this launcher's names for the same layers; as they are where it lacks one."""
        every, language = {*ALL_LINEAR} <= {*targets}, language_names(model)
        if every and self.all_is_towers(model) and adapts_every(model, language):
            return (*language, *(name for name in TOWER_TARGETS if name in targets))
        return bound_targets(model, targets, self.adapters, listed=self.lists_linear_layers)

    def all_is_towers(self, model: ModelSpec) -> bool:
        """Return whether its word for all linear layers means those of a model's tower, too."""
        return model.tower is not None and "any" not in self.frozen_sets

    def alone(self, model: ModelSpec) -> tuple[int, int]:
        """Return the most stages without a layer at the beginning and end of a model's pipeline."""
        prediction = self.standalone_prediction and model.num_mtp_layers > 0
        alone = self.standalone_stages and not (model.layer_pattern and self.places_pattern_layers)
        return (1, 1 + prediction) if alone else (0, 0)


def packing_multiple(launcher: str, tensor: int, context: int, *, sequence_parallel: bool) -> int:
    """Return the tokens of which each packed document is a multiple: what its ranks can share out.

    "rings": two chunks for every rank of context parallelism (Transformer Engine 2, ``thd``); "sequence
    parallelism": a token for each rank that has a slice of the sequence.

    Raises:
        UnknownNameError: no such launcher.
    """
    stated = launcher_capabilities(launcher).packed_multiples
    rings = 2 * context if "rings" in stated and context > 1 else 1
    return lcm(rings, context * tensor if "sequence parallelism" in stated and sequence_parallel else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedVersion:
    """A version of a launcher with code that has read the files exported for it."""

    package: str  # of the package index
    version: str
    date: str  # of the last time, year-month-day
    by: str  # which code of the launcher's


@cache
def judged_versions(launcher: str) -> tuple[JudgedVersion, ...]:
    """Return the versions of a launcher that have judged its files, newest first; none where none could."""
    entries = catalog_file(CATALOG / "frameworks" / "judged.yaml").get(launcher, ())
    return tuple(JudgedVersion(**{name: str(value) for name, value in one.items()}) for one in entries)


@cache
def exact_types(launcher: str) -> frozenset[str]:
    """Return Hugging Face model types of which the launcher itself has built what is priced."""
    return frozenset(catalog_file(BUILT_MODELS).get(launcher, {}).get("types", ()))


@cache
def launcher_names() -> tuple[str, ...]:
    """Return the launchers with known limits."""
    return tuple(sorted(catalog_file(_FILE)))


@cache
def launchers_placing_stages() -> tuple[str, ...]:
    """Return the launchers that place stages on unlike node groups."""
    return tuple(name for name in launcher_names() if launcher_capabilities(name).places_stages)


def launchers_of(launcher: str) -> tuple[str, ...]:
    """Return the launchers that a request means: for ``any``, every one with known limits."""
    return tuple(name for name in launcher_names() if name != "none") if launcher == "any" else (launcher,)


# Words that take something away from a launcher: "any" lacks only what all of them lack.
_LIMITING_WORDS = ("constraints", "adapter_constraints", "model_constraints", "batching_constraints",
                   "optimizer_constraints", "option_constraints", "standalone_constraints",
                   "stage_recompute_constraints", "placed_constraints", "weight_shard_constraints",
                   "weight_shards_without", "vendor_constraints", "option_words",
                   "sample_options")  # fmt: skip
# No matter of all of them together.
_OF_ONE = (
    "model_families", "usual_zero_stages", "usual_zero_why", "adapter_targets", "lists_linear_layers",
    "other_start", "omits_prediction", "beside_towers",
)  # fmt: skip


def _union(parts: list[Capabilities]) -> Capabilities:
    values: dict[str, Any] = {}
    for name, kind in ((field.name, field.type) for field in fields(Capabilities)):
        found = [getattr(part, name) for part in parts]
        if name in _OF_ONE:
            continue
        if name in _LIMITING_WORDS:
            values[name] = tuple(word for word in found[0] if all(word in words for words in found))
        elif isinstance(found[0], tuple):
            values[name] = tuple(dict.fromkeys(value for part in found for value in part))
        elif isinstance(found[0], bool):
            values[name] = all(found) if kind == "Limit" else any(found)
        elif isinstance(found[0], int):
            values[name] = max(found)
    for name in ("optimizers", "adapter_optimizers", "recipes", "tower_models", "tower_precisions"):
        if not all(getattr(part, name) for part in parts):
            values[name] = ()  # some launcher limits none
    source = "; ".join(part.source for part in parts)
    return Capabilities(**values, launcher="any", framework=parts[0].framework, source=source)


@cache
def launcher_capabilities(launcher: str) -> Capabilities:
    """Return the limits of one launcher; ``none`` has no launcher's, ``any`` those that all share.

    Raises:
        UnknownNameError: no such launcher.
        ProfileError: its entry lacks a capability or has one too many.
    """
    if launcher == "any":
        return _union([launcher_capabilities(name) for name in launchers_of(launcher)])
    raw = catalog_file(_FILE).get(launcher)
    if raw is None:
        raise UnknownNameError.among("/launcher", launcher, launcher_names())
    entry: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list | dict) else value for name, value in raw.items()
    }
    for name in (
        "model_constraints",
        "optimizer_constraints",
        "option_constraints",
        "batching_constraints",
        "vendor_constraints",
        "option_words",
        "sample_options",
    ):
        entry[name] = tuple((word, tuple(texts)) for word, texts in raw.get(name, {}).items())
    entry["model_families"] = tuple(tuple(facts) for facts in raw.get("model_families", {}).values())
    try:
        able = Capabilities(launcher=launcher, **entry)
        _require_known_words(able)
    except (TypeError, UnknownNameError) as error:
        raise ProfileError(f"catalog/frameworks/capabilities.yaml, {launcher}: {error}") from error
    return able


def _require_known_words(able: Capabilities) -> None:
    """Require that the framework, facts, options and batchings of an entry exist.

    Raises:
        UnknownNameError: a name is misspelt, so that its entry would never apply.
    """
    facts = {"any", ANY_MIXER, APART, *_fact_values(_SMALL), *_COMPOSED}
    stated: Mapping[str, tuple[Iterable[str], Collection[str]]] = {
        "framework": ((able.framework,), framework_names()),
        "vendors": (able.vendors, ("any", *vendor_names())),
        "model_facts": (able.model_facts, facts),
        "model_families": (chain(*able.model_families), facts),
        "beside_towers": (able.beside_towers, facts),
        "model_constraints": (dict(able.model_constraints), facts),
        "option_constraints": (
            (one.partition(" ")[0] for one, _ in able.option_constraints),
            option_names(),
        ),
        "own_options": ((one.partition(" ")[0] for one in able.own_options), option_names()),
        "option_words": (dict(able.option_words), option_names()),
        "sample_options": (dict(able.sample_options), able.samples),
        "vendor_constraints": (dict(able.vendor_constraints), able.vendors),
        "optimizer_constraints": (dict(able.optimizer_constraints), able.optimizers or OPTIMIZERS),
        "batching_constraints": (dict(able.batching_constraints), able.batchings),
    }
    for field, (names, known) in stated.items():
        for name in names:
            if name not in known:
                raise UnknownNameError.among(f"/{field}", name, known)


_COMPOSED = {  # names of ``_fact_values`` that are put together
    *(
        f"{kind} rotary scaling{of}"
        for kind in get_args(RotaryScalingKind)
        for of in ("", " by a fraction", " by a whole factor", " by an attention factor",
                   " by another factor than 8", " of latent attention", " of other wavelengths",
                   " of latent attention, of other wavelengths")
    ),
    *(
        f"{part}{gate} {activation}"
        for part in ("", "clamp of ", "offset of ")
        for gate in ("gated", "ungated")
        for activation in get_args(Activation)
    ),
}  # fmt: skip
_SMALL = ModelSpec(
    name="small", num_layers=1, hidden_size=1, ffn_hidden_size=1, num_attention_heads=1, num_kv_heads=1,
    head_dim=1, vocab_size=1, moe=MoeSpec(num_experts=1, top_k=1, ffn_hidden_size=1),
)  # fmt: skip


DIFFUSION = "diffusion over latent tokens"
LABELS = "head of rewards or classes"
TOWER = "vision tower"
# Of ``lacking_facts``, in addition to the facts of a model.
UNLIKE_SHAPE = "these sizes of a model with a vision tower"
PREDICTION = "multi-token prediction without plain rotary positions"
# Of ``model_constraints``, in addition to the facts of a model.
ANY_MIXER = "mixers of any kind"
APART = "experts that are not in one tensor"  # with a gate, of a class that dispatchers know


def lacking_facts(able: Capabilities, model: ModelSpec) -> tuple[str, ...]:
    """Return the facts that a launcher cannot state (of its models the one that lacks fewest), in order."""
    lacks_tower = model.tower is not None and not able.trains_tower(model.tower.model_type)
    beyond = {
        UNLIKE_SHAPE: not lacks_tower and not _has_shape(able, model),
        PREDICTION: able.predicts_by_rotary and model.num_mtp_layers > 0 and not _has_plain_rotary(model),
    }
    unlike = tuple(fact for fact, there in beyond.items() if there)
    if "any" in able.model_facts:
        others = {DIFFUSION: model.diffusion is not None, LABELS: model.num_labels > 0}
        lacks = tuple(fact for fact, there in others.items() if there and not able.diffusion)
        return (*lacks, TOWER) if lacks_tower else lacks
    own = model_facts(model)
    own = own if lacks_tower else own - {TOWER}
    apart = set() if model.tower else {*able.beside_towers}
    families = able.model_families or (able.model_facts,)
    return (*min((tuple(sorted(own.difference({*facts} - apart))) for facts in families), key=len), *unlike)


def _has_shape(able: Capabilities, model: ModelSpec) -> bool:
    """Return whether a launcher has a model of these sizes with the tower, but for prediction layers."""
    if model.tower is None or not able.tower_models:
        return True
    return any(_shape_of(find_model(name)) == _shape_of(model) for name in able.tower_models)


def _has_plain_rotary(model: ModelSpec) -> bool:
    """Return whether layers have rotary positions that YaRN doesn't scale; latent attention has its own."""
    scaling = model.rotary_scaling
    pattern = bool(model.layer_pattern) and all(model.layers_without_rotary())
    scaled = model.mla is None and scaling is not None and scaling.kind == "yarn"
    return model.has_rotary_positions and not pattern and not scaled


def _shape_of(model: ModelSpec) -> ModelSpec:
    return replace(model, name="", display_name="", source="", num_mtp_layers=0)


def fact_sources(launcher: str) -> Mapping[str, str]:
    """Return the facts of a model that a launcher, or "any", can state, each with its source."""
    return dict(catalog_file(_FILE)[launcher]["model_facts"])


def launchers_stating(model: ModelSpec) -> tuple[str, ...]:
    """Return launchers that can state every fact of a model."""
    return tuple(
        name for name in launchers_of("any") if not lacking_facts(launcher_capabilities(name), model)
    )


@cache
def launchers_in_order() -> tuple[str, ...]:
    """Return the launchers as the catalog lists them, ``none`` last.

    Launchers with files that build the model come before those that run a user's own script, which can
    build any model.
    """
    names: list[str] = list(catalog_file(_FILE))
    return tuple(sorted(names, key=lambda name: "any" in launcher_capabilities(name).model_facts))


@lru_cache(maxsize=64)
def model_facts(model: ModelSpec) -> frozenset[str]:
    """Return the facts in which a model differs from a plain Llama (RoPE, RMSNorm, SwiGLU, untied head).

    Sizes, the rotary base and the epsilon of norms are left out: every launch file states them.
    """
    return frozenset(name for name, there in _fact_values(model).items() if there)


def _fact_values(model: ModelSpec) -> dict[str, bool]:
    attending = [one for one in model.attentions() if not one.mixes]
    biases = {
        "query-key-value bias": model.qkv_bias,
        "bias of the attention's output": model.attention_output_bias,
        "bias of the MLP": model.mlp_bias,
    }
    biased, routed = all(biases.values()), bool(model.moe and model.moe.router_bias)
    mixer, pattern, norm = model.mixer, bool(model.layer_pattern), model.normalization
    known = mixer is not None and mixer.kind == "mamba2"
    usual = mixer is not None and (mixer.convolution, mixer.chunk, mixer.convolution_bias) == (4, 128, True)
    chunks = model.chunked_attention
    activation = f"{'gated' if model.gated_mlp else 'ungated'} {model.mlp_activation}"
    return {
        TOWER: model.tower is not None,
        "attention to later tokens": not model.causal,
        "multi-token prediction": model.num_mtp_layers > 0,
        "tied embeddings": model.tied_embeddings,
        "bias of the output head": model.head_bias,
        "free head size": any(
            one.head_dim * one.num_attention_heads != one.hidden_size for one in attending
        ),
        "soft cap of attention scores": model.attention_softcap is not None,
        "soft cap of logits": model.logit_softcap is not None,
        "attention sinks": any(one.attention_sinks for one in attending),
        "values of another size than keys": any(one.v_head_dim != one.head_dim for one in attending)
        and model.mla is None,
        "keys that are the values": any(one.keys_are_values for one in attending),
        "norm of values": model.value_norm,
        "layers that borrow keys": model.borrowing_layers > 0,
        "embeddings of each layer": model.layer_embedding_size > 0,
        "several streams of hidden states": model.streams is not None,
        "sparse gates of MLPs": bool(model.streams and model.streams.sparse_layers),
        "scale of values": model.value_scale != 1,
        "scale of attention scores": model.attention_scale is not None,
        "scale of embeddings": model.embedding_scale != 1,
        "scale of residuals": model.residual_scale != 1,
        "residuals scaled by their depth": model.depth_scaled_residuals,
        "scale of logits": model.logit_scale != 1,
        "gate of attention's output": model.attention_gate != "none" and not model.gate_in_queries,
        "gate of attention's output in the queries' projection": model.gate_in_queries,
        "bias of attention's gate": model.gate_bias,
        **{one.fact: bool(model.mixer and model.mixer.kind == kind) for kind, one in MIXER_KINDS.items()},
        "mixers next to attention in a layer": model.paired is not None,
        DIFFUSION: model.diffusion is not None,
        LABELS: model.num_labels > 0,
        "layers of one block": bool(model.layer_pattern),
        "layers of unlike sizes": model.unlike_layers,
        "MLPs next to state-space layers": known and not pattern,
        "state-space layers of another form": known
        and not (usual and mixer is not None and not mixer.projection_bias),
        "gated delta nets in layers of one block": bool(
            mixer and mixer.kind == "gated_delta_net" and pattern
        ),
        "prediction after layers of one block": pattern and model.num_mtp_layers > 0,
        "mixers in all but listed layers": bool(model.mixer and model.mixer.attention_layers),
        "clamped queries, keys and values": model.attention_clip is not None,
        "queries scaled by their position": model.position_scaled_queries,
        "another attention of local layers": model.local_attention is not None,
        "latent attention": model.mla is not None,
        "keys chosen by an indexer": model.indexer is not None,
        "blocks of keys chosen by an indexer": bool(model.indexer and model.indexer.of_blocks),
        "keys chosen by an earlier layer's indexer": bool(model.indexer and model.indexer.reusing_layers),
        "compressed entries of attention": model.compression is not None,
        "hyper-connections": model.hyper_streams > 0,
        "attention residuals": model.residual_block_layers > 0,
        "differential attention": model.differential_attention,
        "projected embeddings": model.embedding_size is not None,
        "transform before the output head": model.head_transform,
        "normalized output head": model.normalized_head,
        "bias of latent attention": bool(model.mla and model.mla.latent_bias),
        "attention within chunks": chunks,
        "sliding windows": model.sliding_window is not None and not chunks,
        "sliding windows of listed layers": bool(model.global_layers) and not chunks,
        "rmsnorm without weights": norm == "rmsnorm_without_weights",
        "layernorm": norm == "layernorm",
        "layernorm without bias": norm == "layernorm_without_bias",
        "layernorm without weights": norm == "layernorm_without_weights",
        "zero-centered norms": model.zero_centered_norm,
        "norms after attention and MLP": model.norm_position == "after",
        "norms before and after attention and MLP": model.norm_position == "before_and_after",
        "norms after residuals": model.norm_position == "after_residual",
        "no norm before the output head": not model.final_norm,
        "norms inside attention and MLP": model.inner_norms,
        "parallel attention and MLP": model.parallel_residual,
        "one norm for attention and MLP": model.shared_norm,
        "query-key norm of each head": model.query_key_norm == "per_head",
        "query-key norm over all heads": model.query_key_norm == "all_heads",
        "query-key norm of each head's own": model.query_key_norm == "each_head",
        "query-key norm without weights": model.query_key_norm == "per_head_without_weights",
        "norm of the embedding": model.embedding_norm,
        "first norm before its residual": model.early_first_norm,
        "ungated MLP": not model.gated_mlp,
        activation: model.mlp_activation != ("silu" if model.gated_mlp else "gelu"),
        f"clamp of {activation}": model.activation_clamp is not None,
        f"offset of {activation}": model.gate_offset != 0,
        **(_expert_facts(model, model.moe) if model.moe else {}),
        "linear bias": biased,
        **{name: there and not biased for name, there in biases.items()},
        "bias of the last layer's attention": model.last_attention_bias,
        "bias of the MLP's last matrix": model.mlp_output_bias,
        "bias of experts and their router": biased and routed,
        "bias of experts, not of their router": biased and model.moe is not None and not routed,
        "bias of the router": routed and not biased,
        **_position_facts(model),
    }


def _expert_facts(model: ModelSpec, moe: MoeSpec) -> dict[str, bool]:
    normalized, sigmoid = moe.normalized_top_k, moe.router_score == "sigmoid"
    return {
        "experts": True,
        "shared experts": moe.shared_ffn_hidden_size > 0,
        "gated shared experts": moe.shared_expert_gate,
        "layers without experts": "dense" in model.layer_kinds(),
        "softmax over all experts": moe.router_score == "softmax" and not normalized,
        "one expert with a normalised weight": normalized and moe.top_k == 1,
        "sigmoid router": sigmoid,
        "sigmoid router without normalisation": sigmoid and not normalized and moe.top_k > 1,
        "sparsemixer router": moe.router_score == "sparsemixer",
        "sqrtsoftplus router": moe.router_score == "sqrtsoftplus",
        "untrained bias of the router's choice": moe.selection_bias,
        "untrained bias of a softmax router": moe.selection_bias and moe.router_score == "softmax",
        "experts weighted at their input": moe.weights_on_input,
        "experts of a latent": moe.latent_size > 0,
        "norm of the experts' output": moe.output_norm,
        "norm of the experts' latent": moe.latent_norm,
        "norms of routed and shared experts": moe.norms_apart,
        "scales of the router": moe.router_scales,
        "experts without the MLP's biases": model.mlp_bias and not moe.expert_bias,
        "groups of experts": moe.router_groups > 0,
        "scaled experts": moe.router_scaling != 1,
    }


_LLAMA_3_FACTOR = 8.0  # of Llama 3.1, which MaxText fixes


def _position_facts(model: ModelSpec) -> dict[str, bool]:
    facts = {
        "learned positions": model.learned_position_embeddings,
        "position table with an offset": model.learned_position_offset > 0,
        "positions by ALiBi": model.alibi_positions,
        "sinusoidal positions": model.sinusoidal_positions,
        "layers without rotary positions": any(model.layers_without_rotary()),
        "partial rotary positions": model.rotary_fraction != 1,
        "rotary base of local layers": model.rotary_local_base is not None,
        "partial rotary positions of local layers": model.rotary_local_fraction is not None,
    }
    scaling = model.rotary_scaling
    if scaling is not None:
        name = f"{scaling.kind} rotary scaling"
        original = scaling.original_max_position_embeddings
        if model.mla and scaling.kind != "yarn":  # Megatron-Core scales latent attention by YaRN alone
            name += " of latent attention"
        elif scaling.kind == "llama3":
            usual = (scaling.low_freq_factor, scaling.high_freq_factor, original) == (1, 4, 8192)
            other = "" if scaling.factor == _LLAMA_3_FACTOR else " by another factor than 8"
            name += other if usual else " of other wavelengths"
        elif scaling.kind == "yarn" and model.mla:
            usual = (scaling.beta_fast, scaling.beta_slow, original) == (32, 1, 4096)
            plain = scaling.truncate and scaling.attention_factor is None
            wavelengths = " of latent attention" if usual else " of latent attention, of other wavelengths"
            name += wavelengths if plain else " of other wavelengths"
        elif scaling.kind == "yarn":
            name += "" if scaling.attention_factor is None else " by an attention factor"
        elif scaling.kind == "linear":
            name += " by a whole factor" if scaling.factor == int(scaling.factor) else " by a fraction"
        facts[name] = True
    return facts
