"""Pieces of the lattice: some points of one scheme, their blocks' costs, and a lower bound of the step of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.blocks import BlockCost
from symconfig.cost.framework import element_bytes
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.shapes import Pipelines
from symconfig.cost.stages import Offload, Setting
from symconfig.cost.symtensor import Relative, relative
from symconfig.cost.table import Choice, OfKinds, Table, table
from symconfig.graph.block import LAYER
from symconfig.graph.model import blocks
from symconfig.graph.scheme import Scheme
from symconfig.plans.columns import Columns
from symconfig.solve.limits import offloaded, policies
from symconfig.solve.space import Refused, Request, admitted, divisors, interleaved, lattice
from symconfig.solve.split import most_chunks

PLAIN, WHOLE = Choice(), Choice(frozenset({LAYER}))  # no recompute, full recompute
MOST_CHUNKS = 64  # of a stage that are weighed: more make the bubble shorter by less than a hundredth of a microbatch
CELLS = 2**13  # points of a piece times policies that are worked out at once, however few are asked for

Way = tuple[int, int, NDArray[np.intp]]


@dataclass(slots=True)
class Piece:
    """Some points of one scheme, with a lower bound of their step time; their policies are worked out when needed."""

    request: Request
    machine: Machine
    scheme: Scheme
    candidates: Columns
    blocks: Callable[[NDArray[np.intp]], tuple[BlockCost, ...]]  # at some of the points
    low: Table
    balance: dict[str, float]  # relative seconds of each kind, for splitting the layers
    budget: float
    whole_s: Array  # of a microbatch through the whole model at every point, under `low`
    least_s: Array  # lower bound of the step at every point, rising
    choices: list[Choice]
    rows: Mapping[Choice, int]  # of each in the table
    policies: OfKinds
    made: Table | None = None  # at some of the points:
    known: NDArray[np.bool_] | None = None  # which
    laid: list[Way] | None = None  # its pipelines
    related: list[Relative] = field(default_factory=list)

    def relative(self) -> list[Relative]:
        """Return the relative costs of every block at the piece's points."""
        if not self.related:
            how = self.request.framework.implementation
            plain = blocks(self.request.model, how, self.scheme.shared_heads)
            where = lattice(self.request, self.candidates)
            costs = self.blocks(np.arange(self.candidates.size))
            self.related = [relative(plain[cost.derived.name], cost, self.scheme, where) for cost in costs]
        return self.related

    def table(self, places: NDArray[np.intp]) -> tuple[Table, NDArray[np.intp]]:
        """Return the costs of all policies at some of the points, and where each of these is there."""
        if self.known is None:
            size = self.candidates.size
            self.known = np.full(size, size * len(self.choices) <= CELLS)
        if self.made is None or not self.known[places].all():
            self.known[places] = True
            blocks = self.blocks(np.flatnonzero(self.known))
            self.made = table(blocks, self.choices, self.policies, self.machine, self.request.framework)
        return self.made, (np.cumsum(self.known) - 1)[places]

    def forget(self) -> None:
        """Keep no costs of policies."""
        self.made = self.known = None


def at(costs: Sequence[BlockCost], chosen: NDArray[np.intp]) -> tuple[BlockCost, ...]:
    return tuple(cost.at(chosen) for cost in costs)


def recompute_choices(request: Request) -> list[Choice]:
    """Recompute policies that the pins leave, each with and without offloaded activations where the target can."""
    pinned, offload = request.pins.words.get("recompute"), request.pins.switch("activation_offload")
    result = []
    for modules in policies(request.limits, request.precision, request.pins.modules):
        kind = "full" if LAYER in modules else "selective" if modules else "none"
        if pinned is not None and not (pinned.startswith(kind) and request.pins.modules in (frozenset(), modules)):
            continue
        if offload is not True:
            result.append(Choice(modules))
        if request.limits.activation_offload and offload is not False and kind != "full":
            result.append(Choice(modules, offloaded(request.model)))
    return result


def ways(piece: Piece, refused: Refused) -> Sequence[Way]:
    """Return the pipeline degrees, the chunks a stage, and the piece's points that the target can run with them; worked
    out once.
    """
    if piece.laid is None:
        piece.laid = list(_ways(piece, refused))
    return piece.laid


def _ways(piece: Piece, refused: Refused) -> Iterator[Way]:
    request, layers = piece.request, piece.request.model.num_hidden_layers
    for pp in divisors(request.gpus):
        if not request.pins.allows("pp", pp) or (pp > 1 and not request.limits.pipeline):
            continue
        if pp < request.limits.least_stages:
            continue
        if pp > layers:
            refused.add("layers", "every pipeline stage needs a layer", replace(piece.candidates, pp=pp))
            continue
        plain = admitted(request, piece.candidates, pp, refused)
        if not plain.size:
            continue
        several = interleaved(request, piece.candidates, plain, pp, refused)
        fewest = max(request.limits.least_chunks if pp > 1 else 1, request.pins.ranges.get("vpp", (1,))[0])
        most = min(most_chunks(layers, pp, request.limits.layouts), fewest + MOST_CHUNKS - 1)
        for vpp in range(fewest, most + 1):
            chosen = plain if vpp == 1 else several
            if request.pins.allows("vpp", vpp) and chosen.size and request.limits.runs(vpp=vpp):
                yield pp, vpp, chosen


def settings(piece: Piece, pipelines: Pipelines, where: Columns) -> list[tuple[Setting, NDArray[np.bool_]]]:
    """Return one setting for every ZeRO stage that some of the points can run, and which of them can."""
    request, result = piece.request, []
    for zero in request.limits.zero:
        if not request.pins.allows("zero", zero):
            continue
        runs, moved = ~request.limits.zero_refused(zero, where), _moved(request, zero)
        if moved and runs.any():
            setting = Setting(
                pipelines=pipelines,
                zero=zero,
                offload=moved,
                machine=piece.machine,
                framework=request.framework,
                bytes=element_bytes(request.framework, piece.machine),
                tied=request.model.tie_word_embeddings,
            )
            result.append((setting, runs))
    return result


def _moved(request: Request, zero: int) -> tuple[Offload, ...]:
    pinned = request.pins.fraction
    return request.limits.offloads[zero] if pinned is None else request.limits.offloads_of(zero, pinned)
