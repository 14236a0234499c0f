"""Layers with a mixer instead of attention: their products, their scan, and the states that ranks pass on.

The sizes and their sources are ``MixerSpec``'s; here they become seconds and bytes of one rank. Heads are
split over tensor-parallel ranks; keys are copied where ranks are more than their heads, as attention's are.
"""

from __future__ import annotations

import numpy as np

from meshwright.profiles.collectives.collectives import all_gather_s
from meshwright.profiles.mixers import MixerSpec
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.context import Context, PassSeconds

# A backward pass has two products for each of the forward's, and makes again what is not kept of it: states
# and the inverse by keys and values (flash-linear-attention 0.4, ops/gated_delta_rule/chunk.py;
# mamba 2, ops/triton/ssd_combined.py).
_BACKWARD = 3.0
# Slices of a sequence on a rank of context parallelism, which balance a causal mask: each has a state.
_SLICES = 2.0
# Of a multiprocessor in one clock: FLOPs in fp32, before Hopper half as many, and exponentials (CUDA C++
# Programming Guide, arithmetic instructions). An H100 SXM reaches 3.9e12 exponentials a second (Shah et
# al. 2024, arXiv:2407.08608, section 3.2).
_FP32, _FP32_BEFORE_HOPPER, _EXPONENTIALS = 256.0, {"volta": 128.0, "turing": 128.0, "ampere": 128.0}, 16.0
_FP32_OF_BF16 = 66.9 / 989.4  # an H100's, for GPUs that state no fp32 peak
# Products of 64 by 64 in Triton wait for registers, masks and decays, so they reach the same number of
# FLOPs a clock on Hopper and on Blackwell, far below the peak of tensor cores. Fitted on 31 timings of FLA
# 0.5's delta net on H20, H100, H200, B200 and GB200 (FlashQLA 6e5d2ea1, flashinfer pull requests
# 3866 and 3902, helion 3e928d1e), which it meets within 16 % on average; the kernels
# of mamba 2 on an H100 have 344 to 417 (vLLM pull request 27299).
_CHUNK_PRODUCTS = 430.0
# A delta net's chunk starts from the state that the chunk before leaves: two small products in a row.
# The timings give 1.1 microseconds on H200 and GB200, 0.7 on B200. Other states are summed in one kernel.
_STATE_STEP_S = 0.9e-6
# Kimi's delta attention scales keys by the decays of every channel and block of 16 tokens: FLA takes 1.5
# to 1.9 times as long as for a gated delta net (helion, B200; FlashKDA, H20).
_CHANNEL_DECAYS = 1.75
_STATE_BYTES = 4.0


def scan(ctx: Context, mixer: MixerSpec) -> PassSeconds:
    """Price the scan of one layer: its products or its bytes, and what chunks wait for states.

    Chunks are too small for the peak of tensor cores: a delta net's head of 128 by 128 has 180,224 FLOPs
    and 5,120 bytes a token, which take equally long on an H100; GPUs with faster memory wait for the
    products. A selective scan has no products for tensor cores: it takes as long as its exponentials, or
    its bytes.
    """
    fp32 = ctx.gpu.peak_flops.get("fp32", ctx.gpu.peak_bf16_flops * _FP32_OF_BF16)
    clocks = fp32 / _FP32_BEFORE_HOPPER.get(ctx.gpu.architecture, _FP32)  # of all multiprocessors
    tensor = ctx.gpu.peak_bf16_flops * ctx.operators.flash * ctx.constants.attention
    work = 2.0 * ctx.tokens * mixer.scan_products() / ctx.t
    moved = 2.0 * ctx.tokens * mixer.scan_elements() / ctx.t / ctx.hbm_bytes_per_s
    if mixer.decays:  # each has an exponential
        forward = np.maximum(ctx.tokens * mixer.decays / ctx.t / (clocks * _EXPONENTIALS), moved)
        return PassSeconds(forward=forward, backward=_BACKWARD * forward)
    if mixer.kind == "kimi_delta_attention":
        work = _CHANNEL_DECAYS * work
    forward = np.maximum(work / np.minimum(clocks * _CHUNK_PRODUCTS, tensor), moved)
    if mixer.kind in ("gated_delta_net", "kimi_delta_attention"):
        forward = forward + ctx.seq_length / ctx.c / mixer.chunk * _STATE_STEP_S
    return PassSeconds(forward=forward, backward=_BACKWARD * forward)


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
