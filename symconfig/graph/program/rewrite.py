"""Rewrites of a program by the rules of `substitutions`, at one place or at that of every instance of a repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from symconfig.format import general
from symconfig.graph.program.fold import fold, structure
from symconfig.graph.program.program import Program
from symconfig.graph.program.substitutions import RULES, Graph, Substitution


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Name a rule's application: to these operators, by index, and to their likes in all instances of a repeat."""

    rule: str
    at: tuple[int, ...]
    new: int  # of several ways at the same operators
    words: str


def rewrites(program: Program) -> list[Rewrite]:
    """Return the rewrites of a program, each once for all instances of a repeat, in the order of the rules."""
    return [Rewrite(rule, *key, general(some[0].words)) for rule, key, some in _places(Graph(fold(program)))]


def _places(graph: Graph) -> Iterator[tuple[str, tuple[tuple[int, ...], int], list[Substitution]]]:
    """Yield for each rewrite the rule, its key (first operators, number of the way), and all its places; of places
    that share an operator the first.
    """
    for name, rule in RULES.items():
        found: dict[tuple[tuple[int, ...], int], list[Substitution]] = {}
        ways: Counter[tuple[int, ...]] = Counter()
        for one in rule(graph):
            key = tuple(graph.folding.of[index] for index in one.at), ways[one.at]
            ways[one.at] += 1
            some = found.setdefault(key, [])
            if not {index for other in some for index in other.at}.intersection(one.at):
                some.append(one)
        for key, some in found.items():
            yield name, key, some


def rewritten(program: Program, rewrite: Rewrite) -> Program:
    """Return the program after a rewrite of `rewrites`, of this program or of one that differs in sizes only."""
    places = _places(Graph(fold(program)))
    some = next(some for rule, key, some in places if (rule, key) == (rewrite.rule, (rewrite.at, rewrite.new)))
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
