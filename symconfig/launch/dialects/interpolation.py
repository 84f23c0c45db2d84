"""`${model.hidden_size}` as OmegaConf means it, `${HOME}` as envsubst does: resolved in the file, never beyond it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from symconfig.descriptor.document import shorten
from symconfig.descriptor.yaml_strict import plain
from symconfig.launch.dialects.entry import Entry
from symconfig.launch.reading import Piece, Word
from symconfig.launch.text import Place

Path = tuple[str, ...]
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_SHELL_NAME = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_MISSING = "???"  # OmegaConf's mark of a value that must be given
# NeMo-Framework-Launcher, launcher_scripts/main.py, registers these.
_FUNCTIONS: dict[str, Callable[[list[int]], int]] = {
    "multiply": math.prod,
    "sum": sum,
    "divide_ceil": lambda numbers: -(-numbers[0] // numbers[1]),
    "divide_floor": lambda numbers: numbers[0] // numbers[1],
}
_MOST_STEPS = 20  # of references that lead to references


def interpolated(entries: Mapping[Path, Entry], variables: Mapping[str, str]) -> dict[Path, Entry]:
    """The same with every reference resolved that leads to another entry, or to a variable that is given. What does not
    is a word that is unknown.
    """
    return {path: _entry(entry, entries, variables, 0) for path, entry in entries.items()}


def _entry(entry: Entry, entries: Mapping[Path, Entry], variables: Mapping[str, str], steps: int) -> Entry:
    if not any("${" in word.text or word.text == _MISSING for word in entry.words):
        return entry

    def found(reference: str) -> Entry | Word:
        return _found(reference, entry, entries, variables, steps)

    whole = _REFERENCE.fullmatch(entry.words[0].text) if len(entry.words) == 1 else None
    if whole:
        other = found(whole[1])
        if isinstance(other, Entry):
            through = (f"${{{whole[1]}}}",)
            words = tuple(_through(word, through, entry.words[0].place) for word in other.words)
            return replace(entry, value=other.value, words=words)
    words = tuple(_word(word, found) for word in entry.words)
    value = entry.value if isinstance(entry.value, list) else _value(words[0])
    return replace(entry, value=value, words=words)


def _value(word: Word) -> object:
    try:
        return word.text if word.unknown else plain(word.text)
    except ValueError:
        return word.text


def _word(word: Word, found: Callable[[str], Entry | Word]) -> Word:
    if word.text == _MISSING:
        return Word((), word.place, "must be given on the command line and is not")
    pieces: tuple[Piece, ...] = (Piece(word.text),)
    for _ in range(_MOST_STEPS):  # the innermost first: ${multiply:${a},${b}}
        text = "".join(piece.text for piece in pieces)
        match = _REFERENCE.search(text)
        if match is None:
            break
        other = found(match[1])
        if isinstance(other, Entry):
            if len(other.words) != 1:
                return Word((), word.place, f"depends on {match[0]}, which is no single value")
            other = _through(other.words[0], (match[0],), word.place)
        if other.unknown:
            return Word((), word.place, other.unknown)
        pieces = (*_part(pieces, 0, match.start()), *other.pieces, *_part(pieces, match.end(), len(text)))
    else:
        return Word((), word.place, f"depends on {shorten(word.text)}, which is not worked out")
    return Word(pieces, word.place, word.unknown)


def _part(pieces: tuple[Piece, ...], start: int, end: int) -> Iterator[Piece]:
    """The characters [start, end). A piece that is cut has no place any more."""
    position = 0
    for piece in pieces:
        first, last = max(start - position, 0), min(end - position, len(piece.text))
        if first < last:
            whole = last - first == len(piece.text)
            yield piece if whole else replace(piece, text=piece.text[first:last], place=None)
        position += len(piece.text)


def _found(
    reference: str, entry: Entry, entries: Mapping[Path, Entry], variables: Mapping[str, str], steps: int
) -> Entry | Word:
    kind, colon, rest = reference.partition(":")
    place = entry.words[0].place
    if colon and kind in ("oc.env", "env"):
        name, has_default, default = (part.strip() for part in rest.partition(","))
        if name in variables:
            return Word((Piece(variables[name], None, (name,)),), place)
        if has_default:
            return Word((Piece(default.strip("'\""), None, (name,), name),), place)
        return Word((), place, f"depends on the environment variable {name}")
    if colon:
        known = _computed(kind, rest)
        if known is not None:
            return Word((Piece(known),), place)
        return Word((), place, f"depends on ${{{shorten(reference)}}}, which is not worked out")
    path = _absolute(reference.strip(), entry.path)
    other = entries.get(path) or entries.get(path[1:])  # NeMo-Framework-Launcher puts the file under `training`
    if other is None or steps >= _MOST_STEPS:
        why = "nothing in this file says" if other is None else "leads in a circle"
        return Word((), place, f"depends on ${{{shorten(reference)}}}, which {why}")
    return _entry(other, entries, variables, steps + 1)


def _computed(kind: str, rest: str) -> str | None:
    """What the NeMo launcher's own functions make of whole numbers."""
    try:
        numbers = [int(part) for part in rest.split(",")]
        return str(_FUNCTIONS[kind](numbers))
    except (KeyError, ValueError, ZeroDivisionError, IndexError):
        return None


def _absolute(reference: str, here: Path) -> Path:
    """`.x` is beside this entry, `..x` a level above."""
    up = len(reference) - len(reference.lstrip("."))
    base = here[: len(here) - up] if up else ()
    return (*base, *reference.lstrip(".").split("."))


def _through(word: Word, names: Path, place: Place) -> Word:
    pieces = tuple(replace(piece, variables=(*names, *piece.variables)) for piece in word.pieces)
    return Word(pieces, place, word.unknown)


def expanded(entry: Entry, variables: Mapping[str, Word]) -> Entry:
    """With the environment put in, as envsubst does before the file is read."""
    words = tuple(_shell_expanded(word, variables) for word in entry.words)
    if words == entry.words:
        return entry
    return replace(entry, words=words, value=entry.value if isinstance(entry.value, list) else _value(words[0]))


def _shell_expanded(word: Word, variables: Mapping[str, Word]) -> Word:
    """`$NAME` and `${NAME}` of a text that a shell gets: of variables that are known."""
    pieces: list[Piece] = []
    unknown = word.unknown
    done = 0
    for match in _SHELL_NAME.finditer(word.text):
        name = match[1] or match[2]
        got = variables.get(name)
        if got is None:
            unknown = unknown or f"depends on the environment variable {name}"
        else:
            unknown = unknown or got.unknown
            through = _through(got, (name,), word.place).pieces
        pieces += [Piece(word.text[done : match.start()]), *(through if got is not None else ())]
        done = match.end()
    if not done:
        return word
    return Word(tuple(piece for piece in (*pieces, Piece(word.text[done:])) if piece.text), word.place, unknown)
