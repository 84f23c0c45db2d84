"""`${...}`: defaults, lengths, slices of lists, prefixes and suffixes to remove."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace

from symconfig.existing.launch.bash import source as code
from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.expand import Scanner, Stream, joined, pattern
from symconfig.existing.launch.bash.state import plain, unknown_part
from symconfig.existing.launch.reading import Piece, Pieces, Word, cut, text_of, unknown_of
from symconfig.existing.launch.text import Place

_DEFAULTS = (":-", "-", ":=", "=", ":+", "+", ":?", "?")
_OPERATOR = re.compile(rb":[-=+?]|##|%%|//|/#|/%|\^\^|,,|[-=+?#%/^,:]|\Z")
_BRACED = re.compile(rb"([!#]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Braced:
    """A parsed `${!name[subscript] operator operand}`; sign: "!" for indirection, "#" for the length, or empty.

    operand: its bytes [start, end). loose: whether the result may be split into words.
    """

    name: str
    sign: str
    subscript: str | None
    operator: str
    operand: tuple[int, int]
    place: Place
    quoted: bool
    loose: bool


class Expander(Scanner):
    """Expander of words with all expansions."""

    def _braced(self, at: int, end: int, quoted: bool, loose: bool) -> Stream:
        """Return the parts of the `${...}` at [at, end); one unknown part if it is malformed or not supported.

        `${!X}` expands the variable that X names, `${#X}` gives the length. loose: unless quoted, it may be split into
        words.
        """
        place, loose = self.source.place(at, end), loose and not quoted
        braced = self._split(at + 2, end - 1, place, quoted, loose)
        if braced is None:
            return [unknown_part("is an expansion that is not understood", place, loose=loose)]
        if braced.sign == "!" and braced.subscript not in ("@", "*"):
            named = self.find(braced.name, place)
            target = None if named is None or unknown_of(named) else text_of(named)
            if target is None or not re.fullmatch(r"[A-Za-z_]\w*|\d+", target):
                return [unknown_part(f"depends on the variable that ${braced.name} names", place, loose=loose)]
            braced = replace(braced, sign="", name=target)
        if braced.name in ("@", "*") or braced.subscript in ("@", "*"):
            return self._of_all(braced)
        if braced.operator in _DEFAULTS:
            return self._with_default(braced)
        parts = self.get(braced.name, place, loose=loose, subscript=braced.subscript)
        if braced.sign == "#":
            why, length = unknown_of(parts), str(len(text_of(parts)))
            return [
                unknown_part(why, place, braced.name) if why else Piece(length, None, (braced.name,), written=place)
            ]
        return [*self._transformed(braced, parts)]

    def _split(self, start: int, end: int, place: Place, quoted: bool, loose: bool) -> Braced | None:
        """Return the parsed content of `${...}` at [start, end), its subscript expanded; None if it is malformed."""
        if (head := _BRACED.match(self.data, start, end)) is None:
            return None
        at, subscript = head.end(), None
        if head[3]:
            close = code.closing(self.data, at - 1, end)
            subscript, at = text_of(self.quoted(at, close)), close + 1
        if (operator := _OPERATOR.match(self.data, at, end)) is None:
            return None
        sign, name = head[1].decode(), head[2].decode()
        return Braced(name, sign, subscript, operator[0].decode(), (operator.end(), end), place, quoted, loose)

    def _of_all(self, braced: Braced) -> Stream:
        """Return the parts of `${A[@]}` or `${@}`: elements, a slice, each transformed, the number (`#`) or keys (`!`).

        A default operator gives its operand where there is no element (`+`: where there is one, else nothing). One
        unknown part if nothing sets the array, its number is unknown, or the slice is of a scalar, negative or unknown.
        """
        name, operator, place = braced.name, braced.operator, braced.place
        of_arguments = name in ("@", "*")
        table: dict[int | str, Word] = (
            dict(enumerate(self.state.arguments, 1)) if of_arguments else self.state.items(name, place)
        )
        if not of_arguments and name not in self.state.variables and operator not in _DEFAULTS:
            return [unknown_part(self.state.missing(name), place, name, loose=True)]
        items = list(table.values())
        if braced.sign == "#":
            dark = next((item.unknown for item in items if item.several), None)
            return [unknown_part(dark, place) if dark else Piece(str(len(items)), None, (name,), written=place)]
        if braced.sign == "!":
            items = [Word(plain(str(key), name, place=place), place) for key in table]
        elif operator in _DEFAULTS:
            if bool(items) == (operator[-1] == "+"):
                return self._operand(braced)
            items = [] if operator[-1] == "+" else items
        elif operator == ":":
            scalar = not of_arguments and isinstance(self.state.variables[name], tuple)
            bounds = None if scalar else self._bounds(*braced.operand)  # of the text or of the list: bash does both
            if bounds is None or bounds[0] < 0 or (of_arguments and not bounds[0]):
                return [unknown_part("is a slice that is not followed", place, loose=True)]
            chosen = [table[key] for key in table if isinstance(key, int) and key >= bounds[0]]
            items = chosen if bounds[1] is None else chosen[: max(bounds[1], 0)]
        elif operator:
            items = [Word(self._transformed(braced, item.pieces), item.place) for item in items]
        return self._elements(name, items, place, braced.quoted, braced.loose, braced.subscript or name)

    def _operand(self, braced: Braced) -> Stream:
        return self.scan(*braced.operand, quoted=braced.quoted, loose=braced.loose, literals=braced.loose)

    def _with_default(self, braced: Braced) -> Stream:
        """Return the parts of `${X:-8}`, `${X:=8}` (which also assigns), `${X:+8}` and `${X:?}` (which is X itself).

        The default counts if X is unset or, with the colon, empty. A variable that nothing sets counts as unset. `:+`
        gives nothing if X is unset, and an unknown part if X is wholly unknown and unquoted.
        """
        name, subscript, place, kind = braced.name, braced.subscript, braced.place, braced.operator[-1]
        value = self.find(name, place, subscript)
        empty = braced.operator.startswith(":") and not unknown_of(value or ()) and not text_of(value or ())
        unset = value is None or empty
        if kind == "?" or (not unset and kind != "+"):
            return [*self.get(name, place, loose=braced.loose, subscript=subscript)]
        if kind == "+" and value and all(part.unknown and part.loose for part in value):  # perhaps no word at all
            return [unknown_part(unknown_of(value) or "", place, name, loose=True)]
        if kind == "+":
            return [] if unset else self._operand(braced)
        stream = self._operand(braced)
        whole = text_of(part for part in stream if part).strip()
        made: Stream = [
            part
            and replace(
                part,
                variables=(name, *part.variables),
                written=place if part.text.strip() == whole else part.written,
            )
            for part in stream
        ]
        if kind != "=" or name.isdigit():
            return made
        # What the variable has now is expanded: quotes of the default no longer count.
        kept = joined(made)
        self.assign(name if subscript is None else f"{name}[{subscript}]", kept)
        return [replace(part, loose=braced.loose) for part in kept]

    def _transformed(self, braced: Braced, parts: Pieces) -> Pieces:
        """Return a value after the operator `#` or `%`, unchanged without an operator or if there are no parts.

        One unknown part for another operator, and if the value or the glob is unknown or not supported.
        """
        operator, place = braced.operator, braced.place
        if not operator or not parts:
            return parts
        loose, made, why = any(part.loose for part in parts), None, unknown_of(parts)
        if why is None and operator[0] in "#%" and (glob := pattern(self.value(*braced.operand))) is not None:
            made = self._trimmed(parts, glob, operator)
        if made is None:
            why = why or f"is an expansion of ${braced.name} that is not followed"
            return (unknown_part(why, place, braced.name, loose=loose),)
        return made or (Piece("", loose=loose, written=place),)

    def _trimmed(self, parts: Pieces, glob: re.Pattern[str], operator: str) -> Pieces:
        """Return the value without the matching prefix (`#`, `##`) or suffix (`%`, `%%`), shortest or longest."""
        text = text_of(parts)
        places = range(len(text) + 1)
        self.budget.spend(len(text) ** 2 / 256)
        if operator[0] == "#":
            return cut(parts, next((at for at in places[:: 1 - 2 * (operator == "##")] if glob.match(text[:at])), 0))
        order = places[:: 1 - 2 * (operator == "%")]
        return cut(parts, 0, next((at for at in order if glob.match(text[at:])), len(text)))

    def _bounds(self, start: int, end: int) -> tuple[int, int | None] | None:
        """Return (start, length or None) of the slice `start:length` at [start, end); None if unknown."""
        colon = code.word_end(self.data, start, end, b":")
        with suppress(Dark):
            return self.arithmetic(start, colon), self.arithmetic(colon + 1, end) if colon < end else None
        return None
