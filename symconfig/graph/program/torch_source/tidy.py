"""A program as small as it can be said."""

from __future__ import annotations

from dataclasses import replace

from symconfig.graph.program.program import Program
from symconfig.graph.program.torch_source.join import joined
from symconfig.graph.program.torch_source.merge import merged


def tidy(program: Program) -> Program:
    """Return the program with chains joined, dims merged, and only those left that something has."""
    result = merged(joined(program))
    used = {dim for tensor in result.tensors.values() for dim in tensor.dims}
    used |= {loop for op in result.operators for loop in op.loops}
    return replace(result, sizes={dim: size for dim, size in result.sizes.items() if dim in used})
