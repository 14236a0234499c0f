"""Bytes that move when a job goes on under another layout: what each GPU needs, and what it holds already.

Every rank holds whole layers of its stages; of each a slice of the weights (over tensor ranks; of experts
over expert ranks) and a slice of the optimizer's states, which ZeRO cuts once more. A slice is an interval
of the layer, so that what two layouts share on one GPU is the overlap of intervals times the layers that
both have there. Norms and biases, which are whole on every tensor rank, are counted as if they were split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.cluster import NodeGroup, Reliability
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import BoolArray, Configuration, FloatArray, IntArray
from meshwright.solver.cost.objective import CHECKPOINT_BYTES_PER_WEIGHT

WEIGHT_BYTES = 2.0  # of a weight as the passes use it
STATE_BYTES = CHECKPOINT_BYTES_PER_WEIGHT - WEIGHT_BYTES  # of its fp32 copy and both moments
_SHARDS_STATES, _SHARDS_WEIGHTS = 1, 3  # least ZeRO stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Which interval of every layer each rank holds, shape (ranks, 2): of its weights, of its states."""

    weights: FloatArray
    states: FloatArray

    def bytes_shared(self, other: Slices, mine: IntArray, theirs: IntArray) -> FloatArray:
        """Return the bytes per parameter of a layer that ranks ``mine`` here and ``theirs`` there share."""
        pairs = (
            (WEIGHT_BYTES, self.weights, other.weights),
            (STATE_BYTES, self.states, other.states),
        )
        return np.asarray(sum(size * _overlap(here[mine], there[theirs]) for size, here, there in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlices:
    """The bytes that every rank of a layout holds."""

    stage: IntArray  # of each rank
    parts: BoolArray  # (stages, parts): layers in model order, then embedding and head
    dense: Slices
    experts: Slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The bytes that one change of layout moves."""

    needed_bytes: float  # held by all ranks together afterwards
    moved_bytes: float  # of them not on the same GPU before
    most_needed_bytes: float  # of one rank
    most_moved_bytes: float  # of one rank


def held_by(config: Configuration) -> HeldSlices:
    """Return the bytes that every rank holds under a layout that is one mesh."""
    c, ranks = config, np.arange(config.num_gpus)
    near, beyond = c.weight_shard_size, c.expert_weight_shard_size
    sizes = {
        "tp": c.tensor_parallel_size, "shared": near, "cp": c.context_parallel_size,
        "dp": c.data_parallel_size // near, "pp": c.pipeline_parallel_size,
    }  # fmt: skip
    place, width = dict[str, IntArray](), 1
    for axis in c.rank_order.replace("tp", "tp-shared", 1).split("-"):  # fastest first
        place[axis], width = ranks // width % sizes[axis], width * sizes[axis]
    replica = place["cp"] + sizes["cp"] * place["dp"]
    shards = c.zero_shard_size if c.zero_stage >= _SHARDS_STATES else 1
    dense = _slices(
        place["tp"] * near + place["shared"], sizes["tp"] * near, replica % shards, shards, c.zero_stage
    )
    # experts' ranks number the ranks of a stage anew
    inner = place["tp"] + sizes["tp"] * (place["shared"] + near * replica)
    group = sizes["tp"] * near * sizes["cp"] * sizes["dp"]
    replicas = inner // c.expert_ranks
    copies = group // (c.expert_ranks * beyond) if c.zero_stage >= _SHARDS_STATES else 1
    experts = _slices(
        inner % c.expert_ranks * beyond + replicas % beyond, c.expert_ranks * beyond,
        replicas // beyond % copies, copies, c.zero_stage,
    )  # fmt: skip
    return HeldSlices(stage=place["pp"], parts=_parts(config), dense=dense, experts=experts)


def moved(
    model: ModelSpec,
    before: Configuration,
    after: Configuration,
    positions: tuple[IntArray, IntArray],
) -> Moved:
    """Return the bytes that the ranks of ``after`` need beyond those the same GPUs held under ``before``.

    Args:
        model: the model of these weights and states.
        before: the layout that ran.
        after: the layout that goes on.
        positions: the GPU of every rank of each; a GPU that is gone has no rank of ``after``.
    """
    old, new = held_by(before), held_by(after)
    ranks = np.arange(len(new.stage))
    needed = _bytes(model, new, new, (ranks, ranks))
    rank_on = np.full(int(max(map(np.max, positions))) + 1, -1)
    rank_on[positions[0]] = np.arange(len(old.stage))
    was = rank_on[positions[1]]
    lacking = needed - np.where(was >= 0, _bytes(model, new, old, (ranks, np.maximum(was, 0))), 0.0)
    return Moved(
        needed_bytes=float(needed.sum()),
        moved_bytes=float(lacking.sum()),
        most_needed_bytes=float(needed.max()),
        most_moved_bytes=float(lacking.max()),
    )


def positions_of(
    num_gpus: int, gpus_per_node: int, gone: Sequence[int] = (), *, replaced: bool = False
) -> IntArray:
    """Return the GPUs of so many ranks: nodes in their order, without those that are ``gone``.

    ``replaced``: another node takes the place of each that is gone.
    """
    nodes = -(-num_gpus // gpus_per_node)
    if replaced:
        left = np.arange(nodes)
        left[np.asarray(gone, dtype=np.int64)] = nodes + np.arange(len(gone))
    else:
        left = np.setdiff1d(np.arange(nodes + len(gone)), np.asarray(gone, dtype=np.int64))[:nodes]
    return np.asarray((left[:, None] * gpus_per_node + np.arange(gpus_per_node)).ravel()[:num_gpus])


def load_s(
    found: Moved, checkpoint_bytes: float, reliability: Reliability, num_gpus: int, *, parallel: bool
) -> float:
    """Return seconds to read a checkpoint from shared storage, before what replicas hand on to one another.

    ``parallel``: every byte is read once, whoever needs it; else each rank reads what it needs itself.
    """
    read_bytes = checkpoint_bytes if parallel else found.needed_bytes
    return read_bytes / (reliability.checkpoint_bytes_per_s_per_gpu * num_gpus)


def exchange_s(found: Moved, checkpoint_bytes: float, group: NodeGroup, num_gpus: int) -> float:
    """Return seconds in which ranks get over the network what others have read for them."""
    own = checkpoint_bytes / num_gpus
    return max(found.most_needed_bytes - own, 0.0) / group.inter_node.payload_bytes_per_s


def _slices(split: IntArray, splits: int, shard: IntArray, shards: int, zero_stage: int) -> Slices:
    """Return slice ``split`` of ``splits`` of every layer, its states (weights in ZeRO-3) cut again."""
    whole = np.stack([split, split + 1], axis=1) / splits
    first = split / splits + shard / (splits * shards)
    cut = np.stack([first, first + 1.0 / (splits * shards)], axis=1)
    return Slices(weights=cut if zero_stage >= _SHARDS_WEIGHTS else whole, states=cut)


def _parts(config: Configuration) -> BoolArray:
    stages, layers = config.pipeline_parallel_size, sum(config.stage_layers)
    found = np.zeros((stages, layers + 2), dtype=np.bool_)
    ends = np.cumsum(config.stage_layers)
    holders = [_stage_of(config, chunk) for chunk in range(len(config.stage_layers))]
    for stage, last, count in zip(holders, ends, config.stage_layers, strict=True):
        found[stage, last - count : last] = True
    found[holders[0], layers] = found[holders[-1], layers + 1] = True
    return found


def _stage_of(config: Configuration, chunk: int) -> int:
    """Return the pipeline rank of a chunk: in turns, or down and up again in a V."""
    stages = config.pipeline_parallel_size
    back = config.pipeline_schedule in ("zb_v", "dualpipe_v") and chunk >= stages
    return 2 * stages - 1 - chunk if back else chunk % stages


def _bytes(
    model: ModelSpec, here: HeldSlices, there: HeldSlices, ranks: tuple[IntArray, IntArray]
) -> FloatArray:
    """Return bytes that pairs of ranks hold alike, one of each layout."""
    mine, theirs = ranks
    dense, experts = _parameters(model)
    total = np.zeros(len(mine))
    for weights, slices, others in (
        (dense, here.dense, there.dense),
        (experts, here.experts, there.experts),
    ):
        if weights.any():
            common = (here.parts * weights) @ there.parts.T.astype(np.float64)
            shared = slices.bytes_shared(others, mine, theirs)
            total += common[here.stage[mine], there.stage[theirs]] * shared
    return total


def _parameters(model: ModelSpec) -> tuple[FloatArray, FloatArray]:
    kinds = model.layer_kinds()
    routed = 0 if model.moe is None else model.moe.num_experts * (
        model.expert_parameters() + model.expert_bias_parameters()
    )  # fmt: skip
    experts = np.array([routed if kind == "moe" else 0 for kind in kinds] + [0, 0], dtype=np.float64)
    layers = np.array(model.parameters_by_layer(), dtype=np.float64)
    first = model.embedding_parameters + model.tower_parameters()
    ends = [first, model.head_parameters() + model.final_norm_parameters]
    return np.append(layers, ends) - experts, experts


def _overlap(one: FloatArray, other: FloatArray) -> FloatArray:
    low, high = np.maximum(one[:, 0], other[:, 0]), np.minimum(one[:, 1], other[:, 1])
    return np.asarray(np.maximum(high - low, 0.0))
