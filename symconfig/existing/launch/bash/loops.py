"""`for`, `while` and `until`, followed for a bounded number of rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tree_sitter import Node

from symconfig.existing.launch.bash.conditions import TRUE, Truth
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.log import Leave
from symconfig.existing.launch.bash.nodes import statements_of, word_ranges
from symconfig.existing.launch.bash.shell import merged
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.values import hole
from symconfig.existing.launch.reading import Hides
from symconfig.existing.launch.text import Place

ROUNDS = 2_000  # of one loop


def run_for(shell: Interpreter, source: Source, node: Node) -> Truth:
    variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    if variable is None or body is None:
        return TRUE
    name = source.data[variable.start_byte : variable.end_byte].decode("utf-8", "replace")
    place = source.place(variable.start_byte, variable.end_byte)
    if any(child.type == "in" for child in node.children):
        expander = shell.expander(source)
        values = [
            item
            for start, end in word_ranges(source.data, node.children_by_field_name("value"))
            for item in expander.fields(start, end)
        ]
    else:
        values = list(shell.state.arguments)
        shell.state.taken.update(item.place for item in values)
    dark = next((item for item in values if item.several), None)
    if dark is not None or node.children[0].type == "select":
        why = (dark.unknown if dark else None) or "depends on what a person chooses"
        shell.state.variables[name] = (hole(why, place),)
        return _open_loop(shell, source, node, body, why)
    rounds = iter(values)

    def advance() -> bool:
        item = next(rounds, None)
        if item is not None:
            shell.expander(source).assign(name, tuple(replace(part, loose=False) for part in item.parts))
        return item is not None

    return _loop(shell, source, node, body, lambda: Truth(advance()))


def run_c_for(shell: Interpreter, source: Source, node: Node) -> Truth:
    body = node.child_by_field_name("body")
    opening = next((child for child in node.children if child.type == "(("), None)
    end = next((child for child in node.children if child.type == "))"), None)
    if body is None or opening is None or end is None:
        return TRUE
    marks = [child.start_byte for child in node.children if child.type == ";" and child.end_byte <= end.start_byte]
    if len(marks) != 2:
        shell.unread(source, node, "is a loop that is not understood")
        return TRUE
    shell.arithmetic(source, opening.end_byte, marks[0])
    first = [True]

    def condition() -> Truth:
        if not first[0]:
            shell.arithmetic(source, marks[1] + 1, end.start_byte)
        first[0] = False
        written = source.data[marks[0] + 1 : marks[1]].strip()
        return shell.arithmetic(source, marks[0] + 1, marks[1]) if written else TRUE

    return _loop(shell, source, node, body, condition)


def run_while(shell: Interpreter, source: Source, node: Node) -> Truth:
    body = node.child_by_field_name("body")
    conditions = node.children_by_field_name("condition")
    if body is None:
        return TRUE
    until = node.children[0].type == "until"

    def condition() -> Truth:
        truth = shell.statements(source, [child for child in conditions if child.is_named])
        if truth.status:
            truth = Truth(None, truth.why or "depends on a program")
        return truth.negated() if until else truth

    return _loop(shell, source, node, body, condition)


def _loop(shell: Interpreter, source: Source, node: Node, body: Node, condition: Callable[[], Truth]) -> Truth:
    place = source.place(node.start_byte, body.start_byte)
    outer, shell.pending = shell.pending, []
    before = shell.state.copy()
    try:
        for _ in range(ROUNDS):
            truth = condition()
            if truth.value is None:
                return _open_loop(shell, source, node, body, truth.why)
            if not truth.value or not _round(shell, source, body, place):
                return TRUE
    finally:
        shell.resume(("break",), place)
        shell.pending += outer
    why = f"is set in a loop of more than {ROUNDS:,} rounds"
    shell.unread(source, node.children[0], f"starts a loop of more than {ROUNDS:,} rounds", Hides.NOTHING)
    shell.state = merged(shell.budget, [before, shell.state], why, place)
    return TRUE


def _round(shell: Interpreter, source: Source, body: Node, place: Place) -> bool:
    """Run one round; tell whether the loop goes on."""
    try:
        shell.statements(source, statements_of(body))
    except Leave as leave:
        if leave.kind not in ("break", "continue"):
            raise
        return leave.kind == "continue"
    finally:
        shell.resume(("continue",), place)
    return True


def _open_loop(shell: Interpreter, source: Source, node: Node, body: Node, why: str) -> Truth:
    """Run a loop of which nobody knows how often it runs: what it sets is not known."""
    place = source.place(node.start_byte, body.start_byte)
    reason = f"is set in a loop whose rounds are not known: {why}"
    for _ in range(2):  # the second round sees what the first one left open
        shell.undecided([lambda: _round(shell, source, body, place), lambda: None], reason, place)
    shell.resume(("break",), place)
    return Truth(None, reason)
