"""Reader of accelerate's YAML and its command: FSDP2 with its mesh, replicas, or the DeepSpeed plugin.

Keys and defaults: accelerate 1.15.0, commands/config/config_args.py, utils/dataclasses.py (FSDP),
parallelism_config.py; the batch is in the command of the training script (transformers' arguments).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from meshwright.launchers.accelerate.read_command import (
    ADDRESS,
    AT,
    ENGINE,
    ENGINES,
    FSDP,
    MESH,
    PLUGIN_COUNT,
    PLUGIN_FILE,
    Shares,
    is_accelerates,
    shares_of,
    starts_beside,
    values_of_file,
)
from meshwright.launchers.deepspeed.export import OFFLOADED
from meshwright.launchers.deepspeed.read import DEEPSPEED_READER, read_offload
from meshwright.launchers.export import bucket_option
from meshwright.launchers.flags import flags_of
from meshwright.launchers.reading.base import LaunchFile, Options, Overrides, Reader, Source
from meshwright.launchers.reading.commands import World, commands_beside, given_to_several
from meshwright.launchers.reading.documents import LocatedValue, Values
from meshwright.launchers.reading.fields import Fields, divided, meant, passing
from meshwright.launchers.reading.known import Known, known_of
from meshwright.profiles.documents import shown
from meshwright.profiles.frameworks import FOREACH, framework_facts
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import framework_of
from meshwright.shell.values import Word
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload

# --------------------------------------------------------------------------------------------------
# Values of the command next to accelerate's YAML: the training script's batch, and machine 0's address.


MICRO_BATCH = "per_device_train_batch_size"  # names of transformers' TrainingArguments
ACCUMULATION = "gradient_accumulation_steps"
CHECKPOINTING = "gradient_checkpointing"
DDP_BUCKET = "ddp_bucket_cap_mb"
NO_LENGTH = "no field of it holds the sequence: --seq-length"
_ARGUMENTS = (MICRO_BATCH, ACCUMULATION, CHECKPOINTING, "optim", DDP_BUCKET, "torch_compile")
_COMPILED = "dynamo_config.dynamo_backend"
_OWN_MULTINODE = "deepspeed_config.deepspeed_multinode_launcher"


def arguments(
    known: Known,
    names: Collection[str] = _ARGUMENTS,
    usual: Values | None = None,
    *,
    programs: Sequence[str] = ("transformers",),
) -> Fields:
    """Return the arguments that the scripts next to the file give; of one given twice, the last.

    ``usual`` has the values of arguments that no script gives, ``programs`` the tables of all of them.
    """
    found = dict(usual or {})
    for _, words in commands_beside(known.source, known.overrides):
        found |= dict(_given(words, names))
    return Fields("the command", found, programs=programs)


def _given(words: Sequence[Word], names: Collection[str]) -> Iterator[tuple[str, LocatedValue]]:
    for at, word in enumerate(words):
        name, equals, value = word.text.removeprefix("--").replace("-", "_").partition("=")
        following = words[at + 1].text if at + 1 < len(words) else ""
        if word.text.startswith("--") and name in names:
            text = value if equals else "true" if following[:2] == "--" else following
            yield name, LocatedValue(text, word.line)


def recomputes(given: Fields, known: Known) -> bool:
    """Return whether the training script recomputes every layer."""
    own = given.raw(CHECKPOINTING)
    replays = known.word("recompute_granularity", "") if own is None else str(own)
    return replays.lower() in ("true", "full", "1")


def checkpoints(fields: Fields, name: str, *, beside: bool) -> bool:
    """Return whether FSDP recomputes every layer; refused if the trainer recomputes, too (``beside``).

    transformers 5.23 trainer.py:879 (4.57: 5530) raises if both are true.
    """
    own = fields.flag(name)
    if own and beside:
        fields.fault(
            name,
            f"true, and so is {CHECKPOINTING}: transformers' Trainer starts with one of them alone",
            allowed=f"false, or {CHECKPOINTING}: false",
            nearest="false",
        )
    return own


def ranks_of(known: Known, mesh: Fields | None, started: int | None) -> int | None:
    """Return all ranks: the supplied number, the started processes, or accelerate's file.

    Raises:
        InvalidProblemError: none of these is given.
    """
    world = known.overrides.num_gpus or known.world.num_gpus
    processes = mesh.optional("num_processes") if mesh is not None and world is None else None
    if mesh is not None:
        mesh.stop()
    world = world or known.num_gpus() or processes or started
    if world is None:
        known.required("num_gpus", None, "torchrun --nproc_per_node, or the cluster's --num-nodes")
    return world


def require_address(fields: Fields, known: Known) -> None:
    """Refuse several machines without machine 0's address; accelerate would not notice.

    An exported file is started by its own script, which sets the address.
    """
    machines = fields.integer("num_machines", 1)
    elsewhere = fields.word(_OWN_MULTINODE, "standard") != "standard"
    exported = known.header.plan_id is not None and not any(starts_beside(known.source, known.overrides))
    if machines == 1 or fields.has(ADDRESS) or elsewhere or exported:
        return
    fields.fault(
        "num_machines",
        f"{machines}, but no {ADDRESS}: every machine would wait for the others at its own address",
        allowed=f"{ADDRESS} in the file, or --{ADDRESS} of the command, given next to it",
        nearest=ADDRESS,
    )


# accelerate 1.15.0, config_args.py:60 and 160 (BaseConfig, ClusterConfig)
FILE_NAMES = frozenset(
    {
        "command_file", "commands", "compute_environment", "debug", "deepspeed_config", "distributed_type",
        "downcast_bf16", "dynamo_config", "enable_cpu_affinity", "fp8_config", "fsdp_config", "gpu_ids",
        "machine_rank", "main_process_ip", "main_process_port", "main_training_function",
        "megatron_lm_config", "mixed_precision", "mpirun_config", "num_machines", "num_processes",
        "parallelism_config", "rdzv_backend", "same_network", "tpu_env", "tpu_name", "tpu_use_cluster",
        "tpu_use_sudo", "tpu_vm", "tpu_zone", "use_cpu",
    }
)  # fmt: skip


def require_own_names(fields: Fields) -> None:
    """Refuse other names at the top of the file than its class has: accelerate stops (config_args.py:155).

    Names of other releases are read by their rows.
    """
    rows = flags_of("accelerate")
    places = {name.rpartition(".")[2]: name for name in rows if "." in name}
    for name in fields.sections():
        row, place = rows.get(name), places.get(name)
        if name in FILE_NAMES or (row is not None and row.of is not None and place is None):
            continue
        if row is not None and row.refuses(fields.peek(name)):
            continue  # by its row
        if row is not None:
            why = "is an option of the command, and accelerate stops at it here"
            engine = None if fields.has(ENGINE) else ENGINES.get(name)
            other = f"{place} in the file" if place else f"accelerate launch --{name}"
            fields.fault(name, why, allowed=other, nearest=f"{ENGINE}: {engine}" if engine else place)
        else:
            near = meant(name, FILE_NAMES)
            why = "is unknown, and accelerate stops there"
            fields.fault(name, why, allowed=passing(shown(name)), nearest=near)


def require_same_machines(fields: Fields, known: Known) -> None:
    """Refuse a file for another number of machines than the scripts next to it start."""
    machines, started = fields.optional("num_machines"), known.world.num_nodes
    if machines and started and machines != started:
        fields.fault(
            "num_machines", f"{machines}, but the script starts {started} nodes", nearest=str(started)
        )


# --------------------------------------------------------------------------------------------------
# accelerate's DeepSpeed plugin: DeepSpeed's own file, or the few values that accelerate passes on.
#
# Keys and defaults: accelerate 1.15.0, utils/dataclasses.py (DeepSpeedPlugin), commands/launch.py.


_PLACES = {part: (f"{AT}{key}_device", f"{AT}{key}_nvme_path") for part, key in OFFLOADED.items()}
_DEFAULT_STAGE = 2


def plugin_run(fields: Fields, source: Source, overrides: Overrides, given: Fields) -> LaunchFile:
    """Return the run of a file with ``distributed_type`` DEEPSPEED.

    ``given``: the trainer's batch and checkpointing.

    Raises:
        InvalidProblemError: a value cannot be read, contradicts another, or is missing.
    """
    known = known_of(source, overrides)
    fields.raw(ENGINE)
    fields.take_section("fsdp_config")
    require_own_names(fields)
    require_address(fields, known)
    fields.stop()
    if fields.has(PLUGIN_FILE):
        return _of_its_file(fields, source, overrides)
    return _of_values(fields, known, given)


def _of_its_file(fields: Fields, source: Source, overrides: Overrides) -> LaunchFile:
    name = fields.word(PLUGIN_FILE)
    precision = fields.choice("mixed_precision", "no")  # from the command: the file may not set it
    text = source.other(name) if name else None
    if text is None:
        where, step = f"{shown(name)} is not next to the file", "give that file too, or its folder"
        fields.fault(PLUGIN_FILE, where, allowed=step)
    machines, processes = fields.optional("num_machines"), fields.optional("num_processes")
    fields.stop()
    base = name.rsplit("/", 1)[-1]
    other = Source(
        name=base, text=text or "", files={**source.files, base: text or ""}, include=source.include
    )
    supplied = {**({"precision": precision} if precision != "no" else {}), **overrides.values}
    overrides = replace(overrides, num_gpus=processes or overrides.num_gpus, values=supplied)
    found = DEEPSPEED_READER.read(other, overrides)
    if precision not in ("no", found.workload.precision):
        theirs = found.workload.precision
        fields.fault("mixed_precision", f"{precision}, but DeepSpeed's file has {theirs}", nearest=theirs)
    if processes and found.configuration.num_gpus != processes:
        fields.fault(
            "num_processes",
            f"{processes}, but DeepSpeed's file makes {found.configuration.num_gpus} ranks",
            nearest=str(found.configuration.num_gpus),
        )
    fields.stop()
    per_node = processes // machines if processes and machines and processes % machines == 0 else None
    unread = fields.unread()
    return replace(
        found,
        num_nodes=machines or found.num_nodes,
        gpus_per_node=per_node or found.gpus_per_node,
        notes=(*fields.notes, *found.notes),
        unread=(*found.unread, *unread),
    )


def _of_values(fields: Fields, known: Known, given: Fields) -> LaunchFile:
    """Return plain data parallelism with a ZeRO stage, and states on the host."""
    zero = fields.integer(f"{AT}zero_stage", _DEFAULT_STAGE)
    if not fields.has(f"{AT}zero_stage"):
        fields.note(f"zero_stage is not given: {zero} is accelerate's default")
    offload = read_offload(fields, zero, _PLACES)
    machines = fields.integer("num_machines", 1)
    processes = fields.optional("num_processes")
    precision = fields.choice("mixed_precision", "no")
    if precision in ("no", "fp8"):
        fields.fault(
            "mixed_precision", f"{precision} is not supported under DeepSpeed", allowed="bf16, fp16"
        )
    fields.slip_for(f"{AT}zero_stage")
    fields.stop()
    world = known.required("num_gpus", processes or known.num_gpus(), "num_processes")
    configuration = _deepspeed_configuration(fields, known, given, world, (zero, offload))
    fields.note("DeepSpeed's own values are the plugin's: buckets and overlap by its defaults")
    workload = Workload(
        global_batch_size=configuration.global_batch_size,
        seq_length=known.required("seq_length", None, NO_LENGTH),
        precision=precision,
    )
    return known.launch_file(
        fields, "deepspeed", known.model(), workload, configuration,
        world=world_of_machines(machines, world, known.world.idle_gpus), unread=fields.unread(),
    )  # fmt: skip


def world_of_machines(machines: int, processes: int, idle_gpus: int) -> World:
    """Return the nodes of so many processes, which are as many on each but for the last one's idle GPUs.

    Raises:
        InvalidProblemError: they are not.
    """
    each = divided(processes + idle_gpus, machines, field="num_processes", what="num_machines")
    return World(machines, each, idle_gpus=idle_gpus)


def _deepspeed_configuration(
    fields: Fields, known: Known, given: Fields, world: int, kept: tuple[int, str]
) -> Configuration:
    layers = known.model().num_layers
    (zero, offload), recompute = kept, recomputes(given, known)
    own_micro, count = given.optional(MICRO_BATCH), given.optional(ACCUMULATION)
    given.stop()
    micro = known.required(
        "micro_batch_size", own_micro, f"--{given.spelled(MICRO_BATCH)} of the training script, next to it"
    )
    own = None if fields.raw(PLUGIN_COUNT) == "auto" else fields.optional(PLUGIN_COUNT)
    if (
        own and count and own != count
    ):  # transformers stops (HfTrainerDeepSpeedConfig), accelerate takes own
        fields.fault(PLUGIN_COUNT, f"{own}, but the trainer accumulates {count}", nearest=str(count))
    count = count or own or 1
    fields.stop()
    count = known.number("num_microbatches", None, count)
    return meshed((1, 1, world, 1), (micro, count), zero, offload, num_layers=layers, recompute=recompute)


def update_of(fields: Fields, key: str = "optim") -> Options:
    """Return the option of AdamW's kernel: ``adamw_torch`` takes torch's foreach update."""
    return {"optimizer_kernel": FOREACH} if str(fields.raw(key)) == "adamw_torch" else {}


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    known = known_of(source, overrides)
    shares, given = _started(known)
    fields = Fields(shares.source.name, shares.values, overrides, ("accelerate",))
    fields.note(*shares.notes)
    if shares.kind() == "DEEPSPEED":
        return plugin_run(fields, source, overrides, given)
    found = mesh_run("accelerate", fields, known, given)
    optimizer, bucket = given.priced("optim", "adamw_torch"), given.optional(DDP_BUCKET)
    given.stop()
    adapters = known.header.adapters  # accelerate's file has no place for them
    bucketed = bucket_option(bucket, found.launcher, found.configuration)
    options = {**found.workload.framework_options, **bucketed, **update_of(given)}
    return replace(
        found, workload=replace(found.workload, optimizer=optimizer, framework_options=options, **adapters)
    )


def _started(known: Known) -> tuple[Shares, Fields]:
    """Return the file with the options of the command that takes it, and that command's arguments.

    Raises:
        InvalidProblemError: several commands that differ take it.
    """
    found = list[tuple[Shares, dict[str, LocatedValue], int]]()
    for script, before, words in starts_beside(known.source, known.overrides):
        shares = shares_of(before, script, usual=known.source)
        if shares is not None and shares.source.name == known.source.name:
            found.append((shares, dict(_given(words, _ARGUMENTS)), before[0].line))
    if not found:
        return Shares.of(known.source, values_of_file(known.source)), arguments(known)
    said = [{name: one.value for name, one in {**shares.values, **own}.items()} for shares, own, _ in found]
    if any(one != said[0] for one in said):
        raise given_to_several(known.source.name, [line for _, _, line in found])
    shares, own, _ = found[0]
    return shares, Fields("the command", own, programs=("transformers",))


ACCELERATE_READER = Reader(name="accelerate", recognises=is_accelerates, read=_read)


def mesh_run(
    launcher: str,
    fields: Fields,
    known: Known,
    given: Fields,
    *,
    seq_length: int | None = None,
    precision: str | None = None,
) -> LaunchFile:
    """Return the run of FSDP2 with its mesh, or of plain replicas.

    Args:
        launcher: launcher of the run.
        fields: accelerate's file.
        known: values given next to it.
        given: the trainer's batch and checkpointing.
        seq_length: tokens per sequence, if the trainer sets it.
        precision: compute type, if the trainer sets it; otherwise accelerate's own.

    Raises:
        InvalidProblemError: a value cannot be read, contradicts another, or is missing.
    """
    kind = fields.choice(ENGINE, "NO")
    fields.take_section("deepspeed_config")
    if kind != "FSDP":
        fields.take_section("fsdp_config")
    for name in (ENGINE, "num_processes", "mixed_precision"):
        fields.slip_for(name)
    require_own_names(fields)
    require_address(fields, known)
    require_same_machines(fields, known)
    fields.stop()
    model = known.model()
    if kind == "NO" and fields.integer("num_processes", 1) > 1:
        fields.note("distributed_type NO starts one process, whatever num_processes is")
    configuration = _configuration(fields, known, model, given, kind)
    precision = precision or _precision(fields)
    options = _as_compiled(fields, given, launcher)
    _note_readers(fields)
    fields.stop()
    workload = Workload(
        global_batch_size=configuration.global_batch_size,
        seq_length=known.required("seq_length", seq_length, NO_LENGTH),
        precision=precision,
        framework_options=options,
    )
    return known.launch_file(
        fields, launcher, model, workload, configuration, unread=_unread(fields),
        world=world_of_machines(
            fields.integer("num_machines", 1), configuration.num_gpus, known.world.idle_gpus
        ),
    )  # fmt: skip


def _note_readers(fields: Fields) -> None:
    """Note a switch that makes every rank read the whole model, where predictions count one of a node."""
    for name in ("fsdp_cpu_ram_efficient_loading", "fsdp_config.fsdp_cpu_ram_efficient_loading"):
        if str(fields.raw(name)).lower() == "false":
            fields.note(
                f"{name} is false: every rank of a node reads all weights into host memory, not one"
            )


def _as_compiled(fields: Fields, given: Fields, launcher: str) -> Options:
    """Return the options of an uncompiled run if the launcher's plans are compiled; none otherwise."""
    known = (*flags_of("accelerate")["dynamo_backend"].choices, "false")  # YAML's ``no``
    backends = (fields.word(_COMPILED, "no", allowed=known), str(given.raw("torch_compile") or "no"))
    compiled = any(word.lower() not in _NOTHING_FUSED for word in backends)
    fused = framework_facts(framework_of(launcher)).elementwise_fused
    if compiled and not fused:
        return dict(COMPILED)
    if compiled or not fused:
        return {}
    fields.note("no dynamo_backend is named: nothing is compiled, operators run one by one")
    return {"elementwise_fused": False, "norm_fused": False, "separate_projections": True}


_NOTHING_FUSED = ("no", "false", "eager", "aot_eager", "cudagraphs")  # torch 2.13, _dynamo/backends
COMPILED: Options = {"elementwise_fused": True, "norm_fused": True}


def _unread(fields: Fields) -> tuple[str, ...]:
    """Return unread names; refuse a mesh size that accelerate does not have."""
    found = fields.unread()
    for name in found:
        if name.startswith(MESH) and name.endswith("_size"):
            fields.fault(
                name,
                "is not a size of accelerate's mesh (accelerate would not report it)",
                allowed="dp_replicate, dp_shard, cp, sp, tp",
            )
    fields.stop()
    return found


def _configuration(
    fields: Fields, known: Known, model: ModelSpec, given: Fields, kind: str
) -> Configuration:
    """Return the mesh, plain replicas or one process (``simple_launcher`` of accelerate's launch.py)."""
    sharded = kind == "FSDP"
    started = 1 if kind == "NO" else fields.optional("num_processes")
    if started is None:
        fields.stop()
    world = started or known.required("num_gpus", None, "num_processes")
    tp, cp, shard, replicas = _mesh(fields, world, sharded=sharded)
    hybrid = _hybrid(fields, known, world) if sharded else None
    shard, replicas = hybrid or (shard, replicas)
    names = {"micro_batch_size": MICRO_BATCH, "num_microbatches": ACCUMULATION}
    stated = {name: given.optional(key) for name, key in names.items()}
    given.stop()
    micro, count = (
        known.required(name, stated[name], f"--{given.spelled(key)} of the training script, next to it")
        for name, key in names.items()
    )
    zero = _zero(fields) if sharded else 0
    again = str(given.raw(CHECKPOINTING)).lower() in ("true", "1")
    recompute = checkpoints(fields, f"{FSDP}fsdp_activation_checkpointing", beside=again)
    recompute = recompute or recomputes(given, known)
    offload = _offload(fields, zero) if sharded else "none"
    fields.stop()
    mesh, layers = (tp, cp, shard, replicas), model.num_layers
    return meshed(mesh, (micro, count), zero, offload, num_layers=layers, recompute=recompute)


def meshed(
    mesh: tuple[int, int, int, int],
    batch: tuple[int, int],
    zero: int,
    offload: str,
    *,
    num_layers: int,
    recompute: bool,
) -> Configuration:
    """Return a configuration without stages, on a mesh of tensor ranks, rings, shards and replicas.

    ``batch``: size and number of the micro-batches.
    """
    tp, cp, shard, replicas = mesh
    return Configuration(
        tensor_parallel_size=tp,
        context_parallel_size=cp,
        data_parallel_size=replicas * shard,
        zero_stage=zero,
        zero_shard_size=shard * cp if zero else 1,
        recompute_granularity="full" if recompute else "none",
        micro_batch_size=batch[0],
        num_microbatches=batch[1],
        recompute_layers=num_layers if recompute else 0,
        offload=offload,
        stage_layers=(num_layers,),
    )


def _mesh(fields: Fields, world: int, *, sharded: bool) -> tuple[int, int, int, int]:
    """Return tensor ranks, rings, shards and replicas of the mesh; without one, FSDP shards over all."""
    tp, cp = (fields.integer(f"{MESH}{name}_size") for name in ("tp", "cp"))
    fields.refuse_unpriced()
    replicas = fields.optional(f"{MESH}dp_replicate_size")
    shard = fields.optional(f"{MESH}dp_shard_size")
    for name in ("tp", "cp", "dp_replicate", "dp_shard"):
        fields.slip_for(f"{MESH}{name}_size")
    fields.stop()
    if not sharded:
        if tp * cp > 1:
            fields.fault(
                f"{MESH}{'tp' if tp > 1 else 'cp'}_size", "plain replicas have no mesh", allowed="1"
            )
        return 1, 1, 1, world
    if replicas is None and shard is None:
        return tp, cp, divided(world, tp * cp, field="num_processes", what="tp × cp"), 1
    shard, replicas = shard or 1, replicas or 1
    if tp > 1 and replicas > 1 and shard == 1:
        fields.fault(
            f"{MESH}tp_size",
            "accelerate refuses tensor ranks together with plain replicas",
            allowed="1, or dp_shard_size 2 and more",
            nearest="1",
        )
    if tp * cp * shard * replicas != world:
        fields.fault(
            "num_processes",
            f"{world}, but the mesh has replicate {replicas} × shard {shard} × cp {cp} × tp {tp} ranks: "
            "accelerate stops",
            nearest=str(tp * cp * shard * replicas),
        )
    return tp, cp, shard, replicas


_HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")
_STRATEGY, _VERSION = f"{FSDP}fsdp_sharding_strategy", f"{FSDP}fsdp_version"
_RESHARDS = f"{FSDP}fsdp_reshard_after_forward"


def _zero(fields: Fields) -> int:
    """Return FSDP2's ZeRO stage: 3 if weights are resharded after the forward pass, else 2."""
    fields.choice(f"{FSDP}fsdp_auto_wrap_policy")
    if fields.integer(_VERSION, 1) == 1:
        fields.note("fsdp_version is 1: FSDP1 is predicted as FSDP2")
        fields.take(_RESHARDS)  # FSDP1 has its strategy (accelerate 1.15, utils/dataclasses.py:1845)
        return int(fields.priced(_STRATEGY))
    return 3 if fields.flag(_RESHARDS, default=True) else 2


def _hybrid(fields: Fields, known: Known, world: int) -> tuple[int, int] | None:
    """Return shards and replicas of FSDP1's hybrid strategies (a node shards, nodes replicate), or None."""
    if fields.integer(_VERSION, 1) != 1 or fields.choice(_STRATEGY) not in _HYBRID:
        return None
    machines = fields.optional("num_machines") or known.world.num_nodes
    if machines is None:
        fields.fault(
            _STRATEGY,
            "a node's GPUs shard, nodes replicate: how many there are is not said",
            allowed="num_machines, or --num_machines of the command",
        )
        fields.stop()
    return divided(world, machines or 1, field="num_processes", what="num_machines"), machines or 1


def _offload(fields: Fields, zero: int) -> str:
    name = f"{FSDP}fsdp_offload_params"
    away = fields.flag(name)
    if away and zero != 3:  # noqa: PLR2004 - ZeRO-3
        fields.fault(name, "weights on the host are priced where they are resharded", allowed="false")
    return "optimizer+parameters" if away else "none"


def _precision(fields: Fields) -> str:
    precision = fields.choice("mixed_precision", "no")
    fields.stop()
    if precision == "no":
        fields.fault("mixed_precision", "training in fp32 is not supported", allowed="bf16, fp16")
    return precision
