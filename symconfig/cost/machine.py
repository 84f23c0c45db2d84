"""A cluster as the numbers that the formulas ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from symconfig.descriptor.cluster import NETWORK, ClusterDescriptor, Kernels, Quantity
from symconfig.errors import InputError
from symconfig.plans.configuration import Precision
from symconfig.units import MIB

# A channel of a score is 4 FLOP (two products). An SM makes 16 exponentials a clock, and on Hopper 4096, on Blackwell
# 8192 FLOP in 16 bit (NVIDIA's architecture whitepapers; CUDA C++ programming guide, arithmetic instructions).
# FlashAttention-3 shows it: on Hopper 64 and 256 channels take 1.3 and 0.86 of the time of 128 for the same FLOP (arXiv
# 2407.08608, figure 5); 64 channels of exponentials give 1.33, 0.83. Before Hopper the products are so much slower that
# they hide them: MPT-125M on A100 (llm_foundry_mpt) loses nothing by its 64 channels.
_SOFTMAX_CHANNELS = {"hopper": 64.0, "blackwell": 128.0}
LOW_PRECISION: tuple[Precision, ...] = ("fp8", "mxfp8", "nvfp4")
# An element with its part of a scale: one byte for each 32 elements (OCP Microscaling Formats 1.0, section 5.1), one
# for each 16 (NVFP4).
QUANTISED_BYTES = {"fp8": 1.0, "mxfp8": 1.0 + 1.0 / 32, "nvfp4": 0.5 + 1.0 / 16}
# Standard deviation of the speed of GPUs of one product in their places, of clocks under power limits, of heat and of
# what else their hosts do. Found from how one plan's step grows with the number of GPUs: MLPerf's GPT-3 and adapters,
# dgxc_benchmarking's 8B, 70B and Grok-1, llm_foundry_mpt and torchtitan, each from 8 or 64 to 128 or 2,048 GPUs.
SPREAD = 0.025
# Of a link to the host, while all GPUs of a node copy: PCIe 5.0 gives 52 of 63 GB/s (H100, H200), 4.0 26 of 31.5
# (A100), NVLink-C2C 169 to 184 of 225 (GB300).
HOST_LINK_SHARE = 0.8
# Of the memory's bandwidth, for a kernel that only copies or reads: copies of 134 MB to 2.1 GB take 0.84 to 0.90 of it
# on an H100, attention of one word reads keys at 0.84 to 0.89 (docs/evidence/generation.md). Other GPUs: assumed.
# `hbm_efficiency` is what the kernels of a training reach.
COPY_SHARE = 0.89
# Seconds of experts' grouped products in fp8 on Hopper over what the rate of single ones would give: each expert's
# input is quantised, transposed and padded by kernels of its own. fp8 then is as fast as bf16, as it is where both were
# measured (Megatron-Bridge, Qwen3-30B and 235B: 3.25 and 3.23 s; 76.6 and 70.4 s).
_GROUPED_CAST = {"hopper": 1.6}
LEVELS = 4  # of a network that the formulas of collectives take
Number = float | NDArray[np.float64]
Constants = Mapping[str, Number]  # values of some of `cluster_constants`; arrays [n] where many are weighed at once
_LINK_FIELDS = ("bandwidth_bytes_per_s", "latency_s", "oversubscription")

# PyTorch (ATen/cuda/CublasHandlePool.cpp): 8.1 MiB, on compute capability 9.0 32 MiB. Transformer Engine
# (module/base.py, get_cublas_workspace_size_bytes): 4 MiB, from Hopper on 32 MiB.
_WORKSPACES = {
    "ampere": (8.125 * MIB, 4.0 * MIB),
    "hopper": (32.0 * MIB, 32.0 * MIB),
    "blackwell": (8.125 * MIB, 32.0 * MIB),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Effective rates of one GPU and of the levels around it. All SI, one direction, per GPU."""

    peak_flops: float  # of the precision of most matmuls
    high_peak_flops: float  # of 16-bit matmuls
    efficiency: Number
    low_efficiency: Number  # of matmuls in low precision
    k_half: Number
    compute_units: float
    hbm_bytes_per_s: Number
    copy_bytes_per_s: Number
    launch_s: Number
    attention_flops: Number
    attention_backward_flops: Number
    softmax_channels: float  # over which the two products take as long as the exponential of their score
    cast_bytes: float  # read and written per input element of a low-precision matmul
    transpose_bytes: float  # the same for the copies of a weight gradient's inputs
    block_scaled: bool  # elements of a block have a scale of their own
    grouped_cast: float  # seconds of the experts' grouped products in low precision, over what their rate would give
    quantised_bytes: float  # of an element in the precision of most matmuls
    quantised_copies: float  # of a weight in low precision: by rows for the forward, by columns for the backward
    levels: dict[str, Number]  # arguments of the collectives' formulas
    host_bytes_per_s: Number
    launching: float  # of the thread that launches kernels, over an x86 server's
    memory_bytes: float
    context_bytes: float
    host_memory_bytes_per_gpu: float
    torch_workspace_bytes: float  # of cuBLAS, which PyTorch allocates itself
    engine_workspace_bytes: float  # the same of Transformer Engine

    @property
    def key(self) -> tuple[object, ...]:
        """Return all fields as one tuple, hashable if no constant is an array."""
        stated = (getattr(self, name) for name in Machine.__slots__ if name != "levels")
        return (*stated, *self.levels.items())


def constants(kernels: Kernels) -> dict[str, Number]:
    """Return the values of the kernels' constants by name, without those that are None."""
    return {name: quantity.value for name, quantity in kernels if quantity is not None}


def cluster_constants(cluster: ClusterDescriptor) -> dict[str, Quantity]:
    """Return the constants of a cluster for which `machine` takes other values, by name, without those that are None.

    Names are those of the kernels' fields; of links `<level>.<field>`, as `rail.latency_s`; and
    `host.link_bytes_per_s`.
    """
    links = {f"{level.name}.{name}": getattr(level, name) for level in cluster.levels for name in _LINK_FIELDS}
    every = {**dict(cluster.kernels), **links, "host.link_bytes_per_s": cluster.host.link_bytes_per_s}
    return {name: quantity for name, quantity in every.items() if quantity is not None}


def slowest(gpus: float) -> float:
    """Return by which share of its time the slowest of `gpus` GPUs is slower than the median one."""
    return SPREAD * largest_deviate(gpus)


def largest_deviate(count: float) -> float:
    """Return the expected maximum of `count` standard normal deviates.

    Blom, Statistical Estimates and Transformed Beta-Variables, 1958.
    """
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def machine(cluster: ClusterDescriptor, precision: str, others: Constants | None = None, gpus: int = 1) -> Machine:
    """Return the effective rates of one GPU of a cluster and of its links, after efficiencies and clock.

    precision: of most matmuls. others: values that replace the cluster's, by the names of `cluster_constants`. gpus: of
    the run; compute and memory rates are those of the slowest of as many. The host counts as an x86 server's, and the
    clock as 1, where the cluster does not state them.

    Raises:
        InputError: the GPU has no such precision.
        KeyError: a constant of the kernels or links is missing.
    """
    peaks, pace = cluster.gpu.peak_flops, 1.0 + slowest(gpus)
    # Attention leaves the tensor cores idle for half of the time or more and stays below the limit.
    clock = cluster.gpu.clock.value if cluster.gpu.clock else 1.0
    values = {name: quantity.value for name, quantity in cluster_constants(cluster).items()} | dict(others or {})
    peak: Quantity | None = getattr(peaks, precision)
    if peak is None:
        has = [name for name in ("bf16", "fp16", *LOW_PRECISION) if getattr(peaks, name) is not None]
        what, need = f"{cluster.gpu.product} has no {precision}", "one of " + ", ".join(has)
        raise InputError(what, field="precision", got=precision, need=need)
    high = peaks.bf16 or peaks.fp16
    attention = high.value * values["attention_efficiency"] / pace
    levels = [
        (
            level.name,
            float(level.size) if level.size is not None else 1e12,
            values[f"{level.name}.bandwidth_bytes_per_s"],
            values.get(f"{level.name}.oversubscription", 1.0),
            values[f"{level.name}.latency_s"],
            level.mesh,
        )
        for level in cluster.levels
    ]
    torch_workspace, engine_workspace = _WORKSPACES.get(cluster.gpu.architecture, _WORKSPACES["ampere"])
    return Machine(
        peak_flops=peak.value * clock / pace,
        high_peak_flops=high.value * clock / pace,
        efficiency=values["gemm_efficiency"],
        low_efficiency=values.get("gemm_efficiency_low", values["gemm_efficiency"]),
        k_half=values["gemm_k_half"],
        compute_units=float(cluster.gpu.compute_units),
        hbm_bytes_per_s=cluster.gpu.memory_bandwidth_bytes_per_s.value * values["hbm_efficiency"] / pace,
        copy_bytes_per_s=cluster.gpu.memory_bandwidth_bytes_per_s.value * COPY_SHARE / pace,
        launch_s=values["launch_s"],
        attention_flops=attention,
        attention_backward_flops=attention * values["attention_backward_ratio"],
        softmax_channels=_SOFTMAX_CHANNELS.get(cluster.gpu.architecture, 0.0),
        cast_bytes=3.0 if precision in LOW_PRECISION else 0.0,
        # A weight's gradient sums over tokens, and Hopper's fp8 units want both operands contiguous along the sum: what
        # was cast for the forward is read and written once more. For Blackwell the cast writes a second copy.
        transpose_bytes=2.0 if precision in LOW_PRECISION and cluster.gpu.architecture == "hopper" else 1.0,
        block_scaled=precision in ("mxfp8", "nvfp4"),
        grouped_cast=_GROUPED_CAST.get(cluster.gpu.architecture, 1.0) if precision in LOW_PRECISION else 1.0,
        quantised_bytes=QUANTISED_BYTES.get(precision, 2.0),
        # One scale for all lets Blackwell's units read either way (Transformer Engine, is_non_tn_fp8_gemm_supported);
        # scales of blocks are along the sum, and so differ.
        quantised_copies=1.0 if precision == "fp8" and cluster.gpu.architecture == "blackwell" else 2.0,
        levels=levels_of(levels, values),
        host_bytes_per_s=values["host.link_bytes_per_s"] * HOST_LINK_SHARE,
        launching=cluster.host.launching.value if cluster.host.launching else 1.0,
        memory_bytes=cluster.gpu.memory_bytes.value,
        context_bytes=cluster.gpu.context_bytes.value,
        host_memory_bytes_per_gpu=cluster.host.memory_bytes.value / cluster.gpus_per_node,
        torch_workspace_bytes=torch_workspace,
        engine_workspace_bytes=engine_workspace,
    )


def levels_of(
    levels: Sequence[tuple[str, float, Number, Number, Number, bool]], values: Constants
) -> dict[str, Number]:
    """Return the arguments of the collectives' formulas: level0_size, _bytes_per_s, _latency_s, _mesh, level1_size, ….

    levels: name, GPUs within, bytes/s on the wire, oversubscription, seconds of a message, and whether links are direct
    (mesh 1.0). The bandwidth is multiplied by the network's or the links' efficiency and divided by the
    oversubscription. There are always LEVELS: fewer repeat the last one, of more the first ones count; {} without any.
    """
    result: dict[str, Number] = {}
    link = values["link_efficiency"]
    network = values.get("network_efficiency", link)
    for index in range(LEVELS if levels else 0):
        name, size, bandwidth, thin, latency, mesh = levels[min(index, len(levels) - 1)]
        result[f"level{index}_size"] = size
        result[f"level{index}_bytes_per_s"] = bandwidth * (network if name in NETWORK else link) / thin
        result[f"level{index}_latency_s"] = latency
        result[f"level{index}_mesh"] = 1.0 if mesh else 0.0
    return result


def without_network(machine: Machine) -> Machine:
    """Return a copy of the machine whose messages take practically no time: infinite bandwidth, no latency."""
    ideal = {"bytes_per_s": 1e30, "latency_s": 0.0}
    levels = {name: ideal.get(name.partition("_")[2], value) for name, value in machine.levels.items()}
    return replace(machine, levels=levels)
