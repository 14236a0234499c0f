"""Requests for replanning a running job after a change of its cluster, and their checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from meshwright.launchers.megatron_lm.flags import reshards_states
from meshwright.launchers.table import launchers
from meshwright.profiles.cluster import MAX_NODES, ClusterSpec
from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.model import ModelSpec
from meshwright.service.requests.fields import Option
from meshwright.service.requests.parts import Part
from meshwright.service.requests.schema import field_errors
from meshwright.solver.answer import Plan, settled_problem
from meshwright.solver.configuration import SIZES
from meshwright.solver.problem import Problem

MAX_STEPS = 10**12
MAX_SLOW = 64
MIN_PACE = 1e-3  # of a node that is slower the others wait for ever: it is lost
MAX_REPAIR_S = 1e9
_MOST_DIGITS = 7  # of a node's number
_DAY_S = 86_400.0
_PADDED_ROWS = 2**14  # of a vocabulary, added so that ranks share it out evenly

Place = Literal["shared", "local"]
Steps = Annotated[int, Field(ge=0, le=MAX_STEPS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of checkpoints: which sizes a run that goes on from it must keep."""

    name: str
    keeps: tuple[str, ...]  # variables of the configuration
    reads_once: bool  # ranks read a part each and hand it on; else each reads what it needs
    source: str
    zero_stages: tuple[int, int] = (0, 3)  # least and most that it is loaded under


# What replicas decide among themselves; the other sizes cut the model into pieces.
_OF_REPLICAS = {
    "context_parallel_size", "data_parallel_size", "zero_shard_size", "micro_batch_size",
    "num_microbatches",
}  # fmt: skip
_MODEL_PARALLEL = (*(name for name in SIZES if name not in _OF_REPLICAS), "stage_layers")
_FSDP = 2  # least ZeRO stage that Megatron's launch files run as its FSDP
_NOT_FSDP = (0, _FSDP - 1)
FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format(
            name="torch_dist",
            keeps=_MODEL_PARALLEL,
            reads_once=True,
            source="Megatron-Core 0.19, training/checkpointing.py: other TP and PP are refused for "
            "optimizer states of the type dp_reshardable, written unless "
            "--dist-ckpt-optim-fully-reshardable is given",
            zero_stages=_NOT_FSDP,
        ),
        Format(
            name="torch_dist_fully_reshardable",
            keeps=(),
            reads_once=True,
            source="Megatron-Core 0.19, DistributedOptimizer.checkpoint_fully_reshardable_formats",
            zero_stages=_NOT_FSDP,
        ),
        Format(
            name="fsdp_dtensor",
            keeps=(),
            reads_once=False,
            source="Megatron-Core 0.19, the same list; Megatron's FSDP writes and reads it alone",
            zero_stages=(_FSDP, 3),
        ),
        Format(
            name="torch",
            keeps=_MODEL_PARALLEL,
            reads_once=False,
            source="Megatron-LM's own format: one file for each tensor and pipeline rank",
            zero_stages=_NOT_FSDP,
        ),
        Format(
            name="dcp",
            keeps=(),
            reads_once=False,
            source="torch.distributed.checkpoint: ranks read the parts of the saved tensors that they need",
        ),
        Format(
            name="deepspeed",
            keeps=(*_MODEL_PARALLEL, "data_parallel_size", "zero_stage"),
            reads_once=False,
            source="DeepSpeed 0.19, runtime/zero: a file for each rank's shard, loaded by as many ranks",
        ),
        Format(
            name="deepspeed_universal",
            keeps=(),
            reads_once=False,
            source="DeepSpeed 0.19, checkpoint/ds_to_universal.py (arXiv:2406.18820)",
        ),
    )
}


class CheckpointRequest(Part):
    """The checkpoint that the job goes on from."""

    format: Annotated[str | None, Option(name="checkpoint_format", help=", ".join(FORMATS))] = Field(
        default=None, description="default: what the launcher's files write"
    )
    place: Annotated[
        Place,
        Option(name="checkpoint_place", metavar="shared|local", help="Shared storage, or the nodes' own."),
    ] = Field(default="shared", description="local: on the nodes' own disks, copies on other nodes")
    num_parameters: int | None = Field(
        default=None, ge=1, description="of the checkpoint, compared with the model"
    )
    num_layers: int | None = Field(
        default=None, ge=1, description="of the checkpoint, compared with the model"
    )


class ReplanRequest(Part):
    """The changes of a job's cluster, the progress of the job, and its checkpoint."""

    plan_id: str | None = Field(default=None, max_length=64, description="running plan; default: the first")
    lost_nodes: Annotated[
        Annotated[int, Field(ge=1, le=MAX_NODES)] | dict[str, int] | None,
        Option(repeats=True, metavar="N|GROUP=N", help="Number of lost nodes, or of one group: a100=2."),
    ] = Field(default=None, description="number of lost nodes; on a mixed cluster by node group")
    slow_nodes: Annotated[
        dict[str, Annotated[float, Field(ge=MIN_PACE, lt=1)]],
        Option(
            name="slow_node",
            repeats=True,
            metavar="NODE=PACE",
            help="Slow node and its share of the usual speed: 17=.7",
        ),
    ] = Field(default_factory=dict, max_length=MAX_SLOW, description="node: its share of the usual pace")
    num_nodes: Annotated[int | None, Option(kind=int, help="Number of nodes in the cluster now.")] = Field(
        default=None, ge=1, le=MAX_NODES, description="of the cluster from now on"
    )
    steps_done: Annotated[Steps, Option(kind=int, help="Steps that the run has done.")] = 0
    steps_total: Annotated[
        Annotated[int, Field(ge=1, le=MAX_STEPS)] | None, Option(kind=int, help="Steps of the whole run.")
    ] = Field(default=None, description="default: of the problem's total_tokens")
    saved_step: Annotated[Steps | None, Option(kind=int, help="Step of the last checkpoint.")] = Field(
        default=None, description="of the checkpoint; default: assumed"
    )
    checkpoint: CheckpointRequest = Field(default_factory=CheckpointRequest)
    spare_nodes: Annotated[int, Option(kind=int, help="Idle nodes in addition to the cluster.")] = Field(
        default=0, ge=0, le=MAX_NODES, description="in addition to the cluster's"
    )
    repair_s: Annotated[
        float, Option(name="repair_hours", kind=float, help="Hours until lost nodes are repaired.")
    ] = Field(default=_DAY_S, gt=0, le=MAX_REPAIR_S, description="until lost nodes are back")
    top_k: Annotated[int, Option(kind=int, help="Number of options to list.")] = Field(
        default=5, ge=1, le=20, description="number of ways to go on"
    )


# Checkpoint formats that the launch files of each launcher write by default.
_WRITTEN: Mapping[str, str] = {
    **{name: row.checkpoint for name, row in launchers().items() if row.checkpoint},
    "none": "dcp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A running job and its changed cluster, checked."""

    problem: Problem  # as settled by the plan, on its nodes and the spare ones
    plan: Plan
    running_nodes: int  # that the plan runs on
    lost: tuple[int, ...]  # nodes of each group that are gone
    slow: Mapping[int, float]  # node to its pace
    left: ClusterSpec  # what remains, spares among it; slow nodes are part of it
    spares: int  # nodes that are idle
    planned: bool  # the job still runs, and can save before it changes
    steps_done: int
    steps_total: int
    saved_step: int | None
    format: Format
    place: Place
    repair_s: float
    top_k: int

    @property
    def keeps(self) -> tuple[str, ...]:
        """Return what the checkpoint's format fixes; without ZeRO no shards of states are cut anew."""
        free = self.format.name == "torch_dist" and not self.plan.config.zero_stage
        return () if free else self.format.keeps

    @property
    def constraints(self) -> tuple[str, ...]:
        """Return further constraints on a layout.

        What Megatron-Core's distributed optimizer has saved it loads alone: tensors have other names. A
        single replica is never ZeRO; its resume files ask for that optimizer.
        """
        least, most = self.format.zero_stages
        own = self.plan.config.zero_stage
        return ("zero_stage > 0 or dp * cp == 1",) if (least, most) == _NOT_FSDP and own else ()


def read_replan_request(raw: Mapping[str, object]) -> ReplanRequest:
    """Return names, types and ranges.

    Raises:
        InvalidProblemError: with one FieldError per fault.
    """
    try:
        return ReplanRequest.model_validate(raw)
    except ValidationError as fault:
        raise InvalidProblemError(field_errors(fault, ReplanRequest)) from None


def changed_job(asked: ReplanRequest, problem: Problem, plan: Plan) -> Changed:
    """Return the request held against the job that it is about.

    Args:
        asked: what happened.
        problem: the job's question.
        plan: the plan that runs.

    Raises:
        InvalidProblemError: nodes that the job never had, another model's checkpoint, impossible steps.
    """
    problem = _settled(problem, plan)
    running = -(-plan.config.num_gpus // min(group.gpus_per_node for group in problem.cluster.groups))
    faults = [*_happened(asked), *_slow_faults(asked, running)]
    faults += _checkpoint_faults(asked.checkpoint, problem.model)
    total = _steps_total(asked, problem)
    faults += _step_faults(asked, total)
    if faults:
        raise InvalidProblemError(faults)
    lost = _lost(asked, problem.cluster, running)
    left = _left(asked, problem.cluster, lost)
    return Changed(
        problem=problem, plan=plan, running_nodes=running, lost=lost,
        slow={int(node): pace for node, pace in asked.slow_nodes.items()}, left=left,
        spares=max(problem.cluster.num_nodes - running, 0) + asked.spare_nodes, planned=not sum(lost),
        steps_done=asked.steps_done, steps_total=total or 0, saved_step=asked.saved_step,
        format=_format(asked.checkpoint, problem, plan), place=asked.checkpoint.place,
        repair_s=asked.repair_s, top_k=asked.top_k,
    )  # fmt: skip


def _settled(problem: Problem, plan: Plan) -> Problem:
    """Return the job's question with what the plan decided; the rest of the run is asked for as a whole."""
    problem = settled_problem(plan, problem)
    options = replace(
        problem.options, batch_sizes=(), num_nodes=(), reserve_nodes=0, gpus="all",
        deadline_days=None, objective="step_time", pareto=False, baseline=None, certify="none",
    )  # fmt: skip
    return replace(
        problem,
        workload=replace(problem.workload, global_batch_size=plan.config.global_batch_size),
        options=options,
    )


def _happened(asked: ReplanRequest) -> Iterator[FieldError]:
    if asked.lost_nodes is None and asked.num_nodes is None and not asked.slow_nodes:
        yield FieldError(
            pointer="/lost_nodes", message="nothing changed", allowed="lost_nodes, slow_nodes or num_nodes"
        )
    if asked.lost_nodes is not None and asked.num_nodes is not None:
        yield FieldError(
            pointer="/num_nodes", message="can't be combined with lost_nodes: give one of them"
        )
    if asked.num_nodes is not None and asked.slow_nodes:
        yield FieldError(
            pointer="/num_nodes", message="can't be combined with slow_nodes: give one of them"
        )


def _slow_faults(asked: ReplanRequest, running: int) -> Iterator[FieldError]:
    for name in asked.slow_nodes:
        if not name.isdecimal() or len(name) > _MOST_DIGITS or int(name) >= running:
            yield FieldError(
                pointer=pointer("slow_nodes", name),
                message="the job has no such node",
                allowed=f"0 to {running - 1}",
                nearest=str(running - 1) if name.isdecimal() else None,
            )
    if len(asked.slow_nodes) >= running:
        yield FieldError(
            pointer="/slow_nodes", message="all nodes are slow: calibrate the cluster, and plan again"
        )


def _steps_total(asked: ReplanRequest, problem: Problem) -> int | None:
    tokens = problem.options.total_tokens
    if asked.steps_total is not None or tokens is None:
        return asked.steps_total
    workload = problem.workload
    return ceil(tokens / (workload.global_batch_size * workload.tokens_per_sequence))


def _step_faults(asked: ReplanRequest, total: int | None) -> Iterator[FieldError]:
    """Yield faults unless saved, done and all steps are in this order."""
    if total is None:
        yield FieldError(
            pointer="/steps_total",
            message="is required: the job does not state how many tokens it trains on",
        )
    elif asked.steps_done > total:
        yield FieldError(
            pointer="/steps_done",
            message=f"{asked.steps_done} steps are more than the run has",
            allowed=f"0 to {total}",
            nearest=str(total),
        )
    if asked.saved_step is not None and asked.saved_step > asked.steps_done:
        yield FieldError(
            pointer="/saved_step",
            message=f"step {asked.saved_step} was not reached",
            allowed=f"0 to {asked.steps_done}",
            nearest=str(asked.steps_done),
        )


def _checkpoint_faults(given: CheckpointRequest, model: ModelSpec) -> Iterator[FieldError]:
    """A checkpoint of another model is refused; a padded vocabulary or a second copy of it is none."""
    if given.num_layers is not None and given.num_layers != model.num_layers:
        yield FieldError(
            pointer="/checkpoint/num_layers",
            message=f"the checkpoint holds {given.num_layers} layers, {model.name} has {model.num_layers}: "
            "it is another model's",
            nearest=str(model.num_layers),
        )
    own, table = model.num_parameters(), model.vocab_size * model.hidden_size
    if given.num_parameters is None:
        return
    copies = (0, table) if model.tied_embeddings else (0,)
    extra = (own + model.mtp_parameters(), own)
    padding = 2 * _PADDED_ROWS * model.hidden_size
    padding = min(padding, max(table // 8, 2 * 1024 * model.hidden_size))
    if not any(0 <= given.num_parameters - base - copy <= padding for base in extra for copy in copies):
        yield FieldError(
            pointer="/checkpoint/num_parameters",
            message=f"the checkpoint holds {given.num_parameters} parameters, {model.name} has {own}: "
            "it is another model's",
            nearest=str(own),
        )


def _lost(asked: ReplanRequest, cluster: ClusterSpec, running: int) -> tuple[int, ...]:
    given = asked.lost_nodes
    if cluster.differs:
        _refuse_fewer_hosts(asked, cluster)
    groups = cluster.distinct_groups
    if given is None:
        return (0,) * len(groups)
    if isinstance(given, int):
        if len(groups) > 1:
            names = ", ".join(cluster.group_names)
            raise InvalidProblemError.of(
                "/lost_nodes",
                "the cluster is mixed: state how many of which group",
                allowed=f"an object of {names}",
            )
        given = {cluster.group_names[0]: given}
    for name in given.keys() - set(cluster.group_names):
        raise UnknownNameError.among("/lost_nodes", name, cluster.group_names)
    had = [min(group.num_nodes, running) if len(groups) == 1 else group.num_nodes for group in groups]
    for name, most in zip(cluster.group_names, had, strict=True):
        if not 0 <= given.get(name, 0) <= most:
            raise InvalidProblemError.of(
                "/lost_nodes",
                f"{given[name]} nodes are lost, but the job had {most}",
                allowed=f"1 to {most}",
                nearest=str(most),
            )
    return tuple(given.get(name, 0) for name in cluster.group_names)


def _refuse_fewer_hosts(asked: ReplanRequest, cluster: ClusterSpec) -> None:
    """Refuse a change that takes away a host that the links name.

    Raises:
        InvalidProblemError: at the field that takes a host away.
    """
    given = asked.lost_nodes
    fewer = {
        "/lost_nodes": any(given.values()) if isinstance(given, Mapping) else bool(given),
        "/slow_nodes": bool(asked.slow_nodes),
        "/num_nodes": asked.num_nodes is not None and asked.num_nodes < cluster.num_nodes,
    }
    for field in (one for one, gone in fewer.items() if gone):
        raise InvalidProblemError.of(
            field,
            "links between nodes differ, and a re-plan does not know which hosts are left",
            allowed="a new request, with the links of the hosts that are left",
        )


def _left(asked: ReplanRequest, cluster: ClusterSpec, lost: tuple[int, ...]) -> ClusterSpec:
    """Return the nodes that remain, with the spare ones.

    Raises:
        InvalidProblemError: none does, or a mixed cluster is to have another number of nodes.
    """
    groups = cluster.distinct_groups
    if asked.num_nodes is not None and len(groups) > 1:
        raise InvalidProblemError.of(
            "/num_nodes", "the cluster is mixed: state which nodes are lost", allowed="lost_nodes"
        )
    counts = [group.num_nodes - gone for group, gone in zip(groups, lost, strict=True)]
    if asked.num_nodes is not None:
        counts = [asked.num_nodes]
    if counts[0] + asked.spare_nodes > MAX_NODES:
        most = MAX_NODES - counts[0]
        raise InvalidProblemError.of(
            "/spare_nodes",
            f"{asked.spare_nodes} are too many in addition to the {counts[0]} that are left",
            allowed=f"0 to {most}",
            nearest=str(most),
        )
    counts[0] += asked.spare_nodes
    if not sum(counts):
        fewer = f"1 to {sum(lost) - 1}, or " if sum(lost) > 1 else ""
        raise InvalidProblemError.of(
            "/lost_nodes", "no node is left, and none is spare", allowed=f"{fewer}spare_nodes above 0"
        )
    return replace(
        cluster,
        groups=tuple(
            replace(group, num_nodes=count) for group, count in zip(groups, counts, strict=True) if count
        ),
    )


def _format(given: CheckpointRequest, problem: Problem, plan: Plan) -> Format:
    written = _WRITTEN.get(problem.launcher)
    if written == "torch_dist" and plan.config.zero_stage >= _FSDP:
        written = "fsdp_dtensor"
    elif written == "torch_dist" and reshards_states(plan.config):
        written = "torch_dist_fully_reshardable"  # as our launch files have it saved
    name = given.format or written
    if name is None:
        raise InvalidProblemError.of(
            "/checkpoint/format",
            f"is required: {problem.launcher} has no usual one",
            allowed=", ".join(FORMATS),
        )
    if name not in FORMATS:
        raise UnknownNameError.among("/checkpoint/format", name, FORMATS)
    found, stage = FORMATS[name], plan.config.zero_stage
    if found.zero_stages != _NOT_FSDP or stage not in _NOT_FSDP:
        return found
    least = 0 if _WRITTEN.get(problem.launcher) == "torch_dist" else stage
    return replace(found, zero_stages=(least, stage))
