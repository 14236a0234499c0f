"""How far the open runs pin a constant down: its posterior spread beside its prior's.

Laplace's approximation: the inverse Hessian of what the fit minimises is the posterior covariance
(MacKay 2003, "Information Theory, Inference, and Learning Algorithms", chapter 27).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.fit.evidence import NOISE, Linear
from meshwright.profiles.calibration import LOWER_BOUNDS, UPPER_BOUNDS
from meshwright.profiles.profile import Constants, LevelConstant
from meshwright.solver.configuration import FloatArray

NARROWED = 0.7  # posterior over prior spread: above, the runs have told next to nothing


def posterior_log_sds(linear: Linear, widths: Mapping[str, float]) -> FloatArray:
    """Standard deviations of ln(constant) given the runs, at the optimum they are linearised at.

    Runs count as in the fit: soft-L1 lowers those that disagree, a cluster counts as a dozen at most.
    """
    names = linear.quantity.names
    weight = linear.weights / (NOISE**2 * np.sqrt(1.0 + (linear.left / NOISE) ** 2))
    hessian = (linear.jacobian.T * weight) @ linear.jacobian
    hessian += np.diag(np.array([widths[name] for name in names]) ** -2.0)
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(hessian))))


def level_constants(
    found: Constants, linear: Linear, widths: Mapping[str, float]
) -> dict[str, LevelConstant]:
    """The fitted constants with their uncertainty, and whether the runs identify them."""
    sds = posterior_log_sds(linear, widths)
    return {
        name: LevelConstant(
            value=float(f"{getattr(found, name):.3g}"),
            log_sd=float(f"{sd:.2g}"),
            source="fitted",
            identified=bool(sd <= NARROWED * widths[name]) and not at_bound(name, getattr(found, name)),
        )
        for name, sd in zip(linear.quantity.names, sds, strict=True)
    }


def at_bound(name: str, value: float) -> bool:
    """Whether a constant stands at one of its physical bounds (to a thousandth)."""
    upper, lower = UPPER_BOUNDS.get(name), LOWER_BOUNDS.get(name)
    return bool(
        (upper is not None and value >= 0.999 * upper) or (lower is not None and value <= 1.001 * lower)
    )
