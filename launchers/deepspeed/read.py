"""Reader of DeepSpeed's JSON, with values that are set in code: supplied, or in the exported module.

Keys: DeepSpeed 0.19.8, runtime/config.py, runtime/constants.py, runtime/zero/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from meshwright.launchers.deepspeed.export import BUCKET_ELEMENT_BYTES, CODE_FILE, OFFLOADED
from meshwright.launchers.flags import flag_names
from meshwright.launchers.reading.base import LaunchFile, Options, Overrides, Reader, Source
from meshwright.launchers.reading.documents import document_of, names_held
from meshwright.launchers.reading.fields import Fields, divided, first_larger, passing
from meshwright.launchers.reading.known import Known, known_of
from meshwright.launchers.reading.python_values import constants_of
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import OPTION_NUMBERS, framework_facts
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import WITHOUT_COPY
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.memory import SWAPPED_GROUP
from meshwright.solver.cost.step_end import UPDATE_GROUPS
from meshwright.solver.problem import Workload

_BATCH, _MICRO, _COUNT = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
)  # fmt: skip
_TRAINERS = "per_device_train_batch_size"  # the JSON may hold its arguments, too
_OWN = (_BATCH, _MICRO, _COUNT, "zero_optimization.stage", "zero_optimization")
_MAX_STAGE_WITH_PIPELINE = 1
_SHARDED_WEIGHTS, _SHARDED_GRADIENTS = 3, 2
_PLACES = {
    part: (f"zero_optimization.{key}.device", f"zero_optimization.{key}.nvme_path")
    for part, key in OFFLOADED.items()
}
_BUCKET = "zero_optimization.reduce_bucket_size"
_RATIO = "zero_optimization.offload_optimizer.ratio"
_GROUP = "zero_optimization.sub_group_size"
_SUPER = "zero_optimization.offload_optimizer.super_offload"
_ZENFLOW = "zero_optimization.zenflow"
# Sections of classes that forbid other keys (runtime/config_utils.py:110), except with the value auto
_STRICT = (
    "zero_optimization", "bf16", "fp16", "tensor_parallel", "tensorboard", "wandb", "csv_monitor",
    "comms_logger",
)  # fmt: skip
_LEAST_SHARE = OPTION_NUMBERS["optimizer_offload_fraction"][0]
_OFF = 0.051  # by which whole groups may miss a ratio before a note states it: one of 20
_NEAR = "zero_optimization.zero_hpz_partition_size"


@dataclass(slots=True, kw_only=True)
class _Code:
    """The values that code passes to DeepSpeed, as far as known."""

    pipeline: int
    tensor: int
    experts: int
    recompute: bool
    seq_length: int | None
    world: int | None


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    document = document_of(source, by_deepspeed=True)
    fields = Fields(source.name, document, overrides, ("deepspeed",))
    known = known_of(source, overrides)
    fields.refuse_unpriced()
    section = fields.raw("zero_optimization")
    # a Boolean is the oldest form (zero/config.py, read_zero_config_deprecated)
    zero = int(section) if isinstance(section, bool) else fields.integer("zero_optimization.stage")
    precision = _precision(fields, known)
    offload = read_offload(fields, zero)
    options = _options(fields, precision, zero)
    stated = fields.has("optimizer.type")
    optimizer = fields.priced("optimizer.type") if stated else known.word("optimizer", "adamw")
    optimizer = _without_copy(fields, optimizer, (zero, offload))
    _require_autocast_of(fields, precision)
    model = _model(fields, known)
    options |= _bucket(fields, model, zero)
    code = _code(fields, known)
    configuration = _configuration(fields, known, model, code, (zero, offload))
    options |= _zero_plus_plus(fields, zero, configuration.data_parallel_size)
    group = _group_size(fields)
    options |= _share_offloaded(fields, model, configuration, group)
    options |= _hidden_update(fields, model, configuration, group)
    if zero == _SHARDED_WEIGHTS and group != framework_facts("deepspeed").sub_group_size:
        if "optimizer" not in offload:
            options |= {"sub_group_size": group}
        elif group != SWAPPED_GROUP:
            fields.note(f"sub_group_size {group:g} is predicted as {SWAPPED_GROUP}: states are away")
    for name in fields.unread():
        strict = name.partition(".")[0] in _STRICT and fields.peek(name) != "auto"
        if strict and name not in flag_names("deepspeed"):
            why = "is not a key of its section, and DeepSpeed 0.19.8 stops there"
            fields.fault(name, why, allowed=passing(name))
    fields.stop()
    where = f"SEQ_LENGTH of {CODE_FILE}, or --seq-length"
    workload = Workload(
        global_batch_size=configuration.global_batch_size,
        seq_length=known.required("seq_length", code.seq_length, where),
        precision=precision,
        optimizer=optimizer,
        framework_options=options,
    )
    return known.launch_file(fields, "deepspeed", model, workload, configuration)


def _model(fields: Fields, known: Known) -> ModelSpec:
    """Return the model; without one, that is a fault next to those of the file.

    Raises:
        InvalidProblemError: there are faults.
    """
    try:
        model = known.model()
    except InvalidProblemError as fault:
        raise InvalidProblemError([*fields.faults, *fault.errors]) from None
    fields.stop()
    return model


DEEPSPEED_READER = Reader(
    name="deepspeed",
    recognises=lambda source: (
        names_held(source, _OWN, (".json",)) > 0 and not names_held(source, (_TRAINERS,), (".json",))
    ),
    read=_read,
)


def _precision(fields: Fields, known: Known) -> str:
    """Return the enabled precision; the trainer's arguments or a supplied value replace ``auto``."""
    automatic = [name for name in ("bf16", "fp16") if fields.raw(f"{name}.enabled") == "auto"]
    other = {"bf16": "fp16", "fp16": "bf16"}.get(automatic[0] if len(automatic) == 1 else "")
    if other and fields.flag(f"{other}.enabled"):
        return other
    if automatic:
        word = known.word("precision", "bf16")
        fields.note(f"{automatic[0]}.enabled is auto: {word} is taken (--set precision=…)")
        return word if word in ("bf16", "fp16", "fp32") else "bf16"
    own, older = fields.flag("bf16.enabled"), fields.flag("bfloat16.enabled")
    bf16 = own or older
    fp16 = fields.raw("fp16.enabled") not in ("auto", None) and fields.flag("fp16.enabled")
    if bf16 and fp16:
        fields.fault("fp16.enabled", "contradicts bf16.enabled: DeepSpeed takes one of them")
    if not bf16 and not fp16:
        fields.note("neither bf16 nor fp16 is enabled: weights, products and gradients are fp32")
    return "bf16" if bf16 else "fp16" if fp16 else "fp32"


_MASTERS, _STATES = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"


def _without_copy(fields: Fields, optimizer: str, kept: tuple[int, str]) -> str:
    """Return the optimizer; with both switches of the ``bf16`` section, the same over bf16 shards alone.

    DeepSpeed 0.19.8 ``stage3.py:1162``: shards of the masters' dtype are the masters. The moments take
    their dtype, and fp32 ones must be on the host (``base_optimizer.py:510``).
    """
    masters, states = fields.flag(_MASTERS), fields.flag(_STATES)
    if not masters and not states:
        return optimizer
    if not masters:
        fields.fault(_STATES, f"DeepSpeed stops: it needs {_MASTERS}", allowed="false", nearest="false")
    elif kept != (_SHARDED_WEIGHTS, "none") or not states or optimizer != "adamw":
        fields.fault(
            _MASTERS,
            "masters in bf16 are priced under stage 3 with AdamW's states in bf16 on the GPU",
            allowed=f"false, or {_STATES} with stage 3 and no offloading",
            nearest="false",
        )
    return WITHOUT_COPY.get(optimizer, optimizer)


_AUTOCASTS, _CAST_TO = "torch_autocast.enabled", "torch_autocast.dtype"


def _require_autocast_of(fields: Fields, precision: str) -> None:
    """Refuse autocast, except to bf16 over weights in bf16: it casts none.

    DeepSpeed 0.19.8 ``torch_autocast.py``: it wraps the passes alone, and reduces in the weights' dtype.
    """
    if not fields.flag(_AUTOCASTS):
        return
    to = str(fields.raw(_CAST_TO) or "").removeprefix("torch.")
    if precision != "bf16":
        fields.fault(_AUTOCASTS, f"is not supported over weights in {precision}", allowed="false, or bf16")
    elif to not in ("bfloat16", "bf16"):  # none: torch's default, fp16
        fields.fault(_CAST_TO, "is not supported over weights in bf16", allowed="bfloat16")
    fields.note("torch_autocast to bf16 finds weights in bf16 and casts none")


# Deprecated switches of the device (zero/config.py; cpu_offload_params: 0.3.13, zero/constants.py)
_OLDER_OFFLOADS = {
    "zero_optimization.cpu_offload": "optimizer",
    "zero_optimization.cpu_offload_param": "parameters",
    "zero_optimization.cpu_offload_params": "parameters",
}


def read_offload(fields: Fields, zero: int, places: Mapping[str, tuple[str, str]] = _PLACES) -> str:
    """Return the parts in host memory or on drives, by ``offload_config.py`` and each stage's optimizer.

    ``places``: for each part the fields of its device and of the folder on the drive.
    """
    devices = {part: fields.choice(device, "none") for part, (device, _) in places.items()}
    switches = {part: device for part, (device, _) in places.items()}
    for name, part in _OLDER_OFFLOADS.items():
        if fields.flag(name):
            devices[part], switches[part] = "cpu", name
        newer = places[part][0]
        if fields.has(name) and fields.has(newer):  # config_utils.py, _process_deprecated_field
            fields.fault(
                name, f"DeepSpeed takes it or its newer name, {newer}, not both", allowed="one of them"
            )
    sharded = zero == _SHARDED_WEIGHTS
    if devices["parameters"] != "none" and not sharded:  # engine.py passes it to stage 3 only
        fields.note(f"stage {zero} shards no weights: {switches['parameters']} does nothing")
        devices["parameters"] = "none"
    found = devices["optimizer"], devices["parameters"]
    wrong = {  # part: the fault of its device, and the allowed devices
        "optimizer": [
            (found[0] == "nvme" and not sharded, f"stage {zero} keeps no states on drives", "none, cpu"),
            (found[0] != "none" and not zero, "stage 0 shards no states: DeepSpeed ignores it", "none"),
        ],
        "parameters": [
            (found[1] == "nvme" and found[0] == "none",
             "weights on drives, optimizer states on the GPU: not supported",
             "none, cpu, or the optimizer away too"),
        ],
    }  # fmt: skip
    for part, faults in wrong.items():
        path = places[part][1]
        for _, message, others in (one for one in faults if one[0]):
            allowed = "false" if switches[part] in _OLDER_OFFLOADS else others
            fields.fault(
                switches[part], message, allowed=allowed, nearest=allowed.split(",", maxsplit=1)[0]
            )
        if devices[part] == "nvme" and fields.raw(path) is None:
            fields.fault(path, f"is missing next to device nvme: DeepSpeed keeps {part} in files there")
    words = [part + "@nvme" * (device == "nvme") for part, device in devices.items() if device != "none"]
    return "+".join(words) or "none"


def _options(fields: Fields, precision: str, zero: int) -> Options:
    """Return the options in which the file differs from the catalog's DeepSpeed."""
    known = framework_facts("deepspeed")
    options: Options = {}
    gradients = fields.priced("communication_data_type", precision)
    if gradients not in (known.gradient_dtype, precision):
        options["gradient_dtype"] = gradients
    overlap = fields.flag("zero_optimization.overlap_comm", default=zero == _SHARDED_WEIGHTS)
    if zero and not fields.has("zero_optimization.overlap_comm"):
        does = "overlaps" if zero == _SHARDED_WEIGHTS else "does not overlap"
        fields.note(f"overlap_comm is not given: stage {zero} {does} its collectives")
    elif zero and overlap != (zero == _SHARDED_WEIGHTS):
        fields.note(f"overlap_comm {str(overlap).lower()} is predicted as stage {zero}'s default")
    return options


def _bucket(fields: Fields, model: ModelSpec, zero: int) -> Options:
    """Return the size of the buffer for reductions if it is not DeepSpeed's own.

    ``auto`` is transformers' (integrations/deepspeed.py, ``trainer_config_finalize``).
    """
    usual = framework_facts("deepspeed").bucket_bytes
    automatic = fields.raw(_BUCKET) == "auto"
    size = model.hidden_size**2 if automatic else fields.number(_BUCKET, usual / BUCKET_ELEMENT_BYTES)
    if size < 1 or size != int(size):
        fields.fault(_BUCKET, "is not a whole number above 0", allowed="1 or more")
    return (
        {"bucket_bytes": float(BUCKET_ELEMENT_BYTES * size)}
        if zero and BUCKET_ELEMENT_BYTES * size != usual
        else {}
    )


def _zero_plus_plus(fields: Fields, zero: int, ranks: int) -> Options:
    """Return the options of ZeRO++ that are on; DeepSpeed reads them only under stage 3."""
    size = fields.optional(_NEAR, low=0) or 1
    weights, gradients = (
        fields.flag(f"zero_optimization.zero_quantized_{part}") for part in ("weights", "gradients")
    )
    if zero != _SHARDED_WEIGHTS:
        return {}
    if ranks % min(size, ranks):  # utils/groups.py _create_zero_param_parallel_group
        fields.fault(
            _NEAR,
            f"{size} does not divide {ranks} ranks",
            nearest=str(max(one for one in range(1, size) if ranks % one == 0)),
        )
    found = {
        "secondary_shard_size": float(size) if size > 1 else 0.0,
        "quantized_gathers": weights,
        "quantized_reductions": gradients,
    }
    return {name: value for name, value in found.items() if value}


def _group_size(fields: Fields) -> float:
    """Return the weights that stage 3 updates together: those of one tensor at least."""
    usual = framework_facts("deepspeed").sub_group_size
    group = usual if fields.raw(_GROUP) == "auto" else fields.number(_GROUP, usual)
    if group < 0 or group != int(group):  # zero/config.py: int, ge=0
        fields.fault(
            _GROUP, "is not a whole number", allowed="0 or more", nearest=f"{max(round(group), 0)}"
        )
    return max(group, 1.0)


def _share_offloaded(
    fields: Fields, model: ModelSpec, configuration: Configuration, group: float
) -> Options:
    """Return the share of the states that the CPU updates: of whole groups of a shard's weights.

    Of n groups the first ``int((1 - ratio) n)`` stay on the GPU (stage3.py:1055).
    """
    ratio = fields.number(_RATIO, 1.0)
    if ratio == 1.0 or "optimizer" not in configuration.offload:
        return {}
    if configuration.zero_stage != _SHARDED_WEIGHTS:
        fields.fault(_RATIO, "DeepSpeed offloads a share of the states only under stage 3", allowed="1.0")
        return {}
    groups = ceil(model.num_parameters() / configuration.zero_shard_size / group)
    share = 1.0 - int((1.0 - ratio) * groups) / groups
    if abs(share - ratio) > _OFF:
        fields.note(
            f"offload_optimizer.ratio {ratio:g}: a rank has {groups} groups of sub_group_size, so that the "
            f"CPU updates {share:.0%} of its weights"
        )
    else:
        share = ratio
    if share < _LEAST_SHARE:
        fields.fault(
            _RATIO,
            "leaves all states on the GPU; remove offload_optimizer",
            allowed="0.01 to 1",
        )
    return {"optimizer_offload_fraction": share} if share < 1.0 else {}


def _hidden_update(fields: Fields, model: ModelSpec, configuration: Configuration, group: float) -> Options:
    """Return the options of SuperOffload, which stage 3 alone reads, and of ZenFlow."""
    found: Options = {}
    asked = fields.flag(_SUPER)
    if asked and configuration.zero_stage != _SHARDED_WEIGHTS:
        fields.fault(_SUPER, "DeepSpeed reads it only under stage 3", allowed="false", nearest="false")
    elif asked and configuration.offload != "optimizer":
        fields.fault(
            _SUPER, "is priced with the optimizer alone in host memory", allowed="false", nearest="false"
        )
    elif asked:
        automatic = fields.raw("gradient_clipping") == "auto"  # max_grad_norm of the trainer, 1.0
        clipped = automatic or fields.number("gradient_clipping", 0.0) > 0.0
        groups = ceil(model.num_parameters() / configuration.zero_shard_size / group)
        if clipped or groups == 1:
            cause = "gradient_clipping is on" if clipped else "a rank has one group of sub_group_size"
            fields.note(f"super_offload: {cause}, so DeepSpeed updates after the backward pass")
        else:
            found["super_offload"] = True
            # a group ends with the tensor that fills it (stage3.py _create_fp16_sub_groups)
            each = group < model.hidden_size**2 / configuration.zero_shard_size
            count = "a group for every matrix" if each else f"{groups} groups of sub_group_size"
            if groups != UPDATE_GROUPS:
                fields.note(f"super_offload: {count}, priced as {UPDATE_GROUPS} groups")
    if fields.has_section(_ZENFLOW) or fields.has(_ZENFLOW):
        found |= _zenflow(fields, configuration)
    return found


def _zenflow(fields: Fields, configuration: Configuration) -> Options:
    interval, overlap = f"{_ZENFLOW}.update_interval", f"{_ZENFLOW}.overlap_step"
    if configuration.zero_stage != _SHARDED_GRADIENTS or configuration.offload != "optimizer":
        fields.fault(
            _ZENFLOW, "is priced only under stage 2 with the optimizer in host memory", allowed="stage 2"
        )
    if configuration.num_microbatches > 1:
        fields.fault("gradient_accumulation_steps", "ZenFlow replaces it by update_interval", nearest="1")
    if not fields.flag(overlap):
        fields.fault(
            overlap, "updates that steps wait for are not supported", allowed="true", nearest="true"
        )
    if fields.raw(interval) in (None, "auto"):
        fields.fault(interval, "auto depends on the gradients", allowed="2 to 1000", nearest="4")
        return {}
    steps, share = fields.number(interval, 4.0), fields.number(f"{_ZENFLOW}.topk_ratio", 0.1)
    most = OPTION_NUMBERS["cpu_update_interval"][1]
    if steps != int(steps) or not 1 < steps <= most:
        fields.fault(
            interval,
            f"{steps:g} is not an interval that is priced",
            allowed=f"whole numbers from 2 to {most:g}",
            nearest=f"{min(max(round(steps), 2), most):g}",
        )
    return {"cpu_update_interval": steps, "selected_gradient_share": share}


def _code(fields: Fields, known: Known) -> _Code:
    text = known.source.other(CODE_FILE) if CODE_FILE in known.source.files else None
    constants = constants_of(CODE_FILE, text) if text is not None else {}
    topology, experts = (_table(constants.get(name)) for name in ("TOPOLOGY", "EXPERTS"))
    tensor = fields.optional("tensor_parallel.autotp_size", low=0) or topology.get("num_mp")
    recompute = constants.get("RECOMPUTE_EVERY_LAYER")
    supplied = known.word("recompute_granularity", "")
    if not isinstance(recompute, bool) and not supplied:
        fields.note("activation recomputation lives in code: none is assumed (--set recompute=full)")
    return _Code(
        pipeline=known.number("pipeline_parallel_size", topology.get("num_pp"), 1),
        tensor=known.number("tensor_parallel_size", tensor, 1),
        experts=known.number("expert_parallel_size", experts.get("ep_size"), 1),
        recompute=recompute if isinstance(recompute, bool) else supplied == "full",
        seq_length=_integer(constants.get("SEQ_LENGTH")),
        world=_integer(constants.get("WORLD_SIZE")),
    )


def _configuration(
    fields: Fields, known: Known, model: ModelSpec, code: _Code, kept: tuple[int, str]
) -> Configuration:
    zero, offload = kept
    if zero > _MAX_STAGE_WITH_PIPELINE and code.pipeline > 1:
        fields.fault(
            "zero_optimization.stage",
            f"{zero} next to {code.pipeline} pipeline stages: PipelineEngine refuses it when it starts",
            allowed="0, 1",
            nearest="1",
        )
        fields.stop()
    dp, micro, count = _batch(fields, known, code.pipeline * code.tensor, code.world)
    split = first_larger(model.num_layers, code.pipeline, field="pipeline_parallel_size")
    if len(set(split)) > 1:
        fields.note("partition_method type:… is assumed: the first stages hold one layer more")
    return Configuration(
        tensor_parallel_size=code.tensor,
        pipeline_parallel_size=code.pipeline,
        expert_parallel_size=code.experts,
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=dp if zero else 1,
        micro_batch_size=micro,
        num_microbatches=count,
        pipeline_schedule="none" if code.pipeline == 1 else "1f1b",
        recompute_granularity="full" if code.recompute else "none",
        recompute_layers=sum(split) if code.recompute else 0,
        offload=offload,
        stage_layers=split,
    )


def _batch(fields: Fields, known: Known, model_gpus: int, world: int | None) -> tuple[int, int, int]:
    """Return replicas, micro-batch and accumulation; train_batch_size is their product.

    DeepSpeed itself fills in missing parts by floor division; here they must be whole.
    """
    batch, micro, count = (_sized(fields, name) for name in (_BATCH, _MICRO, _COUNT))
    micro = known.value("micro_batch_size", micro)
    count = known.value("num_microbatches", count)
    gpus = world or known.num_gpus()
    if batch and micro and count and gpus is None:
        dp = divided(batch, micro * count, field=_BATCH, what="micro-batch × accumulation")
        return dp, micro, count
    gpus = gpus or known.required("num_gpus", None, "train_batch_size with both others, or --num-nodes")
    dp = divided(gpus, model_gpus, field="pipeline_parallel_size", what=f"pp × tp of {gpus} GPUs")
    if batch is None and not (micro and count):
        batch = known.required("global_batch_size", None, f"{_BATCH} in {fields.file}")
    if not micro and not count:
        count = 1  # as in DeepSpeed: micro-batch = batch / replicas
    if not micro:
        micro = divided(batch or 1, dp * (count or 1), field=_BATCH, what="accumulation × dp")
    if not count:
        count = divided(batch or 1, dp * micro, field=_BATCH, what="micro-batch × dp")
    if batch is not None and batch != dp * micro * count:
        fields.fault(_BATCH, f"{batch} is not micro-batch {micro} × accumulation {count} × dp {dp}",
                     nearest=str(dp * micro * count))  # fmt: skip
    return dp, micro, count


def _sized(fields: Fields, name: str) -> int | None:
    """Return a part of the batch; ``auto`` leaves it to transformers' arguments."""
    if fields.raw(name) == "auto":
        fields.note(f"{name} is auto: it follows from the values given with the file")
        return None
    return fields.optional(name)


def _table(value: object) -> dict[str, int]:
    found = value.items() if isinstance(value, dict) else ()
    return {name: number for name, number in found if isinstance(name, str) and _integer(number)}


def _integer(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 2**31 else None
