"""The checks of `symconfig verify` as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.format import count, seconds
from symconfig.report.grid import Block, Grid

if TYPE_CHECKING:
    from symconfig.verify.checks import Check, Compared


def blocks(folder: Path, checks: Sequence[Check]) -> list[Block]:
    """Return a table of checks, one of compared numbers if there are any, and a summary of statuses."""
    rows = tuple((check.status, check.name, seconds(check.seconds), " ".join(check.detail.split())) for check in checks)
    counts = Counter(check.status for check in checks)
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no check applies"
    grid = Grid(("", "check", "s", "found"), rows, left=(0, 1, 3), title=f"Checks of {folder}")
    return [grid, *([numbers] if (numbers := _numbers(checks)).rows else []), f"{summary}.{_unchecked(checks)}"]


def _unchecked(checks: Sequence[Check]) -> str:
    """Return a sentence naming the skipped checks with their reasons; "" if none."""
    names: dict[str, str] = {}
    for check in checks:
        if check.status == "skipped":
            reason = " ".join(check.detail.split())
            names[reason] = f"{names[reason]}, {check.name}" if reason in names else check.name
    if not names:
        return ""
    return f" Not checked: {'; '.join(f'{name} ({reason})' for reason, name in names.items())}."


def _numbers(checks: Sequence[Check]) -> Grid:
    """Return the table of symconfig's and the framework's numbers; a check's name only stands in its first row."""
    rows = tuple(
        (
            "" if place else check.name,
            f"{pair.what}, bytes" if pair.unit == "bytes" else pair.what,
            count(pair.ours),
            count(pair.real),
            _difference(pair),
        )
        for check in checks
        for place, pair in enumerate(check.compared)
    )
    headers = ("built and compared", "of it", "symconfig", "framework", "difference")
    return Grid(headers, rows, left=(0, 1), title="Numbers of the real framework")


def _difference(pair: Compared) -> str:
    """Return the difference as text, for bytes also in percent of the framework's number; "0" if equal."""
    if pair.ours == pair.real:
        return "0"
    share = f" ({100 * pair.difference:+.2f} %)" if pair.unit == "bytes" and pair.real else ""
    return f"{pair.ours - pair.real:+,.0f}{share}"
