"""Write Megatron-LM's options by version into symconfig: `python -m tools flags FOLDER`.

The folder holds a JSON dump of Megatron's own argument parser for each version, VERSION.json. From core_v0.16 on most
options are generated from dataclasses, so the source text alone does not show them.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from symconfig.frameworks.megatron.flags import DATA

SOURCE = "argument parser of github.com/NVIDIA/Megatron-LM at each tag; main is of August 2026, at d98e8a64"
_KINDS = {
    "_StoreAction": "store",
    "_StoreTrueAction": "true",
    "_StoreFalseAction": "false",
    "BooleanOptionalAction": "optional",
}


def _spec(entry: dict[str, Any]) -> tuple[str, str | None, int | str | None, tuple[str, ...]]:
    """Return kind, type, nargs and choices of one dumped option, without what the dump cannot tell."""
    type_ = entry.get("type")
    choices = tuple(choice.removeprefix("AttnBackend.") for choice in entry.get("choices", ()))
    if type_ == "enum_type_handler" and choices[:1] == ("1",):
        choices = ()  # signals are given by name, the dump prints numbers
    return _KINDS[entry["kind"]], type_, entry.get("nargs"), choices


def build(tables: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Write the data file's text: per option, the versions (as bits) that share a spec, a default and a dest."""
    specs: dict[tuple[Any, ...], int] = {}
    rows: dict[str, dict[tuple[Any, ...], int]] = {}
    for bit, table in enumerate(tables.values()):
        for name, entry in table.items():
            dest = [] if entry["dest"] == name.lstrip("-").replace("-", "_") else [entry["dest"]]
            key = (specs.setdefault(_spec(entry), len(specs)), entry["default"], *dest)
            rows.setdefault(name, {}).setdefault(key, 0)
            rows[name][key] |= 1 << bit
    flag_lines = [
        f"{json.dumps(name)}: {json.dumps([[mask, *key] for key, mask in rows[name].items()])}" for name in sorted(rows)
    ]
    spec_lines = [json.dumps(list(spec)) for spec in specs]
    return (
        f'{{"source": {json.dumps(SOURCE)},\n"versions": {json.dumps(list(tables))},\n"specs": [\n'
        + ",\n".join(spec_lines)
        + '\n],\n"flags": {\n'
        + ",\n".join(flag_lines)
        + "\n}}\n"
    )


def _order(version: str) -> tuple[bool, tuple[int, ...]]:
    return version == "main", tuple(map(int, re.findall(r"\d+", version)))


def main() -> None:
    """Rebuild the data file from a folder of dumps named <version>.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    source = parser.parse_args().folder
    files = {re.sub("^dev.*", "main", path.stem): path for path in source.glob("*.json")}
    tables = {name: json.loads(files[name].read_text(encoding="utf-8")) for name in sorted(files, key=_order)}
    DATA.write_text(build(tables), encoding="utf-8")
    print(f"{DATA.name}: {len(tables)} versions, {DATA.stat().st_size} bytes")
