"""The parts of a mesh that a stage may have: 1, 2, 4, … GPUs of a node, and 1, 2, 4, … whole nodes."""

from __future__ import annotations

from dataclasses import replace

from symconfig.descriptor.mesh import Mesh, MeshLevel


def submeshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """Return the sub-meshes of one GPU up to the whole mesh, in ascending order of GPUs.

    Inner levels are whole, and the outermost has a divisor of its size. Powers of two that add up to the whole always
    have room in it (Alpa, OSDI 2022, appendix A).
    """
    meshes = [Mesh(())]
    for index, level in enumerate(mesh.levels):
        sizes = [size for size in range(2, level.size + 1) if level.size % size == 0]
        meshes += [Mesh((*mesh.levels[:index], _part(level, size))) for size in sizes]
    return tuple(meshes)


def _part(level: MeshLevel, size: int) -> MeshLevel:
    """Return a level with fewer domains. Without a switch its bandwidth shrinks to the links within the part."""
    links = (size - 1) / (level.size - 1) if level.mesh else 1.0
    return replace(level, size=size, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * links)
