"""One operator of the traced graph, as its rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symconfig.graph.operator import Operator, Use
from symconfig.graph.program import build
from symconfig.graph.program.functions import Function
from symconfig.graph.program.torch_source.recorder import Labels, Make, Nest, Out, Recorder, Value


@dataclass(frozen=True, slots=True)
class Result:
    """An operator's results, by its trace."""

    shape: tuple[int, ...]
    element_bytes: float
    floating: bool


@dataclass(frozen=True, slots=True)
class Call:
    """args: by the names of the operator's schema, with their defaults; tensors are `Value`s."""

    recorder: Recorder
    operator: str
    name: str
    path: str
    args: Mapping[str, Any]
    results: tuple[Result, ...]

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    @property
    def result(self) -> Result:
        return self.results[0]

    @property
    def tensors(self) -> list[Value]:
        """Return all tensors among the arguments, lists of them too."""
        tensors: list[Value] = []
        for arg in self.args.values():
            some = arg if isinstance(arg, (list, tuple)) else (arg,)
            tensors.extend(item for item in some if isinstance(item, Value))
        return tensors

    def size(self, value: Value, position: int) -> int:
        return self.recorder.axes.size(value.dims[position])

    def shape(self, value: Value) -> list[int]:
        return [self.recorder.axes.size(dim) for dim in value.dims]

    def emit(
        self,
        make: Make,
        inputs: Sequence[tuple[Value, Labels]],
        labels: Labels,
        *,
        part: str = "",
        result: Result | None = None,
        residues: Sequence[tuple[Labels, Sequence[int], float]] = (),
        windows: Sequence[str] = (),
    ) -> Value:
        """Record an operator with one output. part: its name, where a call becomes several operators."""
        return self.emit_all(
            make, inputs, [(labels, result or self.result)], part=part, residues=residues, windows=windows
        )[0]

    def emit_all(
        self,
        make: Make,
        inputs: Sequence[tuple[Value, Labels]],
        outputs: Sequence[tuple[Labels, Result]],
        *,
        part: str = "",
        residues: Sequence[tuple[Labels, Sequence[int], float]] = (),
        windows: Sequence[str] = (),
    ) -> list[Value]:
        flows = any(value.gradient for value, _ in inputs)
        outs = [Out(at, result.shape, result.element_bytes, flows and result.floating) for at, result in outputs]
        kept = [Out(at, shape, width, False) for at, shape, width in residues]
        name = f"{self.name}.{part}" if part else self.name
        return self.recorder.record(name, self.path, make, inputs=inputs, outputs=outs, residues=kept, windows=windows)

    def viewed(self, value: Value, shape: Sequence[int]) -> Value:
        """View the elements in other dims: nothing moves, unless their borders cross those that are known."""
        flat = tuple(axis for dim in value.dims for axis in dim)
        dims = self.recorder.axes.regroup(flat, shape)
        if dims is None:
            return self.recorder.reshaped(f"{self.name}.copy", self.path, value, shape)
        return Value(value.made, tuple(dims))

    def repeated(self, value: Value, shape: Sequence[int]) -> Value:
        """Read the dims of size 1, and such as are missing in front, again and again in place, as large as in
        `shape`.
        """
        axes = self.recorder.axes
        dims = [()] * (len(shape) - value.rank) + list(value.dims)
        dims = [dim or ((axes.new(size),) if size > 1 else ()) for dim, size in zip(dims, shape, strict=True)]
        axes.distinct(dims)
        return Value(value.made, tuple(dims))


Answer = Value | Sequence[Value | None]
Rule = Callable[[Call], Answer]


def made(constructor: Callable[..., Operator], *more: Any, **over: Labels) -> Make:
    """Return what makes an operator of all inputs and the output. over: arguments that are loops, by their labels."""

    def make(nest: Nest) -> Operator:
        loops = {name: nest.loops_of(labels) for name, labels in over.items()}
        return constructor(nest.name, *nest.inputs, nest.output, *more, **loops, path=nest.path)

    return make


def each(function: Function, whole: Labels = (), traffic: tuple[float, float] = (1.0, 1.0)) -> Make:
    """Return what makes an element-wise operator. whole: labels of the loops that it mixes."""

    def make(nest: Nest) -> Operator:
        mixed = nest.loops_of(whole)
        return build.elementwise(
            nest.name, nest.inputs, nest.output, function, whole=mixed, traffic=traffic, path=nest.path
        )

    return make


def with_outputs(op: Operator, outputs: Sequence[Use]) -> Operator:
    """Return the operator, which was made for the first one, with all its outputs."""
    loops = dict.fromkeys((*op.loops, *(loop for use in outputs for loop in use.loops)))
    return replace(op, loops=tuple(loops), outputs=tuple(use for use in outputs))
