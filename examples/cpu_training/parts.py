"""The parts of a small GPT as one rank holds them, with tensor and sequence parallelism over gloo.

Shoeybi et al. 2019 (arXiv:1909.08053) split the matrices, Korthikanti et al. 2022 (arXiv:2205.05198) the
sequence around them: activations are (sequence / tp, batch, hidden) outside of the split products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """The sizes of the model, as the exported arguments give them."""

    num_layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int  # padded
    rotary_base: float


@dataclass(frozen=True)
class Ranks:
    """The tensor-parallel ranks that share every layer with this one."""

    size: int
    rank: int
    group: dist.ProcessGroup | None = None

    def gathered(self, x: Tensor) -> Tensor:
        """(s / tp, …) of every rank as (s, …)."""
        out = x.new_empty((x.shape[0] * self.size, *x.shape[1:]))
        dist.all_gather_single(out, x.contiguous(), group=self.group)
        return out

    def scattered(self, x: Tensor) -> Tensor:
        """The sum over all ranks, of which each gets its part of dimension 0."""
        out = x.new_empty((x.shape[0] // self.size, *x.shape[1:]))
        dist.reduce_scatter_single(out, x.contiguous(), group=self.group)
        return out

    def summed(self, x: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        dist.all_reduce(x, group=self.group)
        return x


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.gathered(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.scattered(gradient), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.scattered(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.gathered(gradient), None


def gather(x: Tensor, ranks: Ranks) -> Tensor:
    """The whole sequence in front of a split product; its gradient is summed and scattered."""
    return _Gather.apply(x, ranks) if ranks.size > 1 else x


def scatter(x: Tensor, ranks: Ranks) -> Tensor:
    """The sum behind a split product, this rank's part of the sequence; its gradient is gathered."""
    return _Scatter.apply(x, ranks) if ranks.size > 1 else x


class _SplitLoss(torch.autograd.Function):
    """Mean cross-entropy of logits whose vocabulary is split over ranks."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, ranks: Ranks) -> Tensor:
        logits = logits.float()
        top = logits.amax(dim=-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=ranks.group)
        exponents = (logits - top.unsqueeze(-1)).exp_()
        total = ranks.summed(exponents.sum(dim=-1))
        own = targets - ranks.rank * logits.shape[-1]
        here = (own >= 0) & (own < logits.shape[-1])
        own = own.clamp(0, logits.shape[-1] - 1)
        picked = logits.gather(-1, own.unsqueeze(-1)).squeeze(-1) - top
        picked = ranks.summed(picked * here)
        ctx.save_for_backward(exponents.div_(total.unsqueeze(-1)), own, here)
        return (total.log() - picked).mean()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        shares, own, here = ctx.saved_tensors
        shares.scatter_add_(-1, own.unsqueeze(-1), -here.unsqueeze(-1).to(shares.dtype))
        return (shares * (gradient / here.numel())).bfloat16(), None, None


def loss_of(logits: Tensor, targets: Tensor, ranks: Ranks) -> Tensor:
    """Mean cross-entropy over all tokens."""
    if ranks.size > 1:
        return _SplitLoss.apply(logits, targets, ranks)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Embedding(nn.Module):
    """Rows of the vocabulary that this rank holds."""

    def __init__(self, shape: Shape, ranks: Ranks) -> None:
        super().__init__()
        self.ranks, self.rows = ranks, shape.vocabulary // ranks.size
        self.weight = nn.Parameter(torch.randn(self.rows, shape.hidden) * 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(sequence, batch) token numbers to activations."""
        own = tokens - self.ranks.rank * self.rows
        here = (own >= 0) & (own < self.rows)
        found = F.embedding(own.clamp(0, self.rows - 1), self.weight) * here.unsqueeze(-1)
        return scatter(found, self.ranks)


class Head(nn.Module):
    """Final norm and this rank's columns of the output."""

    def __init__(self, shape: Shape, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks
        self.norm = nn.RMSNorm(shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.vocabulary // ranks.size, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a micro-batch."""
        return loss_of(self.output(gather(self.norm(x), self.ranks)), targets, self.ranks)


class Layer(nn.Module):
    """Attention with rotary positions and a gated MLP, pre-norm."""

    def __init__(self, shape: Shape, ranks: Ranks) -> None:
        super().__init__()
        h, d, t = shape.hidden, shape.head_dim, ranks.size
        self.shape, self.ranks = shape, ranks
        self.heads, self.kv_heads = shape.heads // t, shape.kv_heads // t
        self.attention_norm, self.mlp_norm = nn.RMSNorm(h), nn.RMSNorm(h)
        self.qkv = nn.Linear(h, (self.heads + 2 * self.kv_heads) * d, bias=False)
        self.out = nn.Linear(self.heads * d, h, bias=False)
        self.up = nn.Linear(h, 2 * shape.ffn // t, bias=False)
        self.down = nn.Linear(shape.ffn // t, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(sequence / tp, batch, hidden) to the same shape."""
        x = x + scatter(self.attended(gather(self.attention_norm(x), self.ranks)), self.ranks)
        gate, up = self.up(gather(self.mlp_norm(x), self.ranks)).chunk(2, dim=-1)
        return x + scatter(self.down(F.silu(gate) * up), self.ranks)

    def attended(self, x: Tensor) -> Tensor:
        """Causal attention of this rank's heads."""
        d = self.shape.head_dim
        widths = [self.heads * d, self.kv_heads * d, self.kv_heads * d]
        q, k, v = (one.unflatten(-1, (-1, d)).permute(1, 2, 0, 3) for one in self.qkv(x).split(widths, -1))
        q, k = self.rotated(q), self.rotated(k)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(out.permute(2, 0, 1, 3).flatten(2))

    def rotated(self, x: Tensor) -> Tensor:
        """Rotary positions (arXiv:2104.09864) of (batch, heads, sequence, dim)."""
        half = x.shape[-1] // 2
        turns = self.shape.rotary_base ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(x.shape[-2]), turns)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.split(half, dim=-1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)
