"""Operators priced from the measured tables of the GPU, at the level of the software stack.

A table says by how much each shape misses the roof of the GPU it was measured on; the roof here is that
of the GPU at hand, so a faster one is never slower. Rows share few shapes: each is looked up once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from profiles.log_grid import IndexArray
from profiles.model import MoeSpec
from profiles.operator_tables import OperatorTable, load_operator_tables
from solver.columns import FloatArray
from solver.cost.context import Context

Lookup = tuple[OperatorTable, tuple[FloatArray, ...]]  # a table, and its arguments of shape (n,)
_WIDE_HEAD = 128  # the size that every attention table has
_NARROWER = 0.25  # where a table has no other: FlashAttention 2 loses 1.2 for half of it (L40S table)
_GATED = 3.0  # matrices of the MLPs that were measured


def flash_lookup(ctx: Context) -> Lookup:
    """Flash attention of whole causal sequences over a rank's heads.

    Raises:
        ProfileError: the GPU has no tables.
    """
    model = ctx.model
    heads = model.num_attention_heads / ctx.t
    kv = np.minimum(np.maximum(model.num_kv_heads / ctx.t, 1.0), heads)
    seq_length = ctx.seq_length / ctx.c
    head_dim = np.full_like(heads, (model.head_dim + model.v_head_dim) / 2.0)
    table = load_operator_tables(ctx.operators.tables).find("attention_forward")
    return table, (ctx.micro_batch, heads, kv, seq_length, head_dim)


def flash_s(ctx: Context) -> FloatArray:
    """Forward seconds of one layer's flash attention.

    A ring of context parallelism runs one kernel for each part of the keys, as long as a rank's part of
    the sequence; a sliding window takes its part of a whole sequence's time.
    """
    table, arguments = flash_lookup(ctx)
    level, shape = ctx.constants.attention, (ctx.micro_batch, ctx.t, ctx.c)
    seconds = _seconds(ctx, (table, arguments), level=level, shape=shape)
    attended = 2.0 * ctx.model.attended_tokens(ctx.seq_length) / ctx.seq_length
    if table.grid.axes[-1].count == 1:
        attended *= (_WIDE_HEAD / min(ctx.model.head_dim, _WIDE_HEAD)) ** _NARROWER
    return seconds * attended * ctx.c


def routed_rows(ctx: Context, moe: MoeSpec) -> tuple[FloatArray, FloatArray]:
    """Tokens of each expert on the busiest rank, and the experts of a rank."""
    local = np.maximum(moe.num_experts / ctx.e, 1.0)
    busiest = np.where(ctx.e > 1, ctx.constants.expert_imbalance, 1.0)
    return ctx.moe_tokens * ctx.et * moe.top_k * busiest / local, local


def routed_mlp_s(ctx: Context, moe: MoeSpec) -> FloatArray:
    """Forward seconds of a rank's routed experts, activation included.

    The kernels of the tables are those of inference; ``operators.experts`` is what training takes.
    """
    rows, local = routed_rows(ctx, moe)
    width = moe.ffn_hidden_size / ctx.et
    arguments = (rows, local, np.full_like(rows, ctx.model.hidden_size), width)
    table = load_operator_tables(ctx.operators.tables).find("grouped_mlp")
    level = ctx.constants.gemm * ctx.constants.grouped_gemm
    seconds = _seconds(ctx, (table, arguments), level=level, shape=(rows, local, width))
    return seconds * (ctx.operators.experts * ctx.model.mlp_matrices / _GATED)


def _seconds(ctx: Context, lookup: Lookup, *, level: float, shape: tuple[FloatArray, ...]) -> FloatArray:
    """Seconds of each row; rows with an equal ``shape`` have equal arguments."""
    table, arguments = lookup
    first, of_row = _distinct(shape)
    slowdown = table.slowdown(*(argument[first] for argument in arguments))[of_row]
    flops = ctx.gpu.peak_bf16_flops * level
    roof = replace(table.roof, flops=flops, bytes_per_s=ctx.gpu.hbm_bytes_per_s)
    return np.asarray(table.roof_s(*arguments, roof=roof) * slowdown)


def _distinct(shape: tuple[FloatArray, ...]) -> tuple[IndexArray, IndexArray]:
    """Where each distinct combination first stands, and which of them each row has."""
    code = np.zeros(len(shape[0]), dtype=np.int64)
    for column in shape:
        values, of_row = np.unique(column, return_inverse=True)
        code = code * len(values) + of_row
    _, first, of_row = np.unique(code, return_index=True, return_inverse=True)
    return first, of_row
