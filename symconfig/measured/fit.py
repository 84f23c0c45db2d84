"""Bounded, robust least squares on log seconds, many fits at once.

All fits of a leave-one-out run in lockstep: a model that is evaluated over arrays of constants costs little more for a
hundred sets of constants than for one. Levenberg-Marquardt with clipped steps; Cauchy's weights keep a few odd rows
from deciding; a prior on each constant keeps what the rows do not determine where it was.

Sources run on other software, machines and data, so each has an offset of its own, a random effect: log measured =
model + offset + error. The offsets are solved for beside the constants: least squares gives the constants that
integrating the offsets out gives. One far from the others counts for less, as an odd row does. Predictions have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Standard deviations of log seconds: the model's own error of a row, and of the sources' offsets.
FORM_ERROR = 0.05
BETWEEN_SOURCES = 0.1
# How far rows of one source err together beside their offset (the same models, shapes and layouts): n rows count as
# n / (1 + ALIKE (n - 1)), the design effect of cluster samples (Kish, Survey Sampling, 1965).
ALIKE = 0.1
ODD = 2.0  # deviations from which a residual or an offset pulls less, the farther off it is
NEVER = 1e6  # deviations: a constant is not odd
DEVIATION = 1.4826  # a normal distribution's standard deviation over its median absolute one
STEP = 1e-3  # of the logarithm of a constant, for derivatives
ROUNDS = 30
ENOUGH = 1e-3  # relative fall of the cost at which a fit has settled
SHORT = 1.0  # damping from which a step that still does not help is a short one: the fit has settled, too


@dataclass(frozen=True, slots=True)
class Parameter:
    """A constant to fit: its prior value, the prior's relative standard deviation, and bounds."""

    name: str
    value: float
    uncertainty: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fit:
    """values, uncertainty: [parameters], of all rows; uncertainty is relative.

    pull: [parameters, rows], what each row adds to the logarithm of value over prior, to first order; those of all rows
    add up to it, unless a bound holds the value.
    offsets: of each source. log_s: [rows], without offsets.
    left_out_log_s: [ways, rows], each row predicted by the fit that did not see its group of each way of `leave_out`;
    where that leaves no row, by the prior.
    """

    values: Array
    uncertainty: Array
    pull: Array
    offsets: dict[str, float]
    log_s: Array
    left_out_log_s: Array


def fit(
    evaluate: Callable[[Array], Array],
    measured_log_s: Array,
    parameters: Sequence[Parameter],
    leave_out: Sequence[Sequence[str]] = (),
    sources: Sequence[str] = (),
) -> Fit:
    """Return constants fitted to log seconds by robust least squares, with one more fit for each group left out.

    evaluate: log constants [parameters, n] -> log seconds [rows, n]. measured_log_s: [rows], natural logarithms.
    parameters: priors and bounds. leave_out: several groupings of the rows, each with one group name per row. sources:
    one per row; each gets an offset, and n rows of one source count as n / (1 + ALIKE (n - 1)). Empty: no offsets, all
    rows count fully.
    """
    rows, n, names = len(measured_log_s), len(parameters), sorted(set(sources))
    folds = [(way, np.asarray(group) == name) for way, group in enumerate(leave_out) for name in sorted(set(group))]
    seen = np.array([np.ones(rows, dtype=bool), *(~mine for _, mine in folds)])
    alike = np.array([1 + ALIKE * (sources.count(source) - 1) for source in sources] or np.ones(rows))
    own = np.array([[source == name for name in names] for source in sources], float).reshape(rows, len(names))
    every = [*parameters, *(Parameter(name, 1.0, BETWEEN_SOURCES, 1e-9, 1e9) for name in names)]
    prior, *bounds = np.log([[p.value, p.low, p.high] for p in every]).T
    width, odd = np.array([p.uncertainty for p in every]), np.repeat([NEVER, ODD], [n, len(names)])
    weights = seen / alike / FORM_ERROR**2
    problem = _Problem(evaluate, measured_log_s, prior, width, odd, np.array(bounds), weights, own)
    theta, log_s, slopes, weights, precision = problem.solve()
    left_out = np.empty((len(leave_out), rows))
    for fold, (way, mine) in enumerate(folds, 1):
        left_out[way, mine] = log_s[fold, mine]
    covariance = np.linalg.inv(weights * slopes.T @ slopes + np.diag(precision))[:n]
    # What a row was off before the fit, had the model been linear.
    off = measured_log_s - log_s[0] + slopes[:, :n] @ (theta[0] - prior)[:n]
    return Fit(
        values=np.exp(theta[0, :n]),
        uncertainty=np.sqrt(np.diag(covariance)),
        pull=covariance @ (weights * off * slopes.T),
        offsets=dict(zip(names, theta[0, n:].tolist(), strict=True)),
        log_s=log_s[0],
        left_out_log_s=left_out,
    )


@dataclass(frozen=True, slots=True)
class _Problem:
    """prior, width, bounds: of the constants, which come first, and of the offsets. odd: in deviations.

    weights: [fits, rows], 0 where a fit does not see a row. own: [rows, offsets], 1 at the source of a row.
    """

    evaluate: Callable[[Array], Array]
    measured: Array
    prior: Array
    width: Array
    odd: Array
    bounds: Array
    weights: Array
    own: Array

    def solve(self) -> tuple[Array, Array, Array, Array, Array]:
        """Return the constants and offsets [fits, parameters] and log seconds without offsets [fits, rows]. Then, of
        the first fit only: slopes [rows, parameters], robust weights [rows] and precisions of the priors [parameters].
        A step is kept only if it lowers its fit's cost; slopes are updated only with the first fit's. The outlier edge
        only falls. Stops when all fits have settled (ENOUGH, SHORT), or after ROUNDS.
        """
        fits = len(self.weights)
        theta = np.tile(np.clip(self.prior, *self.bounds), (fits, 1))
        damping, settled = np.full(fits, 1e-2), np.zeros(fits, dtype=bool)
        log_s, slopes = self.slopes(theta)
        edge = self.edge(self.residual(theta, log_s))
        for _ in range(ROUNDS):
            residual = self.residual(theta, log_s)
            cost = self.cost(theta, residual, edge)
            tried = self.step(theta, residual, slopes, edge, damping)
            tried_log_s, tried_slopes = self.slopes(tried)
            tried_cost = self.cost(tried, self.residual(tried, tried_log_s), edge)
            better = tried_cost < cost
            if better[0]:
                slopes = tried_slopes
            settled |= np.where(better, cost - tried_cost <= ENOUGH * cost, damping >= SHORT)
            theta = np.where(better[:, None], tried, theta)
            log_s = np.where(better[:, None], tried_log_s, log_s)
            edge = np.minimum(edge, self.edge(self.residual(theta, log_s)))
            damping = np.clip(np.where(better, damping / 4, damping * 8), 1e-6, 1e6)
            if settled.all():
                break
        return theta, log_s, slopes, self.robust(self.residual(theta, log_s), edge)[0], self.precision(theta)[0]

    def slopes(self, theta: Array) -> tuple[Array, Array]:
        """Return log seconds [fits, rows], and their derivatives [rows, constants and offsets] at the first fit's
        constants, which serve all fits: differences of STEP; by an offset 1 for its source's rows, else 0.
        """
        constants = theta[:, : theta.shape[1] - self.own.shape[1]]
        values = self.evaluate(np.concatenate([constants, constants[0] + STEP * np.eye(constants.shape[1])]).T)
        base, moved = values[:, : len(theta)], values[:, len(theta) :]
        return base.T, np.hstack([(moved - base[:, :1]) / STEP, self.own])

    def residual(self, theta: Array, log_s: Array) -> Array:
        """Return model plus offset minus measured, in log seconds: [fits, rows]."""
        return np.asarray(log_s + theta[:, theta.shape[1] - self.own.shape[1] :] @ self.own.T - self.measured)

    def edge(self, residual: Array) -> Array:
        """Return the residual beyond which a row counts as an outlier, [fits, 1]: ODD times the larger of FORM_ERROR
        and the deviation from the median absolute residual of the rows that the fit sees (0 if it sees none).
        """
        seen = np.ma.masked_where(self.weights == 0, np.abs(residual))
        typical = np.ma.median(seen, axis=1, keepdims=True).filled(0.0)  # type: ignore[no-untyped-call]
        result: Array = ODD * np.maximum(FORM_ERROR, DEVIATION * typical)
        return result

    def robust(self, residual: Array, edge: Array) -> Array:
        """Return the rows' weights, reduced for outliers: [fits, rows]."""
        return self.weights / (1 + (residual / edge) ** 2)

    def precision(self, theta: Array) -> Array:
        """Return the priors' weights, reduced for offsets far from zero: [fits, parameters]."""
        return np.asarray(self.width**-2.0 / (1 + ((theta - self.prior) / self.width / self.odd) ** 2))

    def cost(self, theta: Array, residual: Array, edge: Array) -> Array:
        """Return the cost [fits]: Cauchy's loss of the rows and of the offsets, and the constants' priors."""
        loss = edge**2 * np.log1p((residual / edge) ** 2)
        prior = self.odd**2 * np.log1p(((theta - self.prior) / self.width / self.odd) ** 2)
        return np.asarray((self.weights * loss).sum(axis=1) + prior.sum(axis=1))

    def step(self, theta: Array, residual: Array, slopes: Array, edge: Array, damping: Array) -> Array:
        """Return the constants after one damped step, clipped to the bounds: [fits, parameters]. A constant at a bound
        is held if the step would leave the bounds.
        """
        weights, precision, unit = self.robust(residual, edge), self.precision(theta), np.eye(theta.shape[1])
        matrix = np.einsum("fr,rp,rq->fpq", weights, slopes, slopes, optimize=True) + precision[:, :, None] * unit
        gradient = (weights * residual) @ slopes + (theta - self.prior) * precision
        low, high = self.bounds
        free = ~(((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0)))
        diagonal = np.einsum("fpp->fp", matrix)[:, :, None] * unit
        matrix = matrix + damping[:, None, None] * diagonal
        matrix = np.where(free[:, :, None] & free[:, None, :], matrix, diagonal)
        move = np.linalg.solve(matrix, np.where(free, gradient, 0.0)[:, :, None])[:, :, 0]
        return np.clip(theta - move, low, high)
