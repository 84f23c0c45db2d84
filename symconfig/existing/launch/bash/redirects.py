"""Redirections: what a command reads from the script, and files that the script writes, kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tree_sitter import Node

from symconfig.existing.launch.bash.conditions import Truth
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.values import Part, Parts, text_of


def redirected(
    shell: Interpreter, source: Source, nodes: Sequence[Node], run: Callable[[Sequence[Node]], Truth]
) -> Truth:
    """Run a command with its redirections. run: is given words that stand after one."""
    stdin, target, append = shell.stdin, None, False
    extra: list[Node] = []
    behind: list[tuple[str, Node]] = []
    for node in _flat(nodes):
        if node.type == "heredoc_redirect":
            stdin = _document(shell, source, node)
            extra += node.children_by_field_name("argument")
            operator = node.child_by_field_name("operator")
            right = node.child_by_field_name("right")
            if right is not None:
                behind.append((operator.type if operator is not None else "&&", right))
            behind += [("|", child) for child in node.children if child.type == "pipeline"]
        elif node.type == "herestring_redirect":
            last = node.children[-1]
            stdin = (*shell.expander(source).value(last.start_byte, last.end_byte), Part("\n"))
        elif node.type == "file_redirect":
            destinations = node.children_by_field_name("destination")
            extra += destinations[1:]
            sign, descriptor = _sign(node), node.child_by_field_name("descriptor")
            if (
                destinations
                and sign in (">", ">>", ">|", "&>", "&>>")
                and (descriptor is None or source.data[descriptor.start_byte : descriptor.end_byte] == b"1")
            ):
                target = shell.expander(source).value(destinations[0].start_byte, destinations[0].end_byte)
                append = sign.endswith(">>")
    return _collected(shell, stdin, target=target, append=append, run=lambda: run(extra), source=source, behind=behind)


def _collected(
    shell: Interpreter,
    stdin: Parts | None,
    target: Parts | None,
    append: bool,
    run: Callable[[], Truth],
    source: Source,
    behind: Sequence[tuple[str, Node]],
) -> Truth:
    outer, before = shell.stdin, shell.output
    piped = any(sign == "|" for sign, _ in behind)
    shell.stdin = stdin
    if target is not None or piped:
        shell.output = []
    try:
        status = run()
    finally:
        made, shell.stdin, shell.output = tuple(shell.output or ()), outer, before
    # A name that is not known is the same without its holes where it is used again.
    name = None if target is None else text_of(target)
    if name and made:
        shell.state.files[name] = (*(shell.state.files.get(name, ()) if append else ()), *made)
    for sign, node in behind:
        if sign == "|":
            shell.stdin = made
            status = shell.statements(source, [child for child in node.children if child.is_named])
            shell.stdin = outer
        elif sign == "&&":
            status = shell.execute(source, node)
    return status


def _flat(nodes: Sequence[Node]) -> list[Node]:
    """Return the redirections; a here-document holds those that stand behind it."""
    flat = []
    for node in nodes:
        flat.append(node)
        if node.type == "heredoc_redirect":
            flat += node.children_by_field_name("redirect")
    return flat


def _sign(node: Node) -> str:
    return next((child.type for child in node.children if not child.is_named), "")


def _document(shell: Interpreter, source: Source, node: Node) -> Parts:
    """Return the text of a here-document, expanded unless its end mark is quoted."""
    mark = next((child for child in node.children if child.type == "heredoc_start"), None)
    body = next((child for child in node.children if child.type == "heredoc_body"), None)
    if mark is None or body is None:
        return ()
    start = source.data.rfind(b"\n", 0, body.start_byte) + 1
    end = body.end_byte
    indented = any(child.type == "<<-" for child in node.children)
    written = source.data[mark.start_byte : mark.end_byte]
    ranges = [(start, end)]
    if indented:
        ranges, at = [], start
        while at < end:
            stop = source.data.find(b"\n", at, end)
            stop = end if stop < 0 else stop + 1
            first = next((index for index in range(at, stop) if source.data[index : index + 1] != b"\t"), stop)
            ranges.append((first, stop))
            at = stop
    if any(character in written for character in b"'\"\\"):
        return tuple(part for first, last in ranges for part in source.literal(first, last))
    expander = shell.expander(source)
    return tuple(part for first, last in ranges for part in expander.quoted(first, last))
