"""One operator of the traced graph as its rule sees it, and operators as they are found, while it is still open which
of their dims are one: axes now, names of dims later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from symconfig.graph.program.build import ALL, FUNCTIONS, RESHAPE, Function, Window, matching_dims
from symconfig.graph.program.notation import statement
from symconfig.graph.program.torch_source.axes import Axes, Group

Labels = Sequence[str | None]  # a loop for each dim; None for a dim of size 1


@dataclass(eq=False, slots=True)
class Made:
    """Hold a tensor in memory, with the axes of its dims."""

    name: str
    axes: Group
    element_bytes: float
    gradient: bool


@dataclass(frozen=True, slots=True)
class Value:
    """Hold a view of a tensor in memory, for which a node of the traced graph stands. An axis in `dims` that the tensor
    lacks is one along which it is broadcast (`expand`).
    """

    made: Made
    dims: tuple[Group, ...]

    @property
    def gradient(self) -> bool:
        return self.made.gradient

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def scalar(self) -> bool:
        """Return whether it is a single element without a gradient."""
        return not any(self.dims) and not self.gradient


@dataclass(frozen=True, slots=True)
class Result:
    """Describe a tensor that an operator makes. floating: it has a gradient if one of the inputs has one."""

    shape: tuple[int, ...]
    element_bytes: float
    floating: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """Describe a tensor that an operator reads or writes. along: pairs (axes of the tensor's dim, axes of the loop
    along it).
    """

    made: Made
    along: tuple[tuple[Group, Group], ...]


@dataclass(frozen=True, slots=True)
class How:
    """Hold the arguments of `build` for a recorded operator, with labels for loops. A pair of `groups` splits at its
    outermost loops; so does a spatial dim of `windows`, whose halos cross the ends of inner loops.
    """

    function: Function
    over: Labels = ()
    whole: Labels = ()
    groups: Sequence[tuple[Labels, Labels]] = ()
    windows: Mapping[str, Window] = field(default_factory=dict)
    slots: Labels = ()
    traffic: tuple[float, float] | None = None
    attended: float = 0.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """Describe an operator of the traced graph as its rule recorded it. Its dims are axes, which get names when all are
    recorded.

    loops: the axes of each label. missing: the name of an operator without a rule, of which only inputs and outputs
    are known; else "".
    """

    name: str
    path: str
    how: How | None
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    loops: Mapping[str, Group] = field(default_factory=dict)
    missing: str = ""


@dataclass(slots=True)
class Recorder:
    """Collect recorded operators (`steps`) and the axes of their tensors."""

    axes: Axes = field(default_factory=Axes)
    steps: list[Recorded] = field(default_factory=list)

    def fed(self, name: str, shape: Sequence[int], element_bytes: float, gradient: bool = False) -> Value:
        """Return a value for a tensor that no operator makes (parameter, input, constant), with new axes; dims of size
        1 have none.
        """
        dims = tuple((self.axes.new(size),) if size > 1 else () for size in shape)
        self.axes.distinct(dims)
        return Value(Made(name, tuple(axis for dim in dims for axis in dim), element_bytes, gradient), dims)

    def repeated(self, value: Value, shape: Sequence[int]) -> Value:
        """Return a view in which dims of size 1, and dims missing in front, are broadcast to `shape`. Nothing is
        recorded.
        """
        dims = [()] * (len(shape) - value.rank) + list(value.dims)
        dims = [dim or ((self.axes.new(int(n)),) if n > 1 else ()) for dim, n in zip(dims, shape, strict=True)]
        self.axes.distinct(dims)
        return Value(value.made, tuple(dims))

    def missing(
        self, name: str, path: str, operator: str, inputs: Sequence[Value], results: Sequence[Result]
    ) -> list[Value]:
        """Record an operator without a rule and return new values for its results, so that the walk can go on.

        They have new axes, related to none, and a gradient if an input has one and they are floating.
        """
        flows = any(value.gradient for value in inputs)
        made = [
            self.fed(_numbered(name, n), out.shape, out.element_bytes, flows and out.floating)
            for n, out in enumerate(results)
        ]
        read, written = (tuple(Operand(value.made, ()) for value in values) for values in (inputs, made))
        self.steps.append(Recorded(name, path, None, read, written, missing=operator))
        return made

    def record(
        self,
        name: str,
        path: str,
        how: How,
        inputs: Sequence[tuple[Value, Labels]],
        outputs: Sequence[tuple[Labels, Result]],
    ) -> list[Value]:
        """Record an operator by the loops along its tensors and return its outputs. Relates the axes of tensors that
        share a loop. Labels name the loop along each dim of a tensor; None only for a dim of size 1.

        Along the loops of windows, an input's dim may differ in size from the loop, which is the output's. An input
        whose factors cannot be aligned with a loop is copied first, by an operator of its own. Outputs have a gradient
        if an input has one and they are floating.
        """
        loops: dict[str, Group] = {}
        sizes = {label: size for labels, out in outputs for label, size in zip(labels, out.shape, strict=True)}
        for label in how.windows:
            if sizes[label] > 1:
                self._loop(label, (self.axes.new(sizes[label]),), loops)
        seen = [self._input_operand(name, path, value, labels, loops, tuple(how.windows)) for value, labels in inputs]
        for labels, result in outputs:
            for loop, size in zip(labels, result.shape, strict=True):
                if loop and size > 1 and loop not in loops:
                    self._loop(loop, (self.axes.new(size),), loops)
        flows = any(value.gradient for value, _ in inputs)
        values = [self._made(_numbered(name, n), *out, loops, flows) for n, out in enumerate(outputs)]
        written = tuple(Operand(value.made, tuple((dim, dim) for dim in value.dims)) for value in values)
        self.steps.append(Recorded(name, path, how, tuple(seen), written, loops))
        return values

    def copied(self, name: str, path: str, value: Value, shape: Sequence[int], *, keep: bool = True) -> Value:
        """Record a copy of the value into `shape`, a reshape with the traffic of a copy, and return it.

        keep: dims that the reshape leaves as they are keep their axes; else all dims get new ones. Dims before and
        after that hold the same elements are split together at their outermost loops.
        """
        blocks = matching_dims([self.axes.size(dim) for dim in value.dims], shape)
        old: list[str | None] = [None] * value.rank
        new: list[str | None] = [None] * len(shape)
        for before, after in blocks:
            for position in before:
                old[position] = f"old{position}"
            for position in after:
                new[position] = f"old{before[0]}" if keep and len(before) == len(after) == 1 else f"new{position}"
        pairs = [([old[i] for i in before], [new[o] for o in after]) for before, after in blocks]

        out = Result(tuple(shape), value.made.element_bytes, floating=True)
        return self.record(name, path, How(RESHAPE, groups=pairs, traffic=ALL), [(value, old)], [(new, out)])[0]

    def _loop(self, label: str, group: Group, loops: dict[str, Group]) -> None:
        """Enter a loop in `loops` with the axes of `group`, or with new ones parallel to them if another loop has one
        of those; all loops' axes are made distinct.
        """
        used = {leaf for other in loops.values() for leaf in self.axes.leaves(other)}
        if used & set(self.axes.leaves(group)):
            group = self.axes.copy(group)
        loops[label] = group
        self.axes.distinct(list(loops.values()))

    def _input_operand(
        self, name: str, path: str, value: Value, labels: Labels, loops: dict[str, Group], windows: Sequence[str]
    ) -> Operand:
        """Return an input as operand and relate its axes to the loops, entering new ones. Records a copy first if its
        factors cross those of a loop.

        Asserts that every dim of more than one element has a label.
        """
        along = []
        for dim, label in zip(value.dims, labels, strict=True):
            if not dim:
                continue
            assert label is not None, f"{name} reads a dim without a loop"
            if label not in loops:
                self._loop(label, dim, loops)
            if label in windows and self.axes.size(dim) != self.axes.size(loops[label]):
                fits = len(self.axes.leaves(dim)) <= len(self.axes.leaves(loops[label]))
            else:
                fits = self.axes.relate(loops[label], dim)
            if not fits:  # products such as 3 x 4 and 4 x 3
                shape = [self.axes.size(dim) for dim in value.dims]
                own = self.copied(f"{name}.copy", path, value, shape, keep=False)
                return self._input_operand(name, path, own, labels, loops, windows)
            along.append((dim, loops[label]))
        return Operand(value.made, tuple(along))

    def _made(self, name: str, labels: Labels, out: Result, loops: Mapping[str, Group], flows: bool) -> Value:
        sized = zip(labels, out.shape, strict=True)
        dims = tuple(loops[label] if label and size > 1 else () for label, size in sized)
        axes = tuple(axis for dim in dims for axis in dim)
        return Value(Made(name, axes, out.element_bytes, flows and out.floating), dims)


def _numbered(name: str, number: int) -> str:
    return f"{name}.{number}" if number else name


Inputs = Sequence[tuple[Value, Labels]]


@dataclass(frozen=True, slots=True)
class Call:
    """Hold a call of a traced operator. args: by the names of the operator's schema, with defaults; tensors are
    `Value`s, or None if empty.
    """

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
        """Return all tensors among the arguments, those in lists included."""
        some = (arg if isinstance(arg, (list, tuple)) else (arg,) for arg in self.args.values())
        return [item for items in some for item in items if isinstance(item, Value)]

    def size(self, value: Value, position: int) -> int:
        return self.recorder.axes.size(value.dims[position])

    def shape(self, value: Value) -> list[int]:
        return [self.recorder.axes.size(dim) for dim in value.dims]

    def of(self, shape: Sequence[int], element_bytes: float | None = None) -> Result:
        """Return a floating result of this shape, with the bytes per element of the call's first result by default."""
        return Result(tuple(shape), element_bytes or self.result.element_bytes, True)

    def emit(
        self, function: Function | str, inputs: Inputs, labels: Labels, *, result: Result | None = None, **more: Any
    ) -> Value:
        """Record an operator with one output and return it. result: its shape and type; None: the call's. more: of
        `emit_all`.
        """
        return self.emit_all(function, inputs, [(labels, result or self.result)], **more)[0]

    def emit_all(
        self,
        function: Function | str,
        inputs: Inputs,
        outputs: Sequence[tuple[Labels, Result]],
        *,
        part: str = "",
        **how: Any,
    ) -> list[Value]:
        """Record an operator and return its outputs.

        Args:
            function: a Function or its name in FUNCTIONS.
            outputs: (labels, shape and type) of each; a label names the loop along a dim.
            part: appended to the name, where a call becomes several operators.
            how: fields of `How`.
        """
        name = f"{self.name}.{part}" if part else self.name
        named = FUNCTIONS[function] if isinstance(function, str) else function
        return self.recorder.record(name, self.path, How(named, **how), inputs, outputs)

    def say(self, *texts: str) -> Value:
        """Record the operators of statements and return the result of the last one.

        Operands are the call's arguments and targets of earlier statements. A dim that ends in `...` stands for as
        many as the tensor has. An operand without dims has the last ones of the result, `d...`, as PyTorch
        broadcasts. An option names dims of the first operand, or an argument that holds their positions. A statement
        with an operand that is None is left out.
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
        """Return the loops that an option of a statement names: `words` are names of arguments that hold positions of
        dims, as `dim`, and `labels` the loops at these positions; the words themselves if no such argument has a value.
        """
        held = [self.args[word] for word in words if self.args.get(word) is not None]
        positions = [at for some in held for at in (some if isinstance(some, (list, tuple)) else [some])]
        return [labels[at] for at in positions] or words

    def viewed(self, value: Value, shape: Sequence[int]) -> Value:
        """Return a view of the value in another shape. Nothing is recorded, except a copy (`NAME.copy`) if the new
        borders cross those of the known dims; dims may be factored.
        """
        flat = tuple(axis for dim in value.dims for axis in dim)
        dims = self.recorder.axes.regroup(flat, shape)
        if dims is None:
            return self.recorder.copied(f"{self.name}.copy", self.path, value, shape)
        return Value(value.made, tuple(dims))

    def factored(self, value: Value, dim: int, outer: int) -> Value:
        """Return a view with one dim as two, the outer one of `outer` elements."""
        shape = self.shape(value)
        return self.viewed(value, [*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :]])


Answer = Value | Sequence[Value | None]
Rule = Callable[[Call], Answer]
_parsed = cache(statement)


def says(*texts: str) -> Rule:
    """Return a rule that records these statements (see `Call.say`)."""
    return lambda call: call.say(*texts)


def labels_of(rank: int) -> list[str]:
    """Return the labels d0, d1, … for the dims of a tensor."""
    return [f"d{n}" for n in range(rank)]
