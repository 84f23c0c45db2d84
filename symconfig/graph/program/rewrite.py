"""Rewrites of a program by the rules of `substitutions`, at one place or at that of every instance of a repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from symconfig.format import general
from symconfig.graph.program.fold import fold, structure
from symconfig.graph.program.program import Program
from symconfig.graph.program.substitutions import RULES, Graph, Substitution

Place = tuple[tuple[int, ...], int]  # the operators that a rule replaces, and which of several ways to replace them


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Describe a rule's application at places that share no operator: at one, or alike in all instances of a repeat."""

    rule: str
    places: tuple[Place, ...]
    each: tuple[str, ...]  # what is done there, for people

    @property
    def words(self) -> str:
        """Return what is done at the first place, with * for numbers in names if there are several."""
        return self.each[0] if len(self.each) == 1 else general(self.each[0])

    def __str__(self) -> str:
        return f"{self.rule}{f' x {len(self.each)}' if len(self.each) > 1 else ''}: {self.words}"


def rewrites(program: Program) -> list[Rewrite]:
    """Return the rewrites of a program, each once for all instances of a repeat, in the order of the rules."""
    found: dict[tuple[str, Place], Rewrite] = {}
    graph, first = Graph(program), fold(program).of
    for rule in RULES:
        for (at, way), one in _places(rule, graph):
            key = rule, (tuple(first[index] for index in at), way)
            known = found.get(key, Rewrite(rule, (), ()))
            if not {index for other, _ in known.places for index in other}.intersection(at):
                found[key] = replace(known, places=(*known.places, (at, way)), each=(*known.each, one.words))
    return list(found.values())


def _places(rule: str, graph: Graph) -> Iterator[tuple[Place, Substitution]]:
    ways: Counter[tuple[int, ...]] = Counter()
    for one in RULES[rule](graph):
        yield (one.at, ways[one.at]), one
        ways[one.at] += 1


def rewritten(program: Program, rewrite: Rewrite) -> Program:
    """Return the program after one of its `rewrites`, or of those of a program that differs in the batch only."""
    some = [one for place, one in _places(rewrite.rule, Graph(program)) if place in rewrite.places]
    gone = {index for one in some for index in one.at}
    new = {(min if one.early else max)(one.at): one.new for one in some}
    operators = tuple(
        op for index, old in enumerate(program.operators) for op in (new.get(index, ()) if index in gone else (old,))
    )
    uses = [use for op in operators for use in (*op.inputs, *op.outputs, *op.residues)]
    read, fed = {use.name for use in uses}, {use.name for index in gone for use in program.operators[index].inputs}
    kept = (one for one in program.parameters if one.tensor.name in read or one.tensor.name not in fed)
    parameters = (*kept, *(parameter for one in some for parameter in one.parameters))
    given = [program.tensors[name] for name in program.inputs] + [one.tensor for one in parameters]
    return replace(
        program,
        sizes={**program.sizes, **{loop: size for one in some for loop, size in one.sizes.items()}},
        tensors={tensor.name: tensor for tensor in (*given, *(use.tensor for use in uses))},
        parameters=parameters,
        operators=operators,
    )


def canonical(program: Program, numbers: dict[object, int]) -> tuple[int, ...]:
    """Return a key that is equal for programs of the same operators in any order and with any names of what they make.

    numbers: of operators by what they compute from what; new ones are added.
    """
    known: dict[str, tuple[int, int]] = {}
    for op in program.operators:
        inputs = tuple(known.get(use.name, use.name) for use in op.inputs)
        key = op.function or op.name, tuple(part.function for part in op.parts), structure(program, op, {}), inputs
        number = numbers.setdefault(key, len(numbers))
        known |= {use.name: (number, at) for at, use in enumerate(op.outputs)}
    return tuple(sorted(number for number, at in known.values() if at == 0))
