"""Fits the node values of a logarithmic grid to scattered measurements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.profiles.operators.tables import FloatArray, IndexArray, LogAxis, corners

_ROUNDS = 4  # of reweighting; the fourth moves the median by less than 0.1 %
_STEPS = 200  # of conjugate gradients, at most
_NOISE = 0.06  # log2: residuals beyond it (4 %) lose weight, so that outliers do not bend the table


def fit_values(
    axes: tuple[LogAxis, ...], point: tuple[FloatArray, ...], target: FloatArray, *, smoothness: float
) -> FloatArray:
    """Flat node values whose multilinear interpolation is close to ``target`` at the points.

    Minimises ``sum w (interpolated - target)^2 + smoothness * sum (differences of neighbours)^2``
    with weights ``w = min(1, noise / |residual|)``: Huber's loss by iterated reweighting, each round
    solved by conjugate gradients on the normal equations (Hestenes and Stiefel 1952). The pull
    between neighbours fills the nodes that no measurement touches.
    """
    found = corners(axes, point)
    index = np.stack([np.broadcast_to(nodes, target.shape) for nodes, _ in found])
    share = np.stack([np.broadcast_to(weights, target.shape) for _, weights in found])
    counts = tuple(axis.count for axis in axes)

    def smooth(nodes: FloatArray) -> FloatArray:
        return smoothness * _roughness(nodes, counts)

    values = np.full(int(np.prod(counts)), float(np.median(target)))
    weight = np.ones_like(target)
    for _ in range(_ROUNDS):
        values = _weighted_fit(index, share, weight=weight, target=target, start=values, smooth=smooth)
        residual = np.abs(np.sum(share * values[index], axis=0) - target)
        weight = np.minimum(1.0, _NOISE / np.maximum(residual, 1e-12))
    return values


def _weighted_fit(
    index: IndexArray,
    share: FloatArray,
    *,
    weight: FloatArray,
    target: FloatArray,
    start: FloatArray,
    smooth: Callable[[FloatArray], FloatArray],
) -> FloatArray:
    """Node values of the weighted least-squares problem; index and share have the shape (2^d, n)."""

    def scatter(rows: FloatArray) -> FloatArray:
        spread = np.bincount(index.ravel(), (share * (weight * rows)).ravel(), minlength=start.size)
        return np.asarray(spread, dtype=np.float64)

    def normal(nodes: FloatArray) -> FloatArray:
        return scatter(np.sum(share * nodes[index], axis=0)) + smooth(nodes)

    return _conjugate_gradients(normal, scatter(target), start)


def _roughness(values: FloatArray, counts: tuple[int, ...]) -> FloatArray:
    """Gradient of half the squared differences between neighbours along every axis."""
    cube = values.reshape(counts)
    gradient = np.zeros_like(cube)
    for axis in range(len(counts)):
        steps = np.diff(cube, axis=axis)
        lower, upper = np.moveaxis(gradient, axis, 0)[:-1], np.moveaxis(gradient, axis, 0)[1:]
        lower -= np.moveaxis(steps, axis, 0)
        upper += np.moveaxis(steps, axis, 0)
    return gradient.ravel()


def _conjugate_gradients(
    product: Callable[[FloatArray], FloatArray], right: FloatArray, start: FloatArray
) -> FloatArray:
    """The solution of a symmetric positive definite system, from a first guess."""
    values = start
    residual = right - product(values)
    direction, norm = residual, float(residual @ residual)
    for _ in range(_STEPS):
        if norm < 1e-12 * right.size:
            break
        image = product(direction)
        length = norm / float(direction @ image)
        values = values + length * direction
        residual = residual - length * image
        previous, norm = norm, float(residual @ residual)
        direction = residual + norm / previous * direction
    return values
