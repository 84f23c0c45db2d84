"""What a reading of bash finds on its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from symconfig.existing.launch.assumed import NOTHING_HARMLESS, Harmless
from symconfig.existing.launch.bash.shell import Cover
from symconfig.existing.launch.bash.values import Field, Parts
from symconfig.existing.launch.reading import Hides, Unread
from symconfig.existing.launch.text import Place, Text

SHOWN = 80  # characters of the source in a message
MESSAGES = 200  # of one script


class Leave(Exception):
    """`break`, `continue`, `return` or `exit`. bad: with an error status; None: not known."""

    def __init__(self, kind: str, bad: bool | None = False) -> None:
        super().__init__(kind)
        self.kind = kind
        self.bad = bad


@dataclass(frozen=True, slots=True)
class Command:
    """A program that the script starts. maybe: it runs only under a condition that is not known, and why.

    outer: the first words that belong to what starts the shell which it stands in, `docker exec box` of
    `docker exec box bash -c '...'`.
    """

    words: tuple[Field, ...]
    outer: int
    environment: dict[str, Parts]
    files: dict[str, Parts]
    place: Place
    maybe: str | None


@dataclass
class Log:
    """The reading's notes. aside: programs that prepare, or whose output is all that is wanted. stops: conditions of
    checks that do not pass. assumed: files of which a person says that they change nothing. covers: code that was not
    read, in its order.
    """

    texts: list[Text]
    folder: Path | None
    commands: list[Command] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    aside: list[tuple[Field, ...]] = field(default_factory=list)
    stops: list[Place] = field(default_factory=list)
    assumed: Harmless = NOTHING_HARMLESS
    covers: list[Cover] = field(default_factory=list)

    def harmless(self, words: str) -> bool:
        return self.assumed.names(words)

    def written(self, place: Place) -> str:
        """Return what stands at a place; empty where it is in no file."""
        return next((text.at(place) for text in self.texts if text.file == place.file), "")

    def add(self, place: Place, what: str, why: str, hides: Hides = Hides.OPTIONS, *, assumed: bool = False) -> None:
        item = Unread(place, shortened(what), why, hides, assumed=assumed)
        if item not in self.unread and len(self.unread) < MESSAGES:
            self.unread.append(item)


def shortened(what: str) -> str:
    line = " ".join(what.replace("\\\n", " ").split())
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."
