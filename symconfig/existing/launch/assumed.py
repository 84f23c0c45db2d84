"""What a person says of files that cannot be read: a configuration as it is if they change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from posixpath import basename
from typing import Final, Self

from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Assumption, Hidden, Hides, Reading, Unread

OPTION = "--assume-harmless"
EVERYTHING: Final = "all"
_APART = re.compile(r"[\s\"'`()<>;|&:,]+")  # what stands between the words of a message


@dataclass(frozen=True, slots=True)
class Harmless:
    """files: by the names that the script or a person uses for them. everything: all that is not read."""

    files: tuple[str, ...] = ()
    everything: bool = False

    @classmethod
    def of(cls, names: Sequence[str]) -> Self:
        return cls(tuple(name for name in names if name != EVERYTHING), EVERYTHING in names)

    def __bool__(self) -> bool:
        return self.everything or bool(self.files)

    def names(self, sentence: str) -> bool:
        """Tell whether what is said of an unread place names one of the files."""
        words = [word for word in _APART.split(sentence) if word]
        return self.everything or any(_same(file, word) for file in self.files for word in words)


def _same(file: str, word: str) -> bool:
    """Tell whether both may be one file: a folder that only the run knows, as `$SITE/env.sh` has it, is any."""
    if file == word or basename(file) != basename(word):
        return file == word
    known = "$" not in word and "/" in file and "/" in word
    return not known or file.endswith(f"/{word.removeprefix('./')}") or word.endswith(f"/{file.removeprefix('./')}")


NOTHING_HARMLESS: Final = Harmless()


def assuming(read: Callable[[Harmless], Reading], names: Sequence[str]) -> Reading:
    """Read a configuration, and take it that the named files change nothing that it says itself.

    names: files as the configuration or a person names them, or "all". Values that stay hidden get the one that the
    script says. Raises InputError for names of nothing that was not read.
    """
    plain = read(NOTHING_HARMLESS)
    if wrong := list(_idle(plain, names)):
        raise InputError(wrong)
    if not names and not plain.hidden:
        return plain
    every = _harmless(read(Harmless(everything=True)), Harmless(everything=True))
    if not names:
        return replace(plain, hidden=tuple(_compared(plain.hidden, every)))
    harmless = Harmless.of(names)
    reading = _harmless(read(harmless), harmless)
    return replace(
        reading,
        hidden=tuple(_compared(reading.hidden, every)),
        assumptions=tuple(_assumption(item, plain) for item in reading.unread if item.assumed),
    )


def _idle(plain: Reading, names: Sequence[str]) -> Iterator[Problem]:
    """Yield the names of nothing that was not read."""
    dark = [item for item in plain.unread if item.matters]
    need = ", ".join(dict.fromkeys(item.what for item in dark)) or None
    for name in names:
        if not dark:
            yield Problem(
                "has nothing to assume: all of the configuration was read", plain.file, field=OPTION, got=name
            )
        elif name != EVERYTHING and not any(Harmless((name,)).names(f"{item.what} {item.why}") for item in dark):
            yield Problem(
                "is none of the files that could not be read",
                plain.file,
                field=OPTION,
                got=name,
                need=f"a file of {need}, or {EVERYTHING}",
            )


def _harmless(reading: Reading, harmless: Harmless) -> Reading:
    """Return the reading without what the named files could bring as options."""
    unread = tuple(
        replace(item, hides=Hides.NOTHING, assumed=True)
        if item.assumed or (item.matters and harmless.names(f"{item.what} {item.why}"))
        else item
        for item in reading.unread
    )
    still = {item.place for item in unread if item.options and item.matters}
    return replace(reading, unread=unread, possible=tuple(one for one in reading.possible if one.place in still))


def _compared(hidden: Sequence[Hidden], every: Reading) -> Iterator[Hidden]:
    """Yield each hidden value with the one that it has if nothing that is not read changes it."""
    words = {(name, word.place): word for name, word in every.words()}
    for item in hidden:
        word = words.get((item.option, item.place))
        yield item if word is None or word.unknown else replace(item, otherwise=word.text)


def _assumption(item: Unread, plain: Reading) -> Assumption:
    return Assumption(item.place, item.what, plain.variables_of(item), item.options)
