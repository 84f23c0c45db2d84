"""The functions of a program file: their operands and options, checked before any tensor is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from symconfig.errors import nearest
from symconfig.graph.program.file_source.text import Mistake, Option, Statement, Term
from symconfig.graph.program.functions import FUNCTIONS


@dataclass(frozen=True, slots=True)
class Signature:
    """operands: fewest and most. needs, takes: options that must, and that may, be given. flags: words that may."""

    operands: tuple[int, int]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    targets: int = 1


ANY = 99
SIGNATURES = {
    "*": Signature((2, 2)),
    "gather": Signature((2, 2)),
    "softmax": Signature((1, 1), ("over",)),
    "norm": Signature((1, 3), ("over",)),
    "layernorm": Signature((1, 3), ("over",)),
    "batchnorm": Signature((1, 3), ("over",)),
    "attention": Signature((3, ANY), ("over",), ("window",), ("causal",)),
    "conv": Signature((2, 2)),
    "pool": Signature((1, 1), ("over", "window"), (), ("max",)),
    "cross_entropy": Signature((2, 2), ("over",)),
    "sum": Signature((1, 1)),
    "mean": Signature((1, 1)),
    "max": Signature((1, 1)),
    "permute": Signature((1, 1)),
    "reshape": Signature((1, 1), (), (), ("copy",)),
    "dropout": Signature((1, 1)),
    "rope": Signature((3, 3), ("over",)),
    "route": Signature((1, 1), ("over",), targets=2),
    "dispatch": Signature((2, 2), ("slots",)),
    "combine": Signature((3, 3), ("slots",)),
}
_SEVERAL = {  # element-wise functions of more than one operand
    **dict.fromkeys(("bias", "sub", "div", "swiglu", "geglu", "reglu", "maximum", "minimum", "mask"), (2, 2)),
    **dict.fromkeys(("add", "mul"), (2, ANY)),
    "where": (3, 3),
}
SIGNATURES |= {name: Signature(_SEVERAL.get(name, (1, 1))) for name in FUNCTIONS.keys() - SIGNATURES.keys()}
_LISTS = frozenset({"over"})
_NUMBERS = frozenset({"window"})


@dataclass(frozen=True, slots=True)
class Call:
    """A statement whose function is known. terms: without its flags."""

    statement: Statement
    terms: tuple[Term, ...]
    flags: frozenset[str]

    def unknown(self, term: Term, known: Iterable[str]) -> Mistake:
        """Say why a term names no tensor."""
        return Mistake("there is no such tensor", term.at, got=term.name, hint=nearest(term.name, known))

    def words(self, option: str) -> tuple[str, ...]:
        words = self.statement.options.get(option)
        return words.values if words else ()

    def number(self, option: str) -> int | None:
        words = self.words(option)
        return int(words[0]) if words else None


def call(statement: Statement) -> Call:
    """Read the call of a statement. Raises Mistake."""
    name = statement.function
    signature = SIGNATURES.get(name)
    if signature is None:
        need = "one of " + ", ".join(sorted(SIGNATURES.keys() - {"*"}))
        raise Mistake("there is no such function", statement.at, got=name, need=need, hint=nearest(name, SIGNATURES))
    flags = frozenset(term.name for term in statement.terms if term.loops is None and term.name in signature.flags)
    terms = tuple(term for term in statement.terms if term.loops is not None or term.name not in flags)
    fewest, most = signature.operands
    if not fewest <= len(terms) <= most:
        need = str(fewest) if fewest == most else f"{fewest} or more" if most == ANY else f"{fewest} to {most}"
        raise Mistake(f"{name} has the wrong number of operands", statement.at, got=str(len(terms)), need=need)
    if len(statement.targets) != signature.targets:
        got, need = str(len(statement.targets)), str(signature.targets)
        raise Mistake(f"{name} makes another number of tensors", statement.targets[0].at, got=got, need=need)
    for option, given in statement.options.items():
        _option(name, signature, option, given)
    for option in signature.needs:
        if option not in statement.options:
            raise Mistake(f"{name} needs an option", statement.at, need=f"{option}=…")
    return Call(statement, terms, flags)


def _option(name: str, signature: Signature, option: str, given: Option) -> None:
    known = (*signature.needs, *signature.takes)
    if option not in known:
        need = "one of " + ", ".join((*known, *signature.flags)) if known or signature.flags else "no option"
        raise Mistake(f"{name} has no such option", given.at, got=option, need=need, hint=nearest(option, known))
    if given.listed and option not in _LISTS:
        raise Mistake(f"{option} is one value", given.at, got="a list")
    if not given.values:
        raise Mistake(f"{option} is empty", given.at)
    if option in _NUMBERS and not (given.values[0].isdecimal() and int(given.values[0]) > 0):
        raise Mistake(f"{option} is a number", given.at, got=given.values[0], need=">= 1")
