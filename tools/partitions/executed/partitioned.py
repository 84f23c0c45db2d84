"""A file that trains a partitioned module, for `tests/solve/partition` and docs/evidence/trained.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.partitions.executed.build import Executed


@dataclass(frozen=True)
class Partitioned:
    """A module's file: its text, the table beside it, and what is to be said about them. source: its factory."""

    source: str
    executed: Executed

    def python(self, stem: str = "partitioned") -> str:
        """Return the Python file. stem: its name without .py, which the table has too."""
        from tools.partitions.executed.file import python

        return python(self.executed, self.source, stem)

    def table(self) -> str:
        """Return the JSON beside it."""
        from tools.partitions.executed.build import data
        from tools.partitions.executed.file import text

        return text(data(self.executed))

    def sentences(self) -> list[str]:
        """Return as sentences what runs otherwise than the solver chose, and what that costs."""
        from tools.partitions.executed.file import sentences

        return sentences(self.executed)
