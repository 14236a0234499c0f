"""Configurations as columns: a structure of arrays, one entry per configuration.

The scalar answer is the same code on a column of one, so there is one cost model, one memory
model and one rule set. Words are stored as small integers (``SCHEDULES``, ``RECOMPUTE``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import KW_ONLY, asdict, dataclass, fields, is_dataclass, replace
from functools import cache, cached_property, partial
from operator import itemgetter, methodcaller
from random import Random
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Place of one pipeline stage of a mixed cluster, with all its data-parallel replicas."""

    group: str  # node group, as ``ClusterSpec.group_names`` calls it
    num_gpus: int
    num_nodes: float  # 0.5: half a node
    tensor_parallel_size: int


# --------------------------------------------------------------------------------------------------
# The variables of a configuration. A field of ``Configuration`` states all that is generally known of its
# variable; ``VARIABLES`` collects it for columns, limits of requests, readers, tables and comparisons.


SCHEDULES = (
    "none", "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zb",
    "zb_1p", "zb_2p", "zb_h1", "zb_h2", "zb_v", "dualpipe_v",
)  # fmt: skip
# Those that run the weight gradient as a pass of its own, later than the input gradient.
SPLIT_BACKWARD = ("interleaved_zb", "zb_1p", "zb_2p", "zb_h1", "zb_h2", "zb_v", "dualpipe_v")
RECOMPUTE = ("none", "selective", "full")
# What leaves the GPU, joined by +, for host memory or for NVMe drives.
OFFLOAD = (
    "none", "optimizer", "activations", "optimizer+activations", "optimizer+parameters",
    "optimizer+parameters@nvme", "optimizer@nvme", "optimizer@nvme+parameters",
    "optimizer@nvme+parameters@nvme", "optimizer+parameters+activations", "parameters",
)  # fmt: skip
MAX_SIZE = 2**31 - 1  # of an integer variable as written by a user
# How context-parallel ranks share attention: keys and values pass round a ring, heads are exchanged for
# tokens, or so many neighbours exchange and rings of the others are left.
HIERARCHICAL = {f"all_to_all_{size}+ring": size for size in (2, 4, 8, 16)}
CONTEXT_MODES = ("ring", "all_to_all", *HIERARCHICAL)
RING, ALL_TO_ALL = CONTEXT_MODES.index("ring"), CONTEXT_MODES.index("all_to_all")
_EXCHANGING = np.array([1, MAX_SIZE, *HIERARCHICAL.values()])  # by mode, but no more than there are
# Orders in which ranks are numbered along the axes of the mesh, fastest first. Tensor-parallel ranks come
# first in every one of them: they talk in every layer. Experts are split over the innermost ranks of a
# stage, whichever axes those belong to. The first order is the launchers' own.
RANK_ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp")


# What two configurations are that differ in a variable: of two meshes of GPUs; of two layouts of one mesh,
# which are ranked apart; or one layout run in two ways, of which the better represents it.
Scope = Literal["mesh", "layout", "run"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of a configuration."""

    meaning: str  # in one sentence
    _: KW_ONLY
    scope: Scope
    name: str = ""  # of its field in ``Configuration``
    off: int | str | bool = 1  # value that does nothing: the field's default
    short: str = ""  # ``tp``; empty: people write the name out
    in_tables: bool = False  # has a column in tables of plans; the others are named where they are on
    least: int = 1  # legal values of an integer
    most: int = MAX_SIZE
    words: tuple[str, ...] = ()  # legal values of a word
    column: str = ""  # its column in ``Columns``, where that has another name
    part_of: str = ""  # the variable that it refines: two configurations differ in both or in neither
    needs: str = ""  # what ``Capabilities`` calls it where some launchers lack it; a rule refuses it there
    allowed_by: str = ""  # the word of ``allow`` without which a search leaves it off
    follows: bool = False  # from the other variables and the batch, as a rule
    uniform_only: bool = False  # off where stages are placed on unlike node groups

    @property
    def is_integer(self) -> bool:
        """Return whether its values are integers."""
        return type(self.off) is int

    def code(self, value: float | str) -> int:
        """Return a value as the integer of a column."""
        return self.words.index(str(value)) if self.words else int(value)

    def value(self, code: int) -> int | str | bool:
        """Return the value that an integer of a column represents."""
        if self.words:
            return self.words[code]
        return code if self.is_integer else bool(code)


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Split of one training job over GPUs; 1 is off."""

    tensor_parallel_size: Annotated[
        int,
        Variable(
            "Tensor parallel size: GPUs that split every layer's matrices",
            short="tp",
            in_tables=True,
            scope="mesh",
        ),
    ] = 1
    sequence_parallel: Annotated[
        bool,
        Variable(
            "Whether tensor-parallel ranks split the tokens between matrix products",
            part_of="tensor_parallel_size",
            scope="run",
        ),
    ] = False
    pipeline_parallel_size: Annotated[
        int,
        Variable(
            "Pipeline parallel size: stages that hold consecutive layers",
            short="pp",
            in_tables=True,
            scope="mesh",
        ),
    ] = 1
    virtual_pipeline_size: Annotated[
        int,
        Variable(
            "Virtual pipeline size: chunks of layers on each stage. More chunks make the pipeline "
            "bubble smaller",
            short="vpp",
            in_tables=True,
            uniform_only=True,
            scope="run",
        ),
    ] = 1
    context_parallel_size: Annotated[
        int,
        Variable(
            "Context parallel size: GPUs that split every sequence",
            short="cp",
            in_tables=True,
            needs="context_parallel",
            scope="mesh",
        ),
    ] = 1
    expert_parallel_size: Annotated[
        int,
        Variable(
            "Expert parallel size: GPUs that divide the experts among them",
            short="ep",
            in_tables=True,
            needs="expert_parallel",
            scope="mesh",
        ),
    ] = 1
    expert_tensor_parallel_size: Annotated[
        int,
        Variable(
            "Expert tensor parallel size: GPUs that split every expert",
            short="etp",
            part_of="expert_parallel_size",
            needs="expert_tensor_parallel",
            uniform_only=True,
            scope="mesh",
        ),
    ] = 1
    data_parallel_size: Annotated[
        int,
        Variable(
            "Data parallel size: replicas that train on different sequences",
            short="dp",
            in_tables=True,
            follows=True,
            scope="mesh",
        ),
    ] = 1
    zero_stage: Annotated[
        int,
        Variable(
            "ZeRO stage, what replicas shard: 1 optimizer states, 2 also gradients, 3 also weights",
            short="zero",
            in_tables=True,
            least=0,
            most=3,
            scope="layout",
        ),
    ] = 0
    zero_shard_size: Annotated[
        int, Variable("Ranks that share one set of shards, 1 for ZeRO stage 0", follows=True, scope="run")
    ] = 1
    weight_shard_size: Annotated[
        int,
        Variable(
            "Weight shard size: data-parallel ranks that each store a part of every dense matrix and "
            "gather it for every product",
            short="ws",
            needs="weight_shards",
            allowed_by="weight_shards",
            uniform_only=True,
            scope="layout",
        ),
    ] = 1
    expert_weight_shard_size: Annotated[
        int,
        Variable(
            "Expert weight shard size: ranks that each store a part of every expert and gather it "
            "for every product",
            short="ews",
            needs="weight_shards",
            allowed_by="weight_shards",
            uniform_only=True,
            scope="layout",
        ),
    ] = 1
    micro_batch_size: Annotated[
        int,
        Variable(
            "Micro-batch size: sequences that pass the pipeline together",
            short="mbs",
            in_tables=True,
            scope="layout",
        ),
    ] = 1
    num_microbatches: Annotated[
        int, Variable("Micro-batches per pipeline and step", follows=True, scope="layout")
    ] = 1
    pipeline_schedule: Annotated[
        str,
        Variable(
            "Order in which a stage runs its forward and backward passes",
            words=SCHEDULES,
            follows=True,
            scope="run",
        ),
    ] = "none"
    recompute_granularity: Annotated[
        str,
        Variable(
            "What the backward pass recomputes: nothing, core attention (selective) or whole layers",
            words=RECOMPUTE,
            column="recompute",
            scope="run",
        ),
    ] = "none"
    recompute_layers: Annotated[
        int,
        Variable(
            "Recomputed layers at the start of each chunk. The model's number of layers recomputes "
            "them all",
            least=0,
            part_of="recompute_granularity",
            scope="run",
        ),
    ] = 0
    offload: Annotated[
        str,
        Variable(
            "What lives in host memory or on NVMe drives",
            words=OFFLOAD,
            allowed_by="offload",
            uniform_only=True,
            scope="run",
        ),
    ] = "none"
    context_parallel_mode: Annotated[
        str,
        Variable(
            "How context-parallel ranks share a sequence: keys and values pass around a ring, ranks "
            "exchange heads for tokens, or both (the number of neighbors that exchange; rings "
            "connect those groups)",
            words=CONTEXT_MODES,
            part_of="context_parallel_size",
            uniform_only=True,
            scope="run",
        ),
    ] = "ring"
    rank_order: Annotated[
        str,
        Variable(
            "Mesh axes, fastest first: decides which axis crosses which link",
            words=RANK_ORDERS,
            uniform_only=True,
            scope="run",
        ),
    ] = "tp-cp-dp-pp"
    stage_layers: tuple[int, ...] = ()  # pp * vpp entries: layers of each chunk in model order
    stage_recompute_layers: tuple[int, ...] = ()  # of each chunk, some above 0; empty: all alike
    stage_groups: tuple[StageGroup, ...] = ()  # mixed cluster; tensor_parallel_size is the largest stage's
    replicas: tuple[Configuration, ...] = ()  # unlike ones: each class with its own groups and share

    @cached_property
    def is_placed(self) -> bool:
        """Return whether its stages are on node groups that it names."""
        return bool(self.stage_groups or self.replicas)

    @property
    def classes(self) -> tuple[Configuration, ...]:
        """Return the classes of replicas: those of unlike ones, or itself."""
        return self.replicas or (self,)

    def with_class(self, at: int, changed: Configuration) -> Configuration:
        """Return the configuration with one of its classes replaced."""
        return joined([changed if number == at else one for number, one in enumerate(self.classes)])

    @cached_property
    def stage_gpus(self) -> tuple[int, ...]:
        """Return the GPUs of every stage of all its replicas, class by class."""
        found = list[int]()
        for one in self.classes:
            each = one.tensor_parallel_size * one.context_parallel_size * one.data_parallel_size
            placed = [stage.num_gpus for stage in one.stage_groups]
            found += placed or [each] * one.pipeline_parallel_size
        return tuple(found)

    @cached_property
    def num_gpus(self) -> int:
        """Return the GPUs used: tp * pp * cp * dp, of all stages and classes."""
        return sum(self.stage_gpus)

    def claimed(self, num_gpus: int) -> int:
        """Return the GPUs out of ``num_gpus`` that it claims: a mesh those in use, stages idle ones too."""
        return num_gpus if self.is_placed else self.num_gpus

    @cached_property
    def global_batch_size(self) -> int:
        """Return the sequences per optimizer step."""
        return sum(
            one.data_parallel_size * one.micro_batch_size * one.num_microbatches for one in self.classes
        )

    @cached_property
    def expert_ranks(self) -> int:
        """Return the ranks that hold the experts of a layer once: ep * etp."""
        return self.expert_parallel_size * self.expert_tensor_parallel_size

    @cached_property
    def replicating_ranks(self) -> int:
        """Return the ranks that hold the same dense weights: dp * cp, without those that share each."""
        return self.data_parallel_size * self.context_parallel_size // self.weight_shard_size

    def layers_of_rank(self, stage: int) -> tuple[int, ...]:
        """Return layers of each chunk of rank ``stage``; chunk c is on rank c mod pp, or in a V."""
        pp = self.pipeline_parallel_size
        if self.pipeline_schedule in ("zb_v", "dualpipe_v") and self.virtual_pipeline_size > 1:
            return (self.stage_layers[stage], self.stage_layers[2 * pp - 1 - stage])
        return self.stage_layers[stage::pp]


Alone = tuple[int, int]  # chunks without a layer that a split may begin and end with


def holds_layers(split: Sequence[int], alone: Alone) -> bool:
    """Return whether every chunk holds a layer but those that hold an end of the model alone.

    That is the embedding at the beginning, the head at the end, and the prediction layers before it.
    """
    first = next((at for at, count in enumerate(split) if count), 0)
    last = next((at for at, count in enumerate(reversed(split)) if count), 0)
    inner = split[min(first, alone[0]) : len(split) - min(last, alone[1])]
    return min(inner, default=1) >= 1


def predicts_alone(split: Sequence[int]) -> bool:
    """Return whether the last two chunks have no layers: of the prediction layers, and of the head."""
    return len(split) > 2 and not (split[-1] or split[-2])  # noqa: PLR2004 - layers come before them


def counted(split: Sequence[int], *, ends: bool, prediction: bool) -> tuple[int, ...]:
    """Return a split that counts the ends of the model as a layer each, or the prediction layers."""
    found = list(split)
    if ends:
        found[0] += 1
        found[-1] += 1
    if prediction:
        found[-2 if predicts_alone(split) else -1] += 1
    return tuple(found)


def chunk_sizes(alone: Alone) -> str:
    """Return, in words, the conditions of ``holds_layers``."""
    every = "at least one layer in every chunk"
    also = (
        ", and so may the second-to-last if the last has none (prediction layers)" if alone[1] > 1 else ""
    )
    return (
        f"{every}. With several chunks the first and the last may have none{also}" if any(alone) else every
    )


VARIABLES: Mapping[str, Variable] = {
    name: replace(one, name=name, off=getattr(Configuration(), name))
    for name, hint in get_type_hints(Configuration, include_extras=True).items()
    for one in getattr(hint, "__metadata__", ())
}
INTEGER_VARIABLES = tuple(one.name for one in VARIABLES.values() if one.is_integer)
SIZES = tuple(name for name in INTEGER_VARIABLES if VARIABLES[name].least == 1)
LOGICAL_VARIABLES = tuple(one.name for one in VARIABLES.values() if isinstance(one.off, bool))
WORDS = {one.name: one.words for one in VARIABLES.values() if one.words}  # legal ones, by variable
SHORT_NAMES = {one.name: one.short for one in VARIABLES.values() if one.short}
# What each variable keeps where stages are placed on unlike node groups; columns may leave these out.
PLACED_ONLY = {one.name: one.off for one in VARIABLES.values() if one.uniform_only}


# Sizes that plans of one mesh have in common.
MESH = tuple(one.name for one in VARIABLES.values() if one.scope == "mesh")


def mesh_of(config: Configuration) -> tuple[object, ...]:
    """Return what plans of one mesh share; if stages are placed, their groups too."""
    found = list[object]()
    for one in config.classes:
        found += [getattr(one, name) for name in MESH]
        found += sorted({(stage.group, stage.tensor_parallel_size) for stage in one.stage_groups})
    return tuple(found)


def plan_id_of(problem_digest: str, config: Configuration) -> str:
    """Return a stable name: 12 hex digits of SHA-256 over problem and configuration."""
    text = problem_digest + json.dumps(_naming(config, _NAMED), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _naming(config: Configuration, always: Sequence[str]) -> dict[str, Any]:
    values = {
        name: value
        for name, usual in _DEFAULTS.items()
        if (value := getattr(config, name)) != usual or name in always
    }
    if "stage_groups" in values:
        values["stage_groups"] = [asdict(one) for one in config.stage_groups]
    if "replicas" in values:
        values["replicas"] = [_naming(one, _NAMED_OF_REPLICAS) for one in config.replicas]
    return values


# Fields of the first release are part of every name; a field that was added since counts where it is used.
_NAMED = (
    "tensor_parallel_size", "sequence_parallel", "pipeline_parallel_size", "virtual_pipeline_size",
    "context_parallel_size", "expert_parallel_size", "expert_tensor_parallel_size", "data_parallel_size",
    "zero_stage", "zero_shard_size", "micro_batch_size", "num_microbatches", "pipeline_schedule",
    "recompute_granularity", "recompute_layers", "offload", "stage_layers", "stage_recompute_layers",
)  # fmt: skip
# The same of a class of unlike replicas, which came later.
_NAMED_OF_REPLICAS = (*_NAMED, "context_parallel_mode", "rank_order", "stage_groups", "replicas")
_DEFAULTS = asdict(Configuration())


Record = TypeVar("Record")


@cache
def _readers(hint: object) -> Callable[[Any], Any]:
    """Return the function that makes a value of a type hint from its JSON."""
    inner = [one for one in get_args(hint) if one not in (NoneType, ...)]
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(record_from_json, hint)
    if get_origin(hint) is tuple:
        read = _readers(inner[0])
        return lambda values: tuple(map(read, values))
    if isinstance(hint, UnionType) and len(inner) == 1:
        read = _readers(inner[0])
        return lambda value: None if value is None else read(value)
    return lambda value: value


@cache
def _fields_read(kind: type) -> dict[str, Callable[[Any], Any]]:
    return {name: _readers(hint) for name, hint in get_type_hints(kind).items()}


def record_from_json(kind: Callable[..., Record], raw: Mapping[str, Any]) -> Record:
    """Return a dataclass from its JSON, nested ones too.

    Unknown keys, such as those that a sweep or a newer version adds, are ignored. In a configuration they
    raise KeyError: it would be another configuration without them.
    """
    read, exact = _fields_read(kind), kind in (Configuration, StageGroup)
    return kind(**{name: read[name](value) for name, value in dict(raw).items() if exact or name in read})


def configuration_from_json(raw: Mapping[str, Any]) -> Configuration:
    """Return the Configuration of ``Plan.to_json()["config"]``."""
    return record_from_json(Configuration, raw)


# --------------------------------------------------------------------------------------------------
# Configurations made whole: what follows from sizes, groups and split.


def settled_mesh(
    config: Configuration, batch: int, split: tuple[int, ...], schedule: str
) -> Configuration | None:
    """Return one mesh on ``batch`` sequences with all that follows from its sizes; None: too few ranks.

    That is where ranks that share experts or weights do not come out even. A number of recomputed
    layers that some chunk lacks becomes all layers of the model.
    """
    c, ranks = config, config.replicating_ranks
    every = c.data_parallel_size * c.context_parallel_size * c.tensor_parallel_size
    if every % (c.expert_ranks * c.expert_weight_shard_size) or c.data_parallel_size % c.weight_shard_size:
        return None
    full = c.recompute_granularity == "full"
    replayed = c.recompute_layers if c.recompute_layers < min(split) else sum(split)
    return replace(
        c,
        sequence_parallel=c.sequence_parallel and c.tensor_parallel_size > 1,
        context_parallel_mode=c.context_parallel_mode if c.context_parallel_size > 1 else "ring",
        zero_shard_size=ranks if c.zero_stage else 1,
        num_microbatches=max(batch // (c.data_parallel_size * c.micro_batch_size), 1),
        pipeline_schedule=schedule,
        stage_recompute_layers=(),
        recompute_layers=replayed if full else 0,
        stage_layers=split,
        rank_order=plain_order(c),
    )


def settled_on_groups(cluster: ClusterSpec, config: Configuration, batch: int) -> Configuration:
    """Return one pipeline on ``batch`` sequences with all sizes that follow from its stages' groups.

    Recomputed layers of each stage stay, as far as it has so many; counts for another number of stages
    become full recomputation of all layers.
    """
    ranks = config.data_parallel_size * config.context_parallel_size
    full, counts = config.recompute_granularity == "full", config.stage_recompute_layers
    named = full and len(counts) == len(config.stage_layers)
    replayed = tuple(map(min, counts, config.stage_layers)) if named else ()
    stages = tuple(
        StageGroup(
            group=one.group,
            num_gpus=one.tensor_parallel_size * ranks,
            num_nodes=one.tensor_parallel_size * ranks / cluster.group_named[one.group].gpus_per_node,
            tensor_parallel_size=one.tensor_parallel_size,
        )
        for one in config.stage_groups
    )
    largest = max(one.tensor_parallel_size for one in stages)
    return replace(
        config,
        tensor_parallel_size=largest,
        sequence_parallel=largest > 1,
        pipeline_parallel_size=len(stages),
        zero_shard_size=ranks if config.zero_stage else 1,
        num_microbatches=max(batch // (config.data_parallel_size * config.micro_batch_size), 1),
        pipeline_schedule="none" if len(stages) == 1 else "1f1b",
        recompute_layers=max(replayed, default=sum(config.stage_layers) * full),
        stage_recompute_layers=replayed,
        stage_groups=stages,
    )


def alike(config: Configuration, tensor_parallel_size: int) -> Configuration:
    """Return the pipeline as if all stages had one tensor-parallel size and equal nodes."""
    return replace(
        config,
        tensor_parallel_size=tensor_parallel_size,
        sequence_parallel=tensor_parallel_size > 1,
        stage_groups=(),
    )


def joined(classes: Sequence[Configuration]) -> Configuration:
    """Join classes of unlike replicas into one configuration; a single class is one already."""
    if len(classes) == 1:
        return classes[0]
    replicas = sum(one.data_parallel_size for one in classes)
    return replace(classes[0], data_parallel_size=replicas, stage_groups=(), replicas=tuple(classes))


def plain_order(config: Configuration) -> str:
    """Return the first order that numbers every rank as the configuration's own does."""
    sizes = {
        "cp": config.context_parallel_size,
        # Ranks that share weights follow the tensor-parallel ones in every order.
        "dp": config.data_parallel_size // config.weight_shard_size,
        "pp": config.pipeline_parallel_size,
    }

    def real(order: str) -> list[str]:
        """Return the axes that have more than one rank."""
        return [axis for axis in order.split("-") if sizes.get(axis, 1) > 1]

    own = real(config.rank_order)
    return next((order for order in RANK_ORDERS if real(order) == own), config.rank_order)


IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

ALL_LAYERS = 2**20  # recompute_layers of a row that recomputes every layer, whatever the split
PER_STAGE = ALL_LAYERS + 1  # the same of a row with a count of its own for every stage: the least that fits


def is_one_of(column: IntArray, few: Iterable[int]) -> BoolArray:
    """Mark rows with a value among a few; ``numpy.isin`` takes 5 to 40 times as long for them."""
    found = np.zeros(column.shape, dtype=bool)
    for value in few:
        found |= column == value
    return found


class RowSource(Protocol):
    """Where the arrays of some rows are gathered from."""

    def gather(self, names: Iterable[str]) -> list[Any]:
        """Return the named arrays of the rows; a dictionary of arrays stays one."""

    def take(self, index: IntArray) -> RowSource:
        """Return the source of some of the rows, in that order."""


def rows_at(index: IntArray) -> Callable[[Any], Any]:
    """Return what takes the rows at ``index`` from an array; one row is a view, without a copy."""
    if len(index) == 1:
        return itemgetter(slice(int(index[0]), int(index[0]) + 1))
    return methodcaller("take", index, 0)  # several times faster than brackets


@dataclass(frozen=True, slots=True)
class _Picked:
    """Rows of a table, by their numbers."""

    table: Gathered
    index: IntArray

    def gather(self, names: Iterable[str]) -> list[Any]:
        rows = rows_at(self.index)
        return [
            {key: rows(value) for key, value in found.items()} if isinstance(found, dict) else rows(found)
            for found in (getattr(self.table, name) for name in names)
        ]

    def take(self, index: IntArray) -> _Picked:
        return _Picked(self.table, self.index.take(index))


_FEW = 256  # rows: with more, gathering an array costs more than asking for it alone


class Gathered(Sized):
    """Arrays by row; with many rows, each is gathered at its first use, as most are never used."""

    __slots__ = ("_source",)
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def gathered(cls, source: RowSource, number: int) -> Self:
        """Return the rows of a source, given their number."""
        rows = object.__new__(cls)
        if number > _FEW:
            object.__setattr__(rows, "_source", source)
            return rows
        names = cls.__dataclass_fields__
        for name, values in zip(names, source.gather(names), strict=True):
            object.__setattr__(rows, name, values)
        return rows

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - asked of what is not set yet
        """Gather one array."""
        (values,) = object.__getattribute__(self, "_source").gather((name,))
        object.__setattr__(self, name, values)
        return values

    def take(self, index: IntArray | BoolArray | slice) -> Self:
        """Return the rows at ``index``, in that order."""
        if isinstance(index, slice):
            number = len(self)
            if index.indices(number) == (0, number, 1):
                return self
            index = np.arange(*index.indices(number))
        rows = np.flatnonzero(index) if index.dtype == np.bool_ else index.astype(np.int64, copy=False)
        source: RowSource | None = getattr(self, "_source", None)
        return type(self).gathered(_Picked(self, rows) if source is None else source.take(rows), len(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns(Gathered):
    """Arrays of shape (n,), int64: a column for each of ``VARIABLES``, words and flags as integers."""

    tensor_parallel_size: IntArray
    sequence_parallel: IntArray  # 0 | 1
    pipeline_parallel_size: IntArray
    virtual_pipeline_size: IntArray
    context_parallel_size: IntArray
    expert_parallel_size: IntArray
    expert_tensor_parallel_size: IntArray
    data_parallel_size: IntArray
    zero_stage: IntArray
    zero_shard_size: IntArray
    weight_shard_size: IntArray
    expert_weight_shard_size: IntArray
    micro_batch_size: IntArray
    num_microbatches: IntArray
    pipeline_schedule: IntArray
    recompute: IntArray
    recompute_layers: IntArray  # of each chunk, for "full"; ALL_LAYERS: every one; else 0
    offload: IntArray
    context_parallel_mode: IntArray
    rank_order: IntArray

    def __len__(self) -> int:
        """Return the number of configurations."""
        return len(self.tensor_parallel_size)

    @property
    def num_gpus(self) -> IntArray:
        """Return the GPUs used: tp * pp * cp * dp, shape (n,)."""
        return (
            self.tensor_parallel_size * self.pipeline_parallel_size
            * self.context_parallel_size * self.data_parallel_size
        )  # fmt: skip

    @property
    def exchanging(self) -> IntArray:
        """Return context-parallel ranks that exchange heads for tokens; 1: keys and values move, (n,)."""
        among = _EXCHANGING[self.context_parallel_mode]
        return np.asarray(np.minimum(among, self.context_parallel_size))

    @property
    def expert_ranks(self) -> IntArray:
        """Return the ranks that hold the experts of a layer once: ep * etp, shape (n,)."""
        return self.expert_parallel_size * self.expert_tensor_parallel_size

    @property
    def replicating_ranks(self) -> IntArray:
        """Return the ranks that hold the same dense weights: dp * cp / weight_shard_size, shape (n,)."""
        ranks = self.data_parallel_size * self.context_parallel_size
        return np.asarray(np.maximum(ranks // self.weight_shard_size, 1))

    @property
    def global_batch_size(self) -> IntArray:
        """Return the sequences per optimizer step, shape (n,)."""
        return self.data_parallel_size * self.micro_batch_size * self.num_microbatches

    @classmethod
    def plain(cls, **stated: IntArray) -> Columns:
        """Return configurations with the variables of ``PLACED_ONLY`` off where they are left out."""
        rows = len(stated["tensor_parallel_size"])
        return cls(**{**{name: np.full(rows, code, dtype=np.int64) for name, code in _OFF}, **stated})

    @classmethod
    def nothing(cls) -> Columns:
        """Return no configurations."""
        return cls(**{name: np.zeros(0, dtype=np.int64) for name in _COLUMNS})

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """Return all parts, one after the other."""
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS})

    @classmethod
    def of(cls, configurations: Sequence[Configuration]) -> Columns:
        """Return columns of whole configurations; their splits are not part of a row.

        A ``recompute_layers`` that covers every layer of every chunk becomes ``ALL_LAYERS``; a row states
        that by the number of all layers (``configuration``).
        """
        rows = dict[str, list[int]]()
        for name, variable in VARIABLE_OF.items():
            values = [getattr(one, variable.name) for one in configurations]
            rows[name] = [variable.words.index(value) for value in values] if variable.words else values
        rows["recompute_layers"] = [_recomputed(one) for one in configurations]
        return cls(**{name: np.array(values, dtype=np.int64) for name, values in rows.items()})

    def configuration(
        self, row: int, stage_layers: Sequence[int], replayed: Sequence[int] = ()
    ) -> Configuration:
        """Return row ``row`` with a split; ``replayed`` are its recomputed layers by stage, if any."""
        decided: dict[str, Any] = {
            variable.name: variable.value(int(getattr(self, name)[row]))
            for name, variable in VARIABLE_OF.items()
        }
        layers = max(replayed) if replayed else min(decided["recompute_layers"], sum(stage_layers))
        decided["recompute_layers"] = layers
        return Configuration(
            **decided,
            stage_layers=tuple(int(count) for count in stage_layers),
            stage_recompute_layers=tuple(int(count) for count in replayed),
        )


def _recomputed(configuration: Configuration) -> int:
    if configuration.recompute_granularity != "full":
        return 0
    if configuration.stage_recompute_layers:
        return PER_STAGE
    every = configuration.recompute_layers >= max(configuration.stage_layers)
    return ALL_LAYERS if every else configuration.recompute_layers


_SEED = 20


@cache
def hash_factors(count: int) -> IntArray:
    """Return odd factors of a random linear hash; the same ones in every process."""
    draw = Random(_SEED)  # noqa: S311 - no secret; NumPy's generators take 8 ms to import
    return np.array([draw.getrandbits(62) * 2 + 1 for _ in range(count)], dtype=np.int64)


def distinct(values: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the first row of each distinct combination, and every row's combination.

    Combinations are distinguished by a random linear hash, which is then checked value by value. Values
    that are equal in all rows distinguish none and are left out.
    """
    values = [value for value in values if (value != value[:1]).any()] or values[:1]
    hashed = np.zeros(len(values[0]), dtype=np.int64)
    with np.errstate(over="ignore"):
        for value, factor in zip(values, hash_factors(len(values)), strict=True):
            hashed += value * factor
    order = np.argsort(hashed)  # ``np.unique`` sorts stably, which takes twice as long
    fresh = np.diff(hashed.take(order), prepend=0) != 0
    fresh[:1] = True
    first = np.minimum.reduceat(order, np.flatnonzero(fresh)) if len(order) else order
    inverse = np.empty_like(order)
    inverse[order] = np.cumsum(fresh) - 1
    alike = first.take(inverse)
    if not all(np.array_equal(value, value.take(alike)) for value in values):
        _, first, inverse = np.unique(np.stack(values), axis=1, return_index=True, return_inverse=True)
    return first, inverse.ravel()


_COLUMNS = tuple(f.name for f in fields(Columns))
VARIABLE_OF = {one.column or one.name: one for one in VARIABLES.values()}  # by column
_OFF = tuple(
    (VARIABLES[name].column or name, VARIABLES[name].code(off)) for name, off in PLACED_ONLY.items()
)
