"""Plain words as options, for lists that come from no file of a person's: rendered ones, examples, tests."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.existing.launch.reading import Setting, Word
from symconfig.existing.launch.text import Place
from symconfig.frameworks.megatron.flags import is_option


def settings(words: Sequence[str], file: str) -> tuple[Setting, ...]:
    """Split words into options as argparse does. They have no place but the file: line and column are 0. Words before
    the first option belong to none.
    """
    place = Place(file, 0, 0, 0, 0)
    options: list[tuple[str, list[str], bool]] = []
    for word in words:
        if is_option(word):
            name, joined, value = word.partition("=")
            options.append((name, [value] if joined else [], bool(joined)))
        elif options:
            options[-1][1].append(word)
    return tuple(
        Setting(name, name, tuple(Word.of(value, place) for value in values), place, joined)
        for name, values, joined in options
    )
