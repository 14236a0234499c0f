"""The order in which each rank runs its passes, by schedule.

Sources: 1F1B and interleaved 1F1B follow Megatron-Core's
``forward_backward_pipelining_without_interleaving`` and ``…_with_interleaving`` (groups of pp
micro-batches); gpipe, looped_bfs, interleaved_zb, zb_v and dualpipe_v follow
``torch.distributed.pipelining.schedules`` (PyTorch 2.8); zb_h1 and zb_h2 figures 2 and 3 of Qi et al.
2023 (arXiv:2401.10241), which for zb_h1 is PyTorch's interleaved_zb with one chunk a rank; zb_1p and
zb_2p have these orders as one of those that ``simulate`` tries; zb_v is the order of Qi et al. 2024
(arXiv:2405.15362). dualpipe_v is run as zb_v: that it overlaps a forward with a backward pass is
not modelled.

A pass is a *slot* ``block * m + micro-batch``. A micro-batch visits blocks 1 … 2 C one after the other:
chunks 0 … C-1 forward are blocks 1 … C, chunks C-1 … 0 backward are blocks C+1 … 2 C. Where the backward
pass is split, those are the input gradients, and the weight gradient of chunk c is block 2 C + 2 + 2 c,
behind a block that is always done. So every pass waits for slot - m alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.cost.schedule import SPLIT_BACKWARD, V_SHAPED

_TWICE = ("zb_h2", "zb_2p")  # run twice as far ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Numbers of the passes of one step."""

    num_chunks: int
    num_microbatches: int

    def forward(self, chunk: int, micro: int) -> int:
        """Forward pass."""
        return (chunk + 1) * self.num_microbatches + micro

    def backward(self, chunk: int, micro: int) -> int:
        """Backward pass, or its input gradient where it is split."""
        return (2 * self.num_chunks - chunk) * self.num_microbatches + micro

    def weight(self, chunk: int, micro: int) -> int:
        """Weight gradient of a split backward pass."""
        return (2 * self.num_chunks + 2 + 2 * chunk) * self.num_microbatches + micro


def slots_of(rank: int, *, pp: int, vpp: int, num_microbatches: int, schedule: str) -> list[int]:
    """The passes of one rank in the order in which it runs them."""
    slots = Slots(num_chunks=pp * vpp, num_microbatches=num_microbatches)
    if schedule in V_SHAPED and vpp > 1:
        return _v_shaped(rank, pp, slots)
    if schedule == "looped_bfs":
        return _breadth_first(rank, pp, vpp, slots)
    visits = _visits(rank, pp, vpp, num_microbatches)
    forward = [slots.forward(chunk, micro) for chunk, micro in visits]
    turned = [((vpp - 1) * pp + 2 * rank - chunk, micro) for chunk, micro in visits]
    backward = [slots.backward(chunk, micro) for chunk, micro in turned]
    warmup = min(len(visits), _warmup(rank, pp, vpp, schedule))
    if schedule in SPLIT_BACKWARD:
        weight = [slots.weight(chunk, micro) for chunk, micro in turned]
        lag = 2 * rank if schedule in _TWICE else rank
        return _with_weights(forward, backward, weight, warmup=warmup, lag=lag)
    if schedule == "gpipe":
        warmup = len(visits)
    alternating = [0] * (2 * (len(visits) - warmup))
    alternating[0::2], alternating[1::2] = forward[warmup:], backward[: len(visits) - warmup]
    return forward[:warmup] + alternating + backward[len(visits) - warmup :]


def _visits(rank: int, pp: int, vpp: int, num_microbatches: int) -> list[tuple[int, int]]:
    """Chunk and micro-batch of each forward pass: pp micro-batches through one chunk, then the next."""
    if vpp == 1:
        return [(rank, micro) for micro in range(num_microbatches)]
    group = pp * vpp
    return [
        ((k % group) // pp * pp + rank, k // group * pp + k % pp) for k in range(num_microbatches * vpp)
    ]


def _warmup(rank: int, pp: int, vpp: int, schedule: str) -> int:
    """Forward passes before a rank alternates; one more precedes its first backward pass."""
    behind = pp - rank - 1
    if schedule in _TWICE or (vpp > 1 and schedule not in SPLIT_BACKWARD):
        behind *= 2
    return behind + (vpp - 1) * pp


def _with_weights(
    forward: list[int], backward: list[int], weight: list[int], *, warmup: int, lag: int
) -> list[int]:
    """Forward, input gradient, and the weight gradient of ``lag`` backward passes ago, in turn."""
    order = forward[:warmup]
    for k, slot in enumerate(backward):
        order += forward[warmup + k : warmup + k + 1]
        order.append(slot)
        if k >= lag:
            order.append(weight[k - lag])
    return order + weight[max(len(weight) - lag, 0) :]


def _breadth_first(rank: int, pp: int, vpp: int, slots: Slots) -> list[int]:
    """All micro-batches through one chunk after the other, then back in reverse."""
    chunks, micros = range(rank, pp * vpp, pp), range(slots.num_microbatches)
    forward = [slots.forward(chunk, micro) for chunk in chunks for micro in micros]
    return forward + [
        slots.backward(chunk, micro) for chunk in reversed(chunks) for micro in reversed(micros)
    ]


def _v_shaped(rank: int, pp: int, slots: Slots) -> list[int]:
    """A rank holds chunks ``rank`` and ``2 pp - 1 - rank``; the passes of phantom micro-batches fall away.

    The steady state needs 2 pp - 1 micro-batches; a step with fewer runs the same order without the rest.
    """
    m, ends = slots.num_microbatches, (rank, 2 * pp - 1 - rank)
    micros = max(2 * pp - 1, m)
    done = {(kind, end): 0 for kind in "FBW" for end in (0, 1)}
    number = {"F": slots.forward, "B": slots.backward, "W": slots.weight}
    order: list[int] = []

    def run(*passes: str) -> None:
        """Run passes such as ``F0``: the next forward pass of the first chunk."""
        for one in passes:
            kind, end = one[0], int(one[1])
            micro = done[kind, end]
            done[kind, end] += 1
            if micro < m:
                order.append(number[kind](ends[end], micro))

    run(*["F0"] * (2 * (pp - rank) - 1))
    run(*["F1", "F0"] * rank)
    run(*["F1", "B1", "W1"] * (pp - rank))
    while done["F", 1] < done["F", 0] or done["F", 0] < micros:
        if done["F", 0] < micros:
            run("F0")
        run("B0", "W0", "F1", "B1", "W1")
    run(*["B0", "B1"] * rank)
    run(*["B0", "W0"] * (pp - rank))
    run(*["W1"] * (done["B", 1] - done["W", 1]))
    run(*["W0"] * (done["B", 0] - done["W", 0]))
    return order
