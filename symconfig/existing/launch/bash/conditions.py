"""`[ ]`, `[[ ]]` and their operators on what is known: true, false or not known, and why."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from symconfig.existing.launch.bash import source as code
from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.expand import pattern
from symconfig.existing.launch.bash.parameters import Expander
from symconfig.existing.launch.bash.state import Leave
from symconfig.existing.launch.reading import Pieces, text_of, unknown_of

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_TEXTS = ("=", "==", "!=", "<", ">", "=~")
_JOINS = {False: ("-o", "-a"), True: ("||", "&&")}  # "or" and "and", by whether it is `[[ ]]`
_UNARY = re.compile(r"-[a-zA-Z]")


@dataclass(frozen=True, slots=True)
class Truth:
    """The result of a condition or command; `value` is None if it is not known, and `why` then the reason.

    status: whether this is the exit status of a program, which is never known; a `value` is then only presumed.
    """

    value: bool | None
    why: str = ""
    status: bool = False

    def negated(self) -> Truth:
        return replace(self, value=None if self.value is None else not self.value)


TRUE, FALSE = Truth(True), Truth(False)
STARTED = Truth(None, "depends on a program", status=True)
EXPECTED = replace(STARTED, value=True)  # of what only prepares


def ended(leave: Leave) -> Truth:
    """Return the status of code that was left by `exit` or `return`; unknown if its status is."""
    return STARTED if leave.bad is None else Truth(not leave.bad)


@dataclass(slots=True)
class _Test:
    """Recursive-descent evaluator of one `[ ]` or `[[ ]]`.

    tokens: each as (text, expanded parts); in `[[ ]]` words that are no operators have a NUL byte before the text.
    """

    expander: Expander
    tokens: Sequence[tuple[str, Pieces]]
    double: bool
    at: int = 0

    def take(self, *wanted: str) -> bool:
        taken = self.at < len(self.tokens) and self.tokens[self.at][0] in wanted
        self.at += taken
        return taken

    def joined(self, level: int = 0) -> Truth:
        """Return the three-valued result of the tests from the current token on that "or" joins, and advance past them.

        level 1: that "and" joins; 2: of one test.
        """
        if level == len(_JOINS[self.double]):
            return self.one()
        stop, truth = level == 0, self.joined(level + 1)
        while self.take(_JOINS[self.double][level]):
            right = self.joined(level + 1)
            if truth.value is None:
                truth = Truth(stop if right.value is stop else None, truth.why)
            elif truth.value is not stop:
                truth = right
        return truth

    def one(self) -> Truth:
        """Evaluate one test at the current token, a negation or a group, advance past it, and return its value.

        A single word is true if it is not empty; without tokens it is FALSE.
        """
        left = len(self.tokens) - self.at
        if left > 1 and self.take("!"):
            return self.one().negated()
        if left > 2 and self.take("("):
            inside = self.joined()
            self.take(")")
            return inside
        if left >= 3 and self.tokens[self.at + 1][0] in (*_TEXTS, *_NUMBERS):
            self.at += 3
            return self.binary(*(self.tokens[self.at - count] for count in (3, 2, 1)))
        if left >= 2 and _UNARY.fullmatch(self.tokens[self.at][0]):
            self.at += 2
            return self.unary(self.tokens[self.at - 2][0][1], self.tokens[self.at - 1][1])
        if not left:
            return FALSE
        self.at += 1
        return self.unary("n", self.tokens[self.at - 1][1])

    def unary(self, sign: str, operand: Pieces) -> Truth:
        """Return the value of `-n` or `-z` (without dash) on an operand; of other tests it is unknown.

        A variable or argument that the script sets nowhere counts as unset.
        """
        if sign not in "nz":
            return Truth(None, "depends on the files that are there")
        if not (why := unknown_of(operand)):
            return Truth(bool(text_of(operand)) == (sign == "n"))
        # A variable that nothing sets, by itself, is taken as not set.
        names = operand[0].variables if len(operand) == 1 else ()
        if (
            len(names) == 1
            and why == self.expander.state.missing(names[0])
            and (names[0].isidentifier() or names[0].isdigit())
        ):
            return Truth(sign == "z")
        return Truth(None, why)

    def binary(self, left: tuple[str, Pieces], sign: tuple[str, Pieces], right: tuple[str, Pieces]) -> Truth:
        """Return the value of a comparison: -eq, -lt ... of integers; `=`, `==`, `!=` of texts, or patterns in `[[ ]]`.

        Unknown if an operand is, for `<`, `>` and `=~`, and for what is not supported. Operands and sign are (text,
        parts).
        """
        if why := unknown_of(left[1]) or unknown_of(right[1]):
            return Truth(None, why)
        text, other = text_of(left[1]), text_of(right[1])
        if sign[0] in _NUMBERS:
            place = self.expander.source.place(0, 0)
            try:
                return Truth(_NUMBERS[sign[0]](*(self.expander.number(each, place) for each in (text, other))))
            except Dark as dark:
                return Truth(None, str(dark))
        if sign[0] in ("<", ">", "=~"):
            return Truth(None, "depends on a regular expression or an order of texts, which is not followed")
        if not self.double:
            return Truth((text == other) == (sign[0] != "!="))
        self.expander.budget.spend(len(text) / 64)
        if (glob := pattern(right[1])) is None:
            return Truth(None, "depends on a pattern that is not followed")
        return Truth((glob.match(text) is not None) == (sign[0] != "!="))


def tested(expander: Expander, words: Sequence[Pieces]) -> Truth:
    """Return the value of `[ ]` or `test` on expanded words; false if bash could not parse it."""
    test = _Test(expander, [("" if unknown_of(parts) else text_of(parts), parts) for parts in words], double=False)
    truth = test.joined()
    return truth if test.at == len(words) else FALSE  # what bash cannot read is an error, and so not true


def double_tested(expander: Expander, start: int, end: int) -> Truth:
    """Return the value of the condition at bytes [start, end), inside of `[[ ]]`; its words are not split.

    Unknown if a word other than a regular expression begins or ends a group: these are not followed.
    """
    tokens: list[tuple[str, Pieces]] = []
    for first, last in code.words(expander.data, start, end):
        written = expander.data[first:last].decode("utf-8", "replace")
        grouped = written[0] == "(" or written.count("(") != written.count(")")
        if grouped and tokens[-1:] != [("=~", ())]:
            return Truth(None, "depends on a group of conditions, which is not followed")
        if written in ("&&", "||", "!", *_TEXTS, *_NUMBERS) or _UNARY.fullmatch(written):
            tokens.append((written, ()))
        else:  # a quoted or expanded "!" is no operator
            tokens.append(("\0" + written, expander.value(first, last)))
    test = _Test(expander, tokens, double=True)
    truth = test.joined()
    return truth if test.at == len(tokens) else Truth(None, "depends on a condition that is not understood")
