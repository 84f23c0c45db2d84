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

from symconfig.descriptor.architectures.class_defaults import FILE
from symconfig.report.families import COLUMNS, READ_AS, cells, described, reason
from symconfig.runs.families import TORCHTITAN, Family, every

PAGE = Path(__file__).with_suffix(".md")
INTRO = """# Models

A model is a `config.json`: `symconfig plan --model FOLDER` reads one, `symconfig import` writes it as a descriptor. It
is read by its structure: keys and defaults of a family are those of its class in transformers, and what its class
computes (how tokens are mixed, how positions are told, where norms stand) is written down once in
`symconfig/descriptor/architectures`. A key that may change the model and is not understood is refused by its name.

These are the decoder-only families of transformers {version}, {read} of {all} imported. `symconfig models --families`
prints the table, and `symconfig models --families NAME` says of one what is in the way of each target. A `config.json`
may say another model than its class's default one: it is asked for itself, before the search.

{read_as}

"""
WAY = """
## What is in the way

Of the default models, by target. The refusal of a plan says it with its numbers, and names the targets that can.

| what a target cannot be told | target | families |
|---|---|---|
"""
REFUSED = """
## Refused

| family | why |
|---|---|
"""


def page(version: str, found: Sequence[Family] | None = None) -> str:
    """Return docs/models.md. version: of transformers."""
    families = every() if found is None else found
    read = [one for one in families if one.model is not None]
    read_as = textwrap.fill(READ_AS[0].upper() + READ_AS[1:], 120)
    counts = {"version": version, "read": len(read), "all": len(families), "read_as": read_as}
    heads = ("family", "its default model", *COLUMNS)
    table = [
        _row(heads),
        "|" + "---|" * len(heads),
        *(_row((f"`{one.name}`", described(one), *cells(one))) for one in read),
    ]
    refused = [_row((f"`{one.name}`", reason(one))) for one in families if one.model is None]
    text = INTRO.format(**counts) + "\n".join(table) + "\n" + WAY + "".join(_ways(read))
    return text + (REFUSED + "\n".join(refused) + "\n" if refused else "")


def _ways(families: Sequence[Family]) -> Iterator[str]:
    """Yield a line for each reason, with the kinds of target and the families that it is a reason for."""
    ways: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in families:
        for column, names in COLUMNS.items():
            for problem in one.cannot.get(names[0], ()) if column != TORCHTITAN else ():
                hand = " (by hand)" if problem.edit else ""
                ways[f"{problem.field}: {problem.what}{hand}"][column].append(f"`{one.name}`")
    for what, columns in sorted(ways.items(), key=lambda way: (-sum(map(len, way[1].values())), way[0])):
        alike: dict[str, list[str]] = defaultdict(list)
        for column, names in columns.items():
            alike[", ".join(names)].append(column)
        for names, among in alike.items():
            yield _row((what, ", ".join(among), names)) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Write the page."""
    version = json.loads(FILE.read_text(encoding="utf-8"))["version"]
    PAGE.write_text(page(version), encoding="utf-8")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
