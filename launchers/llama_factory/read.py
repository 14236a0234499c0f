"""Readers of LLaMA-Factory's YAML: for Megatron-Core's adapter (``USE_MCA=1``), and for its own trainer.

Names: alibaba/ROLL mcore_adapter, training_args.py, and transformers' TrainingArguments; LLaMA-Factory
0.9.5, hparams. Its own trainer runs on replicas, on DeepSpeed, or on the mesh of accelerate's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from meshwright.launchers.accelerate import read as accelerate
from meshwright.launchers.accelerate.read_command import Shares, is_accelerates, shares_beside
from meshwright.launchers.flags import flag_names
from meshwright.launchers.images import DEFAULT_PIXELS, LLAMA_FACTORY_PARTS, LLAMA_FACTORY_PIXELS
from meshwright.launchers.llama_factory.export import ARGUMENTS
from meshwright.launchers.llama_factory.read_v1 import is_v1, read_v1
from meshwright.launchers.megatron_core import read as core
from meshwright.launchers.ms_swift.read import completed
from meshwright.launchers.reading import commands
from meshwright.launchers.reading.adapters import refuse_uncounted
from meshwright.launchers.reading.base import LaunchFile, Overrides, Reader, Source, refused
from meshwright.launchers.reading.documents import LocatedValue, document_of, looks_like_document
from meshwright.launchers.reading.fields import Fields, is_placeholder, passing
from meshwright.launchers.reading.given import Given, Value
from meshwright.launchers.reading.images import settings_of, with_images
from meshwright.launchers.reading.known import Known, known_of
from meshwright.launchers.reading.trained_layers import refuse_expanded
from meshwright.launchers.transformers import read as trainer
from meshwright.launchers.transformers import read_ranks as ranks
from meshwright.launchers.transformers.tools import LLAMA_FACTORY
from meshwright.launchers.trl.read import documents_beside
from meshwright.profiles.adapters import ATTENTION_TARGETS, FUSED_TARGETS
from meshwright.profiles.documents import shown
from meshwright.shell.values import Script, Word, unknown_arguments, unknown_in

_CORE = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
         "context_parallel_size", "virtual_pipeline_model_parallel_size", "use_distributed_optimizer",
         "sequence_parallel", "recompute_granularity")  # fmt: skip
_OWN = ("cutoff_len", "per_device_train_batch_size", "gradient_accumulation_steps", "finetuning_type")
_ITS = ("finetuning_type", "cutoff_len", "template", "stage", *_CORE)
_DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_READ = (
    "model_name_or_path", "do_train", "finetuning_type", "lora_rank", "lora_target", "optim",
    "packing", "neat_packing", "flash_attn", "use_mca", "apply_rope_fusion", "gradient_accumulation_steps",
    "per_device_train_batch_size", "additional_configs", LLAMA_FACTORY_PIXELS,
    *LLAMA_FACTORY_PARTS.values(),
)  # fmt: skip
# Defaults of the adapter's own arguments, which override additional_configs
# (training_args.py DistributingParallelArguments, models/model_config.py update_with_args).
_MORE = "additional_configs"
_OVER = {
    "apply_rope_fusion": "false", "bias_activation_fusion": "false", "calculate_per_token_loss": "false",
    "cross_entropy_loss_fusion": "false", "cuda_graph_scope": "full", "fp8_param": "false",
    "moe_enable_routing_replay": "false", "moe_layer_recompute": "false",
    "moe_shared_expert_overlap": "false", "moe_token_dispatcher_type": "allgather", "mtp_num_layers": "0",
    "overlap_p2p_comm": "true", "sequence_parallel": "false", "variable_seq_lengths": "false",
}  # fmt: skip


def _recognises(source: Source) -> bool:
    if source.is_script:
        return _on_core(source, Overrides()) is not None
    if source.suffix not in (".yaml", ".yml"):
        return False
    names = looks_like_document(source)
    return sum(name in names for name in _OWN) > 1 and any(name in names for name in _ITS)


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    known = known_of(source, overrides)
    if (command := _on_core(source, overrides)) is not None:
        document = trainer.values_of(command.words, overrides)
        known.world = _on_one_node(
            commands.world_of(source.text, commands.script_of(source, overrides), command)
        )
    else:
        known.world = known.world if known.world.num_gpus else _world(source, known, overrides)
        document = document_of(source, by_omegaconf=True) | _overrides(source, source, overrides)
    fields = Fields(source.name, document, overrides, LLAMA_FACTORY.programs)
    if not any(name in document for name in _CORE):
        return LLAMA_FACTORY_TRAINER_READER.read(source, overrides)
    document = {name: found for name, found in document.items() if not overrides.ignores(name)}
    if isinstance(fields.raw(_MORE), str):
        fields.fault(_MORE, "a file of further values is not read", allowed="the values themselves")
    given = Given(notes=fields.notes[:])
    _take_document(given, document)
    given.refuse_slips(core.core_names() | {name: name for name in _OWN if name not in document})
    if trainer.stops_at_unknown(known.source):
        _refuse_unknown(given)
    _take_batch(given, fields, known)
    _take_defaults(given)
    sums = document.get("accumulate_allreduce_grads_in_fp32")
    if sums is not None and sums.value is False and given.has("bf16"):
        given.note(f"line {sums.line}: accumulate_allreduce_grads_in_fp32 false does nothing with bf16")
    trainer.require_do_train(fields)
    refuse_expanded(fields)
    named = fields.word("model_name_or_path", "")
    fields.stop()
    given.stop()
    if fields.integer("expert_model_parallel_size", 1) == 1 and not trainer.packs(fields):
        given.note(trainer.PADDED.format("cutoff_len"))  # else to cutoff_len (train/mca/workflow.py)
    adapters = _adapters(fields)
    settings = settings_of(fields, LLAMA_FACTORY_PARTS, LLAMA_FACTORY_PIXELS, DEFAULT_PIXELS)
    word = Word(named, fields.place("model_name_or_path")[1]) if named else None
    run = completed(
        "llama-factory",
        given,
        known,
        known.world,
        adapters=adapters,
        named=word,
        dispatcher=_OVER[core.DISPATCHER],
    )
    return replace(with_images(run, known, settings), packed=trainer.packs_apart(fields))


LLAMA_FACTORY_READER = Reader(name="llama-factory", recognises=_recognises, read=_read)


def _take_document(given: Given, document: Mapping[str, LocatedValue]) -> None:
    """Take the adapter's arguments and the model's as flags of Megatron-LM; list unknown ones."""
    names = flag_names("llama-factory", "transformers")
    for name, found in document.items():
        key, text = name.removeprefix(f"{_MORE}."), core.text_of(found.value)
        misplaced = key != name and key in _OWN  # names of the run are not the model's
        unfilled = is_placeholder(text) and unknown_in(text) is None
        if unfilled and (core.flag_of(key) is not None or key in flag_names("megatron-core")):
            given.refuse(name, f"line {found.line}: {text[:40]} is a placeholder", allowed="the value")
            continue
        if key != name and (key in document or key in _OVER):
            said = core.text_of(document[key].value) if key in document else _OVER[key]
            given.note(f"line {found.line}: {name[:64]} does nothing: the adapter's own is {said[:40]}")
        elif not misplaced and core.flag_of(key) is not None:
            core.take(given, key, text, found.line, called=name)
        elif misplaced or not (key in _READ or names.is_free(key) or names.is_default(key, text)):
            given.leave(name[:64], f"--{key.replace('_', '-')}", Value((text,), found.line))


def _refuse_unknown(given: Given) -> None:
    """Refuse names that neither LLaMA-Factory nor its adapter has (hparams/parser.py:111)."""
    known = {*flag_names("llama-factory", "transformers", "megatron-core"), *ARGUMENTS, *_OVER}
    slips = {fault.pointer for fault in given.faults}
    for shown_name, (name, value) in given.left.items():
        if not ("." in shown_name or name in known or shown_name in slips):
            message = f"line {value.line}: is unknown, and LLaMA-Factory stops there"
            given.refuse(shown_name, message, allowed=passing(shown_name))


def _world(source: Source, known: Known, overrides: Overrides) -> commands.World:
    """Return the processes of the command that trains with a YAML, if nothing else sets them."""
    for script, words, _ in _starts(source, overrides):
        if (command := commands.program_of(words)) is not None:
            read = commands.script_of(script, overrides)
            started = zip(read.commands, read.environments, strict=True)
            environment = next((env for one, env in started if one == words), None)
            return _on_one_node(commands.world_of("", read, replace(command, environment=environment)))
    return known.world


def _on_one_node(world: commands.World) -> commands.World:
    """Return the processes of one node if NNODES is not set (launcher.py)."""
    alone = world.gpus_per_node and not world.num_nodes and world.lacking is None
    return replace(world, num_nodes=1) if alone else world


def _on_core(source: Source, overrides: Overrides) -> commands.Command | None:
    """Return the command with ``--use_mca`` in a script: the adapter's own arguments."""
    for command in commands.commands_of(commands.readable_script(source, overrides)):
        said = {word.text.lower() for word in command.words}
        following = dict(pairwise(word.text.lower() for word in command.words)).get("--use_mca", "--")
        on = following.startswith("--") or following in _ON
        if command.program and (
            said & {f"--use_mca={word}" for word in _ON} or ("--use_mca" in said and on)
        ):
            return command
    return None


_ON = ("true", "1", "yes")


def _recognises_trainers(source: Source) -> bool:
    if is_v1(source):
        return True
    if not is_accelerates(source):
        return _is_trainers(source)
    named = [source.other(words[at].text) for _, words, at in _starts(source)]
    return any(text is None or not _is_cores(Source(name="a.yaml", text=text)) for text in named)


def _read_trainers(source: Source, overrides: Overrides) -> LaunchFile:
    if is_v1(source):
        known = known_of(source, overrides)
        known.world = known.world if known.world.num_gpus else _world(source, known, overrides)
        return read_v1(source, overrides, known)
    named = commands.file_of_commands(
        source, ((script, words[at]) for script, words, at in _starts(source))
    )
    files = [source, *documents_beside(known_of(source, overrides).source)]
    own = named or next((one for one in files if _is_trainers(one)), source)
    over = _overrides(source, own, overrides)
    fields = Fields(own.name, document_of(own, by_omegaconf=True) | over, overrides, LLAMA_FACTORY.programs)
    fields.note_commands(over)
    for name in (accelerate.MICRO_BATCH, accelerate.ACCUMULATION, "cutoff_len", "finetuning_type"):
        fields.slip_for(name)
    known = known_of(own, overrides)
    workers = fields.optional("ray_num_workers")  # each on one GPU; no other number is given
    commands_of_files = ((script, words[:at]) for script, words, at in _starts(source, overrides))
    shares = shares_beside(commands_of_files, chain([source], documents_beside(known.source)))
    start = trainer.start_of(own, overrides)  # refuses commands that differ, too
    started = None if start is None else _started(fields, *start, shares)
    return trainer.trainer_run(fields, known, LLAMA_FACTORY, started=workers or started, shares=shares)


LLAMA_FACTORY_TRAINER_READER = Reader(
    name="llama-factory-accelerate", recognises=_recognises_trainers, read=_read_trainers
)


def _starts(
    source: Source, overrides: Overrides | None = None
) -> Iterator[tuple[Source, Sequence[Word], int]]:
    """Yield commands of scripts next to a file that start LLaMA-Factory, with the place of its YAML."""
    for script, words in commands.commands_beside(source, overrides):
        for at, (program, argument) in enumerate(pairwise(words)):
            own = program.text.endswith(_PROGRAMS) or program.text in _MODULES
            if own and argument.text.endswith((".yaml", ".yml")):
                yield script, words, at + 1


def _started(
    fields: Fields, script: Script, command: commands.Command, shares: Shares | None
) -> int | None:
    """Return processes without a launcher: NPROC_PER_NODE, the visible GPUs (launcher.py), or python's one.

    Raises:
        InvalidProblemError: python starts one process on several GPUs, which LLaMA-Factory refuses as well.
    """
    if command.program == "llamafactory-cli train":
        return ranks.started_by(script, command)
    if ranks.starts_processes(command) or not command.program.endswith(_PROGRAMS):
        return None
    ranks.require_gpus_of_their_own(fields, script, command, shares)
    return ranks.started_by(script, command)


def _overrides(source: Source, own: Source, overrides: Overrides) -> dict[str, LocatedValue]:
    """Return ``key=value`` after a command's YAML, which override it (hparams/parser.py, read_args)."""
    found: dict[str, LocatedValue] = {}
    for _, words, at in _starts(source, overrides):
        if words[at].text.rpartition("/")[2] == own.name.rpartition("/")[2]:
            if (fault := unknown_arguments(words[at + 1 :])) is not None:
                raise fault
            for word in words[at + 1 :]:
                # OmegaConf reads each as a name that no field has
                if "=" not in word.text or word.text.startswith("-"):
                    where = f"line {word.line} of the command: {shown(word.text)}"
                    raise refused(
                        f"{where} is not name=value", allowed="name=value, such as cutoff_len=2048"
                    )
            found |= trainer.values_of(
                [Word(f"--{word.text}", word.line) for word in words[at + 1 :]], overrides
            )
    return {
        name: LocatedValue(None, one.line) if one.value == "null" else one for name, one in found.items()
    }


def _is_trainers(source: Source) -> bool:
    if source.is_script or not LLAMA_FACTORY_READER.recognises(source):
        return False
    return not _is_cores(source)


def _is_cores(source: Source) -> bool:
    names = looks_like_document(source)
    return any(name in names for name in _CORE)


_PROGRAMS = ("src/train.py", "llamafactory/launcher.py")
_MODULES = ("llamafactory.launcher", "train")  # ``llamafactory-cli train``


def _take_batch(given: Given, fields: Fields, known: Known) -> None:
    count = fields.integer("gradient_accumulation_steps")
    micro = fields.integer("per_device_train_batch_size", 8)  # TrainingArguments' default
    model_gpus = 1
    for name in _DEGREES:
        model_gpus *= fields.integer(name, 1)
    replicas = max((known.num_gpus() or model_gpus) // model_gpus, 1)
    if not given.has("micro-batch-size"):
        given.note(f"per_device_train_batch_size is {micro}: TrainingArguments' default")
        given.take("--micro-batch-size", Value((str(micro),), 0), called="per_device_train_batch_size")
    batch = count * micro * replicas
    given.take("--global-batch-size", Value((str(batch),), 0), called="gradient_accumulation_steps")


def _take_defaults(given: Given) -> None:
    """Take the defaults: bf16, full recomputation by layers, unfused activations."""
    name = "bias_activation_fusion"
    if not given.has("no-bias-swiglu-fusion") and "--no-bias-swiglu-fusion" not in given.called:
        core.take(given, name, _OVER[name], 0, called=name)
        given.note(f"{name} is {_OVER[name]}, by default: activations run element by element")
    split = all(given.integer(f"{axis}-model-parallel-size", 1) > 1 for axis in ("tensor", "expert"))
    if split and not given.has("sequence-parallel"):  # models/model_config.py:368
        given.take("--sequence-parallel", Value((), 0), called="sequence_parallel")
        given.note("sequence_parallel is on: the adapter has it next to experts and tensor ranks")
    if given.word("recompute-granularity") == "full" and not given.has("recompute-method"):
        for name, value in (("recompute-method", "uniform"), ("recompute-num-layers", "1")):
            given.take(f"--{name}", Value((value,), 0), called=name.replace("-", "_"))
        given.note("recompute_granularity full without a method: every layer is taken to recompute")
    if not (given.has("bf16") or given.has("fp16")):
        given.take("--bf16", Value((), 0), called="bf16")
        given.note("neither bf16 nor fp16 is given: bf16 is assumed")


def _adapters(fields: Fields) -> tuple[int, tuple[str, ...]]:
    if fields.word("finetuning_type", "full") != "lora":
        return 0, ATTENTION_TARGETS
    refuse_uncounted(fields)
    return fields.integer("lora_rank", 8), FUSED_TARGETS
