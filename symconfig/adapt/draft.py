"""Files being edited: every edit is tried in memory, read again, and kept only if it says exactly what it should."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from symconfig.errors import SymconfigError
from symconfig.launch.reading import Reading, Word
from symconfig.launch.text import Edit, Text, edited

# Reads the same configuration with these files' bytes instead of what the disk has.
Reader = Callable[[Mapping[str, bytes]], Reading]


@dataclass(frozen=True, slots=True)
class Said:
    """All that a configuration says, without where: what an edit may change, and what it may not."""

    settings: tuple[tuple[str, tuple[str, ...]], ...]
    launcher: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    deepspeed: Any
    unread: tuple[tuple[str, str], ...]

    @classmethod
    def by(cls, reading: Reading) -> Self:
        return cls(
            tuple((setting.name, tuple(map(_told, setting.values))) for setting in reading.settings),
            tuple(map(_told, reading.launcher)),
            tuple(sorted((name, _told(word)) for name, word in reading.environment.items())),
            reading.deepspeed.data if reading.deepspeed is not None else None,
            tuple((item.what, item.why) for item in reading.unread),
        )

    def setting(self, index: int, values: Sequence[str] | None) -> Self:
        """With other values for this option, or without it."""
        now = () if values is None else ((self.settings[index][0], tuple(values)),)
        return replace(self, settings=(*self.settings[:index], *now, *self.settings[index + 1 :]))

    def gained(self, name: str, values: Sequence[str], after: Self) -> bool:
        """Whether `after` says the same and this option once more, wherever it stands."""
        new = name, tuple(values)
        return any(after.setting(index, None) == self for index, item in enumerate(after.settings) if item == new)


def _told(word: Word) -> str:
    return word.text if word.unknown is None else f"{word.text}\0{word.unknown}"


@dataclass(frozen=True, slots=True)
class Draft:
    """reading: of the files as they are now. files: those that differ from the disk."""

    read: Reader
    reading: Reading
    files: Mapping[str, bytes]

    @property
    def texts(self) -> dict[str, Text]:
        return {text.file: text for text in self.reading.texts}

    @property
    def said(self) -> Said:
        return Said.by(self.reading)

    def tried(self, attempts: Iterable[Sequence[Edit]], right: Callable[[Said], bool]) -> Draft | None:
        """After the first of these edits that leaves a configuration that says what is `right`; None: none does."""
        for edits in attempts:
            after = self._after(edits)
            if after is not None and right(after.said):
                return after
        return None

    def _after(self, edits: Sequence[Edit]) -> Draft | None:
        texts = self.texts
        if not edits or any(edit.place.file not in texts for edit in edits):
            return None  # in a file that is not one of its own: a script's heredoc, a template
        try:
            changed = {file: edited(texts[file], edits) for file in {edit.place.file for edit in edits}}
            files = {**self.files, **changed}
            return Draft(self.read, self.read(files), files)
        except (SymconfigError, ValueError):  # it cannot be read any more, or the edits overlap
            return None
