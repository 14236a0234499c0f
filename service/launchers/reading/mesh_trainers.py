"""Reads Axolotl's YAML, and TRL's beside accelerate's: two trainers over accelerate's mesh.

Names and defaults: Axolotl 0.19.0, utils/schemas (config.py, fsdp.py) and utils/distributed.py
(_get_parallel_config_kwargs); TRL 1.16.0, trainer/sft_config.py and base_config.py, scripts/utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from meshwright.profiles.adapters import SINGLE_TARGETS
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.profile import framework_of
from meshwright.service.launchers.reading.accelerate import (
    ACCUMULATION,
    CHECKPOINTING,
    ENGINE,
    MICRO_BATCH,
    AccelerateReader,
    Arguments,
    arguments,
    checkpoints,
    mesh_run,
    number,
    ranks_of,
    recomputes,
)
from meshwright.service.launchers.reading.accelerate_command import Shares, shares_beside
from meshwright.service.launchers.reading.base import LaunchFile, Source, Told
from meshwright.service.launchers.reading.commands import files_named, require_beside, script_of
from meshwright.service.launchers.reading.documents import Found, document_of, looks_like_document
from meshwright.service.launchers.reading.fields import Fields
from meshwright.service.launchers.reading.known import Known, known_of
from meshwright.service.launchers.reading.shell_values import Word
from meshwright.service.launchers.reading.split import divided
from meshwright.service.launchers.reading.trainer import (
    PADDED,
    PREFERENCE_LOSSES,
    PREFERENCES,
    WITHOUT_COPY,
    adapted,
    keeps_no_copy,
    of_trainer,
    optimizer_of,
    values_of,
)
from meshwright.service.launchers.reading.trainer_ranks import ranks_run, run_of_deepspeeds_file
from meshwright.service.launchers.trainers import ATTENTION
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload

# Of the trainer's own business: no cost hangs on them.
_OF_THE_TRAINER = (
    "dataset", "output_dir", "learning_rate", "lr_", "num_train", "num_epochs", "warmup", "logging", "log_",
    "save", "eval", "val_", "report_to", "seed", "max_steps", "weight_decay", "adam_", "max_grad_norm",
    "ddp_timeout", "resume", "dataloader", "hub_", "push_to_hub", "wandb", "mlflow", "run_name",
    "trust_remote", "gradient_checkpointing_kwargs", "chat_template", "special_tokens", "tokens",
    "max_samples", "group_by",
)  # fmt: skip
_SHARDED = 3  # ZeRO-3
_FSDP2 = 2


_QUANTISED = ("load_in_4bit", "load_in_8bit")


def _refuse_quantised(fields: Fields, names: Sequence[str] = _QUANTISED) -> None:
    """Leave a fault for weights of fewer bits."""
    for name in names:
        if fields.flag(name, default=False):
            fields.fault(name, "quantised weights under this trainer are not priced", allowed="false")


# --------------------------------------------------------------------------------------------------
# Axolotl: one YAML.


_AXOLOTL_OWN = ("base_model", "sequence_len", "sample_packing", "pad_to_sequence_len", "dp_shard_size")
_AXOLOTL_IRRELEVANT = (
    *_OF_THE_TRAINER, "base_model", "sample_packing", "pad_to_sequence_len", "strict", "tf32", "model_type",
    "lora_alpha", "lora_dropout", "auto_resume_from_checkpoints",
    "tokenizer", "train_on_inputs", "shuffle", "test_datasets", "excess_length", "attn_implementation",
    "flash_attention", "xformers", "sdp_attention", "fsdp_config.state_dict", "fsdp_config.final_state",
    "fsdp_config.cpu_ram", "fsdp_config.sync", "fsdp_config.use_orig", "fsdp_config.transformer_layer",
    "fsdp_config.limit_all", "launcher", "num_processes", "num_machines", "main_process",
)  # fmt: skip
_AXOLOTL_REFUSED = {
    "rl": "training on preferences or rewards is not priced",
    "reward_model": "training on preferences or rewards is not priced",
    "processor_type": "models that see or hear are not priced",
    "relora": "ReLoRA is not priced", "relora_steps": "ReLoRA is not priced",
    "unfrozen_parameters": "which weights are trained hangs on it",
    "gptq": "weights that are stored quantised are not priced",
    "fp8": "training in 8 bits under Axolotl is not priced",
}  # fmt: skip
_FSDP = "fsdp_config."
_ADAPTERS = ("lora", "qlora")


class AxolotlReader:
    """Reads the YAML of ``axolotl train``."""

    name = "axolotl"

    def recognises(self, source: Source) -> bool:
        """Whether a YAML has Axolotl's own names."""
        names = looks_like_document(source) if source.suffix in (".yaml", ".yml") else {}
        return sum(name in names for name in (*_AXOLOTL_OWN, "micro_batch_size")) > 1

    def read(self, source: Source, told: Told) -> LaunchFile:
        """The run that the file configures.

        Raises:
            InvalidProblemError: what cannot be read, contradicts itself, or is said nowhere.
        """
        over = _of_command(source, told)
        values = {_without_fsdps_own(name): found for name, found in (document_of(source) | over).items()}
        fields, known = Fields(source.name, values, told), known_of(source, told)
        fields.note_commands(over)
        for name, why in _AXOLOTL_REFUSED.items():
            if fields.raw(name):
                fields.fault(name, f"cannot be read: {why}")
        for section in ("overrides_of_model_config", "model_config"):
            for name in fields.section(section):
                if not name.startswith("rope"):
                    fields.fault(f"{section}.{name}", "another model than the one named is not read")
        fields.stop()
        _take_model(fields, known, "base_model")
        tuned = _axolotl_tuned(fields, known)
        if "base_precision" in tuned and known.model().moe is not None:
            fields.fault("load_in_4bit", "experts of 4 bits under Axolotl are not priced", allowed="false")
        _require_bf16(fields)
        for name in ("micro_batch_size", "sequence_len"):
            fields.expect(name)
        if not (fields.raw("sample_packing") or fields.raw("pad_to_sequence_len")):
            fields.note(PADDED.format("sequence_len"))
        if fields.has("deepspeed"):
            return _axolotl_by_deepspeed(fields, known, tuned)
        configuration = _axolotl_configuration(fields, known)
        world, nodes = configuration.num_gpus, known.world.num_nodes
        each = divided(world, nodes, field="dp_shard_size", what="nodes") if nodes else None
        return LaunchFile(
            launcher=_priced_as(fields, tuned),
            model=known.model(),
            workload=Workload(
                global_batch_size=configuration.global_batch_size,
                seq_length=fields.integer("sequence_len", 1),
                precision="bf16",
                framework_options=_kernel(fields, self.name, configuration),
                **tuned,
            ),
            configuration=configuration,
            num_nodes=nodes,
            gpus_per_node=each,
            notes=tuple(fields.notes),
            unread=fields.unread((*_AXOLOTL_IRRELEVANT, "gradient_checkpointing")),
            places={"tensor_parallel_size": fields.place("tensor_parallel_size")},
        )


def _of_command(source: Source, told: Told) -> dict[str, Found]:
    """Options of the command that trains by the file, which count before it (Axolotl's cli/config.py)."""
    found: dict[str, Found] = {}
    for _, words in commands_beside(source, told):
        texts = [word.text for word in words]
        starts = ("axolotl.cli.train" in texts) or ("axolotl", "train") in pairwise(texts)
        if starts and any(text.rpartition("/")[2] == source.name for text in texts):
            at = next(at for at, text in enumerate(texts) if text in ("train", "axolotl.cli.train"))
            end = texts.index("--", at) if "--" in texts[at:] else None  # behind it: the launcher's own
            found |= values_of(words[at:end], told)
    for name in [name for name, one in found.items() if one.value in ("true", "false")]:
        one = found.pop(name)  # --sample-packing, --no-sample-packing
        found[name.removeprefix("no_")] = Found(one.value == "true" and name[:3] != "no_", one.line)
    return found


def _axolotl_by_deepspeed(fields: Fields, known: Known, tuned: dict[str, Any]) -> LaunchFile:
    """The run of DeepSpeed's file, which ``deepspeed`` names; ``auto`` in it is what the YAML says.

    DeepSpeed keeps a copy of weights in fp32 and states in fp32, whatever the optimizer's name.
    """
    for name in ("tensor", "context"):
        if fields.integer(f"{name}_parallel_size", 1) > 1:
            fields.fault(f"{name}_parallel_size", "beside DeepSpeed is not read", allowed="1", nearest="1")
    world = known.required("num_gpus", known.num_gpus(), "the script that starts it")
    recompute = fields.raw("gradient_checkpointing") not in (False, "false", None)
    fields.stop()
    values: dict[str, int | str | bool] = {
        "micro_batch_size": fields.integer("micro_batch_size", 1),
        "num_microbatches": fields.integer(ACCUMULATION, 1),
        "seq_length": fields.integer("sequence_len", 1),
        "precision": "bf16",
        "recompute_granularity": "full" if recompute else "none",
    }
    told = replace(known.told, model=known.model(), num_gpus=world, values=values)
    name = str(fields.raw("deepspeed"))
    found = run_of_deepspeeds_file(name, fields, known.source, told, key="deepspeed")
    optimizer = tuned["optimizer"].removesuffix("-bf16")
    whole = known.world.num_gpus == world
    return replace(
        found,
        workload=replace(found.workload, **{**tuned, "optimizer": optimizer}),
        num_nodes=known.world.num_nodes if whole else None,
        gpus_per_node=known.world.gpus_per_node if whole else None,
        notes=(*fields.notes, *found.notes),
        unread=(*fields.unread(_AXOLOTL_IRRELEVANT), *found.unread),
    )


def _take_model(fields: Fields, known: Known, name: str) -> None:
    """The model that the file names stands where nobody tells one."""
    if fields.has(name):
        named = Word(str(fields.raw(name)), fields.place(name)[1])
        known.told = replace(known.told, model=known.model(named))
        for note in known.notes:
            fields.note(note)


def _axolotl_tuned(fields: Fields, known: Known) -> dict[str, Any]:
    """What is trained, beside what, and by which optimizer; 8-bit Adam updates weights in bf16 alone."""
    name = optimizer_of(fields, "optimizer", "adamw_torch_fused")
    found: dict[str, Any] = {"optimizer": "adamw-8bit-bf16" if name == "adamw-8bit" else name}
    kind = fields.word("adapter", "")
    if kind not in ("", "none", *_ADAPTERS):
        fields.fault("adapter", f"{shown(kind)} under Axolotl is not priced", allowed="lora, qlora")
    four = kind == "qlora" and fields.flag("load_in_4bit", default=False)
    if kind == "qlora" and not four:
        fields.fault("adapter", "qlora needs load_in_4bit", allowed="load_in_4bit: true, or lora")
    plain = four and not (fields.has("deepspeed") or _is_cut(fields))
    if plain:  # its adapters stay in fp32 (peft, prepare_model_for_kbit_training)
        found = {"optimizer": name, "base_precision": "nf4-double"}  # _set_quantization_config
        fields.note("weights of 4 bits under Axolotl are priced as on accelerate's replicas")
    _refuse_quantised(fields, ("load_in_8bit",) if plain else _QUANTISED)
    if kind not in _ADAPTERS and not fields.has("deepspeed"):
        # FSDP1 casts what is trained up (accelerate, accelerator.py); without FSDP it stays in bf16
        if not _is_cut(fields):
            found["optimizer"] = WITHOUT_COPY.get(name, name)
        elif _version(fields) == 1:
            found["optimizer"] = name
    if kind not in _ADAPTERS and fields.raw("lora_r"):
        fields.note("lora_r does nothing without an adapter")
    if kind in _ADAPTERS:
        every = fields.flag("lora_target_linear", default=False)
        found["lora_rank"] = fields.integer("lora_r", 8)
        named = adapted(fields, pefts=not every)
        found["lora_targets"] = of_trainer(SINGLE_TARGETS if every else named, known.model())
    return found


# Attention kernels by transformers' names of them (AttentionInterface): those that its exporter writes.
_KERNELS = {ATTENTION[name]: name for name in ("flash3", "flash2", "cudnn", "torch", "triton")}


def _kernel(
    fields: Fields, launcher: str, configuration: Configuration
) -> dict[str, str | int | float | bool]:
    """The attention kernel, where another is named than is priced anyway; rings have their own."""
    found = _KERNELS.get(fields.word("attn_implementation", "").lower(), "")
    return {} if configuration.context_parallel_size > 1 else kernel_option(found, launcher)


def kernel_option(found: str, launcher: str) -> dict[str, str | int | float | bool]:
    """The option of an attention kernel that is named; none where it is priced anyway."""
    usual = framework_facts(framework_of(launcher)).attention_kernel
    return {} if found in ("", usual) else {"attention_kernel": found}


def _require_bf16(fields: Fields) -> None:
    """Refuse what Axolotl does not run, or what is not priced under it."""
    said = fields.raw("bf16")
    if said not in (True, "auto", "true", None) or fields.flag("fp16", default=False):
        fields.fault("bf16", "only bf16 is priced under Axolotl", allowed="true")
    elif said is None:
        fields.note("bf16 is not given: it is assumed")


def _axolotl_configuration(fields: Fields, known: Known) -> Configuration:
    """Sizes of the mesh, and what FSDP2 does on it."""
    micro, count = fields.integer("micro_batch_size", 1), fields.integer(ACCUMULATION, 1)
    shares = _is_cut(fields)
    if not shares:
        _take_replicas(fields)
    elif _version(fields) != _FSDP2:
        _take_fsdp1(fields)
    if fields.flag(f"{_FSDP}offload_params", default=False):
        fields.fault(f"{_FSDP}offload_params", "weights on the host are not priced", allowed="false")
    fields.word(f"{_FSDP}auto_wrap_policy", allowed=("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP"))
    resharded = fields.flag(_RESHARDS, default=True)
    own = fields.raw("gradient_checkpointing") not in (False, "false", None)
    recompute = checkpoints(fields, f"{_FSDP}activation_checkpointing", beside=own) or own
    tp, cp, shard, replicas = _axolotl_mesh(fields, known)
    if not shares:
        shard, replicas = 1, shard * replicas
    zero = (_SHARDED if resharded and not _keeps_gathered(fields) else 2) if shares else 0
    fields.stop()
    layers = known.model().num_layers
    return Configuration(
        tensor_parallel_size=tp,
        context_parallel_size=cp,
        data_parallel_size=replicas * shard,
        zero_stage=zero,
        zero_shard_size=shard * cp if shares else 1,
        micro_batch_size=micro,
        num_microbatches=count,
        recompute_granularity="full" if recompute else "none",
        recompute_layers=layers if recompute else 0,
        stage_layers=(layers,),
    )


def _take_replicas(fields: Fields) -> None:
    """Say what every rank holds without FSDP, or why that is not priced (loaders/model.py)."""
    named = fields.word("attn_implementation", "").startswith(("flash_attention", "flex_attention"))
    flags = [fields.flag(name, default=False) for name in ("flash_attention", "flex_attention")]
    if fields.word("adapter", "") in _ADAPTERS:
        fields.note("without FSDP every rank holds the whole base, and all adapters")
    elif named or any(flags):
        fields.note("without FSDP every rank holds all weights, in bf16 alone: priced as TRL's replicas")
    else:
        message = (
            "without FSDP or flash_attention Axolotl's weights are in two precisions, which is not priced"
        )
        fields.fault("fsdp_config", message, allowed="fsdp_version: 2 and an fsdp_config")


def _take_fsdp1(fields: Fields) -> None:
    """Say how FSDP1 is priced, or leave a fault for what it does otherwise than accelerate's FSDP2."""
    adapters = fields.word("adapter", "") in _ADAPTERS
    if adapters or _version(fields) != 1:
        message = f"{_version(fields)} is not priced under Axolotl" + (" with adapters" if adapters else "")
        fields.fault("fsdp_version", message, allowed="2", nearest="2")
    fields.note("fsdp_version is 1: priced as accelerate's FSDP2")
    for word in _strategies(fields):
        if word not in _FSDP1_WORDS:
            fields.fault(
                "fsdp", f"{shown(word)} is not priced under Axolotl", allowed=", ".join(_FSDP1_WORDS)
            )
    runs = "shard_grad_op" if _keeps_gathered(fields) else "full_shard"
    said = str(fields.raw(f"{_FSDP}sharding_strategy") or runs)
    if said.lower() != runs:
        message = f"{shown(said)} reaches no FSDP: Axolotl hands on what fsdp lists, here {runs}"
        fields.fault(f"{_FSDP}sharding_strategy", message, allowed=runs.upper(), nearest=runs.upper())
    if not fields.flag(_RESHARDS, default=True):
        fields.fault(_RESHARDS, "is FSDP2's alone", allowed="true, or shard_grad_op in fsdp")


_FSDP1_WORDS = ("full_shard", "shard_grad_op", "auto_wrap")
_RESHARDS = f"{_FSDP}reshard_after_forward"


def _strategies(fields: Fields) -> list[str]:
    """FSDP1's words for how weights are cut: those of ``fsdp``, which alone are handed on."""
    said = fields.raw("fsdp") or []
    return [str(word).lower() for word in (said if isinstance(said, list) else [said])]


def _keeps_gathered(fields: Fields) -> bool:
    """Whether FSDP1 cuts gradients and states alone."""
    return _version(fields) == 1 and "shard_grad_op" in _strategies(fields)


def _version(fields: Fields) -> int:
    """Of FSDP, where it is on."""
    return fields.integer("fsdp_version", fields.integer(f"{_FSDP}version", 1))


def _is_cut(fields: Fields) -> bool:
    """Whether FSDP cuts the weights."""
    return bool(fields.raw("fsdp")) or fields.has_section("fsdp_config")


def _priced_as(fields: Fields, tuned: dict[str, Any]) -> str:
    """Who has what Axolotl's own plans have not: 4 bits, FSDP1, weights in bf16 alone without FSDP."""
    whole = fields.word("adapter", "") not in _ADAPTERS
    if "base_precision" in tuned or (whole and _is_cut(fields) and _version(fields) == 1):
        return AccelerateReader.name
    return TrlReader.name if whole and not _is_cut(fields) else AxolotlReader.name


def _without_fsdps_own(name: str) -> str:
    """A name of the FSDP section as Axolotl has it since 0.12, without ``fsdp_`` (schemas/fsdp.py)."""
    return name.replace(f"{_FSDP}fsdp_", _FSDP)


def _axolotl_mesh(fields: Fields, known: Known) -> tuple[int, int, int, int]:
    """Tensor ranks, rings, shards and replicas; without shards and replicas all the rest are shards."""
    tp, cp = (fields.integer(f"{name}_parallel_size", 1) for name in ("tensor", "context"))
    for name in ("tensor_parallel_size", "context_parallel_size", "dp_shard_size", "dp_replicate_size"):
        fields.slip_for(name)
    fields.stop()
    world = known.required("num_gpus", known.num_gpus(), "the script that starts it")
    shard, replicas = fields.optional("dp_shard_size"), fields.optional("dp_replicate_size")
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
            allowed=f"sizes whose product is {world}",
        )
    return tp, cp, shard, replicas


# --------------------------------------------------------------------------------------------------
# TRL: the fields of SFTConfig and ModelConfig in one YAML, the mesh in accelerate's.


_PROGRAMS = ("trl", "trl.scripts.sft")
_LENGTH = "max_length"
_SFT_NAMES = (_LENGTH, "packing", "packing_strategy", "dataset_name", "model_name_or_path", MICRO_BATCH)
_SFT_ALONE = (_LENGTH, "packing", "packing_strategy")  # which the Trainer itself has not
# LLaMA-Factory's, and what the reader of transformers' Trainer knows: other engines, adapters, old names.
_OTHERS_NAMES = (
    "cutoff_len", "finetuning_type", "template", "stage", "deepspeed", "fsdp", "load_in_8bit",
    "max_seq_length", *PREFERENCES,
)  # fmt: skip
_TRL_IRRELEVANT = (
    *_OF_THE_TRAINER, "model_name", "packing", "attn_implementation", "dtype", "assistant_only",
    "completion_only", "eos_token", "pad_token", "loss_type", "model_revision",
    "lora_alpha", "lora_dropout", "lora_task_type", "use_rslora",
)  # fmt: skip
_DEFAULT_LENGTH, _DEFAULT_BATCH = 1024, 8  # SFTConfig's and TrainingArguments' own


class TrlReader:
    """Reads TRL's YAML of supervised fine-tuning, with accelerate's file where a script names it."""

    name = "trl"

    def recognises(self, source: Source) -> bool:
        """Whether it is TRL's own file, or accelerate's beside a script that starts TRL."""
        return _is_sft(source) or (AccelerateReader().recognises(source) and _starts_trl(source))

    def read(self, source: Source, told: Told) -> LaunchFile:
        """The run that both files configure.

        Raises:
            InvalidProblemError: what cannot be read, contradicts itself, or is said nowhere.
        """
        _require_own_file(source)
        files = [source, *documents_beside(known_of(source, told).source)]
        sft = next((one for one in files if _is_sft(one)), None)
        shares = _shares(source, files, told)
        known = known_of(source if shares is None else shares.source, told)
        fields = Fields(sft.name, document_of(sft), told) if sft else Fields(source.name, {})
        precision = "fp16" if fields.flag("fp16", default=False) else "bf16"
        if precision == "bf16" and not fields.flag("bf16", default=True):
            fields.fault("bf16", "training in fp32 is not priced", allowed="true, or fp16: true")
        if not (fields.flag("packing", default=False) or fields.has("pad_to_multiple_of")):
            fields.note(PADDED.format(_LENGTH))
        _take_model(fields, known, "model_name_or_path")
        given, length = _sft_arguments(fields, known)
        adapters = _peft(fields)
        optimizer, in_bf16 = optimizer_of(fields, default="adamw_torch_fused"), _loads_in_bf16(fields)
        fields.word("attn_implementation", "")
        fields.stop()
        unread = fields.unread(_TRL_IRRELEVANT)
        plain = {ENGINE: Found("MULTI_GPU", 0), "num_processes": Found(known.num_gpus(), 0)}
        rest = Fields(source.name, plain, told) if shares is None else shares.fields
        if shares is not None and shares.kind() == "DEEPSPEED":
            run = _sft_by_deepspeed(fields, known, shares, given, (length, precision))
            if adapters.get("base_precision") and run.configuration.zero_stage == _SHARDED:
                fields.fault("load_in_4bit", "weights of 4 bits cut over ranks are not priced")
                fields.stop()
        else:
            run = mesh_run(self.name, rest, known, given, seq_length=length, precision=precision)
        rest.word("mixed_precision")
        options = {**run.workload.framework_options, **_kernel(fields, run.launcher, run.configuration)}
        # FSDP2 casts what is trained up (accelerate, utils/fsdp_utils.py)
        if in_bf16 and not adapters and keeps_no_copy(run):
            optimizer = WITHOUT_COPY.get(optimizer, optimizer)
        workload = replace(run.workload, framework_options=options, optimizer=optimizer, **adapters)
        run = replace(run, workload=workload)
        if shares is None:  # no file says how they stand on nodes
            run = replace(run, num_nodes=None, gpus_per_node=None)
        return replace(run, notes=(*fields.notes, *run.notes), unread=(*unread, *run.unread))


def _sft_by_deepspeed(
    fields: Fields, known: Known, shares: Shares, given: Arguments, said: tuple[int, str]
) -> LaunchFile:
    """The run of accelerate's DeepSpeed plugin; ``said``: the length and the precision."""
    values: dict[str, int | str | bool] = {
        "micro_batch_size": number(given, MICRO_BATCH) or _DEFAULT_BATCH,
        "num_microbatches": number(given, ACCUMULATION) or 1,
        "seq_length": said[0],
        "precision": said[1],
        "recompute_granularity": "full" if recomputes(given, known) else "none",
    }
    world = ranks_of(known, shares.fields, None)
    told = replace(known.told, model=known.model(), num_gpus=world, values={**known.told.values, **values})
    return ranks_run(TrlReader.name, fields, known, told, shares)


def _loads_in_bf16(fields: Fields) -> bool:
    """Whether weights are loaded in bf16, so that no fp32 copy of them is kept."""
    said = next((fields.word(name) for name in ("dtype", "torch_dtype") if fields.has(name)), "float32")
    return said not in ("float32", "auto")


def _peft(fields: Fields) -> dict[str, Any]:
    """Rank, targets and base of LoRA in ModelConfig's names, where ``use_peft`` says that it is trained."""
    if not fields.flag("use_peft", default=False):
        return {}
    found: dict[str, Any] = {"lora_rank": fields.integer("lora_r", 16), "lora_targets": adapted(fields)}
    if fields.flag("load_in_4bit", default=False):
        fields.word("bnb_4bit_quant_type", "nf4", allowed=("nf4",))
        nested = fields.flag("use_bnb_nested_quant", default=False)
        found["base_precision"] = "nf4-double" if nested else "nf4"
    return found


def _is_sft(source: Source) -> bool:
    """Whether a YAML has the names of SFTConfig, and none that other readers know better."""
    names = looks_like_document(source) if source.suffix in (".yaml", ".yml") else {}
    known = sum(name in names for name in _SFT_NAMES)
    others = any(name in names for name in _OTHERS_NAMES)
    others |= "loss_type" in names and names["loss_type"].value in PREFERENCE_LOSSES
    return known > 1 and any(name in names for name in _SFT_ALONE) and not others


def commands_beside(source: Source, told: Told | None = None) -> Iterator[tuple[Source, tuple[Word, ...]]]:
    """The commands of all scripts beside a file; one that cannot be read has none."""
    for script in source.scripts():
        try:
            commands = script_of(script, told or Told()).commands
        except InvalidProblemError:
            continue
        yield from ((script, words) for words in commands)


def _starts_trl(source: Source) -> bool:
    """Whether a script beside the file starts TRL's supervised fine-tuning."""
    return any(word.text in _PROGRAMS for _, words in commands_beside(source) for word in words)


def _shares(source: Source, files: Sequence[Source], told: Told) -> Shares | None:
    """What the command that starts TRL tells accelerate, or accelerate's file beside its YAML."""
    starts = (
        (script, words[: next((at for at, word in enumerate(words) if word.text in _PROGRAMS), 0)])
        for script, words in commands_beside(source, told)
    )
    return shares_beside(starts, files)


def _require_own_file(source: Source) -> None:
    """Refuse a command whose ``--config`` is not there."""
    for script, words in commands_beside(source):
        for option, value in pairwise(words if any(word.text in _PROGRAMS for word in words) else ()):
            if option.text == "--config":
                require_beside(source, script, value)


def documents_beside(source: Source) -> Iterator[Source]:
    """Documents that the scripts beside a file name; all that are beside it where there is no script."""
    if not source.scripts():
        yield from map(source.at, sorted(source.files))
    for script in source.scripts():
        for word in files_named(script_of(script, Told()), programs=False):
            if (text := source.other(word.text)) is not None:
                yield replace(source, name=word.text, text=text)


def _sft_arguments(fields: Fields, known: Known) -> tuple[Arguments, int]:
    """Batch and checkpointing as accelerate's reader takes them, and the length; the command's count."""
    fields.slip_for(MICRO_BATCH)
    defaults = {MICRO_BATCH: _DEFAULT_BATCH, ACCUMULATION: 1, _LENGTH: _DEFAULT_LENGTH}
    own = {
        name: Word(str(fields.integer(name, default)), fields.place(name)[1])
        for name, default in defaults.items()
    }
    for name in (MICRO_BATCH, _LENGTH):
        if not fields.has(name):
            fields.note(f"{name} is not given: {defaults[name]} is TRL's default")
    recompute = fields.flag(CHECKPOINTING, default=True)  # SFTConfig's own default
    own[CHECKPOINTING] = Word(str(recompute).lower(), fields.place(CHECKPOINTING)[1])
    told = arguments(known, (*defaults, CHECKPOINTING, "main_process_ip"))
    given = own | {name: word for name, word in told.items() if not word.unknown}
    return given, number(given, _LENGTH) or _DEFAULT_LENGTH
