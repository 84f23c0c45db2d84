"""Files that cannot be read, of which a person says that they change nothing that the script itself says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import basename
from typing import Final, Self

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
