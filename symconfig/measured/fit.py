"""Bounded, robust least squares on log seconds, many fits at once.

All fits of a leave-one-out run in lockstep: a model that is evaluated over arrays of constants costs little more for a
hundred sets of constants than for one. Levenberg-Marquardt with clipped steps; Cauchy's weights keep a few odd rows
from deciding; a prior on each constant keeps what the rows do not determine where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# The model's own error of a row, as a standard deviation of log seconds, and how far rows of one group (one source and
# model) err together: a hundred rows of a sweep count as about ten.
FORM_ERROR = 0.05
ALIKE = 0.1
ODD = 2.0  # deviations from which a residual pulls less, the farther off it is
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
    left_out_log_s: [ways, rows], each row predicted by the fit that did not see its group of each way of `leave_out`;
    where that leaves no row, by the prior.
    """

    values: Array
    uncertainty: Array
    pull: Array
    log_s: Array
    left_out_log_s: Array


def effective_weights(groups: Sequence[str]) -> Array:
    """Return the weights [rows] of groups that err together: n rows count as n / (1 + ALIKE (n - 1)).

    It is the design effect of cluster samples (Kish, Survey Sampling, 1965).
    """
    _, index, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    weights: Array = 1 / (1 + ALIKE * (counts[index] - 1))
    return weights


def fit(
    evaluate: Callable[[Array], Array],
    measured_log_s: Array,
    parameters: Sequence[Parameter],
    groups: Sequence[str],
    leave_out: Sequence[Sequence[str]],
) -> Fit:
    """Fit constants; evaluate: log constants [parameters, n] -> log seconds [rows, n]. groups: one name a row;
    leave_out: one name a row in each of several ways to leave some out.
    """
    rows = len(measured_log_s)
    folds = [(way, np.asarray(names) == name) for way, names in enumerate(leave_out) for name in sorted(set(names))]
    seen = np.array([np.ones(rows), *(~mine for _, mine in folds)])
    prior = np.log([p.value for p in parameters])
    width = np.array([max(p.uncertainty, 1e-9) for p in parameters])
    bounds = np.log([[p.low, p.high] for p in parameters]).T
    weights = seen * effective_weights(groups) / FORM_ERROR**2
    problem = _Problem(evaluate, measured_log_s, prior, width, bounds, weights)
    theta, log_s, slopes, weights = problem.solve()
    left_out = np.empty((len(leave_out), rows))
    for fold, (way, mine) in enumerate(folds, 1):
        left_out[way, mine] = log_s[fold, mine]
    covariance = np.linalg.inv(np.einsum("r,rp,rq->pq", weights, slopes, slopes) + np.diag(width**-2.0))
    # What a row was off before the fit, had the model been linear.
    off = measured_log_s - log_s[0] + slopes @ (theta[0] - prior)
    pull = covariance @ (weights * off * slopes.T)
    return Fit(np.exp(theta[0]), np.sqrt(np.diag(covariance)), pull, log_s[0], left_out)


@dataclass(frozen=True, slots=True)
class _Problem:
    """weights: [fits, rows]."""

    evaluate: Callable[[Array], Array]
    measured: Array
    prior: Array
    width: Array
    bounds: Array
    weights: Array

    def solve(self) -> tuple[Array, Array, Array, Array]:
        """Return theta [fits, parameters] and log seconds [fits, rows].

        Of the first fit slopes [rows, parameters] and weights [rows].
        """
        fits = len(self.weights)
        theta = np.tile(np.clip(self.prior, *self.bounds), (fits, 1))
        damping = np.full(fits, 1e-2)
        log_s, slopes = self.slopes(theta)
        edge = self.edge(log_s)
        for _ in range(ROUNDS):
            cost = self.cost(theta, log_s, edge)
            tried = self.step(theta, log_s, slopes, edge, damping)
            tried_log_s, tried_slopes = self.slopes(tried)
            tried_cost = self.cost(tried, tried_log_s, edge)
            better = tried_cost < cost
            if better[0]:
                slopes = tried_slopes
            settled = np.where(better, cost - tried_cost <= ENOUGH * cost, damping >= SHORT)
            theta = np.where(better[:, None], tried, theta)
            log_s = np.where(better[:, None], tried_log_s, log_s)
            edge = np.minimum(edge, self.edge(log_s))
            damping = np.clip(np.where(better, damping / 4, damping * 8), 1e-6, 1e6)
            if settled.all():
                break
        return theta, log_s, slopes, self.robust(log_s, edge)[1][0]

    def slopes(self, theta: Array) -> tuple[Array, Array]:
        """Return log seconds [fits, rows], and their derivatives [rows, parameters] at the first fit's constants.

        The others have nearly the same constants, so its derivatives serve them, too.
        """
        values = self.evaluate(np.concatenate([theta, theta[0] + STEP * np.eye(theta.shape[1])]).T)
        base, moved = values[:, : len(theta)], values[:, len(theta) :]
        return base.T, (moved - base[:, :1]) / STEP

    def edge(self, log_s: Array) -> Array:
        """Return the edge [fits, 1]: residuals beyond it are odd ones, by how far the fit's other rows are off."""
        off = np.abs(log_s - self.measured)
        seen = np.ma.masked_where(self.weights == 0, off)
        typical = np.ma.median(seen, axis=1, keepdims=True).filled(0.0)  # type: ignore[no-untyped-call]
        result: Array = ODD * np.maximum(FORM_ERROR, DEVIATION * typical)
        return result

    def robust(self, log_s: Array, edge: Array) -> tuple[Array, Array]:
        """Return residuals and weights [fits, rows], less for those far off."""
        residual = log_s - self.measured
        return residual, self.weights / (1 + (residual / edge) ** 2)

    def cost(self, theta: Array, log_s: Array, edge: Array) -> Array:
        """Return the cost [fits]: Cauchy's loss and the prior's."""
        loss = edge**2 * np.log1p(((log_s - self.measured) / edge) ** 2)
        result: Array = (self.weights * loss).sum(axis=1) + (((theta - self.prior) / self.width) ** 2).sum(axis=1)
        return result

    def normal(self, theta: Array, log_s: Array, slopes: Array, edge: Array) -> tuple[Array, Array]:
        """Return the normal equations of each fit: matrix and gradient."""
        residual, weights = self.robust(log_s, edge)
        matrix = np.einsum("fr,rp,rq->fpq", weights, slopes, slopes) + np.diag(self.width**-2.0)
        gradient = (weights * residual) @ slopes + (theta - self.prior) / self.width**2
        return matrix, gradient

    def step(self, theta: Array, log_s: Array, slopes: Array, edge: Array, damping: Array) -> Array:
        """Take one damped step, clipped to the bounds; a constant at its bound that would leave it is held."""
        matrix, gradient = self.normal(theta, log_s, slopes, edge)
        low, high = self.bounds
        held = ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
        diagonal = np.einsum("fpp->fp", matrix)
        matrix = matrix + damping[:, None, None] * np.eye(theta.shape[1]) * diagonal[:, :, None]
        free = ~held
        matrix = np.where(free[:, :, None] & free[:, None, :], matrix, np.eye(theta.shape[1]) * diagonal[:, :, None])
        move = np.linalg.solve(matrix, np.where(held, 0.0, gradient)[:, :, None])[:, :, 0]
        return np.clip(theta - move, low, high)
