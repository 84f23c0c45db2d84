"""Every cost formula, once, in SymPy. `compile.py` turns them into NumPy; `explain.py` prints them.

They depend on neither framework nor hardware: both enter as numbers. Seconds, bytes, FLOP; a multiply-add is 2 FLOP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import sympy as sp

maximum = sp.Function("maximum")
minimum = sp.Function("minimum")
greater = sp.Function("greater")  # 1.0 where the first is larger, else 0.0
LEVELS = 4
GRAIN = 1e-3  # element: of what can be cut as one likes
ROUNDING = 1e-9  # whole numbers must stay whole in floating point before they are rounded up or down


@dataclass(frozen=True)
class Formula:
    """A named expression. `unit` of its value; `source` of its form."""

    name: str
    arguments: tuple[str, ...]
    expression: Any
    unit: str
    source: str


_WRITTEN: dict[str, Callable[[], Formula]] = {}  # in the order in which they are compiled


def _formula(unit: str, source: str, levels: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a formula of a function of symbols, which have the names of its parameters. levels: the network's levels are
    among its arguments, behind them.
    """

    def written(expression: Callable[..., Any]) -> Callable[..., Any]:
        name, parameters = expression.__name__, tuple(signature(expression).parameters)

        def made() -> Formula:
            value = expression(*(sp.Symbol(parameter, positive=True) for parameter in parameters))
            return Formula(name, (*parameters, *(LEVEL_ARGUMENTS if levels else ())), value, unit, source)

        _WRITTEN[name] = made
        return expression

    return written


def _largest(terms: list[Any]) -> Any:
    result = terms[0]
    for term in terms[1:]:
        result = maximum(result, term)
    return result


# Output tiles that GEMM libraries use, with the rate of each over the best one's (a small tile reads its operands more
# often), and the share of the prologue and epilogue that shows: several small tiles fit on a compute unit at once, and
# one works while another loads or stores.
TILES = (
    (256, 128, 1.0, 1.0),
    (128, 256, 1.0, 1.0),
    (128, 128, 0.93, 0.5),
    (64, 256, 0.87, 0.5),
    (128, 64, 0.75, 0.25),
    (64, 64, 0.6, 0.125),
)


@_formula(
    "s",
    "roofline with tile and wave quantisation; K/(K + K_half) for prologue and epilogue; casts before the product",
)
def matmul_s(
    batch: Any,
    m: Any,
    n: Any,
    k: Any,
    peak_flops: Any,
    efficiency: Any,
    k_half: Any,
    compute_units: Any,
    hbm_bytes_per_s: Any,
    element_bytes: Any,
    cast_bytes: Any,
    launch_s: Any,
) -> Any:
    fills = []
    for rows, columns, rate, shows in TILES:
        tiles = batch * sp.ceiling(m / rows) * sp.ceiling(n / columns)
        # With fewer tiles than units the library splits K, as long as each part keeps some length.
        splits = maximum(1, minimum(sp.floor(compute_units / tiles + ROUNDING), sp.floor(k / 1024)))
        waves = sp.ceiling(tiles * splits / compute_units - ROUNDING)
        fill = batch * m * n * splits / (waves * compute_units * rows * columns)
        fills.append(rate * fill * k / (k + shows * k_half))
    compute = 2 * batch * m * n * k / (peak_flops * efficiency * _largest(fills))
    memory = element_bytes * batch * (m * k + k * n + m * n) / hbm_bytes_per_s
    cast_s = cast_bytes * batch * m * k / hbm_bytes_per_s
    return maximum(compute, memory) + cast_s + launch_s


@_formula("s", "FlashAttention (arXiv 2205.14135): two products forward, five backward; keys counts attended ones only")
def attention_s(queries: Any, keys: Any, channels: Any, passes: Any, attention_flops: Any, launch_s: Any) -> Any:
    return passes * 2 * queries * keys * channels / attention_flops + launch_s


@_formula("s", "memory-bound kernel")
def traffic_s(moved_bytes: Any, hbm_bytes_per_s: Any, launch_s: Any) -> Any:
    return moved_bytes / hbm_bytes_per_s + launch_s


def _reach(ranks: Any, stride: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Return, of each level, the members of the group inside one domain, the bandwidth and the latency."""
    sizes = [sp.Symbol(f"level{i}_size", positive=True) for i in range(LEVELS)]
    bandwidths = [sp.Symbol(f"level{i}_bytes_per_s", positive=True) for i in range(LEVELS)]
    latencies = [sp.Symbol(f"level{i}_latency_s", positive=True) for i in range(LEVELS)]
    meshes = [sp.Symbol(f"level{i}_mesh", positive=True) for i in range(LEVELS)]
    members = [minimum(ranks, maximum(1, sp.floor(size / stride))) for size in sizes]
    # Links between pairs and no switch: a group of n of `size` has n - 1 of the size - 1 links.
    shares = [
        1 - mesh + mesh * (maximum(member, 2) - 1) / (size - 1)
        for mesh, member, size in zip(meshes, members, sizes, strict=True)
    ]
    return members, [bandwidth * share for bandwidth, share in zip(bandwidths, shares, strict=True)], latencies


LEVEL_ARGUMENTS = tuple(
    f"level{i}_{what}" for i in range(LEVELS) for what in ("size", "bytes_per_s", "latency_s", "mesh")
)


@_formula(
    "s",
    "ring over a hierarchy: all-gather and reduce-scatter pass once, all-reduce twice; slowest level binds; a latency "
    "at each step",
    levels=True,
)
def ring_s(amount_bytes: Any, passes: Any, ranks: Any, stride: Any) -> Any:
    members, bandwidths, latencies = _reach(ranks, stride)
    times, ring, tree, inside = [], sp.Integer(0), sp.Integer(0), sp.Integer(1)
    for level, (member, bandwidth, wait) in enumerate(zip(members, bandwidths, latencies, strict=True)):
        # Each member inside brings its own link across this level, and the ring crosses it once a domain.
        times.append(greater(member, inside) * amount_bytes / (bandwidth * inside))
        steps = ranks / inside - ranks / member
        ring += wait * steps
        tree += wait * (sp.log(member / inside, 2) if level else member - 1)
        inside = member
    # An all-reduce may run as a tree over the nodes; an all-gather or a reduce-scatter only as a ring, step after step.
    latency = (passes - 1) * minimum(ring, tree) + (2 - passes) * ring
    moved = (ranks - 1) / ranks * _largest(times)
    return passes * (moved + latency)


@_formula(
    "s",
    "each rank sends an equal part to every other; levels work at the same time. once: copies of a token for one rank "
    "or domain travel once (DeepEP, HybridEP)",
    levels=True,
)
def all_to_all_s(
    amount_bytes: Any, ranks: Any, stride: Any, copies: Any, once: Any, groups: Any, chosen_groups: Any
) -> Any:
    members, bandwidths, latencies = _reach(ranks, stride)
    domain = members[0]
    times, latency, inside = [], sp.Integer(0), sp.Integer(1)

    def receiving(places: Any) -> Any:
        """Share of the places that hold one of a token's receivers. A place of several groups is left out where none of
        them is chosen."""
        spread = 1 - (1 - 1 / places) ** copies
        return minimum(spread, 1 - maximum(1 - chosen_groups / groups, 0) ** maximum(groups / places, 1))

    for member, bandwidth, wait in zip(members, bandwidths, latencies, strict=True):
        apart = (member - inside) / ranks
        # Receivers are drawn at random, from the chosen groups of experts where a router first chooses among groups.
        # Inside a domain it goes once to each rank that has one, those of other domains after their arrival, too;
        # across a border it goes once to each domain that has one.
        if inside == 1:
            together = (ranks - ranks / domain) * receiving(ranks) / copies
        else:
            together = (member - inside) / domain * receiving(ranks / domain) / copies
        times.append((apart + once * (together - apart)) * amount_bytes / bandwidth)
        latency += greater(member, inside) * wait
        inside = member
    return _largest(times) + latency


@_formula("s", "one message to the neighbour; the slowest pair of the group binds", levels=True)
def send_s(amount_bytes: Any, ranks: Any, stride: Any) -> Any:
    members, bandwidths, latencies = _reach(ranks, stride)
    times, inside = [], sp.Integer(1)
    for member, bandwidth, wait in zip(members, bandwidths, latencies, strict=True):
        times.append(greater(member, inside) * (amount_bytes / bandwidth + wait))
        inside = member
    return _largest(times)


@_formula("s", "what is left of a collective beside the work that it runs with")
def exposed_s(communication_s: Any, beside_s: Any, hide: Any) -> Any:
    return maximum(communication_s - hide * beside_s, 0)


@_formula(
    "s", "what is left of a collective cut into pieces beside the product cut likewise: nothing hides the edge piece"
)
def chunked_s(communication_s: Any, beside_s: Any, hide: Any, edge: Any) -> Any:
    return maximum(communication_s - hide * beside_s, edge * communication_s)


@_formula(
    "s",
    "what the work beside a collective loses to it, compute units and memory bandwidth; work that takes longer hides "
    "more",
)
def slowed_s(communication_s: Any, beside_s: Any, hide: Any, contention: Any) -> Any:
    return contention * minimum(communication_s, hide * beside_s / maximum(1 - contention * hide, ROUNDING))


@_formula("s", "1F1B and interleaved 1F1B (arXiv 2104.04473): the bubble is the other stages' pass over vpp")
def pipeline_s(num_microbatches: Any, slowest_s: Any, total_s: Any, vpp: Any) -> Any:
    return num_microbatches * slowest_s + (total_s - slowest_s) / vpp


@_formula(
    "s",
    "what other microbatches hide shows of a stage's first forward and last backward passes: the warm-up of the last "
    "stage and one chunk more (Megatron-LM, get_pp_rank_microbatches, overlap_moe_expert_parallel_comm)",
)
def alone_s(hidden_s: Any, num_microbatches: Any, vpp: Any, group: Any) -> Any:
    return hidden_s * minimum(num_microbatches, ((vpp - 1) * group + 1) / vpp)


@_formula(
    "microbatches", "Megatron's warm-up: pp - stage for 1F1B; 2(pp - stage - 1) + (vpp - 1)group + 1 chunks interleaved"
)
def in_flight(stage: Any, pp: Any, vpp: Any, num_microbatches: Any, group: Any) -> Any:
    chunks = minimum(num_microbatches * vpp, 2 * (pp - stage - 1) + (vpp - 1) * group + 1)
    plain = minimum(num_microbatches, pp - stage)
    interleaved = greater(vpp, 1)
    return interleaved * chunks / vpp + (1 - interleaved) * plain


@_formula("bytes", "ZeRO (arXiv 1910.02054, table 1) with the element sizes as parameters")
def states_bytes(
    dense_parameters: Any,
    expert_parameters: Any,
    weight_bytes: Any,
    gradient_bytes: Any,
    optimizer_bytes: Any,
    dense_shards: Any,
    expert_shards: Any,
    zero1: Any,
    zero2: Any,
    zero3: Any,
    optimizer_on_device: Any,
) -> Any:
    def sharded(switch: Any) -> Any:
        dense = dense_parameters / (1 + switch * (dense_shards - 1))
        return dense + expert_parameters / (1 + switch * (expert_shards - 1))

    optimizer = optimizer_bytes * optimizer_on_device * sharded(zero1)
    return weight_bytes * sharded(zero3) + gradient_bytes * sharded(zero2) + optimizer


@_formula("s", "memory-bound: master weight and both moments read and written, gradient read, weight written")
def optimizer_s(parameters: Any, shards: Any, touched_bytes: Any, hbm_bytes_per_s: Any, launch_s: Any) -> Any:
    return parameters / shards * touched_bytes / hbm_bytes_per_s + launch_s


@_formula(
    "elements",
    "pieces of each chunk dealt out whole, bucket by bucket, to whoever has least: of each bucket an even share in "
    "halves of the largest piece, or that piece",
)
def dealt(whole: Any, ranks: Any, largest: Any, chunks: Any, bucket: Any) -> Any:
    chunk = whole / chunks
    full = sp.floor(chunk / bucket)
    rest = chunk - full * bucket
    # The smaller pieces beside the largest ones: a gated MLP's second matrix is half as large as its first.
    piece = maximum(largest, GRAIN) / 2
    even = piece * sp.ceiling(bucket / ranks / piece - ROUNDING)
    part = full * maximum(even, largest) + maximum(rest / ranks, minimum(rest, largest))
    return chunks * part


def formulas() -> dict[str, Formula]:
    """Return all formulas by name, in the order in which they are compiled."""
    return {name: made() for name, made in _WRITTEN.items()}
