"""Code that is read: bytes of a file, or of a value that is run as code, with the way back to where they stand; where
quotes, brackets and words end in it, and its syntax tree."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

from symconfig.existing.launch.bash.values import Part, Parts, cover
from symconfig.existing.launch.text import Place, Text

_MASK = "\ue001".encode()
HOLE = "\ue000"  # a character of private use: stands for what is not known in code that a value holds
_BOM = b"\xef\xbb\xbf"
# `DATA_PATH=<Specify path> (e.g., /x)`: no bash, but a common way to say that a value is to be filled in. With
# the lines that it is continued on.
_PLACEHOLDER = re.compile(rb"(?<=[\w\]]=)<(?!\()(?:[^\n]*\\\n)*[^\n]*")
_ESCAPED_BLANK = re.compile(rb"(?<!\\)((?:\\\\)*)\\[ \t]")
_LAST_CONTINUATION = re.compile(rb"(?<!\\)((?:\\\\)*)\\(\n?[ \t\n]*)\Z")
_CLOSERS = {ord("("): ord(")"), ord("{"): ord("}"), ord("["): ord("]")}
_BLANK, _ENDS = b" \t\n", b" \t\n;&|()<>"  # of a word: in lists, on a command line


class FileSource:
    """A file as code: `data` has Unix line ends and no byte order mark.

    Placeholders such as `X=<fill in>` become unknown values if the file has syntax errors.
    """

    def __init__(self, text: Text) -> None:
        """Keep the text; `data` is its bytes with Unix line ends, placeholders masked if there are syntax errors."""
        self.text = text
        body = text.data.removeprefix(_BOM)
        self._skipped = len(text.data) - len(body)
        # Offsets in `data` of the line ends that had a carriage return before them.
        self._returns = [match.start() - count for count, match in enumerate(re.finditer(b"\r\n", body))]
        self.data = body.replace(b"\r\n", b"\n")
        if _PLACEHOLDER.search(self.data) and _parser().parse(self.data).root_node.has_error:
            self.data = _PLACEHOLDER.sub(_masked, self.data)

    def place(self, start: int, end: int) -> Place:
        """Return where the bytes [start, end) of `data` stand in the file."""
        first = start + bisect_left(self._returns, start) + self._skipped
        last = end + bisect_left(self._returns, end) + self._skipped
        return self.text.place(first, max(first, last))

    def literal(self, start: int, end: int) -> Parts:
        """Return the bytes [start, end) as parts; those of a placeholder are unknown.

        A line end that had a carriage return is a part of its own, without a place.
        """
        cuts = self._returns[bisect_left(self._returns, start) : bisect_left(self._returns, end)]
        parts, first = [], start
        for index in cuts:
            parts += [*self._run(first, index), Part("\n")]
            first = index + 1
        return (*parts, *self._run(first, end))

    def _run(self, start: int, end: int) -> Parts:
        """Return the bytes [start, end) as one part; an unknown one if they contain a placeholder, none if empty."""
        if start >= end:
            return ()
        place, run = self.place(start, end), self.data[start:end]
        if _MASK in run:
            return (Part("", unknown="is to be filled in", written=place),)
        return (Part(run.decode("utf-8", "replace"), place, written=place),)


class CodeSource:
    """A value that is run as code: of `eval`, `bash -c` or a command substitution.

    Unknown parts become one special character.
    """

    def __init__(self, parts: Parts, place: Place) -> None:
        """Join the parts to `data`, unknown ones as HOLE; others become not loose. place: of code that has none."""
        self._parts = [replace(part, text=HOLE) if part.unknown else replace(part, loose=False) for part in parts]
        self._place = place
        self._starts: list[int] = []
        self.data = b""
        for part in self._parts:
            self._starts.append(len(self.data))
            self.data += part.text.encode()

    def literal(self, start: int, end: int) -> Parts:
        """Return the parts of the bytes [start, end), cut if needed, with their places; unknown parts have no text."""
        parts = []
        for index in range(max(bisect_right(self._starts, start) - 1, 0), len(self._parts)):
            part, offset = self._parts[index], self._starts[index]
            if offset >= end:
                break
            data = part.text.encode()
            first, last = max(start - offset, 0), min(end - offset, len(data))
            if first < last and part.unknown:
                parts.append(replace(part, text=""))
            elif first < last:
                before, length = (len(data[a:b].decode("utf-8", "ignore")) for a, b in ((0, first), (first, last)))
                parts.append(part.cut(before, before + length))
        return tuple(parts)

    def place(self, start: int, end: int) -> Place:
        return cover(part.written or part.place for part in self.literal(start, end)) or self._place


Source: TypeAlias = FileSource | CodeSource


def _masked(match: re.Match[bytes]) -> bytes:
    """Return the placeholder as a mark and blanks of its length, keeping escaped line ends; a shorter one unchanged."""
    rest = match.group()[len(_MASK) :]
    if len(match.group()) < len(_MASK):
        return match.group()
    return _MASK + bytes(byte if byte in b"\n" else ord(" ") for byte in rest).replace(b" \n", b"\\\n")


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(source: Source) -> Node:
    """Return the syntax tree of a source; it may contain errors, which are not raised.

    Escaped blanks are parsed as word characters, a trailing continuation as blanks; offsets stay those of `data`.
    """
    shown = _ESCAPED_BLANK.sub(rb"\1\\_", source.data)
    return _parser().parse(_LAST_CONTINUATION.sub(rb"\1 \2", shown)).root_node


# ---- bytes


def skip(data: bytes, at: int, end: int) -> int:
    """Return the position after the character, or the quoted string, escape or expansion, at `at`; at most `end`."""
    byte, two = data[at : at + 1], data[at : at + 2]
    if byte == b"\\":
        return min(at + 2, end)
    if byte == b"'":
        quote = data.find(b"'", at + 1, end)
        return end if quote < 0 else quote + 1
    if two in (b"$(", b"${", b"<(", b">("):
        return min(closing(data, at + 1, end) + 1, end)
    if byte not in (b'"', b"`") and two != b"$'":
        return at + 1
    mark = two[-1:] if two == b"$'" else byte
    at += 2 if two == b"$'" else 1
    while at < end and data[at : at + 1] != mark:
        if data[at : at + 1] == b"\\":
            at += 2
        elif mark == b'"' and (data[at : at + 1] == b"`" or data[at : at + 2] in (b"$(", b"${")):
            at = skip(data, at, end)
        else:
            at += 1
    return min(at + 1, end)


def closing(data: bytes, at: int, end: int) -> int:
    """Return the position of the bracket that closes the one at `at`; `end` if none does.

    Quoted strings and escapes are skipped, nested `(` and `${` are matched; in `"${...}"` a single quote is literal.
    """
    stack = [_CLOSERS[data[at]]]
    at += 1
    while at < end:
        byte = data[at]
        if stack[-1] == ord('"'):
            if byte == ord("\\"):
                at += 2
                continue
            if byte == ord('"'):
                stack.pop()
            elif byte == ord("$") and data[at + 1 : at + 2] in (b"(", b"{"):
                at += 1
                stack.append(_CLOSERS[data[at]])
        elif byte == stack[-1]:
            stack.pop()
            if not stack:
                return at
        elif byte == ord('"'):
            stack.append(byte)
        elif byte == ord("(") or (byte == ord("{") and data[at - 1 : at] == b"$"):
            stack.append(_CLOSERS[byte])
        elif byte in b"\\'`" and not (byte == ord("'") and ord('"') in stack and stack[-1] == ord("}")):
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
    """Return the byte ranges of the words between blanks and line ends, without comments.

    It is used in `[[ ]]` and array literals: operators do not end a word.
    """
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
    """Return the byte ranges of the words at these nodes, extended to where each word ends; empty nodes are skipped.

    This corrects the parser, which may split a word (adjacent ranges are joined), join two (split at blanks), or end
    one before an escaped character.
    """
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
    """Return the nodes split at line ends that are not escaped; without nodes one empty line.

    The parser may join a command with the line after it.
    """
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
    """Yield at most ten outermost nodes that are errors or missing, in order.

    Errors inside a `${...}` whose end the parser found are left out.
    """
    stack, count = [root], 0
    while stack and count < 10:
        node = stack.pop()
        if node.type == "ERROR" or node.is_missing:
            count += 1
            yield node
        elif node.has_error and not (
            node.type == "expansion" and closing(data, node.start_byte + 1, len(data)) == node.end_byte - 1
        ):
            stack += reversed(node.children)
