"""Sharding of transformers' Trainer: by DeepSpeed's file, accelerate's, its own FSDP, or none.

The batch, the length and the precision are the trainer's, whatever those files set
(transformers, training_args.py and integrations/deepspeed.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from meshwright.launchers.accelerate import read as accelerate
from meshwright.launchers.accelerate.export import ATTENTION
from meshwright.launchers.accelerate.read_command import ENGINE, PLUGIN_COUNT, PLUGIN_FILE, Shares
from meshwright.launchers.deepspeed.read import DEEPSPEED_READER
from meshwright.launchers.flags import flag_names, is_off
from meshwright.launchers.reading import commands
from meshwright.launchers.reading.base import LaunchFile, Options, Overrides, Source
from meshwright.launchers.reading.documents import LocatedValue, Values, document_of, looks_like_document
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.known import Known, known_of
from meshwright.launchers.table import command_names
from meshwright.launchers.transformers.export import EXPERTS
from meshwright.profiles.attention import AUTO, EAGER, HYBRID, SDPA, implementation, runnable
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import framework_of
from meshwright.shell.values import UNKNOWN, Script, unknown_fault, unknown_in
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload

_BUILT_IN = re.compile(
    r"(?:default-)?(?:ds_z|zero|ds_zero|stage)_?([0-3])(?:_bf16)?(?:_(?:cpu)?(offload)(?:_(all|params))?)?"
    r"(?:_config)?(?:\.json)?"
)
_STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard")
_FILLED = ("bf16.enabled", "fp16.enabled")  # ``auto`` if the trainer sets them
_DEEPSPEEDS_BATCH = "train_batch_size"  # of all ranks; follows from the trainer's arguments
_DEEPSPEEDS_MICRO = "train_micro_batch_size_per_gpu"
_NAMES = {
    _DEEPSPEEDS_MICRO: "micro_batch_size",
    "gradient_accumulation_steps": "num_microbatches",
    **dict.fromkeys(_FILLED, "precision"),
}
_OF_THE_ENGINE = "deepspeed_config"  # DeepSpeed's own argument; transformers does not see its file


def ranks_run(
    launcher: str, fields: Fields, known: Known, overrides: Overrides, shares: Shares | None
) -> LaunchFile:
    """Apply the sharding engine (DeepSpeed, FSDP, accelerate) to the run.

    Args:
        launcher: launcher to assign replicas and meshes to.
        fields: the trainer's arguments.
        known: values given next to them.
        overrides: the model, the ranks and the trainer's batch, length, precision and recomputation.
        shares: accelerate's file and options.

    Raises:
        InvalidProblemError: a value cannot be read, contradicts another, or is missing.
    """
    if fields.has("deepspeed") or fields.has_section("deepspeed") or fields.has(_OF_THE_ENGINE):
        _require_one_engine(fields)
        return _by_deepspeed(fields, known, overrides)
    said = shares or Shares.of(known.source, {ENGINE: LocatedValue("MULTI_GPU", 0)})
    fields.note(*said.notes)
    source, values, ranks = said.source, dict(said.values), said.values.get("num_processes")
    if said.kind() != "DEEPSPEED":
        values |= _own_fsdp(fields, known.source)
    if "num_microbatches" in known.overrides.values:
        values.pop(PLUGIN_COUNT, None)  # the user overrides the files
    elsewhere = ranks is None or str(ranks.value) != str(
        overrides.num_gpus
    )  # the launcher sets their number
    if elsewhere:
        values["num_processes"] = LocatedValue(overrides.num_gpus, ranks.line if ranks else 0)
    if elsewhere and ranks is not None:
        values.pop("num_machines", None)
    if elsewhere and ranks is not None and unknown_in(ranks.value) is None:
        fields.note(
            f"num_processes {ranks.value} of {shown(source.name)} differs from the processes that start"
        )
    fields.stop()
    mesh = Fields(source.name, values, overrides, ("accelerate",))
    found = _by_accelerate(
        launcher, fields, Shares(source, values, mesh), overrides, known.overrides.values
    )
    return replace(found, num_nodes=None, gpus_per_node=None) if elsewhere else found


def _require_one_engine(fields: Fields) -> None:
    """Refuse FSDP next to DeepSpeed, at which trainers stop (ms-swift 4.6, arguments/sft_args.py)."""
    said = str(fields.raw("fsdp") or "").strip("[]").lower()
    if said not in ("", "false", "none"):
        fields.fault("fsdp", "next to deepspeed: one of them shards the model", allowed="no fsdp")
        fields.stop()
    fields.pass_over("fsdp_config")
    fields.take_section("fsdp_config")


def _by_accelerate(
    launcher: str, fields: Fields, shares: Shares, overrides: Overrides, over: Collection[str]
) -> LaunchFile:
    """Return the run of accelerate's values: its DeepSpeed plugin, a mesh, or plain replicas."""
    known, mesh = known_of(shares.source, overrides), shares.fields
    replays = (
        "true"
        if fields.flag(accelerate.CHECKPOINTING, default=False)
        else overrides.values["recompute_granularity"]
    )
    own = {
        accelerate.MICRO_BATCH: overrides.values["micro_batch_size"],
        accelerate.ACCUMULATION: overrides.values["num_microbatches"],
        accelerate.CHECKPOINTING: replays,
    }
    own |= {"torch_compile": True} if compiles(fields) else {}
    given = Fields("the command", {name: LocatedValue(value, 0) for name, value in own.items()})
    if shares.kind() == "DEEPSPEED":
        return _by_plugin(shares, overrides, given, over)
    length, precision = int(overrides.values["seq_length"]), str(overrides.values["precision"])
    if mesh.raw("mixed_precision") not in (None, False, "no", precision):
        mesh.note(f"mixed_precision of accelerate does nothing: the trainer's own {precision} counts")
    return accelerate.mesh_run(launcher, mesh, known, given, seq_length=length, precision=precision)


# Names for offloading in scripts that write DeepSpeed's file: a switch of DeepSpeed-Chat
# (utils/ds_utils.py), a name of safe-rlhf's (finetune/main.py).
_OFFLOADED = {
    **dict.fromkeys(("none", "false"), ()), "optimizer": ("optimizer",), "parameter": ("param",),
}  # fmt: skip
_OFFLOADS = "fsdp_config.fsdp_offload_params"


def _own_fsdp(fields: Fields, source: Source) -> dict[str, LocatedValue]:
    """Return ``--fsdp`` and ``--fsdp_config`` as accelerate's values (transformers, _process_fsdp_args)."""
    said, line = fields.raw("fsdp") or "", fields.place("fsdp")[1]
    words = re.split(r"[\s,]+", " ".join(map(str, said) if isinstance(said, list) else [str(said)]).lower())
    if words[0] in ("", "false", "none"):
        fields.pass_over("fsdp_config")
        fields.take_section("fsdp_config")
        return {}
    found: dict[str, object] = {ENGINE: "FSDP"}
    strategy = next((word for word in words if word in _STRATEGIES), None)
    if strategy is None and not set(words) & {"true", "fsdp", "fsdp2"}:
        fields.fault("fsdp", f"{shown(' '.join(words))} is not supported", allowed=", ".join(_STRATEGIES))
    if strategy is not None:
        found["fsdp_config.fsdp_sharding_strategy"] = strategy.upper()
    found |= {_OFFLOADS: True} if "offload" in words else {}
    more = _own_configuration(fields, source)
    found |= {f"fsdp_config.fsdp_{key.removeprefix('fsdp_')}": value for key, value in more.items()}
    if strategy is not None and str(found.get("fsdp_config.fsdp_version")) == "2":
        del found["fsdp_config.fsdp_sharding_strategy"]  # transformers 5, _apply_legacy_fsdp_to_config
        found.setdefault("fsdp_config.fsdp_reshard_after_forward", strategy == "full_shard")
        if strategy not in _STRATEGIES[:2]:
            fields.fault("fsdp", f"{strategy} is FSDP1's alone", allowed=", ".join(_STRATEGIES[:2]))
    return {key: LocatedValue(value, line) for key, value in found.items()}


def _own_configuration(fields: Fields, source: Source) -> dict[str, object]:
    """Return ``fsdp_config``: a section of the YAML, JSON on the command line, or a file."""
    name = fields.raw("fsdp_config")
    if not isinstance(name, str):
        return fields.section("fsdp_config")
    text = name if name.lstrip().startswith("{") else source.other(name)
    if text is None:
        fields.fault("fsdp_config", f"{shown(name)} is not next to the file", allowed="give that file too")
    values = document_of(Source(name="fsdp.json", text=text)) if text else {}
    return {key: one.value for key, one in values.items()}


def _by_plugin(shares: Shares, overrides: Overrides, given: Fields, over: Collection[str]) -> LaunchFile:
    """Return the run of accelerate's DeepSpeed plugin; the trainer's arguments fill its ``auto``."""
    name = shares.fields.raw(PLUGIN_FILE)
    if isinstance(name, str):
        found = run_of_deepspeeds_file(
            name, shares.fields, shares.source, overrides, key=PLUGIN_FILE, over=over
        )
        machines, ranks = shares.fields.integer("num_machines", 1), found.configuration.num_gpus
        own = commands.short_world(shares.source.text)
        world = accelerate.world_of_machines(machines, ranks, own.idle_gpus if own else 0)
        return replace(
            found, num_nodes=machines, gpus_per_node=world.gpus_per_node, idle_gpus=world.idle_gpus
        )
    word = str(overrides.values["precision"]).replace("fp32", "no")  # accelerate's
    values = {**shares.values, "mixed_precision": LocatedValue(word, 0)}
    return accelerate.plugin_run(
        Fields(shares.source.name, values, overrides, ("accelerate",)), shares.source, overrides, given
    )


def of_environment(variables: Mapping[str, tuple[str, ...]], values: Values) -> dict[str, LocatedValue]:
    """Return the arguments that accelerate's variables add (transformers, training_args.py).

    Raises:
        InvalidProblemError: a value is not known, or one of them lays out a mesh.
    """
    said = {name: "".join(variables[name]).lower() for name in _OF_ACCELERATE if name in variables}
    for name, text in said.items():
        if (unknown := unknown_in(text)) is not None:
            raise InvalidProblemError([unknown_fault(name, unknown, 0)])
    if said.get(_MESH_OF_ACCELERATE, "false") not in ("false", "0", ""):
        raise InvalidProblemError.of(
            _MESH_OF_ACCELERATE,
            "a mesh that variables of the environment state is not read",
            allowed="accelerate's YAML",
        )
    found = {}
    precision = said.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision in ("bf16", "fp16") and not any(name in values for name in ("bf16", "fp16")):
        found[precision] = LocatedValue(True, 0)
    if said.get("ACCELERATE_DYNAMO_BACKEND", "no") not in ("no", "") and "torch_compile" not in values:
        found["torch_compile"] = LocatedValue(True, 0)
    return found


_MESH_OF_ACCELERATE = "ACCELERATE_USE_PARALLELISM_CONFIG"
_OF_ACCELERATE = ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND", _MESH_OF_ACCELERATE)


def on_its_engine(command: commands.Command, values: dict[str, LocatedValue]) -> dict[str, LocatedValue]:
    """Return the arguments with the ZeRO switch of a script that ``deepspeed`` starts without a file.

    Raises:
        InvalidProblemError: no argument of such a script sets the stage.
    """
    runner = next((word for word in command.before if word.text.rsplit("/", 1)[-1] == "deepspeed"), None)
    own = any(name in command.program for name in ("swift", "train.py", "llamafactory"))
    if runner is None or own or {"deepspeed", "deepspeed_config", "finetuning_type"} & set(values):
        return values
    if "zero_stage" not in values:
        raise InvalidProblemError.of(
            "--deepspeed",
            f"line {runner.line}: deepspeed starts {command.program[:64]}, and no argument names its file",
            allowed="--deepspeed FILE, or torchrun in its place where ranks are plain replicas",
        )
    return {**values, "deepspeed": LocatedValue(True, runner.line)}


def _by_deepspeed(fields: Fields, known: Known, overrides: Overrides) -> LaunchFile:
    key = _OF_THE_ENGINE if fields.has(_OF_THE_ENGINE) else "deepspeed"
    if fields.has_section(key):  # the file's content in place of its name
        inside = {one: LocatedValue(value, 0) for one, value in fields.section(key).items()}
        _require_same(inside, key, overrides, known.overrides.values)
        return _of_deepspeeds(inside, key, overrides)
    name = fields.raw(key)
    if name is True and not fields.has("zero_stage"):
        fields.fault(
            key,
            "needs a value",
            allowed="a file of DeepSpeed's, or --zero_stage of a script that makes its own",
        )
        fields.stop()
    fields.take("zero_stage")  # the script writes it into the file
    if name is True:  # the script makes the configuration (DeepSpeed-Chat)
        stage = fields.integer("zero_stage", 0, low=0)
        values: dict[str, object] = {"zero_optimization.stage": stage, **dict.fromkeys(_FILLED, "auto")}
        away = _OFFLOADED.get(str(fields.raw("offload")).lower(), ("optimizer", "param"))
        values |= {f"zero_optimization.offload_{part}.device": "cpu" for part in away}
        return _of_deepspeeds(
            {one: LocatedValue(value, 0) for one, value in values.items()}, "deepspeed", overrides
        )
    return run_of_deepspeeds_file(
        str(name), fields, known.source, overrides, key=key, over=known.overrides.values
    )


def run_of_deepspeeds_file(
    name: str, fields: Fields, beside: Source, overrides: Overrides, *, key: str, over: Collection[str] = ()
) -> LaunchFile:
    """Return the run of the DeepSpeed file that ``key`` names, with ``auto`` filled from supplied values.

    ``over``: values that the user supplies, which may differ from the files.
    """
    base = name.replace("\\", "/").rsplit("/", 1)[-1]
    text = beside.other(base)
    json_file = Source(name=base if base.endswith(".json") else f"{base}.json", text=text or "")
    values = dict(looks_like_document(json_file)) if text else {}
    if text and not values:
        document_of(json_file)
    if not values:
        values = _built_in(fields, key, base)
    fields.stop()
    for said, one in values.items():
        if (unknown := unknown_in(one.value)) is not None:
            raise InvalidProblemError([unknown_fault(f"{said} of {shown(base)}", unknown, one.line)])
    if key != _OF_THE_ENGINE:
        _require_same(values, base, overrides, over)
    elif fields.has(accelerate.MICRO_BATCH) and _DEEPSPEEDS_MICRO in values:  # the script sets the batches
        _require_same({_DEEPSPEEDS_MICRO: values[_DEEPSPEEDS_MICRO]}, base, overrides, over)
    if key == _OF_THE_ENGINE and not (fields.has(accelerate.ACCUMULATION) or "num_microbatches" in over):
        overrides = _with_own_accumulation(values, overrides)
    filled = {key: LocatedValue("auto", one.line) for key, one in values.items() if _NAMES.get(key) in over}
    return _of_deepspeeds({**values, **filled}, base, overrides)


def _with_own_accumulation(values: Mapping[str, LocatedValue], overrides: Overrides) -> Overrides:
    """Leave the accumulation to DeepSpeed's file if it states both batches (``runtime/config.py``).

    DeepSpeed adds gradients up, and the script steps its engine after every micro-batch.
    """
    batch, micro = (
        values[name].value if name in values else None for name in (_DEEPSPEEDS_BATCH, _DEEPSPEEDS_MICRO)
    )
    gpus = overrides.num_gpus
    if not (gpus and isinstance(batch, int) and isinstance(micro, int) and micro > 0):
        return overrides
    count, rest = divmod(batch, micro * gpus)
    return (
        replace(overrides, values={**overrides.values, "num_microbatches": count})
        if not rest
        else overrides
    )


def _of_deepspeeds(values: Mapping[str, LocatedValue], base: str, overrides: Overrides) -> LaunchFile:
    """Return the run of DeepSpeed's values, with ``auto`` filled from supplied values."""
    text = json.dumps(_nested(_resolved(values, overrides)))
    name = base if base.endswith(".json") else f"{base}.json"
    return DEEPSPEED_READER.read(Source(name=name, text=text), overrides)


def engines_precision(fields: Fields, beside: Source) -> str:
    """Return the type that DeepSpeed's file turns on without the trainer's arguments; empty for none."""
    base = str(fields.raw(_OF_THE_ENGINE) or "").replace("\\", "/").rsplit("/", 1)[-1]
    text = beside.other(base) if base.endswith(".json") else None
    own = looks_like_document(Source(name=base, text=text)) if text else {}
    return next((key.partition(".")[0] for key in _FILLED if key in own and own[key].value is True), "")


def _built_in(fields: Fields, key: str, base: str) -> dict[str, LocatedValue]:
    """Return a built-in file of LLaMA-Factory, ms-swift or Axolotl by its usual name."""
    match = _BUILT_IN.fullmatch(base)
    if match is None:
        fields.fault(
            key, f"{shown(base)} is not next to the file", allowed="give that file too, or its folder"
        )
        return {}
    fields.note(
        f"{shown(base)} is taken as ZeRO-{match[1]} with the usual values. To be sure, give the file"
    )
    found = {"zero_optimization.stage": int(match[1]), "bf16.enabled": "auto", "fp16.enabled": "auto"}
    states = match[2] and match[3] != "params"  # Axolotl's zero3_bf16_cpuoffload_params.json
    device = {"zero_optimization.offload_optimizer.device": "cpu"} if states else {}
    weights = {"zero_optimization.offload_param.device": "cpu"} if match[2] and match[1] == "3" else {}
    return {name: LocatedValue(value, 0) for name, value in {**found, **device, **weights}.items()}


def _resolved(values: Mapping[str, LocatedValue], overrides: Overrides) -> dict[str, object]:
    """Return DeepSpeed's values with ``auto`` replaced as by transformers' ``HfTrainerDeepSpeedConfig``."""
    known, keys = _filled(overrides), flag_names("deepspeed")
    found: dict[str, object] = {}
    for name, one in values.items():
        if one.value == "auto" and name in known:
            found[name] = known[name]
        elif one.value != "auto" or not (name == _DEEPSPEEDS_BATCH or keys.is_free(name)):
            found[name] = one.value
    precision = str(
        overrides.values["precision"]
    )  # accelerate adds its section (DeepSpeedPlugin.set_mixed_precision)
    if precision != "fp32" and not any(name.startswith(f"{precision}.") for name in values):
        found[f"{precision}.enabled"] = True  # accelerate adds it (DeepSpeedPlugin.set_mixed_precision)
    return found


def _filled(overrides: Overrides) -> dict[str, int | str | bool]:
    found = {key: overrides.values[name] for key, name in _NAMES.items()}
    return found | {key: found[key] == key.partition(".")[0] for key in _FILLED}


def _require_same(
    values: Mapping[str, LocatedValue], base: str, overrides: Overrides, over: Collection[str]
) -> None:
    """Refuse a file with another batch or type than the trainer's arguments: transformers stops."""
    fields = Fields(base, values)
    for key, said in _filled(overrides).items():
        value = fields.raw(key)
        if _NAMES[key] not in over and value not in (None, "auto") and str(value) != str(said):
            word = str(said).lower()
            fields.fault(
                key,
                f"{shown(str(value).lower())} in {shown(base)}, but {word} by the trainer's arguments",
                allowed=f"auto, {word}",
                nearest=word,
            )
    fields.stop()


def _nested(values: Mapping[str, object]) -> dict[str, object]:
    tree: dict[str, object] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        place = tree
        for parent in parents:
            inner = place.setdefault(parent, {})
            if not isinstance(inner, dict):
                break
            place = inner
        place[last] = value
    return tree


# --------------------------------------------------------------------------------------------------
# The started processes and their GPUs.


# Start one process per visible GPU.
_SEVERAL = ("deepspeed", *commands.ACCELERATES, *command_names(accelerates=True))
_TASKS = (*commands.RANK_STARTERS, "jsrun")  # start the given number of processes, each on one GPU
_STARTERS = (*_SEVERAL, *_TASKS, "torchrun", "torch.distributed.run", "torch.distributed.launch", "ray")


def started_by(script: Script, command: commands.Command) -> int | None:
    """Return the processes of one node when no launcher sets them: one per visible GPU, or one."""
    world = commands.world_of("", script, command)
    hangs = _has(command, _STARTERS) and any(word.unknown for word in command.before)
    hangs = hangs or world.lacking is not None
    if world.gpus_per_node and not world.num_nodes:
        return None if hangs else world.gpus_per_node  # NPROC_PER_NODE alone: one node
    gpus = _visible(script, command)
    several = command.program.startswith("llamafactory") or _has(command, _SEVERAL)
    several = several or hangs or commands.takes_every_gpu(command.before)
    several = several or _has(command, _TASKS)
    return (gpus or None) if several else _stated_world(script, command)


def _stated_world(script: Script, command: commands.Command) -> int:
    """Return the processes of python without a launcher: one, or WORLD_SIZE if others start elsewhere.

    Raises:
        InvalidProblemError: WORLD_SIZE is not known.
    """
    text = "".join(commands.environment_of(script, command).get("WORLD_SIZE", ()))
    if (unknown := unknown_in(text)) is not None:
        line = next((word.line for word in command.before), 0)
        raise InvalidProblemError([unknown_fault("WORLD_SIZE", unknown, line)])
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 8 and int(text) else 1  # noqa: PLR2004


def starts_processes(command: commands.Command) -> bool:
    """Return whether a launcher of processes starts the command."""
    return _has(command, _STARTERS)


def _has(command: commands.Command, programs: Collection[str]) -> bool:
    return any(word.text.rsplit("/", 1)[-1] in programs for word in command.before)


def _visible(script: Script, command: commands.Command) -> int:
    """Return how many GPUs a command sees (CUDA_VISIBLE_DEVICES); 0 if unset or not a plain list."""
    said = "".join(commands.environment_of(script, command).get("CUDA_VISIBLE_DEVICES", ()))
    return 0 if UNKNOWN in said or not said else len(said.split(","))


def _known_count(mesh: Fields | None, name: str) -> int | None:
    """Return a number of accelerate's; None if it is not given, or known to a running shell alone."""
    return None if mesh is None or unknown_in(mesh.peek(name)) is not None else mesh.optional(name)


def require_gpus_of_their_own(
    fields: Fields, script: Script, command: commands.Command, shares: Shares | None
) -> None:
    """Refuse processes without a GPU each: some have none, or one process holds several.

    Without ZeRO-3 and FSDP a process of ms-swift takes all GPUs that only it sees, one working
    after another (get_default_device_map); of other trainers it feeds them all (torch's DataParallel).

    Raises:
        InvalidProblemError: a process has no GPU, or several.
    """
    gpus, world = _visible(script, command), commands.world_of("", script, command)
    mesh = None if shares is None else shares.fields
    ranks = world.num_gpus or _known_count(mesh, "num_processes")
    nodes = world.num_nodes or _known_count(mesh, "num_machines") or 1
    each = world.gpus_per_node or (ranks // nodes if ranks else 1)
    if gpus and each > gpus:
        fields.fault(
            "CUDA_VISIBLE_DEVICES",
            f"{gpus} GPUs are visible to {each} processes: torch finds no GPU for some",
            allowed=f"{each} GPUs, or {gpus} processes",
        )
    alone = ranks in (None, 1) and world.gpus_per_node is None and not _has(command, _STARTERS)
    sharded = fields.raw("fsdp") or re.search(r"zero_?3|stage_?3", str(fields.raw("deepspeed") or ""))
    if command.program.startswith("swift"):
        if gpus // each > 1 and not sharded and not (each == 1 and world.num_nodes):
            why = (
                f"a process holds the model over {gpus // each} of them (device_map), which is not "
                "supported"
            )
            fields.fault(
                "NPROC_PER_NODE", f"{each} on {gpus} visible GPUs: {why}", allowed=f"NPROC_PER_NODE={gpus}"
            )
    elif alone and not command.program.startswith("llamafactory") and not fields.raw("deepspeed"):
        if gpus > 1:
            why = f"python starts one process on {gpus} visible GPUs (torch's DataParallel)"
            fields.fault(
                "CUDA_VISIBLE_DEVICES",
                f"{why}, which is not supported",
                allowed=f"torchrun --nproc_per_node {gpus}, or one GPU",
            )
        elif not gpus:
            fields.note(
                "python starts one process, which takes all GPUs that it sees (torch's DataParallel): "
                "that is priced for one GPU alone"
            )
    if fields.flag("auto_find_batch_size"):
        fields.note("auto_find_batch_size halves micro-batches where memory runs out: priced as it starts")
    if str(fields.raw("device_map")).lower() in _PLACEMENTS and gpus != 1:
        fields.note(
            "device_map: layers on several GPUs, one working after another, are not supported: one GPU each"
        )
    fields.stop()


_PLACEMENTS = ("auto", "balanced", "balanced_low_0", "sequential")  # of accelerate's dispatch_model


# --------------------------------------------------------------------------------------------------
# Attention kernels and Liger's.


# Attention kernels by transformers' names (AttentionInterface) that its exporter writes, and by those of
# ms-swift and LLaMA-Factory.
_NAMED = ("flash4", "flash3", "flash2", "sdpa", "torch", "flex")
_KERNELS = {ATTENTION[name]: name for name in _NAMED} | {
    "flash_attn": "flash2", "fa2": "flash2", "fa3": "flash3", "flash_attention": "flash2",
    "disabled": "torch", "auto": AUTO, "xformers": "flash2",
    # the hub's builds, of which transformers takes these where no package is installed
    "kernels-community/flash-attn2": "flash2", "kernels-community/flash-attn": "flash2",
    "kernels-community/flash-attn3": "flash3", "kernels-community/vllm-flash-attn3": "flash3",
}  # fmt: skip


# Axolotl's older switches (0.19.0 ``utils/schemas/enums.py LEGACY_ATTN_FLAG_TO_IMPL``).
_FLAGGED = {"flash_attention": "flash2", "flex_attention": "flex", "sdp_attention": "sdpa"}
_HYBRID = "gemma4_hybrid_attn_impl"  # Axolotl's: flash_attention_2 in windows, sdpa in other layers
_KERNEL_NAMES = ("attn_implementation", "attn_impl", "flash_attn")  # the last is LLaMA-Factory's


def kernel_of(fields: Fields, launcher: str, configuration: Configuration) -> Options:
    """Return the attention kernel if it differs from the default of the price; rings have their own.

    A file that names none leaves the choice to transformers (``profiles/attention.py``).
    """
    name = next((name for name in _KERNEL_NAMES if fields.has(name)), None)
    word = fields.word(name) if name else ""
    flagged = next((kernel for flag, kernel in _FLAGGED.items() if fields.flag(flag)), AUTO)
    found = _KERNELS.get(word.lower(), "") if word else flagged
    if fields.flag(_HYBRID):
        found = HYBRID
    if name and word and not found:
        fields.fault(name, f"{shown(word)} is not a kernel that is priced", allowed=", ".join(_KERNELS))
    return {} if configuration.context_parallel_size > 1 else kernel_option(found, launcher)


def note_attention(
    fields: Fields, model: ModelSpec, workload: Workload, launcher: str, *, packed: bool = False
) -> None:
    """Note which attention is taken where that is not what was asked, or costs more than it seems.

    ``packed``: documents are packed, and attend to themselves alone.
    """
    facts = with_options(framework_facts(framework_of(launcher)), workload.framework_options)
    if facts.attention_kernel == AUTO:
        taken = implementation(model, facts.transformers_release)
        if taken.kernel != SDPA:
            name = ATTENTION[taken.kernel]
            fields.note(f"no attention is named, and {name} is taken, not sdpa: {taken.why}")
            return
    elif (named := facts.attention_kernel) != SDPA:
        _require_positions(fields, model, named)
        if (run := runnable(named, model)) != named:
            why = "positions by ALiBi" if run == EAGER else f"heads of {model.head_dim}"
            fields.note(f"{ATTENTION[named]} doesn't run {why}, so {ATTENTION[run]} is priced")
        return
    if facts.joins_packed_rows and packed:
        fields.note(
            "packing joins the rows of a micro-batch to one, and sdpa computes the scores of every token "
            "with every other. flash_attention_2 and flex_attention skip scores between documents"
        )
        return
    window, local = model.sliding_window, model.local_layers().count(True)
    if model.causal and window is not None and workload.seq_length >= window:
        fields.note(
            f"sdpa gets an explicit mask in {local} of {model.num_layers} layers, whose window of {window} "
            "tokens is no longer than a sequence. It computes whole squares of scores there, and repeats "
            "keys and values for every head"
        )


def _require_positions(fields: Fields, model: ModelSpec, kernel: str) -> None:
    """Refuse FlashAttention under ALiBi, which no class of transformers runs (``attention.runnable``)."""
    name = next((name for name in (*_KERNEL_NAMES, *_FLAGGED) if fields.has(name)), _KERNEL_NAMES[0])
    if model.alibi_positions and kernel.startswith("flash") and fields.peek(name) != "xformers":
        fields.fault(
            name,
            f"the class of {model.title} has no FlashAttention, for its positions are ALiBi's: "
            "transformers stops at it",
            allowed="eager, or no attention named",
        )
        fields.stop()


_EXPERT_NAMES = ("experts_implementation", "experts_impl")


def products_of(
    fields: Fields, launcher: str, own: Mapping[str, str] = EXPERTS, *, default: str = ""
) -> Options:
    """Return how experts and fp32 multiply if they differ from the default of the price.

    Other kernels of experts are a fault; ``own``: words of the launcher for those that it has; ``default``:
    the word of a file that states none.
    """
    usual, options = framework_facts(framework_of(launcher)), Options()
    name = next((name for name in _EXPERT_NAMES if fields.has(name)), None)
    stated = name is not None and not fields.is_null(name)
    found = own.get(fields.word(name, allowed=tuple(own)) if stated and name else default)
    options |= {} if found in (None, usual.grouped_gemm) else {"grouped_gemm": found}
    single = fields.raw("tf32")
    if single not in (None, "auto") and fields.flag("tf32") != usual.tf32_products:
        options["tf32_products"] = not usual.tf32_products
    return options


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Where a program says when it evaluates, on what, and how many samples at a time."""

    when: tuple[str, ...]  # the first that is set decides
    usual: str = "no"  # without any
    data: tuple[str, ...] = ()  # it evaluates only where one of them is set; empty: a script's own data
    size: str = "per_device_eval_batch_size"
    usual_size: str = ""  # the argument whose value is the default of ``size``; empty: the table's default


_EVALUATES = ("eval_strategy", "evaluation_strategy")
_EVALUATIONS = {
    # 4.6 arguments/sft_args.py _init_eval_strategy: as often as it saves
    "ms-swift": _Evaluation(
        (*_EVALUATES, "save_strategy"),
        "steps",
        ("val_dataset", "cached_val_dataset", "split_dataset_ratio"),
    ),
    # 0.19 core/builders/base.py _configure_save_and_eval_strategy; utils/config normalize_config
    "axolotl": _Evaluation(
        ("eval_steps", "evals_per_epoch", "eval_strategy"),
        data=("val_set_size", "test_datasets"),
        size="eval_batch_size",
        usual_size="micro_batch_size",
    ),
}
_TRAINERS = _Evaluation(_EVALUATES)
_NOTHING = ("none", "", "0", "0.0", "[]")


def evaluation_of(fields: Fields) -> Options:
    """Return how many samples a rank evaluates together between steps; empty if it evaluates nothing.

    A number that is not known counts nothing.
    """
    its = next((_EVALUATIONS[one] for one in fields.programs if one in _EVALUATIONS), _TRAINERS)

    def said(name: str) -> str:
        return str(fields.peek(name)).lower()

    strategy = next((said(name) for name in its.when if said(name) not in _NOTHING), its.usual)
    has_data = not its.data or any(said(name) not in _NOTHING for name in its.data)
    if strategy in ("no", "false") or not has_data:
        return {}
    name = its.size if not its.usual_size or said(its.size) not in _NOTHING else its.usual_size
    size = fields.peek(name)
    if size is not None and not str(size).isdecimal():
        fields.note(f"{name} {shown(str(size))} is not known: no evaluation is priced")
        return {}
    number = fields.integer(name)
    return {"evaluation_batch_size": number} if number else {}


_EIGHT_BITS, _LOADS_ON_ONE = "fp8", "fsdp_config.fsdp_cpu_ram_efficient_loading"


def eight_bits_of(fields: Fields, found: LaunchFile, shares: Shares | None) -> Options:
    """Return the options of LLaMA-Factory's linear layers in 8 bits: torchao's, with a scale a row.

    LLaMA-Factory 0.9.5, train/fp8_utils.py:60-90: layers are converted before an engine takes them, but
    none whose weight has no shape any more. The switch of 8-bit gathers is logged alone.
    """
    if fields.programs[:1] != ("llama-factory",) or not fields.flag(_EIGHT_BITS):
        return {}
    recipe, zero = fields.priced("fp8_backend", "auto"), found.configuration.zero_stage
    if found.launcher == "deepspeed" and zero == 3:  # noqa: PLR2004 - ZeRO-3
        fields.note("fp8 does nothing: ZeRO-3 leaves weights without a shape, and no layer is converted")
        return {}
    if not zero or found.launcher == "deepspeed" or fields.word("finetuning_type", "lora") != "full":
        why = "is priced of whole weights under FSDP alone"
        fields.fault(_EIGHT_BITS, why, allowed="false, or FSDP and finetuning_type: full", nearest="false")
    loads = shares is not None and str(shares.fields.raw(_LOADS_ON_ONE)).lower() != "false"
    if zero and loads:  # accelerate 1.15, accelerator.py:519; its command's default is true
        fields.fault(
            _EIGHT_BITS,
            f"its trainer refuses it next to {_LOADS_ON_ONE}: true",
            allowed=f"{_LOADS_ON_ONE}: false",
        )
    return {"precision_recipe": recipe}


def kernel_option(found: str, launcher: str) -> Options:
    """Return the option of a named attention kernel; empty if it is the default of the price."""
    usual = framework_facts(framework_of(launcher)).attention_kernel
    return {} if found in ("", usual) else {"attention_kernel": found}


_LIGER = (
    "use_liger_kernel",
    "use_liger",
    "enable_liger_kernel",
)  # TrainingArguments, older TRL, LLaMA-Factory


# ms-swift 4.6, loss_scale/mapping.py: those whose weights are not 0 and 1 alone
_WEIGHING = ("react", "hermes", "qwen", "agentflan", "alpha_umi")


def own_loss_of_swift(fields: Fields) -> str:
    """Return the argument by which ms-swift computes the loss of whole logits itself; empty without one.

    Liger's loss then has no effect (ms-swift 4.6, trainers/seq2seq_trainer.py ``compute_loss``).
    """
    if "ms-swift" not in fields.programs or fields.command == "rlhf":
        return ""
    said = str(fields.raw("loss_scale") or "").split("+")
    if any(one in _WEIGHING for one in said):
        return "loss_scale"
    names = ("enable_dft_loss", "enable_channel_loss", "loss_type")
    return next((name for name in names if not is_off(str(fields.raw(name)))), "")


def uses_liger(fields: Fields) -> bool:
    """Return whether Liger's kernels are on, under any of their names."""
    return any(fields.flag(name) for name in _LIGER)


def compiles(fields: Fields) -> bool:
    """Return whether torch.compile is on; its backend or mode alone turn it on (training_args.py)."""
    named = [fields.raw(name) for name in ("torch_compile_backend", "torch_compile_mode", "torchdynamo")]
    return fields.flag("torch_compile") or any(named)


def note_mode(fields: Fields) -> None:
    """Note a mode of torch.compile that times several products, or replays graphs (torch/_inductor)."""
    mode = str(fields.raw("torch_compile_mode") or "default").lower()
    if mode not in ("default", "auto"):
        fields.note(f"torch_compile_mode {mode}: priced as default, without timed choices or graphs")


def compiled_of(fields: Fields, launcher: str) -> Options:
    """Return the options of operators that torch.compile fuses, where the launcher's run one by one."""
    note_mode(fields)
    own = framework_facts(framework_of(launcher)).elementwise_fused
    return dict(accelerate.COMPILED) if compiles(fields) and not own else {}


def kernels_of(launcher: str, *, liger: bool, by_trl: bool) -> Options:
    """Return the options of Liger's kernels, if on, and of the loss, if it is not the launcher's own.

    TRL's trainers make logits in chunks, that of supervised fine-tuning without Liger's loss (TRL 1.16.0,
    trainer/sft_trainer.py:1127-1147, dpo_trainer.py, kto_trainer.py add_fused_lm_head).

    Args:
        launcher: whose facts the run is priced under.
        liger: Liger's kernels are on.
        by_trl: the trainer is TRL's, of supervised fine-tuning or of preferences.
    """
    kernel = "chunked" if by_trl else "liger" if liger else "whole"
    usual = framework_facts(framework_of(launcher)).loss_kernel
    loss: Options = {} if kernel == usual else {"loss_kernel": kernel}
    return {"elementwise_fused": True, "norm_fused": True, **loss} if liger else loss
