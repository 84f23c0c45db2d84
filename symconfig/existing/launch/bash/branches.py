"""`if` and `case`: what runs where the condition is known, and all of it where it is not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tree_sitter import Node

from symconfig.existing.launch.bash.conditions import TRUE, Truth
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.log import shortened
from symconfig.existing.launch.bash.nodes import clauses_of, word_ranges
from symconfig.existing.launch.bash.patterns import matches, pattern
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.values import text_of, unknown_of


def run_if(shell: Interpreter, source: Source, node: Node) -> Truth:
    return _run_clauses(shell, source, list(clauses_of(node)), 0)


def _run_clauses(shell: Interpreter, source: Source, clauses: list[tuple[list[Node], list[Node]]], index: int) -> Truth:
    for at in range(index, len(clauses)):
        conditions, body = clauses[at]
        if not conditions:
            return shell.guarded(partial(shell.statements, source, body))
        truth = shell.statements(source, conditions)
        if truth.value is True and not truth.status:
            before = dict(shell.state.variables)
            check = source.place(conditions[0].start_byte, conditions[-1].end_byte)
            status = shell.guarded(partial(shell.statements, source, body), check)
            for name in truth.presumed:
                value = shell.state.variables.get(name)
                if name not in before and isinstance(value, tuple):
                    shell.state.variables[name] = tuple(
                        part if part.overridden_by else replace(part, overridden_by=name) for part in value
                    )
            return status
        if truth.value is None or truth.status:
            start, end = conditions[0].start_byte, conditions[-1].end_byte
            written = source.data[start:end].decode("utf-8", "replace")
            shell.undecided(
                [partial(shell.statements, source, body), partial(_run_clauses, shell, source, clauses, at + 1)],
                opened(written, truth),
                source.place(start, end),
            )
            return Truth(None, truth.why)
    return TRUE


def run_case(shell: Interpreter, source: Source, node: Node) -> Truth:
    value = node.child_by_field_name("value")
    items = [child for child in node.children if child.type == "case_item"]
    if value is None:
        return TRUE
    expander = shell.expander(source, deciding=True)
    word = expander.value(value.start_byte, value.end_byte)
    why = unknown_of(word)
    place = source.place(value.start_byte, value.end_byte)
    for index, item in enumerate(items):
        matched = None if why else _matches(shell, source, item, text_of(word))
        if matched is None:
            written = f"case {source.data[value.start_byte : value.end_byte].decode('utf-8', 'replace')}"
            rest = [lambda item=item: _item(shell, source, items, items.index(item)) for item in items[index:]]
            covered = any(_matches(shell, source, item, "\0") for item in items[index:])
            shell.undecided(rest if covered else [*rest, lambda: None], opened(written, Truth(None, why or "")), place)
            return Truth(None, why or "")
        if matched:
            return shell.guarded(partial(_item, shell, source, items, index))
    return TRUE


def _matches(shell: Interpreter, source: Source, item: Node, text: str) -> bool | None:
    expander = shell.expander(source, deciding=True)
    for start, end in word_ranges(source.data, item.children_by_field_name("value")):
        parts = expander.value(start, end)
        items = pattern(parts)
        if unknown_of(parts) or items is None:
            return None
        if matches(items, text, shell.budget):
            return True
    return False


def _item(shell: Interpreter, source: Source, items: list[Node], index: int) -> Truth:
    """Run a branch of `case`, and those that it falls through to."""
    status = TRUE
    for item in items[index:]:
        close = next((at for at, child in enumerate(item.children) if child.type == ")"), 0)
        status = shell.statements(source, [child for child in item.children[close + 1 :] if child.is_named])
        if not any(child.type == ";&" for child in item.children):
            break
    return status


def opened(written: str, truth: Truth) -> str:
    why = f", which {truth.why}" if truth.why else ""
    return f"is set under a condition that is not known: {shortened(written)}{why}"
