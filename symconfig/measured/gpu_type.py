"""Which GPUs share one set of constants."""

from __future__ import annotations

from symconfig.descriptor.cluster import ClusterDescriptor, Precisions

GpuType = tuple[object, ...]


def gpu_type(cluster: ClusterDescriptor) -> GpuType:
    """Return what GPUs have in common that share one set of constants: the chip; memory, network and power may differ.

    A chip shows in how much faster it is in low precision; power scales all of its peaks.
    """
    gpu = cluster.gpu
    peaks = (getattr(gpu.peak_flops, name) for name in Precisions.model_fields if name != "fp32")
    return (gpu.architecture, gpu.compute_units, *(p and round(p.value / gpu.peak_flops.fp16.value, 2) for p in peaks))
