"""Words: quotes, variables, substitutions and splitting, with the bytes of every character that stands literally."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from symconfig.existing.launch.bash import lexer
from symconfig.existing.launch.bash.ansi import unescaped
from symconfig.existing.launch.bash.arithmetic import Arithmetic, Dark
from symconfig.existing.launch.bash.parameters import Stream, operated, split_braced
from symconfig.existing.launch.bash.shell import Budget, State
from symconfig.existing.launch.bash.source import CodeSource, Source
from symconfig.existing.launch.bash.values import (
    Array,
    Field,
    Part,
    Parts,
    Value,
    cover,
    fields,
    hole,
    plain,
    text_of,
    through,
    unknown_of,
)
from symconfig.existing.launch.text import Place

Capture = Callable[[Source, Place], Parts]
_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPECIAL = b"@*#?$!-0123456789"
_ELEMENTS = re.compile(rb"\$@|\$\{@[^}]*\}|\$\{!?\w+\[@\][^}]*\}")  # what may leave nothing between double quotes
_UNQUOTED, _QUOTED = b"\\'\"`$~<>", b'\\`$"'


class Expander:
    """Expands words of one source in one state.

    capture: what a command substitution prints. deciding: the words are of a condition, where arguments that the script
    was not given are empty: it is read as it runs without them.
    """

    def __init__(self, source: Source, state: State, budget: Budget, capture: Capture, deciding: bool = False) -> None:
        self.source = source
        self.data = source.data
        self.state = state
        self.budget = budget
        self._capture = capture
        self._deciding = deciding

    @property
    def ifs(self) -> str:
        return " \t\n" if "IFS" not in self.state.variables else self.state.text("IFS") or ""

    # ---- what a caller asks for

    def fields(self, start: int, end: int) -> list[Field]:
        """Return the words that the word at [start, end) becomes."""
        expanded: list[Field] = []
        for choice in lexer.braces(self.data, start, end):
            self.budget.spend()
            expanded += self._fields(choice, self.source.place(start, end))
        return expanded

    def value(self, start: int, end: int) -> Parts:
        """Expand the word to one value: on the right of `=`, between `[[` and `]]`. Loose parts are patterns there."""
        return self._one(self.scan(start, end, literals=True))

    def quoted(self, start: int, end: int) -> Parts:
        """Expand the text as between double quotes: of a here-document, of arithmetic."""
        return self._one(self.scan(start, end, quoted=True, doubles=False))

    def items(self, start: int, end: int) -> list[tuple[str | None, Field]]:
        """Return the elements of an array literal, with their subscripts `[x]=`. [start, end): between the brackets."""
        elements: list[tuple[str | None, Field]] = []
        for first, last in lexer.words(self.data, start, end):
            close = lexer.closing(self.data, first, last) if self.data[first : first + 1] == b"[" else last
            if self.data[close : close + 2] == b"]=":
                key = self.value(first + 1, close)
                place = self.source.place(first, last)
                elements.append((text_of(key), Field(self.value(close + 2, last), place)))
            else:
                elements += [(None, field) for field in self.fields(first, last)]
        return elements

    def number(self, text: str, place: Place) -> int:
        """Work out an arithmetic expression whose `$` are expanded. Raises Dark."""
        return Arithmetic(
            text,
            lambda name: self._look(name, place, 0),
            lambda name, number: self.assign(name, plain(str(number), place=place)),
        ).value()

    def arithmetic(self, start: int, end: int) -> int:
        """Work out the expression at [start, end). Raises Dark."""
        place = self.source.place(start, end)
        parts = self.quoted(start, end)
        why = unknown_of(parts)
        if why:
            raise Dark(why)
        return self.number(text_of(parts).replace('"', "").replace("\\\n", ""), place)

    def assign(self, name: str, value: Value) -> None:
        """Assign by arithmetic, `read` and `${X:=8}`: `X` or `A[0]`."""
        base, _, subscript = name.partition("[")
        old = self.state.variables.get(base)
        if not subscript and not isinstance(old, Array):
            self.state.variables[base] = value
        elif isinstance(value, tuple):
            place = next((part.written for part in value if part.written), self.source.place(0, 0))
            items = self.state.items(base, place)
            items[self._key(subscript.removesuffix("]") or "0", old, place)] = Field(value, place)
            self.state.variables[base] = Array(items, isinstance(old, Array) and old.keyed)

    # ---- fields

    def _fields(self, choice: list[tuple[int, int] | str], place: Place) -> list[Field]:
        stream: Stream = []
        for run in choice:
            stream += [Part(run, written=place)] if isinstance(run, str) else self.scan(*run, loose=True)
        self.budget.spend(len(stream))
        made = fields(stream, self.ifs)
        several = len(made) > 1 or any(not isinstance(run, str) and _ELEMENTS.search(self.data, *run) for run in choice)
        return [Field(parts, (cover(part.written for part in parts) if several else None) or place) for parts in made]

    def _one(self, stream: Stream) -> Parts:
        """Expand without splitting: elements are joined by a blank."""
        while stream and stream[0] is None:
            stream = stream[1:]
        while stream and stream[-1] is None:
            stream = stream[:-1]
        return tuple(Part(" ") if part is None else part for part in stream)

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
        """Return the parts of the bytes [start, end).

        quoted: they stand between double quotes; doubles: whether a double quote is special among them. loose: results
        of expansions are for splitting. literals: so are characters without quotes (a default's words; a pattern's).
        """
        self.budget.enter()
        try:
            stream = self._scan(start, end, quoted, loose, literals, doubles)
            self.budget.spend(len(stream) / 16)
            return stream
        finally:
            self.budget.leave()

    def _scan(self, start: int, end: int, quoted: bool, loose: bool, literals: bool, doubles: bool) -> Stream:
        pieces: Stream = []
        at = start
        while at < end:
            self.budget.spend()
            byte = self.data[at : at + 1]
            special = _QUOTED if quoted else _UNQUOTED
            if byte == b"\\":
                parts, at = self._escaped(at, end, quoted)
                pieces += parts
            elif byte == b"$" and at + 1 < end:
                stream, at = self._dollar(at, end, quoted, loose)
                pieces += stream
            elif byte == b"`":
                close = lexer.after_backtick(self.data, at, end)
                pieces += self._command(at + 1, close - 1, at, close, quoted)
                at = close
            elif byte == b"'" and not quoted:
                close = lexer.skip(self.data, at, end)
                pieces += self._literal(at + 1, close - 1)
                at = close
            elif byte == b'"' and doubles:
                close = lexer.after_double(self.data, at, end)
                pieces += self._string(at + 1, close - 1)
                at = close
            elif byte in (b"<", b">") and not quoted and self.data[at + 1 : at + 2] == b"(":
                close = lexer.skip(self.data, at, end)
                pieces.append(hole("is the name of a pipe", self.source.place(at, close)))
                at = close
            elif byte == b"~" and not quoted and at == start and self.data[at + 1 : at + 2] in (b"", b"/"):
                pieces.append(hole("depends on the home folder", self.source.place(at, at + 1)))
                at += 1
            else:
                stop = at + 1
                while stop < end and self.data[stop] not in special:
                    stop += 1
                pieces += self._plain(at, stop, quoted, literals)
                at = stop
        return pieces

    def _plain(self, start: int, end: int, quoted: bool, literals: bool) -> Iterable[Part]:
        for part in self.source.literal(start, end):
            # A hole of code that a value holds may be several words.
            yield replace(part, loose=not quoted and (literals or bool(part.unknown)))

    def _literal(self, start: int, end: int) -> Parts:
        place = self.source.place(start - 1, end + 1)
        return tuple(replace(part, written=part.written or place) for part in self.source.literal(start, end)) or (
            Part("", written=place),
        )

    def _string(self, start: int, end: int) -> Stream:
        parts = self.scan(start, end, quoted=True)
        if parts or _ELEMENTS.fullmatch(self.data, start, end):
            return parts
        return [Part("", written=self.source.place(start - 1, end + 1))]

    def _escaped(self, at: int, end: int, quoted: bool) -> tuple[Parts, int]:
        """Return the character after a backslash as it is; between double quotes only a few lose theirs."""
        character = self.data[at + 1 : at + 2]
        if character == b"\n":
            return (), at + 2
        if at + 1 >= end or (quoted and character not in (b"$", b"`", b'"', b"\\")):
            return self._tight(at, at + 1), at + 1
        stop = at + 2
        while stop < end and self.data[stop] & 0xC0 == 0x80:  # the rest of a character of several bytes
            stop += 1
        return self._tight(at + 1, stop), stop

    def _tight(self, start: int, end: int) -> Parts:
        return tuple(replace(part, loose=False) for part in self.source.literal(start, end))

    # ---- after a dollar

    def _dollar(self, at: int, end: int, quoted: bool, loose: bool) -> tuple[Stream, int]:
        following = self.data[at + 1 : at + 2]
        if following == b"(":
            close = lexer.closing(self.data, at + 1, end)
            if self.data[at + 2 : at + 3] == b"(" and self.data[close - 1 : close] == b")":
                return [*self._sum(at, close + 1, quoted or not loose)], close + 1
            return [*self._command(at + 2, close, at, close + 1, quoted or not loose)], close + 1
        if following == b"{":
            close = lexer.closing(self.data, at + 1, end)
            return self._braced(at, close + 1, quoted, loose), close + 1
        if following == b"'" and not quoted:
            close = lexer.skip(self.data, at, end)
            return [*self._ansi(at, close)], close
        if following == b'"' and not quoted:
            return [], at + 1
        stop = at + 1
        if following and following in _SPECIAL:
            stop += 1
        else:
            while stop < end and self.data[stop] in _NAME:
                stop += 1
        if stop == at + 1:
            return [*self._tight(at, at + 1)], stop
        name = self.data[at + 1 : stop].decode()
        return self._named(name, at, stop, quoted, loose), stop

    def _ansi(self, at: int, close: int) -> Parts:
        body = self.data[at + 2 : close - 1]
        if b"\\" not in body:
            return self._literal(at + 2, close - 1)
        return (Part(unescaped(body.decode("utf-8", "replace")), written=self.source.place(at, close)),)

    def _sum(self, at: int, end: int, tight: bool) -> Parts:
        place = self.source.place(at, end)
        try:
            return (
                Part(
                    str(self.arithmetic(at + 3, end - 2)),
                    None,
                    self._names(at + 3, end - 2),
                    loose=not tight,
                    written=place,
                ),
            )
        except Dark as dark:
            return (hole(str(dark), place, loose=not tight),)

    def _names(self, start: int, end: int) -> tuple[str, ...]:
        """Return the variables that an expression mentions."""
        names, at = [], start
        while at < end:
            stop = at
            while stop < end and self.data[stop] in _NAME:
                stop += 1
            name = self.data[at:stop].decode()
            if name and not name[0].isdigit():
                names.append(name)
            at = max(stop, at + 1)
        return tuple(dict.fromkeys(names))

    def _command(self, start: int, end: int, at: int, close: int, tight: bool) -> Iterable[Part]:
        place = self.source.place(at, close)
        inside = CodeSource(self.source.literal(start, end), place)
        for part in self._capture(inside, place):
            yield replace(part, loose=not tight, written=place)

    def _named(self, name: str, at: int, end: int, quoted: bool, loose: bool) -> Stream:
        place = self.source.place(at, end)
        if name in ("@", "*"):
            return self.elements(name, [*self.state.arguments], place, quoted, loose, name)
        return [*self.get(name, place, loose=loose and not quoted)]

    # ---- values of names

    def get(self, name: str, place: Place, *, loose: bool, subscript: str | None = None) -> Parts:
        """Return a scalar, an element or an argument; a hole where it is not known."""
        value = self.find(name, place, subscript)
        if value is not None:
            return through(value, name, place, loose=loose)
        if name in self.state.variables or (subscript and subscript != "0") or (self._deciding and name.isdigit()):
            return ()
        return (hole(self.state.missing(name), place, name, loose=loose),)

    def find(self, name: str, place: Place, subscript: str | None = None) -> Parts | None:
        """Return the value; None where it is unset or not known to be set."""
        if name.isdigit() and name != "0":
            argument = self.state.argument(int(name) - 1)
            return None if argument is None else argument.parts
        if name == "#":
            return plain(str(len(self.state.arguments)), place=place)
        if name == "PWD" and "PWD" not in self.state.variables:
            return self.state.folder
        if name in ("BASH_SOURCE", "0"):
            return self.state.variables.get("0") or None  # type: ignore[return-value]
        value = self.state.read(name)
        if isinstance(value, Array):
            item = value.items.get(self._key(subscript or "0", value, place))
            return None if item is None else item.parts
        return value if subscript in (None, "0", "@", "*") else None

    def _key(self, subscript: str, value: Value | None, place: Place) -> int | str:
        if isinstance(value, Array) and value.keyed:
            return subscript
        try:
            index = self.number(subscript, place)
        except Dark:
            return subscript
        if index < 0 and isinstance(value, Array):
            index += max((key for key in value.items if isinstance(key, int)), default=-1) + 1
        return index

    def elements(self, name: str, items: list[Field], place: Place, quoted: bool, loose: bool, which: str) -> Stream:
        """Expand `$@`, `${A[@]}` and their `*`."""
        stream: Stream = []
        join = which == "*" and quoted
        for index, item in enumerate(items):
            self.budget.spend(len(item.parts))
            self.state.taken.add(item.place)
            if index:
                stream.append(Part(self.ifs[:1]) if join else None)
            for part in item.parts or (Part("", written=item.place),):
                stream.append(
                    replace(
                        part,
                        variables=(name, *part.variables),
                        written=item.place,
                        loose=bool(part.unknown and part.loose) or (loose and not quoted),
                    )
                )
        return stream

    def _look(self, name: str, place: Place, depth: int) -> int:
        """Work out a variable's number in arithmetic, whose text is an expression itself."""
        base, _, subscript = name.partition("[")
        value = self.find(base, place, subscript.removesuffix("]").strip("\"'") or None)
        if value is None:
            if base in self.state.variables:
                return 0
            raise Dark(self.state.missing(base))
        why = unknown_of(value)
        if why:
            raise Dark(why)
        text = text_of(value).strip()
        if text.lstrip("-").isdigit() and not text.lstrip("-").startswith("0"):
            return int(text)
        if depth > 8:
            raise Dark(f"depends on ${base}, which refers to itself")
        return Arithmetic(text, lambda inner: self._look(inner, place, depth + 1), self._no_assign).value()

    @staticmethod
    def _no_assign(name: str, number: int) -> None:
        raise Dark(f"assigns to {name} inside of another variable's value")

    # ---- ${...}

    def _braced(self, at: int, end: int, quoted: bool, loose: bool) -> Stream:
        place = self.source.place(at, end)
        braced = split_braced(self.data, at + 2, end - 1)
        tight = quoted or not loose
        if braced is None:
            return [hole("is an expansion that is not understood", place, loose=not tight)]
        subscript = None
        if braced.subscript is not None:
            subscript = text_of(self._one(self.scan(*braced.subscript, quoted=True, doubles=False)))
        return operated(self, braced, subscript, place, quoted, loose)
