"""`[ ]`, `[[ ]]` and their operators on what is known: true, false or not known, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from symconfig.existing.launch.bash import lexer
from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.expand import Expander
from symconfig.existing.launch.bash.log import Leave
from symconfig.existing.launch.bash.patterns import matches, pattern
from symconfig.existing.launch.bash.values import Parts, text_of, unknown_of

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}
_TEXTS = ("=", "==", "!=", "<", ">", "=~")
_OF_FILES = "abcdefghkprstuwxGLNOS"
_REGEX_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Truth:
    """value: None: not known, for the reason `why`.

    presumed: variables that nothing sets and that are taken as not set, as `${X:-8}` takes them. status: how a program
    ends, which nobody knows; with a value, how it is taken to end unless the script provides for both.
    """

    value: bool | None
    why: str = ""
    presumed: tuple[str, ...] = ()
    status: bool = False

    def negated(self) -> Truth:
        return Truth(None if self.value is None else not self.value, self.why, self.presumed, self.status)

    def left_open(self) -> Truth:
        """Return the truth where the script provides for both ends."""
        return replace(self, value=None) if self.status else self


TRUE, FALSE = Truth(True), Truth(False)
STARTED = Truth(None, "depends on a program", status=True)
EXPECTED = replace(STARTED, value=True)  # of what only prepares


def ended(leave: Leave) -> Truth:
    """Return the status of code that is left."""
    return STARTED if leave.bad is None else Truth(not leave.bad)


def both(left: Truth, right: Callable[[], Truth], stop: bool) -> Truth:
    """Run `&&` (stop: False) and `||` (stop: True): the right side counts unless the left one is `stop`."""
    if left.value is stop:
        return left
    other = right()
    presumed = (*left.presumed, *other.presumed)
    if left.value is None:
        return Truth(stop if other.value is stop else None, left.why, presumed)
    return Truth(other.value, other.why, presumed)


@dataclass(slots=True)
class _Test:
    """One `[ ]` or `[[ ]]`: its operands, as ranges of bytes (`[[`) or as expanded words (`[`)."""

    expander: Expander
    tokens: Sequence[tuple[str, Parts]]  # as they are written, and expanded
    double: bool
    at: int = 0

    def next(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> bool:
        if self.at < len(self.tokens) and self.next() in wanted:
            self.at += 1
            return True
        return False

    def either(self) -> Truth:
        truth = self.all()
        while self.take("||" if self.double else "-o"):
            truth = both(truth, self.all, True) if truth.value is not True else (self.all(), truth)[1]
        return truth

    def all(self) -> Truth:
        truth = self.one()
        while self.take("&&" if self.double else "-a"):
            truth = both(truth, self.one, False) if truth.value is not False else (self.one(), truth)[1]
        return truth

    def one(self) -> Truth:
        left = len(self.tokens) - self.at
        if left > 1 and self.take("!"):
            return self.one().negated()
        if left > 2 and self.take("("):
            inside = self.either()
            self.take(")")
            return inside
        if left >= 3 and (self.tokens[self.at + 1][0] in _TEXTS or self.tokens[self.at + 1][0] in _NUMBERS):
            self.at += 3
            return self.binary(*(self.tokens[self.at - count] for count in (3, 2, 1)))
        if left >= 2 and re.fullmatch(r"-[a-zA-Z]", self.next()):
            self.at += 2
            return self.unary(self.tokens[self.at - 2][0][1], *self.tokens[self.at - 1])
        if not left:
            return FALSE
        self.at += 1
        return self.unary("n", *self.tokens[self.at - 1])

    def unary(self, operator: str, written: str, operand: Parts) -> Truth:
        why = unknown_of(operand)
        if operator in "nzv":
            if operator == "v" and not why:
                name = text_of(operand)
                if self.expander.state.open(name):
                    return Truth(None, self.expander.state.missing(name))
                known = name in self.expander.state.variables
                return Truth(self.expander.state.read(name) is not None, "", () if known else (name,))
            if why:
                return self.presumed_unset(operand, why, operator)
            return Truth(bool(text_of(operand)) == (operator == "n"))
        if operator in _OF_FILES:
            return Truth(None, "depends on the files that are there")
        return Truth(None, f"is a test that is not followed, -{operator}")

    def presumed_unset(self, operand: Parts, why: str, operator: str) -> Truth:
        """Take a variable that nothing sets, by itself, as not set."""
        names = {part.variables[-1] for part in operand if part.variables}
        only = len(operand) == 1 and len(names) == 1 and len(operand[0].variables) == 1
        name = next(iter(names), "")
        if (
            only
            and name not in self.expander.state.variables
            and not self.expander.state.open(name)
            and why.startswith("depends on")
            and (name.isidentifier() or name.isdigit())
        ):
            return Truth(operator == "z", presumed=(name,))
        return Truth(None, why)

    def binary(self, left: tuple[str, Parts], operator: tuple[str, Parts], right: tuple[str, Parts]) -> Truth:
        why = unknown_of(left[1]) or unknown_of(right[1])
        if why:
            return Truth(None, why)
        sign = operator[0]
        try:
            if sign in _NUMBERS:
                place = self.expander.source.place(0, 0)
                numbers = (self.expander.number(text_of(each[1]), place) for each in (left, right))
                return Truth(_NUMBERS[sign](*numbers))
        except Dark as dark:
            return Truth(None, str(dark))
        text, other = text_of(left[1]), text_of(right[1])
        if sign in ("<", ">"):
            return Truth(text < other if sign == "<" else text > other)
        if sign == "=~":
            return Truth(_searched(right[1], text), "depends on a regular expression that is not followed")
        if not self.double:
            return Truth((text == other) == (sign != "!="))
        items = pattern(right[1])
        if items is None:
            return Truth(None, "depends on an extended pattern")
        return Truth(matches(items, text, self.expander.budget) == (sign != "!="))


def _searched(parts: Parts, text: str) -> bool | None:
    """Run `=~`, where the expression has nothing that takes long or that Python means otherwise."""
    expression = "".join(part.text if part.loose else re.escape(part.text) for part in parts)
    simple = not re.search(r"\[\[:|\\[a-zA-Z<>]|\(\?", expression)
    repeated = len(re.findall(r"[*+{]", expression))
    if (
        not simple
        or repeated > 2
        or (repeated and "(" in expression)
        or max(len(text), len(expression)) > _REGEX_LENGTH
    ):
        return None
    try:
        return re.search(expression, text) is not None
    except re.error:
        return None


def tested(expander: Expander, words: Sequence[Parts]) -> Truth:
    """Run `[ ]` and `test`: words after expansion."""
    tokens = [("" if unknown_of(parts) else text_of(parts), parts) for parts in words]
    test = _Test(expander, tokens, double=False)
    truth = test.either()
    return truth if test.at == len(tokens) else FALSE  # what bash cannot read is an error, and so not true


def double_tested(expander: Expander, start: int, end: int) -> Truth:
    """Run what stands between `[[` and `]]`."""
    tokens: list[tuple[str, Parts]] = []
    for first, last in _double_tokens(expander.data, start, end):
        written = expander.data[first:last].decode("utf-8", "replace")
        operator = written in ("&&", "||", "!", "(", ")", *_TEXTS, *_NUMBERS) or re.fullmatch(r"-[a-zA-Z]", written)
        quoted_shape = "\0" if not operator else ""  # a quoted or expanded "!" is no operator
        tokens.append(
            (written if operator else quoted_shape + written, () if operator else expander.value(first, last))
        )
    return _Test(expander, tokens, double=True).either()


def _double_tokens(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for first, last in lexer.words(data, start, end):
        previous = data[slice(*ranges[-1])] if ranges else b""
        if previous == b"=~":
            ranges.append((first, last))
            continue
        whole = data[first:last] == b"!=" or previous in (b"==", b"=", b"!=")
        while data[first : first + 1] in (b"(", b"!") and last > first + 1 and not whole:
            ranges.append((first, first + 1))
            first += 1
        tail = []
        while last > first + 1 and data[last - 1 : last] == b")" and not _balanced(data[first:last]):
            tail.append((last - 1, last))
            last -= 1
        ranges += [(first, last), *reversed(tail)]
    return ranges


def _balanced(word: bytes) -> bool:
    return word.count(b"(") == word.count(b")")
