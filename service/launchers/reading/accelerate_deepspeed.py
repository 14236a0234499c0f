"""accelerate's DeepSpeed plugin: DeepSpeed's own file, or the few values that accelerate hands on.

Keys and defaults: accelerate 1.15.0, utils/dataclasses.py (DeepSpeedPlugin), commands/launch.py.
"""

from __future__ import annotations

from dataclasses import replace

from service.launchers.reading.accelerate_script import (
    ACCUMULATION,
    IRRELEVANT,
    MICRO_BATCH,
    NO_LENGTH,
    arguments,
    number,
    recomputes,
    require_address,
)
from service.launchers.reading.base import LaunchFile, Source, Told
from service.launchers.reading.deepspeed import DeepSpeedReader
from service.launchers.reading.fields import Fields
from service.launchers.reading.known import Known, known_of
from service.launchers.reading.split import divided
from solver.plan import Configuration
from solver.problem import Workload

_AT = "deepspeed_config."
_FILE = f"{_AT}deepspeed_config_file"
_DEVICES = ("none", "cpu", "nvme")
_MAX_STAGE, _DEFAULT_STAGE = 3, 2
# What accelerate refuses beside a file of DeepSpeed's, because that file says it.
_OF_THE_FILE = (
    f"{_AT}gradient_accumulation_steps", f"{_AT}gradient_clipping", f"{_AT}zero_stage",
    f"{_AT}offload_optimizer_device", f"{_AT}offload_param_device", f"{_AT}zero3_save_16bit_model",
    "mixed_precision",
)  # fmt: skip
_IRRELEVANT = (
    *IRRELEVANT, f"{_AT}zero3_", f"{_AT}gradient_clipping", f"{_AT}deepspeed_multinode",
    f"{_AT}deepspeed_hostfile", f"{_AT}deepspeed_moe", f"{_AT}deepspeed_inc", f"{_AT}deepspeed_exc",
)  # fmt: skip


def plugin_run(fields: Fields, source: Source, told: Told) -> LaunchFile:
    """The run of a file whose ``distributed_type`` is DEEPSPEED.

    Raises:
        InvalidProblemError: what cannot be read, contradicts itself, or is said nowhere.
    """
    known = known_of(source, told)
    require_address(fields, known, arguments(known))
    fields.stop()
    if fields.has(_FILE):
        return _of_its_file(fields, source, told)
    return _of_values(fields, known)


def _of_its_file(fields: Fields, source: Source, told: Told) -> LaunchFile:
    """Everything stands in DeepSpeed's own file, of the same folder."""
    for key in _OF_THE_FILE:
        if fields.has(key):
            fields.fault(key, f"contradicts {_FILE}: accelerate takes one of them")
    name = fields.word(_FILE)
    text = source.other(name) if name else None
    if text is None:
        fields.fault(_FILE, f'"{name[:64]}" is not beside the file; give it too')
    machines, processes = fields.optional("num_machines"), fields.optional("num_processes")
    fields.stop()
    base = name.rsplit("/", 1)[-1]
    files = {**source.files, base: text or ""}
    other = Source(name=base, text=text or "", files=files, include=source.include)
    found = DeepSpeedReader().read(other, replace(told, num_gpus=processes or told.num_gpus))
    if processes and found.configuration.num_gpus != processes:
        fields.fault(
            "num_processes",
            f"{processes}, but DeepSpeed's file makes {found.configuration.num_gpus} ranks",
            nearest=str(found.configuration.num_gpus),
        )
        fields.stop()
    per_node = processes // machines if processes and machines and processes % machines == 0 else None
    unread = fields.unread(_IRRELEVANT)
    return replace(
        found,
        num_nodes=machines or found.num_nodes,
        gpus_per_node=per_node or found.gpus_per_node,
        unread=(*found.unread, *unread),
    )


def _of_values(fields: Fields, known: Known) -> LaunchFile:
    """Plain data parallelism with a ZeRO stage, and states on the host."""
    zero, offload = _zero(fields), _offload(fields)
    machines = fields.integer("num_machines", 1)
    processes = fields.optional("num_processes")
    precision = fields.word("mixed_precision", "no", allowed=("no", "bf16", "fp16", "fp8"))
    if precision in ("no", "fp8"):
        fields.fault("mixed_precision", f"{precision} is not priced under DeepSpeed", allowed="bf16, fp16")
    fields.slip_for(f"{_AT}zero_stage")
    fields.stop()
    world = known.required("num_gpus", processes or known.num_gpus(), "num_processes")
    configuration = _configuration(fields, known, world, (zero, offload))
    fields.note("DeepSpeed's own values are the plugin's: buckets and overlap by its defaults")
    return LaunchFile(
        launcher=DeepSpeedReader.name,
        model=known.model(),
        workload=Workload(
            global_batch_size=configuration.global_batch_size,
            seq_length=known.required("seq_length", None, NO_LENGTH),
            precision=precision,
        ),
        configuration=configuration,
        num_nodes=machines,
        gpus_per_node=divided(world, machines, field="num_processes", what="num_machines"),
        notes=tuple(fields.notes),
        unread=fields.unread(_IRRELEVANT),
    )


def _configuration(fields: Fields, known: Known, world: int, kept: tuple[int, str]) -> Configuration:
    """Every process is a replica; the batch is the training script's."""
    given, layers = arguments(known), known.model().num_layers
    (zero, offload), recompute = kept, recomputes(given, known)
    micro = known.required(
        "micro_batch_size", number(given, MICRO_BATCH), f"--{MICRO_BATCH} of the training script, beside it"
    )
    count = number(given, ACCUMULATION) or fields.integer(f"{_AT}gradient_accumulation_steps", 1)
    fields.stop()
    zero = zero if world > 1 else 0
    return Configuration(
        data_parallel_size=world,
        zero_stage=zero,
        zero_shard_size=world if zero else 1,
        micro_batch_size=micro,
        num_microbatches=known.number("num_microbatches", None, count),
        recompute_granularity="full" if recompute else "none",
        recompute_layers=layers if recompute else 0,
        offload=offload,
        stage_layers=(layers,),
    )


def _zero(fields: Fields) -> int:
    """The ZeRO stage; accelerate takes any number, and 2 where none is given."""
    name = f"{_AT}zero_stage"
    stage = fields.integer(name, _DEFAULT_STAGE, low=0)
    if stage > _MAX_STAGE:
        fields.fault(
            name, f"there is no stage {stage}; accelerate would not notice", allowed="0 to 3", nearest="3"
        )
    elif not fields.has(name):
        fields.note(f"zero_stage is not given: {_DEFAULT_STAGE} is accelerate's default")
    return min(stage, _MAX_STAGE)


def _offload(fields: Fields) -> str:
    """What lies in host memory."""
    names = (f"{_AT}offload_optimizer_device", f"{_AT}offload_param_device")
    optimizer, weights = (fields.word(name, "none", allowed=_DEVICES) for name in names)
    for name, device in zip(names, (optimizer, weights), strict=True):
        if device == "nvme" or (device != "none" and name == names[1]):
            fields.fault(name, "weights on the host, and NVMe, are not priced", allowed="none")
    return "none" if optimizer == "none" else "optimizer"
