"""A program of operators over named dims, with the numbers of its dims: whatever its source, and nothing about meshes.

Every dim has one size in the whole program. An operator is a loop nest; each of its operands, the uses of tensors, says
which loop runs along which dim of the tensor, so that a tensor's dim may have another name inside an operator (keys are
a sequence seen by the queries). What a mesh axis may split is the operator's own statement: its `splits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from symconfig.graph.operator import Operator, Split, Tensor


@dataclass(frozen=True, slots=True)
class Parameter:
    """Hold a weight. `tensor.element_bytes`: while it is used. path: its name in the source,
    `layers.0.mlp.up_proj.weight`.

    shape: as the source stores it, in the order of the tensor's dims; its entries may be factors or products of
    theirs. Empty: the same as the tensor's dims.
    """

    tensor: Tensor
    path: str = ""
    shape: tuple[int, ...] = ()

    @property
    def trainable(self) -> bool:
        return self.tensor.gradient


@dataclass(frozen=True, slots=True)
class Program:
    """Hold operators in an order in which each comes after the operators whose results it reads.

    sizes: of every dim and loop. inputs: tensors fed from outside. outputs: losses, which receive no gradient, or
    others such as logits, which receive a gradient of ones. batch: the dims that count examples, for strategies that
    are named after them. notes: sentences on what the source leaves open and how it was filled in.
    """

    name: str
    sizes: Mapping[str, int]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]
    batch: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def elements(self, tensor: str) -> int:
        return self.tensors[tensor].elements(self.sizes)

    def parts(self, split: Split) -> int:
        """Return the largest number of parts that divides all loops of the split (their gcd)."""
        return gcd(*(self.sizes[loop] for loop in split.loops))
