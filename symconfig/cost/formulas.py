"""Closed forms of collectives, kernels and the pipeline, in NumPy.

Arguments are float64 arrays, numbers or terms of a tape that broadcast together; on terms a formula leaves its symbols.
Framework and hardware enter as numbers. Seconds, bytes, FLOP; a multiply-add is 2 FLOP.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.cost.machine import LEVELS, Machine
from symconfig.cost.tape import greater, maximum, minimum
from symconfig.schedule.timeline import warm_up

GRAIN = 1e-3  # element: the smallest piece of what can be divided freely
ROUNDING = 1e-9  # whole numbers must stay whole in floating point before they are rounded up or down
# Share of the time of an overlapped collective that the work loses to it: NCCL's kernels hold compute units (24 to 32
# of 108 to 132), so that a matrix product needs another wave, and both want memory. Of 0.2, 0.3 and 0.45 it leaves the
# smallest errors on sources left out of the fit.
CONTENTION = 0.2
# Output tiles that GEMM libraries use, with the rate of each over the best one's (a small tile reads its operands more
# often), and the share of the prologue and epilogue that is exposed: several small tiles fit on a compute unit at once,
# and one works while another loads or stores.
TILES = (
    (256, 128, 1.0, 1.0),
    (128, 256, 1.0, 1.0),
    (128, 128, 0.93, 0.5),
    (64, 256, 0.87, 0.5),
    (128, 64, 0.75, 0.25),
    (64, 64, 0.6, 0.125),
)
# Keys that a kernel works on beyond those that a query attends to: it takes whole tiles of queries and keys, at the
# diagonal and at both edges of a window, and its first and last tiles overlap with nothing.
TILE_KEYS = 384.0
CHANNELS = 128.0  # at which the attention's rates are given


def _levels_of_group(ranks: Any, stride: Any, levels: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """Return per network level, innermost first, (ranks of the group in one domain, bytes/s per rank, latency in s).

    A level without a switch gives a group of n ranks out of `size` only (n - 1) / (size - 1) of the bandwidth. stride:
    distance in ranks between neighbours. levels: the keys level0_size and so on of `machine.levels`.
    """
    result = []
    for level in range(LEVELS):
        names = (f"level{level}_{name}" for name in ("size", "bytes_per_s", "latency_s", "mesh"))
        size, rate, wait, mesh = (levels[name] for name in names)
        members = minimum(ranks, maximum(1.0, np.floor(size / stride)))
        # Links between pairs and no switch: a group of n of `size` has n - 1 of the size - 1 links.
        share = 1.0 - mesh + mesh * (maximum(members, 2.0) - 1.0) / (size - 1.0)
        result.append((members, rate * share, wait))
    return result


def ring_s(amount_bytes: Any, passes: Any, ranks: Any, stride: Any, **levels: Any) -> Any:
    """Return the seconds of a ring collective: transfer on the slowest level it spans, plus a latency for each step.

    amount_bytes: the full buffer. passes: 1 for an all-gather or a reduce-scatter, 2 for an all-reduce, whose latency
    is that of a ring or of a tree over the nodes, if that is less. stride: distance in ranks between neighbours.
    levels: `machine.levels`. 0 for a group of one.
    """
    times = []
    ring: Any = 0.0
    tree: Any = 0.0
    inside: Any = 1.0
    for level, (members, bandwidth, wait) in enumerate(_levels_of_group(ranks, stride, levels)):
        # Each member inside brings its own link across this level, and the ring crosses it once a domain.
        times.append(greater(members, inside) * amount_bytes / (bandwidth * inside))
        ring = ring + wait * (ranks / inside - ranks / members)
        tree = tree + wait * (np.log(members / inside) / math.log(2.0) if level else members - 1.0)
        inside = members
    # An all-reduce may run as a tree over the nodes; an all-gather or a reduce-scatter only as a ring, step after step.
    latency = (passes - 1.0) * minimum(ring, tree) + (2.0 - passes) * ring
    return passes * ((ranks - 1.0) / ranks * reduce(maximum, times) + latency)


def ring(amount: Array, passes: float | Array, ranks: Array, stride: Array | float, machine: Machine) -> Array:
    """Return the seconds of a ring collective; 0 for a group of one rank.

    amount: bytes of the full buffer. passes: 1 for an all-gather or a reduce-scatter, 2 for an all-reduce. stride:
    distance in ranks between neighbours.
    """
    several = ranks > 1
    if not np.any(several):
        return np.zeros(np.broadcast_shapes(*(np.shape(each) for each in (amount, passes, ranks, stride))))
    return np.where(several, ring_s(amount, passes, ranks, stride, **machine.levels), 0.0)


def all_to_all_s(
    amount_bytes: Any, ranks: Any, stride: Any, copies: Any, once: Any, groups: Any, chosen_groups: Any, **levels: Any
) -> Any:
    """Return the seconds of an all-to-all: the slowest level's transfer and one latency of each level it spans.

    Receivers are random, within the chosen groups of experts where a router first chooses among groups.

    amount_bytes: what a rank sends, all `copies` of its tokens together. once: 1 where the copies of a token for one
    rank or domain travel once (DeepEP, HybridEP), else 0. groups, chosen_groups: of experts, all and those that a token
    may reach.
    """
    reach = _levels_of_group(ranks, stride, levels)
    domain = reach[0][0]

    def receiving(places: Any) -> Any:
        """Return the expected share of the places (ranks or domains) that hold a receiver of a token.

        A place of several groups has none where no group of it is chosen.
        """
        spread = 1.0 - (1.0 - 1.0 / places) ** copies
        return minimum(spread, 1.0 - maximum(1.0 - chosen_groups / groups, 0.0) ** maximum(groups / places, 1.0))

    # Inside a domain a token goes once to each rank that has a receiver, those of other domains after their arrival,
    # too; across a border it goes once to each domain that has one.
    within, across = receiving(ranks), receiving(ranks / domain)
    times = []
    latency: Any = 0.0
    inside: Any = 1.0
    for level, (members, bandwidth, wait) in enumerate(reach):
        each = (members - inside) / ranks
        together = ((members - inside) / domain * across if level else (ranks - ranks / domain) * within) / copies
        times.append((each + once * (together - each)) * amount_bytes / bandwidth)
        latency = latency + greater(members, inside) * wait
        inside = members
    return reduce(maximum, times) + latency


def send_s(amount_bytes: Any, ranks: Any, stride: Any, **levels: Any) -> Any:
    """Return the seconds of a message between neighbours of a group: bytes and latency of the slowest level it spans.

    0 for a group of one. stride: distance in ranks between neighbours.
    """
    times = []
    inside: Any = 1.0
    for members, bandwidth, wait in _levels_of_group(ranks, stride, levels):
        times.append(greater(members, inside) * (amount_bytes / bandwidth + wait))
        inside = members
    return reduce(maximum, times)


def exposed_s(communication_s: Any, work_s: Any, hide: Any) -> Any:
    """Return the seconds of communication that exceed the work it overlaps with, hide * work_s; 0 if none do."""
    return maximum(communication_s - hide * work_s, 0.0)


def chunked_s(communication_s: Any, work_s: Any, hide: Any, edge: Any) -> Any:
    """Return the exposed seconds of a collective that is split into pieces like the product it overlaps with.

    edge: the share of the first or last piece, which is always exposed.
    """
    return maximum(communication_s - hide * work_s, edge * communication_s)


def overlapped_s(communication_s: Any, work_s: Any, hide: Any, contention: Any = CONTENTION) -> Any:
    """Return the seconds that an overlapped collective adds: its exposed part, and the slowdown of the work.

    hide: the share of the work that it may overlap with, the slowdown included. contention: the share of the hidden
    time by which the work slows down.
    """
    hidden = minimum(communication_s, hide * work_s / maximum(1.0 - contention * hide, ROUNDING))
    lost = contention * hidden
    return exposed_s(communication_s, work_s + lost, hide) + lost


def pipeline_s(num_microbatches: Any, slowest_s: Any, total_s: Any, vpp: Any) -> Any:
    """Return the seconds of a step of (interleaved) 1F1B: all microbatches on the slowest stage, and the bubble.

    The bubble is the other stages' time for one microbatch divided by vpp (arXiv 2104.04473). slowest_s, total_s: one
    microbatch through the slowest stage and through all stages, forward and backward.
    """
    return num_microbatches * slowest_s + (total_s - slowest_s) / vpp


def alone_s(hidden_s: Any, num_microbatches: Any, vpp: Any, group: Any) -> Any:
    """Return the part of hidden_s that is exposed in the first forward and last backward passes, which have no partner.

    hidden_s: seconds that another microbatch hides in one microbatch. The passes are those of the last stage's warm-up
    and one chunk more (Megatron-LM, get_pp_rank_microbatches, overlap_moe_expert_parallel_comm). group: microbatches
    that run through a chunk before the next.
    """
    return hidden_s * minimum(num_microbatches, (warm_up(1, vpp, group, 0) + 1.0) / vpp)


def in_flight(stage: Any, pp: Any, vpp: Any, num_microbatches: Any, group: Any) -> Any:
    """Return how many microbatches' activations a stage (from 0) holds at most; at most num_microbatches.

    Plain 1F1B: pp - stage. Interleaved: Megatron-LM's warm-up and one chunk more, of 1/vpp each. group: microbatches
    that run through a chunk before the schedule turns to the next.
    """
    chunks = minimum(num_microbatches * vpp, warm_up(pp, vpp, group, stage) + 1.0)
    interleaved = greater(vpp, 1.0)
    return interleaved * chunks / vpp + (1.0 - interleaved) * minimum(num_microbatches, pp - stage)


def undivided_elements(whole: Any, ranks: Any, largest: Any, chunks: Any, bucket: Any) -> Any:
    """Return the elements on the busiest rank if matrices are assigned to ranks undivided, chunk by chunk.

    A chunk is cut into buckets of `bucket` elements, each given to the ranks with the fewest elements: the busiest gets
    an even share rounded up to halves of the largest matrix, at least that matrix; of the chunk's last, partial bucket
    an even share, at least the largest matrix or all of it. whole: elements of all chunks. largest: of one matrix, 0 if
    freely divisible.
    """
    chunk = whole / chunks
    full = np.floor(chunk / bucket)
    rest = chunk - full * bucket
    # The smaller pieces beside the largest ones: a gated MLP's second matrix is half as large as its first.
    piece = maximum(largest, GRAIN) / 2.0
    even = piece * np.ceil(bucket / ranks / piece - ROUNDING)
    return chunks * (full * maximum(even, largest) + maximum(rest / ranks, minimum(rest, largest)))


def product_s(
    machine: Machine,
    batch: Any,
    m: Any,
    n: Any,
    k: Any,
    *,
    efficiency: Any,
    element_bytes: Any,
    peak_flops: Any = None,
    cast_bytes: Any = 0.0,
    launches: Any = 1.0,
) -> Any:
    """Return the seconds of `batch` products [m, k] x [k, n]: a roofline with tile and wave quantisation.

    The fastest tile of TILES counts; K is split where tiles are fewer than compute units. efficiency: share of the
    peak. element_bytes: per element of operands and result. peak_flops: of low precision; None for 16 bits. cast_bytes:
    moved per element of the first operand before the product, whose seconds come on top, as kernel launches do.
    """
    # K/(K + K_half) stands for prologue and epilogue, which are no faster at low precision.
    k_half = machine.k_half if peak_flops is None else machine.k_half * peak_flops / machine.high_peak_flops
    peak = machine.high_peak_flops if peak_flops is None else peak_flops
    units, width_s = machine.compute_units, machine.hbm_bytes_per_s
    rows = {size: np.ceil(m / size) for size in (64, 128, 256)}
    columns = {size: np.ceil(n / size) for size in (64, 128, 256)}
    longest, area = np.floor(k / 1024), batch * m * n / units
    fills = []
    for height, width, rate, exposed in TILES:
        tiles = batch * rows[height] * columns[width]
        # With fewer tiles than units the library splits K, as long as each part keeps some length.
        splits = maximum(1.0, minimum(np.floor(units / tiles + ROUNDING), longest))
        waves = np.ceil(tiles * splits / units - ROUNDING)
        fills.append(area * splits / waves * (rate / (height * width)) * k / (k + exposed * k_half))
    compute = 2.0 * batch * m * n * k / (peak * efficiency * reduce(maximum, fills))
    memory = element_bytes * batch * (m * k + k * n + m * n) / width_s
    return maximum(compute, memory) + cast_bytes * batch * m * k / width_s + machine.launch_s * launches


def attention_s(
    machine: Machine, queries: Any, keys: Any, channels: float, forward: bool, *, launches: Any = 1.0
) -> Array:
    """Return the seconds of FlashAttention (arXiv 2205.14135): two products forward, or five backward, plus launches.

    Each query costs TILE_KEYS more keys, and small heads a lower rate. queries: of all heads together. keys: attended
    keys per query. channels: head size, the mean of both products.
    """
    flops = machine.attention_flops if forward else machine.attention_backward_flops
    effective = (channels + machine.softmax_channels) * CHANNELS / (CHANNELS + machine.softmax_channels)
    work = (2.0 if forward else 5.0) * 2.0 * queries * (keys + TILE_KEYS) * effective
    result: Array = work / flops + machine.launch_s * launches
    return result


def traffic_s(machine: Machine, moved_bytes: Any) -> Any:
    """Return the seconds of one kernel that is limited by memory bandwidth, its launch included."""
    return moved_bytes / machine.hbm_bytes_per_s + machine.launch_s
