"""Every point that a search weighed, with the best that it can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.framework import device_bytes
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Offload, Setting
from symconfig.cost.table import Choice
from symconfig.graph.block import LAYER
from symconfig.plans.columns import Columns
from symconfig.solve.pieces import Piece

WHOLE = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro", "zero")  # columns of whole numbers
WORDS = ("precision", "cp_comm", "recompute", "options")  # columns of words


@dataclass(frozen=True, slots=True)
class Rows:
    """Evaluated points, [n]: those that fit first, the fastest first; then the others by memory.

    whole: [n, 9], columns WHOLE; words: [n, 4], columns WORDS. step_s: by the formula, not simulated. device_bytes: of
    the fullest GPU, with uneven expert loads if the search counts them. Both are of the fastest policy that fits; if
    none does, of the one with the least memory, or a lower bound of memory with infinite seconds.
    """

    whole: NDArray[np.int64]
    words: NDArray[Any]
    step_s: Array
    device_bytes: Array
    fits: NDArray[np.bool_]

    @property
    def size(self) -> int:
        return int(self.step_s.size)

    def at(self, chosen: NDArray[np.intp] | slice) -> Rows:
        """Return the rows at these indices."""
        return Rows(*(getattr(self, name)[chosen] for name in Rows.__slots__))

    def records(self) -> Iterator[dict[str, str | int | float | bool]]:
        """Yield each row as a dict by the names of its columns."""
        columns = (each.tolist() for each in (self.whole, self.words, self.step_s, self.device_bytes, self.fits))
        for whole, words, step_s, held, fits in zip(*columns, strict=True):
            named = zip((*WHOLE, *WORDS), (*whole, *words), strict=True)
            yield {**dict(named), "step_s": step_s, "device_bytes": held, "fits": fits}


@dataclass(slots=True)
class Tally:
    """A record of all points that a search evaluates. budget_bytes: what a candidate may use of a device."""

    budget_bytes: float = 0.0
    parts: list[Rows] = field(default_factory=list)

    def add_results(
        self,
        piece: Piece,
        setting: Setting,
        points: Columns,
        policies: Sequence[Choice],
        results: tuple[Array, Array, NDArray[np.intp], NDArray[np.bool_]],
    ) -> None:
        """Record each point with its fastest policy and offload that fits, else with the one of least memory.

        results: seconds, peak bytes, recomputed layers, and whether it fits, [policies, offloads, n] each.
        """
        every, offloads = np.arange(points.size), setting.offload
        step, peak, layers, fits = (each.reshape(-1, points.size) for each in results)
        fastest = np.where(fits, step, np.inf).argmin(axis=0)
        leanest = np.where(np.isfinite(step), peak, np.inf).argmin(axis=0)
        rows = np.where(fits.any(axis=0), fastest, leanest)
        chosen = [
            (_recompute(policies[row // len(offloads)], int(layers[row, n])), offloads[row % len(offloads)])
            for n, row in enumerate(rows.tolist())
        ]
        self._add(piece, setting, points, chosen, step[rows, every], peak[rows, every], fits[rows, every])

    def add_bounds(
        self, piece: Piece, setting: Setting, points: Columns, which: NDArray[np.bool_], floor_bytes: Array
    ) -> None:
        """Record points that fit under no policy, with infinite seconds and `floor_bytes` as peak.

        which: mask of these points, [n]; floor_bytes: least bytes that a point needs, [n].
        """
        if which.any():
            never, leanest = np.zeros(int(which.sum()), np.bool_), [("full", setting.offload[-1])] * int(which.sum())
            step_s = np.full(never.size, np.inf)
            setting, points = setting.at(np.flatnonzero(which)), points.at(which)
            self._add(piece, setting, points, leanest, step_s, floor_bytes[which], never)

    def _add(
        self,
        piece: Piece,
        setting: Setting,
        points: Columns,
        chosen: Sequence[tuple[str, Offload]],
        step_s: Array,
        peak_bytes: Array,
        fits: NDArray[np.bool_],
    ) -> None:
        """Append rows for the points and raise `budget_bytes` to the piece's budget on the device.

        chosen: recompute in words and offload, one per point.
        """
        request, on = piece.request, piece.request.extras.words

        held = device_bytes(peak_bytes, piece.machine, request.framework)
        self.budget_bytes = max(self.budget_bytes, device_bytes(piece.budget, piece.machine, request.framework))
        given = {"vpp": setting.pipelines.vpp, "zero": setting.zero}
        whole = _whole([given.get(name, getattr(points, name)) for name in WHOLE], points.size)
        fixed = str(request.precision), str(piece.scheme.cp_comm)
        words = [(*fixed, recompute, ", ".join([*on, *_offload_words(offload)])) for recompute, offload in chosen]
        self.parts.append(Rows(whole, np.array(words, dtype=object), step_s, held, fits))

    def rows(self) -> Rows:
        """Return the best row per combination of degrees, micro-batch and ZeRO stage, the fastest first.

        Rows that do not fit come last, by memory.
        """
        empty = np.zeros(0)
        none = Rows(
            np.zeros((0, len(WHOLE)), np.int64), np.zeros((0, len(WORDS)), object), empty, empty, empty.astype(bool)
        )
        every = Rows(*(np.concatenate([getattr(p, name) for p in (none, *self.parts)]) for name in Rows.__slots__))
        step_s = np.where(every.fits, every.step_s, 0.0)
        order = np.lexsort((*every.whole.T[::-1], every.device_bytes, step_s, ~every.fits))
        _, first = np.unique(every.whole[order], axis=0, return_index=True)
        return every.at(order[np.sort(first)])


def _whole(columns: Sequence[Any], size: int) -> NDArray[np.int64]:
    """Return columns of integers, arrays or scalars, as an array [size, columns]."""
    return np.stack([np.broadcast_to(np.asarray(column, dtype=np.int64), size) for column in columns], axis=1)


def _recompute(choice: Choice, layers: int) -> str:
    """Return the recompute policy as a word: none, full, modules joined by +, or "full n/stage"."""
    if layers:
        return f"full {layers}/stage"
    what = "full" if LAYER in choice.modules else "+".join(sorted(choice.modules)) or "none"
    return f"{what}, activations offloaded" if choice.offload else what


def _offload_words(offload: Offload) -> list[str]:
    moved = [f"optimizer offload {100 * offload.optimizer:.0f} %"] if offload.optimizer else []
    return [*moved, *(["parameter offload"] if offload.weights else [])]
