"""Candidates without a layout, as questions to the stage solver, and what a layout makes of all policies at a point.

Axes of the arrays: r recompute choice, o offload, n point; pp, vpp: chunk k of stage i is chunk i + k pp of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import compiled
from symconfig.cost.chunks import overlap
from symconfig.cost.contention import CONTENTION
from symconfig.cost.exchange import exchange
from symconfig.cost.flight import clamp_microbatches
from symconfig.cost.lattice import Array
from symconfig.cost.shapes import StageShape
from symconfig.cost.stages import stages
from symconfig.cost.table import Table
from symconfig.graph.parts import is_layer
from symconfig.schedule.bounds import Exchanged, exchanged_bound_s, layout_bound_s
from symconfig.solve.floor import Floors
from symconfig.solve.kinds import ROUNDING
from symconfig.solve.pieces import PLAIN, WHOLE
from symconfig.solve.prospect import Prospect
from symconfig.solve.question import held_by_stages, question
from symconfig.solve.split import Split
from symconfig.solve.stages.problem import Chunks, StageProblem

Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Open:
    """A candidate of some floors whose layers are to be laid out. step_s: its floor; r, o, n: its place there."""

    step_s: float
    floors: Floors
    r: int
    o: int
    n: int

    @classmethod
    def of(cls, floors: Floors, r: int, o: int, n: int) -> Self:
        return cls(float(floors.step_s[r, o, n]), floors, int(r), int(o), int(n))

    @property
    def by_block(self) -> bool:
        """Tell whether the first layers of every chunk are recomputed in full."""
        return self.r == len(self.floors.choices)

    @property
    def rows(self) -> list[int]:
        """Return the places of its recompute choices in the piece's table."""
        rows = self.floors.piece.rows
        return [rows[PLAIN], rows[WHOLE]] if self.by_block else [self.r]

    @property
    def table(self) -> Table:
        """Return the table of its blocks alone."""
        return self.floors.piece.alone(tuple(self.rows), int(self.floors.places[self.n]))

    @property
    def hope_s(self) -> float:
        return float(self.floors.even_s[self.r, self.o, self.n])

    @property
    def pipeline(self) -> tuple[int, int]:
        """Return (pp, vpp)."""
        return self.floors.setting.pp, self.floors.setting.vpp

    @property
    def degrees(self) -> tuple[int, ...]:
        """Return pp, tp, cp, ep, micro-batch."""
        p = self.floors.points
        return self.floors.setting.pp, *(int(np.ravel(size)[self.n]) for size in (p.tp, p.cp, p.ep, p.micro))

    @property
    def place(self) -> tuple[int, int, int]:
        """Return its place in the arrays of its floors."""
        return self.r, self.o, self.n

    @property
    def premium(self) -> float:
        """Return the factor from its seconds to its score."""
        return float(self.floors.premium[self.r, self.n])

    @property
    def rest_s(self) -> float:
        """Return the seconds of the step that neither layout nor schedule changes."""
        return float(self.floors.rest_s[self.o, self.n])

    def prospect(self, split: Split, block_layers: int) -> Prospect:
        """Return the candidate with a layout, as the search has its candidates."""
        floors, piece, n = self.floors, self.floors.piece, self.n
        return Prospect(
            request=piece.request,
            machine=piece.machine,
            scheme=piece.scheme,
            split=split,
            choice=WHOLE if self.by_block else floors.choices[self.r],
            zero=floors.setting.zero,
            offload=floors.setting.offload[self.o],
            block_layers=block_layers,
            degrees=floors.points.row(n, floors.setting.vpp),
            micro=int(floors.points.micro[n]),
            step_s=self.step_s,
            device_bytes=0.0,
            score=self.step_s,
        )


def opened(floors: Floors, below_s: float) -> tuple[Places, Places, Places]:
    """Return the places of the candidates below a step time, the lowest floor first: r, o and n."""
    r, o, n = np.nonzero(floors.step_s < below_s)
    order = np.argsort(floors.step_s[r, o, n], kind="stable")
    return r[order], o[order], n[order]


def problem(candidate: Open) -> StageProblem:
    """Return what the stage solver is asked. Of a candidate that is not `by_block`."""
    floors, n = candidate.floors, candidate.n
    kinds = floors.kinds.at(np.array([n]))
    # Of a stage's blocks the largest buffers count, too: as if every one had the largest of the model's.
    shared = float(kinds.buffers.max() + kinds.workspaces.max())
    return question(
        kinds,
        [candidate.r],
        offload=candidate.o,
        working=kinds.transient[..., 0] + shared,
        message_s=float(floors.message_s[n]),
        num_microbatches=int(floors.points.num_microbatches[n]),
        setting=floors.setting,
        request=floors.piece.request,
        limit_bytes=floors.piece.budget,
    )


@dataclass(frozen=True)
class Layout:
    """A layout under recompute choices r at points n of some floors, [q] each. o: every offload.

    first: of every chunk so many layers run again, over no recompute, whatever r says; or 0. known: where some do, of
    what is summed up over blocks, by its name in `Kinds`, the sum without recompute, [vpp, pp, q], and what running
    again changes of each kind, [kinds, q].
    """

    floors: Floors
    split: Split
    r: Places
    n: Places
    first: int = 0
    known: dict[str, tuple[Array, Array]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def counts(self) -> Array:
        """Count the blocks: [vpp, pp, kinds]."""
        return counted(self.floors, self.split.chunks)

    def _each(self, name: str) -> Array:
        """Sum over chunks what their blocks have, by its name in `Kinds`: [vpp, pp, q]."""
        of_kinds: Array = getattr(self.floors.kinds, name)
        if not self.first:
            result: Array = self.counts @ of_kinds[:, self.r, self.n]
            return result
        if name not in self.known:
            keep, whole = (of_kinds[:, row][:, self.n] for row in self._rows)
            self.known[name] = self.counts @ keep, whole - keep
        plain, change = self.known[name]
        result = plain + repeated(self.floors, self.split.chunks, self.first) @ change
        return result

    @property
    def _rows(self) -> list[int]:
        """Return the rows of no recompute and of full recompute."""
        return [self.floors.piece.rows[choice] for choice in (PLAIN, WHOLE)]

    @cached_property
    def passes(self) -> tuple[Array, Array]:
        """Return the seconds of every chunk's forward and backward, and of the messages that they wait for: [pp, vpp,
        q] each.
        """
        wait = self.floors.message_s[self.n]
        places = np.arange(len(self.split.chunks)).reshape(self.counts.shape[:2])[..., None]
        forward = self._each("forward") + wait * (places > 0)
        backward = self._each("backward") + wait * (places < places.max())
        return forward.transpose(1, 0, 2), backward.transpose(1, 0, 2)

    @cached_property
    def _path_s(self) -> Array:
        """Return the longest path's seconds: [q]."""
        paired = self.floors.setting.framework.hide.experts > 0
        return layout_bound_s(*self.passes, self.floors.points.num_microbatches[self.n], paired)

    @property
    def path_s(self) -> Array:
        """Return seconds that no simulation is below, were nothing exchanged: [o, q]."""
        result: Array = self._path_s + self.floors.rest_s[:, self.n]
        return result

    def at(self, q: Places) -> Layout:
        """Return the layout at some of the places, with the passes and paths that are known of them."""
        known = {name: (plain[..., q], change[..., q]) for name, (plain, change) in self.known.items()}
        part, (forward, backward) = replace(self, r=self.r[q], n=self.n[q], known=known), self.passes
        vars(part).update(counts=self.counts, passes=(forward[..., q], backward[..., q]), _path_s=self._path_s[q])
        if "_still_bytes" in vars(self):
            vars(part).update(_still_bytes=self._still_bytes[..., q])
        return part

    def longer(self, step: int) -> Layout:
        """Return the layout with so many more of every chunk's first layers run again."""
        more = replace(self, first=self.first + step)
        vars(more).update({name: value for name, value in vars(self).items() if name in ("counts", "_still_bytes")})
        return more

    @cached_property
    def peak_bytes(self) -> Array:
        """Return the peak of the fullest stage: [o, q]."""
        n = self.n
        kept = self._each("kept").transpose(1, 0, 2)  # [pp, vpp, q]
        ends = self._each("once").sum(axis=0)  # [pp, q]
        live = np.empty((len(kept), len(n)))
        microbatches = clamp_microbatches(self.floors.points.num_microbatches[n], self.floors.setting)
        for m in set(microbatches.tolist()):
            mine = microbatches == m
            for stage, moments in enumerate(held_by_stages(self.floors.setting, int(m))):
                each = moments @ kept[stage][:, mine]
                live[stage, mine] = np.maximum(each[0] + ends[stage, mine], each[1:].max(axis=0, initial=0.0))
        result: Array = (live[:, None] + self._still_bytes).max(axis=0)
        return result

    @cached_property
    def _still_bytes(self) -> Array:
        """Return what each stage holds beside its activations, however many layers run again: [pp, o, q]."""
        kinds, n = self.floors.kinds, self.n
        transient = kinds.transient[:, self._rows][..., n].max(axis=1) if self.first else kinds.transient[:, self.r, n]
        buffers, workspaces = kinds.buffers[:, n], kinds.workspaces[:, n]
        stage_counts = self.counts.sum(axis=0)  # [pp, kinds]
        has = list(map(tuple, stage_counts > 0))
        of_kinds = {
            row: sum(each[list(row)].max(axis=0, initial=0.0) for each in (transient, buffers, workspaces))
            for row in dict.fromkeys(has)
        }
        working = np.array([of_kinds[row] for row in has])
        states = np.tensordot(stage_counts, kinds.states[..., n], axes=1)  # [pp, o, q]
        result: Array = working[:, None] + states
        return result

    @cached_property
    def hope_s(self) -> Array:
        """Return the step by the formula, if stages lose half of what they would if each waited in every round of
        chunks for the slowest one; what is worth trying first: [o, q].
        """
        m, vpp = self.floors.points.num_microbatches[self.n], float(self.floors.setting.vpp)
        forward, backward = self.passes
        both = forward + backward
        slowest, rounds = both.sum(axis=1).max(axis=0), both.max(axis=0).sum(axis=0)
        result: Array = compiled.pipeline_s(m, (slowest + rounds) / 2, both.sum(axis=(0, 1)), vpp)
        return result + self.floors.rest_s[:, self.n]

    @cached_property
    def step_s(self) -> Array:
        """Return seconds that no simulation is below; never below `path_s`, and more work: [o, q]."""
        floors, n = self.floors, self.n
        setting = floors.setting
        if setting.sharding.each_microbatch:
            return self.path_s
        gather, reduce, hidden = _exchanged(floors, n, self.split.chunks)
        moved = Exchanged(gather, reduce, *overlap(setting), hidden, CONTENTION)
        m, paired = floors.points.num_microbatches[n], setting.framework.hide.experts > 0
        path_s = exchanged_bound_s(*self.passes, m, setting.microbatch_group, moved, paired)
        result: Array = np.maximum(path_s, self._path_s) + floors.rest_s[:, n]
        return result


def counted(floors: Floors, chunks: Chunks) -> Array:
    """Count the blocks of each kind in each chunk: [vpp, pp, kinds]."""
    return _counted(floors.kinds.names, chunks, floors.setting.vpp, floors.setting.pp)


@lru_cache(maxsize=4096)
def _counted(names: tuple[str, ...], chunks: Chunks, vpp: int, pp: int) -> Array:
    alike = {chunk: [chunk.count(name) for name in names] for chunk in set(chunks)}
    rows = np.array([alike[chunk] for chunk in chunks], dtype=np.float64)
    return rows.reshape(vpp, pp, len(names))


def repeated(floors: Floors, chunks: Chunks, first: int) -> Array:
    """Count the layers of each kind that run again, so many first ones of each chunk: [vpp, pp, kinds]."""
    return counted(floors, _heads(chunks, first))


@lru_cache(maxsize=4096)
def _heads(chunks: Chunks, first: int) -> Chunks:
    heads = {chunk: tuple([kind for kind in chunk if is_layer(kind)][:first]) for chunk in set(chunks)}
    return tuple(heads[chunk] for chunk in chunks)


def slowest_s(floors: Floors, split: Split) -> Array:
    """Return the seconds of a microbatch on the layout's slowest stage: [r, n]."""
    kinds, setting = floors.kinds, floors.setting
    stage = counted(floors, split.chunks).sum(axis=0)  # [pp, kinds]
    received = np.full(setting.pp, 2.0 * setting.vpp)
    received[[0, -1]] -= 1
    waits = np.outer(received, floors.message_s)
    result: Array = (np.tensordot(stage, kinds.seconds, axes=1) + waits[:, None]).max(axis=0)
    return result


def _exchanged(floors: Floors, n: Places, chunks: Chunks) -> tuple[Array, Array, Array]:
    """Return the seconds of gathering the weights and of reducing the gradients of a layout's chunks, and by which
    their passes take longer with no other microbatch beside them: [pp, vpp, q] each.
    """
    known, setting = floors.exchanged, floors.setting
    if more := [chunk for chunk in dict.fromkeys(chunks) if chunk not in known]:
        table, places = floors.piece.table(floors.places)
        shapes = tuple(StageShape(0, tuple(chunk.count(name) for name in table.kinds), 1) for chunk in more)
        own = setting.having(shapes)
        sums = stages(table.only(0), own.pipelines, places, setting.tied)
        moved = exchange(sums, floors.points, own)
        known.update(zip(more, np.stack((moved.gather, moved.reduce, sums.hidden), axis=1), strict=True))
    every = np.stack([known[chunk] for chunk in chunks], axis=1)[..., n]  # [3, chunks, q]
    gather, reduce, hidden = every.reshape(3, setting.vpp, setting.pp, len(n)).swapaxes(1, 2)
    return gather, reduce, hidden


def by_block(
    floors: Floors, split: Split, n: Places, below_s: float = np.inf
) -> Iterator[tuple[Layout, NDArray[np.bool_]]]:
    """Yield layouts with the fewest first layers of every chunk run again that fit, and for which offloads [o, q] they
    do.

    Some that are no faster than a step time are left out.
    """
    left = np.isfinite(floors.step_s[-1][:, n])
    longest, step = split.longest_chunk, split.block_step
    layout = Layout(floors, split, np.zeros_like(n), n, first=step)
    while layout.first < longest:
        # With more layers run again it is slower yet.
        places = np.flatnonzero((left & (layout.path_s < below_s * (1 + ROUNDING))).any(axis=0))
        if not places.size:
            return
        layout, left = layout.at(places), left[:, places]
        fits = left & (layout.peak_bytes <= floors.piece.budget)
        left = left & ~fits
        if fits.any():
            yield layout, fits
        layout = layout.longer(step)
