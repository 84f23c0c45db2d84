"""Pieces of the lattice: points of one scheme under one choice of options, priced, each with a lower bound of its step.

Below the points of a piece lie the further levels of the search: pipelines (`pipelines_of`), ZeRO stages (`settings`),
recompute policies (`recompute_choices`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.blocks import BlockCost, with_overlap
from symconfig.cost.framework import Framework, element_bytes
from symconfig.cost.lattice import Array, busiest_work_s
from symconfig.cost.machine import Machine
from symconfig.cost.stages import Offload, Pipelines, Setting
from symconfig.cost.table import Choice, OfKinds, Table, block_costs, bound_table, resolve, table
from symconfig.cost.work import block_flops, work_seconds
from symconfig.graph.block import LAYER, Place
from symconfig.graph.model import derived, sequence
from symconfig.graph.operator import Leg
from symconfig.graph.scheme import Scheme
from symconfig.plans.configuration import Configuration, ZeroStage
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.plans.pipeline_layout import expanded
from symconfig.solve.limits import offloaded, policies
from symconfig.solve.space import (
    Refused,
    Request,
    accepted,
    admitted,
    constants,
    divisors,
    in_stages,
    lattice,
    peak_budget,
)
from symconfig.solve.split import most_chunks
from symconfig.solve.stages import ROUNDING

PLAIN, WHOLE = Choice(), Choice(frozenset({LAYER}))  # no recompute, full recompute
PIECE = 512  # points of a piece
PRICED = 8 * PIECE  # points whose blocks are priced together
MOST_CHUNKS = 64  # most chunks a stage that are tried: more shorten the bubble by less than 1 % of a microbatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Points of one scheme under one request, [n] each.

    costs, places: costs of the blocks at more points, and the indices of the piece's points in them. low: the table of
    a bound that no policy beats (`bound_table`). balance: relative seconds of each kind, to distribute layers. whole_s:
    seconds of a microbatch through the whole model by `low`. least_s: lower bound of the step in seconds, rising.
    """

    request: Request
    machine: Machine
    scheme: Scheme
    candidates: ConfigurationSet
    costs: tuple[BlockCost, ...]
    places: NDArray[np.intp]
    low: Table
    balance: dict[str, float]
    whole_s: Array
    least_s: Array
    choices: list[Choice]
    policies: OfKinds

    @property
    def budget(self) -> float:
        """Return the largest predicted peak that a plan may have, in allocated bytes."""
        return peak_budget(self.request, self.machine)

    def table(self, chosen: NDArray[np.intp]) -> tuple[Table, NDArray[np.intp]]:
        """Return (table, rows): costs under all policies at the distinct points of `chosen`, and the row of each."""
        some, rows = np.unique(chosen, return_inverse=True)
        blocks = tuple(cost.at(self.places[some]) for cost in self.costs)
        return table(blocks, self.choices, self.policies, self.machine, self.request.framework), rows


def pieces(
    requests: Sequence[Request],
    machine: Machine,
    scheme: Scheme,
    grid: ConfigurationSet,
    refused: Refused,
    cutoff_s: float,
) -> Iterator[Piece]:
    """Yield pieces of up to PIECE points that some request may take and whose lower bound is at most `cutoff_s`.

    By request, and within each PRICED points of the grid by ascending bound. Requests differ in the options of their
    framework; those without a recompute policy are skipped. A point that an earlier request takes at the same price
    (`_dominated`) is dropped, as is, unless CUDA graphs are pinned, one where they save no time. Points that
    constraints refuse are counted in `refused`.
    """
    requests = [request for request in requests if recompute_choices(request)]
    taken = [np.isin(np.arange(grid.size), accepted(request, grid, refused)) for request in requests]
    for number, request in enumerate(requests):
        framework, choices, kinds = request.framework, recompute_choices(request), sequence(request.model)
        places = np.flatnonzero(taken[number] & ~_dominated(requests, taken, number))
        if not places.size:
            continue
        scheme = replace(scheme, weight_shards=request.configuration.gtp > 1)
        of_kind = derived(request.model, framework.implementation, scheme)
        resolved, balance = resolve(of_kind, choices), block_flops(of_kind, constants(request))
        of_model = np.array([kinds.count(kind) for kind in of_kind], dtype=np.float64)
        for part in np.split(places, np.searchsorted(places, np.arange(PRICED, grid.size, PRICED))):
            if not part.size:
                continue
            points = grid.at(part)
            costs = block_costs(of_kind, lattice(request, points), machine, framework)
            low = bound_table(costs, resolved)
            # All blocks of all microbatches, spread over the stages without a bubble.
            whole = np.tensordot(of_model, low.seconds[0], axes=1)
            least = whole * _spread(request, points)
            may = least <= cutoff_s
            if framework.graphed and "cuda_graphs" not in request.pins.words:
                may &= _waits_for_host(costs, framework)
            order = np.flatnonzero(may)
            order = order[np.argsort(least[order], kind="stable")]
            for first in range(0, order.size, PIECE):
                mine = order[first : first + PIECE]
                yield Piece(
                    request=request,
                    machine=machine,
                    scheme=scheme,
                    candidates=points.at(mine).having(request.limits.chosen),
                    costs=costs,
                    places=mine,
                    low=low.at(mine),
                    balance=balance,
                    whole_s=whole[mine],
                    least_s=least[mine],
                    choices=choices,
                    policies=resolved,
                )


def computed_s(request: Request, machine: Machine, scheme: Scheme, grid: ConfigurationSet) -> Array:
    """Return a lower bound of the step in seconds, [n], for any request and policy: that of computation alone.

    Forward and backward of all blocks count, also of those beside the layers, such as embedding and head. All
    microbatches are spread over the GPUs without a bubble; communication, and operators that move tokens to and from
    experts, are left out.
    """
    where, kinds = lattice(request, grid), sequence(request.model)
    seconds = np.zeros(grid.size)
    for kind, block in derived(request.model, request.framework.implementation, scheme).items():
        moving = block.on(Leg.OUT, Leg.BACK)
        work = busiest_work_s(work_seconds(block, where, machine, request.framework), block, where)
        seconds += kinds.count(kind) * sum(t for (op, _), t in work.items() if op not in moving)
    result: Array = seconds * _spread(request, grid) * (1 - ROUNDING)
    return result


def _spread(request: Request, points: ConfigurationSet) -> Array:
    """Return the microbatches of a step on one data rank, divided by pp, [n]: the same for all pp, not an integer.

    Times the seconds of a microbatch through the whole model it is the step without a bubble.
    """
    share: Array = request.global_batch * points.tp * points.cp / (points.micro * request.gpus)
    return share


def _dominated(
    requests: Sequence[Request], taken: Sequence[NDArray[np.bool_]], number: int
) -> NDArray[np.bool_] | np.bool_:
    """Return a mask of the points that an earlier request takes at the same price, [n]; False if no request is so.

    A request has the same price if all options are the same but the name of a flex backend; both must have one. taken:
    mask of the points of each request.
    """

    def but_its_name(options: Configuration) -> Configuration:
        return replace(options, moe_flex_backend="deepep") if options.moe_flex_backend else options

    mine = but_its_name(requests[number].configuration)
    earlier = [taken[place] for place in range(number) if but_its_name(requests[place].configuration) == mine]
    return np.any(earlier, axis=0) if earlier else np.False_


def _waits_for_host(costs: Sequence[BlockCost], framework: Framework) -> NDArray[np.bool_]:
    """Return a mask, [n]: where forward and backward of some layer together take longer without CUDA graphs, as the
    GPU waits for the host.

    costs: of the blocks, with graphs. Nothing counts as recomputed; blocks that are no layers are ignored.
    """
    layers = [cost for cost in costs if cost.derived.place is Place.LAYER]
    without = replace(framework, graphed=frozenset())
    replayed, eager = (
        np.array([cost.seconds()[:2].sum(axis=0) for cost in each])
        for each in (layers, [with_overlap(cost, without) for cost in layers])
    )
    saves: NDArray[np.bool_] = np.any(eager > replayed * (1 + ROUNDING), axis=0)
    return saves


def recompute_choices(request: Request) -> list[Choice]:
    """Return the recompute policies that the pins allow, each without and, if the target can, with activation offload.

    Full recompute comes without offload only, and so not at all if activation_offload is pinned on; pinned, it leaves
    one of both. Empty if the pins leave none, such as modules that the target cannot recompute.
    """
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


def pipelines_of(piece: Piece, refused: Refused) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    """Yield (pp, vpp, indices of the points that run with them); combinations without points are left out.

    pp: divisors of the GPUs that pins and target allow. vpp: from the fewest that target and pins allow, at most
    MOST_CHUNKS numbers; a pinned layout sets it. All vpp > 1 have the same points: those that may run at vpp 2. Counted
    in `refused` are points that a constraint refuses (not those without a whole dp), and all with more stages than
    layers.
    """
    request, layers = piece.request, piece.request.model.num_hidden_layers
    for pp in divisors(request.gpus):
        if not request.pins.allows("pp", pp) or (pp > 1 and not request.limits.pipeline):
            continue
        if pp < request.limits.least_stages:
            continue
        if pp > layers:
            refused.add("layers", "every pipeline stage needs a layer", piece.candidates.size)
            continue
        plain = admitted(request, piece.candidates, pp, refused)
        if not plain.size:
            continue
        at_two = in_stages(request, piece.candidates.at(plain), pp).having(vpp=2)
        several = accepted(request, at_two, refused, plain, request.limits.interleaved)
        fewest = max(request.limits.least_chunks if pp > 1 else 1, request.pins.ranges.get("vpp", (1,))[0])
        most = min(most_chunks(layers, pp, request.limits.layouts), fewest + MOST_CHUNKS - 1)
        if request.pins.layout is not None:
            fewest = most = len(expanded(request.pins.layout)) // pp
        for vpp in range(fewest, most + 1):
            chosen = plain if vpp == 1 else several
            if request.pins.allows("vpp", vpp) and chosen.size and request.limits.runs(vpp=vpp):
                yield pp, vpp, chosen


def settings(
    piece: Piece, pipelines: Pipelines, where: ConfigurationSet
) -> Iterator[tuple[Setting, NDArray[np.bool_]]]:
    """Yield (setting, mask of the points that can run it, [n]) for each ZeRO stage that pins allow and points can run.

    where: the points' columns; pipelines: theirs. The setting has all offloads that run at the stage, or those of the
    pinned share; a stage without any is skipped.
    """
    request, limits, share = piece.request, piece.request.limits, piece.request.pins.fraction
    for zero in filter(lambda stage: request.pins.allows("zero", stage), limits.zero):
        runs = ~limits.zero_refused(zero, where)
        offload = limits.offloads[zero] if share is None else limits.offloads_of(zero, share)
        if offload and runs.any():
            yield setting(request, piece.machine, pipelines, zero, offload), runs


def setting(
    request: Request, machine: Machine, pipelines: Pipelines, zero: ZeroStage, offload: tuple[Offload, ...]
) -> Setting:
    """Return what points of a request are priced with at one ZeRO stage, on a machine, under each of the offloads."""
    return Setting(
        pipelines=pipelines,
        zero=zero,
        offload=offload,
        machine=machine,
        framework=request.framework,
        bytes=element_bytes(request.framework, machine),
        tied=request.model.tie_word_embeddings,
    )
