"""One operator of the traced graph, as its rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from symconfig.graph.program.build import FUNCTIONS, Function
from symconfig.graph.program.notation import statement
from symconfig.graph.program.torch_source.recorder import How, Labels, Out, Recorder, Value

Inputs = Sequence[tuple[Value, Labels]]
STATISTIC = 4.0  # bytes of a mean, a deviation, the logarithm of a sum: kept in fp32 whatever the data


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
        some = (arg if isinstance(arg, (list, tuple)) else (arg,) for arg in self.args.values())
        return [item for items in some for item in items if isinstance(item, Value)]

    def size(self, value: Value, position: int) -> int:
        return self.recorder.axes.size(value.dims[position])

    def shape(self, value: Value) -> list[int]:
        return [self.recorder.axes.size(dim) for dim in value.dims]

    def of(self, shape: Sequence[int], element_bytes: float | None = None) -> Result:
        """Return a result of another shape than the operator's, and of other elements."""
        return Result(tuple(shape), element_bytes or self.result.element_bytes, True)

    def emit(
        self, function: Function | str, inputs: Inputs, labels: Labels, *, result: Result | None = None, **more: Any
    ) -> Value:
        """Record an operator with one output. more: of `emit_all`."""
        return self.emit_all(function, inputs, [(labels, result or self.result)], **more)[0]

    def emit_all(
        self,
        function: Function | str,
        inputs: Inputs,
        outputs: Sequence[tuple[Labels, Result]],
        *,
        part: str = "",
        residues: Sequence[tuple[Labels, Sequence[int], float]] = (),
        **how: Any,
    ) -> list[Value]:
        """Record an operator. part: its name, where a call becomes several operators. how: fields of `How`."""
        flows = any(value.gradient for value, _ in inputs)
        outs = [Out(at, result.shape, result.element_bytes, flows and result.floating) for at, result in outputs]
        kept = [Out(at, shape, width, False) for at, shape, width in residues]
        name = f"{self.name}.{part}" if part else self.name
        named = FUNCTIONS[function] if isinstance(function, str) else function
        return self.recorder.record(name, self.path, How(named, **how), inputs=inputs, outputs=outs, residues=kept)

    def say(self, *texts: str) -> Value:
        """Record what statements say, whose operands are the call's arguments and targets of statements before.

        A dim that ends in `...` stands for as many as the tensor has. An operand without dims has the last ones of the
        result, `d...`, as PyTorch broadcasts. An option names dims of the first operand, or an
        argument that holds their positions. A statement with an operand that is None is left out; the last one makes
        the call's result.
        """
        known, rank = dict(self.args), len(self.result.shape)
        every = map(_parsed, texts)
        statements = [one for one in every if all(known.get(term.name, term) is not None for term in one.terms)]
        for one in statements:
            several = {"d...": labels_of(rank)}
            given: list[tuple[Value, Labels]] = []
            for term in one.terms:
                value, dims = known[term.name], term.loops
                if dims is None:
                    given.append((value, labels_of(rank)[rank - value.rank :]))
                    continue
                more = range(value.rank - len(dims) + 1)
                several |= {dim: [f"{dim}{n}" for n in more] for dim in dims if dim.endswith("...")}
                given.append((value, [label for dim in dims for label in several.get(dim, [dim])]))
            how: dict[str, Any] = {name: self.named(given[0][1], option.values) for name, option in one.options.items()}
            target = one.targets[0]
            out = [label for dim in target.dims for label in several.get(dim, [dim])]
            part = "" if one is statements[-1] else target.name
            known[target.name] = result = self.emit(one.function, given, out, part=part, **how)
        return result

    def named(self, labels: Labels, words: Sequence[str]) -> Labels:
        """Return the labels that words name, or those at the positions that an argument of that name holds."""
        held = [self.args[word] for word in words if self.args.get(word) is not None]
        positions = [at for some in held for at in (some if isinstance(some, (list, tuple)) else [some])]
        return [labels[at] for at in positions] or words

    def viewed(self, value: Value, shape: Sequence[int]) -> Value:
        """View the elements in other dims: nothing moves, unless their borders cross those that are known."""
        flat = tuple(axis for dim in value.dims for axis in dim)
        dims = self.recorder.axes.regroup(flat, shape)
        if dims is None:
            return self.recorder.copied(f"{self.name}.copy", self.path, value, shape)
        return Value(value.made, tuple(dims))

    def factored(self, value: Value, dim: int, outer: int) -> Value:
        """View a dim as two, of which the outer one has so many elements."""
        shape = self.shape(value)
        return self.viewed(value, [*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :]])


Answer = Value | Sequence[Value | None]
Rule = Callable[[Call], Answer]
_parsed = cache(statement)


def says(*texts: str) -> Rule:
    """Return the rule of an operator that statements say (see `Call.say`)."""
    return lambda call: call.say(*texts)


def labels_of(rank: int) -> list[str]:
    """Return loops for all dims of a tensor."""
    return [f"d{n}" for n in range(rank)]
