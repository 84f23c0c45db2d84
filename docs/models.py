"""Every family of transformers with what can be done with it, into docs/models.md: `python docs/models.py`.

All of it is asked of the code: the import reads the default model of a family's class, and each target is asked what it
can be told of a plan of that model, before any search.
"""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from written import fill, table

from symconfig.descriptor.architectures.class_defaults import FILE
from symconfig.report.families import COLUMNS, READ_AS, cells, described, reason
from symconfig.runs.families import Family, every

PAGE = Path(__file__).with_suffix(".md")


def parts(version: str, found: Sequence[Family] | None = None) -> dict[str, str]:
    """Return the tables of families that are read, of what is in the way, and of those refused. version: of
    transformers."""
    families = every() if found is None else found
    read = [one for one in families if one.model is not None]
    head = ("family", "its default model", *COLUMNS)
    return {
        "version": version,
        "counts": f"{len(read)} of {len(families)}",
        "cells": textwrap.fill(READ_AS[0].upper() + READ_AS[1:], 120),
        "families": table(head, ((f"`{one.name}`", described(one), *cells(one)) for one in read)),
        "ways": table(("what a target cannot be told", "target", "families"), _ways(read)),
        "refused": table(("family", "why"), ((f"`{one.name}`", reason(one)) for one in families if one.model is None)),
    }


def _ways(families: Sequence[Family]) -> Iterator[tuple[str, str, str]]:
    """Yield a line for each reason, with the kinds of target and the families that it is a reason for."""
    ways: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in families:
        for column, names in COLUMNS.items():
            for problem in one.cannot.get(names[0], ()):
                hand = " (by hand)" if problem.edit else ""
                ways[f"{problem.field}: {problem.what}{hand}"][column].append(f"`{one.name}`")
    for what, columns in sorted(ways.items(), key=lambda way: (-sum(map(len, way[1].values())), way[0])):
        alike: dict[str, list[str]] = defaultdict(list)
        for column, names in columns.items():
            alike[", ".join(names)].append(column)
        for names, among in alike.items():
            yield what, ", ".join(among), names


def main() -> None:
    """Write the page."""
    version = json.loads(FILE.read_text(encoding="utf-8"))["version"]
    fill(PAGE, parts(version))


if __name__ == "__main__":
    main()
