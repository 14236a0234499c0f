"""How far off step times are where no fit has seen the cluster: figures that ``make accuracy`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from meshwright.profiles.catalog import CATALOG, catalog_file

UNSEEN_FILE = CATALOG / "calibration" / "unseen.yaml"
Kind = Literal["all", "dense", "experts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedErrors:
    """Mean errors of the step time in %, every cluster with one vote."""

    nothing_shared: Mapping[Kind, float]  # cluster, model family and release are new to the fit
    first_sight: Mapping[
        Kind, float
    ]  # the same, predicted before anything was made with these runs in view
    after_runs: Mapping[int, float]  # by the number of measured runs that a cluster is calibrated on
    inside: float  # % of runs inside their 80 % intervals
    width: float  # % from the prediction to the upper edge of that interval
    groups: int  # of at least five configurations of one measured job
    first_three: int  # of them: the fastest measured is among the first three predicted

    def after(self, runs: int) -> float:
        """Return the error after so many runs: that of the largest known number that is not larger."""
        return self.after_runs[max(known for known in self.after_runs if known <= runs)]


@cache
def expected_errors() -> ExpectedErrors:
    """Return the figures of the file."""
    raw = catalog_file(UNSEEN_FILE)
    return ExpectedErrors(
        nothing_shared={"all": raw["error"], "dense": raw["dense"], "experts": raw["experts"]},
        first_sight=raw["first_sight"],
        after_runs=raw["after_runs"],
        inside=raw["inside"],
        width=raw["width"],
        groups=raw["first_three"]["groups"],
        first_three=raw["first_three"]["hits"],
    )
