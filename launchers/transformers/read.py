"""Reader of training scripts on transformers' Trainer, with arguments in a command or in a YAML file.

Fine-tuning as LLaMA-Factory, ms-swift (``swift sft``), TRL, DeepSpeed-Chat and plain ``Trainer`` scripts
start it: replicas, ZeRO by DeepSpeed, or FSDP. ``tools.py`` has the names and defaults of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Any

from meshwright.launchers.accelerate.read import DDP_BUCKET, ranks_of, update_of
from meshwright.launchers.accelerate.read_command import Shares, shares_of, shares_of_environment
from meshwright.launchers.export import bucket_option
from meshwright.launchers.flags import Flag, FlagNames, flag_names, flags_of, plain_name
from meshwright.launchers.reading import adapters, commands
from meshwright.launchers.reading.base import LaunchFile, Options, Overrides, Reader, Source, refused
from meshwright.launchers.reading.documents import LocatedValue, document_of, looks_like_document
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.foreign import SEES, refuse_unpriced
from meshwright.launchers.reading.images import ImageSettings, settings_of, with_images
from meshwright.launchers.reading.known import Known, header_of, known_of, named_model
from meshwright.launchers.reading.own_defaults import LENGTHS
from meshwright.launchers.reading.preferences import kind_named, labelled, loss_of, samples_of, trls_kind
from meshwright.launchers.reading.trained_layers import of_freezing, refuse_expanded
from meshwright.launchers.table import of_command, over_trl
from meshwright.launchers.transformers import read_chat as chat
from meshwright.launchers.transformers import read_ranks as ranks
from meshwright.launchers.transformers import tools
from meshwright.launchers.transformers.tools import LLAMA_FACTORY, MS_SWIFT, Tool
from meshwright.profiles.adapters import linear_names
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import (
    OPTIMIZERS,
    UNPAGED,
    USUAL_INTERVAL,
    WITHOUT_COPY,
    optimizer_named,
    usual_rank,
)
from meshwright.profiles.storage import is_checkpoints
from meshwright.profiles.tower_modules import modules_of
from meshwright.profiles.towers import TOWER_PARTS
from meshwright.profiles.trained_layers import FIRST
from meshwright.shell.values import Script, Word, unknown_arguments, unknown_fault, unknown_in
from meshwright.solver.space.tower_rules import adapted_paths, freezes_parts

_MICRO, _COUNT = "per_device_train_batch_size", "gradient_accumulation_steps"
_MODELS = ("model_name_or_path", "model", "model_id_or_path", "base_model", "model_id", "pretrain")
_PERHAPS_MODELS = ("model_name", "model_path")  # some scripts save under these names
_NO_MODELS = re.compile(
    r"token|output|save|run|log|hub|data|teacher|ref|reward|draft|project|eval|template"
)
_PARTS = (  # cut separately and joined: QLoRA's script (collator), ChatGLM's and MedicalGPT's, TRACE's
    ("source_max_len", "target_max_len"), ("max_source_length", "max_target_length"),
    ("max_prompt_len", "max_ans_len"),
)  # fmt: skip
_OWN = (
    _MICRO, _COUNT, "model_name_or_path", "finetuning_type", "tuner_type", "train_type", "deepspeed",
    "gradient_checkpointing", "lr_scheduler_type", "max_seq_length", "cutoff_len",
)  # fmt: skip
_DECIDING = (  # arguments with values that must be known
    *(name for name in _OWN if name != "lr_scheduler_type"), *LENGTHS, *_MODELS, "zero_stage", "fsdp",
    "fsdp_config", "deepspeed_config", "optim", "lora_rank", "lora_r", "lora_target", "lora_target_modules",
    "target_modules", "use_peft", "pure_bf16", "quantization_bit", "load_in_4bit", "load_in_8bit",
)  # fmt: skip
PADDED = (  # with the name of the longest length
    "packing is off: micro-batches are padded to their longest sequence, and priced as if each had one of "
    "{} tokens; a plan for documents of stated lengths (batching padding_to_longest) prices shorter ones"
)
REPLICAS = "no file or command states how ranks share the model: plain replicas, a whole model each"
_LEAST_NAMES = 2
_DOCUMENTS = (".yaml", ".yml", ".json")  # HfArgumentParser.parse_yaml_file, parse_json_file
_WIDE = "fp32"  # all of a run, where nothing asks for 16 bits
_SWIFT_2 = "sft_type"  # of ms-swift before 3, as ``batch_size``, ``dtype`` and ``default-zero3``


def _recognises(source: Source) -> bool:
    if source.is_script:
        return _is_known(*commands.best(_commands(commands.readable_script(source)), _is_name))
    names = looks_like_document(source) if source.suffix in _DOCUMENTS else {}
    return _MICRO in names and any(name in names for name in (*_MODELS, "use_peft"))  # TRL's own


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    known = known_of(source, overrides)
    if not source.is_script:
        start = start_of(source, overrides)
        over = {} if start is None else values_of(start[1].words, overrides)
        over.pop("config", None)
        fields = Fields(source.name, as_loaded(document_of(source) | over), overrides)
        fields.note_commands(over)
        if start is None:
            return trainer_run(fields, known, _tool(fields))
        script, command = start
        shares = shares_of(_of_start(command), known.source)
        known.world = commands.world_of("", script, command)
        ranks.require_gpus_of_their_own(fields, script, command, shares)
        started = ranks.started_by(script, command)
        return trainer_run(
            fields, known, _tool(fields), started=started, shares=shares, program=command.program
        )
    script = commands.script_of(source, overrides)
    command, count = commands.chosen(_commands(script), _is_name, overrides, source.name, decides=_decides)
    if not _is_known(command, count):
        raise refused(f"{source.name[:64]}: no command with arguments of transformers' Trainer is in it")
    commands.require_training(command, source.name)
    _require_one_run(script, command, overrides, source.name)
    known.world = commands.world_of(source.text, script, command)
    beside = _arguments_beside(source, command)
    values = ranks.on_its_engine(command, beside | values_of(command.words, overrides))
    values |= ranks.of_environment(commands.environment_of(script, command), values)
    passed_on = of_accelerate(command)
    values = {name: one for name, one in values.items() if name not in passed_on}
    fields = Fields(source.name, as_loaded(values), overrides)
    fields.take("config")
    fields.note(*script.notes)
    shares = shares_of(_of_start(command), known.source)
    shares = shares or shares_of_environment(commands.environment_of(script, command), known.source)
    if shares is not None and known.header.plan_id is None:
        known.header = header_of(shares.source.text)  # of an exported plan left as a capture
    ranks.require_gpus_of_their_own(fields, script, command, shares)
    program = command.known_as or command.program
    tool, started = _tool(fields, program), ranks.started_by(script, command)
    return trainer_run(fields, known, tool, started=started, shares=shares, program=program)


TRAINER_READER = Reader(name="transformers", recognises=_recognises, read=_read)


def _require_one_run(script: Script, command: commands.Command, overrides: Overrides, name: str) -> None:
    """Refuse a script that also starts other trainings from argument files, unless one is selected."""
    starts = [one for one in _commands(script) if one.program and one.words and ranks.starts_processes(one)]
    files = [_configuration(one) or one.words[0] for one in starts]
    own = {"", *(word.text for word in command.words)}
    if overrides.run is None and any(
        word.text.endswith(_DOCUMENTS) and word.text not in own for word in files
    ):
        lines = ", ".join(str(one.words[0].line) for one in starts[:8])
        raise refused(
            f"{name[:64]} starts {len(starts)} trainings (lines {lines}), some by files of arguments",
            allowed="a script with one of them, or that file",
        )


def _of_start(command: commands.Command) -> Sequence[Word]:
    """Return the words that set the sharding; TRL's command takes accelerate's among its own."""
    return command.before if of_command(command.program) is None else (*command.before, *command.words)


def of_accelerate(command: commands.Command) -> set[str]:
    """Return the arguments that TRL's command passes on to ``accelerate launch`` (trl/cli.py)."""
    row = of_command(command.program)
    if row is None:
        return set()
    return {"accelerate_config", *flags_of("accelerate")} - {*flag_names(*row.tables)}


def start_of(source: Source, overrides: Overrides) -> tuple[Script, commands.Command] | None:
    """Return the script and command that train with a file of arguments; None without such a command.

    The command's other arguments override the file (alignment-handbook, H4ArgumentParser).

    Raises:
        InvalidProblemError: no command that takes the file trains, or several differ.
    """
    scripts = [commands.script_of(one, overrides) for one in source.scripts()]
    starts = [(script, command) for script in scripts for command in _commands(script)]
    found = commands.chosen_by(source.name, [command for _, command in starts], _is_name)
    return next((start for start in starts if start[1] is found), None)


def _arguments_beside(source: Source, command: commands.Command) -> dict[str, LocatedValue]:
    """Return the arguments in the file named first or by ``--config``; the command's own override them."""
    first = command.words[0] if command.words else Word("", 0)
    named = first if first.text.endswith(_DOCUMENTS) else _configuration(command)
    if named is None:
        return {}
    commands.require_beside(source, source, named)
    values = looks_like_document(source.at(named.text.rpartition("/")[2]))
    if named is not first and not any(name in values for name in (*_OWN, *LENGTHS, *_MODELS)):
        return {}  # another program's file
    return document_of(source.at(named.text.rpartition("/")[2]))


def _configuration(command: commands.Command) -> Word | None:
    for option, following in pairwise((*command.words, Word("", 0))):
        name, equals, value = option.text.partition("=")
        text = value if equals else following.text
        if name == "--config" and (unknown := unknown_in(text)) is not None:
            raise InvalidProblemError([unknown_fault("--config", unknown, option.line)])
        if name == "--config" and text.endswith(_DOCUMENTS):
            return Word(text, option.line)
    return None


def _tool(fields: Fields, program: str = "") -> Tool:
    """Return the tool, from the program and from names that only one has."""
    if fields.has("max_seq_length"):  # its name in TRL before it recomputed by default
        program = program.replace("trl", "")
    if trls_kind(program):
        return tools.TRLS_PREFERENCES
    if chat.is_chats(fields, program):
        return tools.CHAT
    own = tools.PLAIN
    for tool in tools.TOOLS:
        if any(fields.has(name) or fields.has_section(name) for name in tool.names):
            own = tool
    if own is LLAMA_FACTORY and not tools.ITS_PROGRAMS.search(program):
        own = tools.FORK
    return next((tool for tool in tools.TOOLS if any(word in program for word in tool.starts)), own)


def require_do_train(fields: Fields) -> None:
    """Record a fault unless ``do_train`` is on: LLaMA-Factory's workflows only evaluate without it."""
    if not fields.flag("do_train"):
        fields.fault("do_train", "is not set, so LLaMA-Factory would not train", allowed="true")


def trainer_run(
    fields: Fields,
    known: Known,
    tool: Tool,
    *,
    started: int | None = None,
    shares: Shares | None = None,
    program: str = "",
    packed: str | None = None,
) -> LaunchFile:
    """Return the run of arguments from a command or a file.

    Args:
        fields: the arguments.
        known: values given next to them.
        tool: tool that takes them.
        started: number of processes, if no launcher sets it.
        shares: accelerate's file and options, which set the sharding.
        program: started program; empty if only a file of arguments is read.
        packed: the argument that packs documents apart; None: in the tool's names.

    Raises:
        InvalidProblemError: a value cannot be read, is not priced, or is missing.
    """
    fields.programs = tool.programs
    if tool is MS_SWIFT:
        fields.command = "rlhf" if _RLHF.search(program) else "sft"
        _require_flash_attention(fields)
        if not fields.flag("ignore_args_error"):
            fields.parser = f"swift {fields.command}"
            fields.refuse_others(fields.command)
    elif tool is LLAMA_FACTORY and stops_at_unknown(known.source):
        fields.parser = tool.name
    sees = _trains_tower(fields, known, tool, program)
    refuse_unpriced(fields, program, sees=sees)
    if tool.needs_do_train:
        require_do_train(fields)
        fields.stop()
    kind = chat.kind_of(fields, known.source.folder) if tool is tools.CHAT else kind_named(fields, program)
    if kind is None:
        fields.take_setting("workload.sample", "workload.reference")
    packed = _packed(fields, tool, compares=kind is not None) if packed is None else packed
    model = labelled(fields, _model(fields, known, tool, sees=sees), kind)
    mesh = None if shares is None else shares.fields
    world = ranks_of(known, mesh, started)
    micro = _micro(fields, known, tool)
    count = _supplied(fields, known, "num_microbatches", fields.optional(_COUNT))
    count = count or max(-(-tool.batch // (max(micro, 1) * (world or 1))), 1)
    length = _length(fields, known, _with_block(tool, program, model))
    tuned = _tuned(fields, known, tool, model, program, sees=sees)
    alone = started == 1 and known.world.num_gpus in (None, 0, 1)
    if alone and (world or 1) > 1 and tuned["base_precision"] != "bf16":
        why = f"python starts one process, which lays weights of few bits over {world} GPUs (device_map)"
        fields.fault(
            "num_gpus", f"{why}: not supported", allowed=f"torchrun --nproc_per_node {world}, or one GPU"
        )
    elif alone and world and world > 1:
        fields.note(commands.other_gpus_note(1, world))
    precision = _precision(fields, known, tool, mesh, lora=tuned["lora_rank"] > 0)
    recompute = _recomputes(fields, tool)
    settings = _image_settings(fields, tool)
    settings, tuned = _with_tower(fields, tool, model, settings, tuned)
    fields.stop()
    overrides = replace(
        known.overrides,
        model=model,
        num_gpus=world,
        values={
            **known.overrides.values,
            "micro_batch_size": micro,
            "num_microbatches": count,
            "seq_length": length,
            "precision": precision,
            "optimizer": tuned["optimizer"],
            "recompute_granularity": "full" if recompute else "none",
        },
    )
    found = ranks.ranks_run(tool.launcher, fields, known, overrides, shares)
    replicas = found.launcher != "deepspeed" and not found.configuration.zero_stage
    if not program and shares is None and replicas and (world or 1) > 1:
        fields.note(REPLICAS)
    relative = next((one for one in over_trl() if one.kind_of(program)), None)
    if relative is not None and found.launcher == "accelerate":
        fields.note(f"{relative.title} is priced for accelerate, which starts its processes")
    dropout = tool.dropout if tuned["lora_rank"] else None
    chunks = _is_trls(fields, tool) and (kind is None or kind.makes_chunks)
    options = options_of(fields, found, by_trl=chunks, dropout=dropout)
    eighth = ranks.eight_bits_of(fields, found, shares)
    tuned = _as_run(fields, tool, found, tuned)
    tuned |= samples_of(fields, kind, adapts=tuned["lora_rank"] > 0)
    in_bf16 = tool.loads == "cast up" or _loads_in_bf16(fields, tool)  # only what trains is cast up
    tuned |= reference_precision(fields, found, tuned, in_bf16=in_bf16)
    fields.stop()
    tuned |= known.header.adapters  # of an exported plan with a script of the user's own
    options |= loss_of(kind)
    workload = replace(found.workload, **tuned, framework_options={**options, **eighth})
    workload = replace(workload, precision="fp8") if eighth else workload
    ranks.note_attention(fields, model, workload, found.launcher, packed=bool(packed))
    whole = known.world.num_gpus == world and known.world.gpus_per_node
    nodes = known.world if whole else commands.World(found.num_nodes, found.gpus_per_node)
    run = replace(
        found,
        workload=workload,
        num_nodes=nodes.num_nodes,
        gpus_per_node=nodes.gpus_per_node,
        idle_gpus=nodes.idle_gpus,
        notes=(*fields.notes, *known.notes, *found.notes),
        unread=(*fields.unread(), *found.unread),
        packed=packed,
    )
    return run if settings is None else with_images(run, known, settings)


_ALLOWS = re.compile(r"\bALLOW_EXTRA_ARGS=[\"']?(?:1|y|true)\b", re.IGNORECASE)


def stops_at_unknown(source: Source) -> bool:
    """Return whether LLaMA-Factory stops at unknown names (0.9.5, hparams/parser.py:311)."""
    return not any(_ALLOWS.search(script.text) for script in source.scripts())


_RLHF = re.compile(r"(?:^|[ /])rlhf(?:\.py)?$")  # swift rlhf, or cli/rlhf.py
_KNOW_DOCUMENTS = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")


def _require_flash_attention(fields: Fields) -> None:
    """Refuse rows that are joined under another attention (ms-swift 4.6, arguments/sft_args.py:186)."""
    joined = next((name for name in ("packing", "padding_free") if fields.flag(name, default=False)), "")
    older = fields.peek(_SWIFT_2) is not None
    if joined and not older and fields.word("attn_impl", "") not in _KNOW_DOCUMENTS:
        allowed = f"attn_impl of {', '.join(_KNOW_DOCUMENTS)}"
        fields.fault(joined, "its trainer refuses it without FlashAttention", allowed=allowed)


def options_of(fields: Fields, found: LaunchFile, *, by_trl: bool, dropout: float | None) -> Options:
    """Return the options of a run with those of the trainer's kernels, buckets, evaluation and adapters.

    Args:
        fields: the trainer's arguments.
        found: the run under its engine.
        by_trl: TRL trains, which makes logits in chunks.
        dropout: default of adapters' inputs; None: no adapters.
    """
    key = "optimizer" if fields.has("optimizer") else "optim"
    liger = ranks.uses_liger(fields)
    own = ranks.own_loss_of_swift(fields) if liger else ""
    kernels = ranks.kernels_of(found.launcher, liger=liger, by_trl=by_trl)
    if own:
        fields.note(f"{own}: the loss is of whole logits, and Liger's has no effect")
        kernels |= ranks.kernels_of(found.launcher, liger=False, by_trl=by_trl) or {"loss_kernel": "whole"}
    return {
        **found.workload.framework_options,
        **ranks.kernel_of(fields, found.launcher, found.configuration),
        **ranks.products_of(fields, found.launcher),
        **bucket_option(fields.optional(DDP_BUCKET), found.launcher, found.configuration),
        **ranks.compiled_of(fields, found.launcher),
        **kernels,
        **({} if dropout is None else adapters.options_of(fields, usual=dropout)),
        **ranks.evaluation_of(fields),
        **({} if own_optimizer(fields) not in ("", _BADAM) else update_of(fields, key)),
    }


def _tower_names(tool: Tool, model: ModelSpec, *, sees: bool) -> adapters.TowerNames:
    """Return how names of adapted layers select a tower's: under LLaMA-Factory as its switches have it."""
    if tool is LLAMA_FACTORY and freezes_parts(model):
        return "switches"
    return "ends" if sees and tool.pefts else ""


def _with_tower(
    fields: Fields, tool: Tool, model: ModelSpec, settings: ImageSettings | None, tuned: dict[str, Any]
) -> tuple[ImageSettings | None, dict[str, Any]]:
    """Return the settings and adapters with those that LLaMA-Factory trains in a tower."""
    if tool is not LLAMA_FACTORY or settings is None or not (tuned["lora_rank"] and freezes_parts(model)):
        return settings, tuned
    words, language = adapters.words_of(fields.raw("lora_target") or "all"), tuned["lora_targets"]
    every = words == ["all"]
    named = () if every else words
    paths = adapted_paths(model, language, settings.frozen, named, every=every)
    _require_whole_projector(fields, tool, model, settings, paths)
    more = adapters.of_tower_paths(fields, "lora_target", paths, model) if paths else ()
    tuned = {**tuned, "lora_targets": (*language, *more)}
    if not (language or paths):
        switches = " and ".join(f"{tool.parts[part]}: false" for part in TOWER_PARTS)
        fields.fault(
            "lora_target", "names layers of a frozen vision tower alone", allowed=f"it with {switches}"
        )
    own = adapters.names_in_tower(words, model, shared=False)
    idle = [word for word in own if not any(word in path for path in paths)]
    if idle:
        fields.note(f"{', '.join(idle)}: only frozen layers of the vision tower are called so")
    return replace(settings, frozen=TOWER_PARTS), tuned


def _require_whole_projector(
    fields: Fields, tool: Tool, model: ModelSpec, settings: ImageSettings, paths: Sequence[str]
) -> None:
    """Refuse adapters in the projectors of inner layers or in the other one alone, where a switch decides.

    LLaMA-Factory 0.9.5 counts inner ones as the tower's (model/model_utils/visual.py:391).
    """
    known = modules_of(model.tower)
    still = [part for part in TOWER_PARTS if part in settings.frozen]
    if known is None or not known.inner or len(still) != 1:
        return
    if not {*known.inner, *known.projector} & {*paths}:
        return
    why = f"true freezes {'the projector' if still[0] == 'projector' else 'projectors of inner layers'}"
    fields.fault(
        tool.parts[still[0]], f"{why}, and adapters of some projectors alone are not supported",
        allowed="false", nearest="false",
    )  # fmt: skip
    fields.stop()


def _image_settings(fields: Fields, tool: Tool) -> ImageSettings | None:
    """Return frozen parts and the largest image, for tools that train towers; None for others."""
    return settings_of(fields, tool.parts, tool.pixels, tool.most_pixels) if tool.parts else None


def _tuned(
    fields: Fields, known: Known, tool: Tool, model: ModelSpec, program: str, *, sees: bool
) -> dict[str, Any]:
    """Return the trained modules, the adapters and the optimizer as fields of a workload."""
    if tool is tools.CHAT:
        return {**chat.adapters_of(fields, model), "optimizer": "adamw", "base_precision": "bf16"}
    strange = tool.is_script and fields.raw("use_peft") is None  # its default is TRL's
    freezing = tool.freezes_layers and fields.word("finetuning_type", tool.tuner) == adapters.FREEZE
    frozen = of_freezing(fields, model) if freezing else {}  # its own names, before the others do nothing
    rank, targets = adapters.adapters_of(
        fields,
        tool.tuner,
        model,
        pefts=tool.pefts,
        rotates=tool.rotates,
        strange=strange,
        program=program,
        supplied=known.overrides.values.get("lora_rank"),
        freezes=tool.freezes_layers,
        tower=_tower_names(tool, model, sees=sees),
    )
    targets = adapters.of_peft(fields, targets, model) if tool.pefts else targets
    base = adapters.base_of(fields, nested=not tool.pefts)
    if tool.freezes_stored:
        base = adapters.stored_base(fields, model, rank) or base
    optimizer = _own_optimizer(fields) if tool.own_galore else {}
    if not optimizer:
        key = "optimizer" if fields.has("optimizer") else "optim"
        optimizer = trainers_low_rank(fields, model) or {"optimizer": optimizer_of(fields, key)}
    whole = frozen or {"trained_modules": adapters.trained_whole(fields) if rank else ()}
    if tool.freezes_layers and not freezing:
        refuse_expanded(fields)
    return {
        **optimizer,
        **whole,
        "lora_rank": rank,
        "lora_targets": targets if tool.pefts else adapters.of_trainer(fields, targets, model, rank),
        "base_precision": base,
    }


# Optimizers that LLaMA-Factory 0.9.5 makes itself, in its order (train/trainer_utils.py:527), by those of
# the Trainer that they replace (:239, :330); None: whichever that is.
_OWN_OPTIMIZERS: Mapping[str, Mapping[str | None, str]] = {
    "use_galore": {
        "adamw_torch": "galore", "adamw_bnb_8bit": "galore-8bit", "adamw_8bit": "galore-8bit",
        "paged_adamw_8bit": "galore-8bit",
    },
    "use_apollo": {"adamw_torch": "apollo"},
    "use_badam": {"adamw_torch": "badam", "adamw_torch_fused": "badam"},
    "use_adam_mini": {None: "adam-mini"},
    "use_muon": {None: "muon"},
}  # fmt: skip
_BADAM = "use_badam"
_LOW_RANK = ("use_galore", "use_apollo")
# Arguments of projections, each with its only value that is priced.
_PROJECTIONS = {"galore_proj_type": "std", "apollo_proj_type": "std", "apollo_proj": "random"}


def own_optimizer(fields: Fields) -> str:
    """Return the switch of LLaMA-Factory's own optimizer: the first that is on; empty without one."""
    return next((one for one in _OWN_OPTIMIZERS if fields.flag(one)), "")


def _own_optimizer(fields: Fields) -> dict[str, Any]:
    """Return the fields of an optimizer that LLaMA-Factory makes itself.

    Its Muon updates matrices that are neither embedding nor head, on every rank that holds them.
    """
    switch = own_optimizer(fields)
    if not switch:
        return {}
    on = [one for one in (*_LOW_RANK, _BADAM) if fields.flag(one)]
    if len(on) > 1:  # hparams/finetuning_args.py:598
        fields.fault(on[1], f"its trainer refuses it next to {on[0]}", allowed="false", nearest="false")
    fields.take(*_OWN_OPTIMIZERS)
    replaced = _OWN_OPTIMIZERS[switch]
    if switch in _LOW_RANK:
        return _projected(fields, switch, replaced)
    if None in replaced and fields.has("optim"):  # train/trainer_utils.py:473 and :498 don't look at it
        fields.note(f"optim: {shown(fields.word('optim', ''))} is not used: {switch} replaces it")
    return _by_block(fields, replaced) if switch == _BADAM else {"optimizer": replaced[None]}


def _by_block(fields: Fields, wrapped: Mapping[str | None, str]) -> dict[str, Any]:
    """Return the workload fields of LLaMA-Factory's BAdam, which wraps some optimizers."""
    words = {
        "optim": [str(one) for one in wrapped],
        "finetuning_type": ["full"],  # hparams/finetuning_args.py:595 stops LoRA; a freeze has no effect
        "badam_mode": ["layer"],
        "badam_switch_mode": ["ascending", "descending", "random"],
    }
    defaults = {"optim": "adamw_torch", "finetuning_type": LLAMA_FACTORY.tuner}
    for key, allowed in words.items():
        if (said := fields.word(key, defaults.get(key, allowed[0]))) not in allowed:
            message = f"{shown(said)} is not supported with {_BADAM}"
            fields.fault(key, message, allowed=", ".join(allowed), nearest=allowed[0])
    fields.note(
        f"{_BADAM} trains one layer after another: time and memory are those of the first, with gradients "
        "through all others; it empties torch's cache at each step, which is not priced"
    )
    return {"optimizer": "badam", "trained_layers": FIRST}


def _projected(fields: Fields, switch: str, replaced: Mapping[str | None, str]) -> dict[str, Any]:
    """Return the workload fields of LLaMA-Factory's GaLore or APOLLO, which replace some optimizers."""
    name, own = fields.word("optim", "adamw_torch"), switch.removeprefix("use_")
    if name not in replaced:
        allowed = ", ".join(map(str, replaced))
        fields.fault("optim", f"{shown(name)} is not supported with {switch}", allowed=allowed)
    if not fields.has("optim"):
        fields.note(f"{switch} stops at torch 2.8's default optim: add optim: adamw_torch there")
    key = f"{own}_target"  # parts of names: of all linear layers but the head
    targets = fields.word(key, "all")
    names = {one.strip() for one in targets.split(",")}
    if "all" not in names and names not in (*_EVERY, {"self_attn", "mlp"}):
        fields.fault(key, f"{shown(targets)} is not supported", allowed="all", nearest="all")
    for key, usual in ((key, usual) for key, usual in _PROJECTIONS.items() if key.startswith(own)):
        if (kind := fields.word(key, usual)) != usual:
            fields.fault(key, f"{shown(kind)} is not supported", allowed=usual, nearest=usual)
    interval = fields.integer(f"{own}_update_interval", USUAL_INTERVAL)
    return {
        "optimizer": replaced.get(name, own),
        "optimizer_rank": fields.integer(f"{own}_rank", 16),
        "optimizer_interval": 0 if interval == USUAL_INTERVAL else interval,
    }


# Names and defaults: transformers 5.23, trainer_optimizer.py ``_setup_low_rank_optimizer``.
TRAINERS_LOW_RANK = {
    "galore_adamw": ("galore", False), "galore_adamw_8bit": ("galore-8bit", False),
    "galore_adamw_layerwise": ("galore", True), "galore_adamw_8bit_layerwise": ("galore-8bit", True),
    "apollo_adamw": ("apollo", False), "apollo_adamw_layerwise": ("apollo", True),
}  # fmt: skip
_TRAINERS_RANK = 128
_DIGITS = 10
_ALL_LINEAR = ("all-linear", "all_linear")
_EVERY = (
    {"attn", "mlp"},
    {".*.attn.*", ".*.mlp.*"},
)  # the parts of a layer, and those of its documentation


def trainers_low_rank(fields: Fields, model: ModelSpec, key: str = "optim") -> dict[str, Any]:
    """Return the fields of the Trainer's own GaLore or APOLLO; empty with another optimizer in ``key``."""
    name = str(fields.raw(key) or "")
    if name not in TRAINERS_LOW_RANK:
        fields.pass_over("optim_args", "optim_target_modules")  # other optimizers don't look at them
        return {}
    found = dict[str, str]()
    for part in str(fields.raw("optim_args") or "").replace(" ", "").split(","):
        key, _, value = part.partition("=")
        found |= {key: value} if key else {}
    numbers = {"rank": _TRAINERS_RANK, "update_proj_gap": USUAL_INTERVAL}
    for key, number in numbers.items():
        text = found.get(key, str(number))
        if text.isdecimal() and len(text) < _DIGITS and int(text) > 0:
            numbers[key] = int(text)
        else:
            fields.fault(
                "optim_args",
                f"{key} = {shown(text)} is not a whole number above 0",
                allowed=f"1 to {10 ** (_DIGITS - 1) - 1}",
            )
    for key, usual in (("proj_type", "std"), ("proj", "random")):
        if (kind := found.get(key, usual)) != usual:
            message = f"{key} = {shown(kind)} is not supported"
            fields.fault("optim_args", message, allowed=usual, nearest=usual)
    _require_every_layer(fields, model)
    rank, interval = numbers["rank"], numbers["update_proj_gap"]
    return {
        "optimizer": TRAINERS_LOW_RANK[name][0],
        "optimizer_rank": 0 if rank == usual_rank(model.hidden_size) else rank,
        "optimizer_interval": 0 if interval == USUAL_INTERVAL else interval,
    }


def _require_every_layer(fields: Fields, model: ModelSpec) -> None:
    """Refuse modules that leave linear layers out: all of them are priced as projected."""
    said = fields.raw("optim_target_modules")
    names = {str(one) for one in said} if isinstance(said, list) else {str(said)}
    if said in _ALL_LINEAR:
        fields.note(
            "optim_target_modules all-linear also projects the head, which is priced with full moments"
        )
    elif not (names in _EVERY or set(linear_names(model)) <= names):
        fields.fault(
            "optim_target_modules",
            "leaves out some linear layers",
            allowed=f"all-linear, or {', '.join(linear_names(model))}",
        )


def layerwise(fields: Fields, found: LaunchFile, optimizer: str, named: str = "optim") -> str:
    """Return the name of GaLore's or APOLLO's variant; refuse it on shards, and by layer on several GPUs.

    It is the Trainer's own where ``named`` names it, else LLaMA-Factory's.
    """
    own = TRAINERS_LOW_RANK.get(str(fields.raw(named)))
    kind = optimizer_named(optimizer).family
    by_layer = fields.flag(f"{kind}_layerwise") if own is None else own[1]
    switch, layers = (f"use_{kind}", f"{kind}_layerwise") if own is None else (named, named)
    nearest = "false" if own is None else None
    config, name = found.configuration, f"{optimizer}-layerwise" if by_layer else optimizer
    if config.zero_stage > 0 or found.launcher == "deepspeed":
        fields.fault(
            switch,
            "it projects whole gradients, and is not supported with DeepSpeed or FSDP",
            allowed="plain replicas, or another optimizer",
            nearest=nearest,
        )
    if by_layer and (config.num_gpus > 1 or config.num_microbatches > 1):
        fields.fault(
            layers,
            "layerwise: its trainer refuses several GPUs and gradient accumulation",
            allowed="one GPU and one micro-batch, or updates of all layers at once",
            nearest=nearest,
        )
    if name not in OPTIMIZERS:
        fields.fault(
            layers,
            "layerwise updates are not supported with weights in fp32",
            allowed="weights in bfloat16, or updates of all layers at once",
            nearest=nearest,
        )
    return name if name in OPTIMIZERS else optimizer


def _by_block_under(fields: Fields, found: LaunchFile) -> str:
    """Return BAdam on one rank; ZeRO-3 keeps the copy itself (hparams/parser.py:394, badam 1.4)."""
    if found.launcher == "deepspeed" and found.configuration.zero_stage == 3:  # noqa: PLR2004 - a ZeRO stage
        return "adamw"
    if found.configuration.num_gpus > 1 or found.launcher == "deepspeed":
        allowed = "one GPU, or DeepSpeed's ZeRO-3"
        fields.fault(_BADAM, "its trainer refuses several ranks without ZeRO-3", allowed=allowed)
        fields.stop()
    return "badam"


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnReplicas:
    """An optimizer of LLaMA-Factory's own that takes whole matrices."""

    switch: str
    where: str
    in_fp32: bool = False


# third_party/muon/muon.py; adam_mini 1.1.1 takes rows and heads, DeepSpeed and FSDP cut weights across them
_WHOLE_MATRICES = {
    "muon": _OnReplicas(switch="use_muon", where="replicas with weights in fp32 alone", in_fp32=True),
    "adam-mini": _OnReplicas(switch="use_adam_mini", where="replicas alone"),
}


def _as_run(fields: Fields, tool: Tool, found: LaunchFile, tuned: dict[str, Any]) -> dict[str, Any]:
    """Return the tuning fields with the types that weights have on the ranks of the run."""
    rank, base, in_bf16 = tuned["lora_rank"], tuned["base_precision"], _loads_in_bf16(fields, tool)
    optimizer = optimizer_under(found, tuned["optimizer"])
    shards = found.launcher == "deepspeed" or found.configuration.zero_stage > 0
    whole = _WHOLE_MATRICES.get(tuned["optimizer"])
    if whole and (shards or (whole.in_fp32 and in_bf16)):
        fields.fault(whole.switch, f"is supported on {whole.where}", allowed="false", nearest="false")
        fields.stop()
    if not rank and keeps_no_copy(found):
        optimizer = WITHOUT_COPY.get(optimizer, optimizer) if in_bf16 else optimizer
        _note_type(fields, tool, in_bf16=in_bf16)
    if "optimizer_rank" in tuned:
        optimizer = layerwise(fields, found, optimizer)
        fields.stop()
    if tuned["optimizer"] == "badam":
        optimizer = _by_block_under(fields, found)
    if found.workload.precision == _WIDE:
        if base != "bf16":
            fields.fault(
                "bf16",
                "neither bf16 nor fp16 is given: weights of few bits in fp32 products are not supported",
                allowed="bf16 or fp16 true, or --set precision=bf16",
            )
    elif is_checkpoints(base):
        zero = found.configuration.zero_stage
        sharded = zero > 2 or (zero > 0 and found.launcher != "deepspeed")  # noqa: PLR2004 - a ZeRO stage
        adapters.require_replicas(fields, base, shards=sharded)
    elif base != "bf16":
        adapters.require_whole_weights(fields, found.configuration.zero_stage, rank, packs=tool.packs)
    elif rank and (tool.pefts or tool.loads == "own") and not in_bf16 and found.launcher != "deepspeed":
        base = adapters.whole_base(fields, found.workload.precision)
    return {**tuned, "optimizer": optimizer, "base_precision": base}


def reference_precision(
    fields: Fields, found: LaunchFile, tuned: Mapping[str, Any], *, in_bf16: bool
) -> dict[str, Any]:
    """Return the type of a frozen copy of the model where it is loaded in fp32, and stays so."""
    copied = tuned.get("reference") == "frozen" and not tuned.get("lora_rank")
    wide = found.workload.precision == _WIDE  # all that is priced is
    if not copied or in_bf16 or wide or found.launcher == "deepspeed":
        return {}
    fields.note("the reference model is loaded in float32 too: 4 bytes a weight")
    return {"base_precision": "fp32"}


def keeps_no_copy(found: LaunchFile) -> bool:
    """Return whether bf16 weights have no copy: FSDP2 casts them up, DeepSpeed keeps an fp32 copy."""
    return found.configuration.zero_stage == 0 and found.launcher != "deepspeed"


def optimizer_under(found: LaunchFile, said: str) -> str:
    """Return the optimizer of a run; DeepSpeed's file overrides the trainer's arguments.

    Of shards, states that may leave the GPU are priced on it.
    """
    if found.launcher == "deepspeed":
        return found.workload.optimizer
    return UNPAGED.get(said, said) if found.configuration.zero_stage else said


def _is_trls(fields: Fields, tool: Tool) -> bool:
    """Return whether TRL trains: its own script, or a person's with arguments of its SFTConfig."""
    return tool.makes_chunks or (tool.is_script and any(fields.has(name) for name in tools.OF_SFT))


def _packed(fields: Fields, tool: Tool, *, compares: bool) -> str:
    """Return the argument that packs documents which attend to themselves alone; note padded ones."""
    if tool.packing == "neat":
        if not packs(fields):
            fields.note(PADDED.format(tool.limit))
        return packs_apart(fields)
    if compares:
        return ""
    if tool.packing == "free":
        if not (fields.flag("packing") or fields.flag("padding_free", default=False)):
            fields.note(PADDED.format("max_length"))
        return "packing" if fields.flag("packing") else ""
    return packed_by_trl(fields) if _is_trls(fields, tool) else ""


def packs(fields: Fields) -> bool:
    """Return whether LLaMA-Factory fills sequences; pretraining does by default (hparams/parser.py)."""
    usual = fields.word("stage", "sft") == "pt"
    return fields.flag("neat_packing") or fields.flag("packing", default=usual)


def packs_apart(fields: Fields) -> str:
    """Return LLaMA-Factory's option that keeps packed documents apart; plain packing joins them."""
    if fields.flag("neat_packing"):
        return "neat_packing"
    if fields.flag("packing"):
        fields.note(
            "packing without neat_packing: documents attend to each other, and the prediction includes that"
        )
    return ""


def packed_by_trl(fields: Fields) -> str:
    """Return TRL's argument that packs documents which attend to themselves alone; note padded ones."""
    if not (fields.flag("packing") or fields.has("pad_to_multiple_of")):
        fields.note(PADDED.format("max_length"))
    # wrapped: documents attend to one another (data_utils.py pack_dataset), as one of the whole length does
    apart = fields.flag("packing") and str(fields.raw("packing_strategy") or "bfd") != "wrapped"
    return "packing" if apart else ""


def _loads_in_bf16(fields: Fields, tool: Tool) -> bool:
    """Return whether weights stay in 16 bits as loaded."""
    if tool.loads == "cast up":  # model/adapter.py:319
        return fields.flag("pure_bf16") or own_optimizer(fields) == _BADAM
    said = [str(fields.raw(name)).removeprefix("torch.") for name in ("torch_dtype", "dtype")]
    if tool.loads == "own":
        return not {"float32", "fp32", "float16", "fp16"} & set(said)
    return tool.loads == "bf16" or bool({"bfloat16", "auto"} & set(said))


def _note_type(fields: Fields, tool: Tool, *, in_bf16: bool) -> None:
    said = next((name for name in ("torch_dtype", "dtype") if fields.has(name)), None)
    if said and fields.raw(said) == "auto":
        fields.note(f"{said} auto: the weights' own type, taken for bfloat16")
    elif said is None and tool.pefts and not in_bf16:
        fields.note(
            "no argument sets the type that weights are loaded in: float32, transformers' default before "
            "5; where the script, or a later transformers, sets bfloat16: --set optimizer=adamw-pure-bf16"
        )


def _model(fields: Fields, known: Known, tool: Tool, *, sees: bool) -> ModelSpec:
    named = next((name for name in (*_MODELS, *_PERHAPS_MODELS) if fields.has(name)), None)
    text = str(fields.raw(named, instead="--model NAME")) if named else ""
    if named:
        adapters.refuse_stored(fields, named, frozen=tool.freezes_stored)
    if named and SEES.search(text.rstrip("/").rpartition("/")[2]) and not sees:
        fields.fault(
            named,
            f"{shown(text)} sees or hears: what trains besides its language model is not supported",
            allowed=f"a language model, or --ignore {named} and --model for it alone",
        )
    if named in _PERHAPS_MODELS and named_model(text) is None:
        text = ""
    if not text and known.overrides.model is None and known.header.model is None:
        like = fields.valued(lambda text: named_model(text) is not None)
        if like is not None and not _NO_MODELS.search(like):
            fields.fault(
                like,
                f"{shown(str(fields.raw(like)))} may be the model, under a name that is not known here",
                allowed="--model with the name of the one that is trained",
            )
            fields.stop()
    return known.model(Word(text, fields.place(named)[1]) if named and text else None)


_TRLS_OF_IMAGES = re.compile(r"(?:^|/)(?:trl|examples)/scripts/(?:sft|dpo)_vlm")


def _trains_tower(fields: Fields, known: Known, tool: Tool, program: str) -> bool:
    """Return whether a known tower is trained: by a trainer of the class that the checkpoint names.

    A person's script may freeze it. TRL 1.16, trainer/utils.py:1355 and examples/scripts/sft_vlm.py.
    """
    name = next((name for name in (*_MODELS, *_PERHAPS_MODELS) if fields.peek(name)), None)
    given = known.overrides.model or known.header.model
    given = given or (named_model(str(fields.peek(name))) if name else None)
    whole = bool(tool.parts) or tool.makes_chunks or _TRLS_OF_IMAGES.search(program) is not None
    return given is not None and given.tower is not None and whole


def _commands(script: Script) -> list[commands.Command]:
    """Return the programs that a script starts, without words that no program receives."""
    return [
        *(command for command in commands.commands_of(script) if command.program),
        commands.Command("", ()),
    ]


def _is_known(command: commands.Command, count: int) -> bool:
    """Return whether enough names are known: of a program with a trainer none, of a trainer's own one."""
    program = command.program
    own = program in ("swift sft", "swift pt", "swift rlhf")
    if not any(word.text.partition("=")[0] == "--config" for word in command.words):  # TRL's reader has it
        own = own or bool(trls_kind(program)) or any(word in program for word in tools.TRL.starts)
    return count >= (0 if command.known_as else 1 if own else _LEAST_NAMES)


@lru_cache(maxsize=1024)
def _is_name(text: str) -> bool:
    name = text.partition("=")[0]
    return name.startswith("--") and _names_of_trainers().original(_whole(plain_name(name))) in _OWN


def _decides(text: str) -> bool:
    row = _names_of_trainers().row(text.partition("=")[0]) if text.startswith("--") else None
    return _is_name(text) or (row is not None and row.role == "priced")


def _names_of_trainers() -> FlagNames:
    """Return the arguments of the Trainer and of the launchers that start it, TRL's relatives last."""
    relatives = (table for one in over_trl() for table in one.tables)
    return flag_names(*dict.fromkeys(("transformers", "trl", "llama-factory", "ms-swift", *relatives)))


_LOADING = "model_init_kwargs"
_LOADED = {"torch_dtype": "dtype", "dtype": "dtype", "attn_implementation": "attn_implementation"}
_OF_THE_START = ("revision", "trust_remote_code", "use_cache", "low_cpu_mem_usage", "device_map")


def as_loaded(values: Mapping[str, LocatedValue]) -> dict[str, LocatedValue]:
    """Return arguments with the type and the kernel of ``model_init_kwargs``, by which TRL loads models.

    Its scripts put them over ``dtype`` and ``attn_implementation`` of their own (TRL 1.16,
    ``scripts/sft.py:76-84``, ``dpo.py``, ``kto.py``, ``grpo.py``).
    """
    whole, start = values.get(_LOADING), f"{_LOADING}."
    found = {name: one for name, one in values.items() if not name.startswith(start)}
    given = {name.removeprefix(start): one for name, one in values.items() if name.startswith(start)}
    if whole is not None and isinstance(whole.value, str):
        with suppress(ValueError):
            stated = json.loads(whole.value)
            own = stated.items() if isinstance(stated, dict) else ()
            given |= {str(name): LocatedValue(value, whole.line) for name, value in own}
            del found[_LOADING]
    left = {f"{start}{name}": one for name, one in given.items() if name not in {*_LOADED, *_OF_THE_START}}
    return {**found, **left, **{name: given[one] for one, name in _LOADED.items() if one in given}}


def values_of(
    words: Sequence[Word], overrides: Overrides, known: FlagNames | None = None
) -> dict[str, LocatedValue]:
    """Return arguments by name; the last of equal ones counts.

    Args:
        words: the words of a command behind its program.
        overrides: values that the user supplies.
        known: the program's arguments; None: those of any trainer.

    Raises:
        InvalidProblemError: words known only at run time may be any arguments.
    """
    if (fault := unknown_arguments(words)) is not None:
        raise fault
    found: dict[str, LocatedValue] = {}
    known = known or _names_of_trainers()
    for at, word in enumerate(words):
        if not word.text.startswith("--"):
            continue
        name, equals, value = word.text[2:].partition("=")
        key = _whole(name.replace("-", "_"))
        following = _following(words[at + 1 :], known.row(key))
        alone = not equals and following is None
        text = True if alone else value if equals else following  # a switch, or its value is missing
        if alone and key.startswith("no_") and known.original(key[3:]) in _SWITCHES:
            key, text = key[3:], False  # HfArgumentParser's form for defaults that are on
        is_model = known.original(key) in (*_MODELS, *_PERHAPS_MODELS)
        if unknown_in(text) is not None and is_model and overrides.model:
            continue
        found[key] = LocatedValue(text, word.line)
    return found


def _following(words: Sequence[Word], row: Flag | None) -> str | None:
    """Return the word behind an argument, or all of a list; None before the next argument."""
    values = list(takewhile(lambda text: not text.startswith("--"), (word.text for word in words)))
    several = row is not None and "list" in row.type.lower()
    return " ".join(values if several else values[:1]) if values else None


_SWITCHES = ("gradient_checkpointing", "use_gradient_checkpointing", "bf16", "packing", "use_liger_kernel")
_ABBREVIATED = 12  # letters: shorter ones are names of other programs


def _whole(name: str) -> str:
    meant = {one for one in _DECIDING if one.startswith(name)}
    return meant.pop() if len(name) >= _ABBREVIATED and name not in meant and len(meant) == 1 else name


def _supplied(fields: Fields, known: Known, name: str, found: int | None) -> int | None:
    """Return a number; a supplied one overrides the file's, with a note."""
    supplied = known.overrides.values.get(name)
    if type(supplied) is not int:
        return found
    if found is not None and found != supplied:
        fields.note(f"{name} {found} of the file is replaced by {supplied}")
    return supplied


def _micro(fields: Fields, known: Known, tool: Tool) -> int:
    own = fields.optional(_MICRO if fields.has(_MICRO) or not tool.older_micro else tool.older_micro)
    micro = _supplied(fields, known, "micro_batch_size", own)
    whole = fields.raw("global_batch_size")
    if micro is None:
        micro = tool.micro
        if whole:
            fields.fault(
                "global_batch_size",
                f"no {_MICRO} is given: another program makes it of this one",
                allowed=_MICRO,
            )
        elif tool.is_fork:
            fields.fault(
                _MICRO,
                "is not given, and the script's default may differ from transformers'",
                allowed=f"{_MICRO}, or --set micro_batch_size=8",
            )
        fields.note(f"{_MICRO} is not given: {micro} is {tool.name}'s default")
    elif whole:
        fields.note(f"global_batch_size is another program's: {_MICRO} counts")
    return micro


# transformers 00d481d1, examples/pytorch/language-modeling/run_clm.py: without ``block_size`` it is the
# tokenizer's longest text, or 1024 tokens where that is longer than the model's positions; 1024 in older
# ones, whatever it is (DeepSpeedExamples 45b4b715, compression/gpt2/run_clm_no_trainer.py:340).
_RUN_CLM = re.compile(r"(?:^|/)run_clm(?:_no_trainer)?\.py$")
_BLOCK = 1024


def _with_block(tool: Tool, program: str, model: ModelSpec) -> Tool:
    """Return the tool with the blocks of transformers' own example, of models as GPT-2 alone.

    Their tokenizer's longest text, their positions and the example's limit are one number.
    """
    alike = model.learned_position_embeddings and model.max_position_embeddings == _BLOCK
    if not (alike and _RUN_CLM.search(program)):
        return tool
    return replace(tool, name="run_clm.py", limit="block_size", length=_BLOCK)


def _length(fields: Fields, known: Known, tool: Tool) -> int:
    name = next((name for name in LENGTHS if fields.has(name)), None)
    parts = next((parts for parts in _PARTS if all(fields.has(part) for part in parts)), ())
    if name is None and parts:
        own = sum(fields.integer(part) for part in parts)
        fields.note(f"{' and '.join(parts)} are the two parts of a sequence: {own} tokens, their sum")
        return _supplied(fields, known, "seq_length", own) or own
    others = [one for one in LENGTHS if fields.has(one) and fields.raw(one) != fields.raw(name or "")]
    if others and name and tool.pefts and "seq_length" not in known.overrides.values:
        why = f"{shown(str(fields.raw(others[0])))}, but {name} is {shown(str(fields.raw(name)))}"
        fields.fault(others[0], f"{why}: it is unclear which one you mean", allowed="--set seq_length=…")
    length = _supplied(fields, known, "seq_length", fields.optional(name) if name else None)
    usual = LLAMA_FACTORY.length if fields.has(_SWIFT_2) else tool.length  # ms-swift 2 has the same
    if length is None and usual is not None:
        fields.note(f"{tool.limit} is not given: {usual} is {tool.name}'s default")
        return usual
    return known.required("seq_length", length, tool.no_limit)


def _precision(fields: Fields, known: Known, tool: Tool, mesh: Fields | None, *, lora: bool) -> str:
    """Return the autocast type by the arguments, DeepSpeed's or accelerate's file, or the weights' type."""
    supplied = known.overrides.values.get("precision")
    if supplied in ("bf16", "fp16", "fp32"):
        return str(supplied)
    if tool is tools.CHAT:
        return fields.word("dtype", "fp16", allowed=("fp16", "bf16"))
    on = next((name for name in ("bf16", "fp16") if fields.has(name) and fields.flag(name)), "")
    on = _swifts_precision(fields, on) if tool is MS_SWIFT else on
    if found := on or ranks.engines_precision(fields, known.source):
        return found
    said = "no" if mesh is None else mesh.choice("mixed_precision", "no")
    if mesh is not None:
        mesh.stop()
    if said != "no":
        return said
    dtype = str(fields.raw("torch_dtype") or fields.raw("dtype") or "").removeprefix("torch.")
    dtype = "bfloat16" if dtype == "auto" else dtype  # the type of most checkpoints, with a note
    by_trl = tool.makes_chunks and dtype == "float32" and not fields.has("bf16")  # trainer/base_config.py
    # weights that are cast up are multiplied as they are (LLaMA-Factory's model/adapter.py)
    wide = tool.is_script or (tool.loads == "cast up" and not (lora or _loads_in_bf16(fields, tool)))
    dtype = tool.types.get(dtype, dtype)
    if by_trl or dtype in ("bfloat16", "float16") or (not dtype and not wide):
        own = "bfloat16, TRL's default" if by_trl else f"{dtype or 'bfloat16'}, the weights' own type"
        fields.note(f"neither bf16 nor fp16 is given: {own}")
        return "fp16" if dtype == "float16" else "bf16"
    fields.has("bf16")
    fields.note(
        "neither bf16 nor fp16 is given: weights, products and gradients in fp32, the default; where the "
        "script sets another type: --set precision=bf16"
    )
    return _WIDE


def _swifts_precision(fields: Fields, on: str) -> str:
    """Return the type that is on, or fp16 where ms-swift loads fp32 (4.6, model_args.py:130-143).

    It turns fp16 on there unless it is stated. Next to bf16 transformers then stops (training_args.py).
    """
    wide = str(fields.raw("torch_dtype")).removeprefix("torch.") in ("float32", "fp32")
    if not wide or fields.has("fp16"):
        return on
    if on:
        fields.fault(
            "fp16",
            "is on in ms-swift next to torch_dtype float32, and transformers refuses it next to bf16",
            allowed="false",
            nearest="false",
        )
        return on
    fields.note("neither bf16 nor fp16 is given: fp16, ms-swift's default next to torch_dtype float32")
    return "fp16"


def optimizer_of(fields: Fields, key: str = "optim", default: str = "adamw_torch") -> str:
    """Return the optimizer from its name in transformers."""
    row = flags_of("transformers")["optim"]
    name = fields.choice(key, default, row=row)
    if name.startswith("paged_"):
        fields.note(
            f"{key} {name}: its states leave the GPU where it is full; shards of them are priced on it"
        )
    if name in ("rmsprop", "adagrad"):  # torch 2.13, optim/rmsprop.py square_avg, optim/adagrad.py sum
        fields.note(f"{key} {name}: one state of a weight's type, priced as SGD's momentum")
    if name == "adamw_torch_4bit":
        fields.note(f"{key} {name}: its states are priced in 8 bits, 1 byte too many a trained weight")
    return str(row.priced_as[name])


def _recomputes(fields: Fields, tool: Tool) -> bool:
    said = fields.has("gradient_checkpointing")  # LLaMA-Factory has a switch of its own
    if tool.keeps and not (tool.is_fork and said):
        return not fields.flag(tool.keeps)
    if not fields.has("gradient_checkpointing") and tool.recomputes:
        fields.note(f"gradient_checkpointing is on: {tool.name}'s default")
    elif not fields.has("gradient_checkpointing") and not fields.has("use_gradient_checkpointing"):
        fields.note("gradient_checkpointing is off: transformers' default, where no script turns it on")
    own = fields.flag("use_gradient_checkpointing", default=tool.recomputes)  # in many scripts on TRL
    return fields.flag("gradient_checkpointing", default=own)
