"""Words: quotes, variables, `${...}`, substitutions and splitting, with the bytes of every character that stands
literally."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from symconfig.existing.launch.bash import source as code
from symconfig.existing.launch.bash.arithmetic import Dark, calculated
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.state import Array, Budget, State, Value, plain, split_words, unknown_part
from symconfig.existing.launch.reading import Piece, Pieces, Word, text_of, unknown_of
from symconfig.existing.launch.text import Place, cover

Capture: TypeAlias = Callable[[Source, Place], Pieces]
Stream: TypeAlias = "list[Piece | None]"  # None between parts: the break between two elements of "$@" or "${A[@]}"
_NAME = re.compile(rb"[A-Za-z_]\w*|[@*#?$!\-0-9]", re.ASCII)
_ELEMENTS = re.compile(rb"\$@|\$\{@[^}]*\}|\$\{!?\w+\[@\][^}]*\}")  # what may leave nothing between double quotes
_UNQUOTED, _QUOTED = b"\\'\"`$~<>", b'\\`$"'
_BRACES = re.compile(r"\{[^{}]*(,|\.\.)[^{}]*\}")
_RANGE = re.compile(rb"\{(\d{1,4})\.\.(\d{1,4})\}")
_REFERENCES = 8  # of variables in arithmetic that name each other


def pattern(parts: Iterable[Piece]) -> re.Pattern[str] | None:
    """Return a word as a glob, whose quoted parts are literal; None if a part is unknown, or for extended globs."""
    text = ""
    for part in parts:
        if part.unknown or (part.loose and re.search(r"[@!+?*]\(|\[:|\\", part.text)):
            return None
        text += part.text.replace("[^", "[!") if part.loose else re.sub(r"[*?[]", r"[\g<0>]", part.text)
    return re.compile(fnmatch.translate(text))


class Scanner:
    """Expander of the words of one source in one state, but for `${...}`, which `parameters.Expander` adds.

    capture: returns the output of a command substitution. deciding: the words are of a condition, where no argument is
    "".
    """

    def __init__(self, source: Source, state: State, budget: Budget, capture: Capture, deciding: bool = False) -> None:
        self.source, self.data, self.state, self.budget = source, source.data, state, budget
        self._capture, self._deciding = capture, deciding

    # ---- what a caller asks for

    def fields(self, start: int, end: int) -> list[Word]:
        """Return the fields that the word at bytes [start, end) expands to; [] if it expands to nothing.

        `{1..8}` gives a field per number, another brace expansion an unknown field.
        """
        self.budget.spend()
        place, stream = self.source.place(start, end), self.scan(start, end, loose=True)
        if (span := _RANGE.fullmatch(self.data, start, end)) and (first := int(span[1])) <= (last := int(span[2])):
            return [Word((Piece(str(number), written=place),), place) for number in range(first, last + 1)]
        if b"{" in self.data[start:end] and self._has_braces(start, end):
            stream = [unknown_part("is a brace expansion, which is not followed", place, loose=True)]
        self.budget.spend(len(stream))
        made = split_words(stream, self.state.ifs)
        several = len(made) > 1 or _ELEMENTS.search(self.data, start, end)
        return [Word(parts, (cover(part.written for part in parts) if several else None) or place) for parts in made]

    def _has_braces(self, start: int, end: int) -> bool:
        """Return whether the word has a brace expansion outside quotes."""
        bare, at = "", start
        while at < end:
            after = code.skip(self.data, at, end)
            bare += self.data[at:after].decode("utf-8", "replace") if after == at + 1 else "_"
            at = after
        return _BRACES.search(bare) is not None

    def value(self, start: int, end: int) -> Pieces:
        """Return the word at [start, end) expanded, not split, elements joined by blanks; unquoted parts are loose."""
        return joined(self.scan(start, end, literals=True))

    def quoted(self, start: int, end: int) -> Pieces:
        """Return the bytes expanded as in here-documents and arithmetic, where `"` is literal."""
        return joined(self.scan(start, end, quoted=True, doubles=False))

    def items(self, start: int, end: int) -> list[tuple[str | None, Word]]:
        """Return (subscript, value) for each element of an array literal at [start, end); None without `[X]=`."""
        elements: list[tuple[str | None, Word]] = []
        for first, last in code.words(self.data, start, end):
            close = code.closing(self.data, first, last) if self.data[first : first + 1] == b"[" else last
            if self.data[close : close + 2] == b"]=":
                key, place = self.value(first + 1, close), self.source.place(first, last)
                elements.append((text_of(key), Word(self.value(close + 2, last), place)))
            else:
                elements += [(None, field) for field in self.fields(first, last)]
        return elements

    def extended(self, array: Array, elements: Iterable[tuple[str | None, Word]], place: Place) -> Array:
        """Return the array with further elements, pairs of subscript and value; without one it goes behind the last."""
        items, following = dict(array.items), array.end
        for subscript, item in elements:
            key = following if subscript is None else self._key(subscript, Array(items, array.keyed), place)
            items[key] = item
            following = key + 1 if isinstance(key, int) else following
        return Array(items, array.keyed)

    def number(self, text: str, place: Place, depth: int = 0) -> int:
        """Return the value of an arithmetic expression; its assignments change the state.

        Raises Dark if the value is unknown or not supported, or after `depth` > 8 variables that refer to each other.
        """
        if depth > _REFERENCES:
            raise Dark("depends on variables that refer to each other")
        return calculated(
            text,
            lambda name: self._number_of(name, place, depth),
            lambda name, number: self.assign(name, plain(str(number), place=place)),
        )

    def arithmetic(self, start: int, end: int) -> int:
        """Return the value of the expression at bytes [start, end), with `$` expanded. Raises as `number`."""
        parts = self.quoted(start, end)
        if why := unknown_of(parts):
            raise Dark(why)
        return self.number(text_of(parts).replace('"', "").replace("\\\n", ""), self.source.place(start, end))

    def _number_of(self, name: str, place: Place, depth: int) -> int:
        """Return the number that a variable or element (`A[0]`) holds as an expression; 0 if empty. Raises Dark."""
        base, _, subscript = name.partition("[")
        value = self.find(base, place, subscript.removesuffix("]") or None)
        if value is None and base not in self.state.variables:
            raise Dark(self.state.missing(base))
        if why := unknown_of(value or ()):
            raise Dark(why)
        return self.number(text_of(value or ()).strip(), place, depth + 1)

    def assign(self, name: str, value: Value) -> None:
        """Set the variable `X` or the element `A[0]` in the state; of an array `X` the element 0."""
        base, _, subscript = name.partition("[")
        old = self.state.variables.get(base)
        if not subscript and not isinstance(old, Array):
            self.state.variables[base] = value
        elif isinstance(value, tuple):
            place = next((part.written for part in value if part.written), self.source.place(0, 0))
            array = Array(self.state.items(base, place), isinstance(old, Array) and old.keyed)
            element = (subscript.removesuffix("]") or "0", Word(value, place))
            self.state.variables[base] = self.extended(array, [element], place)

    # ---- the scanner

    def scan(
        self,
        start: int,
        end: int,
        *,
        quoted: bool = False,
        loose: bool = False,
        literals: bool = False,
        doubles: bool = True,
    ) -> Stream:
        """Return the expanded parts of the bytes [start, end); None stands between elements of arrays.

        quoted: the bytes stand between double quotes. loose: results of expansions may be split into words. literals:
        unquoted characters are loose as well. doubles: a double quote is special. Assignments in it change the state.
        Raises Exhausted.
        """
        pieces: Stream = []
        at = start
        while at < end:
            self.budget.spend()
            byte, close = self.data[at : at + 1], code.skip(self.data, at, end)
            if byte == b"\\":
                parts, close = self._escaped(at, end, quoted)
                pieces += parts
            elif byte == b"$" and at + 1 < end:
                stream, close = self._dollar(at, end, quoted, loose)
                pieces += stream
            elif byte == b"`":
                pieces += self._command(at + 1, close - 1, at, close, quoted)
            elif byte == b"'" and not quoted:
                pieces += self._literal(at + 1, close - 1)
            elif byte == b'"' and doubles:
                inside = self.scan(at + 1, close - 1, quoted=True)
                empty = not inside and not _ELEMENTS.fullmatch(self.data, at + 1, close - 1)
                pieces += [Piece("", written=self.source.place(at, close))] if empty else inside
            elif byte in (b"<", b">") and not quoted and self.data[at + 1 : at + 2] == b"(":
                pieces.append(unknown_part("is the name of a pipe", self.source.place(at, close)))
            elif byte == b"~" and not quoted and at == start and self.data[at + 1 : at + 2] in (b"", b"/"):
                pieces.append(unknown_part("depends on the home folder", self.source.place(at, at + 1)))
            else:
                close, special = at + 1, _QUOTED if quoted else _UNQUOTED
                while close < end and self.data[close] not in special:
                    close += 1
                for part in self.source.literal(at, close):
                    # An unknown part of code that a value holds may be several words.
                    pieces.append(replace(part, loose=not quoted and (literals or bool(part.unknown))))
            at = close
        self.budget.spend(len(pieces) / 16)
        return pieces

    def _literal(self, start: int, end: int) -> Pieces:
        place = self.source.place(start - 1, end + 1)
        return tuple(replace(part, written=part.written or place) for part in self.source.literal(start, end)) or (
            Piece("", written=place),
        )

    def _escaped(self, at: int, end: int, quoted: bool) -> tuple[Pieces, int]:
        """Return the parts for the backslash at `at`, and the position after what they stand for.

        An escaped line end gives no part; between double quotes only `$`, a backtick, `"` and a backslash are escaped.
        """
        character = self.data[at + 1 : at + 2]
        if character == b"\n":
            return (), at + 2
        if at + 1 >= end or (quoted and character not in (b"$", b"`", b'"', b"\\")):
            return self._unsplit(at, at + 1), at + 1
        stop = at + 2
        while stop < end and self.data[stop] & 0xC0 == 0x80:  # the rest of a character of several bytes
            stop += 1
        return self._unsplit(at + 1, stop), stop

    def _unsplit(self, start: int, end: int) -> Pieces:
        return tuple(replace(part, loose=False) for part in self.source.literal(start, end))

    # ---- after a dollar

    def _dollar(self, at: int, end: int, quoted: bool, loose: bool) -> tuple[Stream, int]:
        """Return the parts of the expansion that starts with `$` at `at`, and the position after it.

        That is `${...}`, `$((...))`, `$(...)`, `$'...'`, `$@` or a variable; `$"` gives none, any other `$` is literal.
        """
        following, tight = self.data[at + 1 : at + 2], quoted or not loose
        if following in (b"(", b"{"):
            close = code.closing(self.data, at + 1, end)
            if following == b"{":
                return self._braced(at, close + 1, quoted, loose), close + 1
            if self.data[at + 2 : at + 3] == b"(" and self.data[close - 1 : close] == b")":
                return [self._arithmetic_part(at, close + 1, tight)], close + 1
            return [*self._command(at + 2, close, at, close + 1, tight)], close + 1
        if following == b"'" and not quoted:
            close = code.skip(self.data, at, end)
            parts = self._literal(at + 2, close - 1)
            return [*(parts if b"\\" not in self.data[at:close] else with_escapes(parts))], close
        if following == b'"' and not quoted:
            return [], at + 1
        if (match := _NAME.match(self.data, at + 1, end)) is None:
            return [*self._unsplit(at, at + 1)], at + 1
        name, place = match[0].decode(), self.source.place(at, match.end())
        if name in ("@", "*"):
            return self._elements(name, [*self.state.arguments], place, quoted, loose, name), match.end()
        return [*self.get(name, place, loose=not tight)], match.end()

    def _arithmetic_part(self, at: int, end: int, tight: bool) -> Piece:
        """Return `$((...))` at [at, end) as one part, unknown if its value is; it is loose unless `tight`."""
        place = self.source.place(at, end)
        try:
            text = str(self.arithmetic(at + 3, end - 2))
        except Dark as dark:
            return unknown_part(str(dark), place, loose=not tight)
        names = re.findall(rb"[A-Za-z_]\w*", re.sub(rb"\b\d\w*", b"", self.data[at + 3 : end - 2]))
        return Piece(text, None, tuple(dict.fromkeys(name.decode() for name in names)), loose=not tight, written=place)

    def _command(self, start: int, end: int, at: int, close: int, tight: bool) -> Iterable[Piece]:
        place = self.source.place(at, close)
        inside = Source(self.source.literal(start, end), place)
        return [replace(part, loose=not tight, written=place) for part in self._capture(inside, place)]

    # ---- values of names

    def get(self, name: str, place: Place, *, loose: bool, subscript: str | None = None) -> Pieces:
        """Return the value of a variable, element or argument, with `name` put before its `variables`.

        One unknown part if nothing sets it; empty if it is declared without a value or unset, for an absent element
        other than 0, and for an absent argument in a condition of a script without arguments. place: of the expansion,
        which `written` becomes; with blanks in the value each part that has a place of its own keeps it.
        """
        value = self.find(name, place, subscript)
        if value is not None:
            several = any(character.isspace() for part in value for character in part.text)
            return tuple(
                replace(
                    part, variables=(name, *part.variables), loose=loose, written=(several and part.written) or place
                )
                for part in value
            )
        if name in self.state.variables or (subscript and subscript != "0") or (self._deciding and name.isdigit()):
            return ()
        return (unknown_part(self.state.missing(name), place, name, loose=loose),)

    def find(self, name: str, place: Place, subscript: str | None = None) -> Pieces | None:
        """Return the value of a variable, element, argument, `$#` or `$PWD`; None if nothing sets it.

        An array without subscript gives element 0; a scalar has a value only for the subscripts 0, `@` and `*`.
        """
        if name.isdigit() and name != "0":
            argument = self.state.arguments[int(name) - 1 : int(name)]
            return argument[0].pieces if argument else None
        if name == "#":
            return plain(str(len(self.state.arguments)), place=place)
        if name == "PWD" and "PWD" not in self.state.variables:
            return self.state.folder
        value = self.state.variables.get("0" if name == "BASH_SOURCE" else name)
        if isinstance(value, Array):
            item = value.items.get(self._key(subscript or "0", value, place))
            return None if item is None else item.pieces
        return value if subscript in (None, "0", "@", "*") else None

    def _key(self, subscript: str, array: Array, place: Place) -> int | str:
        """Return the key of a subscript: the text for an associative array or if unknown, else its integer.

        A negative integer counts from the end of the array.
        """
        if array.keyed:
            return subscript
        try:
            index = self.number(subscript, place)
        except Dark:
            return subscript
        return index + array.end if index < 0 else index

    def _elements(self, name: str, items: list[Word], place: Place, quoted: bool, loose: bool, which: str) -> Stream:
        """Return the parts of all items of `$@`, `${A[@]}` and their `*` (`which`), `name` added to their variables.

        Between items stands None, or for a quoted `*` the first character of IFS.
        """
        stream: Stream = []
        for index, item in enumerate(items):
            self.budget.spend(len(item.pieces))
            if index:
                stream.append(Piece(self.state.ifs[:1]) if which == "*" and quoted else None)
            for part in item.pieces or (Piece("", written=item.place),):
                free = bool(part.unknown and part.loose) or (loose and not quoted)
                stream.append(replace(part, variables=(name, *part.variables), written=item.place, loose=free))
        return stream

    def _braced(self, at: int, end: int, quoted: bool, loose: bool) -> Stream:
        """Return the parts of the `${...}` at [at, end); implemented by `parameters.Expander`."""
        raise NotImplementedError


def joined(stream: Stream) -> Pieces:
    """Return the parts with a blank for each None between elements."""
    return tuple(Piece(" ") if part is None else part for part in stream)


_LETTERS = {**dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True)), **{mark: mark for mark in "\\'\"?"}}
# The escapes of `$'...'`, `echo -e` and `printf`. Bytes in a row are one piece of UTF-8.
_ESCAPE = re.compile(
    r"\\((?:x[0-9a-fA-F]{1,2}|[0-7]{1,3})(?:\\(?:x[0-9a-fA-F]{1,2}|[0-7]{1,3}))*|u[0-9a-fA-F]{1,4}|.)", re.DOTALL
)


def unescaped(text: str) -> str:
    """Return the text with escapes of letters, bytes (joined to UTF-8) and `u` codes replaced; others are kept."""

    def one(match: re.Match[str]) -> str:
        """Return what one match of escapes stands for; the match itself if it is unknown."""
        body = match[1]
        if len(body) > 1 and body[0] == "u":
            return chr(int(body[1:], 16))
        if body[0] in "01234567" or (body[0] == "x" and len(body) > 1):
            escapes = body.split("\\")
            raw = bytes(int(each[1:], 16) if each[0] == "x" else int(each, 8) & 0xFF for each in escapes)
            return raw.decode("utf-8", "replace")
        return _LETTERS.get(body, match[0])

    return _ESCAPE.sub(one, text)


def with_escapes(parts: Pieces) -> Pieces:
    """Return the parts with the escapes of `$'...'`, `echo -e` and `printf` replaced."""
    texts = [unescaped(part.text) for part in parts]
    pairs = zip(parts, texts, strict=True)
    return tuple(part if part.text == text else replace(part, text=text, place=None) for part, text in pairs)
