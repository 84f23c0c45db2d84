"""One value of a configuration that is a tree: its path, what it is, and the words that an option would get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.document import KeyPath
from symconfig.existing.launch.reading import Piece, Tree, Word
from symconfig.existing.launch.text import Place


@dataclass(frozen=True, slots=True)
class Entry:
    """A leaf, or a list of leaves.

    path: ("model", "tensor_model_parallel_size"). value: as JSON knows it; None: nothing is said. words: one, or one
    for each item of a list. place: from the key to the end of the value. removed: the key is taken away (hydra's ~).
    """

    path: tuple[str, ...]
    value: Any
    words: tuple[Word, ...]
    place: Place
    spelled: str
    removed: bool = False

    @property
    def unknown(self) -> str | None:
        return next((word.unknown for word in self.words if word.unknown), None)


def entries(tree: Tree, at: KeyPath = ()) -> Iterator[Entry]:
    """Yield all leaves of a tree, or of what stands at a path of it, in their order."""
    yield from _entries(tree, at, (), tree.get(*at))


def _entries(tree: Tree, at: KeyPath, path: tuple[str, ...], value: Any) -> Iterator[Entry]:
    if isinstance(value, dict) and not (value.get("_call_") is False and isinstance(value.get("_target_"), str)):
        for key, inner in value.items():
            yield from _entries(tree, at, (*path, key), inner)
        return
    here = (*at, *path)
    if isinstance(value, dict):
        here, value = (*here, "_target_"), value["_target_"]
    span = tree.spans[here]
    start = span.key or span.value
    place = Place(start.file, start.start, max(start.end, span.value.end), start.line, start.column)
    yield Entry(path, value, tuple(_words(tree, here, value)), place, ".".join(str(part) for part in (*at, *path)))


def _words(tree: Tree, path: KeyPath, value: Any) -> Iterator[Word]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, list | dict):
                yield word(tree, (*path, index))
    elif value is not None:
        yield word(tree, path)


def word(tree: Tree, path: KeyPath) -> Word:
    """Return a scalar as the program gets it: text as it is written, without quotes."""
    place = tree.spans[path].value
    value, written = tree.get(*path), tree.text.at(place)
    text = written if not isinstance(value, str) and written[:1] not in "*&!\"'|>" else spoken(value)
    if text == written:
        return Word.of(text, place, literal=True)
    if written[:1] in "\"'" and written[1:-1] == text:
        inner = Place(place.file, place.start + 1, place.end - 1, place.line, place.column + 1)
        return Word((Piece(text, inner),), place)
    return Word.of(text, place)


def spoken(value: Any) -> str:
    """Return a value as a word of a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(spoken(item) for item in value) + "]"
    return str(value)
