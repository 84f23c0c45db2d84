"""A partitioned module's file: what the rest of the program asks of this folder. torch is imported when it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.program.net import Net

if TYPE_CHECKING:
    from symconfig.solve.partition.executed.build import Executed


@dataclass(frozen=True)
class Partitioned:
    """A module's file: its text, the table beside it, and what is to be said about them. source: its factory."""

    source: str
    executed: Executed

    def python(self, stem: str = "partitioned") -> str:
        """Return the Python file. stem: its name without .py, which the table has too."""
        from symconfig.solve.partition.executed.file import python

        return python(self.executed, self.source, stem)

    def table(self) -> str:
        """Return the JSON beside it."""
        from symconfig.solve.partition.executed.build import data
        from symconfig.solve.partition.executed.file import text

        return text(data(self.executed))

    def sentences(self) -> list[str]:
        """Return as sentences what runs otherwise than the solver chose, and what that costs."""
        from symconfig.solve.partition.executed.file import sentences

        return sentences(self.executed)


def partitioned(source: str, net: Net, axes: Sequence[Axis], rows: Rows) -> Partitioned:
    """Return the file of the module that a factory makes, under a strategy of its program."""
    from symconfig.solve.partition.executed.build import executed, trace

    return Partitioned(source, executed(trace(source), net, axes, rows))
