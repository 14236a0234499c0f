"""Calibration of one cluster from measured runs: offsets of a stack's constants, and residuals.

A calibration is kept apart from the profile it corrects, as a small JSON file: it holds logarithms of
ratios to the stack's constants, so it survives a new fit of the stacks, and serves every framework
that the cluster runs on that stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import exp, inf
from typing import Any

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import (
    MAX_LOG,
    Constants,
    Profile,
    Residual,
    launchers_of_stack,
    with_own_shares,
)

FORMAT = "meshwright-calibration/1"
MAX_RUNS = 4096  # of one calibration file; keeps a hostile file from filling the memory

MAX_LOG_OFFSET = MAX_LOG
_MAX_NUMBER = 1e9  # of a residual; sums of products of such stay far from an overflow
_MIN_SCALE = 1e-6  # of lengths and spreads
_MAX_SCALE = 1e3
_MAX_NAME = 200  # characters

# Physical upper bounds: shares of a line rate or of a time cannot exceed 1 (0.95 where a protocol or
# a refresh takes its part), latencies and traffic what no published measurement exceeds.
UPPER_BOUNDS: Mapping[str, float] = {
    "fast_link": 1.2, "network": 1.0, "tensor_exposed": 1.0, "expert_exposed": 1.0,
    "gather_exposed": 1.0, "hbm": 0.95, "score_gemm": 0.7,
    "collective_latency_s": 1.5e-4, "update_bytes": 34.0,
    "transfer_exposed": 1.5, "loss_bytes": 120.0, "score_bytes": 30.0,
}  # fmt: skip
_RESIDUAL_NUMBERS: Mapping[str, float] = {  # the least value of each
    "amplitude": 0.0, "length": _MIN_SCALE, "trend_amplitude": 0.0, "trend_length": _MIN_SCALE,
    "noise": _MIN_SCALE, "scale": _MIN_SCALE,
}  # fmt: skip
LOWER_BOUNDS: Mapping[str, float] = {"reserve": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The outcome of calibrating one cluster."""

    cluster: str
    stack: str  # the stack that the offsets are relative to
    gpu: str  # slug of the GPU that the runs ran on
    num_runs: int  # with a step time
    log_offsets: Mapping[str, float]  # ln(constant / stack's value), by constant
    residual: Residual | None  # of the step time
    memory_residual: Residual | None
    log_memory_sigma: float | None  # None: no run reported its memory
    log_sds: Mapping[str, float] = field(default_factory=dict)  # of the offsets, given the runs
    findings: tuple[str, ...] = ()  # what looked wrong, one sentence each
    runs: tuple[str, ...] = ()  # names of the runs that it learnt from
    measured: tuple[Mapping[str, Any], ...] = ()  # timed runs, as ``timed_record`` writes them

    def applied(self, profile: Profile) -> Profile:
        """Return the profile with this cluster's constants, residual and spreads."""
        values = {
            name: bounded(name, getattr(profile.constants, name) * exp(offset))
            for name, offset in self.log_offsets.items()
        }
        title = f"calibrated on {self.num_runs} run{'s' * (self.num_runs > 1)}"
        own = with_own_shares(profile) if self.num_runs else profile
        return replace(
            own,
            constants=replace(profile.constants, **values),
            residual=self.residual,
            memory_residual=self.memory_residual,
            log_memory_sigma=self.log_memory_sigma or profile.log_memory_sigma,
            title=profile.title.replace("uncalibrated", title),
            uncalibrated=profile,
            learnt_from=self.runs,
        )

    def mismatches(self, profile: Profile) -> tuple[str, ...]:
        """Return why the calibration may not hold for a profile; empty when the GPU is its own."""
        if profile.group.gpu.slug == self.gpu:
            return ()
        return (f"calibrated on {self.gpu}, used for {profile.group.gpu.slug}",)

    def require_stack(self, profile: Profile) -> None:
        """Refuse a profile of another software stack: the offsets are ratios to constants of its own.

        Raises:
            InvalidProblemError: at ``/profile/stack``.
        """
        if profile.framework.stack == self.stack:
            return
        launchers = ", ".join(launchers_of_stack(self.stack)) or "no launcher"
        raise InvalidProblemError.of(
            "/profile/stack",
            f"was calibrated with the software stack {self.stack}, but you asked for "
            f"{profile.framework.stack}",
            allowed=f"problems under {self.stack} ({launchers})",
        )

    def fits_features(self, count: int) -> bool:
        """Return whether the residuals have that many features, as this version computes them."""
        residuals = (self.residual, self.memory_residual)
        return all(len(r.points[0]) == count for r in residuals if r is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the calibration as a JSON document."""
        return {"format": FORMAT, **asdict(self)}


def bounded(name: str, value: float) -> float:
    """Return a constant's value inside its physical bounds."""
    return max(min(value, UPPER_BOUNDS.get(name, inf)), LOWER_BOUNDS.get(name, 0.0))


def read_calibration(document: Mapping[str, Any]) -> Calibration:
    """Return the calibration of a JSON document.

    Raises:
        InvalidProblemError: another format, or a part that is missing or of the wrong kind.
    """
    try:
        if document["format"] != FORMAT:
            raise InvalidProblemError.of("/format", "is not a calibration", allowed=FORMAT)
        offsets = {str(name): _number(value) for name, value in document["log_offsets"].items()}
        sigma = document["log_memory_sigma"]
        calibration = Calibration(
            cluster=str(document["cluster"]),
            stack=_name(document["stack"]),
            gpu=_name(document["gpu"]),
            num_runs=int(_within(document["num_runs"], 0.0, _MAX_NUMBER)),
            log_offsets=offsets,
            residual=_residual_of(document["residual"]),
            memory_residual=_residual_of(document["memory_residual"]),
            log_memory_sigma=None if sigma is None else _within(sigma, _MIN_SCALE, MAX_LOG),
            log_sds={str(n): _within(v, 0.0, MAX_LOG) for n, v in document.get("log_sds", {}).items()},
            findings=tuple(str(finding) for finding in document["findings"]),
            runs=tuple(_name(name) for name in document.get("runs", ())[:MAX_RUNS]),
            measured=tuple(dict(one) for one in document.get("measured", ())[:MAX_RUNS]),
        )
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise InvalidProblemError.of(
            "/", "is not a calibration written by `meshwright calibrate`"
        ) from fault
    if any(abs(offset) > MAX_LOG_OFFSET for offset in offsets.values()):
        raise InvalidProblemError.of("/log_offsets", "changes a constant by more than a factor of 100")
    unknown = offsets.keys() - {f.name for f in fields(Constants)}
    if unknown:
        raise InvalidProblemError.of("/log_offsets", "names an unknown constant")
    return calibration


def _residual_of(raw: Mapping[str, Any] | None) -> Residual | None:
    if raw is None:
        return None
    points, precision = _rows(raw["points"]), _rows(raw["precision"])
    weights = tuple(_number(value) for value in raw["weights"])
    runs = len(weights)
    square = all(len(row) == runs for row in precision)
    even = len({len(row) for row in points}) == 1
    if not 0 < runs <= MAX_RUNS or len(points) != runs or len(precision) != runs or not square or not even:
        raise ValueError("matrices of different sizes")
    return Residual(
        points=points,
        weights=weights,
        precision=precision,
        launch_noise=_within(raw.get("launch_noise", 0.0), 0.0, _MAX_SCALE),
        usual_noise=_within(raw.get("usual_noise", 0.0), 0.0, _MAX_SCALE),
        shared=_two(raw.get("shared", (0.0, 0.0)), 0.0),
        factors=_two(raw.get("factors", (0.0, 0.0)), -MAX_LOG),
        common=_within(raw.get("common", 1.0), 0.0, 1.0),
        own_factors=tuple(
            (int(_within(regime, 0.0, _MAX_NUMBER)), _within(factor, -MAX_LOG, MAX_LOG))
            for regime, factor in raw.get("own_factors", ())[:MAX_RUNS]
        ),
        **{name: _within(raw[name], least, _MAX_SCALE) for name, least in _RESIDUAL_NUMBERS.items()},
    )


def _two(raw: Sequence[object], least: float) -> tuple[float, float]:
    dense, experts = raw
    return _within(dense, least, MAX_LOG), _within(experts, least, MAX_LOG)


def _number(raw: object) -> float:
    return _within(raw, -_MAX_NUMBER, _MAX_NUMBER)


def _within(raw: object, least: float, most: float) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise TypeError("not a number")
    value = float(raw)
    if not least <= value <= most:
        raise ValueError("out of range")
    return value


def _name(raw: str) -> str:
    if len(raw) > _MAX_NAME or not raw.isprintable():
        raise ValueError("not a name")
    return raw


def _rows(raw: list[list[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(_number(value) for value in row) for row in raw)
