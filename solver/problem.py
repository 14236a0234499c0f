"""Question to the planner: a model, a cluster, a workload, a launcher, and the limits of the search."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, Literal, TypeVar, TypeVarTuple

import numpy as np

from meshwright.profiles.adapters import (
    ATTENTION_TARGETS,
    EMBEDDING,
    HEAD,
    TRAINED_MODULES,
    adapter_parameters,
    copied_parameters,
)
from meshwright.profiles.capabilities import launcher_capabilities, launchers_of, packing_multiple
from meshwright.profiles.cluster import ClusterSpec, GpuSpec, NodeGroup, Reliability
from meshwright.profiles.errors import InternalError
from meshwright.profiles.frameworks import OPTION_NUMBERS, FrameworkFacts, framework_facts
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.optimizers import OPTIMIZERS, UNPAGED, USUAL_INTERVAL
from meshwright.profiles.profile import framework_of
from meshwright.profiles.samples import SAMPLES, Reference, Sample, SampleKind
from meshwright.profiles.sequences import Documents, FilledSequences, SequenceLengths, filled, packed_share
from meshwright.profiles.storage import BasePrecision
from meshwright.profiles.switches import EVERY_SWITCH, NO_SWITCH, Switch, allowed_switches, switches
from meshwright.profiles.tower_modules import parts_of
from meshwright.profiles.towers import TOWER_PARTS, FrozenPart, ImageLoad, TowerSpec
from meshwright.profiles.trained_layers import BELOW, TRAINED, LayerTraining, layers_named, training_of
from meshwright.solver.configuration import Columns, Configuration, FloatArray, alike

# --------------------------------------------------------------------------------------------------
# Errors of the solver; the tree is drawn in profiles/errors.py.


class ProofMismatchError(InternalError):
    """Two exact methods disagree on the same problem: a bug, never a choice."""

    code = "proof_mismatch"


class InvalidPlanError(InternalError):
    """The independent check refused a plan that the search was about to return."""

    code = "invalid_plan"


# --------------------------------------------------------------------------------------------------
# What the request may limit: pins, bounds, what is allowed, how long, how many.


Objective = Literal[
    "step_time", "tokens_per_s_per_gpu", "gpu_hours_per_token", "energy_per_token", "robust"
]
# Objectives that rate what one GPU does: on as many GPUs a shorter step is as much better.
POWER_LIMIT = "power_limit_w"  # the switch that limits what a GPU draws
PER_GPU: tuple[Objective, ...] = ("tokens_per_s_per_gpu", "gpu_hours_per_token")
Certify = Literal["none", "cp-sat", "cp-sat-all"]

# What follows from the others; constraints may name it.
DERIVED_VARIABLES = ("num_gpus", "global_batch_size")

STANDALONE_STAGES = "standalone_stages"  # of the embedding, and of the head with the loss
CONTEXT_MODE = "context_parallel_mode"  # in two levels: heads among neighbours, a ring of the others
WEIGHT_SHARDS = "weight_shards"  # of dense weights and of experts, over data-parallel ranks
ALLOWED = (
    "offload", "fp8", STANDALONE_STAGES, CONTEXT_MODE, WEIGHT_SHARDS, *OPTIMIZERS, EVERY_SWITCH,
    NO_SWITCH,
    *(name for name, one in switches().items() if one.beside in ("", name)),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Limits of one search; already checked by the edge that built it."""

    top_k: int = 10
    diverse: bool = True  # each plan the best of its mesh, as far as there are meshes; else of its layout
    certify: Certify = "cp-sat"
    time_limit_s: float = 30.0
    seed: int = 0
    objective: Objective = "step_time"
    gpus: Literal["all", "fewest"] = "all"  # at most all; fewest: the smallest number of nodes with a plan
    num_nodes: tuple[int, ...] = ()  # numbers of nodes that a plan may use; empty: all of them
    num_gpus: tuple[int, ...] = ()  # the planner's: all of these; empty: as many as can be used
    also_gpus: tuple[int, ...] = ()  # the planner's: parts of nodes that are searched next to whole ones
    usual: bool = False  # the planner's: the usual candidates alone, as those on all GPUs were
    reserve_nodes: int = 0  # kept spare
    max_power_kw: float | None = None  # of a plan's GPUs while all of them compute
    batch_sizes: tuple[int, ...] = ()  # global batches in question next to the workload's, the largest
    total_tokens: int | None = None  # of the whole run
    deadline_days: float | None = None  # for all of them, interruptions counted
    gpu_hour_price: float | None = None  # in the client's currency
    grid_co2_g_per_kwh: float | None = None
    differ: tuple[str, ...] = ()  # variables: further plans near the first differ in one of them at least
    within: float = 0.1  # by which those may be worse, of the first plan's objective
    pareto: bool = False  # the front of step time and peak memory as well
    baseline: Configuration | None = None  # the client's own, ranked with the plans
    reliability: Reliability = field(default_factory=Reliability)
    # On the open runs 1 % lets as many failures through and refuses more (docs/accuracy.md).
    max_out_of_memory_probability: float = 0.05
    pin: Mapping[str, int | str] = field(default_factory=dict)
    forbid: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # inclusive
    stage_layers: tuple[int, ...] = ()  # the only split; empty: the search finds it
    allow: tuple[str, ...] = ()  # of ALLOWED: searched in addition to the request
    # The embedding may have a stage of its own, and the head: one of the ways that ``allow`` leaves open.
    standalone_stages: bool = False
    # Kinds of recomputation that one combination of switches is searched for; empty: all.
    recompute_kinds: tuple[str, ...] = ()
    constraints: tuple[
        str, ...
    ] = ()  # expressions of ``meshwright.solver.space.expressions``; each must hold

    @cached_property
    def named(self) -> frozenset[str]:
        """Return the variables that a pin, a prohibition or a bound limits."""
        return frozenset({*self.pin, *self.forbid, *self.bounds})


PRECISIONS = ("bf16", "fp16", "fp8", "fp32")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Work of one optimizer step."""

    global_batch_size: int  # samples per optimizer step
    seq_length: int  # tokens per sequence
    precision: str = "bf16"
    optimizer: str = "adamw"  # one of meshwright.profiles.optimizers
    optimizer_rank: int = 0  # of a low-rank optimizer's projection; 0: its paper's
    optimizer_interval: int = (
        0  # steps between that projection's decompositions; 0: the frameworks' default
    )
    lora_rank: int = 0  # of adapters of a frozen model; 0: every weight is trained
    lora_targets: tuple[str, ...] = ATTENTION_TARGETS  # what they adapt, where lora_rank > 0
    base_precision: BasePrecision = "bf16"  # of the frozen weights, where lora_rank > 0
    trained_modules: tuple[str, ...] = ()  # modules trained in full next to adapters or to trained layers
    trained_layers: str = ""  # the only ones that are trained, such as 28-31; empty: all
    # Overrides of the framework's facts: attention_kernel, gradient_dtype, loss_fused, …
    framework_options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    lengths: SequenceLengths | None = None  # of documents; None: every sequence is one whole document
    images_per_sample: float = 0.0  # images in one sequence, on the mean
    image_tokens: SequenceLengths | None = None  # of the language model that an image becomes
    frozen: tuple[FrozenPart, ...] = ()  # parts that are not trained
    sample: SampleKind = "sequence"  # what a batch is made of
    reference: Reference = "none"  # model that scores a sample without gradients

    @property
    def sample_kind(self) -> Sample:
        """Return the sequences of a sample, and its passes through a reference."""
        return SAMPLES[self.sample]

    @property
    def sample_word(self) -> str:
        """Return a sample with its reference, as launchers list them: ``pair/adapters-off``."""
        beside = "+lora" if self.lora_rank and self.reference == "frozen" else ""
        return self.sample if self.reference == "none" else f"{self.sample}/{self.reference}{beside}"

    @property
    def scored(self) -> float:
        """Return the forward passes without gradients for each trained sequence; 0 without a reference."""
        return self.sample_kind.scored if self.reference != "none" else 0.0

    @property
    def modules_trained(self) -> tuple[str, ...]:
        """Return those of ``TRAINED_MODULES`` that are trained: all of them unless some are frozen."""
        some = self.language_frozen or self.trained_layers
        return self.trained_modules if some else TRAINED_MODULES

    def training_of(self, model: ModelSpec, facts: FrameworkFacts) -> tuple[LayerTraining, ...]:
        """Return what becomes of each of a model's layers; () where all of them are trained."""
        reaching = {EMBEDDING, *([HEAD] if facts.head_reaches_inputs else [])}
        reaches = not reaching.isdisjoint(self.trained_modules)
        return training_of(self.trained_layers, model.num_layers, reaches_inputs=reaches)

    @cached_property
    def language_frozen(self) -> bool:
        """Return whether the language model's own weights are frozen, with adapters next to them or not."""
        return self.lora_rank > 0 or "language" in self.frozen

    @cached_property
    def frozen_parts(self) -> tuple[FrozenPart, ...]:
        """Return the parts that are not trained: the whole tower next to adapters."""
        return TOWER_PARTS if self.lora_rank else self.frozen

    @cached_property
    def adapted_parts(self) -> tuple[FrozenPart, ...]:
        """Return the parts of a tower that have adapters."""
        return tuple(parts_of(self.lora_targets)) if self.lora_rank else ()

    def images(self, tower: TowerSpec | None) -> ImageLoad:
        """Return the images of one sequence as a tower reads them."""
        if tower is None or self.image_tokens is None:
            return ImageLoad()
        return tower.load(self.images_per_sample, self.image_tokens)

    @cached_property
    def filled(self) -> FilledSequences | None:
        """Return how documents lie in the sequences; None if each is as long as its sequence."""
        return None if self.lengths is None else filled(self.lengths, self.seq_length)

    @cached_property
    def tokens_per_sequence(self) -> float:
        """Return the tokens of a sample that are trained on: padding is left out."""
        found, whole = self.filled, self.sample_kind.sequences * self.seq_length
        return whole if found is None else found.real_share * whole

    @cached_property
    def documents(self) -> int | Documents:
        """Return lengths that tokens attend within: one, or several with their shares of all tokens."""
        found = self.filled
        return self.seq_length if found is None else found.documents


def changes_of(workload: Workload, asked: Workload) -> dict[str, str]:
    """Return a workload's changes to the requested one, by name; ``with_changes`` reads it."""
    names = [name for name in ("precision", "optimizer") if getattr(workload, name) != getattr(asked, name)]
    mine, theirs = workload.framework_options, asked.framework_options
    switched = {name: mine[name] for name in sorted(mine) if mine[name] != theirs.get(name)}
    words = {
        name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in switched.items()
    }
    return {name: getattr(workload, name) for name in names} | words


def with_changes(workload: Workload, changes: Mapping[str, str]) -> Workload:
    """Return the workload with the changes that a plan made to it."""
    options = {
        name: float(value) if name in OPTION_NUMBERS else {"true": True, "false": False}.get(value, value)
        for name, value in changes.items()
        if name not in ("precision", "optimizer")
    }
    return replace(
        workload,
        precision=changes.get("precision", workload.precision),
        optimizer=changes.get("optimizer", workload.optimizer),
        framework_options={**workload.framework_options, **options},
    )


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One question put to the planner; frozen, checked once where it is built."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    launcher: str = "megatron-lm"  # a launcher id, "any" or "none"
    options: SearchOptions = field(default_factory=SearchOptions)
    profile: str | None = None  # supplied measured costs, by name; None: the built-in ones
    stack: str | None = None  # the framework that launchers are priced as; None: each launcher's own
    among_unlike: bool = False  # its cluster is one of the unlike node groups of a larger one
    omitted_prediction: int = field(default=0, init=False, compare=False)  # layers that its launcher lacks

    def __post_init__(self) -> None:
        """Let pages of an optimizer leave the GPU; leave out prediction layers that its launcher lacks."""
        if self.workload.optimizer in UNPAGED and "offload" not in self.options.allow:
            paged = replace(self.options, allow=("offload", *self.options.allow))
            object.__setattr__(self, "options", paged)
        if not self.model.num_mtp_layers:
            return
        kind = self.model.tower.model_type if self.model.tower else "any"
        if {kind, "any"} & {*launcher_capabilities(self.launcher).omits_prediction}:
            object.__setattr__(self, "omitted_prediction", self.model.num_mtp_layers)
            object.__setattr__(self, "model", replace(self.model, num_mtp_layers=0))

    @cached_property
    def shares(self) -> dict[tuple[str, int], Problem]:
        """Return known problems of a share of the batch on a node group, for ``meshes_of``."""
        return {}

    def under(self, launcher: str) -> Problem:
        """Return the problem under a launcher, with its names of the layers that have adapters."""
        if launcher == self.launcher:
            return self
        work, able = self.workload, launcher_capabilities(launcher)
        if launcher != "any" and work.lora_rank:
            work = replace(work, lora_targets=able.targets_of(self.model, work.lora_targets))
        return replace(self, launcher=launcher, workload=work)

    @cached_property
    def counts_ends(self) -> bool:
        """Return whether the search's splits count embedding and head, so that these may be alone."""
        return self.options.standalone_stages or 0 in self.options.stage_layers

    @cached_property
    def counts_prediction(self) -> bool:
        """Return whether they also count the prediction layers, which may be alone before a lone head."""
        return self.counts_ends and launcher_capabilities(self.launcher).alone(self.model)[1] > 1

    @cached_property
    def most_chunks(self) -> int:
        """Return the most chunks of the layers, and of the ends if they count."""
        return self.model.num_layers + (2 if self.counts_ends else 0) + self.counts_prediction

    @cached_property
    def places_stages(self) -> bool:
        """Return whether stages are placed on unlike node groups."""
        return not self.cluster.is_homogeneous and launcher_capabilities(self.launcher).places_stages

    @cached_property
    def places_ends_alike(self) -> bool:
        """Return whether the first and the last placed stage have one tensor size: they share a matrix."""
        shares = self.model.tied_embeddings or self.model.num_mtp_layers > 0
        return self.places_stages and shares and launcher_capabilities(self.launcher).placed_ends_alike

    @property
    def power_limit_w(self) -> float:
        """Return the watts that each GPU may draw; 0: as many as its type."""
        return float(self.workload.framework_options.get(POWER_LIMIT, 0.0))

    @cached_property
    def memory_limit_bytes(self) -> int:
        """Return the memory of the smallest GPU of the cluster, as its driver reports it."""
        return min(group.gpu.memory_bytes for group in self.cluster.groups)

    @property
    def training(self) -> tuple[LayerTraining, ...]:
        """Return what becomes of each layer; () where all of them are trained."""
        return self.workload.training_of(self.model, framework_facts(framework_of(self.priced_as)))

    @cached_property
    def priced_as(self) -> str:
        """Return the framework, or the launcher with its framework, that sets the price."""
        return self.stack or self.launcher

    @cached_property
    def model_flops_per_token(self) -> float:
        """Return forward and backward FLOPs per token; of frozen weights only a trained head's count."""
        work, model = self.workload, self.model
        flops = model.model_flops_per_token(work.documents, frozen=work.language_frozen)
        if work.trained_layers:
            flops = self._partly_trained_flops
        elif HEAD in work.trained_modules:
            flops += model.head_forward_flops_per_token()
        if model.tower is None:
            return flops
        images = model.image_flops(work.images(model.tower), work.frozen_parts, work.adapted_parts)
        return flops + images / work.tokens_per_sequence

    @cached_property
    def _partly_trained_flops(self) -> float:
        """Return FLOPs per token of a language model of which some layers are trained."""
        model, seq = self.model, self.workload.documents
        found = model.head_forward_flops_per_token() * (2.0 + (HEAD in self.workload.trained_modules))
        for shape, each in zip(model.layer_shapes(), self.training, strict=True):
            forward = model.forward_flops_of(shape, seq)
            scores = model.shaped(shape).score_flops_per_token(seq)
            found += (
                forward if each == BELOW else 3.0 * forward if each == TRAINED else 2.0 * forward + scores
            )
        return found

    @cached_property
    def split_model(self) -> ModelSpec:
        """Return the model that tensor-parallel ranks split, without a tower that each of them holds."""
        whole = launcher_capabilities(self.launcher).whole_towers and self.model.tower is not None
        return replace(self.model, tower=None) if whole else self.model

    def tokens_per_sequence(self, tensor: int, context: int, *, sequence_parallel: bool) -> float:
        """Return the real tokens of a sequence on such ranks, for which packed documents are filled up."""
        work = self.workload
        if work.lengths is None or work.lengths.batching != "packing":
            return work.tokens_per_sequence
        multiple = packing_multiple(self.launcher, tensor, context, sequence_parallel=sequence_parallel)
        share = packed_share(work.lengths, work.seq_length, multiple)
        return share * work.sample_kind.sequences * work.seq_length

    def tokens_of(self, config: Configuration) -> float:
        """Return the real tokens of a step of a configuration."""
        each = self.tokens_per_sequence(
            config.tensor_parallel_size, config.context_parallel_size,
            sequence_parallel=config.sequence_parallel and config.tensor_parallel_size > 1,
        )  # fmt: skip
        return config.global_batch_size * each

    @cached_property
    def model_figures(self) -> dict[str, str | int]:
        """Return the model's name and exact counts, and its trained weights, adapters included."""
        figures, work = self.model.figures(), self.workload
        trained: str | int = figures["num_parameters"]
        if work.frozen:
            tower = self.model.tower_parameters()
            language = 0 if work.language_frozen else self.model.num_parameters() - tower
            trained = language + self.model.tower_parameters(work.frozen)
        if work.trained_layers:
            each, named = self.model.parameters_by_layer(), layers_named(work.trained_layers)
            trained = sum(each[layer] for layer in named if layer < len(each))
            tied = self.model.tied_embeddings
            whole = [name for name in work.trained_modules if not (tied and name == HEAD)]
            trained += sum(copied_parameters(self.model, name) for name in whole)
            trained += self.model.tower_parameters(work.frozen)
        if work.lora_rank:
            norms, rotates = (bool(work.framework_options.get(kind)) for kind in ("dora", "oft"))
            trained = adapter_parameters(
                self.model, work.lora_rank, work.lora_targets, norms=norms, rotates=rotates
            )
            trained += sum(copied_parameters(self.model, name) for name in work.trained_modules)
        return {**figures, "num_trainable_parameters": trained}


def real_tokens(problem: Problem, columns: Columns) -> FloatArray:
    """Return the real tokens of a sequence of every row, shape (n,)."""
    if problem.workload.lengths is None:
        return np.full(len(columns), float(problem.workload.tokens_per_sequence))
    shapes = (columns.tensor_parallel_size, columns.context_parallel_size, columns.sequence_parallel)
    few, of_row = np.unique(np.stack(shapes, axis=1), axis=0, return_inverse=True)
    each = [problem.tokens_per_sequence(t, c, sequence_parallel=bool(s)) for t, c, s in few.tolist()]
    return np.array(each, dtype=np.float64)[of_row.ravel()]


# --------------------------------------------------------------------------------------------------
# The global batches that a request leaves open.


def batch_sizes(problem: Problem) -> tuple[int, ...]:
    """Return sequences per optimizer step, largest first; the largest is the workload's own."""
    return tuple(sorted({problem.workload.global_batch_size, *problem.options.batch_sizes}, reverse=True))


def with_batch(problem: Problem, batch: int) -> Problem:
    """Return the problem with one global batch alone."""
    if batch == problem.workload.global_batch_size and not problem.options.batch_sizes:
        return problem
    return replace(
        problem,
        workload=replace(problem.workload, global_batch_size=batch),
        options=replace(problem.options, batch_sizes=()),
    )


# --------------------------------------------------------------------------------------------------
# A short name for what is to be decided.


def on_group(problem: Problem, group: NodeGroup) -> Problem:
    """Return the same model and workload on one node group alone."""
    cluster = ClusterSpec(name=group.gpu.slug, groups=(group,))
    among = problem.among_unlike or not problem.cluster.is_homogeneous
    return replace(problem, cluster=cluster, among_unlike=among)


def meshes_of(problem: Problem, config: Configuration) -> list[tuple[Problem, Configuration]]:
    """Return the meshes with rules that a configuration must keep, each with the problem that states them.

    A mesh over all nodes is its own. Stages on node groups are, for each group and tensor-parallel size,
    those of a mesh on that group alone which processes the share of its class of replicas.
    """
    if not config.is_placed:
        return [(problem, config)]
    found = list[tuple[Problem, Configuration]]()
    for one in config.classes:
        for stage in dict.fromkeys(one.stage_groups):
            key = (stage.group, one.global_batch_size)
            if key not in problem.shares:
                work = replace(problem.workload, global_batch_size=one.global_batch_size)
                group = problem.cluster.group_named[stage.group]
                problem.shares[key] = on_group(replace(problem, workload=work), group)
            found.append((problem.shares[key], alike(one, stage.tensor_parallel_size)))
    return found


def lacking_gpus(problem: Problem, config: Configuration) -> dict[str, tuple[int, int]]:
    """Return the GPUs that stages take and those that there are, by node group that has too few."""
    used, groups = Counter[str](), problem.cluster.group_named
    for stage in (stage for one in config.classes for stage in one.stage_groups):
        used[stage.group] += stage.num_gpus
    have = {name: groups[name].num_gpus for name in used}
    return {name: (count, have[name]) for name, count in used.items() if count > have[name]}


def problem_digest(problem: Problem) -> str:
    """Return SHA-256, in hex, of model, cluster, workload and launcher, without the search's limits.

    Facts of the model that have their default are left out, and so are a frozen base in bf16, nothing
    trained next to adapters, the usual interval of an optimizer and samples of one sequence, so that a new
    fact changes no digest.
    Warnings of the cluster count as none, so that their wording changes none either.

    So a configuration has one plan id for a problem, however many plans were asked for.
    """
    work = problem.workload
    as_usual = {
        "base_precision": work.base_precision == "bf16",
        "trained_modules": not work.trained_modules,
        "trained_layers": not work.trained_layers,
        "optimizer_interval": work.optimizer_interval in (0, USUAL_INTERVAL),
        "lengths": work.lengths is None,
        "sample": work.sample == "sequence",
        "reference": work.reference == "none",
        **dict.fromkeys(("images_per_sample", "image_tokens", "frozen"), problem.model.tower is None),
    }
    parts = {
        "model": model_to_mapping(problem.model),
        "cluster": {**problem.cluster.to_mapping(), "warnings": ()},
        "workload": {name: value for name, value in asdict(work).items() if not as_usual.get(name)},
        "launcher": problem.launcher,
        **({} if problem.stack is None else {"stack": problem.stack}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


# --------------------------------------------------------------------------------------------------
# How many GPUs a plan may use: all but the spare ones, or those that the request leaves open.


def per_node_of(problem: Problem) -> int:
    """Return the GPUs of a node; of the smallest one where nodes differ."""
    return min(group.gpus_per_node for group in problem.cluster.groups)


def can_start(problem: Problem, num_gpus: int) -> bool:
    """Return whether the launcher can start a rank on each of so many GPUs of as few nodes as hold them.

    It starts the same number on every node, or fewer on the last one.
    """
    per_node = per_node_of(problem)
    alike = all(group.gpus_per_node == per_node for group in problem.cluster.groups)
    whole = num_gpus % per_node == 0 or launcher_capabilities(problem.launcher).short_last_node
    return num_gpus <= per_node or (alike and whole)


_KEPT = 256  # results of each function
Args = TypeVarTuple("Args")
Found = TypeVar("Found")


def remembered(find: Callable[[Problem, *Args], Found]) -> Callable[[Problem, *Args], Found]:
    """Keep what a function finds of the last problems, which are told apart by identity, not by value."""
    known = dict[tuple[object, ...], tuple[Problem, Found]]()

    @wraps(find)
    def found(problem: Problem, *args: *Args) -> Found:
        key = (id(problem), *args)  # it is kept, so that no other gets its number
        if (before := known.get(key)) is None:
            if len(known) >= _KEPT:
                known.clear()
            before = known[key] = problem, find(problem, *args)
        return before[1]

    return found


def altered(problem: Problem, **fields: Any) -> Problem:  # noqa: ANN401 - of any field
    """Return a problem with other fields; itself where they are equal, for what is remembered of it."""
    other = replace(problem, **fields)
    return problem if other == problem else other


def usable_gpus(problem: Problem) -> int:
    """Return the GPUs of the cluster without its spare nodes."""
    return problem.cluster.num_gpus - problem.options.reserve_nodes * per_node_of(problem)


def gpu_counts(problem: Problem) -> tuple[int, ...]:
    """Return every number of GPUs that the request leaves open, largest first."""
    if problem.options.num_gpus:
        return tuple(sorted({*problem.options.num_gpus}, reverse=True))
    most, per_node = usable_gpus(problem), per_node_of(problem)
    open_counts = {nodes * per_node for nodes in problem.options.num_nodes}
    return tuple(sorted((n for n in open_counts if n <= most), reverse=True)) or (most,)


def allows_nodes_of(problem: Problem, num_gpus: int) -> bool:
    """Return whether the request allows the number of nodes that so many GPUs take."""
    named = problem.options.num_nodes
    return not named or -(-num_gpus // per_node_of(problem)) in named


def searched_switches(problem: Problem) -> tuple[str, ...]:
    """Return the switches that are searched under a problem's launchers."""
    names, every = allowed_switches(problem.options.allow), switches()
    unstated = [name for name in names if _leaves_open(problem, every[name])]
    found = (
        name
        for launcher in launchers_of(problem.launcher)
        for name in unstated
        if every[name].settings_of(launcher, problem.model, _gpus_of(problem))
    )
    return tuple(dict.fromkeys(found))


def left_closed(problem: Problem) -> list[Switch]:
    """Return the switches that a request must allow by name, and neither allows nor states."""
    allow = problem.options.allow
    named = [one for one in switches().values() if one.beside and one.beside not in allow]
    return [one for one in named if one.also in ("", *allow) and _leaves_open(problem, one)]


def _gpus_of(problem: Problem) -> list[GpuSpec]:
    return [group.gpu for group in problem.cluster.groups]


def _leaves_open(problem: Problem, switch: Switch) -> bool:
    """Return whether a request states no option of a switch that is searched for its workload."""
    work = problem.workload
    kinds = (work.sample, switch.samples), (work.base_precision, switch.bases)
    meant = all(own in (named or (own,)) for own, named in kinds)
    return meant and not switch.options & work.framework_options.keys()


def under_last_setting(problem: Problem, name: str) -> Problem | None:
    """Return the problem under the last setting of a switch; None without a choice, or where it is open."""
    switch, work = switches()[name], problem.workload
    settings = switch.settings_of(problem.launcher, problem.model, _gpus_of(problem))
    if len(settings) <= 1 or name in problem.options.allow or not _leaves_open(problem, switch):
        return None
    options = {**work.framework_options, **settings[-1].options}
    return replace(problem, workload=replace(work, framework_options=options))


def among_usual(problem: Problem) -> Problem:
    """Return the problem, searched among its usual candidates alone."""
    return altered(problem, options=replace(problem.options, usual=True))


def for_one_plan(options: SearchOptions) -> SearchOptions:
    """Return options that ask for the best plan, and nothing beside it."""
    return replace(options, top_k=1, certify="none", diverse=False, pareto=False, baseline=None)


def on_gpus(problem: Problem, numbers: tuple[int, ...]) -> Problem:
    """Return the problem on these numbers of GPUs; on its own if there are none."""
    return altered(problem, options=replace(problem.options, num_gpus=numbers))


def on_switches(problem: Problem, other: Problem) -> Problem:
    """Return the problem under the switches of another one, and for its kinds of recomputation."""
    chosen, switches = other.options, other.workload.framework_options
    return replace(
        problem,
        workload=replace(problem.workload, framework_options=switches),
        options=replace(
            problem.options, recompute_kinds=chosen.recompute_kinds, constraints=chosen.constraints
        ),
    )


def are_named(problem: Problem) -> bool:
    """Return whether only these numbers of GPUs count, even if no configuration uses all of them."""
    return bool(problem.options.num_gpus or problem.options.num_nodes)


def may_use_fewer(problem: Problem) -> bool:
    """Return whether plans on fewer GPUs are ranked with those on all.

    Objectives per GPU or token are best on few GPUs, so that they are asked on all that can be used.
    """
    options = problem.options
    by_step = options.objective == "step_time" and options.gpus == "all"
    return by_step and not options.num_gpus and not problem.places_stages


# --------------------------------------------------------------------------------------------------
# How far a search has come.


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One report of a running search."""

    stage: str  # enumerating, bounding, solving, certifying, done
    explored: int
    total: int
    incumbent_step_time_s: float | None = None
    bound_step_time_s: float | None = None  # no plan that may yet be ranked is faster
    gap: float | None = None
    elapsed_s: float


OnProgress = Callable[[Progress], None]
ShouldStop = Callable[[], bool]
