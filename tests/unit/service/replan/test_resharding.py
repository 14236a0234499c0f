"""Bytes that move between layouts, held against sets of the very pieces that ranks hold."""

import numpy as np
import pytest

from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.service.replan.resharding import STATE_BYTES, WEIGHT_BYTES, moved, positions_of
from meshwright.solver.configuration import Configuration

CELLS = 24  # each layer is cut so fine that every slice below is a whole number of cells


def small_model(**changes: object) -> ModelSpec:
    return ModelSpec(
        name="small", num_layers=4, hidden_size=8, ffn_hidden_size=16, num_attention_heads=4,
        num_kv_heads=4, head_dim=2, vocab_size=32, **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def layout(
    tp: int, dp: int, split: tuple[int, ...], *, zero: int = 1, ep: int = 1, vpp: int = 1
) -> Configuration:
    return Configuration(
        tensor_parallel_size=tp, data_parallel_size=dp, pipeline_parallel_size=len(split) // vpp,
        virtual_pipeline_size=vpp, expert_parallel_size=ep, zero_stage=zero,
        zero_shard_size=dp if zero else 1, stage_layers=split,
    )  # fmt: skip


def pieces(config: Configuration, rank: int) -> set[tuple[str, int, int, str]]:
    """(kind, part, cell, what) that a rank holds, written down one by one: tp fastest, then dp, then pp."""
    tp, dp, pp = config.tensor_parallel_size, config.data_parallel_size, config.pipeline_parallel_size
    t, d, p = rank % tp, rank // tp % dp, rank // (tp * dp)
    parts, first = list[int](), 0
    for chunk, count in enumerate(config.stage_layers):
        if chunk % pp == p:
            parts += range(first, first + count)
        first += count
    parts += [first] if p == 0 else []
    parts += [first + 1] if (len(config.stage_layers) - 1) % pp == p else []

    def cells(index: int, of: int) -> range:
        return range(index * CELLS // of, (index + 1) * CELLS // of)

    ep = config.expert_parallel_size
    inner = t + tp * d
    copies = tp * dp // ep  # ranks that hold the same experts
    own = {
        "dense": (cells(t, tp), cells(t * dp + d, tp * dp)),
        "experts": (cells(inner % ep, ep), cells(inner % ep * copies + inner // ep, tp * dp)),
    }
    found = set()
    for kind, (weights, states) in own.items():
        cut = states if config.zero_stage else weights
        for part in parts:
            found |= {
                (kind, part, cell, "weights") for cell in (cut if config.zero_stage == 3 else weights)
            }
            found |= {(kind, part, cell, "states") for cell in cut}
    return found


def size_of(model: ModelSpec, piece: tuple[str, int, int, str]) -> float:
    """Bytes of one cell."""
    kind, part, _, what = piece
    each = WEIGHT_BYTES if what == "weights" else STATE_BYTES
    experts = 0 if model.moe is None else model.moe.num_experts * model.expert_parameters()
    layer = model.layer_parameters("dense" if model.moe is None else "moe")
    if part >= model.num_layers:
        ends = (model.embedding_parameters, model.head_parameters() + model.final_norm_parameters)
        whole = ends[part - model.num_layers] if kind == "dense" else 0
    else:
        whole = layer - experts if kind == "dense" else experts
    return each * whole / CELLS


PAIRS = [
    (layout(2, 2, (2, 2)), layout(2, 1, (2, 2))),  # a replica less
    (layout(2, 2, (2, 2)), layout(1, 2, (1, 2, 1))),  # no tensor ranks, three stages
    (layout(1, 4, (4,), zero=3), layout(2, 2, (4,), zero=0)),  # shards of weights to whole ones
    (layout(2, 2, (1, 1, 1, 1), vpp=2), layout(2, 2, (2, 2))),  # chunks in turns to whole halves
]


@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("gone", [(), (0,), (1,)])
@pytest.mark.parametrize("moe", [False, True])
def test_what_moves_is_what_the_same_gpu_did_not_hold(
    before: Configuration, after: Configuration, gone: tuple[int, ...], moe: bool
) -> None:
    model = small_model(moe=MoeSpec(num_experts=4, top_k=2, ffn_hidden_size=8) if moe else None)
    positions = positions_of(before.num_gpus, 2), positions_of(after.num_gpus, 2, gone)
    found = moved(model, before, after, positions)
    held = {int(gpu): pieces(before, rank) for rank, gpu in enumerate(positions[0])}
    needed = [pieces(after, rank) for rank in range(after.num_gpus)]
    lacking = [
        sum(size_of(model, piece) for piece in mine - held.get(int(gpu), set()))
        for mine, gpu in zip(needed, positions[1], strict=True)
    ]
    whole = [sum(size_of(model, piece) for piece in mine) for mine in needed]
    assert found.moved_bytes == pytest.approx(sum(lacking))
    assert found.most_moved_bytes == pytest.approx(max(lacking))
    assert found.needed_bytes == pytest.approx(sum(whole))


def test_experts_move_with_the_ranks_that_hold_them() -> None:
    model = small_model(moe=MoeSpec(num_experts=4, top_k=2, ffn_hidden_size=8))
    before, after = layout(2, 2, (4,), ep=2), layout(2, 2, (4,), ep=4)
    positions = positions_of(4, 2), positions_of(4, 2)
    found = moved(model, before, after, positions)
    lacking = [pieces(after, rank) - pieces(before, rank) for rank in range(4)]
    assert found.moved_bytes == pytest.approx(sum(size_of(model, one) for some in lacking for one in some))


def test_the_same_layout_on_the_same_gpus_moves_nothing_and_a_new_node_needs_all_of_its_own() -> None:
    model, same = small_model(), layout(2, 2, (2, 2))
    here = positions_of(8, 2)
    assert moved(model, same, same, (here, here)).moved_bytes == 0.0
    spare = positions_of(8, 2, (1,), replaced=True)
    assert spare.tolist() == [0, 1, 8, 9, 4, 5, 6, 7]  # node 4 stands where node 1 stood
    found = moved(model, same, same, (here, spare))
    own = [sum(size_of(model, piece) for piece in pieces(same, rank)) for rank in (2, 3)]
    assert found.moved_bytes == pytest.approx(sum(own))


def test_ranks_pass_over_the_nodes_that_are_gone() -> None:
    assert positions_of(6, 2, (1,)).tolist() == [0, 1, 4, 5, 6, 7]
    assert np.array_equal(positions_of(3, 4), [0, 1, 2])
