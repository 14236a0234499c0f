"""The routed experts of one rank, with equal loads: what balanced routing comes to.

Rows are gathered, passed through every expert as one batched product, weighted and added back. Which
token goes where is drawn once; the router's own choice is computed, as training computes it, and only
its weights are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profiles.measure.device import Device, Tensor
from profiles.measure.shard import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The routing of one micro-batch: which routed slot each row of each expert takes."""

    device: Device
    top_k: int
    num_experts: int  # on this rank
    slots: Tensor  # shape (experts · rows), values in [0, tokens · top_k)
    activation: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, shard: Shard, device: Device, activation: Callable[[Tensor], Tensor]) -> Experts:
        """A random balanced assignment; slots repeat where loads are rounded up."""
        torch, top_k = device.torch, shard.model.moe.top_k if shard.model.moe else 1
        routed = shard.tokens * top_k
        rows = torch.arange(shard.local_experts * shard.expert_rows, device=device.name) % routed
        return cls(
            device=device,
            top_k=top_k,
            num_experts=shard.local_experts,
            slots=torch.randperm(routed, device=device.name)[rows],
            activation=activation,
        )

    def forward(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """(tokens, hidden) to the same shape."""
        torch = self.device.torch
        scores = torch.nn.functional.linear(x, weights["router"]).float().softmax(dim=-1)
        chosen = scores.topk(self.top_k, dim=-1).values.to(x.dtype).flatten()
        tokens = self.slots // self.top_k
        rows = x.index_select(0, tokens).view(self.num_experts, -1, x.shape[-1])
        hidden = self.activation(torch.bmm(rows, weights["experts_up"].mT))
        out = torch.bmm(hidden, weights["experts_down"].mT).flatten(0, 1)
        weighted = out * chosen.index_select(0, self.slots).unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, tokens, weighted)
