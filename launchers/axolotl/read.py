"""Reader of Axolotl's YAML: a trainer over accelerate's mesh, or on DeepSpeed.

Names and defaults: Axolotl 0.19.0 and 0.21.0, utils/schemas (config.py, fsdp.py), utils/config, and
utils/distributed.py (_get_parallel_config_kwargs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from meshwright.launchers.accelerate import read as accelerate
from meshwright.launchers.accelerate.read_command import ADDRESS, shares_of
from meshwright.launchers.axolotl.read_experts import (
    SCATTERS,
    SIZE,
    expert_backend,
    expert_ranks,
    experts_options,
    merged_options,
    packed_base,
    products_options,
    require_ranks_of_experts,
)
from meshwright.launchers.export import bucket_option
from meshwright.launchers.flags import flags_of, is_off
from meshwright.launchers.reading.adapters import (
    OF_ADAPTERS,
    TowerNames,
    adapted,
    base_of,
    of_trainer,
    options_of,
    refuse_uncounted,
    require_replicas,
    require_whole_weights,
    stored_as_qlora,
    stored_base,
    trained_whole,
    with_layers_apart,
)
from meshwright.launchers.reading.base import LaunchFile, Options, Overrides, Reader, Source, refused
from meshwright.launchers.reading.commands import World, accelerates_options, commands_beside
from meshwright.launchers.reading.documents import LocatedValue, document_of, names_held
from meshwright.launchers.reading.fields import Fields, divided
from meshwright.launchers.reading.images import ImageSettings, require_tower, with_images
from meshwright.launchers.reading.known import Known, known_of
from meshwright.launchers.reading.patterns import is_pattern
from meshwright.launchers.reading.preferences import (
    GENERATES,
    KINDS,
    PROCESS_REWARD,
    REWARD,
    Kind,
    labelled,
    samples_of,
)
from meshwright.launchers.reading.trained_layers import HEADS, LANGUAGES, of_patterns
from meshwright.launchers.transformers import read as trainer
from meshwright.launchers.transformers import read_ranks as ranks
from meshwright.launchers.trl.read import take_model
from meshwright.profiles.adapters import (
    EMBEDDING,
    HEAD,
    SINGLE_TARGETS,
    matrix_rows,
    parted,
    tower_targets,
)
from meshwright.profiles.documents import shown
from meshwright.profiles.frameworks import TERNARY
from meshwright.profiles.importers.huggingface_keys import harmless_reason
from meshwright.profiles.layer_names import class_name
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import OPTIMIZERS, UNPAGED, WITHOUT_COPY, optimizer_named
from meshwright.profiles.storage import is_cut
from meshwright.profiles.tower_modules import TOWER_TARGETS, modules_of
from meshwright.profiles.towers import TOWER_PARTS
from meshwright.profiles.trained_layers import ranges_of
from meshwright.shell.values import Word
from meshwright.solver.configuration import OFFLOAD, Configuration
from meshwright.solver.problem import Workload

_OWN = ("base_model", "sequence_len", "sample_packing", "pad_to_sequence_len", "dp_shard_size")
_SHARDED = 3  # ZeRO-3
_FSDP2 = 2
_FSDP = "fsdp_config."
_ADAPTERS = ("lora", "qlora")


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    over = _of_command(source, overrides)
    # names of the FSDP section as in Axolotl since 0.12, without ``fsdp_`` (schemas/fsdp.py)
    values = {
        name.replace(f"{_FSDP}fsdp_", _FSDP): found for name, found in (document_of(source) | over).items()
    }
    dequantised = _WIDENED in values and str(values[_WIDENED].value).lower() == "true"
    plain = [name for name in values if _changes_nothing(name, dequantised=dequantised)]
    values = {name: found for name, found in values.items() if name not in plain}
    fields, known = Fields(source.name, values, overrides, ("axolotl",)), known_of(source, overrides)
    fields.note_commands(over)
    if fields.flag("use_ray"):  # cli/train.py:126: so many workers, each with a GPU
        known.world = World(processes=fields.integer("ray_num_workers", 1))
    for name in plain:
        fields.note(f"{name} doesn't change the step, so it is ignored")
    fields.refuse_unpriced()
    for section in _SECTIONS:
        for name in fields.section(section):
            changed = f"{section}.{name}"
            if not name.startswith("rope") and is_off(str(fields.raw(changed))):  # else refused above
                fields.fault(changed, "changes to the named model can't be read")
    fields.stop()
    _take_model(fields, known)
    tuned = _tuned(fields, known)
    tuned |= _partly_trained(fields, known.model(), adapts="lora_rank" in tuned)
    precision = _precision(fields)
    eight_bits = _eight_bits(fields)
    for name in ("micro_batch_size", "sequence_len"):
        fields.expect(name)
    if not (fields.raw("sample_packing") or fields.raw("pad_to_sequence_len")):
        fields.note(trainer.PADDED.format("sequence_len"))
    packed = "sample_packing" if fields.flag("sample_packing") else ""
    settings = _image_settings(fields, known.model(), tuned)
    if fields.has("deepspeed"):
        run = replace(_by_deepspeed(fields, known, precision, tuned), packed=packed)
        return run if settings is None else with_images(run, known, settings)
    configuration = _configuration(fields, known)
    _require_dealt(fields, known.model(), configuration, tuned["optimizer"])
    idle, nodes = known.world.idle_gpus, known.world.num_nodes
    world = configuration.num_gpus + idle
    each = divided(world, nodes, field="dp_shard_size", what="nodes") if nodes else None
    workload = Workload(
        global_batch_size=configuration.global_batch_size,
        seq_length=fields.integer("sequence_len"),
        precision="fp8" if eight_bits else precision,
        framework_options={
            **eight_bits,
            **_ends(fields, known.model(), tuned["optimizer"]),
            **_redrawn(fields, configuration),
            **ranks.kernel_of(fields, "axolotl", configuration),
            **products_options(fields, known.model(), "axolotl"),
            **experts_options(fields, configuration, tuned),
            **bucket_option(fields.optional(accelerate.DDP_BUCKET), "axolotl", configuration),
            **_kernels(fields, known.model()),
            **_of_adapters(fields, tuned),
            **_fake_quantisers(fields, tuned),
            **merged_options(fields, tuned),
            **ranks.evaluation_of(fields),
        },
        **tuned,
    )
    ranks.note_attention(fields, known.model(), workload, "axolotl")
    run = known.launch_file(
        fields, _priced_as(fields, tuned), known.model(), workload, configuration,
        world=World(nodes, each, idle_gpus=idle),
    )  # fmt: skip
    run = replace(run, packed=packed)
    run = run if settings is None else with_images(run, known, settings)
    if "optimizer_rank" not in tuned:
        return run
    variant = trainer.layerwise(fields, run, tuned["optimizer"], "optimizer")
    fields.stop()
    return replace(run, workload=replace(run.workload, optimizer=variant))


def _take_model(fields: Fields, known: Known) -> None:
    """Take the named model as Axolotl loads it."""
    take_model(fields, known, _MODEL, frozen=True, packed=True)
    if fields.raw(_PROCESSOR):  # before adapters, which may be of the tower's layers
        require_tower(known.model(), _PROCESSOR)
    model = with_layers_apart(fields, _with_listed_experts(fields, known.model()))
    model = labelled(fields, model, _preferences(fields))
    if _denoises(fields):
        _require_denoiser(fields, model)
        model = replace(model, causal=False)
    known.overrides = replace(known.overrides, model=model)


_DENOISER = "diffusionplugin"  # of plugins, in lower case
_WHOLE_KERNELS = ("sdpa", "eager")  # that take a mask of every token with every other


def _denoises(fields: Fields) -> bool:
    """Return whether masked tokens are predicted from all others (0.18 integrations/diffusion)."""
    return any(_DENOISER in one for one in _listed(fields))


def _require_denoiser(fields: Fields, model: ModelSpec) -> None:
    """Refuse what training on masked tokens leaves out, or what isn't priced next to it.

    Its trainer gives the model a mask of four dimensions and no labels (trainer.py:205): the model's own
    losses do nothing, and attention that takes no such mask fails.
    """
    named = "attn_implementation"
    kernel = fields.word(named, "sdpa")
    others = next((name for name in _OTHER_ATTENTION if fields.flag(name)), "")
    if kernel not in _WHOLE_KERNELS or others:
        fields.fault(
            others or named,
            "its trainer masks pairs of tokens, which this attention does not take",
            allowed=", ".join(_WHOLE_KERNELS), nearest="sdpa",
        )  # fmt: skip
    if model.sliding_window is not None or model.mixes or model.tower is not None or model.num_labels:
        fields.fault(
            "plugins",
            f"{_DENOISER} is priced of models whose layers all attend to whole texts, not of {model.title}",
            allowed="a model without windows, mixers, towers and labels",
        )
    if fields.integer("context_parallel_size", 1) > 1:
        fields.fault(
            "context_parallel_size",
            "its rings are causal, and its trainer is not",
            allowed="1",
            nearest="1",
        )
    for name in ("rl", "reward_model", "process_reward_model"):
        if fields.raw(name):
            fields.fault(name, f"next to {_DENOISER} is not read", allowed="one of them")
    for name in _FUSED_LOSSES:
        if fields.flag(name):
            fields.fault(
                name, f"of a loss of masked tokens is not priced ({_DENOISER})", allowed="false",
                nearest="false",
            )  # fmt: skip
    if fields.raw("diffusion.mask_token_id") is None:
        fields.note("diffusion.mask_token_id is not given: a token may be added, which isn't priced")
    fields.stop()


_OTHER_ATTENTION = ("flash_attention", "flex_attention", "xformers_attention")
_FUSED_LOSSES = ("liger_cross_entropy", "flash_attn_cross_entropy", "unsloth_cross_entropy_loss")


AXOLOTL_READER = Reader(
    name="axolotl",
    recognises=lambda source: names_held(source, (*_OWN, "micro_batch_size")) > 1,
    read=_read,
)


_SECTIONS = ("overrides_of_model_config", "model_config")
_WITHOUT_EFFECT = ("tokens and generation", "initial weights")  # of ``catalog/model_keys.yaml``
# The loss that balances experts: one number a token and expert, next to the layers' own tensors.
_BALANCING = ("output_router_logits", "router_aux_loss_coef")


# Of a model that is stored in MXFP4: with ``dequantize`` it is loaded in bf16 (utils/schemas/model.py).
_AS_STORED = ("model_quantization_config", "model_quantization_config_kwargs")
_WIDENED = "model_quantization_config_kwargs.dequantize"


def _changes_nothing(name: str, *, dequantised: bool) -> bool:
    """Return whether a name is a key of the model's configuration that no step depends on."""
    section, _, key = name.partition(".")
    if section in _AS_STORED:
        return dequantised
    harmless = key in _BALANCING or (harmless_reason(key) or "").startswith(_WITHOUT_EFFECT)
    return section in _SECTIONS and harmless


def _of_command(source: Source, overrides: Overrides) -> dict[str, LocatedValue]:
    found: dict[str, LocatedValue] = {}
    for script, words in commands_beside(source, overrides):
        texts = [word.text for word in words]
        starts = ("axolotl.cli.train" in texts) or ("axolotl", "train") in pairwise(texts)
        if starts and any(text.rpartition("/")[2] == source.name for text in texts):
            at = next(at for at, text in enumerate(texts) if text in ("train", "axolotl.cli.train"))
            end = texts.index("--", at) if "--" in texts[at:] else None  # the launcher's own follow
            found |= trainer.values_of(words[at:end], overrides)
            if accelerates_options(words[:at]) is not None:
                _require_own_sharding(words[:at], script)
            elif end is not None and found.get("launcher", _ACCELERATE).value == "accelerate":
                _require_own_sharding([Word("accelerate", 0), Word("launch", 0), *words[end + 1 :]], script)
    for name in [name for name, one in found.items() if one.value in (True, "true", "false")]:
        one = found.pop(name)  # --sample-packing, --no-sample-packing
        found[name.removeprefix("no_")] = LocatedValue(one.value != "false" and name[:3] != "no_", one.line)
    return found


_ACCELERATE = LocatedValue("accelerate", 0)  # axolotl train's own launcher
_OF_THE_START = ("num_processes", "num_machines", ADDRESS, "mixed_precision")


def _require_own_sharding(words: Sequence[Word], script: Source) -> None:
    """Refuse sharding by ``accelerate launch``, which Axolotl's own sections override in part.

    Raises:
        InvalidProblemError: an option is refused or unknown, or shards the model.
    """
    shares, rows = shares_of(words, script), flags_of("accelerate")
    own = {} if shares is None or shares.kind() in ("NO", "MULTI_GPU") else shares.values
    for name, one in own.items():
        if name not in _OF_THE_START and name in rows and rows[name].role == "priced":
            where = f"line {one.line} of {shown(script.name)}"
            raise refused(
                f"{where}: {name} of accelerate launch next to Axolotl's file is not read",
                allowed="the sharding in Axolotl's file, by fsdp_config or deepspeed",
            )


def _by_deepspeed(fields: Fields, known: Known, precision: str, tuned: dict[str, Any]) -> LaunchFile:
    """Return the run of the file that ``deepspeed`` names; the YAML sets the values of its ``auto``.

    DeepSpeed keeps an fp32 copy of weights and fp32 states, whatever the optimizer's name.
    """
    for name in ("tensor", "context", "expert"):
        if fields.integer(f"{name}_parallel_size", 1) > 1:
            fields.fault(f"{name}_parallel_size", "next to DeepSpeed is not read", allowed="1", nearest="1")
    world = known.required("num_gpus", known.num_gpus(), "the script that starts it")
    (recompute, inputs_away), micro = _activations(fields), fields.integer("micro_batch_size")
    count = _count(fields, micro)
    products = products_options(fields, known.model(), "deepspeed")
    if _rounds(fields):
        name = _ONE_BIT if fields.flag(_ONE_BIT) else _QAT
        fields.fault(name, "next to DeepSpeed is not read", allowed=f"no {name}, or an fsdp_config")
    options = {**_kernels(fields, known.model()), **products, **_of_adapters(fields, tuned)}
    options |= ranks.evaluation_of(fields)
    fields.stop()
    optimizer = tuned["optimizer"].removesuffix("-bf16")
    values: dict[str, int | str | bool] = {
        "micro_batch_size": micro,
        "num_microbatches": count,
        "seq_length": fields.integer("sequence_len"),
        "precision": precision,
        "optimizer": optimizer,
        "recompute_granularity": "full" if recompute else "none",
    }
    overrides = replace(known.overrides, model=known.model(), num_gpus=world, values=values)
    name = str(fields.raw("deepspeed"))
    found = ranks.run_of_deepspeeds_file(name, fields, known.source, overrides, key="deepspeed")
    if inputs_away:
        found = replace(found, configuration=_with_inputs_away(fields, found.configuration))
    if "base_precision" in tuned:
        require_whole_weights(fields, found.configuration.zero_stage, tuned["lora_rank"], packs=True)
    if "optimizer_rank" in tuned:
        trainer.layerwise(fields, found, tuned["optimizer"], "optimizer")
        fields.stop()
    tuned = {**tuned, "optimizer": found.workload.optimizer}
    options = {**found.workload.framework_options, **options}
    whole = known.world.num_gpus == world
    return replace(
        found,
        workload=replace(found.workload, **tuned, framework_options=options),
        num_nodes=known.world.num_nodes if whole else None,
        gpus_per_node=known.world.gpus_per_node if whole else None,
        idle_gpus=known.world.idle_gpus,
        notes=(*fields.notes, *found.notes),
        unread=(*fields.unread(), *found.unread),
    )


def _with_listed_experts(fields: Fields, model: ModelSpec) -> ModelSpec:
    """Return a model with experts of linear layers, one after another, where Llama 4 is patched so.

    Axolotl 0.19, loaders/patch_manager.py:435: other types ignore the switch.
    """
    is_llama4 = model.moe is not None and model.moe.runs_every_expert
    if not (fields.flag("llama4_linearized_experts") and is_llama4 and model.moe):
        return model
    return replace(model, moe=replace(model.moe, expert_adapters="listed"))


_MUON = "muon"


def _orthogonal(fields: Fields) -> str:
    """Return Muon where it is the optimizer: of whole weights in bf16 that FSDP2 cuts (base.py:314)."""
    if fields.raw("optimizer") != _MUON:
        return ""
    cut = _is_cut(fields) and _version(fields) == _FSDP2 and not fields.flag(_OFFLOADS)
    if fields.has("deepspeed") or not cut or fields.word("adapter", "") in _ADAPTERS or _is_half(fields):
        fields.fault(
            "optimizer",
            "muon is priced of whole weights that FSDP2 cuts over all GPUs, in bf16",
            allowed="fsdp_version: 2 with an fsdp_config, or adamw_torch_fused",
            nearest="adamw_torch_fused",
        )
    return fields.word("optimizer", _MUON)


def _require_dealt(fields: Fields, model: ModelSpec, found: Configuration, optimizer: str) -> None:
    """Refuse meshes and shapes that stop Muon (axolotl-contribs-mit 0.0.6 dist_muon.py:233, :378)."""
    if not optimizer_named(optimizer).newton_schulz:
        return
    shards, rows = found.zero_shard_size, matrix_rows(model)
    others = found.tensor_parallel_size * found.context_parallel_size * found.expert_parallel_size
    if others > 1 or shards != found.data_parallel_size:
        fields.fault(
            "optimizer",
            "muon takes one mesh of shards alone: tensor, context and expert ranks or replicas stop it",
            allowed="dp_shard_size as large as the run, or adamw_torch_fused",
            nearest="adamw_torch_fused",
        )
    elif rows % shards:
        fields.fault(
            "optimizer",
            f"muon deals out equal rows, and {shards} ranks don't divide those of {model.title}'s matrices",
            allowed=f"ranks that divide {rows}, or adamw_torch_fused",
            nearest="adamw_torch_fused",
        )
    fields.stop()


def _tuned(fields: Fields, known: Known) -> dict[str, Any]:
    """Return the trained modules, adapters and optimizer; 8-bit Adam updates weights in bf16 only."""
    projected = trainer.trainers_low_rank(fields, known.model(), "optimizer")
    name = projected.get("optimizer") or _orthogonal(fields)
    name = name or trainer.optimizer_of(fields, "optimizer", "adamw_torch_fused")
    if _is_cut(fields) or fields.has("deepspeed"):
        name = UNPAGED.get(name, name)
    in_bf16 = name == _MUON or name.startswith("adamw-8bit")
    found: dict[str, Any] = {"optimizer": WITHOUT_COPY[name] if in_bf16 else name}
    kind = fields.choice("adapter", "")
    if _is_quantised(fields, kind):  # adapters stay in fp32 (peft, prepare_model_for_kbit_training)
        own = _is_cut(fields) and _version(fields) == _FSDP2 and not fields.flag(_OFFLOADS)
        optimizer = found["optimizer"] if own else name
        found = {"optimizer": optimizer, "base_precision": base_of(fields, nested=True)}
        if _is_cut(fields) and kind == "lora" and _version(fields) != _FSDP2:
            fields.fault(
                _QUANTISED[kind],
                "its trainer refuses weights of 8 bits under FSDP1: torch flattens no integers",
                allowed="false, or fsdp_version: 2",
            )
        where = "FSDP" if _is_cut(fields) else "replicas"
        fields.note(f"weights of 4 or 8 bits under Axolotl are predicted as on accelerate's {where}")
    found |= _stored(fields, known.model(), kind)
    if kind not in _ADAPTERS and not fields.has("deepspeed"):
        # FSDP1 casts trained weights up (accelerate, accelerator.py); without FSDP they stay in bf16
        if not _is_cut(fields) or _is_half(fields):
            found["optimizer"] = WITHOUT_COPY.get(name, name)
        elif _version(fields) == 1:
            found["optimizer"] = name
    if kind not in _ADAPTERS:
        if fields.raw("lora_r"):
            fields.note("lora_r does nothing without an adapter")
        fields.take("adapter")
        fields.take_setting(*OF_ADAPTERS)
    _require_restarts(fields, kind, name)
    if kind in _ADAPTERS:
        refuse_uncounted(fields)
        found["lora_rank"] = fields.integer("lora_r", 8)
        found["lora_targets"] = _adapted(fields, known.model())
        found["trained_modules"] = trained_whole(fields)
    found |= samples_of(fields, _preferences(fields), adapts="lora_rank" in found)
    return projected | found


def _adapted(fields: Fields, model: ModelSpec) -> tuple[str, ...]:
    """Return the adapted layers, a tower's among them where a processor of images is named."""
    every = fields.flag("lora_target_linear")
    tower: TowerNames = "ends" if fields.raw(_PROCESSOR) else ""
    layers, parameters = parted(adapted(fields, model, pefts=not every, tower=tower))
    if every:
        layers = (*SINGLE_TARGETS, *(name for name in layers if name in TOWER_TARGETS))
    return _without_frozen_adapters(fields, model, (*of_trainer(fields, layers, model), *parameters))


_OF_TOWERS = {"vision_tower", "vision_model", "visual", "multi_modal_projector"}


def _without_frozen_adapters(fields: Fields, model: ModelSpec, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the adapters that are trained: a frozen tower's are not (0.18 utils/freeze.py:29).

    It freezes what lies in modules of some names: projectors of other names keep their adapters.
    """
    known = modules_of(model.tower)
    if known is None or not fields.flag("freeze_mm_modules"):
        return targets
    frozen = [name for name in known.targets if _OF_TOWERS & {*known.paths(name)[0].split(".")}]
    trained = tuple(name for name in targets if name not in frozen)
    if trained == targets:
        return targets
    fields.note("freeze_mm_modules freezes the tower's adapters, too: they are not priced")
    return trained


_MODEL, _GPTQ = "base_model", "gptq"


def _stored(fields: Fields, model: ModelSpec, kind: str) -> dict[str, Any]:
    """Return the type of frozen weights that a checkpoint has in few bits (0.19 loaders/model.py:679).

    ``gptq`` has to agree with the checkpoint (loaders/utils.py:116), which is loaded as it is without it.
    """
    base = packed_base(fields, model, kind) or stored_base(fields, model, int(kind in _ADAPTERS))
    if fields.flag(_GPTQ) and not str(base).startswith(_GPTQ):
        fields.fault(_GPTQ, f"its trainer refuses it: {model.title} is not stored in GPTQ", allowed="false")
    if base is None:
        return {}
    cut = kind in _ADAPTERS and (_is_cut(fields) or fields.has("deepspeed"))
    require_replicas(fields, base, shards=cut, why="next to FSDP and DeepSpeed they are not priced")
    return {"base_precision": base}


_RESTARTS = "relora"


def _require_restarts(fields: Fields, kind: str, optimizer: str) -> None:
    """Record a fault for a run that ReLoRA doesn't start in; its steps between two merges are LoRA's.

    Axolotl 0.19, utils/schemas/validation.py:1732 and monkeypatch/relora.py:172.
    """
    if not fields.flag(_RESTARTS):
        return
    whys = {
        "without an adapter": kind not in _ADAPTERS,
        "without jagged_restart_steps": not fields.raw("jagged_restart_steps"),
        "next to FSDP": _is_cut(fields),
        "next to DeepSpeed": fields.has("deepspeed"),
        "next to flash_attn_fuse_mlp": fields.flag("flash_attn_fuse_mlp"),
        "with another optimizer than Adam": "adam" not in optimizer,
    }
    for why in (why for why, holds in whys.items() if holds):
        fields.fault(_RESTARTS, f"its trainer refuses it {why}", allowed="false", nearest="false")
    fields.note("relora: one step in jagged_restart_steps merges adapters and saves the model: not priced")


def _image_settings(fields: Fields, model: ModelSpec, tuned: Mapping[str, Any]) -> ImageSettings | None:
    """Return the parts that a run with images does not train; None for text alone.

    Names of adapted layers may be a tower's too, a pattern's path is not (loaders/adapter.py). Without a
    processor it reads text alone (0.19, common/datasets.py:59).
    """
    still = _freezes_tower(fields, model, adapts="lora_rank" in tuned) or fields.flag("freeze_mm_modules")
    adapts = bool(tuned.get("lora_rank"))
    if not fields.raw(_PROCESSOR):
        frozen = TOWER_PARTS if still or adapts else ()
        return ImageSettings(frozen=frozen, none_read=True) if model.tower else None
    apart = adapts and model.tower is not None and bool(tower_targets(model))
    apart |= adapts and is_pattern(str(fields.raw("lora_target_modules") or ""))
    frozen = TOWER_PARTS if apart or still else ()
    return ImageSettings(frozen=frozen, limit=_PROCESSOR, stated=True)


_PROCESSOR = "processor_type"
_TRAINED = "unfrozen_parameters"
_PEFTS = "base_model.model"


def _patterns(fields: Fields) -> list[str]:
    """Return the patterns of the weights that are trained; none: all are."""
    said = fields.raw(_TRAINED)
    return [str(one) for one in (said if isinstance(said, list) else [said] if said else [])]


def _starts(patterns: Sequence[str]) -> list[str]:
    return [one.removeprefix("^").removesuffix("$").removesuffix(".*") for one in patterns]


def _redrawn(fields: Fields, configuration: Configuration) -> Options:
    """Return the option of layers that are drawn anew: DDP stops at weights that lose their gradients."""
    if not _draws_layers(fields):
        return {}
    if configuration.num_gpus > 1:
        fields.fault(_LISA, "is not supported with several GPUs", allowed="one GPU, or no lisa_n_layers")
        fields.stop()
    return {"redraws_layers": True}


_LISA, _LISA_STEPS = "lisa_n_layers", "lisa_step_interval"


def _draws_layers(fields: Fields) -> bool:
    """Return whether the trained layers are drawn anew now and then (core/builders/causal.py:133)."""
    return bool(fields.optional(_LISA)) and bool(fields.optional(_LISA_STEPS))


def _drawn(fields: Fields, model: ModelSpec, *, apart: bool) -> dict[str, Any]:
    """Return as many trained layers as LISA draws, with both ends, which it leaves trained.

    Which ones they are changes no price: gradients go through all layers to the embedding.
    """
    drawn, path = fields.integer(_LISA, low=1), fields.word("lisa_layers_attribute", "model.layers")
    whys = {
        "next to adapters, unfrozen_parameters or a tower it": not apart,
        f"lisa_layers_attribute {path}": path != "model.layers",
        f"{drawn} of {model.num_layers} layers": drawn > model.num_layers,
        "DeepSpeed": fields.has("deepspeed"),
        "a run with FSDP": _is_cut(fields),
    }
    for why in (why for why, holds in whys.items() if holds):
        fields.fault(_LISA, f"{why} is not supported", allowed=f"1 to {model.num_layers} layers alone")
    fields.stop()
    fields.note(f"{_LISA}: moments of all layers are counted, which stay when others are drawn")
    return {"trained_layers": ranges_of(range(drawn)), "trained_modules": (EMBEDDING, HEAD)}


def _partly_trained(fields: Fields, model: ModelSpec, *, adapts: bool) -> dict[str, Any]:
    """Return the trained layers and ends where patterns leave out weights of the language model."""
    listed, towers = _patterns(fields), model.tower is not None
    if _draws_layers(fields):
        return _drawn(fields, model, apart=not (adapts or listed or towers))
    if not listed or adapts:
        return {}
    names = (LANGUAGES[towers:], *(() if model.tied_embeddings else (HEADS,)))
    if all(any(name.startswith((*_starts(listed),)) for name in either) for either in names):
        return {}
    return of_patterns(fields, _TRAINED, listed, model)


def _freezes_tower(fields: Fields, model: ModelSpec, *, adapts: bool) -> bool:
    """Return whether the patterns of trained weights leave out a tower alone (utils/freeze.py).

    A pattern matches from the first letter of a name, and its dots are dots: ``.*`` repeats one.
    """
    starts = _starts(_patterns(fields))
    if not starts:
        return False
    if adapts and not any(one.startswith(_PEFTS) or _PEFTS.startswith(one) for one in starts):
        fields.fault(
            _TRAINED,
            f"trains nothing: peft's names begin with {_PEFTS}, and these patterns don't",
            allowed=f"none (adapters train alone), or --ignore {_TRAINED}",
        )
        return False
    towers = model.tower is not None
    if adapts:
        fields.fault(
            _TRAINED,
            "trains a part of the language model's weights next to adapters: that is not supported",
            allowed=f"patterns without an adapter, or --ignore {_TRAINED}",
        )
    return towers and not any("model.vision".startswith(one) for one in starts)


_EXPERTS = "quantize_moe_experts"


def _of_adapters(fields: Fields, tuned: Mapping[str, Any]) -> Options:
    """Return the options of adapters, and whether experts that lie in one tensor are quantised, too."""
    if not tuned.get("lora_rank"):
        return {}
    found = options_of(fields)
    if expert_backend(fields) == SCATTERS and parted(tuned["lora_targets"])[1]:
        found["wraps_experts"] = False
    if fields.flag(_EXPERTS):
        if is_cut(tuned.get("base_precision", "bf16")):
            found["quantizes_experts"] = True
        else:
            fields.fault(
                _EXPERTS, "its trainer refuses it without load_in_4bit or load_in_8bit", allowed="false"
            )
    return found


def _preferences(fields: Fields) -> Kind | None:
    """Return the kind of training on preferences (core/builders/rl.py, train.py setup_reference_model)."""
    of_rewards = {"reward_model": REWARD, "process_reward_model": PROCESS_REWARD}
    if (named := next((one for one in of_rewards if fields.flag(one)), None)) is not None:
        return of_rewards[named]
    name = fields.word("rl", "")
    if name and name not in KINDS:
        fields.fault("rl", f"{shown(name)} {GENERATES}", allowed=", ".join(KINDS))
    return KINDS.get(name)


_QUANTISED = {"qlora": "load_in_4bit", "lora": "load_in_8bit"}  # _set_quantization_config
# torch 2.13, distributed/fsdp/_flat_param.py:810: "Cannot flatten integer dtype tensors".


def _is_quantised(fields: Fields, kind: str) -> bool:
    """Return whether frozen weights are quantised; each kind of adapter has its own switch."""
    own = _QUANTISED.get(kind, "")
    other = next((name for name in _QUANTISED.values() if name != own and fields.flag(name)), "")
    if kind == "qlora" and not fields.raw(own):
        fields.fault("adapter", "qlora needs load_in_4bit", allowed="load_in_4bit: true, or lora")
    elif other and own:
        right = next(name for name, switch in _QUANTISED.items() if switch == other)
        fields.fault(
            other,
            f"next to adapter {kind} Axolotl 0.19 does not look at it, older ones do",
            allowed=f"false, or adapter: {right}",
            nearest="false",
        )
    elif other:
        fields.fault(other, "Axolotl refuses it without an adapter", allowed="false", nearest="false")
    return bool(own) and not other and (fields.flag(own) or bool(stored_as_qlora(fields)))


def _count(fields: Fields, micro: int) -> int:
    """Return the accumulated micro-batches; ``batch_size`` is per rank (utils/config, normalize_config)."""
    whole = fields.optional("batch_size")
    if whole is None:
        return fields.integer(accelerate.ACCUMULATION)
    if fields.raw(accelerate.ACCUMULATION):
        fields.fault(
            "batch_size", f"Axolotl takes it or {accelerate.ACCUMULATION}, not both", allowed="one of them"
        )
    return max(whole // micro, 1)


def _activations(fields: Fields) -> tuple[bool, bool]:
    """Return whether layers recompute, and whether what is kept goes to the host.

    Offloading replaces recomputation next to adapters; else the inputs of recomputed layers go
    (core/builders/base.py _configure_gradient_checkpointing; loaders/model.py).
    """
    away, own = str(fields.raw(_AWAY) or "false").lower(), _recomputes(fields)
    if str(fields.raw(_CHECKPOINTS)).lower() == _OLDER_AWAY:
        away = "true"  # utils/schemas/validation.py:1577 check_gradient_checkpointing_w_offload
    if away not in ("false", "true", "legacy", "hidden_states"):
        fields.fault(_AWAY, f"{shown(away)} is not supported", allowed="false, true, legacy, hidden_states")
    if away == "legacy":
        fields.note(f"{_AWAY} legacy waits for its copies: priced as if they ran under the passes")
    if away == "false":
        return own, False
    adapts = fields.word("adapter", "") in _ADAPTERS
    return not adapts or away == "hidden_states", True


def _with_inputs_away(fields: Fields, found: Configuration) -> Configuration:
    offload = "activations" if found.offload == "none" else f"{found.offload}+activations"
    if offload not in OFFLOAD:
        fields.fault(
            _AWAY, f"next to offload {found.offload} is not supported", allowed="false", nearest="false"
        )
        fields.stop()
    return replace(found, offload=offload)


_AWAY = "activation_offloading"
_CHECKPOINTS, _OLDER_AWAY = "gradient_checkpointing", "offload"


def _recomputes(fields: Fields) -> bool:
    """Return whether layers recompute; ``offload`` also keeps activations on the host."""
    said = str(fields.raw(_CHECKPOINTS) or "false").lower()
    if said not in ("true", "false", _OLDER_AWAY):
        fields.fault(
            _CHECKPOINTS,
            f"{shown(said)}: activations on drives are not supported under Axolotl",
            allowed=f"true, false, {_OLDER_AWAY}",
            nearest=_OLDER_AWAY,
        )
    return said != "false"


def _kernels(fields: Fields, model: ModelSpec) -> Options:
    """Return the layers that the plugins of Liger and cut cross entropy replace, if they are listed."""
    listed, found = _plugins(fields), accelerate.update_of(fields, "optimizer")
    names = {
        "liger_rms_norm": "norm_fused",
        "liger_layer_norm": "norm_fused" if model.normalization.startswith("layernorm") else "",
        "liger_glu_activation": "elementwise_fused",
        "liger_cross_entropy": "loss_fused",
    }
    on = {name for name in (*names, _CHUNKED, "liger_swiglu") if fields.flag(name)}
    cut = _cuts(fields)
    if "liger" in listed:
        found |= {names[name]: True for name in names if name in on and names[name]}
        found |= {"loss_kernel": "liger"} if _CHUNKED in on else {}
    elif on:
        fields.note("Liger kernels are on but do nothing: plugins doesn't list them")
    found |= {option: True for name, option in _PATCHES.items() if fields.flag(name)}
    if fields.raw(_COMPILES) == "auto" or fields.flag(_COMPILES):  # auto: on since torch 2.5.1
        found |= accelerate.COMPILED
        ranks.note_mode(fields)
    found |= _tiles(fields, model)
    if cut:  # it keeps no logits (arXiv:2411.09009)
        found |= {"loss_kernel": "cut"}
    if _denoises(fields):
        if "loss_kernel" in found:
            fields.note(f"{_DENOISER} computes its own loss of whole logits: fused losses have no effect")
        found |= {"loss_kernel": "masked"}
    return found


_TILES, _TILE_COUNT, _TILED_AS_IS = "tiled_mlp", "tiled_mlp_num_shards", "tiled_mlp_use_original_mlp"
_TILE = 32_768  # tokens (0.18 monkeypatch/tiled_mlp/patch.py:67)


def _tiles(fields: Fields, model: ModelSpec) -> Options:
    """Return the tokens that an MLP computes at a time: ALST's tiles of a rank's part of a sequence."""
    if not fields.flag(_TILES):
        fields.take(_TILE_COUNT, _TILED_AS_IS)
        return {}
    unlike = model.moe or model.tower or model.layer_pattern
    if unlike or fields.word("adapter", "") in _ADAPTERS:
        fields.fault(
            _TILES, "is priced of whole weights of dense language models", allowed="false", nearest="false"
        )
    if not fields.flag(_TILED_AS_IS, default=True):
        fields.fault(_TILED_AS_IS, "a compiled MLP is not priced", allowed="true", nearest="true")
    tokens = -(-fields.integer("sequence_len") // max(fields.integer("context_parallel_size", 1), 1))
    count = fields.integer(_TILE_COUNT, -(-tokens // _TILE))
    if count > tokens:
        fields.fault(_TILE_COUNT, f"{count} is out of range", allowed=f"1 to {tokens}", nearest="1")
        return {}
    return {"mlp_tile_tokens": float(-(-tokens // count))}


_COMPILES = "torch_compile"
_QAT, _ONE_BIT = "qat", "use_onebitllms"
# Axolotl's names of what inputs and weights are rounded to, and ours of both together.
_ROUNDED = {"": "bf16", "int8": "int8", "float8_e4m3fn": "fp8", "fp8": "fp8", "float8": "fp8"}
_SCHEMES = ("bf16-int4", "int8-int4", "fp8-int4", "fp8-fp8")
_MX, _TERNARY = "mxfp4", "ternary"
_GROUP = 32  # weights with one scale by default, and in a block of MXFP4


def _rounds(fields: Fields) -> bool:
    """Return whether training is quantisation-aware; a section without a value has all its defaults."""
    return fields.has_section(_QAT) or fields.has(_QAT) or fields.flag(_ONE_BIT)


def _fake_quantisers(fields: Fields, tuned: Mapping[str, Any]) -> Options:
    """Return what quantisation-aware training rounds to (0.19 utils/quantization.py _make_qat_config).

    torchao 0.17 has no fake quantisers for the configuration that Axolotl names for NVFP4
    (``fake_quantize_config.py:504``), and none of 8-bit integers for weights.
    """
    if not _rounds(fields):
        return {}
    if fields.flag(_ONE_BIT):
        return _one_bit(fields, tuned)
    at = f"{_QAT}.weight_dtype"
    weights, inputs = fields.word(at, "int8"), fields.word(f"{_QAT}.activation_dtype", "")
    group = fields.integer(f"{_QAT}.group_size", _GROUP)
    rounded = f"{_ROUNDED.get(inputs, inputs)}-{_ROUNDED.get(weights, weights)}"
    word = _MX if weights == _MX else rounded
    if weights == _TERNARY:
        fields.fault(at, "weights of three values are not supported", allowed="int4, fp8, mxfp4")
    elif word not in (*_SCHEMES, _MX) or (word == _MX and group != _GROUP):
        fields.fault(
            at,
            f"its trainer refuses {shown(weights)} of {group} with inputs in {shown(inputs or 'bf16')}",
            allowed="int4, fp8 with activation_dtype fp8, or mxfp4 in groups of 32",
        )
    _require_whole(fields, tuned, _QAT)
    found: Options = {"fake_quantization": word}
    return found if group == _GROUP else {**found, "fake_quantized_group": float(group)}


def _require_whole(fields: Fields, tuned: Mapping[str, Any], name: str) -> None:
    if "lora_rank" in tuned or _priced_as(fields, dict(tuned)) != "axolotl":
        fields.fault(name, "is priced of whole weights, replicated or under FSDP2", allowed="no adapter")
    fields.stop()


def _one_bit(fields: Fields, tuned: Mapping[str, Any]) -> Options:
    """Return weights of three values, to which onebitllms rounds in every pass (loaders/model.py:947)."""
    if "lora_rank" in tuned:  # utils/schemas/validation.py:621
        fields.fault(_ONE_BIT, "its trainer refuses it next to adapters", allowed="false", nearest="false")
    if fields.has_section(_QAT) or fields.has(_QAT):
        fields.fault(_QAT, f"next to {_ONE_BIT} is not read", allowed="one of them")
    _require_whole(fields, tuned, _ONE_BIT)
    fields.note(
        f"{_ONE_BIT}: each linear layer also reads a mean on the host, whose wait is not priced "
        "(onebitllms kernels/weight_quant.py)"
    )
    return {"fake_quantization": TERNARY}


def _cuts(fields: Fields) -> bool:
    """Return whether cut cross entropy is on: its plugin is listed, and not turned off."""
    listed = "cutcrossentropy" in " ".join(_listed(fields))
    return fields.flag("cut_cross_entropy", default=listed) and listed


# Kernels that replace the model's own without a plugin (axolotl/monkeypatch).
_PATCHES = {
    "flash_attn_cross_entropy": "loss_fused",
    "unsloth_cross_entropy_loss": "loss_fused",
    "flash_attn_rms_norm": "norm_fused",
    "unsloth_rms_norm": "norm_fused",
    "flash_attn_fuse_mlp": "elementwise_fused",
    "lora_mlp_kernel": "elementwise_fused",
    "unsloth_lora_mlp": "elementwise_fused",
}
_MASKS = "llmcompressor"
# Integrations that are priced, or only measure; others train parts (Spectrum) or use a teacher.
_PLUGINS = (
    "liger", "cutcrossentropy", "lm_eval", "swanlab", "kernelsplugin", "expertparallel", _DENOISER, _MASKS,
)  # fmt: skip
_RECIPE = f"{_MASKS}.recipe"


def _listed(fields: Fields) -> list[str]:
    said = fields.raw("plugins") or []
    return [str(one).lower() for one in (said if isinstance(said, list) else [said])]


def _plugins(fields: Fields) -> str:
    """Return the contents of ``plugins`` in lower case; runs with others are not priced."""
    listed = _listed(fields)
    other = next((one for one in listed if not any(name in one for name in _PLUGINS)), None)
    if other is not None:
        fields.fault(
            "plugins",
            f"{shown(other)} may change training in ways that Meshwright can't predict",
            allowed=f"{', '.join(_PLUGINS)}, or --ignore plugins",
        )
    if any(_MASKS in one for one in listed):
        _take_recipe(fields)
    return " ".join(listed)


def _take_recipe(fields: Fields) -> None:
    """Note that masks of sparse weights have no effect, or record a fault for a recipe that is refused.

    0.19 integrations/llm_compressor/plugin.py:45 validates the recipe's keys as fields of a ``Recipe``, of
    which llmcompressor 0.10 to 0.13 (recipe/recipe.py, since 0.6) has no stages: it drops them, and has no
    modifier that would mask a weight after the update.
    """
    stages = {name.partition(".")[0] for name in fields.names_in(_RECIPE)} - {"args"}
    if not stages or "modifiers" in stages:
        fields.fault(
            _RECIPE,
            "its trainer refuses it: llmcompressor takes no path, text or list of modifiers there",
            allowed="a section of stages, or no LLMCompressorPlugin",
        )
    fields.section(_MASKS)
    fields.note(
        f"{_RECIPE}: llmcompressor 0.10 and later, which Axolotl needs, finds no modifier in stages of its "
        "file: no weight is masked, so that zeros of a sparse model are trained as other weights"
    )


_CHUNKED = "liger_fused_linear_cross_entropy"


def _is_half(fields: Fields) -> bool:
    """Return whether weights are loaded in fp16 and nothing runs in mixed precision (base.py:276)."""
    mixed = str(fields.raw("bf16")).lower() != "false"  # auto, its default, is true on these GPUs
    others = any(str(fields.raw(name)).lower() == "true" for name in ("fp16", "bfloat16"))
    return fields.flag("float16") and not (mixed or others)


def _precision(fields: Fields) -> str:
    """Return the compute type: bf16 if both are on, fp16 with adapters (utils/config, resolve_dtype)."""
    said, half = str(fields.raw("bf16")).lower(), fields.flag("fp16")
    pure = next((name for name in ("bfloat16", "float16") if fields.flag(name)), "")
    if said == "true" or (said in ("auto", "none") and not half):
        if said == "none" and not pure:
            fields.note("bf16 is not given: it is assumed")
        return "bf16"
    if said not in ("auto", "none", "false"):
        fields.fault("bf16", f"{shown(said)} is none of its values", allowed="true, false, auto")
    if pure == "float16" and not half:
        fields.note(f"{pure}: weights, gradients and products in 16 bits, without a loss scaler")
        return "fp16"
    if pure and not half:
        return "bf16"
    if not half:
        fields.fault(
            "bf16", "neither bf16 nor fp16 is on: training in fp32 is not supported", allowed="true"
        )
    if half and fields.word("adapter", "") not in _ADAPTERS:
        fields.fault(
            "fp16",
            "weights in fp16 alone are not trained: their gradients cannot be unscaled",
            allowed="false, or an adapter",
            nearest="false",
        )
    return "fp16" if half else "bf16"


_EIGHT_BITS = "fp8"
_LOADS_ON_ONE = f"{_FSDP}cpu_ram_efficient_loading"


def _eight_bits(fields: Fields) -> Options:
    """Return the options of linear layers in 8 bits: torchao's, one scale a tensor.

    Axolotl 0.21, core/trainers/base.py:682; weights stay in bf16, as without it.
    """
    if not fields.flag(_EIGHT_BITS):
        return {}
    whole = fields.word("adapter", "") not in _ADAPTERS
    if not (whole and _is_cut(fields) and _version(fields) == _FSDP2) or fields.has("deepspeed"):
        fields.fault(
            _EIGHT_BITS,
            "is priced of whole weights under FSDP2 alone",
            allowed="false, or fsdp_version: 2 without an adapter",
            nearest="false",
        )
    if fields.flag(_LOADS_ON_ONE):  # accelerate 1.15, accelerator.py:519
        fields.fault(_LOADS_ON_ONE, "its trainer refuses it next to fp8", allowed="false", nearest="false")
    gathers = fields.flag("fp8_enable_fsdp_float8_all_gather")
    return {"precision_recipe": "fp8-current", **({} if gathers else {"low_precision_gathers": False})}


def _configuration(fields: Fields, known: Known) -> Configuration:
    micro = fields.integer("micro_batch_size")
    count = _count(fields, micro)
    shares = _is_cut(fields)
    if not shares:
        _take_replicas(fields)
    elif _version(fields) != _FSDP2:
        _take_fsdp1(fields)
    fields.choice(f"{_FSDP}auto_wrap_policy")
    resharded = fields.flag(_RESHARDS, default=True)
    own, inputs_away = _activations(fields)
    recompute = accelerate.checkpoints(fields, f"{_FSDP}activation_checkpointing", beside=own) or own
    experts = expert_ranks(fields, known.model())
    tp, cp, shard, replicas = _mesh(fields, known, experts)
    if not shares:
        shard, replicas = 1, shard * replicas
    zero = (_SHARDED if resharded and not _keeps_gathered(fields) else 2) if shares else 0
    if (away := _is_away(fields)) and zero != _SHARDED:
        fields.fault(_OFFLOADS, "weights on the host are priced where they are resharded", allowed="false")
    fields.stop()
    mesh = (tp, cp, shard, replicas)
    parts = [*["optimizer", "parameters"] * away, *["activations"] * inputs_away]
    offload = "+".join(parts) or "none"
    layers = known.model().num_layers
    found = accelerate.meshed(mesh, (micro, count), zero, offload, num_layers=layers, recompute=recompute)
    found = replace(found, expert_parallel_size=experts)
    require_ranks_of_experts(fields, found, fields.optional("dp_shard_size"))
    if experts > 1 and shares and _version(fields) != _FSDP2:
        fields.fault(SIZE, "Axolotl keeps experts apart under FSDP2 alone", allowed="1, or fsdp_version: 2")
    fields.stop()
    return found


def _is_away(fields: Fields) -> bool:
    """Return whether weights, gradients and states are on the host, as priced for full training."""
    return _is_cut(fields) and fields.flag(_OFFLOADS)


# Attention under which Axolotl leaves embeddings in fp32, and older switches of the others: it casts all to
# bf16 (0.18 utils/schemas/enums.py:117, :159 ATTN_IMPLS_WITHOUT_DTYPE_CAST).
_UNCAST = ("sdpa", "eager")
_CAST = ("xformers_attention", "sage_attention", "flex_attention", "flash_attention")


def _take_replicas(fields: Fields) -> None:
    """Note the replicas of every rank without FSDP."""
    if fields.word("adapter", "") in _ADAPTERS:
        fields.note("without FSDP every rank holds the whole base, and all adapters")
    elif _keeps_fp32(fields):
        fields.note(
            "without FSDP every rank holds all weights, and with no attention named but sdpa or eager "
            "Axolotl keeps embedding, head and norms in fp32"
        )
    elif fields.integer(SIZE, 1) == 1:
        fields.note("without FSDP every rank holds all weights, in bf16 alone: priced as TRL's replicas")


def _keeps_fp32(fields: Fields) -> bool:
    """Return whether whole weights that are not cut stay in two precisions (loaders/model.py:430, 460)."""
    named = fields.word("attn_implementation", "")
    cast = named not in _UNCAST if named else any(fields.flag(name) for name in _CAST)
    whole = not _is_cut(fields) and fields.word("adapter", "") not in _ADAPTERS
    return whole and not (cast or _cuts(fields))  # whose loss needs embedding and head in bf16 (:478)


# What Axolotl casts by its name, next to norms (loaders/utils.py:231), and the classes whose own code has
# no layer of a tied head (modeling_mpt.py of mosaicml/mpt-7b, where transformers' class has one).
_CAST_UP = ("embed_tokens", "embed_in", "lm_head", "embed_out")
_OWN_CODE_WITHOUT_HEAD = ("mpt",)


def _ends(fields: Fields, model: ModelSpec, optimizer: str) -> Options:
    """Return whether embedding, head and norms are fp32 next to matrices of bf16.

    A tied head is the embedding's own weight, so either name casts both. Optimizers that are priced with an
    fp32 copy alone count one of every weight.
    """
    if not _keeps_fp32(fields) or OPTIMIZERS[optimizer].fp32_copy:
        return {}
    names = model.layer_names
    embedding, head = (class_name(names, one) in _CAST_UP for one in (EMBEDDING, HEAD))
    if model.tied_embeddings:
        own_code = names in _OWN_CODE_WITHOUT_HEAD and fields.flag("trust_remote_code", default=False)
        embedding = head = embedding or (head and not own_code)
    if embedding != head:
        fields.fault(
            "fsdp_config",
            f"without FSDP Axolotl keeps norms and head of {model.title} in fp32, and its embedding in "
            "bf16: not supported",
            allowed="attn_implementation: flash_attention_2, or fsdp_version: 2 and an fsdp_config",
        )
        fields.stop()
    if not embedding:
        fields.note(
            f"Axolotl finds embedding and head of {model.title} under no name that it casts: they stay in "
            "bf16, and its norms in fp32 are priced in bf16 too"
        )
    return {"fp32_ends": True} if embedding else {}


def _take_fsdp1(fields: Fields) -> None:
    """Note how FSDP1 is priced, or record a fault for differences from accelerate's FSDP2."""
    adapters = fields.word("adapter", "") in _ADAPTERS
    if _version(fields) != 1:
        fields.fault("fsdp_version", f"{_version(fields)} is not supported", allowed="1, 2", nearest="2")
    if adapters:
        fields.note("FSDP1 wraps adapters apart from frozen layers: priced as FSDP2, tensor by tensor")
    stated = "is 1" if fields.has("fsdp_version") else "is not given, 1 before Axolotl 0.21 and 2 since"
    fields.note(f"fsdp_version {stated}: priced as accelerate's FSDP2")
    for word in _strategies(fields):
        if word not in _FSDP1_WORDS:
            fields.fault(
                "fsdp", f"{shown(word)} is not supported under Axolotl", allowed=", ".join(_FSDP1_WORDS)
            )
    runs = "shard_grad_op" if _keeps_gathered(fields) else "full_shard"
    said = str(fields.raw(f"{_FSDP}sharding_strategy") or runs)
    if said.lower() != runs:
        fields.fault(
            f"{_FSDP}sharding_strategy",
            f"{shown(said)} reaches no FSDP: Axolotl hands on what fsdp lists, here {runs}",
            allowed=runs.upper(),
            nearest=runs.upper(),
        )
    if not fields.flag(_RESHARDS, default=True):
        fields.fault(_RESHARDS, "is FSDP2's alone", allowed="true, or shard_grad_op in fsdp")


_FSDP1_WORDS = ("full_shard", "shard_grad_op", "auto_wrap")
_OFFLOADS = f"{_FSDP}offload_params"
_RESHARDS = f"{_FSDP}reshard_after_forward"


def _strategies(fields: Fields) -> list[str]:
    """Return FSDP1's sharding words: those of ``fsdp``, the only ones that are passed on."""
    said = fields.raw("fsdp") or []
    return [str(word).lower() for word in (said if isinstance(said, list) else [said])]


def _keeps_gathered(fields: Fields) -> bool:
    """Return whether FSDP1 shards only gradients and states."""
    return _version(fields) == 1 and "shard_grad_op" in _strategies(fields)


def _version(fields: Fields) -> int:
    return fields.integer("fsdp_version", fields.integer(f"{_FSDP}version", 1))


def _is_cut(fields: Fields) -> bool:
    return bool(fields.raw("fsdp")) or fields.has_section("fsdp_config")


def _priced_as(fields: Fields, tuned: dict[str, Any]) -> str:
    """Return the launcher that has what its plans lack: 4 bits, FSDP1, offloading, bf16 without FSDP."""
    whole = fields.word("adapter", "") not in _ADAPTERS
    others = _version(fields) == 1 or fields.flag(_OFFLOADS)
    if _is_cut(fields) and others:
        return "accelerate"
    if "base_precision" in tuned and not (_is_cut(fields) and is_cut(tuned["base_precision"])):
        return "accelerate"
    planned = "optimizer_rank" in tuned or tuned.get("optimizer") in UNPAGED  # planned without FSDP
    planned |= _rounds(fields) or fields.integer(SIZE, 1) > 1
    return "trl" if whole and not _is_cut(fields) and not planned else "axolotl"


def _mesh(fields: Fields, known: Known, experts: int) -> tuple[int, int, int, int]:
    """Return tensor ranks, rings, shards and replicas; without the last two, all the rest are shards.

    Ranks that share experts are shards of other weights (monkeypatch/accelerate/parallelism_config.py:56).
    """
    tp, cp = (fields.integer(f"{name}_parallel_size", 1) for name in ("tensor", "context"))
    if cp > 1:
        fields.note(
            "context_parallel_size is predicted as the rings of Axolotl 0.19; 0.21 chooses between "
            "rings and all-to-all by the heads"
        )
    for name in ("tensor_parallel_size", "context_parallel_size", "dp_shard_size", "dp_replicate_size"):
        fields.slip_for(name)
    fields.stop()
    shard, replicas = fields.optional("dp_shard_size"), fields.optional("dp_replicate_size")
    shard = shard * experts if shard else None
    world = known.num_gpus()
    if world is None and shard and known.world.lacking is None:  # nothing is left to divide
        world = tp * cp * shard * (replicas or 1)
    world = known.required("num_gpus", world, "the script that starts it")
    if shard is None:
        rest = tp * cp * (replicas or 1)
        shard = divided(world, rest, field="dp_replicate_size", what="tp × cp × replicas")
        fields.note(f"dp_shard_size is not given: {shard}, all that is left")
    if replicas is None:
        replicas = divided(world, tp * cp * shard, field="dp_shard_size", what="tp × cp × shards")
    sizes = tp * cp * shard * replicas
    if sizes != world:
        fields.fault(
            "dp_shard_size",
            f"replicate {replicas} × shard {shard} × cp {cp} × tp {tp} is {sizes} ranks; {world} start",
            allowed=f"sizes with the product {world}",
        )
    return tp, cp, shard, replicas
