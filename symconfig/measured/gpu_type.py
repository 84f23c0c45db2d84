"""Which GPUs share one set of constants."""

from __future__ import annotations

from symconfig.descriptor.cluster import ClusterDescriptor, Precisions

GpuType = tuple[object, ...]


def gpu_type(cluster: ClusterDescriptor) -> GpuType:
    """Return a key that clusters share if their GPUs share one set of constants.

    It holds the architecture, the number of compute units, and each precision's peak relative to fp16's (rounded to
    0.01; None if the GPU lacks it). Memory, network and power limit may differ: power scales all peaks alike.
    """
    gpu = cluster.gpu
    peaks = (getattr(gpu.peak_flops, name) for name in Precisions.model_fields if name != "fp32")
    return (gpu.architecture, gpu.compute_units, *(p and round(p.value / gpu.peak_flops.fp16.value, 2) for p in peaks))
