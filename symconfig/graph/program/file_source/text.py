"""The statements of a program file as text: `y[b,s,f] = x[b,s,h] * w[h,f]`.

    statement = target {"," target} "=" (term "*" term | function "(" argument {"," argument} ")")
    target    = [element] name "[" dims "]"
    argument  = term | word "=" value | flag
    term      = name ["[" dims "]"]           without dims: as the tensor was declared
    value     = word | number | "[" dims "]"
    dims      = [dim {"," dim}]               a number is a dim of that size without a name

Which words are flags is the function's affair: a term without dims may be one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<number>[0-9]+)|(?P<sign>[\[\](),=*]))")


class Mistake(Exception):
    """A fault of a statement, and at which of its characters."""

    def __init__(
        self, what: str, at: int = 0, *, got: str | None = None, need: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what)
        self.what, self.at, self.got, self.need, self.hint = what, at, got, need, hint


@dataclass(frozen=True, slots=True)
class Term:
    """A tensor that is read; loops None: along the dims as declared. at: its place in the statement."""

    name: str
    loops: tuple[str, ...] | None
    at: int


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor that is made. element: "" for that of what it is made from."""

    name: str
    dims: tuple[str, ...]
    element: str
    at: int


@dataclass(frozen=True, slots=True)
class Option:
    """`word = value`: one word or number, or a list."""

    values: tuple[str, ...]
    listed: bool
    at: int


@dataclass(frozen=True, slots=True)
class Statement:
    """function: "*" for a product. at: of its name."""

    targets: tuple[Target, ...]
    function: str
    terms: tuple[Term, ...]
    options: dict[str, Option]
    at: int


@dataclass(slots=True)
class _Reader:
    text: str
    tokens: list[tuple[str, str, int]] = field(default_factory=list)  # kind, text, place
    next: int = 0

    def __post_init__(self) -> None:
        place = 0
        while self.text[place:].strip():
            match = _TOKEN.match(self.text, place)
            if match is None:
                at = place + len(self.text[place:]) - len(self.text[place:].lstrip())
                raise Mistake("this character has no meaning here", at, got=self.text[at])
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind], match.start(kind)))
            place = match.end()
        self.tokens.append(("end", "the end", len(self.text.rstrip())))

    @property
    def at(self) -> int:
        return self.tokens[self.next][2]

    def sees(self, text: str, ahead: int = 0) -> bool:
        token = self.tokens[min(self.next + ahead, len(self.tokens) - 1)]
        return token[0] == "sign" and token[1] == text

    def take(self, *kinds: str, need: str) -> str:
        kind, text, at = self.tokens[self.next]
        if kind not in kinds:
            raise Mistake("the statement cannot be read", at, got=text, need=need)
        self.next += 1
        return text

    def sign(self, text: str) -> None:
        if not self.sees(text):
            raise Mistake("the statement cannot be read", self.at, got=self.tokens[self.next][1], need=repr(text))
        self.next += 1

    def skip(self, text: str) -> bool:
        seen = self.sees(text)
        self.next += seen
        return seen


def statement(text: str) -> Statement:
    """Read a statement. Raises Mistake."""
    read = _Reader(text)
    targets = [_target(read)]
    while read.skip(","):
        targets.append(_target(read))
    read.sign("=")
    at = read.at
    name = read.take("word", need="a tensor or a function")
    terms: list[Term] = []
    options: dict[str, Option] = {}
    if read.skip("("):
        function = name
        while not read.sees(")"):
            _argument(read, terms, options)
            if not read.skip(","):
                break
        read.sign(")")
    else:
        function = "*"
        terms.append(Term(name, _dims(read), at))
        at = read.at
        read.sign("*")
        terms.append(_term(read))
    read.take("end", need="nothing more")
    return Statement(tuple(targets), function, tuple(terms), options, at)


def names(text: str) -> tuple[str, ...]:
    """Return what a statement makes, as far as can be seen where it cannot be read."""
    before = re.sub(r"\[[^\]=]*\]?", " ", text.partition("=")[0])
    words = [part.split() for part in before.split(",")]
    return tuple(word[-1] for word in words if word)


def declaration(text: str) -> tuple[str, tuple[str, ...]]:
    """Read element (or "") and dims of `int64[b, s]` or `[b, s]`. Raises Mistake."""
    read = _Reader(text)
    element = "" if read.sees("[") else read.take("word", need="dims in brackets")
    dims = _dims(read)
    if dims is None:
        raise Mistake("the dims are missing", read.at, need=f"{element}[…]")
    read.take("end", need="nothing more")
    return element, dims


def named(dims: Sequence[str]) -> tuple[str, ...]:
    """Name the dims that are mere numbers: 3, 3', 3'' for the first, second, third 3 of one tensor."""
    seen: dict[str, int] = {}
    result = []
    for dim in dims:
        seen[dim] = seen.get(dim, -1) + 1
        result.append(dim + "'" * seen[dim] if dim.isdecimal() else dim)
    return tuple(result)


def size_of_number(dim: str) -> int | None:
    """Return the size of a dim that is a mere number."""
    digits = dim.rstrip("'")
    return int(digits) if digits.isdecimal() else None


def _target(read: _Reader) -> Target:
    at = read.at
    name = read.take("word", need="the tensor that is made")
    element = ""
    if read.tokens[read.next][0] == "word":
        element, at = name, read.at
        name = read.take("word", need="the tensor that is made")
    dims = _dims(read)
    if dims is None:
        raise Mistake("the dims of what is made are missing", at, got=name, need=f"{name}[…]")
    return Target(name, dims, element, at)


def _term(read: _Reader) -> Term:
    at = read.at
    return Term(read.take("word", need="a tensor"), _dims(read), at)


def _argument(read: _Reader, terms: list[Term], options: dict[str, Option]) -> None:
    if not read.sees("=", 1):
        terms.append(_term(read))
        return
    at = read.at
    word = read.take("word", need="a tensor or an option")
    read.sign("=")
    if word in options:
        raise Mistake("the option is given twice", at, got=word)
    values = _dims(read)
    one = (read.take("word", "number", need="a word, a number or a list"),) if values is None else ()
    options[word] = Option(values if values is not None else one, values is not None, at)


def _dims(read: _Reader) -> tuple[str, ...] | None:
    """Return the dims in brackets; None: there are no brackets."""
    if not read.skip("["):
        return None
    dims: list[str] = []
    while not read.sees("]"):
        dims.append(read.take("word", "number", need="a dim"))
        if not read.skip(","):
            break
    read.sign("]")
    return named(dims)
