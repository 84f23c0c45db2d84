"""Code that is read: bytes of a file, or of a value that is run as code, with the way back to where they stand."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import replace
from functools import cache
from typing import Protocol

import tree_sitter
import tree_sitter_bash

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


class Source(Protocol):
    """Code. data: what the parser sees, with line ends of Unix and no byte order mark."""

    data: bytes

    def literal(self, start: int, end: int) -> Parts:
        """Return the characters at bytes [start, end) of `data` as they stand."""

    def place(self, start: int, end: int) -> Place:
        """Return where bytes [start, end) of `data` stand in a file."""


class FileSource:
    """A file as code."""

    def __init__(self, text: Text) -> None:
        self.text = text
        body = text.data.removeprefix(_BOM)
        self._skipped = len(text.data) - len(body)
        self._returns: list[int] = []  # offsets in `data` of the line ends that had a carriage return before them
        self.data = body
        if b"\r\n" in body:
            lines = body.split(b"\r\n")
            offset = 0
            for line in lines[:-1]:
                self._returns.append(offset + len(line))
                offset += len(line) + 1
            self.data = b"\n".join(lines)
        if _PLACEHOLDER.search(self.data) and _parser().parse(self.data).root_node.has_error:
            self.data = _PLACEHOLDER.sub(_masked, self.data)

    def place(self, start: int, end: int) -> Place:
        first = start + bisect_left(self._returns, start) + self._skipped
        last = end + bisect_left(self._returns, end) + self._skipped
        return self.text.place(first, max(first, last))

    def literal(self, start: int, end: int) -> Parts:
        cuts = self._returns[bisect_left(self._returns, start) : bisect_left(self._returns, end)]
        parts, first = [], start
        for index in cuts:
            parts += [*self._run(first, index), Part("\n")]
            first = index + 1
        return (*parts, *self._run(first, end))

    def _run(self, start: int, end: int) -> Parts:
        if start >= end:
            return ()
        place = self.place(start, end)
        run = self.data[start:end]
        if _MASK in run:
            return (Part("", unknown="is to be filled in", written=place),)
        return (Part(run.decode("utf-8", "replace"), place, written=place),)


class CodeSource:
    """A value that is run as code: of `eval`, `bash -c`, or between the brackets of a substitution."""

    def __init__(self, parts: Parts, place: Place) -> None:
        self._parts = [replace(part, text=HOLE) if part.unknown else replace(part, loose=False) for part in parts]
        self._place = place
        self._starts: list[int] = []
        encoded, offset = [], 0
        for part in self._parts:
            self._starts.append(offset)
            encoded.append(part.text.encode())
            offset += len(encoded[-1])
        self.data = b"".join(encoded)

    def literal(self, start: int, end: int) -> Parts:
        parts = []
        for index in range(max(bisect_right(self._starts, start) - 1, 0), len(self._parts)):
            part, offset = self._parts[index], self._starts[index]
            if offset >= end:
                break
            data = part.text.encode()
            first, last = max(start - offset, 0), min(end - offset, len(data))
            if first >= last:
                continue
            if part.unknown:
                parts.append(replace(part, text=""))
                continue
            before = len(data[:first].decode("utf-8", "ignore"))
            length = len(data[first:last].decode("utf-8", "ignore"))
            parts.append(part.cut(before, before + length))
        return tuple(parts)

    def place(self, start: int, end: int) -> Place:
        return cover(part.written or part.place for part in self.literal(start, end)) or self._place


def _masked(match: re.Match[bytes]) -> bytes:
    """Return as many bytes, of which the first are a word; line ends stay where they are escaped."""
    rest = match.group()[len(_MASK) :]
    if len(match.group()) < len(_MASK):
        return match.group()
    return _MASK + bytes(byte if byte in b"\n" else ord(" ") for byte in rest).replace(b" \n", b"\\\n")


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(source: Source) -> tree_sitter.Node:
    """Parse all of it to a syntax tree. The parser loses blanks that are escaped: it is shown words in their place. A
    continuation that nothing follows is no error.
    """
    shown = _ESCAPED_BLANK.sub(rb"\1\\_", source.data)
    return _parser().parse(_LAST_CONTINUATION.sub(rb"\1 \2", shown)).root_node
