"""Reads training scripts on transformers' Trainer: their arguments in a command, or in a YAML file.

Fine-tuning as LLaMA-Factory, ms-swift (``swift sft``), TRL, DeepSpeed-Chat and plain ``Trainer`` scripts
start it: replicas, ZeRO by DeepSpeed, or FSDP. Names and defaults: ``TrainingArguments``; those of
LLaMA-Factory (hparams) and of ms-swift 4 (arguments/base_args) where they differ, marked below.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.profiles.adapters import (
    ATTENTION_TARGETS,
    LORA_TARGETS,
    SINGLE_TARGETS,
    BasePrecision,
    linear_names,
    names_every,
)
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.service.launchers.reading.accelerate import AccelerateReader, ranks_of
from meshwright.service.launchers.reading.accelerate_command import (
    Shares,
    shares_of,
    shares_of_environment,
)
from meshwright.service.launchers.reading.base import LaunchFile, Source, Told, passed_by, refused
from meshwright.service.launchers.reading.commands import (
    Command,
    World,
    best,
    chosen,
    chosen_by,
    commands_of,
    require_beside,
    require_training,
    script_of,
    takes_every_gpu,
    world_of,
)
from meshwright.service.launchers.reading.deepspeed import DeepSpeedReader
from meshwright.service.launchers.reading.documents import Found, document_of, looks_like_document
from meshwright.service.launchers.reading.fields import Fields
from meshwright.service.launchers.reading.known import Known, header_of, known_of, named_model
from meshwright.service.launchers.reading.shell_values import UNKNOWN, Script, Word, why_unknown
from meshwright.service.launchers.reading.trainer_ranks import ranks_run

_MICRO, _COUNT = "per_device_train_batch_size", "gradient_accumulation_steps"
_MODELS = ("model_name_or_path", "model", "model_id_or_path", "base_model", "model_id", "pretrain")
_LENGTHS = ("cutoff_len", "max_length", "max_seq_length", "model_max_length", "max_seq_len", "block_size")
_OWN = (
    _MICRO, _COUNT, "model_name_or_path", "finetuning_type", "tuner_type", "train_type", "deepspeed",
    "gradient_checkpointing", "lr_scheduler_type", "max_seq_length", "cutoff_len",
)  # fmt: skip
_DECIDING = (  # arguments whose value must be known
    *(name for name in _OWN if name != "lr_scheduler_type"), *_LENGTHS, *_MODELS, "zero_stage", "fsdp",
    "fsdp_config", "deepspeed_config", "optim", "lora_rank", "lora_r", "lora_target", "lora_target_modules",
    "target_modules", "use_peft", "pure_bf16", "quantization_bit", "load_in_4bit", "load_in_8bit",
)  # fmt: skip
PADDED = (  # with the name of the longest length
    "packing is off: micro-batches are padded to their longest sequence, and priced as if each had one of "
    "{} tokens; a plan for documents of stated lengths (batching padding_to_longest) prices shorter ones"
)
_LEAST_NAMES = 2
_DOCUMENTS = (".yaml", ".yml", ".json")  # HfArgumentParser.parse_yaml_file, parse_json_file
_SHARDED = 3  # ZeRO-3
_IRRELEVANT = (
    "dataset", "template", "output_dir", "stage", "do_", "learning_rate", "num_train", "lr_", "warmup",
    "logging", "save", "eval", "val_", "overwrite", "preprocessing", "dataloader", "plot_", "report_to",
    "trust_remote", "max_samples", "ddp_timeout", "resume", "seed", "max_steps", "weight_decay", "adam_",
    "max_grad_norm", "lora_", "tokenized_path", "push_to_hub", "hub_", "run_name", "log_", "system",
    "model_", "split_dataset", "remove_unused", "chat_template", "per_device_eval", "metric", "load_best",
    "streaming", "num_warmup", "data_", "tokenizer", "use_hf", "attn_im", "flash_attn", "torch_dtype",
    "per_device_ev", "use_reentrant", "gradient_checkpointing_kwargs", "ddp_find", "enable_thinking",
    "local_rank", "freeze_trainable", "freeze_extra",
    "data", "print_loss", "tf32", "target_modules", "bf16", "fp16", "tensorboard", "ray_",
)  # fmt: skip
OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw": "adamw",
    "adamw_8bit": "adamw-8bit", "adamw_bnb_8bit": "adamw-8bit", "adamw_torch_8bit": "adamw-8bit",
    "sgd": "sgd-momentum", "paged_adamw": "adamw", "paged_adamw_32bit": "adamw",
    "paged_adamw_8bit": "adamw-8bit",
}  # fmt: skip
WITHOUT_COPY = {"adamw": "adamw-pure-bf16", "adamw-8bit": "adamw-8bit-bf16"}  # of weights loaded in bf16
PREFERENCES = (  # arguments of trainers on preferences and rewards alone (TRL, ms-swift)
    "rlhf_type", "reward_funcs", "reward_model_path", "num_generations", "max_prompt_length",
    "max_completion_length", "dpo_alpha", "rpo_alpha", "dpo_beta", "simpo_gamma", "kto_chosen_weight",
    "beta", "desirable_weight", "undesirable_weight", "precompute_ref_log_probs", "ref_model", "pref_loss",
)  # fmt: skip
PREFERENCE_LOSSES = (  # of ``loss_type``: TRL 1.16.0, configurations of its trainers on preferences
    "sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard",
    "aot", "aot_pair", "aot_unpaired", "discopop", "apo_zero", "apo_down", "apo_zero_unpaired", "kto",
    "simpo", "grpo", "dr_grpo", "dapo", "bnpo",
)  # fmt: skip
_NOT_PRICED = {  # what trains otherwise than a plan can say
    "load_in_4bit": "quantised base weights are not priced from launch files yet",
    "load_in_8bit": "quantised base weights are not priced from launch files yet",
    "use_4bit_quantization": "quantised base weights are not priced from launch files yet",
    "use_8bit_quantization": "quantised base weights are not priced from launch files yet",
    **dict.fromkeys(PREFERENCES, "training on preferences or rewards is not priced"),
    "num_labels": "a classifier's head is not priced", "problem_type": "a classifier's head is not priced",
    **dict.fromkeys(
        (
            "vision_model_name_or_path", "vision_tower", "vision_path", "mm_projector_type", "audio_tower",
            "image_tower", "video_tower", "mm_vision_select_layer", "tune_visual_abstractor",
        ),
        "models that see or hear are not priced",
    ),
    "use_galore": "GaLore is not priced", "use_badam": "BAdam is not priced",
    "use_apollo": "APOLLO is not priced", "mixture_of_depths": "mixtures of depths are not priced",
    "use_unsloth": "Unsloth's kernels are not priced", "use_kt": "KTransformers is not priced",
    "sequence_parallel_size": "Ulysses sequence parallelism is not read",
    "use_adam_mini": "Adam-mini is not priced",
}  # fmt: skip
_STORED = re.compile(r"[-_](awq|gptq|int[48]|4bit|8bit|bnb|gguf)(?=$|[-_/])", re.IGNORECASE)
_SWIFT_2 = "sft_type"  # of ms-swift before 3, as ``batch_size``, ``dtype`` and ``default-zero3``
_STAGES = ("sft", "pt", "pretrain", "")
_SWIFT = ("swift", "megatron")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Whose arguments they are, and its defaults."""

    name: str
    micro: int = 8  # TrainingArguments
    recomputes: bool = False
    tuner: str = "full"
    length: int | None = None
    launcher: str = AccelerateReader.name  # whose replicas and meshes they are


_PLAIN = Tool(name="transformers")
LLAMA_FACTORY = Tool(
    name="LLaMA-Factory", recomputes=True, tuner="lora", length=2048, launcher="llama-factory-accelerate"
)
_MS_SWIFT = Tool(name="ms-swift", micro=1, recomputes=True, tuner="lora")


_TRL = Tool(name="TRL", recomputes=True, length=1024)  # SFTConfig
_PEFTS = (_PLAIN, _TRL)  # whose adapters are peft's own where nothing is said

_PROGRAMS = (("swift", _MS_SWIFT), ("llamafactory", LLAMA_FACTORY), ("trl/scripts/sft", _TRL))


class TrainerReader:
    """Reads commands and YAML of scripts on transformers' Trainer."""

    name = "transformers"

    def recognises(self, source: Source) -> bool:
        """Whether there are names of TrainingArguments."""
        if source.is_script:
            try:
                return _is_known(*best(_commands(script_of(source, Told())), _is_name))
            except InvalidProblemError:
                return False
        names = looks_like_document(source) if source.suffix in _DOCUMENTS else {}
        return _MICRO in names and any(name in names for name in _MODELS)

    def read(self, source: Source, told: Told) -> LaunchFile:
        """The run that a command or a YAML file starts.

        Raises:
            InvalidProblemError: what cannot be read, is not priced, or is said nowhere.
        """
        known = known_of(source, told)
        if not source.is_script:
            start = start_of(source, told)
            over = {} if start is None else values_of(start[1].words, told)
            fields = Fields(source.name, document_of(source) | over, told)
            fields.note_commands(over)
            if start is None:
                return trainer_run(fields, known, _tool(fields))
            script, command = start
            shares = shares_of(command.before, known.source)
            known.world = world_of("", script, command)
            return trainer_run(
                fields, known, _tool(fields), started=started_by(script, command), shares=shares
            )
        script = script_of(source, told)
        command, count = chosen(_commands(script), _is_name, told, source.name)
        if not _is_known(command, count):
            raise refused(
                f"{source.name[:64]}: no command with arguments of transformers' Trainer is in it"
            )
        require_training(command, source.name)
        known.world = world_of(source.text, script, command)
        beside = _arguments_beside(source, command)
        fields = Fields(source.name, beside | values_of(command.words, told), told)
        for note in script.notes:
            fields.note(note)
        shares = shares_of(command.before, known.source)
        shares = shares or shares_of_environment(script.variables, known.source)
        if shares is not None and known.header.plan_id is None:
            known.header = header_of(shares.source.text)  # of an exported plan, of which a capture is left
        _require_one_gpu_each(fields, script, command)
        tool, started = _tool(fields, command.program), started_by(script, command)
        return trainer_run(fields, known, tool, started=started, shares=shares)


def start_of(source: Source, told: Told) -> tuple[Script, Command] | None:
    """The command beside a file of arguments that trains by it, with its script; None: there is none.

    What such a command says besides counts before the file (alignment-handbook, H4ArgumentParser).

    Raises:
        InvalidProblemError: none of those that are given the file trains, or several differ.
    """
    scripts = [script_of(one, told) for one in source.scripts()]
    starts = [(script, command) for script in scripts for command in _commands(script)]
    found = chosen_by(source.name, [command for _, command in starts], _is_name)
    return next((start for start in starts if start[1] is found), None)


def _arguments_beside(source: Source, command: Command) -> dict[str, Found]:
    """The arguments in a file that the command names first, for its own to count before."""
    if not command.words or not command.words[0].text.endswith(_DOCUMENTS):
        return {}
    require_beside(source, source, command.words[0])
    return document_of(source.at(command.words[0].text))


def _tool(fields: Fields, program: str = "") -> Tool:
    """Whose arguments they are, by the program and by names that LLaMA-Factory alone has."""
    if fields.has("max_seq_length"):  # TRL called it so before it recomputed by default
        program = program.replace("trl/", "")
    own = LLAMA_FACTORY if fields.has("finetuning_type") or fields.has("stage") else _PLAIN
    return next((tool for name, tool in _PROGRAMS if name in program), own)


def trainer_run(
    fields: Fields, known: Known, tool: Tool, *, started: int | None = None, shares: Shares | None = None
) -> LaunchFile:
    """The run of arguments, of a command or of a file.

    ``shares``: accelerate's file and options, which say how ranks share.

    Raises:
        InvalidProblemError: what cannot be read, is not priced, or is said nowhere.
    """
    _refuse_unpriced(fields)
    if tool is LLAMA_FACTORY and not fields.flag("do_train", default=False):
        fields.fault("do_train", "is not on: LLaMA-Factory trains nothing then", allowed="true")
        fields.stop()
    model = _model(fields, known)
    mesh = None if shares is None else shares.fields
    world = ranks_of(known, mesh, started)
    own = fields.optional("batch_size" if tool is _MS_SWIFT and not fields.has(_MICRO) else _MICRO)
    micro = _told(fields, known, "micro_batch_size", own)
    whole = fields.raw("global_batch_size")
    if micro is None:
        micro = tool.micro
        if whole:
            why = f"no {_MICRO} is given: another program makes it of this one"
            fields.fault("global_batch_size", why, allowed=_MICRO)
        fields.note(f"{_MICRO} is not given: {micro} is {tool.name}'s default")
    elif whole:
        fields.note(f"global_batch_size is another program's: {_MICRO} counts")
    count = _told(fields, known, "num_microbatches", fields.optional(_COUNT)) or _usual_count(
        tool, micro, world or 1
    )
    length = _length(fields, known, tool)
    precision, optimizer = _precision(fields, known, tool, mesh), optimizer_of(fields)
    adapters, base = _adapters(fields, tool), _base(fields)
    in_bf16 = fields.flag("pure_bf16", default=False)  # else LLaMA-Factory casts up (model/adapter.py)
    recompute = _recomputes(fields, tool)
    fields.stop()
    told = replace(
        known.told,
        model=model,
        num_gpus=world,
        values={
            **known.told.values,
            "micro_batch_size": micro,
            "num_microbatches": count,
            "seq_length": length,
            "precision": precision,
            "recompute_granularity": "full" if recompute else "none",
        },
    )
    found = ranks_run(tool.launcher, fields, known, told, shares)
    if in_bf16 and not adapters[0] and keeps_no_copy(found):
        optimizer = WITHOUT_COPY.get(optimizer, optimizer)
    targets = adapters[1] if tool in _PEFTS else of_trainer(adapters[1], model)
    workload = replace(found.workload, optimizer=optimizer, lora_rank=adapters[0], lora_targets=targets)
    if base != "bf16":
        _require_whole_weights(fields, found.configuration.zero_stage, adapters[0])
        workload = replace(workload, base_precision=base)
    whole = known.world.num_gpus == world and known.world.gpus_per_node
    nodes = known.world if whole else World(found.num_nodes, found.gpus_per_node)
    return replace(
        found,
        workload=workload,
        num_nodes=nodes.num_nodes,
        gpus_per_node=nodes.gpus_per_node,
        notes=(*fields.notes, *known.notes, *found.notes),
        unread=(*fields.unread(_IRRELEVANT), *found.unread),
    )


def keeps_no_copy(found: LaunchFile) -> bool:
    """Whether weights in bf16 stay so: FSDP2 casts them up, DeepSpeed keeps a copy in fp32."""
    return found.configuration.zero_stage == 0 and found.launcher != DeepSpeedReader.name


def _model(fields: Fields, known: Known) -> ModelSpec:
    """The told model, or the one that the arguments name."""
    named = next((name for name in (*_MODELS, "model_name") if fields.has(name)), None)
    text = str(fields.raw(named)) if named else ""
    if named and _STORED.search(text):
        why = f"{shown(text)} is stored quantised: such weights are not priced from launch files yet"
        fields.fault(named, why)
    if named == "model_name" and named_model(text) is None:
        text = ""  # some scripts call what they save by it
    return known.model(Word(text, fields.place(named)[1]) if named and text else None)


def _commands(script: Script) -> list[Command]:
    """The programs that a script starts, and nothing of words that no program gets."""
    return [*(command for command in commands_of(script) if command.program), Command("", ())]


def _is_known(command: Command, count: int) -> bool:
    """Whether so many names are enough; of ms-swift's own program one is."""
    return count >= (1 if command.program in ("swift sft", "swift pt") else _LEAST_NAMES)


def _is_name(text: str) -> bool:
    """Whether a word is an argument of transformers' Trainer."""
    name = text.partition("=")[0]
    return name.startswith("--") and name[2:].replace("-", "_") in _OWN


def values_of(words: Sequence[Word], told: Told) -> dict[str, Found]:
    """Arguments by name; the last of equal ones counts."""
    found: dict[str, Found] = {}
    for at, word in enumerate(words):
        if not word.text.startswith("--"):
            continue
        name, equals, value = word.text[2:].partition("=")
        following = words[at + 1].text if at + 1 < len(words) else "--"
        text = value if equals else "true" if following.startswith("--") else following
        key = name.replace("-", "_")
        if UNKNOWN in text and not passed_by(told, key):
            if key in _DECIDING:
                why, allowed = why_unknown(text.split(UNKNOWN)[1])
                raise InvalidProblemError.of(f"--{key}", f"line {word.line}: {why}", allowed=allowed)
            continue
        found[key] = Found(text, word.line)
    return found


def started_by(script: Script, command: Command) -> int | None:
    """Processes of one node, where no launcher says them: a GPU each of those that are visible, or one."""
    world = world_of("", script, command)
    if world.gpus_per_node and not world.num_nodes:
        return world.gpus_per_node  # NPROC_PER_NODE alone: one node
    visible = _visible(script)
    several = command.program.startswith("llamafactory") or any(
        word.text.rsplit("/", 1)[-1] in ("deepspeed", "accelerate") for word in command.before
    )
    several = several or takes_every_gpu(command.before)
    if visible and UNKNOWN not in visible:
        return len(visible.split(",")) if several else 1
    return None if several else 1


def _visible(script: Script) -> str:
    """CUDA_VISIBLE_DEVICES as the script sets it."""
    return "".join(script.variables.get("CUDA_VISIBLE_DEVICES", ()))


def _require_one_gpu_each(fields: Fields, script: Script, command: Command) -> None:
    """Refuse processes of ms-swift that hold the model over several GPUs, one working after another.

    Without ZeRO-3 and FSDP each takes all GPUs that are visible to it alone (get_default_device_map).
    """
    visible, world = _visible(script), world_of("", script, command)
    sharded = fields.raw("fsdp") or re.search(r"zero_?3|stage_?3", str(fields.raw("deepspeed") or ""))
    if not command.program.startswith("swift") or not visible or UNKNOWN in visible or sharded:
        return
    gpus, each = len(visible.split(",")), world.gpus_per_node or 1
    if gpus // each > 1 and not (each == 1 and world.num_nodes):
        why = f"a process holds the model over {gpus // each} of them (device_map), which is not priced"
        message = f"{each} on {gpus} visible GPUs: {why}"
        fields.fault("NPROC_PER_NODE", message, allowed=f"NPROC_PER_NODE={gpus}")
        fields.stop()


def _told(fields: Fields, known: Known, name: str, found: int | None) -> int | None:
    """A number: the told one before the file's, which is noted."""
    told = known.told.values.get(name)
    if type(told) is not int:
        return found
    if found is not None and found != told:
        fields.note(f"{name} {found} of the file is told otherwise: {told}")
    return told


def _usual_count(tool: Tool, micro: int, world: int) -> int:
    """Accumulated micro-batches where none are given; ms-swift fills a batch of 16."""
    return max(-(-16 // (micro * world)), 1) if tool is _MS_SWIFT else 1


def _length(fields: Fields, known: Known, tool: Tool) -> int:
    """The sequence that every micro-batch is padded or packed to."""
    name = next((name for name in _LENGTHS if fields.has(name)), None)
    length = _told(fields, known, "seq_length", fields.optional(name) if name else None)
    usual = LLAMA_FACTORY.length if fields.has(_SWIFT_2) else tool.length  # ms-swift 2 has the same
    if length is None and usual is not None:
        fields.note(f"{_LENGTHS[tool is not LLAMA_FACTORY]} is not given: {usual} is {tool.name}'s default")
        return usual
    return known.required("seq_length", length, f"{_LENGTHS[2]} of the training script")


def _refuse_unpriced(fields: Fields) -> None:
    """Training that no plan describes."""
    for name, why in _NOT_PRICED.items():
        if str(fields.raw(name)).lower() not in ("none", "false", "0", "1" if "size" in name else "none"):
            fields.fault(name, f"cannot be read: {why}")
    if str(fields.raw("loss_type")) in PREFERENCE_LOSSES:
        fields.fault("loss_type", f"cannot be read: {_NOT_PRICED[PREFERENCES[0]]}")
    stage = fields.word("stage", "") if not str(fields.raw("stage")).isdecimal() else ""
    if stage not in _STAGES:
        fields.fault(
            "stage", f"{shown(stage)} is not priced: plans train on one sequence", allowed="sft, pt"
        )
    fields.stop()


_SWIFTS_TYPES = {"AUTO": "", "bf16": "bfloat16", "fp16": "float16"}


def _precision(fields: Fields, known: Known, tool: Tool, mesh: Fields | None) -> str:
    """Autocast, by the arguments or else by accelerate's file, or the type of the weights."""
    told = known.told.values.get("precision")
    if told in ("bf16", "fp16"):
        return str(told)
    for name in ("bf16", "fp16"):
        if fields.has(name) and fields.flag(name, default=False):
            return name
    if mesh is not None and mesh.raw("mixed_precision") in ("bf16", "fp16"):
        return mesh.word("mixed_precision")
    dtype = str(fields.raw("torch_dtype") or fields.raw("dtype") or "")
    dtype = _SWIFTS_TYPES.get(dtype, dtype) if tool is _MS_SWIFT else dtype
    if dtype in ("bfloat16", "float16") or (not dtype and tool is not _PLAIN):
        fields.note(f"neither bf16 nor fp16 is given: {dtype or 'bfloat16'}, the weights' own type")
        return "fp16" if dtype == "float16" else "bf16"
    fields.has("bf16")
    fields.fault(
        "bf16",
        "neither bf16 nor fp16 is given: training in fp32 is not priced",
        allowed="bf16 or fp16 true, or --set precision=bf16",
    )
    return "bf16"


def optimizer_of(fields: Fields, key: str = "optim", default: str = "adamw_torch") -> str:
    """By its name in transformers."""
    name = fields.word(key, default)
    if name not in OPTIMIZERS:
        fields.fault(key, f"{shown(name)} is not priced", allowed=", ".join(OPTIMIZERS))
    if name.startswith("paged_"):
        fields.note(f"{key} {name}: its states are priced on the GPU, which they leave where it is full")
    return OPTIMIZERS.get(name, "adamw")


def _adapters(fields: Fields, tool: Tool) -> tuple[int, tuple[str, ...]]:
    """Rank and targets of LoRA, where it trains such."""
    names = ("finetuning_type", "tuner_type", "train_type", _SWIFT_2)
    kind = next((fields.word(name) for name in names if fields.has(name)), tool.tuner)
    if any(fields.flag(name, default=False) for name in ("use_peft", "use_peft_lora", "use_lora")):
        kind = "lora"
    if kind not in ("full", "lora"):
        fields.fault(
            next(name for name in names if fields.has(name)), f"{kind} is not priced", allowed="full, lora"
        )
    if kind != "lora":
        _refuse_silent_rank(fields, tool)
        return 0, ATTENTION_TARGETS
    if fields.raw("lora_config"):
        fields.fault(
            "lora_config", "adapters in a file of their own are not read", allowed="lora_r beside it"
        )
    rank = fields.integer("lora_rank", fields.integer("lora_r", 16 if tool in _PEFTS else 8))
    return rank, adapted(fields, pefts=tool in _PEFTS)


_OF_ADAPTERS = re.compile(r"(?:\w+_)?(?:lora|qlora|peft|adapters?)(?:_\w+)?")


def _refuse_silent_rank(fields: Fields, tool: Tool) -> None:
    """Leave a fault for words of adapters without a switch: some scripts train such by them, not all."""
    said = any(fields.has(name) for name in ("use_peft", "use_peft_lora", "use_lora"))
    name = next((name for name in ("lora_rank", "lora_r") if fields.raw(name)), fields.named(_OF_ADAPTERS))
    if tool in _PEFTS and name is not None and not said:
        why = "of adapters, and nothing says whether the script trains them"
        fields.fault(
            name, why, allowed=f"use_peft true or false, or --ignore {name} for training all weights"
        )


_TARGETS = ("lora_target", "target_modules", "lora_target_modules")
_FUSED = {  # layers that some of transformers' models fuse as Megatron-Core does
    "qkv_proj": "linear_qkv", "query_key_value": "linear_qkv", "c_attn": "linear_qkv",
    "W_pack": "linear_qkv", "dense": "linear_proj", "gate_up_proj": "linear_fc1",
    "dense_h_to_4h": "linear_fc1", "dense_4h_to_h": "linear_fc2",
}  # fmt: skip


_WHOLE_LAYERS = (  # peft's modules_to_save and target_parameters, by the trainers' names of them
    "modules_to_save", "lora_modules_to_save", "additional_target", "target_parameters",
    "lora_target_parameters",
)  # fmt: skip
_PEFTS_OWN = ("q_proj", "v_proj")  # TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING (peft, constants.py)


def adapted(fields: Fields, *, pefts: bool = True) -> tuple[str, ...]:
    """What LoRA's targets name; where nothing is said peft's own, or all linear layers."""
    name = next((name for name in _TARGETS if fields.raw(name)), _TARGETS[0])
    if pefts and not fields.raw(name):
        fields.note(f"{_TARGETS[-1]} is not given: q_proj and v_proj, peft's own for most models")
        return _PEFTS_OWN
    said = fields.raw(name) or "all"
    words = said if isinstance(said, list) else str(said).replace(",", " ").split()
    for whole in _WHOLE_LAYERS:
        if fields.raw(whole):
            fields.fault(whole, "weights that are trained whole, or adapted as they are, are not priced")
    if any(word in ("all", "all-linear") for word in words):
        return SINGLE_TARGETS
    known = [word if word in LORA_TARGETS else _FUSED.get(str(word), "") for word in words]
    if not all(known):
        word = words[known.index("")]
        fields.fault(
            name, f'"{str(word)[:40]}" is no layer that is priced', allowed=", ".join(LORA_TARGETS)
        )
        return ATTENTION_TARGETS
    return tuple(one for one in LORA_TARGETS if one in known)


def of_trainer(targets: tuple[str, ...], model: ModelSpec) -> tuple[str, ...]:
    """Targets of a trainer that lists the linear layers of a class itself where all are asked for."""
    return linear_names(model) if names_every(targets) else targets


_BITS, _METHODS, _KINDS = (
    ("quantization_bit", "quant_bits"),
    ("quantization_method", "quant_method"),
    ("quantization_type", "bnb_4bit_quant_type"),
)
_NESTED = ("double_quantization", "bnb_4bit_use_double_quant")


def _base(fields: Fields) -> BasePrecision:
    """What the frozen weights are kept in: LLaMA-Factory's and ms-swift's names of bitsandbytes' NF4.

    Both quantise the scales too where nothing is said (hparams/model_args.py, arguments/base_args).
    """
    bits = next((name for name in _BITS if fields.has(name)), None)
    method = next((name for name in _METHODS if fields.has(name)), None)
    kind = next((name for name in _KINDS if fields.has(name)), None)
    nested = next((name for name in _NESTED if fields.has(name)), _NESTED[0])
    double = fields.flag(nested, default=True)
    if bits is None:
        return "bf16"
    why = "is not priced from launch files yet"
    if fields.integer(bits, 4) != 4:  # noqa: PLR2004 - bits
        fields.fault(bits, f"{fields.raw(bits)} {why}", allowed="4", nearest="4")
    if method and fields.word(method) not in ("bnb", "bitsandbytes"):
        fields.fault(method, f"{shown(str(fields.raw(method)))} {why}", allowed="bnb", nearest="bnb")
    if kind and fields.word(kind) != "nf4":
        fields.fault(kind, f"{shown(str(fields.raw(kind)))} {why}", allowed="nf4", nearest="nf4")
    return "nf4-double" if double else "nf4"


def _require_whole_weights(fields: Fields, zero: int, rank: int) -> None:
    """Refuse weights of 4 bits that are cut over ranks, or that are trained themselves."""
    name = next(name for name in _BITS if fields.has(name))
    if not rank:
        fields.fault(name, "weights of 4 bits are frozen: nothing would be trained", allowed="with LoRA")
    if zero == _SHARDED:
        fields.fault(name, "weights of 4 bits cut over ranks are not priced", allowed="without ZeRO-3")
    fields.stop()


def _recomputes(fields: Fields, tool: Tool) -> bool:
    """Whether every layer recomputes."""
    if tool is LLAMA_FACTORY:
        return not fields.flag("disable_gradient_checkpointing", default=False)
    if not fields.has("gradient_checkpointing") and tool.recomputes:
        fields.note(f"gradient_checkpointing is on: {tool.name}'s default")
    own = fields.flag("use_gradient_checkpointing", default=tool.recomputes)  # of many a script of TRL's
    return fields.flag("gradient_checkpointing", default=own)
