"""Every cost formula, once, in SymPy. `compile.py` turns them into NumPy; `explain.py` prints them.

They depend on neither framework nor hardware: both enter as numbers. Seconds, bytes, FLOP; a multiply-add is 2 FLOP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy as sp

from symconfig.cost.protocols import LL128_BANDWIDTH, LL128_LATENCY

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


def _symbols(names: str) -> tuple[Any, ...]:
    return tuple(sp.Symbol(name, positive=True) for name in names.split())


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

# Share of the traffic of adding a weight gradient to the sum of earlier microbatches that shows: 0.92 of the other
# products' rate at 4096 tokens in SimuMax's measured configs/system/b200_bf16_ceperm.json (large products with
# accumulate=True in fp32, github.com/MooreThreads/SimuMax).
ACCUMULATION_SHOWS = sp.Rational(2, 5)


def _matmul() -> Formula:
    batch, m, n, k, peak, efficiency, k_half, units, hbm, element, cast, added, launch = _symbols(
        "batch m n k peak_flops efficiency k_half compute_units hbm_bytes_per_s element_bytes cast_bytes added_bytes "
        "launch_s"
    )
    fills = []
    for rows, columns, rate, shows in TILES:
        tiles = batch * sp.ceiling(m / rows) * sp.ceiling(n / columns)
        # With fewer tiles than units the library splits K, as long as each part keeps some length.
        splits = maximum(1, minimum(sp.floor(units / tiles + ROUNDING), sp.floor(k / 1024)))
        waves = sp.ceiling(tiles * splits / units - ROUNDING)
        fill = batch * m * n * splits / (waves * units * rows * columns)
        fills.append(rate * fill * k / (k + shows * k_half))
    compute = 2 * batch * m * n * k / (peak * efficiency * _largest(fills))
    memory = element * batch * (m * k + k * n + m * n) / hbm
    cast_s = cast * batch * m * k / hbm
    added_s = ACCUMULATION_SHOWS * added * batch * m * n / hbm
    return Formula(
        "matmul_s",
        _names(batch, m, n, k, peak, efficiency, k_half, units, hbm, element, cast, added, launch),
        maximum(compute, memory) + cast_s + added_s + launch,
        "s",
        "roofline with tile and wave quantisation; K/(K + K_half) for prologue and epilogue; casts before the product, "
        "and a sum into an earlier result after it",
    )


def _attention() -> Formula:
    queries, keys, channels, passes, rate, launch = _symbols("queries keys channels passes attention_flops launch_s")
    return Formula(
        "attention_s",
        _names(queries, keys, channels, passes, rate, launch),
        passes * 2 * queries * keys * channels / rate + launch,
        "s",
        "FlashAttention (arXiv 2205.14135): two products forward, five backward; keys counts attended ones only",
    )


def _traffic() -> Formula:
    moved, hbm, launch = _symbols("moved_bytes hbm_bytes_per_s launch_s")
    return Formula("traffic_s", _names(moved, hbm, launch), moved / hbm + launch, "s", "memory-bound kernel")


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


def _ring() -> Formula:
    amount, passes, ranks, stride = _symbols("amount_bytes passes ranks stride")
    members, bandwidths, latencies = _reach(ranks, stride)
    times, ring, tree, inside = [], sp.Integer(0), sp.Integer(0), sp.Integer(1)
    for level, (member, bandwidth, wait) in enumerate(zip(members, bandwidths, latencies, strict=True)):
        # Each member inside brings its own link across this level, and the ring crosses it once a domain.
        times.append(greater(member, inside) * amount / (bandwidth * inside))
        steps = ranks / inside - ranks / member
        ring += wait * steps
        tree += wait * (sp.log(member / inside, 2) if level else member - 1)
        inside = member
    # An all-reduce may run as a tree over the nodes; an all-gather or a reduce-scatter only as a ring, step after step.
    latency = (passes - 1) * minimum(ring, tree) + (2 - passes) * ring
    moved = (ranks - 1) / ranks * _largest(times)
    simple, ll128 = moved + latency, moved / LL128_BANDWIDTH + LL128_LATENCY * latency
    return Formula(
        "ring_s",
        (*_names(amount, passes, ranks, stride), *LEVEL_ARGUMENTS),
        passes * minimum(simple, ll128),
        "s",
        "ring over a hierarchy: all-gather and reduce-scatter pass once, all-reduce twice; slowest level binds; a "
        "latency at each step, and the faster of NCCL's Simple and LL128 protocols",
    )


def _all_to_all() -> Formula:
    amount, ranks, stride, copies, once, groups, chosen = _symbols(
        "amount_bytes ranks stride copies once groups chosen_groups"
    )
    members, bandwidths, latencies = _reach(ranks, stride)
    domain = members[0]
    times, latency, inside = [], sp.Integer(0), sp.Integer(1)

    def receiving(places: Any) -> Any:
        """Share of the places that hold one of a token's receivers. A place of several groups is left out where none of
        them is chosen."""
        spread = 1 - (1 - 1 / places) ** copies
        return minimum(spread, 1 - maximum(1 - chosen / groups, 0) ** maximum(groups / places, 1))

    for member, bandwidth, wait in zip(members, bandwidths, latencies, strict=True):
        apart = (member - inside) / ranks
        # Receivers are drawn at random, from the chosen groups of experts where a router first chooses among groups.
        # Inside a domain it goes once to each rank that has one, those of other domains after their arrival, too;
        # across a border it goes once to each domain that has one.
        if inside == 1:
            together = (ranks - ranks / domain) * receiving(ranks) / copies
        else:
            together = (member - inside) / domain * receiving(ranks / domain) / copies
        times.append((apart + once * (together - apart)) * amount / bandwidth)
        latency += greater(member, inside) * wait
        inside = member
    return Formula(
        "all_to_all_s",
        (*_names(amount, ranks, stride, copies, once, groups, chosen), *LEVEL_ARGUMENTS),
        _largest(times) + latency,
        "s",
        "each rank sends an equal part to every other; levels work at the same time. once: copies of a token for one "
        "rank or domain travel once (DeepEP, HybridEP)",
    )


def _send() -> Formula:
    amount, ranks, stride = _symbols("amount_bytes ranks stride")
    members, bandwidths, latencies = _reach(ranks, stride)
    times, inside = [], sp.Integer(1)
    for member, bandwidth, wait in zip(members, bandwidths, latencies, strict=True):
        times.append(greater(member, inside) * (amount / bandwidth + wait))
        inside = member
    return Formula(
        "send_s",
        (*_names(amount, ranks, stride), *LEVEL_ARGUMENTS),
        _largest(times),
        "s",
        "one message to the neighbour; the slowest pair of the group binds",
    )


def _exposed() -> Formula:
    communication, work, hide = _symbols("communication_s beside_s hide")
    return Formula(
        "exposed_s",
        _names(communication, work, hide),
        maximum(communication - hide * work, 0),
        "s",
        "what is left of a collective beside the work that it runs with",
    )


def _chunked() -> Formula:
    communication, work, hide, edge = _symbols("communication_s beside_s hide edge")
    return Formula(
        "chunked_s",
        _names(communication, work, hide, edge),
        maximum(communication - hide * work, edge * communication),
        "s",
        "what is left of a collective cut into pieces beside the product cut likewise: nothing hides the edge piece",
    )


def _slowed() -> Formula:
    communication, work, hide, contention = _symbols("communication_s beside_s hide contention")
    return Formula(
        "slowed_s",
        _names(communication, work, hide, contention),
        contention * minimum(communication, hide * work / maximum(1 - contention * hide, ROUNDING)),
        "s",
        "what the work beside a collective loses to it, compute units and memory bandwidth; work that takes longer "
        "hides more",
    )


def _pipeline() -> Formula:
    m, slowest, total, vpp = _symbols("num_microbatches slowest_s total_s vpp")
    return Formula(
        "pipeline_s",
        _names(m, slowest, total, vpp),
        m * slowest + (total - slowest) / vpp,
        "s",
        "1F1B and interleaved 1F1B (arXiv 2104.04473): the bubble is the other stages' pass over vpp",
    )


def _alone() -> Formula:
    hidden, m, vpp, group = _symbols("hidden_s num_microbatches vpp group")
    return Formula(
        "alone_s",
        _names(hidden, m, vpp, group),
        hidden * minimum(m, ((vpp - 1) * group + 1) / vpp),
        "s",
        "what other microbatches hide shows of a stage's first forward and last backward passes: the warm-up of the "
        "last stage and one chunk more (Megatron-LM, get_pp_rank_microbatches, overlap_moe_expert_parallel_comm)",
    )


def _in_flight() -> Formula:
    stage, pp, vpp, m, group = _symbols("stage pp vpp num_microbatches group")
    chunks = minimum(m * vpp, 2 * (pp - stage - 1) + (vpp - 1) * group + 1)
    plain = minimum(m, pp - stage)
    interleaved = greater(vpp, 1)
    return Formula(
        "in_flight",
        _names(stage, pp, vpp, m, group),
        interleaved * chunks / vpp + (1 - interleaved) * plain,
        "microbatches",
        "Megatron's warm-up: pp - stage for 1F1B; 2(pp - stage - 1) + (vpp - 1)group + 1 chunks interleaved",
    )


def _states() -> Formula:
    dense, expert, weight, gradient, optimizer, dp, edp, z1, z2, z3, device = _symbols(
        "dense_parameters expert_parameters weight_bytes gradient_bytes optimizer_bytes dense_shards expert_shards "
        "zero1 zero2 zero3 optimizer_on_device"
    )

    def sharded(switch: Any) -> Any:
        return dense / (1 + switch * (dp - 1)) + expert / (1 + switch * (edp - 1))

    return Formula(
        "states_bytes",
        _names(dense, expert, weight, gradient, optimizer, dp, edp, z1, z2, z3, device),
        weight * sharded(z3) + gradient * sharded(z2) + optimizer * device * sharded(z1),
        "bytes",
        "ZeRO (arXiv 1910.02054, table 1) with the element sizes as parameters",
    )


def _optimizer() -> Formula:
    parameters, shards, touched, hbm, launch = _symbols("parameters shards touched_bytes hbm_bytes_per_s launch_s")
    return Formula(
        "optimizer_s",
        _names(parameters, shards, touched, hbm, launch),
        parameters / shards * touched / hbm + launch,
        "s",
        "memory-bound: master weight and both moments read and written, gradient read, weight written",
    )


def _dealt() -> Formula:
    whole, ranks, largest, chunks, bucket = _symbols("whole ranks largest chunks bucket")
    chunk = whole / chunks
    full = sp.floor(chunk / bucket)
    rest = chunk - full * bucket
    # The smaller pieces beside the largest ones: a gated MLP's second matrix is half as large as its first.
    piece = maximum(largest, GRAIN) / 2
    even = piece * sp.ceiling(bucket / ranks / piece - ROUNDING)
    part = full * maximum(even, largest) + maximum(rest / ranks, minimum(rest, largest))
    return Formula(
        "dealt",
        _names(whole, ranks, largest, chunks, bucket),
        chunks * part,
        "elements",
        "pieces of each chunk dealt out whole, bucket by bucket, to whoever has least: of each bucket an even share in "
        "halves of the largest piece, or that piece",
    )


def _names(*symbols: Any) -> tuple[str, ...]:
    return tuple(symbol.name for symbol in symbols)


def formulas() -> dict[str, Formula]:
    """Return all formulas by name, in the order in which they are compiled."""
    made = (
        _matmul(),
        _attention(),
        _traffic(),
        _ring(),
        _all_to_all(),
        _send(),
        _exposed(),
        _chunked(),
        _slowed(),
        _pipeline(),
        _alone(),
        _in_flight(),
        _states(),
        _optimizer(),
        _dealt(),
    )
    return {formula.name: formula for formula in made}
