"""What is said of a checkpoint before another plan: whether it loads, what to add, what is lost, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal


class Verdict(StrEnum):
    """Verdicts from the best to the worst."""

    AS_IS = "as it is"
    RESHARDED = "resharded on load"
    CONVERTED = "converted first"
    WEIGHTS = "weights only"
    NO = "no"

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)

    @property
    def unconverted(self) -> bool:
        """Return whether the checkpoint loads completely without a conversion."""
        return self.rank <= Verdict.RESHARDED.rank


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.AS_IS)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do. `words`: of `kind` options, what the run of `run` is started with besides its own; of a command,
    the command; of config, keys of the DeepSpeed JSON as JSON. `CHECKPOINT` in them stands for the folder.

    run: old: with the old plan's files and release; new: with the new plan's; between: neither.
    """

    run: Literal["old", "between", "new"]
    kind: Literal["options", "command"]
    words: str
    does: str


@dataclass(frozen=True, slots=True)
class Reason:
    """A sentence and its source: file@release, or how it was measured."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Loadable:
    """Whether a run of one plan can load another plan's checkpoint.

    kind: the checkpoint's, a name of `kinds`. how: steps in order. otherwise, otherwise_how: verdict and steps without
    the conversion that `verdict` requires. lost: what restarts in the new run. reasons: the worst first.
    """

    kind: str
    verdict: Verdict
    how: tuple[Step, ...]
    otherwise: Verdict
    otherwise_how: tuple[Step, ...]
    lost: tuple[str, ...]
    reasons: tuple[Reason, ...]

    @property
    def loads(self) -> bool:
        """Return whether at least the weights load."""
        return self.verdict is not Verdict.NO

    def options(self, run: Literal["old", "new"]) -> tuple[str, ...]:
        """Return the words of the steps' options for the old or the new run, besides its own."""
        return tuple(
            word for step in self.how if step.run == run and step.kind == "options" for word in step.words.split()
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
