"""Reader of TRL's YAML of supervised fine-tuning next to accelerate's: SFTConfig and ModelConfig.

Names and defaults: TRL 1.16.0, trainer/sft_config.py and base_config.py, scripts/utils.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from meshwright.launchers.accelerate import read as accelerate
from meshwright.launchers.accelerate.read_command import ENGINE, Shares, is_accelerates, shares_beside
from meshwright.launchers.flags import flag_names, flags_of
from meshwright.launchers.reading import commands
from meshwright.launchers.reading.adapters import (
    OF_ADAPTERS,
    adapted,
    base_of,
    of_peft,
    refuse_stored,
    refuse_uncounted,
    require_whole_weights,
    trained_whole,
)
from meshwright.launchers.reading.base import LaunchFile, Overrides, Reader, Source
from meshwright.launchers.reading.documents import (
    LocatedValue,
    document_of,
    looks_like_document,
    names_held,
)
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.foreign import PREFERENCE_LOSSES, preferences
from meshwright.launchers.reading.images import ImageSettings, with_images
from meshwright.launchers.reading.known import Known, header_of, known_of
from meshwright.launchers.reading.patterns import is_pattern
from meshwright.launchers.reading.preferences import KINDS, Kind, samples_of
from meshwright.launchers.table import Launcher, launchers, of_command
from meshwright.launchers.transformers import read as trainer
from meshwright.launchers.transformers.read_ranks import (
    note_attention,
    ranks_run,
)
from meshwright.launchers.transformers.tools import TRL
from meshwright.profiles.adapters import tower_targets
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import WITHOUT_COPY
from meshwright.profiles.towers import TOWER_PARTS
from meshwright.shell.values import Word

_SHARDED = 3  # ZeRO-3
_LEAST_NAMES = 2


_LENGTH, _MODEL = "max_length", "model_name_or_path"
_SFT_NAMES = (_LENGTH, "packing", "packing_strategy", "dataset_name", _MODEL, accelerate.MICRO_BATCH)
_SFT_ALONE = (_LENGTH, "packing", "packing_strategy")  # fields that the Trainer itself lacks
# Names of LLaMA-Factory and of the reader of transformers' Trainer: other engines, adapters, old names.
_OTHERS_NAMES = (
    "cutoff_len", "finetuning_type", "tuner_type", "train_type", "template", "stage", "deepspeed", "fsdp",
    "max_seq_length",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dialect:
    """A program with TRL's arguments, as its row of ``launchers.yaml`` and its table say."""

    launcher: str = "trl"

    @property
    def row(self) -> Launcher:
        """The program's row."""
        return launchers()[self.launcher]

    @property
    def names(self) -> tuple[str, ...]:
        """Arguments that it alone has: its YAML has one, or a command starts it with the file."""
        own, *others = self.row.tables
        return tuple(set(flags_of(own)) - set(flag_names(*others))) if own != "trl" else ()

    def spelled(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return its words for some of TRL's arguments."""
        return tuple(map(flag_names(*self.row.tables).spelled, names))

    def recognises(self, source: Source) -> bool:
        """Return whether a file is the program's YAML, or accelerate's with a command that starts it."""
        return self.owns(source) or (is_accelerates(source) and _starts_trl(self, source))

    def owns(self, source: Source) -> bool:
        """Return whether a YAML is the program's own."""
        own = self.row.tables[0] == "trl" or names_held(source, self.names) > 0
        started = (word for _, word in _named_files(self, source))
        return _is_sft(self, source) and (
            own or any(commands.holds_file(word, source.name) for word in started)
        )


_PEFTS = ("lora_r", "lora_target_modules", "lora_target_parameters", "lora_modules_to_save", "use_dora")


def _read(dialect: Dialect, source: Source, overrides: Overrides) -> LaunchFile:
    named = commands.file_of_commands(source, _named_files(dialect, source))
    files = [source, *documents_beside(known_of(source, overrides).source)]
    sft = named or next((one for one in files if dialect.owns(one)), None)
    shares = _shares(dialect, source, files, sft, overrides)
    known = known_of(source if shares is None else shares.source, overrides)
    over = _of_sft_command(dialect, sft, overrides) if sft else {}
    values = document_of(sft) | over if sft else {}
    fields = Fields((sft or source).name, trainer.as_loaded(values), overrides, dialect.row.tables)
    fields.note_commands(over)
    if any(_starts(dialect, words) for _, words in commands.commands_beside(source)):
        fields.parser = dialect.row.title
    fields.take("do_train", "do_predict")  # its scripts train whatever they are
    precision = _precision(fields)
    packed = trainer.packed_by_trl(fields)
    if fields.has("model_name") and not fields.has(_MODEL):
        fields.fault(
            "model_name",
            "is not one of TRL's names, and its parser stops there: the file is another program's",
            allowed=_MODEL,
            nearest=_MODEL,
        )
    take_model(fields, known, _MODEL)
    given, length = _sft_arguments(dialect, fields, known, over)
    adapters, base = _peft(fields, known.model()), base_of(fields, nested=False)
    samples = samples_of(fields, _kind(dialect, fields, source), adapts="lora_rank" in adapters)
    fields.refuse_unpriced()
    projected = trainer.trainers_low_rank(fields, known.model())
    optimizer = projected.pop("optimizer", "") or trainer.optimizer_of(fields, default="adamw_torch_fused")
    dtype = _dtype(fields, precision, frozen=bool(adapters))
    fields.word("attn_implementation", "")
    fields.stop()
    plain = {
        ENGINE: LocatedValue("MULTI_GPU", 0),
        "num_processes": LocatedValue(known.num_gpus(), 0),
    }
    rest = Fields(source.name, plain, overrides, ("accelerate",)) if shares is None else shares.fields
    if shares is not None and shares.kind() == "DEEPSPEED":
        run = _sft_by_deepspeed(dialect, fields, known, shares, given, said=(length, precision, optimizer))
    else:
        run = accelerate.mesh_run(
            dialect.launcher, rest, known, given, seq_length=length, precision=precision
        )
    if base != "bf16":
        require_whole_weights(fields, run.configuration.zero_stage, adapters.get("lora_rank", 0))
        adapters["base_precision"] = base
    rest.choice("mixed_precision")
    rest.stop()
    options = trainer.options_of(fields, run, by_trl=True, dropout=TRL.dropout if adapters else None)
    fields.stop()
    unread = fields.unread()
    optimizer = trainer.optimizer_under(run, optimizer)
    adapters |= samples
    adapters |= trainer.reference_precision(fields, run, adapters, in_bf16=dtype in ("bfloat16", "auto"))
    if "lora_rank" not in adapters:
        # FSDP2 casts trained weights up (accelerate, utils/fsdp_utils.py); others stay as they are loaded
        if dtype not in ("float32", "auto") and precision != "fp32" and trainer.keeps_no_copy(run):
            optimizer = WITHOUT_COPY.get(optimizer, optimizer)
        optimizer = trainer.layerwise(fields, run, optimizer) if projected else optimizer
        fields.stop()
    elif base == "bf16" and dtype == "float32" and run.launcher != "deepspeed":
        fields.note("frozen weights in float32 (dtype, TRL's default) take 4 bytes each")
        adapters["base_precision"] = "fp32"
    workload = replace(
        run.workload, framework_options=options, optimizer=optimizer, **adapters, **projected
    )
    run = replace(run, workload=workload)
    note_attention(fields, run.model, workload, run.launcher, packed=bool(packed))
    settings = None if run.model.tower is None else _image_settings(fields, run)
    if shares is None:  # no file sets their place on nodes
        run = replace(run, num_nodes=None, gpus_per_node=None)
        if run.configuration.num_gpus > 1:
            fields.note(trainer.REPLICAS)
    notes = tuple(dict.fromkeys((*fields.notes, *run.notes)))  # both have those of the model
    run = replace(run, notes=notes, unread=(*unread, *run.unread), packed=packed)
    return run if settings is None else with_images(run, known, settings)


def reader_of(launcher: str) -> Reader:
    """Return the reader of TRL, or of a relative of it."""
    dialect = Dialect(launcher)
    return Reader(name=launcher, recognises=dialect.recognises, read=partial(_read, dialect))


def _image_settings(fields: Fields, run: LaunchFile) -> ImageSettings:
    """Return the parts that a run with a tower does not train: all of it next to adapters.

    TRL 1.16 loads the class of the whole model (trainer/utils.py:1355), so names are a tower's, too.
    """
    adapts, known = run.workload.lora_rank > 0, bool(tower_targets(run.model))
    if adapts and not known and not is_pattern(str(fields.raw("lora_target_modules") or "")):
        fields.note("adapters are priced in the language model: a tower may have layers of these names")
    return ImageSettings(frozen=TOWER_PARTS if adapts else ())


def _sft_by_deepspeed(
    dialect: Dialect,
    fields: Fields,
    known: Known,
    shares: Shares,
    given: Fields,
    *,
    said: tuple[int, str, str],
) -> LaunchFile:
    """Return the run of accelerate's DeepSpeed plugin; ``said``: length, precision and optimizer."""
    values: dict[str, int | str | bool] = {
        "micro_batch_size": given.integer(accelerate.MICRO_BATCH),
        "num_microbatches": given.integer(accelerate.ACCUMULATION),
        "seq_length": said[0],
        "precision": said[1],
        "optimizer": said[2],
        "recompute_granularity": "full" if accelerate.recomputes(given, known) else "none",
    }
    world = accelerate.ranks_of(known, shares.fields, None)
    overrides = replace(
        known.overrides, model=known.model(), num_gpus=world, values={**known.overrides.values, **values}
    )
    return ranks_run(dialect.launcher, fields, known, overrides, shares)


def _of_sft_command(dialect: Dialect, sft: Source, overrides: Overrides) -> dict[str, LocatedValue]:
    """Return arguments of the command that trains with the file, which override it (TRL's TrlParser).

    Options of accelerate among them (``trl sft`` passes them on) are in ``_shares``.
    """
    start = trainer.start_of(sft, overrides)
    overrides = replace(overrides, model=overrides.model or header_of(sft.text).model)
    over = (
        {}
        if start is None
        else trainer.values_of(start[1].words, overrides, flag_names(*dialect.row.tables))
    )
    own = set() if start is None else trainer.of_accelerate(start[1])
    return {name: found for name, found in over.items() if name != "config" and name not in own}


def _precision(fields: Fields) -> str:
    half = fields.flag("fp16")
    brain = fields.flag("bf16", default=not half)
    if half and brain:
        fields.fault("bf16", "true, and so is fp16: TrainingArguments takes one of them", allowed="false")
    elif not half and not brain and fields.flag("use_peft"):
        fields.fault("bf16", "adapters in fp32 are not supported", allowed="true, or fp16: true")
    return "fp16" if half else "bf16" if brain else "fp32"


def _dtype(fields: Fields, precision: str, *, frozen: bool) -> str:
    name = next((name for name in ("dtype", "torch_dtype") if fields.has(name)), "dtype")
    said = fields.word(name, "float32", allowed=flags_of("trl")["dtype"].choices)
    if said == "float16" and precision == "fp16" and not frozen:
        fields.fault(
            name,
            "weights in fp16 alone are not trained: their gradients cannot be unscaled",
            allowed="float32, bfloat16, or an adapter",
            nearest="float32",
        )
    return said


def _peft(fields: Fields, model: ModelSpec) -> dict[str, Any]:
    """Return rank and targets of LoRA in ModelConfig's names, if ``use_peft`` is on."""
    if not fields.flag("use_peft"):
        if fields.has("use_peft"):  # get_peft_config returns nothing then, with any other values
            fields.take(*_PEFTS)
            fields.take_setting(*OF_ADAPTERS)
        return {}
    refuse_uncounted(fields)
    rank, targets = fields.integer("lora_r", 16), adapted(fields, model, tower="ends")
    targets = of_peft(fields, targets, model)
    return {"lora_rank": rank, "lora_targets": targets, "trained_modules": trained_whole(fields)}


def _kind(dialect: Dialect, fields: Fields, source: Source) -> Kind | None:
    """Return the kind of training on preferences: of the command, or of names that one trainer has."""
    for _, words in commands.commands_beside(source):
        command = commands.program_of(words)
        if command is not None and (kind := dialect.row.kind_of(command.program)):
            return KINDS.get(kind)
    name = next((name for name, own in _OF_KIND.items() if any(fields.has(one) for one in own)), "")
    losses = fields.raw("loss_type")
    first = str(losses[0] if isinstance(losses, list) and losses else losses)
    if not name and first in PREFERENCE_LOSSES:
        name = "kto" if first in ("kto", "apo_zero_unpaired") else "dpo"
    return KINDS.get(name)


# Names of TRL's trainers on preferences alone: a file with them is no supervised fine-tuning.
_OF_KIND = {
    "kto": ("desirable_weight", "undesirable_weight"),
    "dpo": ("precompute_ref_log_probs", "beta", "rpo_alpha"),
}
_GENERATING = ("num_generations", "reward_funcs", "reward_model_path", "total_episodes", "rloo_k")


def _is_sft(dialect: Dialect, source: Source) -> bool:
    """Return whether a YAML is one of TRL's trainers that take the sequences of a data set."""
    held = looks_like_document(source) if source.suffix in (".yaml", ".yml") else {}

    def has(*names: str) -> int:
        return sum(name in held for name in dialect.spelled(names))

    of_preferences = any(has(*own) for own in _OF_KIND.values())
    if has(*_SFT_NAMES) < _LEAST_NAMES or not (of_preferences or has(*_SFT_ALONE)):
        return False
    return not has(*_OTHERS_NAMES, *_GENERATING, *_unread_preferences())


def _unread_preferences() -> tuple[str, ...]:
    return tuple(name for name in preferences() if name not in flags_of("trl"))


def take_model(
    fields: Fields, known: Known, name: str, *, frozen: bool = False, packed: bool = False
) -> None:
    """Take the model that the file names if none is supplied; arguments as ``refuse_stored``."""
    refuse_stored(fields, name, frozen=frozen, packed=packed)
    if fields.has(name):
        named = Word(str(fields.raw(name)), fields.place(name)[1])
        known.overrides = replace(known.overrides, model=known.model(named))
        fields.note(*known.notes)


def _starts_trl(dialect: Dialect, source: Source) -> bool:
    """Return whether a script next to the file starts TRL's fine-tuning, or a program with its YAML."""
    own = [name for name in source.files if dialect.owns(source.at(name))]
    return any(
        _starts(dialect, words)
        or any(commands.holds_file(word, name) for word in words[1:] for name in own)
        for _, words in commands.commands_beside(source)
    )


def _starts(dialect: Dialect, words: Sequence[Word]) -> bool:
    command = commands.program_of(words)
    return command is not None and dialect.row.kind_of(command.program) != ""


def _shares(
    dialect: Dialect, source: Source, files: Sequence[Source], sft: Source | None, overrides: Overrides
) -> Shares | None:
    """Return the sharding of the command that starts TRL, or of accelerate's file next to its YAML.

    Other programs start such trainings with the YAML, too: open-r1's src/open_r1/sft.py.
    """
    starts = list[tuple[Source, Sequence[Word]]]()
    for script, words in commands.commands_beside(source, overrides):
        command = commands.program_of(words)
        if command is None:
            continue
        if of_command(command.program) is dialect.row:
            starts.append((script, words))
        elif dialect.row.kind_of(command.program) or (
            sft and any(commands.holds_file(one, sft.name) for one in command.words)
        ):
            starts.append((script, command.before))
    return shares_beside(starts, files)


def _named_files(dialect: Dialect, source: Source) -> Iterator[tuple[Source, Word]]:
    """Yield the files of ``--config`` in commands next to a file that start TRL, each with its script."""
    for script, words in commands.commands_beside(source):
        for option, following in pairwise((*words, Word("", 0)) if _starts(dialect, words) else ()):
            name, equals, value = option.text.partition("=")
            if name == "--config":
                yield script, Word(value, option.line) if equals else following


def documents_beside(source: Source) -> Iterator[Source]:
    """Yield documents that the scripts next to a file name, or all of them without a script."""
    if not source.scripts():
        yield from map(source.at, sorted(source.files))
    for script in source.scripts():
        for word in commands.files_named(commands.script_of(script, Overrides()), programs=False):
            if (text := source.other(word.text)) is not None:
                yield replace(source, name=word.text, text=text)


def _sft_arguments(
    dialect: Dialect, fields: Fields, known: Known, over: Collection[str]
) -> tuple[Fields, int]:
    """Return batch and checkpointing for accelerate's reader, and the length; the command's values win.

    ``over``: the command's own arguments, which ``fields`` has; those before its program are accelerate's.
    """
    fields.slip_for(accelerate.MICRO_BATCH)
    if fields.is_null(_LENGTH) and "seq_length" not in known.overrides.values:
        fields.fault(_LENGTH, "null: nothing states the sequence length", allowed="--set seq_length=…")
    names = (accelerate.MICRO_BATCH, accelerate.ACCUMULATION, _LENGTH)
    own: dict[str, object] = {fields.spelled(name): fields.integer(name) for name in names}
    for name in dialect.spelled((accelerate.MICRO_BATCH, _LENGTH)):
        if not fields.has(name):
            fields.note(f"{name} is not given: {own[name]} is {dialect.row.title}'s default")
    own[fields.spelled(accelerate.CHECKPOINTING)] = fields.flag(accelerate.CHECKPOINTING)
    given = accelerate.arguments(
        known,
        () if over else own,
        {name: LocatedValue(value, fields.place(name)[1]) for name, value in own.items()},
        programs=dialect.row.tables,
    )
    length = given.integer(_LENGTH)
    given.stop()
    return given, length
