"""Maximum-a-posteriori fit of constants to runs, jointly with a residual process.

Minimises over offsets d of the constants' logarithms
``(y - f(d))' C^-1 (y - f(d)) + sum (d / width)^2`` with C the covariance of residual and noise, by
damped Gauss-Newton steps on finite differences. Runs that disagree with the rest are weighted down as
soft-L1 does: their noise grows with the part of the residual that only noise can explain. A constant that
the runs show to be far off (a kernel that nobody fused, a launch that blocks) is held less tightly: else
its effect, which orders all configurations, would be taken for local bumps round the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log

import numpy as np

from meshwright.profiles.calibration import LOWER_BOUNDS, UPPER_BOUNDS
from meshwright.profiles.profile import (
    MAX_LOG,
    Constants,
    Residual,
    has_experts,
    shared_kernel,
    squared_distances,
    twin_kernel,
)
from meshwright.solver.configuration import BoolArray, FloatArray
from meshwright.solver.cost.uncertainty import catalog_spreads

# --------------------------------------------------------------------------------------------------
# Quadratic programs in a box: the inner step of every fit of bounded constants.


_TINY = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Bounds of the constants' log offsets, shape (c,) each."""

    lower: FloatArray
    upper: FloatArray

    @classmethod
    def of(cls, constants: Constants, names: Sequence[str]) -> Box:
        """The physical bounds as offsets from these values; a value outside may stay where it is."""
        values = np.array([getattr(constants, name) for name in names])
        lower = np.array([max(LOWER_BOUNDS.get(name, 0.0), _TINY) for name in names])
        upper = np.array([UPPER_BOUNDS.get(name, np.inf) for name in names])
        return cls(
            lower=np.minimum(np.log(lower / values), 0.0), upper=np.maximum(np.log(upper / values), 0.0)
        )


def least_in_box(normal: FloatArray, right: FloatArray, box: Box) -> FloatArray:
    """Minimise ``x' normal x / 2 - right' x`` inside the box.

    What leaves the box is put on its edge and the rest solved again; nothing is let go again, which
    costs a little where two constants trade places and never leaves the box.
    """
    x = np.zeros(len(right))
    free = np.ones(len(right), dtype=bool)
    while free.any():
        held = normal[np.ix_(free, ~free)] @ x[~free]
        x[free] = np.linalg.solve(normal[np.ix_(free, free)], right[free] - held)
        outside = free & ((x < box.lower) | (x > box.upper))
        if not outside.any():
            break
        x[outside] = np.clip(x, box.lower, box.upper)[outside]
        free &= ~outside
    return x


# --------------------------------------------------------------------------------------------------
# How far a cluster's constants may lie from its stack's: prior widths and physical bounds.
#
# A width is the standard deviation of ``ln(constant / stack's value)``: what the fitted stacks differ by
# among each other (``catalog/calibration/stacks.yaml``), at least what one library release moves it.


TIME_WIDTHS: Mapping[str, float] = {
    "gemm": 0.12, "attention": 0.25, "grouped_gemm": 0.1,
    "permute_bytes": 0.6, "score_gemm": 0.4, "score_bytes": 0.4,
    "hbm": 0.15, "elementwise": 0.5, "loss_bytes": 0.5, "floor_s": 0.5, "floor_moe": 0.3,
    "floor_tensor": 0.5, "floor_across": 0.5,
    "collective_latency_s": 0.5, "fast_link": 0.15, "network": 0.35, "tensor_exposed": 0.4,
    "expert_exposed": 0.3, "gather_exposed": 0.4, "transfer_exposed": 0.4,
    "update_bytes": 0.3, "straggler": 0.5, "fixed_s": 0.5,
}  # fmt: skip
# Where the global level is expected before any run is heard: 1 where operators or links were measured
# themselves, else counted bytes and usual figures. What leaves runs out of a fit starts from these, too.
TIME_CENTRES: Mapping[str, float] = {
    "gemm": 1.0, "attention": 0.9,  # of the best kernel's table: rotary copies and launches beside it
    "grouped_gemm": 0.8,
    "permute_bytes": 56.0,  # index and copy both ways: 28 at the share of fused operators below
    "score_gemm": 0.3, "score_bytes": 9.0,  # of peak; 2 + 2 + 2 + 2 and a mask
    "hbm": 0.9, "elementwise": 0.5,  # half of the least traffic stays in caches or is fused away
    "loss_bytes": 30.0,  # 2-byte logits, fp32 copies read and written, gradients
    "floor_s": 9e-4, "floor_moe": 1.0, "floor_tensor": 0.35, "floor_across": 1.7,
    "collective_latency_s": 5e-5, "fast_link": 1.0, "network": 0.75,
    "tensor_exposed": 0.3, "expert_exposed": 0.25, "gather_exposed": 0.5, "transfer_exposed": 0.3,
    "update_bytes": 30.0,  # fused AdamW (profiles/optimizers.py)
    "straggler": 1e-3, "fixed_s": 0.015,
}  # fmt: skip
MEMORY_WIDTHS: Mapping[str, float] = {
    "activation": 0.15, "base_bytes": 0.5, "context_bytes": 0.4, "reserve": 0.05,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the runs of a cluster may differ by from its stack, before any run is heard."""

    amplitude: float  # of the residual process, log
    noise: float  # of one run, log
    length: float  # of the residual process, features
    freedom: float  # spread of ln(amplitude) about the value above
    noise_freedom: float  # spread of ln(noise)
    far_amplitude: float = 0.0  # of the second, long process, log
    far_length: float = 4.0
    trust: float = 1.0  # share of the constants' prior widths that is used


# The values that predicted left-out runs best on the open clusters, whose pair of GPU and framework (or
# whose whole software stack) no constant had seen; the choice is flat: half or twice any of them costs
# 0.2 points of error. The long process carries what runs have in common to configurations unlike them all.
TIME_PROCESS = Process(
    amplitude=0.1, noise=0.03, length=1.4, freedom=0.8, noise_freedom=0.7, far_amplitude=0.06
)
MEMORY_PROCESS = Process(amplitude=0.05, noise=0.05, length=1.4, freedom=1.0, noise_freedom=1.0)


# --------------------------------------------------------------------------------------------------
# The covariance of what the constants leave over, and how much of it the runs show.
#
# Marginal likelihood: Rasmussen and Williams 2006 ("Gaussian Processes for Machine Learning"), equation
# 2.30.


_AMPLITUDES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)  # multiples of the prior's that are tried
_NOISES = (0.5, 1.0, 2.0, 4.0, 8.0)
# Of the constants' prior widths, with the prior chance of each: whether a cluster's runs differ by what
# its constants explain is for the runs to say.
_TRUSTS = {0.0: 0.25, 0.5: 0.25, 1.0: 0.5}
_MOST_HEARD = 128  # runs, evenly drawn: three numbers need no more


def kernel(features: FloatArray, process: Process) -> FloatArray:
    """Covariance of the residual between runs, without noise."""
    apart = squared_distances(features, features)
    near = process.amplitude**2 * np.exp(-0.5 * apart / process.length**2)
    return np.asarray(near + process.far_amplitude**2 * np.exp(-0.5 * apart / process.far_length**2))


def chosen_process(
    prior: Process,
    features: FloatArray,
    left: FloatArray,
    from_constants: FloatArray,
    roughness: FloatArray,
) -> Process:
    """Amplitude, noise and trust in the constants by marginal likelihood, held near the prior's.

    The mean over a grid, weighted by likelihood (of amplitude and noise the geometric one): few runs
    barely tell neighbours apart, and the best cell alone would jump between them. With no run to tell,
    or runs that nothing explains, the noise stays large and the calibration near the stack.

    Args:
        prior: where to look, and how freely.
        features: of the runs, (K, F).
        left: measured less predicted at the stack's constants, log, (K,).
        from_constants: covariance that the constants' priors give the runs, (K, K).
        roughness: noise of each run over the process's, (K,).
    """
    heard = np.unique(np.linspace(0, len(left) - 1, min(len(left), _MOST_HEARD)).astype(np.int64))
    # in units of each run's noise, where one decomposition serves every level of it
    unit = roughness[heard]
    left, apart = left[heard] / unit, np.outer(unit, unit)
    from_constants = from_constants[np.ix_(heard, heard)] / apart
    near = kernel(features[heard], prior) / apart
    cells, scores = [], []
    for trust, amplitude in product(_TRUSTS, _AMPLITUDES):
        values, vectors = np.linalg.eigh(trust**2 * from_constants + amplitude**2 * near)
        turned = vectors.T @ left
        for noise in _NOISES:
            variances = np.maximum(values, 0.0) + (noise * prior.noise) ** 2
            surprise = float((turned**2 / variances + np.log(variances)).sum())
            held = (log(amplitude) / prior.freedom) ** 2 + (log(noise) / prior.noise_freedom) ** 2
            cells.append((log(amplitude), log(noise), trust))
            scores.append(log(_TRUSTS[trust]) - 0.5 * (surprise + held))
    weights = np.exp(np.array(scores) - max(scores))
    amplitude, noise, trust = weights @ np.array(cells) / weights.sum()
    return replace(
        prior,
        amplitude=prior.amplitude * float(np.exp(amplitude)),
        far_amplitude=prior.far_amplitude * float(np.exp(amplitude)),
        noise=prior.noise * float(np.exp(noise)),
        trust=float(trust),
    )


Evaluate = Callable[[FloatArray], FloatArray]  # offsets (v, c) -> log predictions (v, K)
_STEP = -0.05  # of a finite difference; downwards, where no upper bound stands in the way
_ITERATIONS = 6
_REWEIGHTINGS = 3
_HALVINGS = 5
_SETTLED = 1e-3
_LEAST_TRUST = 1e-3  # keeps the widths positive
# A constant may lie eight prior widths away where the runs say so: a cluster's framework is then unlike all
# that the widths were learnt from. One in some dozen clusters is, of some two dozen constants each: the
# evidence must grow e^2.5-fold and more, and three constants at most are let go.
_FAR_OFF = 8.0
_EVIDENCE = 2.5  # log, least
_MOST_FAR_OFF = 3
# A framework whose memory-bound operators take far longer moves more bytes (``elementwise``).
_NEVER_FAR_OFF = ("hbm",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The fitted offsets and what is needed to judge them."""

    offsets: FloatArray  # (c,)
    predicted: FloatArray  # log, under the offsets, (K,)
    jacobian: FloatArray  # (K, c)
    features: FloatArray  # of the runs, (K, F)
    noises: FloatArray  # of each run, (K,)
    roughness: FloatArray  # expected noise of each run over the process's, (K,)
    process: Process
    widths: FloatArray  # (c,) as far as the process trusts them
    prior_widths: FloatArray  # (c,) before that

    @property
    def from_constants(self) -> FloatArray:
        """Covariance that the constants' priors give the runs, (K, K)."""
        scaled = self.jacobian * self.widths
        return np.asarray(scaled @ scaled.T)

    @property
    def log_sds(self) -> FloatArray:
        """Standard deviations of the offsets given the runs (Laplace's approximation), (c,).

        Round the whole prior: runs that teach nothing do not make a constant sure.
        """
        covariance = kernel(self.features, self.process) + np.diag(self.noises**2)
        told = self.jacobian.T @ np.linalg.solve(covariance, self.jacobian)
        return np.asarray(np.sqrt(np.diag(np.linalg.inv(told + np.diag(self.prior_widths**-2.0)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One least-squares problem."""

    evaluate: Evaluate
    measured: FloatArray
    features: FloatArray
    widths: FloatArray
    box: Box
    roughness: FloatArray  # noise of each run over the process's, (K,)

    def linearised(self, offsets: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predictions and their Jacobian."""
        moved = offsets + _STEP * np.eye(len(offsets))
        values = self.evaluate(np.concatenate([offsets[None, :], moved]))
        return values[0], ((values[1:] - values[0]) / _STEP).T

    def cost(self, predicted: FloatArray, offsets: FloatArray, precision: FloatArray) -> float:
        """What the fit minimises."""
        error = self.measured - predicted
        return float(error @ precision @ error + ((offsets / self.widths) ** 2).sum())


def fit(
    evaluate: Evaluate,
    measured: FloatArray,
    features: FloatArray,
    *,
    widths: Mapping[str, float],
    box: Box,
    prior: Process,
    roughness: FloatArray,
) -> Fit:
    """Fit the offsets, let go what is far off, then fit the process, then the offsets under it.

    Args:
        evaluate: log predictions of all runs under each set of offsets.
        measured: log measurements, (K,).
        features: of the runs, (K, F).
        widths: prior widths of the offsets, by constant.
        box: bounds of the offsets.
        prior: of the residual process.
        roughness: noise of each run over the process's, (K,).
    """
    known = np.array(list(widths.values()))
    loose = np.array([name not in _NEVER_FAR_OFF for name in widths])
    task = _Task(
        evaluate=evaluate,
        measured=measured,
        features=features,
        widths=known,
        box=box,
        roughness=roughness,
    )
    first = _descend(task, prior, np.zeros(len(known)))
    process = _process_of(prior, task, first)
    for _ in range(_MOST_FAR_OFF):
        far_off = _far_off(task, first, process, known, loose)
        if far_off is None:
            break
        task = replace(task, widths=np.where(far_off, _FAR_OFF * known, task.widths))
        first = _descend(task, prior, first.offsets)
        process = _process_of(prior, task, first)
    share = np.where(task.widths > known, 1.0, max(process.trust, _LEAST_TRUST))
    found = _descend(replace(task, widths=share * task.widths), process, share * first.offsets)
    return replace(found, prior_widths=task.widths)


def _at_prior(task: _Task, found: Fit) -> FloatArray:
    """Measured less predicted at the stack's constants, as linearised at the fit, (K,)."""
    return np.asarray(task.measured - found.predicted + found.jacobian @ found.offsets)


def _process_of(prior: Process, task: _Task, found: Fit) -> Process:
    """The process that a fit under the prior shows."""
    return chosen_process(
        prior, task.features, _at_prior(task, found), found.from_constants, task.roughness
    )


def _far_off(
    task: _Task, found: Fit, process: Process, known: FloatArray, loose: BoolArray
) -> BoolArray | None:
    """The loose constant whose wide prior the runs speak for most, as a mask (c,); None where they do not.

    The log marginal likelihood of runs with covariance C grows by ``(s q^2 / (1 + s p) - ln(1 + s p)) / 2``
    when s is added to the prior variance of a constant of effects j, with ``p = j' C^-1 j`` and
    ``q = j' C^-1 (runs)`` (the matrix determinant lemma).
    """
    own = np.where(task.widths > known, 1.0, process.trust) * task.widths
    effects = found.jacobian * own
    noise = np.diag((process.noise * task.roughness) ** 2)
    precision = np.linalg.inv(effects @ effects.T + kernel(task.features, process) + noise)
    told = np.einsum("kc,kl,lc->c", found.jacobian, precision, found.jacobian)
    pulled = found.jacobian.T @ precision @ _at_prior(task, found)
    added = (_FAR_OFF * known) ** 2 - own**2
    gain = 0.5 * added * pulled**2 / (1.0 + added * told) - 0.5 * np.log1p(np.maximum(added * told, 0.0))
    gain = np.where(loose & (task.widths <= known), gain, -np.inf)
    best = int(np.argmax(gain))
    return np.arange(len(known)) == best if gain[best] > _EVIDENCE else None


def _descend(task: _Task, process: Process, start: FloatArray) -> Fit:
    """Gauss-Newton under one process."""
    covariance = kernel(task.features, process)
    offsets, (predicted, jacobian) = start, task.linearised(start)
    factors = np.ones(len(task.measured))
    for _ in range(_ITERATIONS):
        wanted, factors, precision = _solved(task, process, covariance, (offsets, predicted, jacobian))
        moved = _shortened(task, offsets, wanted, (predicted, precision))
        if moved is None:
            break
        settled = float(np.abs(moved - offsets).max()) < _SETTLED
        offsets, (predicted, jacobian) = moved, task.linearised(moved)
        if settled:
            break
    return Fit(
        offsets=offsets,
        predicted=predicted,
        jacobian=jacobian,
        features=task.features,
        noises=process.noise * task.roughness * np.sqrt(factors),
        roughness=task.roughness,
        process=process,
        widths=task.widths,
        prior_widths=task.widths,
    )


def _solved(
    task: _Task,
    process: Process,
    covariance: FloatArray,
    at: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The best offsets of the linearised problem, the runs' noise factors, and their precision."""
    offsets, predicted, jacobian = at
    left = task.measured - predicted
    factors, expected = np.ones(len(left)), process.noise * task.roughness
    for _ in range(_REWEIGHTINGS):
        noise = expected**2 * factors
        precision = np.linalg.inv(covariance + np.diag(noise))
        pulled = jacobian.T @ precision
        normal = pulled @ jacobian + np.diag(task.widths**-2.0)
        wanted = least_in_box(normal, pulled @ (jacobian @ offsets + left), task.box)
        unexplained = noise * (precision @ (left - jacobian @ (wanted - offsets)))
        factors = np.sqrt(1.0 + (unexplained / expected) ** 2)
    return wanted, factors, np.asarray(precision)


def _shortened(
    task: _Task, offsets: FloatArray, wanted: FloatArray, at: tuple[FloatArray, FloatArray]
) -> FloatArray | None:
    """The longest of a few halved steps that lowers the cost; None when none does."""
    predicted, precision = at
    before = task.cost(predicted, offsets, precision)
    steps = 0.5 ** np.arange(_HALVINGS)[:, None]
    tried = offsets + steps * (wanted - offsets)
    for candidate, value in zip(tried, task.evaluate(tried), strict=True):
        if task.cost(value, candidate, precision) < before:
            return np.asarray(candidate)
    return None


# --------------------------------------------------------------------------------------------------
# What a fit leaves over as a process with an honest spread.
#
# Leave-one-out residuals ``(C^-1 z)_i / (C^-1)_ii``: Rasmussen and Williams 2006 ("Gaussian Processes for
# Machine Learning"), equation 5.12.


_MOST = 4.0  # one run counts for no more than this many spreads
_SHARES = np.linspace(0.0, 1.0, 11)  # of the correction that may be believed
_TAILS = 4.0  # degrees of freedom of Student's t: one wild run decides nothing
_REWEIGHTINGS_OF_LEVEL = 20
_TWIN_JITTER = 0.05  # runs of one configuration share what they are told
# One or two runs barely tell which constant is off from what a cluster's runs have in common. So much of
# the correction by constants is believed for each of them, and of the rest the common factor; nothing is
# kept for the runs and their twins, which would change their place in the order of plans.
_FEW_RUNS = 2
_SHARE_OF_A_RUN = 0.1
# Degrees of freedom of Student's t of the factor: of eight kinds of runs on five clusters that were
# predicted at first sight, two were off by four times the usual spread.
_FACTOR_TAILS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What the open clusters taught about the spread of calibrated predictions."""

    trend_amplitude: float  # log; what the stack's constants leave open on an unseen cluster
    launch_noise: float  # what noise grows by where all of a step hangs on launches, over it
    trend_length: float  # features; the processes' own far_length
    scale: float  # of the process's own spread, before any run of this cluster
    scale_runs: float  # runs for which that scale counts
    safer_up: bool = False  # what runs have in common is believed at once where it is more
    shared: tuple[float, float] = (0.0, 0.0)  # of clusters about their stack, log: dense, experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What the fit leaves over."""

    believed: float  # share of the offsets and of the residual that is applied
    residual: Residual  # as far as it is believed
    leave_one_out: FloatArray  # each run's log residual given all others, over its spread
    typical_sigma: float  # log, of a run like those seen


def shared_spreads() -> tuple[float, float]:
    """Spread of clusters about their stack, log: of dense models and of those with experts."""
    between = catalog_spreads()["between"]
    return float(between["dense"]), float(between["experts"])


def spread_of(quantity: str, uncalibrated_sigma: float) -> Spread:
    """The spread of ``time`` or ``memory`` for a stack whose uncalibrated predictions have that sigma."""
    raw = catalog_spreads()[quantity]
    return Spread(
        trend_amplitude=uncalibrated_sigma,
        launch_noise=float(raw.get("launch_noise", 0.0)),
        trend_length=float(raw["trend_length"]),
        scale=float(raw["scale"]),
        scale_runs=float(raw["scale_runs"]),
        safer_up=quantity == "memory",
        shared=shared_spreads() if quantity == "time" else (0.0, 0.0),
    )


def left_over(
    found: Fit, features: FloatArray, measured: FloatArray, spread: Spread, own: FloatArray
) -> Left:
    """The residual process after the runs, its spread scaled by leaving one run out at a time.

    Args:
        found: the fit.
        features: of the runs, (K, F).
        measured: log measurements, (K,).
        spread: what the open clusters taught about spreads.
        own: what each run is expected to be off by apart from the others of its cluster, log, (K,).
    """
    process, runs = found.process, len(measured)
    near, noise = kernel(features, process), np.diag(found.noises**2)
    trend = max(spread.trend_amplitude, process.far_amplitude)
    wide = replace(process, far_amplitude=trend, far_length=spread.trend_length)
    of_clusters = shared_kernel(features, features, spread.shared)
    precision = np.linalg.inv(kernel(features, wide) + of_clusters + noise)
    at_prior = measured - found.predicted + found.jacobian @ found.offsets
    everything = np.linalg.inv(found.from_constants + near + noise)
    errors = everything @ at_prior / np.diag(everything)
    factors = _Factors.of(at_prior, own, features, spread.shared)
    alone = at_prior - factors.of_others
    share = _believed(alone, errors, 1.0 / np.sqrt(np.diag(everything)))
    few = any(spread.shared) and runs <= _FEW_RUNS
    share = min(share, _SHARE_OF_A_RUN * runs) if few else share
    about_level = np.asarray(np.linalg.inv(near + noise), dtype=np.float64)
    level = max(_level(at_prior, about_level, trend), 0.0) if spread.safer_up else 0.0
    weights = np.linalg.solve(near + noise, measured - found.predicted)
    # what others are told less of than the runs say, the runs themselves and their twins are told
    withheld = (1.0 - share) * (
        found.jacobian @ found.offsets + near @ weights - level - factors.of_run(features)
    )
    twins = twin_kernel(features, features) + _TWIN_JITTER * np.eye(runs)
    twin_weights = () if few else tuple(float(w) for w in np.linalg.solve(twins, withheld))
    expected = np.maximum(1.0 / np.diag(precision) - found.noises**2, 0.0)
    expected += (process.noise * found.roughness) ** 2
    ratios = errors**2 / expected
    squares = float(np.minimum(ratios, _MOST**2).sum()) + spread.scale_runs * spread.scale**2
    scale = float(np.sqrt(squares / (runs + spread.scale_runs)))
    residual = Residual(
        points=_tuples(features),
        weights=tuple(float(w) for w in share * weights),
        twin_weights=twin_weights,
        level=(1.0 - share) * level,
        shared=spread.shared,
        factors=(
            float(np.clip((1.0 - share) * factors.dense, -MAX_LOG, MAX_LOG)),
            float(np.clip((1.0 - share) * factors.experts, -MAX_LOG, MAX_LOG)),
        ),
        amplitude=process.amplitude,
        length=process.length,
        trend_amplitude=trend,
        trend_length=spread.trend_length,
        trend_share=(process.far_amplitude / trend) ** 2,
        launch_noise=spread.launch_noise,
        precision=_tuples(np.asarray(precision)),
        noise=process.noise,
        scale=scale,
    )
    return Left(
        believed=share,
        residual=residual,
        leave_one_out=errors / np.sqrt(expected),
        typical_sigma=scale * float(np.sqrt(expected.mean())),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factors:
    """What runs of one kind of model have in common, log, and what the others say of it for each run."""

    dense: float
    experts: float
    of_others: FloatArray  # (K,)

    @classmethod
    def of(
        cls, at_prior: FloatArray, own: FloatArray, features: FloatArray, shared: tuple[float, float]
    ) -> _Factors:
        """Return the factors of runs.

        Args:
            at_prior: measured less predicted at the stack's constants, log, (K,).
            own: what each run is off by apart from others, log, (K,).
            features: of the runs, (K, F).
            shared: spread of the factors, log: dense models, experts.
        """
        kinds, heard = has_experts(features), own**-2.0
        found, of_others = [0.0, 0.0], np.zeros(len(at_prior))
        for kind, spread in enumerate(shared):
            mine = kinds == kind
            if spread > 0.0 and mine.any():
                told, weight = (heard * at_prior)[mine], heard[mine]
                found[kind] = float(_held(told.sum(), weight.sum(), spread, _FACTOR_TAILS))
                others = told.sum() - told, weight.sum() - weight
                of_others[mine] = _held(*others, spread, _FACTOR_TAILS)
        return cls(dense=found[0], experts=found[1], of_others=of_others)

    def of_run(self, features: FloatArray) -> FloatArray:
        """Return the factor of each row of ``features`` (n, F): (n,)."""
        return np.where(has_experts(features), self.experts, self.dense)


def _held(told: FloatArray, heard: FloatArray, spread: float, tails: float = _TAILS) -> FloatArray:
    """Return means of weights ``heard`` and weighted sums ``told``, held near zero by Student's t.

    One cluster in some is off its stack throughout, and the further, the less that is held.
    """
    held, level = np.full(np.shape(heard), spread**-2.0), np.zeros(np.shape(heard))
    for _ in range(_REWEIGHTINGS_OF_LEVEL):
        level = told / (heard + held)
        held = spread**-2.0 * (tails + 1.0) / (tails + (level / spread) ** 2)
    return np.asarray(level)


def _level(at_prior: FloatArray, precision: FloatArray, spread: float) -> float:
    """What all runs have in common, log: their mean (generalised least squares), held near zero.

    Args:
        at_prior: measured less predicted at the stack's constants, log, (K,).
        precision: of these about their mean, (K, K).
        spread: of clusters about their stack, log.
    """
    return float(_held((precision @ at_prior).sum(), precision.sum(), spread))


def _believed(at_prior: FloatArray, errors: FloatArray, spreads: FloatArray) -> float:
    """How much of the correction other configurations are told: all where the runs predict each other.

    The rest is told what runs have in common alone.

    Between none and all the share is weighted by what it would have said of each run from the others
    (stacking; Yao, Vehtari, Simpson and Gelman 2018, "Using Stacking to Average Bayesian Predictive
    Distributions"), under Student's t. Runs that tell nothing of each other, or one alone, leave half of
    the correction out, instead of spoiling what the stack's constants say of all other configurations.

    Args:
        at_prior: measured less what the other runs' shared factor predicts, log, (K,).
        errors: measured less what the other runs' whole correction predicts, log, (K,).
        spreads: of these errors, (K,).
    """
    left = (at_prior - np.outer(_SHARES, at_prior - errors)) / spreads
    scores = -0.5 * (_TAILS + 1.0) * np.log1p(left**2 / _TAILS).sum(axis=1)
    weights = np.exp(scores - scores.max())
    return float(weights @ _SHARES / weights.sum())


def _tuples(matrix: FloatArray) -> tuple[tuple[float, ...], ...]:
    """A matrix as tuples of rows."""
    return tuple(tuple(float(value) for value in row) for row in matrix)
