"""Seconds of one kernel at a machine's rates: a product, attention, memory traffic.

Arguments are float64 arrays, numbers or terms of a tape that broadcast together.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from symconfig.cost.formulas import ROUNDING
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.tape import maximum, minimum

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
