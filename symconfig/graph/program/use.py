"""A tensor as an operator under construction sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from symconfig.graph.program.program import Operand, Tensor


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor in an operator, and the loop along each of its dims; None: they have the dims' names."""

    tensor: Tensor
    along: tuple[str, ...] | None = None

    @property
    def loops(self) -> tuple[str, ...]:
        return self.tensor.dims if self.along is None else self.along

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def gradient(self) -> bool:
        return self.tensor.gradient

    def operand(self) -> Operand:
        return Operand(self.tensor.name, self.loops)


def result(name: str, dims: Sequence[str], inputs: Iterable[Use], element_bytes: float | None = None) -> Tensor:
    """Return the tensor that comes of these inputs: its gradient flows where one of theirs does; as wide as the first
    one.
    """
    given = tuple(inputs)
    width = element_bytes if element_bytes is not None else given[0].tensor.element_bytes
    return Tensor(name, tuple(dims), width, any(use.gradient for use in given))
