"""The notation of operators over named dims: `y[b,s,f] = x[b,s,h] * w[h,f]`.

    statement = target {"," target} "=" (term "*" term | function "(" argument {"," argument} ")")
    target    = [element] name "[" dims "]"
    argument  = term | word "=" value | flag
    term      = name ["[" dims "]"]           without dims: as the tensor was declared
    value     = word | number | "[" dims "]"
    dims      = [dim {"," dim}]               a number is a dim of that size without a name
    size      = factor {("*" | "/") factor}   of a dim, from left to right

Which words are flags is the function's affair: a term without dims may be one. `symconfig.graph.program.build` has the
functions. A program file says its operators in it, and so do rules of PyTorch's operators, where a dim that ends in
`...` stands for as many as a tensor has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from symconfig.errors import nearest

MAX_SIZE = 2**40
ELEMENT_BYTES = {
    "fp64": 8.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5,
    "int64": 8.0, "int32": 4.0, "int8": 1.0, "uint8": 1.0, "bool": 1.0,
}  # fmt: skip
_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<number>[0-9]+)|(?P<sign>[\[\](),=*]))")
_FACTOR = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*|[0-9]+)\s*")


class Mistake(Exception):
    """Report a fault in a statement. at: index of the character; got, need, hint: parts of the message,
    None if absent.
    """

    def __init__(
        self, what: str, at: int = 0, *, got: str | None = None, need: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what)
        self.what, self.at, self.got, self.need, self.hint = what, at, got, need, hint


@dataclass(frozen=True, slots=True)
class Term:
    """Hold a tensor that is read. loops: None if along the dims as declared. at: index of its first character."""

    name: str
    loops: tuple[str, ...] | None
    at: int


@dataclass(frozen=True, slots=True)
class Target:
    """Hold a tensor that is made. element: element type; "" for that of the operands. at: index of its
    first character.
    """

    name: str
    dims: tuple[str, ...]
    element: str
    at: int


@dataclass(frozen=True, slots=True)
class Option:
    """Hold `word = value`. listed: the value is a list in brackets; else `values` has one word or number."""

    values: tuple[str, ...]
    listed: bool
    at: int


@dataclass(frozen=True, slots=True)
class Statement:
    """Hold a parsed statement. function: "*" for a product. at: index of the function's first character. flags: terms
    that are flags of the function; empty until `calls.checked`.
    """

    targets: tuple[Target, ...]
    function: str
    terms: tuple[Term, ...]
    options: dict[str, Option]
    at: int
    flags: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Reader:
    """Parse one text: `next` is the index of the next token and advances as tokens are taken.

    The tokens are made at once; raise Mistake for a character that is in no token.
    """

    text: str
    tokens: list[tuple[str, str, int]] = field(default_factory=list)  # kind, text, place
    next: int = 0

    def __post_init__(self) -> None:
        """Split the text into `tokens`, an end token last. Raise Mistake for a character that is in no token."""
        place = 0
        while rest := self.text[place:].lstrip():
            match = _TOKEN.match(self.text, place)
            if match is None:
                raise Mistake("this character has no meaning here", self.text.rindex(rest), got=rest[0])
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind], match.start(kind)))
            place = match.end()
        self.tokens.append(("end", "the end", len(self.text.rstrip())))

    @property
    def at(self) -> int:
        return self.tokens[self.next][2]

    def sees(self, text: str, ahead: int = 0) -> bool:
        return self.tokens[min(self.next + ahead, len(self.tokens) - 1)][:2] == ("sign", text)

    def take(self, *kinds: str, need: str) -> str:
        kind, text, at = self.tokens[self.next]
        if kind not in kinds:
            raise Mistake("the statement cannot be read", at, got=text, need=need)
        self.next += 1
        return text

    def skip(self, text: str, *, needed: bool = False) -> bool:
        seen = self.sees(text)
        if needed and not seen:
            raise Mistake("the statement cannot be read", self.at, got=self.tokens[self.next][1], need=repr(text))
        self.next += seen
        return seen

    def dims(self) -> tuple[str, ...] | None:
        """Return the dims in brackets, with repeated numbers made distinct; None, without advancing, if there are no
        brackets.

        A trailing comma is allowed. Raise Mistake if a dim or the closing bracket is missing.
        """
        if not self.skip("["):
            return None
        dims: list[str] = []
        while not self.sees("]"):
            dims.append(self.take("word", "number", need="a dim"))
            if not self.skip(","):
                break
        self.skip("]", needed=True)
        return _named(dims)

    def target(self) -> Target:
        """Return the next target, with the element type if a word stands before the name (not checked), else "". Raise
        Mistake if its name or dims are missing.
        """
        at, element = self.at, ""
        name = self.take("word", need="the tensor that is made")
        if self.tokens[self.next][0] == "word":
            element, at = name, self.at
            name = self.take("word", need="the tensor that is made")
        dims = self.dims()
        if dims is None:
            raise Mistake("the dims of what is made are missing", at, got=name, need=f"{name}[…]")
        return Target(name, dims, element, at)

    def argument(self, terms: list[Term], options: dict[str, Option]) -> None:
        """Append the next argument to `terms`, or enter it in `options` if `=` follows the word. Raise Mistake for a
        repeated option or a missing value.
        """
        at = self.at
        word = self.take("word", need="a tensor or an option" if self.sees("=", 1) else "a tensor")
        if not self.skip("="):
            terms.append(Term(word, self.dims(), at))
            return
        if word in options:
            raise Mistake("the option is given twice", at, got=word)
        values = self.dims()
        one = (self.take("word", "number", need="a word, a number or a list"),) if values is None else ()
        options[word] = Option(one if values is None else values, values is not None, at)


def statement(text: str) -> Statement:
    """Return the `Statement` (targets, function, terms, options) of text `target = term * term` or `target =
    function(arguments)`, several targets separated by commas; the function is "*" for a product, and is not checked.

    Raise Mistake at the first character that does not fit the grammar.
    """
    read = _Reader(text)
    targets = [read.target()]
    while read.skip(","):
        targets.append(read.target())
    read.skip("=", needed=True)
    at = read.at
    name = read.take("word", need="a tensor or a function")
    terms: list[Term] = []
    options: dict[str, Option] = {}
    if read.skip("("):
        while not read.sees(")"):
            read.argument(terms, options)
            if not read.skip(","):
                break
        read.skip(")", needed=True)
    else:
        terms.append(Term(name, read.dims(), at))
        name, at = "*", read.at
        read.skip("*", needed=True)
        place = read.at
        terms.append(Term(read.take("word", need="a tensor"), read.dims(), place))
    read.take("end", need="nothing more")
    return Statement(tuple(targets), name, tuple(terms), options, at)


def names(text: str) -> tuple[str, ...]:
    """Return the names of a statement's targets, as far as they can be made out, also for text that `statement`
    rejects: the last word of each part, split at commas, before the first "=", without brackets.
    """
    before = re.sub(r"\[[^\]=]*\]?", " ", text.partition("=")[0])
    words = [part.split() for part in before.split(",")]
    return tuple(word[-1] for word in words if word)


def declaration(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the element type ("" if absent) and dims of text such as `int64[b, s]` or `[b, s]`. The element type is
    not checked. Raise Mistake if the text has another form.
    """
    read = _Reader(text)
    element = "" if read.sees("[") else read.take("word", need="dims in brackets")
    dims = read.dims()
    if dims is None:
        raise Mistake("the dims are missing", read.at, need=f"{element}[…]")
    read.take("end", need="nothing more")
    return element, dims


def _named(dims: Sequence[str]) -> tuple[str, ...]:
    """Return the dims with repeated numbers made distinct: 3, 3', 3'' for the first, second and third 3 of
    one tensor.
    """
    return tuple(dim + "'" * dims[:n].count(dim) if dim.isdecimal() else dim for n, dim in enumerate(dims))


def size_of_number(dim: str) -> int | None:
    """Return the size of a dim that is a number, such as `3` or `3'`; None for a dim with a name."""
    digits = dim.rstrip("'")
    return int(digits) if digits.isdecimal() else None


def sizes(
    texts: Mapping[str, str], instead: Mapping[str, int], wrong: Callable[[str, Mistake, str], None]
) -> dict[str, int]:
    """Return the size of every dim in `texts`, evaluated in order.

    Mistakes are not raised: `wrong` is called with the dim, the mistake and the text, and the dim gets the size 1 so
    that checks can go on. A size must be at least 1 and below MAX_SIZE.

    Args:
        instead: sizes that replace those in `texts`; a dim that is not in `texts` is a mistake.
    """
    result: dict[str, int] = {}
    for dim, text in texts.items():
        text = str(instead.get(dim, text))
        try:
            result[dim] = size(text, result)
            if not 1 <= result[dim] < MAX_SIZE:
                what = "a dim has no elements" if result[dim] < 1 else "a dim is too large"
                raise Mistake(what, got=str(result[dim]), need=">= 1" if result[dim] < 1 else f"< {MAX_SIZE:,}")
        except Mistake as mistake:
            wrong(dim, mistake, text)
            result[dim] = 1
    for dim in instead:
        if dim not in texts:
            wrong(dim, Mistake("the program has no such dim", got=dim, hint=nearest(dim, texts)), "")
    return result


def size(text: str, known: Mapping[str, int]) -> int:
    """Evaluate `2048` or `batch * tokens * 2 / experts`, from left to right. Raise Mistake for an undefined dim, a
    division with remainder, or other text.
    """
    value, at, sign = 1, 0, "*"
    while match := _FACTOR.match(text, at):
        factor = int(match[1]) if match[1].isdecimal() else known.get(match[1])
        if factor is None:
            need, hint = "a dim that is defined above", nearest(match[1], known)
            raise Mistake("the dim is undefined", match.start(1), got=match[1], need=need, hint=hint)
        if sign == "/" and (factor == 0 or value % factor):
            raise Mistake("the size is not a whole number", match.start(1), got=f"{value} / {factor}")
        value = value // factor if sign == "/" else value * factor
        at, sign = match.end() + 1, text[match.end() : match.end() + 1]
        if not sign:
            return value
        if sign not in "*/":
            raise Mistake("the size cannot be read", at - 1, got=sign, need="* or /")
    raise Mistake("the size cannot be read", at, got=text[at : at + 20] or "the end", need="a number or a dim")
