"""One hierarchical Gaussian model of a cluster's runs, and its posterior.

The logarithm of a measured step over the predicted one is a sum of independent parts: what all runs of
a cluster have in common (one factor of dense models, one of those with experts), the effect of
constants that differ from their stack's, a residual process that alike configurations share, and what a
run is off by alone. Factors and the last part follow Student's t: some cluster is off its stack
throughout, and some run is off for a reason of its own. The posterior of these parts given the runs is
the calibration, and its spread is the band. Few runs mostly determine the factor, many also the constants
and the residual.

The cost model is linearised in its constants at every step (damped Gauss-Newton). Amplitude and noise
of a cluster are averaged over a grid by marginal likelihood. A constant that the runs show to be far
off (a kernel that is not fused, a launch that blocks) is held less tightly: else its effect, which
orders all configurations, would be taken for local bumps round the runs. Memory has the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from meshwright.profiles.calibration import LOWER_BOUNDS, UPPER_BOUNDS
from meshwright.profiles.profile import (
    MAX_LOG,
    Constants,
    Residual,
    regimes,
    shared_kernel,
    squared_distances,
)
from meshwright.solver.calibration.priors import Process, kinds_of, spreads_of
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
        """Return the physical bounds as offsets from these values; a value outside may stay."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Measured runs of one cluster, with their prior predictions."""

    measured: FloatArray  # log measurements, (K,)
    features: FloatArray  # (K, F)
    noises: FloatArray  # what each run is off by of its own, log, (K,)
    roughness: FloatArray  # noise of each run over that of one that no launch holds up, (K,)
    shared: tuple[float, float]  # spread of the factors, log: dense models, experts
    common: float = 1.0  # part of their variance that runs of different regimes share

    def at(self, kept: BoolArray) -> Runs:
        """Return the runs where the mask holds."""
        return replace(
            self,
            measured=self.measured[kept],
            features=self.features[kept],
            noises=self.noises[kept],
            roughness=self.roughness[kept],
        )

    @property
    def kinds(self) -> FloatArray:
        """Return which factors each run has, (K, 2 + R)."""
        return kinds_of(self.features)

    @property
    def spreads(self) -> FloatArray:
        """Return the standard deviation of each of these factors, log, (2 + R,)."""
        return spreads_of(self.features, self.shared, self.common)


def kernel(features: FloatArray, process: Process) -> FloatArray:
    """Return the covariance of the residual between runs, without noise."""
    apart = squared_distances(features, features)
    return np.asarray(process.amplitude**2 * np.exp(-0.5 * apart / process.length**2))


# --------------------------------------------------------------------------------------------------
# How rough a cluster's residual and how noisy its runs are.
#
# Marginal likelihood: Rasmussen and Williams 2006 ("Gaussian Processes for Machine Learning"), equation
# 2.30.


_MULTIPLES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)  # of amplitude and noise that are tried
_MOST_HEARD = 128  # runs, evenly drawn: two numbers need no more


def chosen_multiples(
    prior: Process, runs: Runs, left: FloatArray, from_constants: FloatArray
) -> tuple[float, float]:
    """Return multiples of amplitude and noise by marginal likelihood, held near 1.

    The geometric mean over a grid, weighted by likelihood: few runs barely distinguish neighbours, and the
    best cell alone would jump between them.

    Args:
        prior: where to look, and how freely.
        runs: of the cluster.
        left: measured less predicted at the stack's constants, log, (K,).
        from_constants: covariance that the constants' priors give the runs, (K, K).
    """
    heard = np.unique(np.linspace(0, len(left) - 1, min(len(left), _MOST_HEARD)).astype(np.int64))
    # in units of each run's noise, where one decomposition serves every level of it
    unit, points = runs.noises[heard], runs.features[heard]
    left, apart = left[heard] / unit, np.outer(unit, unit)
    fixed = from_constants[np.ix_(heard, heard)] + shared_kernel(points, points, runs.shared, runs.common)
    near = kernel(points, prior) / apart
    cells, scores = [], []
    for amplitude in _MULTIPLES:
        values, vectors = np.linalg.eigh(fixed / apart + amplitude**2 * near)
        turned = vectors.T @ left
        for noise in _MULTIPLES:
            variances = np.maximum(values, 0.0) + noise**2
            surprise = float((turned**2 / variances + np.log(variances)).sum())
            held = (log(amplitude) / prior.freedom) ** 2 + (log(noise) / prior.noise_freedom) ** 2
            cells.append((log(amplitude), log(noise)))
            scores.append(-0.5 * (surprise + held))
    weights = np.exp(np.array(scores) - max(scores))
    amplitude, noise = np.exp(weights @ np.array(cells) / weights.sum())
    return float(amplitude), float(noise)


Evaluate = Callable[[FloatArray], FloatArray]  # offsets (v, c) -> log predictions (v, K)
_STEP = -0.05  # of a finite difference; downwards, where no upper bound interferes
_ITERATIONS = 6
_REWEIGHTINGS = 3  # at each of these
_HALVINGS = 5
_SETTLED = 1e-3
_TINY_PART = 1e-6
# Degrees of freedom of Student's t, of runs and of factors. A run that is far off is odd more often than
# all of its cluster: where an open run is off by more than two spreads, the others of its cluster are off
# by a quarter as much. 2 and 4 left the least error after 1, 4 and 16 runs.
_TAILS = 2.0
FACTOR_TAILS = 4.0
# A constant may lie eight prior widths away if the runs demand it: a cluster's framework is then unlike all
# that the widths were learnt from. One in some dozen clusters is, of some two dozen constants each: the
# evidence must grow e^2.5-fold and more, and three constants at most are let go.
_FAR_OFF = 8.0
_EVIDENCE = 2.5  # log, least
_MOST_FAR_OFF = 3
# A framework with far slower memory-bound operators moves more bytes (``elementwise``).
_NEVER_FAR_OFF = ("hbm",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    wanted: FloatArray  # offsets, (c,)
    noises: FloatArray  # of each run, as variances, (K,)
    shared: FloatArray  # of the factors, as variances, (2 + R,)
    precision: FloatArray  # of what the constants leave over, (K, K)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """The runs' predictions, linearised in the offsets."""

    offsets: FloatArray  # (c,)
    predicted: FloatArray  # log, under the offsets, (K,)
    jacobian: FloatArray  # (K, c)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted offsets with the matrices that judge them."""

    offsets: FloatArray  # (c,)
    predicted: FloatArray  # log, under the offsets, (K,)
    jacobian: FloatArray  # (K, c)
    runs: Runs  # with the noises that they show
    process: Process
    widths: FloatArray  # (c,) as far as they are trusted
    prior_widths: FloatArray  # (c,) before that
    factors: FloatArray  # dense, experts, then of each regime, log, (2 + R,)
    weights: FloatArray  # of the residual's kernel, (K,)
    noises: FloatArray  # of each run, as far as the fit uses it, (K,)
    usual_noises: FloatArray  # of each run, before any was heard, (K,)
    contrasts: float = 1.0  # part of the prior variance of constants and residual that the runs used

    @property
    def as_open(self) -> Fit:
        """Return the fit with the whole variance of constants and residual, which its spread is from."""
        part = self.contrasts**0.5
        whole = replace(self.process, amplitude=self.process.amplitude / part)
        used = self.contrasts * self.weights  # of a kernel that is so much larger
        return replace(self, process=whole, widths=self.widths / part, weights=used, contrasts=1.0)

    @property
    def linear(self) -> _Linear:
        """Return the predictions linearised at the offsets."""
        return _Linear(offsets=self.offsets, predicted=self.predicted, jacobian=self.jacobian)

    @property
    def at_prior(self) -> FloatArray:
        """Return measured less predicted at the stack's constants, as linearised at the fit, (K,)."""
        return np.asarray(self.runs.measured - self.predicted + self.jacobian @ self.offsets)

    @property
    def from_constants(self) -> FloatArray:
        """Return the covariance that the constants' priors give the runs, (K, K)."""
        scaled = self.jacobian * self.widths
        return np.asarray(scaled @ scaled.T)

    @property
    def beside_constants(self) -> FloatArray:
        """Return the covariance of all else: residual, factors and noise, (K, K)."""
        points = self.runs.features
        together = kernel(points, self.process)
        together += shared_kernel(points, points, self.runs.shared, self.runs.common)
        return np.asarray(together + np.diag(self.noises**2))

    @property
    def log_sds(self) -> FloatArray:
        """Return standard deviations of the offsets given the runs (Laplace's approximation), (c,).

        Round the whole prior: runs that teach nothing do not make a constant sure.
        """
        information = self.jacobian.T @ np.linalg.solve(self.beside_constants, self.jacobian)
        return np.asarray(np.sqrt(np.diag(np.linalg.inv(information + np.diag(self.prior_widths**-2.0)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    evaluate: Evaluate
    runs: Runs
    widths: FloatArray
    box: Box
    process: Process

    def linearised(self, tried: FloatArray) -> tuple[FloatArray, _Linear]:
        """Return predictions under each set of offsets (v, c), shape (v, K), and linearised at the first.

        All are priced at once: sixty sets of offsets take hardly longer than one.
        """
        first, sets = tried[0], len(tried)
        values = self.evaluate(np.concatenate([tried, first + _STEP * np.eye(len(first))]))
        jacobian = ((values[sets:] - values[0]) / _STEP).T
        return values[:sets], _Linear(offsets=first, predicted=values[0], jacobian=jacobian)

    def cost(self, predicted: FloatArray, offsets: FloatArray, precision: FloatArray) -> float:
        error = self.runs.measured - predicted
        return float(error @ precision @ error + ((offsets / self.widths) ** 2).sum())


def fit(evaluate: Evaluate, runs: Runs, *, widths: Mapping[str, float], box: Box, prior: Process) -> Fit:
    """Fit the offsets, loosen one that is far off, then amplitude and noise, then the offsets again.

    Of K runs one tells the level, which the factors take. Only what they differ by tells constants and
    residual apart, so the K runs use 1 - 1/K of their prior variance: one run leaves the order of
    configurations as it was.

    Args:
        evaluate: log predictions of all runs under each set of offsets.
        runs: of one cluster.
        widths: prior widths of the offsets, by constant.
        box: bounds of the offsets.
        prior: of the residual process.
    """
    known = np.array(list(widths.values()))
    loose = np.array([name not in _NEVER_FAR_OFF for name in widths]) & (len(runs.measured) > 1)
    contrasts = max(1.0 - 1.0 / len(runs.measured), _TINY_PART)
    prior = replace(prior, amplitude=contrasts**0.5 * prior.amplitude)
    used = contrasts**0.5 * prior.trust * known
    task = _Task(evaluate=evaluate, runs=runs, widths=used, box=box, process=prior)
    _, start = task.linearised(np.zeros((1, len(known))))
    prior_widths, found = known, _descend(task, start)
    process, noises = _shown(prior, found)
    for _ in range(_MOST_FAR_OFF):
        far_off = _far_off(replace(found, process=process, noises=noises), known, loose)
        if far_off is None:
            break
        prior_widths = np.where(far_off, _FAR_OFF * known, prior_widths)
        loose = loose & ~far_off
        task = replace(task, widths=np.where(far_off, prior_widths, task.widths))
        found = _descend(task, found.linear)
        process, noises = _shown(prior, found)
    heard = replace(task, process=process, runs=replace(runs, noises=noises))
    last = _descend(heard, found.linear)
    return replace(last, prior_widths=prior_widths, usual_noises=runs.noises, contrasts=contrasts)


def _shown(prior: Process, found: Fit) -> tuple[Process, FloatArray]:
    amplitude, noise = chosen_multiples(prior, found.runs, found.at_prior, found.from_constants)
    shown = replace(prior, amplitude=amplitude * prior.amplitude, noise=noise * prior.noise)
    return shown, noise * found.runs.noises


def _far_off(found: Fit, known: FloatArray, loose: BoolArray) -> BoolArray | None:
    """Return the loose constant that the runs support most, as a mask (c,); None if they do not.

    The log marginal likelihood of runs with covariance C grows by ``(s q^2 / (1 + s p) - ln(1 + s p)) / 2``
    when s is added to the prior variance of a constant of effects j, with ``p = j' C^-1 j`` and
    ``q = j' C^-1 (runs)`` (the matrix determinant lemma).
    """
    precision = np.linalg.inv(found.from_constants + found.beside_constants)
    information = np.einsum("kc,kl,lc->c", found.jacobian, precision, found.jacobian)
    pulled = found.jacobian.T @ precision @ found.at_prior
    added = (_FAR_OFF * known) ** 2 - found.widths**2
    gain = 0.5 * added * pulled**2 / (1.0 + added * information) - 0.5 * np.log1p(
        np.maximum(added * information, 0.0)
    )
    gain = np.where(loose, gain, -np.inf)
    best = int(np.argmax(gain))
    return np.arange(len(known)) == best if gain[best] > _EVIDENCE else None


def _descend(task: _Task, start: _Linear) -> Fit:
    here, variances = start, (task.runs.noises**2, np.square(task.runs.spreads))
    for _ in range(_ITERATIONS):
        heard = _heard(task, here, variances)
        variances = heard.noises, heard.shared
        moved = _shortened(task, here, heard)
        if moved is None:
            break
        settled = float(np.abs(moved.offsets - here.offsets).max()) < _SETTLED
        here = moved
        if settled:
            break
    weights = heard.precision @ (task.runs.measured - here.predicted)
    return Fit(
        offsets=here.offsets,
        predicted=here.predicted,
        jacobian=here.jacobian,
        runs=task.runs,
        process=task.process,
        widths=task.widths,
        prior_widths=task.widths,
        factors=heard.shared * (task.runs.kinds.T @ weights),
        weights=weights,
        noises=np.sqrt(heard.noises),
        usual_noises=task.runs.noises,
    )


def _heard(task: _Task, here: _Linear, variances: tuple[FloatArray, FloatArray]) -> _Heard:
    """Solve the linearised model given the runs, from variances of noise and of the factors on.

    Student's t as a mixture of normal distributions of unlike widths, by expectation maximisation (Lange,
    Little and Taylor 1989, "Robust Statistical Modeling Using the t Distribution"): what noise and factors
    are expected to have done widens them.
    """
    jacobian, runs, kinds = here.jacobian, task.runs, task.runs.kinds
    at_prior = runs.measured - here.predicted + jacobian @ here.offsets
    near = kernel(runs.features, task.process)
    usual, spreads = runs.noises**2, np.square(runs.spreads)
    noises, shared = variances
    for turn in range(_REWEIGHTINGS):
        precision = np.linalg.inv(near + (kinds * shared) @ kinds.T + np.diag(noises))
        pulled = jacobian.T @ precision
        normal = pulled @ jacobian + np.diag(task.widths**-2.0)
        wanted = least_in_box(normal, pulled @ at_prior, task.box)
        if turn == _REWEIGHTINGS - 1:
            break
        weights = precision @ (at_prior - jacobian @ wanted)
        whole = precision - pulled.T @ np.linalg.solve(normal, pulled)  # of all runs, constants unknown
        own = (noises * weights) ** 2 + noises - noises**2 * np.diag(whole)
        common = (shared * (kinds.T @ weights)) ** 2 + shared
        common -= shared**2 * np.einsum("kf,kl,lf->f", kinds, whole, kinds)
        noises = (_TAILS * usual + own) / (_TAILS + 1.0)
        shared = (FACTOR_TAILS * spreads + common) / (FACTOR_TAILS + 1.0)
    return _Heard(
        wanted=wanted, noises=noises, shared=shared, precision=np.asarray(precision, dtype=np.float64)
    )


def _shortened(task: _Task, here: _Linear, heard: _Heard) -> _Linear | None:
    """Return where the longest of a few halved steps lowers the cost; None if none does."""
    before = task.cost(here.predicted, here.offsets, heard.precision)
    steps = 0.5 ** np.arange(_HALVINGS)[:, None]
    tried = here.offsets + steps * (heard.wanted - here.offsets)
    values, whole = task.linearised(tried)
    for halvings, (candidate, value) in enumerate(zip(tried, values, strict=True)):
        if task.cost(value, candidate, heard.precision) < before:
            return whole if halvings == 0 else task.linearised(candidate[None, :])[1]
    return None


# --------------------------------------------------------------------------------------------------
# The posterior as a residual process with an honest spread.
#
# Leave-one-out residuals ``(C^-1 z)_i / (C^-1)_ii``: Rasmussen and Williams 2006, equation 5.12.


_MOST = 4.0  # one run counts for no more than this many spreads


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Residual that the fit leaves over."""

    residual: Residual
    # Each run's log residual given all others, over what it would usually be: one wild run widens the noise
    # of all, and must not hide behind it.
    leave_one_out: FloatArray
    typical_sigma: float  # log, of a run like those seen


def left_over(found: Fit, quantity: str) -> Left:
    """Return the residual process after the runs, its spread scaled by leaving one run out at a time.

    What the constants leave open between configurations is kept as a second, long kernel with the mean
    variance that their priors give the runs. ``quantity`` is ``time`` or ``memory``.
    """
    spread, found = catalog_spreads()[quantity], found.as_open
    runs, process = found.runs, found.process
    constants, points = found.from_constants, runs.features
    trend = float(np.sqrt(np.diag(constants).mean()))
    alike = trend**2 * np.exp(-0.5 * squared_distances(points, points) / spread["trend_length"] ** 2)
    precision = np.linalg.inv(alike + found.beside_constants)
    everything = np.linalg.inv(constants + found.beside_constants)
    errors = everything @ found.at_prior / np.diag(everything)
    left_open = np.maximum(1.0 / np.diag(everything) - found.noises**2, 0.0)
    expected = left_open + runs.noises**2
    ratios = errors**2 / expected
    squares = float(np.minimum(ratios, _MOST**2).sum()) + spread["scale_runs"] * spread["scale"] ** 2
    scale = float(np.sqrt(squares / (len(ratios) + spread["scale_runs"])))
    dense, experts, *of_regimes = (float(np.clip(factor, -MAX_LOG, MAX_LOG)) for factor in found.factors)
    return Left(
        residual=Residual(
            points=_tuples(points),
            weights=tuple(float(w) for w in found.weights),
            shared=runs.shared,
            factors=(dense, experts),
            common=runs.common,
            own_factors=tuple(zip(map(int, np.unique(regimes(runs.features))), of_regimes, strict=True)),
            amplitude=process.amplitude,
            length=process.length,
            trend_amplitude=trend,
            trend_length=spread["trend_length"],
            launch_noise=spread.get("launch_noise", 0.0),
            precision=_tuples(np.asarray(precision)),
            noise=float(np.median(runs.noises / runs.roughness)),
            usual_noise=float(np.median(found.usual_noises / runs.roughness)),
            scale=scale,
        ),
        leave_one_out=errors / np.sqrt(left_open + found.usual_noises**2),
        typical_sigma=scale * float(np.sqrt(expected.mean())),
    )


def _tuples(matrix: FloatArray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in row) for row in matrix)
