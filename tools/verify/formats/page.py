"""docs/evidence/formats.md: the tables of what every format's real parser accepted, and of what is refused and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tools.verify.formats.results import Outcome, Result, counts
from tools.verify.formats.zoo import CLUSTER

HEAD = """# Every format, held against its real parser

Written by `python -m tools verify formats`. Each format is rendered for plans of two kinds and read by the program that
a team runs it with, and what that program understood is compared with the plan. What a format cannot say is refused
with all reasons; nothing is left out in silence. The formats of Megatron-LM and DeepSpeed themselves: `python -m tools
verify zoo`.

| format | read with |
|---|---|
"""
ZOO = f"""
## Every zoo model, planned for the format

`symconfig plan --target FORMAT` searches only what the format can say. Every model of the zoo, on the fewest {CLUSTER}
GPUs that hold it so; for a launcher, planned for the model's own framework.

| format | models | accepted | values compared | no such plan | refused by the parser |
|---|---|---|---|---|---|
"""
SPREAD = """
## A spread of plans

Plans with every kind of choice (`tools/verify/formats/spread.py`), made for Megatron-LM or DeepSpeed and not for the
format: what it has no words for is refused, as it must be.

| format | plans | accepted | values compared | refused by symconfig | refused by the parser |
|---|---|---|---|---|---|
"""
WRONG = """
## Refused by the parsers

| format | plan | the parser says |
|---|---|---|
"""


def page(results: Mapping[str, Result]) -> str:
    zoo = {name: result.zoo for name, result in results.items()}
    spread = {name: result.outcomes for name, result in results.items()}
    text = HEAD + "".join(_versions(name, result) for name, result in results.items())
    text += ZOO + "".join(_counted(zoo)) + _refused(zoo, "models")
    text += SPREAD + "".join(_counted(spread)) + _refused(spread, "plans")
    wrong = "".join(
        _row(name, item.plan, " ".join(item.said))
        for part in (zoo, spread)
        for name, outcomes in part.items()
        for item in outcomes
        if item.said
    )
    return text + (WRONG + wrong if wrong else "")


def _versions(name: str, result: Result) -> str:
    return _row(name, ", ".join(f"`{pin}`" for pin in result.versions) or "the packages of `make test`")


def _counted(every: Mapping[str, tuple[Outcome, ...]]) -> Iterable[str]:
    return (_row(name, *map(str, counts(outcomes))) for name, outcomes in every.items() if outcomes)


def _refused(every: Mapping[str, tuple[Outcome, ...]], of: str) -> str:
    """A table of symconfig's reasons, each once for all formats in which it holds for the same plans."""
    plans: dict[tuple[str, str], list[str]] = {}
    for name, outcomes in every.items():
        for item in outcomes:
            for reason in item.refused:
                plans.setdefault((reason, name), []).append(item.plan)
    formats: dict[tuple[str, str], list[str]] = {}
    for (reason, name), found in plans.items():
        formats.setdefault((reason, ", ".join(found)), []).append(name)
    rows = "".join(_row(reason, ", ".join(names), found) for (reason, found), names in formats.items())
    return f"\n| refused because | formats | {of} |\n|---|---|---|\n{rows}" if rows else ""


def _row(*cells: str) -> str:
    escaped = (" ".join(cell.replace("|", r"\|").split()) for cell in cells)
    return f"| {' | '.join(escaped)} |\n"
