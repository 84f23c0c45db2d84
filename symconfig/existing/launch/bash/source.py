"""Code that is read: the parts of a file, or of a value that is run as code, as bytes with the way back to where they
stand; where quotes, brackets and words end in it, and its syntax tree."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

from symconfig.existing.launch.reading import Piece, Pieces
from symconfig.existing.launch.text import Place, Text, cover

HOLE = "\ue000"  # a character of private use: stands for what is not known
_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"([^\n]*?)(\r\n|\n|\Z)")
# `DATA_PATH=<Specify path> (e.g., /x)`: no bash, but a common way to say that a value is to be filled in. With
# the lines that it is continued on.
_PLACEHOLDER = re.compile(rb"(?<=[\w\]]=)<(?!\()(?:[^\n]*\\\n)*[^\n]*")
_ESCAPED_BLANK = re.compile(rb"(?<!\\)((?:\\\\)*)\\[ \t]")
_LAST_CONTINUATION = re.compile(rb"(?<!\\)((?:\\\\)*)\\(\n?[ \t\n]*)\Z")
# An escape, a string between single quotes, and a command between backticks, as far as they go.
_QUOTED = re.compile(rb"\\.?|'[^']*'?|\$'(?:[^'\\]|\\.)*'?|`(?:[^`\\]|\\.)*`?", re.DOTALL)
_CLOSERS = {ord("("): ord(")"), ord("{"): ord("}"), ord("["): ord("]"), ord('"'): ord('"')}
_BLANK, _ENDS = b" \t\n", b" \t\n;&|()<>"  # of a word: in lists, on a command line


class Source:
    """Pieces as code; `data` is their bytes, with HOLE for each unknown part."""

    def __init__(self, parts: Sequence[Piece], place: Place) -> None:
        """Join the parts; known ones become not loose. place: of code that stands nowhere."""
        self._parts = [replace(part, text=HOLE) if part.unknown else replace(part, loose=False) for part in parts]
        self._place = place
        self._bytes = [part.text.encode() for part in self._parts]
        self._starts = [0, *accumulate(map(len, self._bytes))]
        self.data = b"".join(self._bytes)

    @classmethod
    def of_file(cls, text: Text) -> Source:
        """Return the code of a file, without byte order mark and carriage returns.

        Placeholders such as `X=<fill in>` become unknown parts if the file has syntax errors.
        """
        parts: list[Piece] = []
        for line in _LINE.finditer(text.data, len(_BOM) * text.data.startswith(_BOM)):
            windows = line[2] == b"\r\n"
            place = text.place(line.start(), line.end(1 if windows else 2))
            parts += [Piece(text.at(place), place, written=place)]
            parts += [Piece("\n")] if windows else []
        whole, done, filled = cls(parts, text.place(0, 0)), 0, list[Piece]()
        if not (gaps := [*_PLACEHOLDER.finditer(whole.data)]) or not parse(whole).has_error:
            return whole
        for gap in gaps:
            unknown = Piece("", unknown="is to be filled in", written=whole.place(*gap.span()))
            filled += [*whole.literal(done, gap.start()), unknown]
            done = gap.end()
        return cls([*filled, *whole.literal(done, len(whole.data))], text.place(0, 0))

    def literal(self, start: int, end: int) -> Pieces:
        """Return the parts of the bytes [start, end), cut if needed, with their places; unknown parts have no text."""
        parts = []
        for index in range(max(bisect_right(self._starts, start) - 1, 0), len(self._parts)):
            part, data, offset = self._parts[index], self._bytes[index], self._starts[index]
            if offset >= end:
                break
            first, last = max(start - offset, 0), min(end - offset, len(data))
            if first < last and part.unknown:
                parts.append(replace(part, text=""))
            elif first < last:
                before, length = (len(data[a:b].decode("utf-8", "ignore")) for a, b in ((0, first), (first, last)))
                parts.append(part.cut(before, before + length))
        return tuple(parts)

    def place(self, start: int, end: int) -> Place:
        """Return where the bytes [start, end) stand in a file."""
        place = cover(part.written or part.place for part in self.literal(start, max(end, start + 1))) or self._place
        return place if start < end else replace(place, end=place.start)


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(source: Source) -> Node:
    """Return the syntax tree of a source; errors stay in it. Offsets are those of `data`."""
    shown = _ESCAPED_BLANK.sub(rb"\1\\_", source.data)
    return _parser().parse(_LAST_CONTINUATION.sub(rb"\1 \2", shown)).root_node


# ---- bytes


def skip(data: bytes, at: int, end: int) -> int:
    """Return the position after the character, or the quoted string, escape, ${…}, $(…), <(…) or >(…), at `at`; at most
    `end`. Of $NAME only the $ is skipped.
    """
    if (quoted := _QUOTED.match(data, at, end)) is not None:
        return quoted.end()
    if data[at : at + 1] == b'"':
        return min(closing(data, at, end) + 1, end)
    if data[at : at + 2] in (b"$(", b"${", b"<(", b">("):
        return min(closing(data, at + 1, end) + 1, end)
    return at + 1


def closing(data: bytes, at: int, end: int) -> int:
    """Return the position of the bracket or double quote that closes the one at `at`; `end` if none does.

    Quoted strings and escapes are skipped, nested `(` and `${` are matched; in `"${...}"` a single quote is literal.
    """
    stack = [_CLOSERS[data[at]]]
    at += 1
    while at < end:
        byte, quoted = data[at], stack[-1] == ord('"')
        if byte == stack[-1]:
            stack.pop()
            if not stack:
                return at
        elif (byte in b'("' and not quoted) or (byte in b"({" and data[at - 1 : at] == b"$"):
            stack.append(_CLOSERS[byte])
        elif byte in b"\\`" or (byte == ord("'") and not quoted and not (stack[-1] == ord("}") and ord('"') in stack)):
            at = skip(data, at, end)
            continue
        at += 1
    return end


def word_end(data: bytes, at: int, end: int, stops: bytes = _BLANK) -> int:
    """Return the position after the word that starts at `at`; quoted strings and expansions do not end it."""
    while at < end and data[at] not in stops:
        at = skip(data, at, end)
    return min(at, end)


def words(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Return the byte ranges of the words (no comments) between blanks and line ends in `[[ ]]` or an array literal."""
    ranges, at = [], start
    while at < end:
        if data[at] in _BLANK:
            at += 1
        elif data[at : at + 2] == b"\\\n":
            at += 2
        elif data[at : at + 1] == b"#":
            line = data.find(b"\n", at, end)
            at = end if line < 0 else line
        else:
            stop = word_end(data, at, end)
            ranges.append((at, stop))
            at = stop
    return ranges


# ---- nodes


def word_ranges(data: bytes, nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the byte ranges of the words at these nodes, which the parser may split, join or end too early."""
    ranges: list[tuple[int, int]] = []
    for node in nodes:
        start, end = node.start_byte, max(node.end_byte, word_end(data, node.start_byte, len(data), _ENDS))
        if start == node.end_byte:
            continue
        if ranges and start <= ranges[-1][1]:
            start = ranges.pop()[0]
        ranges += words(data, start, end) or [(start, end)]
    return ranges


def value_end(data: bytes, node: Node) -> int:
    """Return the position after the value of an assignment: behind the bracket of an array, else the word's end."""
    left = node.child_by_field_name("name")
    at = data.find(b"=", left.end_byte if left is not None else node.start_byte, node.end_byte + 1) + 1
    if data[at : at + 1] == b"(":
        return closing(data, at, len(data)) + 1
    return max(word_end(data, at, len(data), _ENDS), node.end_byte)


def lines_of(data: bytes, nodes: Sequence[Node]) -> list[list[Node]]:
    """Return a list of nodes per line, as the parser may join a command with the next; a backslash continues a line."""
    lines: list[list[Node]] = [[]]
    for node in nodes:
        gap = data[lines[-1][-1].end_byte : node.start_byte] if lines[-1] else b""
        if b"\n" in gap.replace(b"\\\n", b""):
            lines.append([])
        lines[-1].append(node)
    return lines


def text_at(source: Source, node: Node) -> str:
    """Return the source's text at a node."""
    return source.data[node.start_byte : node.end_byte].decode("utf-8", "replace")


def place_at(source: Source, node: Node) -> Place:
    """Return where a node stands in a file."""
    return source.place(node.start_byte, node.end_byte)


def errors_of(root: Node, data: bytes) -> Iterator[Node]:
    """Yield the outermost nodes that are errors or missing, but for errors inside a `${...}` that is closed."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type == "ERROR" or node.is_missing:
            yield node
        elif node.has_error and not (
            node.type == "expansion" and closing(data, node.start_byte + 1, len(data)) == node.end_byte - 1
        ):
            stack += reversed(node.children)
