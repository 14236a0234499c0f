"""The loss of a token prediction: how many logits exist at a time, and what runs again.

Four kinds, by ``loss_kernel`` and ``loss_fused`` of the framework: *whole*, every logit of a micro-batch
at once, with fp32 copies and gradients (``logit_bytes`` each); *a trainer's own* of every logit
(``WholeLoss``); *fused*, every one, never in fp32; and *chunked*, a part of them at a time, whose gradients
are made where they stand.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLoss:
    """A loss of every logit that is not the model's own cross entropy: its tensors of a logit each.

    Those that stand at the peak of either pass are in fp32 or in the type of the model's outputs, which is
    2 bytes or fp32 (``wide_outputs``). A cast to fp32 counts among the first, and what is cast goes with it
    where it is the same tensor.
    """

    forward: tuple[float, float]  # in fp32, and in the type of the outputs
    backward: tuple[float, float]
    moved: tuple[float, float]  # bytes read and written in either pass, beyond those of a cross entropy

    def held_bytes(self, ctx: Context) -> tuple[float, float]:
        """Return the bytes of a logit in the forward and in the backward pass."""
        each = _WIDE_BYTES if ctx.facts.wide_outputs or ctx.element_scale > 1.0 else _NARROW_BYTES
        cast = _NARROW_BYTES if each == _NARROW_BYTES else 0.0
        (wide, narrow), back = self.forward, self.backward
        return (
            (_WIDE_BYTES * wide + each * narrow + cast) / ctx.element_scale,
            (_WIDE_BYTES * back[0] + each * back[1]) / ctx.element_scale,
        )


_WIDE_BYTES, _NARROW_BYTES = 4.0, 2.0
_WHOLE: Mapping[str, WholeLoss] = {
    # LLaMA-Factory 0.9.5 train/trainer_utils.py:686-759 asft_loss_func, behind the model's own loss, whose
    # labels are given too (train/sft/trainer.py:152 compute_loss). At ``xlogy(q, q) - q * log_p`` (torch
    # aten/src/ATen/native/Loss.cpp kl_div) in fp32: the log-softmax of its own loss, the cast logits,
    # their shifted copy, the log-softmax of the weighted cross entropy and of the divergence, the product
    # and the difference; in the outputs' type the reference's logits, their shifted copy, their softmax q,
    # and xlogy. Backward: both log-softmaxes, the gradient of the difference and that of the
    # product, next to q.
    # Moved: forward the model's own loss 14, a shifted copy 8, another log-softmax 8, xlogy 6, the product
    # 10, the difference 10, the sum 4; backward a negation 4, the product 10, a log-softmax 12, the sum of
    # both gradients 12, and the gradient of the shift 12. The reference's shift and softmax, 8 together,
    # are its own pass's part of a loss.
    "compared": WholeLoss(forward=(7.0, 4.0), backward=(4.0, 1.0), moved=(60.0, 50.0)),
    # Axolotl 0.18 integrations/diffusion/trainer.py:158 _compute_diffusion_loss. At most all tokens are
    # masked: of each a shifted copy, the gathered row, its cast and its log-softmax, while the outputs are
    # held; backward the log-softmax, the gradient of nll_loss and that of log_softmax.
    # Moved: half of the tokens are masked on the mean (:99 _forward_process). Forward the shift 4, of half
    # of them the gathering 4 and the arg max 2, and half of a cross entropy of 14 is not; backward the
    # gathering's zeros 2 and, of half, its rows 6, the shift's 14, and half of 22 is not.
    "masked": WholeLoss(forward=(2.0, 2.0), backward=(3.0, 0.0), moved=(0.0, 8.0)),
}


def _whole(ctx: Context) -> WholeLoss | None:
    """Return the trainer's own loss of whole logits; None for others, and of few labels."""
    return None if ctx.model.num_labels else _WHOLE.get(ctx.facts.loss_kernel)


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
        if own := _whole(ctx):
            per_logit_of = own.held_bytes(ctx)
            return logits * per_logit_of[0] + 4.0 * rows, logits * per_logit_of[1] + 4.0 * rows
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
    return (ctx.facts.loss_fused and _whole(ctx) is None) or _chunked(ctx) is not None


def further_bytes(ctx: Context) -> tuple[float, float]:
    """Return the bytes of a logit that either pass of a loss moves beyond a cross entropy.

    A pass through the reference computes no loss: what becomes of its logits is the trained model's.
    """
    own = _whole(ctx)
    is_reference = ctx.facts.loss_kernel == "compared" and ctx.workload.reference == "none"
    return (0.0, 0.0) if own is None or is_reference else own.moved


def loss_is_read(ctx: Context) -> bool:
    """Return whether the CPU waits for a number of the loss before it launches the backward pass.

    TRL's chunks and Liger's (``launches.lead_s``); ``valid_mask.any()`` (trainer_utils.py:666 of
    LLaMA-Factory) and ``loss.item()`` (integrations/diffusion/trainer.py:276 of Axolotl).
    """
    return ctx.facts.loss_kernel in ("chunked", *_WHOLE)


def logits_are_replayed(ctx: Context) -> bool:
    """Return whether the backward pass makes the logits again."""
    kernel = _chunked(ctx)
    return kernel is not None and kernel.replays
