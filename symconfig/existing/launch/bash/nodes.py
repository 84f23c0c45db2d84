"""The syntax tree's nodes, and where words really begin and end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tree_sitter import Node

from symconfig.existing.launch.bash import lexer

_ENDS = b" \t\n;&|()<>"  # of a word without quotes


def word_ranges(data: bytes, nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the bytes of words. The parser may break a word, join two, or end one before a character that is
    escaped.
    """
    ranges: list[tuple[int, int]] = []
    for node in nodes:
        start, end = node.start_byte, max(node.end_byte, lexer.word_end(data, node.start_byte, len(data), _ENDS))
        if start == node.end_byte:
            continue
        if ranges and start <= ranges[-1][1]:
            start = ranges.pop()[0]
        ranges += lexer.words(data, start, end) or [(start, end)]
    return ranges


def value_end(data: bytes, node: Node) -> int:
    """Return where the value of an assignment ends."""
    left = node.child_by_field_name("name")
    at = data.find(b"=", left.end_byte if left is not None else node.start_byte, node.end_byte + 1) + 1
    if data[at : at + 1] == b"(":
        return lexer.closing(data, at, len(data)) + 1
    return max(lexer.word_end(data, at, len(data), _ENDS), node.end_byte)


def lines_of(data: bytes, nodes: Sequence[Node]) -> list[list[Node]]:
    """Split what the parser may have joined: it may take the line after some assignments for a part of their
    command.
    """
    lines: list[list[Node]] = [[]]
    for node in nodes:
        gap = data[lines[-1][-1].end_byte : node.start_byte] if lines[-1] else b""
        if b"\n" in gap.replace(b"\\\n", b""):
            lines.append([])
        lines[-1].append(node)
    return lines


def statements_of(node: Node) -> list[Node]:
    return [child for child in node.children if child.is_named]


def clauses_of(node: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """Yield conditions and body of `if`, each `elif`, and `else` without conditions."""
    conditions: list[Node] = []
    body: list[Node] = []
    into = body if node.type == "else_clause" else conditions
    rest: list[Node] = []
    for child in node.children:
        if child.type == "then":
            into = body
        elif child.type in ("elif_clause", "else_clause"):
            rest.append(child)
        elif child.is_named:
            into.append(child)
    yield conditions, body
    for clause in rest:
        yield from clauses_of(clause)


def errors_of(root: Node, data: bytes) -> Iterator[Node]:
    """Yield the outermost pieces that the parser could not place, at most ten. What stands inside `${...}` is read
    without it (`expand.Expander`), and counts where the parser ends the expansion elsewhere."""
    stack, count = [root], 0
    while stack and count < 10:
        node = stack.pop()
        if node.type == "ERROR" or node.is_missing:
            count += 1
            yield node
        elif node.has_error and not (
            node.type == "expansion" and lexer.closing(data, node.start_byte + 1, len(data)) == node.end_byte - 1
        ):
            stack += reversed(node.children)
