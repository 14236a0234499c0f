"""Quantisation-aware training: layers round their inputs and weights in every pass.

Fake quantisers, torchao's but for one, are eager operators in front of each product. The gradient passes
straight through what rounds. Each is counted kernel by kernel, bytes read and written of an element
(torchao 0.17 ``quantization/qat/fake_quantizer.py``, ``prototype/qat/mx.py``; torch 2.13's derivatives).
Routers, experts that lie in one tensor, and a head whose loss reads its weight are no linear layers that
run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.profiles.frameworks import MERGED
from meshwright.profiles.model import LayerKind
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.compute import products
from meshwright.solver.cost.context import Context, PassSeconds, on_slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantizer:
    """Bytes of an element, and, as the second of a pair, those of a group of elements with one scale."""

    forward: tuple[float, float]
    backward: tuple[float, float]
    kept: tuple[float, float]  # for the backward pass, the rounded element that the product reads among it
    at_once: float  # beside that, of the tensor that is rounded
    kernels: float  # of a forward and a backward pass
    keeps_input: bool = True  # the element itself is read in the backward pass, too


# ``_bf16_activations_forward``: to fp32 (6), greatest and least (4 + 4), less the least (8), over the scale
# (8), rounded (8), cut (8), less 8 (8), times the scale (8), plus the least (8), to bf16 (6). Backward: the
# cast (6), its sum (4), product with the scale (8), with the rounded (12) and its sum (4), the cut's mask
# (5 + 5 + 3) and choice (9); the quotient's (8 + 8 + 8 + 12 + 8 + 4), the differences' (8 + 4), and of
# greatest and least which they were, how many, their share and its sum (5 + 1 + 5 + 12 each), and a cast
# (6). Kept are four in fp32: the weight, the difference, the quotient and what is rounded.
_INT4 = _Quantizer(
    forward=(76.0, 72.0), backward=(168.0, 182.0), kept=(18.0, 16.0), at_once=8.0, kernels=16.0 + 39.0
)
# ``_choose_scale_float8`` and its kin: absolute (4), greatest (2), to fp32 (6), over the scale (8), cut
# (8), to fp8 and back (5 + 5), times the scale (8), to bf16 (6). Backward: cast (6), product with the scale
# (8) and with the rounded (12 + 4), to fp8 and back (10), the cut's mask and choice (22), the quotient's (8
# + 8 + 8 + 12 + 8 + 4), a cast (6), the greatest's (3 + 1 + 3), the sign's (4 + 6) and a sum (6). Kept are
# the absolute, the element, its quotient and the rounded one in fp32, and what the product reads.
_FP8 = _Quantizer(
    forward=(52.0, 0.0), backward=(139.0, 0.0), kept=(16.0, 0.0), at_once=8.0, kernels=11.0 + 28.0
)
# ``_fp8_activations_forward``: the same, then absolute and greatest (4 + 2), and seven kernels that read 2
# bytes and write 2: times the inverse, rounded, plus zero, cut, cast, less zero, times the scale. Backward
# they move 61 more, and keep 8.
_INT4_OF_FP8 = _Quantizer(
    forward=(86.0, 30.0), backward=(200.0, 80.0), kept=(24.0, 10.0), at_once=3.0, kernels=26.0 + 58.0
)
# ``_per_token_forward``: least and greatest without a gradient (2 + 2), times the inverse scale (6),
# rounded (8), plus the zero point (8), cut (8), cast (6), less the zero point (4), times the scale (6),
# cast (6). Backward: cast (6), product with the scale (8), two casts (12), the cut's mask and choice (22),
# product with the inverse (8), cast (6). Kept are the quotient in fp32 and the rounded input.
_INT8 = _Quantizer(
    forward=(56.0, 0.0), backward=(62.0, 0.0), kept=(6.0, 0.0), at_once=12.0, kernels=26.0 + 11.0,
    keeps_input=False,
)  # fmt: skip
# ``_MXQuantizedForwardFakeQuantizedBackward``: rounded to 4 bits with a scale for each 32, by kernels on
# the bits of fp32 numbers (171.5, ``f32_to_f4_unpacked``), two of them packed in a byte, and made bf16
# again by 34 (119, ``f4_unpacked_to_f32``), once more in the backward pass. Kept is what is packed, with
# its scale.
_MXFP4 = _Quantizer(
    forward=(290.5, 138.0), backward=(119.0, 42.0), kept=(0.5, 1.0), at_once=30.0, kernels=81.0 + 34.0,
    keeps_input=False,
)  # fmt: skip
# onebitllms 8a927751 ``layers/bitnet.py``: a tensor plus its detached difference from what it is rounded
# to, so that its gradient passes by. Two kernels of Triton round inputs to 8 bits by rows (2 + 4), two and
# a sum weights to -1, 0 and 1 times their mean (2 + 4); the difference and the sum are torch's (6 + 6). The
# head stays as it is (``utils/monkey_patching.py``).
_TRITON = _Quantizer(
    forward=(18.0, 0.0), backward=(0.0, 0.0), kept=(2.0, 0.0), at_once=4.0, kernels=4.0, keeps_input=False
)
_TERNARY = replace(_TRITON, kernels=5.0)
# Of inputs and of weights, by Axolotl's ``activation_dtype`` and ``weight_dtype``.
_SCHEMES: Mapping[str, tuple[_Quantizer | None, _Quantizer | None]] = {
    "none": (None, None),
    "bf16-int4": (None, _INT4_OF_FP8),
    "int8-int4": (_INT8, _INT4),
    "fp8-int4": (_FP8, _INT4_OF_FP8),
    "fp8-fp8": (_FP8, _FP8),
    "mxfp4": (_MXFP4, _MXFP4),
    "int8-ternary": (_TRITON, _TERNARY),
    MERGED: (None, None),  # of adapters alone (``merged_adapters``)
}


def keeps_inputs(ctx: Context) -> bool:
    """Return whether linear layers keep their inputs as they are for the backward pass."""
    rows, _ = _SCHEMES[ctx.facts.fake_quantization]
    return rows is None or rows.keeps_input


@on_slowest
def fake_quantized(ctx: Context, kind: LayerKind) -> PassSeconds:
    """Price the fake quantisers of a layer's linear layers in one forward and one backward pass."""
    forward = backward = ctx.t * 0.0
    for one, number, _ in _tensors(ctx, kind):
        forward = forward + number * _each(ctx, one.forward)
        backward = backward + number * _each(ctx, one.backward)
    return PassSeconds(forward=forward, backward=backward) * (1.0 / ctx.single_bytes_per_s)


def fake_kept_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return what a layer's fake quantisers keep of one micro-batch for the backward pass, shape (n,)."""
    found = (number * _each(ctx, one.kept) for one, number, _ in _tensors(ctx, kind))
    return np.asarray(sum(found, ctx.t * 0.0))


def fake_workspace_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return what rounding the largest tensor of a layer needs beside what is kept, shape (n,)."""
    found = (one.at_once * largest for one, _, largest in _tensors(ctx, kind))
    return np.asarray(np.maximum.reduce([ctx.t * 0.0, *found]))


def fake_kernels(ctx: Context, matrices: float) -> float:
    """Return the kernels of a forward and a backward pass that round what so many linear layers read."""
    found = _SCHEMES[ctx.facts.fake_quantization]
    return matrices * sum(one.kernels for one in found if one is not None)


def _each(ctx: Context, amount: tuple[float, float]) -> float:
    of_element, of_group = amount
    return of_element + of_group / ctx.facts.fake_quantized_group


def _tensors(ctx: Context, kind: LayerKind) -> Iterator[tuple[_Quantizer, FloatArray, FloatArray]]:
    """Yield the elements that each operator's quantisers round, of all its layers and of the largest."""
    rows, weights = _SCHEMES[ctx.facts.fake_quantization]
    operators = ctx.model.layer(kind).operators if weights else ()
    for one in operators:
        linear = [matrix.outputs for matrix in one.matrices if matrix.is_linear and not matrix.experts]
        if not (linear and one.is_priced) or weights is None:
            continue
        (product,) = products(ctx, [one])
        share = max(linear) / sum(matrix.outputs for matrix in one.matrices)
        whole = np.asarray(product.n * product.k + ctx.t * 0.0)
        yield weights, whole, whole * share
        if rows is not None:  # each layer rounds its own copy of what several read
            read = np.asarray(product.m * product.k + ctx.t * 0.0)
            yield rows, len(linear) * read, read
