"""Operators under the roof of their GPU (Williams, Waterman and Patterson 2009): plain records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPoint:
    """One operator of the forward pass of one micro-batch on one GPU."""

    name: str
    flops: float
    moved_bytes: float  # least traffic: inputs read, outputs written once
    seconds: float  # as the cost model prices it
    peak_flops: float  # of the precision that it runs in
    layers: int  # of the model that run it

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.moved_bytes

    @property
    def rate_flops(self) -> float:
        """FLOP/s that it reaches."""
        return self.flops / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The roof of one GPU type, and the operators under it."""

    gpu: str
    bytes_per_s: float  # data sheet's memory bandwidth
    peak_flops: float  # highest of the operators' precisions
    points: tuple[OperatorPoint, ...]
    note: str = ""  # which ranks of a placed plan these are: their tensor-parallel size

    def roof_flops(self, point: OperatorPoint) -> float:
        """What the GPU could reach at an operator's intensity."""
        return min(point.peak_flops, point.intensity * self.bytes_per_s)
