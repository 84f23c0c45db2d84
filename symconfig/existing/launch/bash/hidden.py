"""Values that code which is not read may set: which variable, in which option, at which line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from symconfig.existing.launch.bash.shell import Cover
from symconfig.existing.launch.reading import Hidden, Reading
from symconfig.existing.launch.text import Place

_VARIABLE = re.compile(r"depends on \$(\w+), which ([^;]*)")


def hidden(reading: Reading, covers: Sequence[Cover]) -> tuple[Hidden, ...]:
    """Return every value of the program, its launcher and its environment that a cover may set, once."""
    names = (
        Hidden(cover.place, name, option, place)
        for option, place, why in _dark(reading)
        for name, text in _VARIABLE.findall(why)
        for cover in covers
        if str(cover) in text
    )
    return tuple(dict.fromkeys(names))


def _dark(reading: Reading) -> Iterator[tuple[str, Place, str]]:
    """Yield whatever is not known: its name, its place and why."""
    yield from ((name, word.place, word.unknown) for name, word in reading.words() if word.unknown)
    yield from ((item.what, item.place, item.why) for item in reading.unread if item.options)
