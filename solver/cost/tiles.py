"""MLPs that compute a sequence in tiles, keep their input alone, and compute each tile again backward.

ALST (arXiv:2506.13996; DeepSpeed 0.19 ``runtime/sequence_parallel/ulysses_sp.py:943 TiledMLP``), without
DeepSpeed Axolotl's own (0.18 ``monkeypatch/tiled_mlp/base.py:215 TiledMLP``).
"""

from __future__ import annotations

import numpy as np

from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.context import Context

_SUM_BYTES, _ZEROS_BYTES = 6.0, 2.0
_DEEPSPEED = "zero"  # its stack


def mlp_tiles(ctx: Context) -> FloatArray:
    """Return the tiles that an MLP cuts a rank's part of a sequence into, (n,).

    As few as have no more than so many tokens (Axolotl 0.18 ``monkeypatch/tiled_mlp/patch.py:67``).
    """
    return np.asarray(np.ceil(ctx.seq_length / ctx.c / ctx.facts.mlp_tile_tokens))


def summed_bytes(ctx: Context) -> FloatArray:
    """Return the bytes that adding up tiles' gradients moves, of a dense layer's MLP, (n,).

    Without DeepSpeed they are added to a sum that begins as zeros (Axolotl 0.18
    ``monkeypatch/tiled_mlp/base.py:294``, :336), with it to those of the tiles before: 6 bytes a weight and
    tile.
    """
    zeros = _ZEROS_BYTES if adds_apart(ctx) else -_SUM_BYTES
    return np.asarray(mlp_weights(ctx) * (mlp_tiles(ctx) * _SUM_BYTES + zeros))


def adds_apart(ctx: Context) -> bool:
    """Return whether tiles' gradients have a sum beside those of the weights."""
    return ctx.facts.stack != _DEEPSPEED


def mlp_weights(ctx: Context) -> FloatArray:
    """Return the weights of a dense layer's MLP on a rank, gathered, (n,)."""
    model = ctx.model
    return np.asarray((2.0 + model.gated_mlp) * model.hidden_size * model.ffn_hidden_size / ctx.t)
