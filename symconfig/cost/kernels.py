"""Seconds of one kernel on a machine, at the machine's rates: a product, attention, memory traffic."""

from __future__ import annotations

from typing import Any

from symconfig.cost import compiled
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine

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
    """Return the seconds of batch x [m, k] x [k, n]. peak_flops: None, of 16 bits."""
    # Prologue and epilogue are no faster at low precision.
    k_half = machine.k_half if peak_flops is None else machine.k_half * peak_flops / machine.high_peak_flops
    return compiled.matmul_s(
        batch,
        m,
        n,
        k=k,
        peak_flops=machine.high_peak_flops if peak_flops is None else peak_flops,
        efficiency=efficiency,
        k_half=k_half,
        compute_units=machine.compute_units,
        hbm_bytes_per_s=machine.hbm_bytes_per_s,
        element_bytes=element_bytes,
        cast_bytes=cast_bytes,
        launch_s=machine.launch_s * launches,
    )


def attention_s(
    machine: Machine,
    queries: Any,
    keys: Any,
    channels: float,
    forward: bool,
    *,
    launches: Any = 1.0,
) -> Array:
    """Return the seconds of two products forward or five backward, since the scores are made again.

    channels: of the two products, in the mean.
    """
    flops = machine.attention_flops if forward else machine.attention_backward_flops
    effective = (channels + machine.softmax_channels) * CHANNELS / (CHANNELS + machine.softmax_channels)
    result: Array = compiled.attention_s(
        queries, keys + TILE_KEYS, effective, 2.0 if forward else 5.0, flops, machine.launch_s * launches
    )
    return result


def traffic_s(machine: Machine, moved_bytes: Any) -> Any:
    """Return the seconds of a kernel that memory bounds."""
    return compiled.traffic_s(moved_bytes, machine.hbm_bytes_per_s, machine.launch_s)
