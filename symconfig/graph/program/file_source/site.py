"""A call of a program file with its tensors: what every function of the file builds its operators from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from symconfig.graph.operator import Tensor, Use
from symconfig.graph.program.file_source.calls import Call
from symconfig.graph.program.file_source.file import ELEMENT_BYTES
from symconfig.graph.program.file_source.text import Mistake, size_of_number
from symconfig.graph.program.nest import result


@dataclass(slots=True)
class Site:
    """names: of the targets in the whole program; the first is the operator's, too. made: tensors, as they come up."""

    call: Call
    uses: tuple[Use, ...]
    names: tuple[str, ...]
    path: str
    sizes: Mapping[str, int]
    element_bytes: float
    made: dict[str, Tensor] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def loops(self) -> tuple[str, ...]:
        """Return the loops of the first target."""
        return self.call.statement.targets[0].dims

    def target(self, index: int = 0, *, element_bytes: float | None = None, gradient: bool = True) -> Use:
        """Return a target, as wide as the first input with a gradient, unless the statement or the function says
        otherwise.
        """
        given = self.call.statement.targets[index]
        width = element_bytes or next(
            (use.tensor.element_bytes for use in self.uses if use.gradient), self.element_bytes
        )
        width = ELEMENT_BYTES[given.element] if given.element else width
        return self._new(self.names[index], given.dims, self.uses if gradient else (), width)

    def extra(self, suffix: str, dims: Iterable[str], element_bytes: float, *, gradient: bool = False) -> Use:
        """Return a tensor that the file does not name: statistics, a mask."""
        return self._new(f"{self.name}.{suffix}", tuple(dims), self.uses if gradient else (), element_bytes)

    def _new(self, name: str, dims: tuple[str, ...], inputs: Iterable[Use], element_bytes: float) -> Use:
        tensor = result(name, dims, inputs, element_bytes)
        self.made[name] = tensor
        return Use(tensor)

    def mistake(self, what: str, operand: int | None = None, **parts: str | None) -> Mistake:
        """Return a mistake. operand: where it is; else at the target."""
        at = self.call.statement.targets[0].at if operand is None else self.call.terms[operand].at
        return Mistake(what, at, **parts)

    def option(self, option: str) -> tuple[str, ...]:
        """Return the loops that an option names, which the first operand must have."""
        words = self.call.words(option)
        for word in words:
            if word not in self.uses[0].loops:
                need = "one of " + ", ".join(self.uses[0].loops)
                at = self.call.statement.options[option].at
                raise Mistake(f"{option} names no dim of the first operand", at, got=word, need=need)
        return words

    def one(self, option: str) -> str:
        """Return the single loop that an option names."""
        words = self.option(option)
        if len(words) != 1:
            at = self.call.statement.options[option].at
            raise Mistake(f"{option} is one dim here", at, got=", ".join(words))
        return words[0]

    def ids(self, operand: int) -> Use:
        """Return an operand of whole numbers, through which nothing flows back."""
        if self.uses[operand].gradient:
            need = "an input, or indices that a route makes"
            raise self.mistake("ids have no gradient", operand, got=self.uses[operand].name, need=need)
        return self.uses[operand]

    def same(self, operand: int = 0) -> None:
        """Require the dims of the target, in any order."""
        loops = self.uses[operand].loops
        if set(loops) != set(self.loops):
            raise self.mistake(
                "operand and result differ in their dims", operand, got=_shown(loops), need=_shown(self.loops)
            )

    def within(self) -> None:
        """Require that each operand has dims of the target only, and together they have all of them."""
        for operand, use in enumerate(self.uses):
            for loop in use.loops:
                if loop not in self.loops:
                    raise self.mistake("the result lacks a dim of an operand", operand, got=loop)
        self.covered()

    def covered(self) -> None:
        """Require that no dim of the target comes from nowhere."""
        there = {loop for use in self.uses for loop in use.loops}
        for loop in self.loops:
            if loop not in there:
                raise self.mistake("no operand has this dim of the result", got=loop)


def check_dims(dims: tuple[str, ...], sizes: Mapping[str, int], at: int) -> None:
    """Raise Mistake for dims that are undefined, empty, or there twice."""
    for dim in dims:
        if size_of_number(dim) == 0:
            raise Mistake("a dim has no elements", at, got=dim)
        if dim not in sizes and size_of_number(dim) is None:
            raise Mistake("the dim is undefined", at, got=dim)
    for dim in dims:
        if dims.count(dim) > 1:
            raise Mistake("a dim is used twice in a tensor", at, got=dim, hint="a second dim of the same size")


def used(tensor: Tensor, loops: tuple[str, ...] | None, sizes: Mapping[str, int], at: int) -> Use:
    """Use the tensor along some loops. Raises Mistake: another rank, another size."""
    if loops is None or loops == tensor.dims:
        return Use(tensor)
    if len(loops) != len(tensor.dims):
        raise Mistake("the rank does not match", at, got=_shown(loops), need=_shown(tensor.dims))
    check_dims(loops, sizes, at)
    for loop, dim in zip(loops, tensor.dims, strict=True):
        if sizes[loop] != sizes.get(dim, sizes[loop]):  # an undefined one was told where it is declared
            raise Mistake("a dim is used with two sizes", at, got=f"{loop} = {sizes[loop]}, {dim} = {sizes[dim]}")
    return Use(tensor, loops)


def _shown(dims: Iterable[str]) -> str:
    return f"[{', '.join(dims)}]"
