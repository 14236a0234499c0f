"""Layers with a mixer instead of attention: their products, their scan, and the states that ranks pass on.

The sizes and their sources are ``MixerSpec``'s; here they become seconds and bytes of one rank. Heads are
split over tensor-parallel ranks; keys are copied where ranks are more than their heads, as attention's are.
"""

from __future__ import annotations

import numpy as np

from meshwright.profiles.collectives.collectives import all_gather_s
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.context import Context, PassSeconds

# A backward pass has two products for each of the forward's, and makes again what is not kept of it: states
# and the inverse by keys and values (flash-linear-attention 0.4, ops/gated_delta_rule/chunk.py;
# mamba 2, ops/triton/ssd_combined.py).
_BACKWARD = 3.0
# Slices of a sequence on a rank of context parallelism, which balance a causal mask: each has a state.
_SLICES = 2.0
# FLOPs in fp32, outside of tensor cores, in the time of an exponential: a multiprocessor does 16 special
# functions and 256 FLOPs a clock, before Hopper 128 (CUDA C++ Programming Guide, arithmetic instructions).
# An H100 SXM reaches 3.9e12 exponentials a second (Shah et al. 2024, arXiv:2407.08608, section 3.2).
_OF_AN_EXPONENTIAL, _BEFORE_HOPPER = 16.0, {"volta": 8.0, "turing": 8.0, "ampere": 8.0}
_FP32_OF_BF16 = 66.9 / 989.4  # an H100's, for GPUs that state no fp32 peak
_STATE_BYTES = 4.0


def mixer_of(model: ModelSpec) -> MixerSpec | None:
    """Return the mixer that all layers of a model have (as ``shaped`` views them); None: they attend."""
    return model.mixer if model.mixes else None


def scan(ctx: Context, mixer: MixerSpec) -> PassSeconds:
    """Price the scan of one layer: its FLOPs at the rate of attention's tiles, or its bytes.

    Memory bounds it on most GPUs: a delta net's head of 128 by 128 has 180,224 FLOPs and 5,120 bytes a
    token, 35 FLOPs a byte, where an H100 has 295. A selective scan has no products for tensor cores: it
    takes as long as its exponentials, or its bytes.
    """
    rate = ctx.gpu.peak_bf16_flops * ctx.operators.flash * ctx.constants.attention
    work = 2.0 * ctx.tokens * mixer.scan_products() / ctx.t
    moved = 2.0 * ctx.tokens * mixer.scan_elements() / ctx.t
    if mixer.decays:  # each has an exponential
        each = _BEFORE_HOPPER.get(ctx.gpu.architecture, _OF_AN_EXPONENTIAL)
        work = ctx.tokens * mixer.decays / ctx.t * each
        rate = ctx.gpu.peak_flops.get("fp32", ctx.gpu.peak_bf16_flops * _FP32_OF_BF16)
    forward = np.maximum(work / rate, moved / ctx.hbm_bytes_per_s)
    return PassSeconds(forward=forward, backward=_BACKWARD * forward)


def projected_width(ctx: Context, mixer: MixerSpec) -> FloatArray:
    """Return the columns of a rank's projection of a hidden state: what a scan reads, and its gate.

    A selective scan's time steps, B and C follow from the others; latents are whole on every rank.
    """
    if mixer.inner_products() or mixer.kind == "short_convolution":
        return np.asarray((mixer.projected - mixer.latents) / ctx.t + mixer.latents)
    read, values = exchanged_widths(ctx, mixer)
    return read + values


def exchanged_widths(ctx: Context, mixer: MixerSpec) -> tuple[FloatArray, FloatArray]:
    """Return the elements of a token that a rank exchanges before a scan and after it."""
    values = mixer.value_width / ctx.t
    if mixer.kind == "short_convolution":  # of tokens that neighbours have; channels need not change ranks
        return np.zeros_like(values), np.zeros_like(values)
    keys = 2.0 * np.maximum(mixer.num_key_heads / ctx.t, 1.0) * mixer.key_head_dim
    return keys + values + mixer.gates / ctx.t, values


def passed_states(ctx: Context, mixer: MixerSpec) -> PassSeconds:
    """Return the seconds in which ranks of a split sequence gather each other's states.

    Every rank scans its slices from an empty state and corrects them when it knows the states before them;
    the backward pass gathers the gradients of states. Nothing runs under it (Sun et al. 2025, LASP-2,
    arXiv:2502.07563, section 3).
    """
    ranks = ctx.c / ctx.exchanging
    own = ctx.micro_batch * mixer.state_elements() * _STATE_BYTES * _SLICES / (ctx.t * ctx.exchanging)
    once = np.where(ranks > 1, all_gather_s(ranks * own, ctx.ring_group), 0.0)
    return PassSeconds(forward=once, backward=once)
