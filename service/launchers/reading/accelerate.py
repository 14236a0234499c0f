"""Reads accelerate's YAML: FSDP2 with its mesh, plain replicas, or the DeepSpeed plugin.

Keys and defaults: accelerate 1.15.0, commands/config/config_args.py, utils/dataclasses.py (FSDP),
parallelism_config.py; the batch stands in the command of the training script (transformers' arguments).
"""

from __future__ import annotations

from profiles.model import ModelSpec
from service.launchers.reading.accelerate_deepspeed import plugin_run
from service.launchers.reading.accelerate_script import (
    ACCUMULATION,
    IRRELEVANT,
    MICRO_BATCH,
    NO_LENGTH,
    Arguments,
    arguments,
    number,
    recomputes,
    require_address,
    require_same_machines,
)
from service.launchers.reading.base import LaunchFile, Source, Told
from service.launchers.reading.documents import document_of, looks_like_document
from service.launchers.reading.fields import Fields
from service.launchers.reading.known import Known, known_of
from service.launchers.reading.split import divided
from solver.plan import Configuration
from solver.problem import Workload

_OWN = ("distributed_type", "num_processes", "fsdp_config", "num_machines", "compute_environment")
_TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
_PRECISIONS = ("no", "bf16", "fp16", "fp8")
_WRAPPINGS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_MESH = "parallelism_config.parallelism_config_"
_FSDP = "fsdp_config."
_FSDP2 = 2
_IRRELEVANT = (
    *IRRELEVANT, f"{_FSDP}fsdp_transformer", f"{_FSDP}fsdp_state_dict", f"{_FSDP}fsdp_cpu_ram",
    f"{_FSDP}fsdp_backward", f"{_FSDP}fsdp_forward", f"{_FSDP}fsdp_sync", f"{_FSDP}fsdp_use_orig",
    f"{_MESH}cp_comm",
)  # fmt: skip


class AccelerateReader:
    """Reads the configuration of ``accelerate launch``."""

    name = "accelerate"

    def recognises(self, source: Source) -> bool:
        """Whether a YAML has accelerate's own names."""
        names = looks_like_document(source) if source.suffix in (".yaml", ".yml") else {}
        return sum(any(key.split(".")[0] == name for key in names) for name in _OWN) > 1

    def read(self, source: Source, told: Told) -> LaunchFile:
        """The run of ``accelerate launch`` with this file.

        Raises:
            InvalidProblemError: what cannot be read, contradicts itself, or is said nowhere.
        """
        fields = Fields(source.name, document_of(source))
        kind = fields.word("distributed_type", "NO", allowed=_TYPES)
        if kind == "DEEPSPEED":
            return plugin_run(fields, source, told)
        for name in ("distributed_type", "num_processes", "mixed_precision"):
            fields.slip_for(name)
        known = known_of(source, told)
        given = arguments(known)
        require_address(fields, known, given)
        require_same_machines(fields, known)
        fields.stop()
        model = known.model()
        configuration = _configuration(fields, known, model, given, sharded=kind == "FSDP")
        precision = _precision(fields)
        fields.stop()
        machines = fields.integer("num_machines", 1)
        world = configuration.num_gpus
        return LaunchFile(
            launcher=self.name,
            model=model,
            workload=Workload(
                global_batch_size=configuration.global_batch_size,
                seq_length=known.required("seq_length", None, NO_LENGTH),
                precision=precision,
            ),
            configuration=configuration,
            num_nodes=machines,
            gpus_per_node=divided(world, machines, field="num_processes", what="num_machines"),
            notes=tuple(fields.notes),
            unread=_unread(fields),
            places={"tensor_parallel_size": fields.place(f"{_MESH}tp_size")},
        )


def _unread(fields: Fields) -> tuple[str, ...]:
    """What is not understood; a size of the mesh that accelerate does not have is refused."""
    found = fields.unread(_IRRELEVANT)
    for name in found:
        if name.startswith(_MESH) and name.endswith("_size"):
            why = "is no size of accelerate's mesh, which would not notice"
            fields.fault(name, why, allowed="dp_replicate, dp_shard, cp, sp, tp")
    fields.stop()
    return found


def _configuration(
    fields: Fields, known: Known, model: ModelSpec, given: Arguments, *, sharded: bool
) -> Configuration:
    """The mesh, or plain replicas."""
    world = fields.optional("num_processes") or known.required("num_gpus", None, "num_processes")
    tp, cp, shard, replicas = _mesh(fields, world, sharded=sharded)
    micro, count = (
        known.required(name, number(given, key), f"--{key} of the training script, beside it")
        for name, key in (("micro_batch_size", MICRO_BATCH), ("num_microbatches", ACCUMULATION))
    )
    zero = _zero(fields) if sharded else 0
    recompute = fields.flag(f"{_FSDP}fsdp_activation_checkpointing", default=False)
    recompute = recompute or recomputes(given, known)
    fields.stop()
    layers = model.num_layers
    return Configuration(
        tensor_parallel_size=tp,
        context_parallel_size=cp,
        data_parallel_size=replicas * shard,
        zero_stage=zero,
        zero_shard_size=shard * cp if zero else 1,
        micro_batch_size=micro,
        num_microbatches=count,
        recompute_granularity="full" if recompute else "none",
        recompute_layers=layers if recompute else 0,
        stage_layers=(layers,),
    )


def _mesh(fields: Fields, world: int, *, sharded: bool) -> tuple[int, int, int, int]:
    """Tensor ranks, rings, shards and replicas of the mesh; without one, FSDP shards over all."""
    tp, cp = (fields.integer(f"{_MESH}{name}_size", 1) for name in ("tp", "cp"))
    if fields.integer(f"{_MESH}sp_size", 1) > 1:
        fields.fault(f"{_MESH}sp_size", "Ulysses sequence parallelism is not read", allowed="1")
    replicas = fields.optional(f"{_MESH}dp_replicate_size")
    shard = fields.optional(f"{_MESH}dp_shard_size")
    for name in ("tp", "cp", "dp_replicate", "dp_shard"):
        fields.slip_for(f"{_MESH}{name}_size")
    fields.stop()
    if not sharded:
        if tp * cp > 1:
            fields.fault(
                f"{_MESH}{'tp' if tp > 1 else 'cp'}_size", "plain replicas have no mesh", allowed="1"
            )
        return 1, 1, 1, world
    if replicas is None and shard is None:
        whole = divided(world, tp * cp, field="num_processes", what="tp × cp")
        return tp, cp, whole, 1
    shard, replicas = shard or 1, replicas or 1
    if tp > 1 and replicas > 1 and shard == 1:
        why = "tensor ranks beside replicas that share nothing: accelerate refuses them"
        fields.fault(f"{_MESH}tp_size", why, allowed="1, or dp_shard_size 2 and more", nearest="1")
    if tp * cp * shard * replicas != world:
        fields.fault(
            "num_processes",
            f"{world}, but the mesh has replicate {replicas} × shard {shard} × cp {cp} × tp {tp} ranks; "
            "accelerate would not notice",
            nearest=str(tp * cp * shard * replicas),
        )
    return tp, cp, shard, replicas


def _zero(fields: Fields) -> int:
    """FSDP2: 3 where weights are resharded after the forward pass, else 2."""
    fields.word(f"{_FSDP}fsdp_auto_wrap_policy", allowed=_WRAPPINGS)
    version = fields.integer(f"{_FSDP}fsdp_version", 1)
    if version == 1:
        strategy = fields.word(f"{_FSDP}fsdp_sharding_strategy", "FULL_SHARD")
        fields.note("fsdp_version is 1: FSDP1 is priced as FSDP2")
        names = {"FULL_SHARD": 3, "HYBRID_SHARD": 3, "SHARD_GRAD_OP": 2, "1": 3, "2": 2, "4": 3}
        return names.get(strategy, 3)
    if version > _FSDP2:
        fields.fault(f"{_FSDP}fsdp_version", f"there is no FSDP{version}", allowed="1, 2", nearest="2")
    if fields.flag(f"{_FSDP}fsdp_offload_params", default=False):
        fields.fault(f"{_FSDP}fsdp_offload_params", "weights on the host are not priced", allowed="false")
    return 3 if fields.flag(f"{_FSDP}fsdp_reshard_after_forward", default=True) else 2


def _precision(fields: Fields) -> str:
    """What autocast computes in."""
    precision = fields.word("mixed_precision", "no", allowed=_PRECISIONS)
    fields.stop()
    if precision == "no":
        fields.fault("mixed_precision", "training in fp32 is not priced", allowed="bf16, fp16")
    return precision
