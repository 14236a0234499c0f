"""Optimizers that project gradients to a low rank (GaLore, APOLLO): states and work of a layer's weight.

The classes are those of transformers: each linear layer is a matrix of its own, and is projected. Routed
experts are not: they are one tensor of three dimensions (transformers 5.23 ``trainer_optimizer.py
_setup_low_rank_optimizer``: ``nn.Linear`` alone). Embedding, head, norms and biases keep whole moments.

APOLLO projects a gradient and scales the whole one by what the projected moments say, so nothing is
projected back. Its projector is drawn anew, which moves less than a hundredth of what an update does
(apollo_torch 1.0.3 ``random_projector.py:136``, each 200th step).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from meshwright.profiles.adapters import single_layers
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import Optimizer, usual_rank

# A thin singular value decomposition with both bases takes ``6 m n^2 + 20 n^3`` FLOPs, m >= n (Golub and
# Van Loan, Matrix Computations, 4th ed., figure 8.6.1): 4.7e14 for LLaMA-7B's layers, for which Q-GaLore
# gives about ten minutes (arXiv:2407.08296, section 1; torch.linalg.svd in fp32, on an unnamed GPU).
SVD_FLOPS_PER_S = 0.8e12


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """Means over all weights of the layers except routed experts."""

    state_bytes: float
    product_flops: float  # of a step: project the gradient, and project GaLore's update back
    svd_flops: float  # of one decomposition


@lru_cache(maxsize=64)
def low_rank(model: ModelSpec, optimizer: Optimizer, rank: int) -> LowRank:
    """Return states and work of a projection of ``rank``; 0: the usual one."""
    rank = rank or usual_rank(model.hidden_size)
    states = products = svd = weights = 0.0
    for shape in model.layer_shapes():
        own = model.shaped(shape)
        whole = float(own.layer_parameters(shape.kind))
        if shape.kind == "moe" and own.moe is not None:
            whole -= own.moe.num_experts * (own.expert_parameters() + own.expert_bias_parameters())
        matrices = [(one.inputs, one.outputs) for one in single_layers(own, shape.kind).values()]
        for sizes in matrices:
            short, long = sorted(sizes)
            states += optimizer.matrix_states(*sizes, rank)
            if optimizer.scales_gradients:
                products += 2.0 * short * long * rank
            else:
                products += 4.0 * short * long * min(rank, short)
                svd += 6.0 * long * short**2 + 20.0 * short**3
        states += optimizer.end_state_bytes * max(whole - sum(a * b for a, b in matrices), 0.0)
        weights += whole
    return LowRank(state_bytes=states / weights, product_flops=products / weights, svd_flops=svd / weights)
