"""Optimizers: bytes kept for each weight, and memory traffic of one step.

States come in addition to the fp32 copy of the weights, which is a fact of the framework. Traffic of one
step is counted against AdamW's least: it reads the gradient, the copy and two moments and writes the copy,
the moments and the 2-byte weight, ``4 (1 + 3 + 3) + 2 = 30`` bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from meshwright.profiles.errors import UnknownNameError

ADAMW_MOVED_BYTES = 30.0
_VARIANT = re.compile(r"(?:-(?:8bit|pure|bf16|paged|layerwise))+$")  # of a rule, at the end of its name


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One optimizer; bytes are of one weight."""

    name: str
    state_bytes: float  # in addition to the fp32 copy
    end_state_bytes: float  # the same of embedding and head, where they are treated apart
    moved_bytes: float  # of one step, the states' reading and writing among them
    head_apart: bool = True  # an output head of its own is treated as the embedding is
    low_rank: bool = False  # moments of matrices are those of a projected gradient
    projector_bytes: float = 0.0  # of one element of such a projector
    # Its projector is drawn at random, not decomposed, and no update is projected back: the projected
    # moments scale the gradient (APOLLO).
    scales_gradients: bool = False
    by_layer: bool = False  # a weight is updated, and its gradient dropped, as soon as that is complete
    fp32_copy: bool = (
        True  # of the weights, where the framework keeps one; else they and gradients are bf16
    )
    newton_schulz: bool = False  # updates of matrices are orthogonalised
    # Of a loop over tensors: operators of one, a launch each, and what they make of it at once, in tensors
    # of its size and dtype. Others launch few kernels for all tensors, and make nothing.
    operators: int = 0
    temporaries: float = 0.0
    # Of torch's foreach update, which ends with as many kernels as it has operators: a copy of the second
    # moments that it makes of all weights at once, and what it moves beyond one kernel (torch 2.11
    # ``optim/adam.py _multi_tensor_adam``: eight operators read and write 80 bytes of fp32, one kernel 28).
    foreach_bytes: float = 0.0
    foreach_moved_bytes: float = 0.0
    # Each layer is trained in turn, with an fp32 copy and moments of its own; the others are frozen, and
    # their states are dropped. What a copy of a layer's gradients takes is there for the update alone.
    by_block: bool = False
    copied_bytes: float = 0.0
    typed_states: bool = True  # moments have their weights' dtype (torch 2.13 ``optim/adam.py``)
    short_states: bool = False  # dtypes of their own, with which a framework may keep a copy's remainders
    paged: bool = False  # moments lie in unified memory, and leave the GPU where it is full
    source: str

    @property
    def family(self) -> str:
        """Return the name of the rule without its variant: ``apollo`` of ``apollo-pure-bf16-layerwise``."""
        return _VARIANT.sub("", self.name)

    @property
    def element_bytes(self) -> float:
        """Return the bytes of a weight that is updated."""
        return 4.0 if self.fp32_copy else 2.0

    @property
    def temporary_bytes(self) -> float:
        """Bytes that a loop's update makes for each weight of the tensor that it is at."""
        return self.temporaries * self.element_bytes

    def paged_bytes(self, moments: float) -> float:
        """Return the bytes of a weight's moments that can leave the GPU: not the scales of their blocks."""
        return float(int(moments)) if self.paged else 0.0

    def states_in(self, element: float, moments: float) -> float:
        """Return what ``moments`` bytes of a weight's states are if the weight itself has ``element``."""
        return moments * (element / self.element_bytes if self.typed_states else 1.0)

    def matrix_states(self, rows: int, columns: int, rank: int) -> float:
        """Return the state bytes of one matrix.

        A projection of rank r keeps the ``m r`` elements of its projector and two moments of the ``n r`` of
        the projected gradient of an m by n matrix, m <= n (GaLore, arXiv:2403.03507, table 1). A projector
        that is drawn has all r rows; a decomposition has no more than m.
        """
        if not self.low_rank:
            return self.state_bytes * rows * columns
        short, long = sorted((rows, columns))
        rank = rank if self.scales_gradients else min(rank, short)
        return rank * (self.projector_bytes * short + self.state_bytes * long)


# bitsandbytes 0.50, optim/optimizer.py: two moments of a byte each, with an fp32 scale for a block of 256;
# tensors of fewer than 4096 elements, which are priced alike, keep fp32 moments.
_EIGHT_BITS = 2.0 + 8.0 / 256
_EIGHT_BIT_SOURCE = (
    "Dettmers et al. 2021 (arXiv:2110.02861): two moments of 8 bits, an fp32 scale for a block of 256 "
    "(bitsandbytes 0.50); the embedding keeps 32-bit moments (section 2.3; transformers 5.23, trainer.py: "
    "register_module_override of every Embedding), an output head of its own does not"
)


# bitsandbytes 0.50 optim/optimizer.py: ``get_state_buffer`` puts the moments of a tensor of 1e5 elements or
# more in CUDA's unified memory, scales of blocks and smaller tensors in the allocator's. 32-bit moments are
# fp32 whatever the weights are, and one kernel updates a tensor.
PAGED_ELEMENTS = 1e5
_PAGED_SOURCE = (
    "bitsandbytes 0.50, docs/source/explanations/optimizers.mdx, Paged optimizers; optim/optimizer.py "
    "get_state_buffer, prefetch_state"
)
_PAGED = tuple(
    Optimizer(
        name=name,
        state_bytes=moments,
        end_state_bytes=8.0,
        head_apart=not eighth,
        moved_bytes=moved,
        fp32_copy=not name.endswith("-bf16"),
        typed_states=False,
        paged=True,
        source=f"{_EIGHT_BIT_SOURCE}; {_PAGED_SOURCE}" if eighth else _PAGED_SOURCE,
    )
    for name, moments, moved, eighth in (
        ("adamw-paged", 8.0, ADAMW_MOVED_BYTES, False),
        ("adamw-paged-bf16", 8.0, 22.0, False),
        ("adamw-8bit-paged", _EIGHT_BITS, 18.0, True),
        ("adamw-8bit-paged-bf16", _EIGHT_BITS, 10.0, True),
    )
)

# Steps between two decompositions by default: ``update_proj_gap`` (transformers 5.23),
# ``galore_update_interval`` (LLaMA-Factory 0.9.5).
USUAL_INTERVAL = 200


def usual_rank(hidden_size: int) -> int:
    """Return the rank of a projection where none is stated (arXiv:2403.03507, section 5.1)."""
    return hidden_size // 4


_GALORE_SOURCE = (
    "Zhao et al. 2024 (arXiv:2403.03507), table 1; galore_torch 1.0: projector and moments in the "
    "gradient's dtype (galore_projector.py, adamw.py), or moments as bitsandbytes' of 8 bits, the "
    "embedding's too (adamw8bit.py); by layer, a hook updates each weight (transformers 5.23, "
    "trainer_optimizer.py)"
)
# Of a weight: the gradient read to be projected, what is projected back written, read and scaled, and the
# weight read and written with it (galore_torch 1.0, adamw.py): seven passes over elements of its dtype.
_PASSES = 7.0
_GALORE = tuple(
    Optimizer(
        name=name,
        state_bytes=moments,
        end_state_bytes=moments,
        moved_bytes=_PASSES * element,
        low_rank=True,
        projector_bytes=element,
        by_layer=name.endswith("-layerwise"),
        fp32_copy="bf16" not in name,
        typed_states="8bit" not in name,
        source=_GALORE_SOURCE,
    )
    for name, element, moments in (
        ("galore", 4.0, 8.0),
        ("galore-8bit", 4.0, _EIGHT_BITS),
        ("galore-pure-bf16", 2.0, 4.0),
        ("galore-8bit-bf16", 2.0, _EIGHT_BITS),
        ("galore-pure-bf16-layerwise", 2.0, 4.0),
        ("galore-8bit-bf16-layerwise", 2.0, _EIGHT_BITS),
    )
)
# apollo_torch 1.0.3, apollo.py:135-206, of a matrix: the gradient is read to be projected, and read, scaled
# and written; it is read for its norm, read and written to limit its growth and to scale it, and the weight
# is read and written with it: eleven passes. The 23 operators are counted there, with channels' scales and
# without weight decay. ``denom`` and ``norm_grad`` of the embedding are two temporaries.
_APOLLO = tuple(
    Optimizer(
        name=name,
        state_bytes=2.0 * element,
        end_state_bytes=2.0 * element,
        moved_bytes=11.0 * element,
        low_rank=True,
        projector_bytes=element,
        scales_gradients=True,
        by_layer=name.endswith("-layerwise"),
        fp32_copy="bf16" not in name,
        operators=23,
        temporaries=2.0,
        source="Zhu et al. 2024 (arXiv:2412.05270), table 1; apollo_torch 1.0.3: projector and moments in "
        "the gradient's dtype (random_projector.py:173, apollo.py:140), other weights with whole moments; "
        "by layer as GaLore (LLaMA-Factory 0.9.5 train/trainer_utils.py:335)",
    )
    for name, element in (("apollo", 4.0), ("apollo-pure-bf16", 2.0), ("apollo-pure-bf16-layerwise", 2.0))
)

# adam_mini 1.1.1, adam_mini.py:309-323, of every weight but biases: the gradient is squared and averaged
# (three passes), then come the momentum (three), its product with a row's step, that with the rate and the
# negated one (six), and the weight (three), in 14 operators. A row of a matrix, and a head of queries or
# keys, has one second moment: about a thousandth of the momentum in all, with those of biases, kept whole.
_ADAM_MINI = tuple(
    Optimizer(
        name=name,
        state_bytes=element,
        end_state_bytes=element,
        moved_bytes=15.0 * element,
        fp32_copy="bf16" not in name,
        operators=14,
        temporaries=2.0,
        source="Zhang et al. 2024 (arXiv:2406.16793), algorithm 1; adam_mini 1.1.1: a momentum in the "
        "weight's dtype (adam_mini.py:293), embedding and head by rows as all matrices (:284)",
    )
    for name, element in (("adam-mini", 4.0), ("adam-mini-pure-bf16", 2.0))
)
# badam 1.4, block_optim.py:515, :284, :273: a layer's copy and moments in fp32; the gradient is cast (6
# bytes), a kernel updates the copy (28), which is cast and copied back (10).
_BADAM = Optimizer(
    name="badam",
    state_bytes=12.0,
    end_state_bytes=12.0,
    moved_bytes=44.0,
    foreach_bytes=4.0,
    foreach_moved_bytes=80.0 - 28.0,
    fp32_copy=False,
    typed_states=False,
    by_block=True,
    copied_bytes=4.0 - 2.0,  # the gradient in bf16 goes as its copy comes (block_optim.py:287)
    source="Luo et al. 2024 (arXiv:2404.02827), section 2.2: states of one block at a time; badam 1.4 "
    "block_optim.py:148: blocks are the layers, without embedding and head",
)
WITHOUT_COPY: Mapping[str, str] = {  # the same optimizers over weights in bf16 alone
    "adamw": "adamw-pure-bf16",
    "adamw-8bit": "adamw-8bit-bf16",
    "adamw-paged": "adamw-paged-bf16",
    "adamw-8bit-paged": "adamw-8bit-paged-bf16",
    "galore": "galore-pure-bf16",
    "galore-8bit": "galore-8bit-bf16",
    "apollo": "apollo-pure-bf16",
    "muon": "muon-pure-bf16",
    "adam-mini": "adam-mini-pure-bf16",
}
UNPAGED: Mapping[str, str] = {  # the same optimizers with their moments in the allocator's memory
    one.name: one.name.replace("adamw-paged-bf16", "adamw-pure-bf16").replace("-paged", "")
    for one in _PAGED
}

OPTIMIZERS: Mapping[str, Optimizer] = {
    one.name: one
    for one in (
        Optimizer(
            name="adamw",
            state_bytes=8.0,
            end_state_bytes=8.0,
            moved_bytes=ADAMW_MOVED_BYTES,
            foreach_bytes=4.0,
            foreach_moved_bytes=80.0 - 28.0,
            source="Rajbhandari et al. 2020 (arXiv:1910.02054), section 3.1: two fp32 moments",
        ),
        Optimizer(
            name="adamw-bf16",
            state_bytes=4.0,
            end_state_bytes=4.0,
            moved_bytes=22.0,
            typed_states=False,
            short_states=True,
            source="Megatron-Core optimizer_config.py: use_precision_aware_optimizer, exp_avg_dtype and "
            "exp_avg_sq_dtype = bf16",
        ),
        Optimizer(
            name="adamw-pure-bf16",
            state_bytes=4.0,
            end_state_bytes=4.0,
            moved_bytes=14.0,
            foreach_bytes=2.0,
            foreach_moved_bytes=40.0 - 14.0,
            fp32_copy=False,
            source="torch.optim.AdamW over weights in bf16: both moments have their dtype (torch 2.13, "
            "optim/adam.py, zeros_like), 2 (1 + 3 + 3) bytes moved; LLaMA-Factory's pure_bf16",
        ),
        Optimizer(
            name="adamw-8bit",
            state_bytes=_EIGHT_BITS,
            end_state_bytes=8.0,
            head_apart=False,
            moved_bytes=18.0,
            typed_states=False,
            source=_EIGHT_BIT_SOURCE,
        ),
        Optimizer(
            name="adamw-8bit-bf16",
            state_bytes=_EIGHT_BITS,
            end_state_bytes=8.0,
            head_apart=False,
            moved_bytes=10.0,
            fp32_copy=False,
            typed_states=False,
            source=f"{_EIGHT_BIT_SOURCE}; weights and gradients in bf16 alone",
        ),
        *_PAGED,
        *_GALORE,
        *_APOLLO,
        *_ADAM_MINI,
        _BADAM,
        Optimizer(
            name="muon",
            state_bytes=4.0,
            end_state_bytes=8.0,
            moved_bytes=22.0,
            newton_schulz=True,
            source="Liu et al. 2025 (arXiv:2502.16982), section 2: one momentum for matrices, AdamW for "
            "embedding and head",
        ),
        Optimizer(
            name="muon-pure-bf16",
            state_bytes=2.0,
            end_state_bytes=4.0,
            moved_bytes=14.0,
            newton_schulz=True,
            fp32_copy=False,
            source="axolotl-contribs-mit 0.0.6 muon/dist_muon.py:160: a momentum in the weight's dtype, "
            "and AdamW's variance of embedding and head; 8 bytes move before the iterations, 6 after",
        ),
        Optimizer(
            name="sgd-momentum",
            state_bytes=4.0,
            end_state_bytes=4.0,
            moved_bytes=22.0,
            source="torch.optim.SGD: one momentum buffer",
        ),
    )
}


@cache
def optimizer_named(name: str) -> Optimizer:
    """Return the optimizer of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in OPTIMIZERS:
        raise UnknownNameError.among("/workload/optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name]
