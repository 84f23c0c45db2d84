"""A program from a YAML file: docs/reference/programs.md describes it and every function.

What splits an operator and what it keeps for its backward is never written: it follows from the function
(`symconfig.graph.program.build`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from pathlib import Path

from symconfig.descriptor.document import MAX_PROBLEMS, Document, KeyPath, read_text
from symconfig.descriptor.json_strict import parse_json_strict
from symconfig.descriptor.load import find
from symconfig.descriptor.validate import validate
from symconfig.descriptor.yaml_strict import parse_yaml_strict
from symconfig.errors import InputError, Problem, nearest
from symconfig.graph.operator import Operator, Tensor
from symconfig.graph.program.calls import Site, check_dims, make, used
from symconfig.graph.program.file import (
    MAX_OPERATORS,
    UNKNOWN,
    Declared,
    Expansion,
    Line,
    ProgramFile,
    Turn,
    expand,
)  # fmt: skip
from symconfig.graph.program.notation import ELEMENT_BYTES, Mistake, declaration, size_of_number, sizes
from symconfig.graph.program.program import Parameter, Program


def load_program(name_or_path: str | Path, dims: Mapping[str, int] | None = None) -> Program:
    """Load a program from the zoo or a file. dims: sizes instead of those in the file. Raises InputError with all that
    is wrong.
    """
    path = find(str(name_or_path), "programs", None)
    text = read_text(path)
    parse = parse_json_strict if path.suffix == ".json" else parse_yaml_strict
    return read_program(parse(text, str(path)), text, dims or {})


def read_program(document: Document, text: str, dims: Mapping[str, int]) -> Program:
    """Read a program. text: what the document was read from. Raises InputError."""
    file = validate(document, ProgramFile)
    reader = _Reader(file, expand(file))
    wrong, mistakes = reader.expansion.wrong, reader.expansion.mistakes
    reader.sizes = sizes(file.dims, dims, lambda dim, mistake, text: wrong(("dims", dim), mistake, text))
    program = reader.program() if len(reader.expansion.turns) <= MAX_OPERATORS else None
    if mistakes:
        lines = text.splitlines()
        problems = [_problem(document, lines, at, text, mistake) for (at, *_), (text, mistake) in mistakes.items()]
        raise InputError(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))[:MAX_PROBLEMS])
    assert program is not None
    return program


@dataclass(slots=True)
class _Reader:
    file: ProgramFile
    expansion: Expansion
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)

    def program(self) -> Program:
        """Return the program; of use only where nothing was wrong."""
        file, expansion = self.file, self.expansion
        statements = [line.call for line in expansion.lines.values() if line]
        named = [target.dims for statement in statements for target in statement.targets]
        self._literals(*named, *(term.loops or () for statement in statements for term in statement.terms))
        parameters = list(self._declared())
        self._targets()
        order, cycles = in_order([turn.read for turn in expansion.turns], [turn.made for turn in expansion.turns])
        for cycle in cycles:
            names = [expansion.turns[index].made[0] for index in (*cycle, cycle[0])]
            line = expansion.turns[cycle[0]].line
            mistake = Mistake("operators read one another in a cycle", got=" -> ".join(names))
            expansion.wrong(line.at, mistake, line.text)
        placed = set(order)
        for index in (*order, *(index for index in range(len(expansion.turns)) if index not in placed)):
            self._operator(expansion.turns[index])
        outputs = tuple(self._outputs())
        for dim in file.batch:
            if dim not in self.sizes:
                self.expansion.wrong(("batch",), Mistake("the batch is counted by an undefined dim", got=dim))
        if not expansion.mistakes:
            self._unused(outputs)
        return Program(
            name=file.name,
            sizes=self.sizes,
            tensors=self.tensors,
            inputs=tuple(file.inputs),
            parameters=tuple(parameters),
            operators=tuple(self.operators),
            outputs=outputs,
            batch=frozenset(file.batch),
            notes=file.notes,
        )

    def _literals(self, *every: Sequence[str]) -> None:
        """Give dims that are mere numbers their sizes."""
        self.sizes |= {dim: size for dims in every for dim in dims if (size := size_of_number(dim))}

    def _declared(self) -> Iterator[Parameter]:
        """Enter inputs and parameters as tensors."""
        read: dict[KeyPath, tuple[tuple[str, ...], float]] = {}
        for declared in self.expansion.declared:
            if declared.at not in read:
                read[declared.at] = self._declaration(declared)
            dims, width = read[declared.at]
            tensor = Tensor(declared.name, dims, width, declared.parameter and not declared.declaration.frozen)
            self.tensors[declared.name] = tensor
            if declared.parameter:
                yield Parameter(tensor, declared.name)

    def _declaration(self, declared: Declared) -> tuple[tuple[str, ...], float]:
        """Return dims and bytes of an element."""
        text, width = declared.declaration.dims, ELEMENT_BYTES[self.file.element]
        dims: tuple[str, ...] = ()
        with self.expansion.telling(declared.at, text):
            if declared.declaration.frozen and not declared.parameter:
                raise Mistake("an input has no gradient anyway", got="frozen", need="a parameter")
            element, dims = declaration(text)
            width = _width(element, 0) or width
            self._literals(dims)
            check_dims(dims, self.sizes, 0)
        return dims, width

    def _targets(self) -> None:
        """Enter all that is made, as it would be with a gradient: who reads a mistaken one can be checked, too."""
        for line in filter(None, self.expansion.lines.values()):
            for target in line.call.targets:
                with self.expansion.telling(line.at, line.text):
                    _width(target.element, target.at)
                    check_dims(target.dims, self.sizes, target.at)
        for turn in self.expansion.turns:
            for name, target in zip(turn.made, turn.line.call.targets, strict=True):
                self._taken([name], turn.line, target.at)
                self.tensors[name] = Tensor(name, target.dims)

    def _operator(self, turn: Turn) -> None:
        line, call = turn.line, turn.line.call
        if any(at == line.at for at, *_ in self.expansion.mistakes):
            return  # one mistake of a statement is enough
        if not all(name in self.tensors for name in turn.read):
            return  # told where it should have been made
        with self.expansion.telling(line.at, line.text):
            terms = zip(turn.read, call.terms, strict=True)
            uses = tuple(used(self.tensors[name], term.loops, self.sizes, term.at) for name, term in terms)
            if not all(dim in self.sizes for use in uses for dim in use.loops):
                return  # told where the dim was first named
            site = Site(call, uses, turn.made, turn.path, self.sizes, ELEMENT_BYTES[self.file.element])
            self.operators += make(site)
            self._taken(site.made.keys() - set(turn.made), line, line.call.targets[0].at)
            self.tensors |= site.made

    def _taken(self, names: Iterable[str], line: Line, at: int) -> None:
        """Refuse names of a turn's tensors that are those of others, as `layers.0.x` may be."""
        for name in self.tensors.keys() & names:
            mistake = Mistake("the name is taken", at, got=name, need="a name for each tensor")
            self.expansion.wrong(line.at, mistake, line.text)

    def _outputs(self) -> Iterator[str]:
        made = {name for turn in self.expansion.turns for name in turn.made}
        for index, name in enumerate(self.file.outputs):
            whole = self.expansion.scope.get(name)
            if whole in made:
                yield whole
            elif whole != UNKNOWN:
                hint = nearest(name, (known for known, source in self.expansion.scope.items() if source in made))
                self.expansion.wrong(("outputs", index), Mistake("the output is never made", got=name, hint=hint))

    def _unused(self, outputs: tuple[str, ...]) -> None:
        """Report what no turn reads: it was written for nothing, or by a wrong name; asked where all statements are
        understood.
        """
        turns, read = self.expansion.turns, {*outputs, *(name for turn in self.expansion.turns for name in turn.read)}
        needed = Counter(declared.at for declared in self.expansion.declared if declared.name in read)
        for declared in self.expansion.declared:
            if not needed[declared.at]:
                self.expansion.wrong(
                    declared.at, Mistake("nothing reads it", hint="remove it, or name it where it belongs")
                )
        useful = {turn.line.at for turn in turns if read.intersection(turn.made)}
        for turn in turns:
            if turn.line.at not in useful:
                target = turn.line.call.targets[0]
                what = "what is made is neither read nor an output"
                self.expansion.wrong(turn.line.at, Mistake(what, target.at, got=target.name), turn.line.text)


def in_order(reads: Sequence[Iterable[str]], makes: Sequence[Iterable[str]]) -> tuple[list[int], list[list[int]]]:
    """Return the indices that are neither on a cycle nor behind one, each after what it reads, the smallest first among
    those that could come next; and cycles as data flows, of which no two share an index, in each knot at least one.

    reads, makes: names, for each index. What nobody makes is there from the start.
    """
    maker = {name: index for index, names in enumerate(makes) for name in names}
    before = {index: [maker[name] for name in names if name in maker] for index, names in enumerate(reads)}
    sorter, left, order, cycles = TopologicalSorter(before), dict(before), [], []
    with suppress(CycleError):
        sorter.prepare()
    ready = list(sorter.get_ready())
    heapify(ready)
    while ready:
        order.append(heappop(ready))
        sorter.done(order[-1])
        for index in sorter.get_ready():
            heappush(ready, index)
    while len(order) < len(before):
        try:
            TopologicalSorter(left).prepare()
            break
        except CycleError as error:
            cycle = error.args[1][1:]
            first = cycle.index(min(cycle))
            cycles.append(cycle[first:] + cycle[:first])
            left = {index: sources for index, sources in left.items() if index not in cycle}
    return order, cycles


def _width(element: str, at: int) -> float | None:
    """Return the bytes of an element; None: nothing is said of it."""
    if element and element not in ELEMENT_BYTES:
        need = "one of " + ", ".join(ELEMENT_BYTES)
        raise Mistake("there is no such element", at, got=element, need=need, hint=nearest(element, ELEMENT_BYTES))
    return ELEMENT_BYTES.get(element)


def _problem(document: Document, lines: list[str], at: KeyPath, text: str, mistake: Mistake) -> Problem:
    """Return a problem at the very character, if the text stands on one line of the file as it is; else where the text
    begins.
    """
    problem = document.problem(mistake.what, at, got=mistake.got, need=mistake.need, hint=mistake.hint)
    if not text or problem.line is None or problem.column is None or problem.line > len(lines):
        return problem
    line = lines[problem.line - 1]
    begins = line.find(text, problem.column - 1)
    return problem if begins < 0 else replace(problem, column=begins + mistake.at + 1)
