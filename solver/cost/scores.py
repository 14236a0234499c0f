"""Scores of attention that are kept: what plain operators move and keep of each.

``torch`` under transformers is its ``eager_attention_forward``. Of a score in bf16, as a dispatch mode
counts (5.17 ``models/llama/modeling_llama.py``, as of most types): products write and read it in 2 bytes,
it is scaled and masked (4 each), cast to fp32 (6), normalised (8) and cast back (6). A soft cap divides,
bends and multiplies (4 each; ``models/gemma2``). Sinks are one more key, the largest score is subtracted,
and all is in bf16 (``models/gpt_oss``). ``tests/torch/test_attention.py`` counts them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshwright.profiles.attention import EAGER

if TYPE_CHECKING:
    from meshwright.solver.configuration import FloatArray
    from meshwright.solver.cost.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Of one score, bytes: moved by either pass, kept between them, and on top within the backward pass.

    ``kernels`` counts those of the forward pass.
    """

    forward: float
    backward: float
    kept: float
    passing: float
    kernels: float


_PLAIN = Scores(forward=32.0, backward=36.0, kept=6.0, passing=10.0, kernels=7.0)
_CAP = Scores(forward=12.0, backward=14.0, kept=2.0, passing=0.0, kernels=3.0)
_SINKS = Scores(forward=26.0, backward=40.0, kept=2.0, passing=6.0, kernels=8.0)


def passing_scores_bytes(ctx: Context) -> FloatArray:
    """Return the bytes of scores that come and go in the backward pass of one layer, (n,).

    The gradient of normalised scores in 2 bytes, in 4, and that of the scores before: all at once.
    """
    eager = eager_scores(ctx) if ctx.model.mixes_tokens and not ctx.model.own_mixer else None
    if eager is None:
        return np.zeros_like(ctx.t)
    return ctx.tokens * ctx.model.num_attention_heads / ctx.t * ctx.masked_keys * eager.passing


def eager_scores(ctx: Context) -> Scores | None:
    """Return what scores take under transformers' eager attention; None under any other."""
    if ctx.kernel != EAGER or not ctx.facts.separate_projections:
        return None
    if ctx.model.attention_sinks:
        return _SINKS
    if ctx.model.attention_softcap is None:
        return _PLAIN
    return Scores(
        forward=_PLAIN.forward + _CAP.forward,
        backward=_PLAIN.backward + _CAP.backward,
        kept=_PLAIN.kept + _CAP.kept,
        passing=_PLAIN.passing,
        kernels=_PLAIN.kernels + _CAP.kernels,
    )
