"""Measured matrix products of other tools as a measured profile: the level of a GPU's operators."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.errors import InvalidProblemError
from profiles.importers.layer_times import Taken, measured_profile_of
from profiles.importers.simumax import ProductTiming, SystemTimings
from profiles.measured_profile import MeasuredProfile, Measurement, Timing


def measured_from_products(source: SystemTimings, taken: Taken) -> tuple[MeasuredProfile, tuple[str, ...]]:
    """The measured profile of a SimuMax system's products, and what was left out.

    Raises:
        InvalidProblemError: it holds no matrix product.
    """
    measurements = tuple(_measurement(one) for one in source.products)
    if not measurements:
        raise InvalidProblemError.of("/accelerator/op", "holds no matrix product")
    return measured_profile_of(measurements, taken), tuple(_left_out(source))


def _left_out(source: SystemTimings) -> Iterator[str]:
    """What a measured profile does not take of the file."""
    if source.attention:
        yield f"{len(source.attention)} attention shapes are ignored: they name no shard of the model"


def _measurement(one: ProductTiming) -> Measurement:
    """One product of one pass; the passes of a layer share a task."""
    shape = {"m": one.tokens, "n": one.outputs, "k": one.inputs, "experts": one.groups}
    name = "x".join(str(side) for side in shape.values())
    return Measurement(
        task=f"gemm/{name}",
        group="gemm",
        operator="product",
        kind=one.direction,
        shape=shape,
        timing=Timing(median_s=one.seconds, p10_s=one.seconds, p90_s=one.seconds, repeats=1),
        work_flops=2.0 * one.groups * one.tokens * one.outputs * one.inputs,
    )
