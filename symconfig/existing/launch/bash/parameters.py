"""`${...}`: defaults, lengths, slices, what is cut off and what is put in its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from symconfig.existing.launch.bash import lexer
from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.patterns import Item, matches, pattern, prefix, suffix
from symconfig.existing.launch.bash.shell import Budget, State
from symconfig.existing.launch.bash.values import (
    Field,
    Part,
    Parts,
    Value,
    cut,
    hole,
    plain,
    text_of,
    through,
    unknown_of,
)
from symconfig.existing.launch.text import Place

# None between parts: the break between two elements of "$@" or "${A[@]}".
Stream: TypeAlias = "list[Part | None]"
_HEAD = re.compile(rb"([!#]?)([A-Za-z_]\w*|\d+|[@*#?$!-])")
_OPERATOR = re.compile(rb":[-=+?]|##|%%|//|/#|/%|\^\^|,,|[-=+?#%/^,:@]")


@dataclass(frozen=True, slots=True)
class Braced:
    """`${!name[subscript] operator operand}`; the subscript and the operand as bytes [start, end) of the source."""

    name: str
    sign: str  # "!" the variable that it names, "#" its length, ""
    subscript: tuple[int, int] | None
    operator: str
    operand: tuple[int, int]


class Words(Protocol):
    """Expands words: what `${...}` needs of the expander (`expand.Expander`) that it stands in."""

    data: bytes
    state: State
    budget: Budget

    def value(self, start: int, end: int) -> Parts: ...

    def arithmetic(self, start: int, end: int) -> int: ...

    def find(self, name: str, place: Place, subscript: str | None = None) -> Parts | None: ...

    def get(self, name: str, place: Place, *, loose: bool, subscript: str | None = None) -> Parts: ...

    def assign(self, name: str, value: Value) -> None: ...

    def elements(
        self, name: str, items: list[Field], place: Place, quoted: bool, loose: bool, which: str
    ) -> Stream: ...

    def scan(
        self, start: int, end: int, *, quoted: bool = False, loose: bool = False, literals: bool = False
    ) -> Stream: ...


def split_braced(data: bytes, start: int, end: int) -> Braced | None:
    """Split what stands between `${` and `}`; None where it is no expansion."""
    head = _HEAD.match(data, start, end)
    if head is None:
        return Braced("#", "", None, "", (end, end)) if data[start:end] == b"#" else None
    sign, name, at = head.group(1).decode(), head.group(2).decode(), head.end()
    subscript = None
    if data[at : at + 1] == b"[":
        close = lexer.closing(data, at, end)
        subscript, at = (at + 1, close), close + 1
    if at >= end:
        return Braced(name, sign, subscript, "", (end, end))
    operator = _OPERATOR.match(data, at, end)
    if operator is None:
        return None
    return Braced(name, sign, subscript, operator.group().decode(), (operator.end(), end))


def operated(expander: Words, braced: Braced, subscript: str | None, place: Place, quoted: bool, loose: bool) -> Stream:
    """Expand the parts of the expansion that stands at `place`."""
    tight = quoted or not loose
    if braced.sign == "!" and subscript not in ("@", "*"):
        return _indirect(expander, braced, place, quoted, loose)
    scalar = isinstance(expander.state.variables.get(braced.name), tuple)
    if braced.operator == ":" and subscript in ("@", "*") and scalar:  # of the text or of the list: bash does both
        return [hole(f"is a slice of ${braced.name}, which is no array", place, loose=True)]
    if braced.name in ("@", "*") or subscript in ("@", "*"):
        return _of_all(expander, braced, subscript or braced.name, place, quoted, loose)
    value = expander.find(braced.name, place, subscript)
    if braced.operator in (":-", "-", ":=", "=", ":+", "+", ":?", "?"):
        return _with_default(
            expander, braced, value=value, subscript=subscript, place=place, quoted=quoted, loose=loose
        )
    parts = expander.get(braced.name, place, loose=not tight, subscript=subscript)
    if braced.sign == "#":
        return [*_length(parts, braced.name, place, not tight)]
    return [*_transformed(expander, braced, parts, place)]


def _indirect(expander: Words, braced: Braced, place: Place, quoted: bool, loose: bool) -> Stream:
    named = expander.find(braced.name, place, None)
    target = None if named is None or unknown_of(named) else text_of(named)
    match = re.fullmatch(r"([A-Za-z_]\w*|\d+)(?:\[([^\]]*)\])?", target or "")
    if match is None:
        return [hole(f"depends on the variable that ${braced.name} names", place, loose=loose and not quoted)]
    return operated(expander, replace(braced, name=match.group(1), sign=""), match.group(2), place, quoted, loose)


def _of_all(expander: Words, braced: Braced, which: str, place: Place, quoted: bool, loose: bool) -> Stream:
    state, name = expander.state, braced.name
    arguments = name in ("@", "*")
    table: dict[int | str, Field] = {**dict(enumerate(state.arguments, 1))} if arguments else state.items(name, place)
    if not arguments and name not in state.variables and braced.operator not in ("-", ":-", "+", ":+"):
        return [hole(state.missing(name), place, name, loose=True)]
    items = list(table.values())
    if braced.sign == "#":
        dark = next((item.unknown for item in items if item.several), None)
        return [hole(dark, place) if dark else Part(str(len(items)), None, (name,), written=place)]
    if braced.sign == "!":
        items = [Field(plain(str(key), name, place=place), place) for key in table]
    elif braced.operator in ("-", ":-", "+", ":+"):
        if not arguments and state.open(name):
            return [hole(state.missing(name), place, name, loose=True)]
        if bool(items) == (braced.operator in ("+", ":+")):
            return _default(expander, braced, quoted, loose)
        items = [] if braced.operator in ("+", ":+") else items
    elif braced.operator == ":":
        sliced = _sliced_items(
            expander,
            braced,
            {**({0: Field(expander.find("0", place) or (), place)} if arguments else {}), **table},
            place,
        )
        if sliced is None:
            return [hole("is a slice whose bounds are not known", place, loose=True)]
        items = sliced
    elif braced.operator:
        items = [Field(_transformed(expander, braced, item.parts, place), item.place) for item in items]
    return expander.elements(name, items, place, quoted, loose, which)


def _sliced_items(expander: Words, braced: Braced, table: dict[int | str, Field], place: Place) -> list[Field] | None:
    bounds = _bounds(expander, braced, place)
    if bounds is None:
        return None
    first, count = bounds
    if first < 0:
        first += max((key for key in table if isinstance(key, int)), default=-1) + 1
    chosen = [
        item
        for key, item in sorted(table.items(), key=lambda pair: (isinstance(pair[0], str), pair[0]))
        if isinstance(key, int) and key >= first
    ]
    return chosen if count is None else chosen[: max(count, 0)]


def _default(expander: Words, braced: Braced, quoted: bool, loose: bool) -> Stream:
    return expander.scan(*braced.operand, quoted=quoted, loose=loose, literals=loose)


def _with_default(
    expander: Words,
    braced: Braced,
    value: Parts | None,
    subscript: str | None,
    place: Place,
    quoted: bool,
    loose: bool,
) -> Stream:
    """Expand with a default. What is nowhere set counts as not set: the environment may replace the default."""
    tight = quoted or not loose
    unset = value is None or (braced.operator.startswith(":") and not unknown_of(value) and not text_of(value))
    kind = braced.operator[-1]
    if value is None and expander.state.open(braced.name):
        return [hole(expander.state.missing(braced.name), place, braced.name, loose=not tight)]
    if kind == "+":
        return [] if unset else _default(expander, braced, quoted, loose)
    if kind == "?" or not unset:
        return [*expander.get(braced.name, place, loose=not tight, subscript=subscript)]
    name = braced.name
    outside = name not in expander.state.variables
    stream = _default(expander, braced, quoted, loose)
    made = [
        None
        if part is None
        else replace(
            through((part,), name, place, loose=part.loose, default=outside)[0],
            written=part.written if part.text.strip() != text_of(p for p in stream if p).strip() else place,
        )
        for part in stream
    ]
    if kind != "=" or name.isdigit():
        return made
    # What the variable has now is expanded: quotes of the default no longer count.
    kept = tuple(Part(" ") if part is None else part for part in made)
    expander.assign(name if subscript is None else f"{name}[{subscript}]", kept)
    return [replace(part, loose=not tight) for part in kept]


def _length(parts: Parts, name: str, place: Place, loose: bool) -> Parts:
    why = unknown_of(parts)
    if why:
        return (hole(why, place, name, loose=loose),)
    return (Part(str(len(text_of(parts))), None, (name,), written=place),)


def _transformed(expander: Words, braced: Braced, parts: Parts, place: Place) -> Parts:
    """Apply `#`, `%`, `/`, `:`, `^` and `,` to one value. A hole in it makes all of it one."""
    operator = braced.operator
    if not operator or not parts:
        return parts
    loose = any(part.loose for part in parts)
    why = unknown_of(parts)
    if why:
        return (hole(why, place, braced.name, loose=loose),)
    if operator == ":":
        bounds = _bounds(expander, braced, place)
        return (
            _dark(braced, place, loose)
            if bounds is None
            else _substring(parts, *bounds) or (Part("", loose=loose, written=place),)
        )
    if operator in ("^", "^^", ",", ",,"):
        return _cased(parts, operator)
    if operator in ("#", "##", "%", "%%"):
        return _trimmed(expander, braced, parts) or _dark(braced, place, loose)
    if operator.startswith("/"):
        replaced = _replaced(expander, braced, parts)
        return _dark(braced, place, loose) if replaced is None else replaced
    return _dark(braced, place, loose)


def _dark(braced: Braced, place: Place, loose: bool) -> Parts:
    return (hole(f"is an expansion of ${braced.name} that is not followed", place, braced.name, loose=loose),)


def _bounds(expander: Words, braced: Braced, place: Place) -> tuple[int, int | None] | None:
    start, end = braced.operand
    at = start
    while at < end and expander.data[at : at + 1] != b":":
        at = (
            lexer.skip(expander.data, at, end)
            if expander.data[at : at + 1] != b"("
            else (lexer.closing(expander.data, at, end) + 1)
        )
    try:
        first = expander.arithmetic(start, min(at, end))
        return first, expander.arithmetic(at + 1, end) if at < end else None
    except Dark:
        return None


def _substring(parts: Parts, first: int, count: int | None) -> Parts:
    length = len(text_of(parts))
    first = first if first >= 0 else first + length
    if first < 0:
        return ()
    end = length if count is None else (first + count if count >= 0 else length + count)
    return cut(parts, first, max(min(end, length), first))


def _cased(parts: Parts, operator: str) -> Parts:
    change: Callable[[str], str] = str.upper if operator[0] == "^" else str.lower
    changed = []
    for index, part in enumerate(parts):
        whole = len(operator) == 2
        text = change(part.text) if whole else (change(part.text[:1]) + part.text[1:] if index == 0 else part.text)
        changed.append(part if text == part.text else replace(part, text=text, place=None))
    return tuple(changed)


def _pattern(expander: Words, start: int, end: int) -> tuple[Item, ...] | None:
    parts = expander.value(start, end)
    return None if unknown_of(parts) else pattern(parts)


def _trimmed(expander: Words, braced: Braced, parts: Parts) -> Parts | None:
    text = text_of(parts)
    items = _pattern(expander, *braced.operand)
    if items is None:
        return None
    longest = len(braced.operator) == 2
    if braced.operator[0] == "#":
        length = prefix(items, text, expander.budget, longest=longest)
        kept = cut(parts, length or 0)
    else:
        start = suffix(items, text, expander.budget, longest=longest)
        kept = cut(parts, 0, len(text) if start is None else start)
    return kept or (Part("", loose=parts[0].loose),)


def _replaced(expander: Words, braced: Braced, parts: Parts) -> Parts | None:
    """Apply `${X/a/b}`: the first, with `//` every longest match; with `/#` and `/%` one at the start or end."""
    start, end = braced.operand
    at = start
    while at < end and expander.data[at : at + 1] != b"/":
        at = lexer.skip(expander.data, at, end)
    items, text = _pattern(expander, start, min(at, end)), text_of(parts)
    new = expander.value(at + 1, end) if at < end else ()
    if items is None or unknown_of(new):
        return None
    if not items and braced.operator in ("/", "//"):
        return parts
    new = tuple(replace(part, loose=any(old.loose for old in parts)) for part in new)
    if braced.operator == "/#":
        length = prefix(items, text, expander.budget, longest=True)
        return parts if length is None else (*new, *cut(parts, length))
    if braced.operator == "/%":
        first = suffix(items, text, expander.budget, longest=True)
        return parts if first is None else (*cut(parts, 0, first), *new)
    result: list[Part] = []
    index = done = 0
    while index < len(text):
        # A match cannot be longer than its pattern where it has no star: most texts are passed over quickly.
        room = len(text) if any(item.star for item in items) else min(index + len(items), len(text))
        stops = range(room, index, -1)
        length = next((stop for stop in stops if matches(items, text[index:stop], expander.budget)), 0)
        if not length:
            index += 1
            continue
        expander.budget.spend(len(parts) / 32 + len(new) / 4)
        result += [*cut(parts, done, index), *new]
        index = done = length
        if braced.operator == "/":
            break
    return (*result, *cut(parts, done))
