"""What came of every plan in every format, kept as JSON beside the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

DOCS = Path(__file__).resolve().parents[2] / "docs"
HEAD = """# Every format, held against its real parser

Written by `make verify-formats`. Each format is rendered for a spread of plans (`tests/formats/spread.py`) and read by
the program that a team runs it with, and what that program understood is compared with the plan. What a format cannot
say is refused with all reasons; nothing is left out in silence.

| format | plans | accepted | values compared | refused by symconfig | refused by the parser |
|---|---|---|---|---|---|
"""


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


@dataclass(frozen=True)
class Result:
    """All plans in one format. versions: the exact requirements that were installed."""

    versions: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """The parser takes all that is rendered, and something is."""
        return not any(item.said for item in self.outcomes) and any(item.accepted for item in self.outcomes)

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Plans, those that are accepted, values compared in these, refused by symconfig, refused by the parser."""
        accepted = [item for item in self.outcomes if item.accepted]
        return (len(self.outcomes), len(accepted), sum(item.compared for item in accepted),
                sum(bool(item.refused) for item in self.outcomes), sum(bool(item.said) for item in self.outcomes))

    def __str__(self) -> str:
        plans, accepted, compared, refused, wrong = self.counts
        return (f"{accepted} of {plans} plans accepted ({compared} values compared), {refused} refused by symconfig, "
                f"{wrong} refused by the parser")


_READ = TypeAdapter(dict[str, Result])


def page(results: Mapping[str, Result]) -> str:
    """docs/formats.md."""
    text = HEAD
    for name, result in results.items():
        text += f"| [{name}](#{name}) | {' | '.join(map(str, result.counts))} |\n"
    for name, result in results.items():
        versions = ", ".join(f"`{pin}`" for pin in result.versions) or "the packages of `make test`"
        text += f"\n## {name}\n\nRead with {versions}.\n\n"
        text += "".join(f"- {item.plan}: {_said(item)}\n" for item in result.outcomes)
    return text


def _said(item: Outcome) -> str:
    if item.accepted:
        return f"accepted, {item.compared} values"
    return f"refused: {' '.join(item.refused)}" if item.refused else f"**refused by the parser**: {' '.join(item.said)}"


def record(results: Mapping[str, Result], known: Collection[str], docs: Path = DOCS) -> None:
    """Put these formats' results beside those of the other `known` ones, and write the page anew."""
    kept = docs / "formats.json"
    before = _READ.validate_json(kept.read_bytes()) if kept.exists() else {}
    every = {name: result for name, result in sorted((before | dict(results)).items()) if name in known}
    data = {name: asdict(result) for name, result in every.items()}
    kept.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (docs / "formats.md").write_text(page(every), encoding="utf-8")
