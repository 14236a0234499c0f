"""Reads a SimuMax system file: measured GEMM, grouped GEMM and attention, forward and backward.

    python -m benchmarks.foreign.simumax GPU=FILE … --out
    profiles/catalog/operators/backward.json

The format is that of ``configs/system`` in github.com/MooreThreads/SimuMax (Apache-2.0): under
``accelerator.op`` one entry per operator with ``tflops`` (the peak) and ``accurate_efficient_factor``
(share of that peak by shape, as text ``m=…, n=…``). Its benchmarks count 2 m n k for each product and
for attention the *full* square of scores, 2.5 times as much in the backward pass, although the
kernels are causal.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.reading import shown
from meshwright.profiles.units import TERA

_MAX_TFLOPS = 1e6
_MAX_SHARE = 10.0  # above 1 where the source counts the full square of a causal attention
_PAIR = re.compile(r"(\w+)=([\w.]+)")
Pass = Literal["forward", "input_gradient", "weight_gradient"]
_PASS_OF_LAYOUT: Mapping[str, Pass] = {"TN": "forward", "NN": "input_gradient", "NT": "weight_gradient"}
_PASS_OF_STAGE: Mapping[str, Pass] = {
    "fwd": "forward",
    "bwd_grad_act": "input_gradient",
    "bwd_grad_w": "weight_gradient",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTiming:
    """One product of a linear layer, or of as many equal experts, in one pass."""

    groups: int  # experts; 1 is a plain GEMM
    tokens: int  # rows of the forward pass, per expert
    outputs: int  # columns of the forward pass
    inputs: int  # inner length of the forward pass
    direction: Pass
    gradient_dtype: str  # what a weight gradient is summed in; empty elsewhere
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiming:
    """Causal flash attention of one shape."""

    shape: str
    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTimings:
    """What one SimuMax file has measured."""

    name: str
    products: tuple[ProductTiming, ...]
    attention: tuple[AttentionTiming, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """One key of a table: ``name=value`` pairs in a text."""

    file: ForeignFile
    text: str
    pairs: tuple[tuple[str, str], ...]

    @property
    def where(self) -> str:
        """The place of this shape in messages."""
        return shown(self.text)

    def word(self, name: str) -> str:
        """The text of a pair; empty when it is missing."""
        return dict(self.pairs).get(name, "")

    def sizes(self, *names: str) -> list[int]:
        """The whole numbers of some pairs.

        Raises:
            ProfileError: one is missing or not a whole number above 0.
        """
        return [self.file.whole(self.word(name), f"{name} of {self.where}", high=2**31) for name in names]

    def direction(self, name: str, known: Mapping[str, Pass]) -> Pass:
        """The pass that a pair stands for.

        Raises:
            ProfileError: an unknown word.
        """
        if self.word(name) not in known:
            raise self.file.fault(f"{name} of {self.where}", f"expected one of {', '.join(known)}")
        return known[self.word(name)]


def load_simumax(path: Path | str) -> SystemTimings:
    """The measured operators of a SimuMax system file.

    Raises:
        ProfileError: the file is missing, too large, not JSON, or not of that format.
    """
    file = ForeignFile.open(path)
    raw = file.json()
    accelerator = file.mapping(raw.get("accelerator"), "accelerator")
    operators = file.mapping(accelerator.get("op"), "accelerator.op")
    products = [_gemm(shape, rate) for shape, rate in _rates(file, operators, "matmul")]
    products += [_grouped(shape, rate) for shape, rate in _rates(file, operators, "group_matmul")]
    forward, backward = (dict(_rates(file, operators, name)) for name in ("sdp_fwd", "sdp_bwd"))
    attention = [
        _attention(shape, rate, backward[shape]) for shape, rate in forward.items() if shape in backward
    ]
    if not products and not attention:
        raise file.fault("accelerator.op", "no shape under any accurate_efficient_factor")
    return SystemTimings(
        name=shown(raw.get("sys_name", "")), products=tuple(products), attention=tuple(attention)
    )


def _rates(file: ForeignFile, operators: Mapping[str, object], name: str) -> Iterator[tuple[Shape, float]]:
    """Every measured shape of an operator with its rate in FLOP/s."""
    if name not in operators:
        return
    where = f"accelerator.op.{name}"
    entry = file.mapping(operators[name], where)
    peak_flops = TERA * file.positive(entry.get("tflops"), f"{where}.tflops", high=_MAX_TFLOPS)
    shares = entry.get("accurate_efficient_factor")
    if not shares:
        return
    for text, share in file.mapping(shares, f"{where}.accurate_efficient_factor").items():
        shape = Shape(file=file, text=text, pairs=tuple(_PAIR.findall(text)))
        yield shape, peak_flops * file.positive(share, shape.where, high=_MAX_SHARE)


def _gemm(shape: Shape, rate: float) -> ProductTiming:
    """A plain product; backward shapes are turned into those of their layer's forward pass."""
    m, n, k, batch = shape.sizes("m", "n", "k", "b")
    direction = shape.direction("layout", _PASS_OF_LAYOUT)
    tokens, outputs, inputs = {
        "forward": (m, n, k),
        "input_gradient": (m, k, n),
        "weight_gradient": (k, m, n),
    }[direction]
    dtype = shape.word("out_dtype") if direction == "weight_gradient" else ""
    return ProductTiming(
        groups=1,
        tokens=tokens,
        outputs=outputs,
        inputs=inputs,
        direction=direction,
        gradient_dtype=dtype,
        seconds=2.0 * batch * m * n * k / rate,
    )


def _grouped(shape: Shape, rate: float) -> ProductTiming:
    """A grouped product; the file keeps the forward pass's shape in all passes."""
    groups, m, n, k = shape.sizes("ng", "M", "N", "K")
    direction = shape.direction("stage", _PASS_OF_STAGE)
    dtype = shape.word("main_grad_dtype")
    return ProductTiming(
        groups=groups,
        tokens=m,
        outputs=n,
        inputs=k,
        direction=direction,
        gradient_dtype=dtype if direction == "weight_gradient" else "",
        seconds=2.0 * groups * m * n * k / rate,
    )


def _attention(shape: Shape, forward: float, backward: float) -> AttentionTiming:
    """Two products over all scores forward, five backward, as the source counts them."""
    batch, tokens, heads = shape.sizes("batch", "seq_len", "head_num")
    key_dim, value_dim = shape.sizes("qk_head_dim", "v_head_dim")
    scores = float(batch * tokens * tokens * heads * (key_dim + value_dim))
    return AttentionTiming(
        shape=shape.text, forward_s=2.0 * scores / forward, backward_s=5.0 * scores / backward
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardRatio:
    """Seconds of a part of the backward pass over the forward pass of the same layer."""

    operator: str  # gemm, grouped_gemm, attention
    part: str  # input_gradient, weight_gradient; backward of attention
    gradient_dtype: str  # fp32, bf16: of weight gradients; empty elsewhere
    count: int  # layers measured in both passes
    median: float
    p10: float
    p90: float


def backward_ratios(timings: SystemTimings) -> tuple[BackwardRatio, ...]:
    """How much longer the parts of a backward pass take than the forward pass of the same layer."""
    forward: dict[tuple[int, int, int, int], list[float]] = defaultdict(list)
    for product in timings.products:
        if product.direction == "forward":
            forward[_layer(product)].append(product.seconds)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for product in timings.products:
        before = forward.get(_layer(product))
        if before and product.direction != "forward":
            operator = "gemm" if product.groups == 1 else "grouped_gemm"
            key = (operator, product.direction, product.gradient_dtype)
            found[key].append(product.seconds / float(np.median(before)))
    for attention in timings.attention:
        found["attention", "backward", ""].append(attention.backward_s / attention.forward_s)
    return tuple(_ratio(key, values) for key, values in sorted(found.items()))


def _layer(product: ProductTiming) -> tuple[int, int, int, int]:
    return product.groups, product.tokens, product.outputs, product.inputs


def _ratio(key: tuple[str, str, str], values: Sequence[float]) -> BackwardRatio:
    p10, median, p90 = (round(float(x), 3) for x in np.percentile(values, (10, 50, 90)))
    return BackwardRatio(
        operator=key[0],
        part=key[1],
        gradient_dtype=key[2],
        count=len(values),
        median=median,
        p10=p10,
        p90=p90,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the backward ratios of several measured GPUs into one file."""
    parser = argparse.ArgumentParser(prog="benchmarks.foreign.simumax", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="GPU=FILE")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    try:
        gpus = {}
        for entry in chosen.files:
            gpu, _, file = entry.partition("=")
            gpus[gpu] = [asdict(ratio) for ratio in backward_ratios(load_simumax(file))]
    except ProfileError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    header = {
        "source": "SimuMax (github.com/MooreThreads/SimuMax, Apache-2.0), configs/system: shapes, paired",
        "units": "seconds of the part over seconds of the same layer's forward pass, bf16",
    }
    chosen.out.write_text(_written(header, gpus), encoding="utf-8")
    return 0


def _written(header: Mapping[str, str], gpus: Mapping[str, Sequence[object]]) -> str:
    """JSON with one ratio a line."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in header.items()]
    entries = [
        f"  {json.dumps(gpu)}: [\n   " + ",\n   ".join(json.dumps(ratio) for ratio in ratios) + "\n  ]"
        for gpu, ratios in gpus.items()
    ]
    return "{\n" + ",\n".join([*lines, ' "gpus": {\n' + ",\n".join(entries) + "\n }"]) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
