"""Weighed points into a tally: each with its fastest candidate that fits, or else with its leanest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.device import device_bytes
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Offload, Setting
from symconfig.cost.table import Choice
from symconfig.graph.block import LAYER
from symconfig.plans.columns import Columns
from symconfig.solve.pieces import Piece
from symconfig.solve.tally import Tally


class Weighed(Protocol):
    """The results of points, [policies, offloads, n] each. layers: full recompute of so many of each virtual stage."""

    @property
    def step_s(self) -> Array: ...
    @property
    def peak_bytes(self) -> Array: ...
    @property
    def layers(self) -> NDArray[np.intp]: ...
    @property
    def fits(self) -> NDArray[np.bool_]: ...


def keep_points(
    tally: Tally, piece: Piece, setting: Setting, points: Columns, policies: Sequence[Choice], weighed: Weighed
) -> None:
    """Keep points with what the best of their policies and offloads takes."""
    width = points.size
    step, peak, layers, fits = (
        each.reshape(-1, width) for each in (weighed.step_s, weighed.peak_bytes, weighed.layers, weighed.fits)
    )
    fastest = np.where(fits, step, np.inf).argmin(axis=0)
    leanest = np.where(np.isfinite(step), peak, np.inf).argmin(axis=0)
    rows, every = np.where(fits.any(axis=0), fastest, leanest), np.arange(width)
    offloads = setting.offload
    chosen = [
        (_recompute(policies[row // len(offloads)], int(layers[row, n])), offloads[row % len(offloads)])
        for n, row in enumerate(rows.tolist())
    ]
    held = device_bytes(peak[rows, every], piece.machine, piece.request.framework)
    _add(tally, piece, setting, points, chosen, (step[rows, every], held), fits[rows, every])


def keep_floors(
    tally: Tally, piece: Piece, setting: Setting, points: Columns, which: NDArray[np.bool_], floor_bytes: Array
) -> None:
    """Keep some points that no policy brings into memory, with the least that they need."""
    if not which.any():
        return
    chosen = [("full", setting.offload[-1])] * int(which.sum())
    held = device_bytes(floor_bytes[which], piece.machine, piece.request.framework)
    cost = (np.full(held.size, np.inf), held)
    _add(tally, piece, setting.at(np.flatnonzero(which)), points.at(which), chosen, cost, np.zeros(held.size, np.bool_))


def _add(
    tally: Tally,
    piece: Piece,
    setting: Setting,
    points: Columns,
    chosen: Sequence[tuple[str, Offload]],
    cost: tuple[Array, Array],
    fits: NDArray[np.bool_],
) -> None:
    request, size = piece.request, points.size
    tally.budget_bytes = max(tally.budget_bytes, device_bytes(piece.budget, piece.machine, request.framework))
    on = request.extras.words
    same = [f"{request.precision}"] * size, [piece.scheme.cp_comm] * size
    words = (*same, [recompute for recompute, _ in chosen], [_options(on, offload) for _, offload in chosen])
    tally.add(points, setting.pipelines.vpp, setting.zero, words, cost, fits)


def _recompute(choice: Choice, layers: int) -> str:
    """Return what runs again, as tables have it."""
    if layers:
        return f"full {layers}/stage"
    what = "full" if LAYER in choice.modules else "+".join(sorted(choice.modules)) or "none"
    return f"{what}, activations offloaded" if choice.offload else what


def _options(on: Sequence[str], offload: Offload) -> str:
    moved = [f"optimizer offload {100 * offload.optimizer:.0f} %"] if offload.optimizer else []
    return ", ".join([*on, *moved, *(["parameter offload"] if offload.weights else [])])
