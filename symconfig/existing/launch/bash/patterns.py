"""Patterns of `case`, `[[ == ]]` and `${X#...}`: matched in time proportional to text times pattern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from symconfig.existing.launch.bash.shell import Budget
from symconfig.existing.launch.bash.values import Part

_CLASSES: dict[str, Callable[[str], bool]] = {
    "alpha": str.isalpha,
    "digit": str.isdigit,
    "alnum": str.isalnum,
    "space": str.isspace,
    "upper": str.isupper,
    "lower": str.islower,
    "punct": lambda c: c.isprintable() and not c.isalnum() and not c.isspace(),
}


@dataclass(frozen=True, slots=True)
class Item:
    """star: any characters. test: of one character, by its text: "?" any, "x" itself, "[a-z]" one of a set."""

    test: str
    star: bool = False
    literal: bool = False


def pattern(parts: tuple[Part, ...]) -> tuple[Item, ...] | None:
    """Make a pattern from its word, of which only loose parts have special characters; None for an extended pattern."""
    items: list[Item] = []
    for part in parts:
        if not part.loose:
            items += [Item(character, literal=True) for character in part.text]
            continue
        text, index = part.text, 0
        while index < len(text):
            character = text[index]
            if character in "@!+?*" and text[index + 1 : index + 2] == "(":
                return None
            end = _set_end(text, index) if character == "[" else index + 1
            if character == "\\" and index + 1 < len(text):
                items.append(Item(text[index + 1], literal=True))
                end = index + 2
            elif character == "*":
                items.append(Item("*", star=True))
            else:
                items.append(
                    Item(text[index:end], literal=character not in "?[" or (character == "[" and end == index + 1))
                )
            index = end
    return tuple(items)


def _set_end(text: str, start: int) -> int:
    """Return the place after the bracket that closes the set; `start + 1` where none does."""
    index = start + 1
    if text[index : index + 1] in ("!", "^"):
        index += 1
    index += text[index : index + 1] == "]"
    while index < len(text) and text[index] != "]":
        if text.startswith("[:", index) and ":]" in text[index:]:
            index = text.index(":]", index) + 1
        index += 1
    return index + 1 if index < len(text) else start + 1


@cache
def _one(test: str, character: str) -> bool:
    if test == "?":
        return True
    inside = test[1:-1]
    negated = inside[:1] in ("!", "^")
    inside = inside[1:] if negated else inside
    matched, index = False, 0
    while index < len(inside):
        if inside.startswith("[:", index) and ":]" in inside[index:]:
            end = inside.index(":]", index)
            matched |= _CLASSES.get(inside[index + 2 : end], str.isalnum)(character)
            index = end + 2
        elif index + 2 < len(inside) and inside[index + 1] == "-":
            matched |= inside[index] <= character <= inside[index + 2]
            index += 3
        else:
            matched |= inside[index] == character
            index += 1
    return matched != negated


def matches(items: tuple[Item, ...], text: str, budget: Budget) -> bool:
    """Tell whether the whole text is of the pattern. Raises Exhausted."""
    at, mark, index = 0, -1, 0
    restart = tried = 0
    budget.spend(0.05 + len(text) / 64)
    while index < len(text):
        tried += 1
        if tried % 64 == 0:
            budget.spend()
        item = items[at] if at < len(items) else None
        if item is not None and item.star:
            mark, restart, at = at, index, at + 1
        elif item is not None and (item.test == text[index] if item.literal else _one(item.test, text[index])):
            at, index = at + 1, index + 1
        elif mark >= 0:
            restart += 1
            at, index = mark + 1, restart
        else:
            return False
    return all(item.star for item in items[at:])


def prefix(items: tuple[Item, ...], text: str, budget: Budget, *, longest: bool) -> int | None:
    """Return the length of the shortest or longest start of the text that matches; None where none does."""
    lengths = range(len(text), -1, -1) if longest else range(len(text) + 1)
    return next((length for length in lengths if matches(items, text[:length], budget)), None)


def suffix(items: tuple[Item, ...], text: str, budget: Budget, *, longest: bool) -> int | None:
    """Return where the shortest or longest end of the text that matches starts; None where none does."""
    starts = range(len(text) + 1) if longest else range(len(text), -1, -1)
    return next((start for start in starts if matches(items, text[start:], budget)), None)
