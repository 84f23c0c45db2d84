"""Sizes of the dims of a program file: numbers, and products and quotients of dims above."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from symconfig.errors import nearest
from symconfig.graph.program.file_source.text import Mistake

MAX_SIZE = 2**40
_FACTOR = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*|[0-9]+)\s*")
_SIGN = re.compile(r"[*/]")


def sizes(
    texts: Mapping[str, str], instead: Mapping[str, int], wrong: Callable[[str, Mistake, str], None]
) -> dict[str, int]:
    """Return the sizes. instead: sizes that replace those of the file. wrong: told the dim, the mistake and the text
    that it is in.

    A dim that cannot be had has the size 1 from then on, so that what follows can be checked, too.
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
    """Work out `2048` or `batch * tokens * 2 / experts`, from left to right. Raises Mistake."""
    minus = re.fullmatch(r"\s*-\s*([0-9]+)\s*", text)
    if minus:
        return -int(minus[1])
    value, at, over = 1, 0, False
    while True:
        match = _FACTOR.match(text, at)
        if match is None:
            raise Mistake("the size cannot be read", at, got=text[at : at + 20] or "the end", need="a number or a dim")
        factor = int(match[1]) if match[1].isdecimal() else known.get(match[1])
        if factor is None:
            need = "a dim that is defined above"
            raise Mistake(
                "the dim is undefined", match.start(1), got=match[1], need=need, hint=nearest(match[1], known)
            )
        if over and (factor == 0 or value % factor):
            raise Mistake("the size is not a whole number", match.start(1), got=f"{value} / {factor}")
        value = value // factor if over else value * factor
        at = match.end()
        if at == len(text):
            return value
        if not _SIGN.match(text, at):
            raise Mistake("the size cannot be read", at, got=text[at], need="* or /")
        over = text[at] == "/"
        at += 1
