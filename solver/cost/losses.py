"""The loss of a token prediction: how many logits exist at a time, and what runs again.

Three kinds, by ``loss_kernel`` and ``loss_fused`` of the framework: *whole*, every logit of a micro-batch
at once, with fp32 copies and gradients (``logit_bytes`` each); *fused*, every one, never in fp32; and
*chunked*, a part of them at a time, whose gradients are made where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.adapters import HEAD
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.context import Context

# A loss in one kernel holds logits and their gradient in 2 bytes (Transformer Engine's
# cross_entropy.py writes the gradient over the logits; its input gradient is cast once).
_FUSED_LOGIT_BYTES = 4.0
# A forward pass has the logits in 2 bytes, in fp32 and their log-softmax (transformers loss_utils.py
# ForCausalLMLoss, torch nn/functional.py cross_entropy).
_FORWARD_LOGIT_BYTES = 2.0 + 4.0 + 4.0
_TILE_BYTES = 2.0  # of a logit in a chunk: its gradient is written over it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLoss:
    """A loss that makes a part of the logits at a time."""

    logits: Callable[[Context], FloatArray]  # that exist at once, shape (n,)
    hidden_bytes: float  # of the gradient of one number of the head's input, beside the input itself
    weight_bytes: float  # of the gradient of one trained weight of the head, beside the one that is kept
    replays: bool  # the backward pass makes the logits again: a fourth product
    rereads: bool = False  # each part of the logits reads the whole head anew


def _tiles(ctx: Context) -> FloatArray:
    """TRL 1.16 ``kernels/chunked_logprob.py``: one buffer of TOKEN_CHUNK_SIZE rows by ``chunk_size``."""
    return np.minimum(ctx.tokens, 4096.0) * 32768.0


def _rows(ctx: Context) -> FloatArray:
    """Liger 0.8.5 ``ops/fused_linear_cross_entropy.py:97``: logits no larger than the input."""
    parts = np.ceil(ctx.padded_outputs / ctx.model.hidden_size)
    rows = 2.0 ** np.ceil(np.log2(np.maximum(np.ceil(ctx.tokens / parts), 1.0)))
    return np.minimum(rows, ctx.tokens) * ctx.padded_outputs


# Liger 0.8.5 ``ops/fused_linear_cross_entropy.py:156-375``: for each part of the logits a view of fp32
# weights is cast, which autocast does not remember; the gradient of a trained weight is read and written,
# in its own dtype. Once, that is filled with zeros (:115), and scaled by the loss's own gradient
# (:420-450): 1 over the number of labels under transformers.
_CAST_BYTES = 6.0
_ADDED_BYTES, _ADDED_WIDE_BYTES = 4.0, 8.0


_CHUNKED: Mapping[str, ChunkedLoss] = {
    # TRL 1.16 kernels/chunked_logprob.py:406-413: both gradients add up in fp32
    "chunked": ChunkedLoss(logits=_tiles, hidden_bytes=4.0, weight_bytes=4.0, replays=True),
    # Liger 0.8.5: gradients come with the forward pass, in the dtypes of input and weight
    "liger": ChunkedLoss(logits=_rows, hidden_bytes=2.0, weight_bytes=4.0, replays=False, rereads=True),
    # Cut Cross-Entropy (arXiv:2411.09009): logits exist in on-chip memory alone
    "cut": ChunkedLoss(
        logits=lambda ctx: np.zeros_like(ctx.t), hidden_bytes=0.0, weight_bytes=0.0, replays=False
    ),
}


def _chunked(ctx: Context) -> ChunkedLoss | None:
    """Return the loss that makes a part of the logits at a time; None for others, and of few labels."""
    return None if ctx.model.num_labels else _CHUNKED.get(ctx.facts.loss_kernel)


def loss_bytes(ctx: Context) -> tuple[FloatArray, FloatArray]:
    """Return the bytes that a rank holds for the loss in its forward and backward pass, shape (n,) each.

    The head's input is included. A chunked loss that is run for a further micro-batch makes a gradient of
    the whole head, which is then added to that of the micro-batches before.
    """
    facts, kernel = ctx.facts, _chunked(ctx)
    rows = ctx.tokens * ctx.model.hidden_size * ctx.row_share
    if kernel is None:
        logits = ctx.tokens * ctx.padded_outputs / ctx.logits_ranks
        per_logit = min(facts.logit_bytes, _FUSED_LOGIT_BYTES if facts.loss_fused else np.inf)
        return logits * min(per_logit, _FORWARD_LOGIT_BYTES) + 4.0 * rows, logits * per_logit + 4.0 * rows
    weights = ctx.padded_outputs / ctx.vocabulary_ranks * ctx.model.hidden_size
    adds = (HEAD in ctx.trained_modules) * (ctx.columns.num_microbatches > 1)
    forward = kernel.logits(ctx) * _TILE_BYTES + rows * 4.0
    backward = forward + weights * kernel.weight_bytes * adds + rows * kernel.hidden_bytes
    return (forward if kernel.replays else backward), backward


def parts_of_logits(ctx: Context) -> tuple[FloatArray, FloatArray] | None:
    """Return the rows of a product that makes a part of the logits, and how many there are, (n,) each.

    None where one product makes them all, or a chunk is as good as that.
    """
    kernel = _chunked(ctx)
    if kernel is None or not kernel.rereads:
        return None
    rows = kernel.logits(ctx) / ctx.padded_outputs
    return rows, np.ceil(ctx.tokens / rows)


def gathered_bytes(ctx: Context) -> FloatArray | float:
    """Return bytes that weights and gradients of a head move besides its products, shape (n,)."""
    if (split := parts_of_logits(ctx)) is None:
        return 0.0
    wide, trained = ctx.wide_rows, float(HEAD in ctx.trained_modules)
    added = _ADDED_BYTES + (_ADDED_WIDE_BYTES - _ADDED_BYTES) * wide
    further = split[1] - 1.0
    each = further * (_CAST_BYTES * wide + added * trained) + 1.5 * added * trained
    return each * ctx.padded_vocabulary / ctx.vocabulary_ranks * ctx.model.hidden_size


def loss_is_fused(ctx: Context) -> bool:
    """Return whether the loss reads and writes its logits in one kernel of 2 bytes each."""
    return ctx.facts.loss_fused or _chunked(ctx) is not None


def logits_are_replayed(ctx: Context) -> bool:
    """Return whether the backward pass makes the logits again."""
    kernel = _chunked(ctx)
    return kernel is not None and kernel.replays
