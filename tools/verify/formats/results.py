"""What came of every plan in every format, kept as JSON beside the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from symconfig.errors import InfeasibleError
from tools.pages import EVIDENCE


@dataclass(frozen=True)
class Outcome:
    """One plan in one format. refused: our own reasons why it cannot be said; said: what the parser found wrong."""

    plan: str
    refused: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    compared: int = 0

    @property
    def accepted(self) -> bool:
        return not self.refused and not self.said


class Counts(NamedTuple):
    """Of some plans. compared: values, in the plans that are accepted; refused: by symconfig; wrong: by the parser."""

    plans: int
    accepted: int
    compared: int
    refused: int
    wrong: int

    def __str__(self) -> str:
        return (
            f"{self.accepted} of {self.plans} accepted ({self.compared} values compared), {self.refused} refused "
            f"by symconfig, {self.wrong} refused by the parser"
        )


@dataclass(frozen=True)
class Result:
    """All plans in one format. versions: the exact requirements that were installed; outcomes: of the spread; zoo: of
    every zoo model, planned for this format."""

    versions: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    zoo: tuple[Outcome, ...] = ()

    @property
    def passed(self) -> bool:
        """The parser takes all that is rendered, and something is."""
        every = (*self.outcomes, *self.zoo)
        return not any(item.said for item in every) and any(item.accepted for item in every)

    def __str__(self) -> str:
        return f"spread: {counts(self.outcomes)}; zoo: {counts(self.zoo)}"


def counts(outcomes: Collection[Outcome]) -> Counts:
    accepted = [item for item in outcomes if item.accepted]
    return Counts(
        len(outcomes),
        len(accepted),
        sum(item.compared for item in accepted),
        sum(bool(item.refused) for item in outcomes),
        sum(bool(item.said) for item in outcomes),
    )


def reasons(error: InfeasibleError) -> tuple[str, ...]:
    """Its sentences without what was got, so that plans which are refused for the same reason can be told together."""
    return tuple(str(replace(problem, got=None)) for problem in error.problems)


_READ = TypeAdapter(dict[str, Result])


def kept(docs: Path = EVIDENCE) -> dict[str, Result]:
    """What the last run of every format came to."""
    record = docs / "formats.json"
    return _READ.validate_json(record.read_bytes()) if record.exists() else {}


def keep(results: Mapping[str, Result], known: Collection[str], docs: Path = EVIDENCE) -> dict[str, Result]:
    """Put these formats' results beside those of the other `known` ones; all of them."""
    every = {name: result for name, result in sorted((kept(docs) | dict(results)).items()) if name in known}
    data = {name: asdict(result) for name, result in every.items()}
    (docs / "formats.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return every
