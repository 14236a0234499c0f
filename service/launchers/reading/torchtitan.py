"""Reads configurations of torchtitan: TOML for 0.2, a Python module for 0.3, which is never run.

Names and defaults: torchtitan 0.2.2, config/job_config.py; 0.3.0, config/configs.py and trainer.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.model import ModelSpec
from service.launchers.reading.base import LaunchFile, Source, Told
from service.launchers.reading.documents import document_of, looks_like_document
from service.launchers.reading.fields import Fields
from service.launchers.reading.known import Known, known_of
from service.launchers.reading.split import divided
from service.launchers.reading.torchtitan_command import over
from service.launchers.reading.torchtitan_model import model_of
from service.launchers.reading.torchtitan_python import looks_like_module, module_values
from service.launchers.reading.torchtitan_split import split_of
from service.launchers.rules import near_divisors, near_multiples
from service.launchers.torchtitan_values import SCHEDULES
from solver.plan import Configuration
from solver.problem import Workload

_OWN = (
    "parallelism.tensor_parallel_degree", "training.local_batch_size", "training.seq_len",
    "job.dump_folder", "parallelism.data_parallel_shard_degree", "model.flavor",
)  # fmt: skip
_NAMES = {titan.lower(): name for name, titan in SCHEDULES.items()} | {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved_1f1b", "loopedbfs": "looped_bfs",
    "interleavedzerobubble": "interleaved_zb", "zbvzerobubble": "zb_v", "dualpipev": "dualpipe_v",
}  # fmt: skip
_ONE_EACH = ("1f1b", "dualpipe_v")  # schedules that need a micro-batch for every stage
_RESHARD = ("default", "always", "never")
_DTYPES = {"bfloat16": "bf16"}
_IRRELEVANT = (
    "job.", "model.", "experimental.", "optimizer.", "lr_scheduler.", "checkpoint.", "metrics.",
    "profiling.", "compile.", "comm.", "validation.", "debug.", "fault_tolerance.", "training.dataset",
    "training.steps", "training.max_norm", "training.dtype", "training.mixed_precision", "training.gc_",
    "memory_estimation.", "training.disable_cuda_graphs", "activation_checkpoint.selective",
    "parallelism.disable_loss", "parallelism.context_parallel_rotate", "dataloader", "hf_assets_path",
    "profiler", "training.seed", "activation_checkpoint.per_op", "activation_checkpoint.preserve",
    "activation_checkpoint.early", "training.deterministic", "training.enable_cpu_offload",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mesh:
    """Degrees of parallelism."""

    replicate: int
    shard: int
    tp: int
    cp: int
    pp: int


class TorchtitanReader:
    """Reads torchtitan's TOML and Python configurations."""

    name = "torchtitan"

    def recognises(self, source: Source) -> bool:
        """Whether a file has torchtitan's own names."""
        if source.suffix == ".py":
            return looks_like_module(source)
        names = looks_like_document(source) if source.suffix == ".toml" else {}
        return sum(name in names for name in _OWN) > 1

    def read(self, source: Source, told: Told) -> LaunchFile:
        """The run that the file configures.

        Raises:
            InvalidProblemError: what cannot be read, or contradicts itself, with line and name.
        """
        is_module = source.suffix == ".py"
        known = known_of(source, told)
        values, notes = over(module_values(source) if is_module else document_of(source), known)
        fields = Fields(source.name, values)
        for note in notes:
            fields.note(note)
        model = model_of(fields, known)
        configuration, batch = _configuration(fields, known, model, is_module=is_module)
        workload = _workload(fields, known, batch)
        positions = model.max_position_embeddings
        if told.model is None and positions and workload.seq_length > positions:
            fields.fault(
                "training.seq_len", f"{workload.seq_length}, but the model has {positions} positions"
            )
        fields.stop()
        return LaunchFile(
            launcher=self.name,
            model=model,
            workload=workload,
            configuration=configuration,
            num_nodes=known.world.num_nodes,
            gpus_per_node=known.world.gpus_per_node,
            notes=tuple(fields.notes),
            unread=fields.unread(_IRRELEVANT),
            places={
                "tensor_parallel_size": fields.place("parallelism.tensor_parallel_degree"),
                "seq_length": fields.place("training.seq_len"),
            },
        )


def _mesh(fields: Fields, known: Known) -> _Mesh:
    """The degrees; -1 shards over what is left of the GPUs."""
    at = "parallelism."
    replicate = fields.integer(f"{at}data_parallel_replicate_degree", 1)
    tp, cp, pp = (
        fields.integer(f"{at}{name}_parallel_degree", 1) for name in ("tensor", "context", "pipeline")
    )
    shard = fields.integer(f"{at}data_parallel_shard_degree", -1, low=-1)
    if fields.integer(f"{at}expert_parallel_degree", 1) > 1:
        fields.fault(f"{at}expert_parallel_degree", "experts of torchtitan are not read", allowed="1")
    if shard == 0:
        name = f"{at}data_parallel_shard_degree"
        fields.fault(name, "0 ranks share nothing", allowed="-1 for all that are left, or 1 and more")
    fields.stop()
    if shard < 1:
        world = known.num_gpus() or known.required(
            "num_gpus", None, f"{at}data_parallel_shard_degree, or the cluster's --num-nodes"
        )
        others = replicate * tp * cp * pp
        shard = divided(world, others, field=f"{at}data_parallel_shard_degree", what="the other degrees")
        fields.note(f"data_parallel_shard_degree -1 is {shard} on {world} GPUs")
    return _Mesh(replicate=replicate, shard=shard, tp=tp, cp=cp, pp=pp)


def _configuration(
    fields: Fields, known: Known, model: ModelSpec, *, is_module: bool
) -> tuple[Configuration, int]:
    """The configuration and the global batch."""
    mesh = _mesh(fields, known)
    dp = mesh.replicate * mesh.shard
    micro, count = _batch(fields, known, mesh, dp)
    schedule = _schedule(fields, mesh.pp)
    split = split_of(fields, model, mesh.pp, schedule)
    vpp = max(len(split) // mesh.pp, 1)
    recompute = _recompute(fields)
    zero = _zero(fields, mesh)
    sequence = fields.flag("parallelism.enable_sequence_parallel", default=True) and mesh.tp > 1
    _check(fields, model, mesh, (schedule, len(split), count))
    fields.stop()
    found = Configuration(
        tensor_parallel_size=mesh.tp,
        sequence_parallel=sequence if is_module else mesh.tp > 1,  # 0.2 always splits the sequence
        pipeline_parallel_size=mesh.pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=mesh.cp,
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=mesh.shard * mesh.cp if zero else 1,
        micro_batch_size=micro,
        num_microbatches=count,
        pipeline_schedule=schedule,
        recompute_granularity=recompute,
        recompute_layers=sum(split) if recompute == "full" else 0,
        stage_layers=split,
    )
    return found, found.global_batch_size


def _check(fields: Fields, model: ModelSpec, mesh: _Mesh, pipeline: tuple[str, int, int]) -> None:
    """What torchtitan refuses when model or trainer are built: heads, halves of slices, micro-batches."""
    schedule, stages, count = pipeline
    heads, seq = model.num_kv_heads, fields.integer("training.seq_len", 1)
    slices = mesh.tp * mesh.cp * (2 if mesh.cp > 1 else 1)
    if heads % mesh.tp:
        why = f"{mesh.tp} does not divide {heads} key/value heads"
        name, near = "parallelism.tensor_parallel_degree", near_divisors(mesh.tp, heads)
        fields.fault(name, why, allowed=f"divisors of {heads}", nearest=near)
    if fields.has("training.seq_len") and seq % slices:
        why, near = f"tp × 2 cp = {slices} does not divide {seq}", near_multiples(seq, slices)
        fields.fault("training.seq_len", why, allowed=f"multiples of {slices}", nearest=near)
    if schedule in _ONE_EACH and count < stages:
        why = f"{count} micro-batches for {stages} stages of {schedule}"
        name = "training.local_batch_size"
        fields.fault(name, why, allowed=f"{stages} micro-batches and more", nearest=str(stages))


def _batch(fields: Fields, known: Known, mesh: _Mesh, dp: int) -> tuple[int, int]:
    """Micro-batch and how many: with a pipeline the local batch holds all, else gradients accumulate."""
    local_name, all_name = "training.local_batch_size", "training.global_batch_size"
    stated = fields.optional(local_name)
    fields.slip_for(local_name)
    fields.stop()
    local = known.required("local_batch_size", stated, f"{local_name} in the file")
    batch = fields.integer(all_name, -1, low=-1)
    if batch < 1:
        batch = local * dp
        fields.note(f"global_batch_size is not given: local batch × dp = {batch}, no accumulation")
    steps = divided(batch, local * dp, field=all_name, what="local batch × dp")
    if mesh.pp == 1:
        return local, steps
    name = "parallelism.pipeline_parallel_microbatch_size"
    if not fields.has(name):
        fields.note("pipeline_parallel_microbatch_size is not given: 1")
    micro = fields.integer(name, 1)
    if steps > 1:
        fields.fault(all_name, f"{batch} accumulates {steps} local batches over a pipeline: not priced",
                     nearest=str(local * dp))  # fmt: skip
    return micro, divided(local, micro, field=name, what="the pipeline's micro-batch")


def _schedule(fields: Fields, pp: int) -> str:
    """The pipeline's schedule; 1F1B is the default."""
    name = "parallelism.pipeline_parallel_schedule"
    titan = fields.word(name, "1F1B")
    if pp == 1:
        return "none"
    if titan.lower() not in _NAMES:
        fields.fault(name, f'"{titan[:40]}" is unknown', allowed=", ".join(sorted(SCHEDULES.values())))
    return _NAMES.get(titan.lower(), "1f1b")


def _recompute(fields: Fields) -> str:
    """None, selective or full; memory budgets are not priced."""
    modes = ("none", "selective", "full")
    mode = fields.word("activation_checkpoint.mode", "selective", allowed=modes)
    if not fields.has("activation_checkpoint.mode"):
        fields.note("activation_checkpoint.mode is not given: selective is torchtitan's default")
    return mode


def _zero(fields: Fields, mesh: _Mesh) -> int:
    """Sharded weights, those that stay after the forward pass, or plain replicas."""
    reshard = fields.word("parallelism.fsdp_reshard_after_forward", "default", allowed=_RESHARD)
    if mesh.shard * mesh.cp == 1 and reshard == "default" and mesh.tp * mesh.pp * mesh.cp == 1:
        return 0
    if reshard == "default":
        return 3 if mesh.pp == 1 else 2  # "default" keeps weights under a pipeline
    return 3 if reshard == "always" else 2


def _workload(fields: Fields, known: Known, batch: int) -> Workload:
    """Batch, sequence and precision; AdamW."""
    dtype = fields.word("training.mixed_precision_param", "bfloat16")
    if dtype not in _DTYPES:
        fields.fault("training.mixed_precision_param", "is not priced", allowed="bfloat16")
    if fields.word("optimizer.name", "AdamW") not in ("AdamW", "Adam"):
        fields.fault("optimizer.name", "is not priced", allowed="AdamW")
    seq_length = fields.optional("training.seq_len")
    return Workload(
        global_batch_size=batch,
        seq_length=known.required("seq_length", seq_length, "training.seq_len in the file"),
        precision="bf16",
    )
