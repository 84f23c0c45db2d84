"""Every field of Megatron's TransformerConfig, by version, with its default: what a --yaml-cfg file has to spell out.

The data file is read out of the source of each version, without running it, by
`python -m symconfig.render.megatron_fields VERSION=CHECKOUT …`.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from symconfig.frameworks.megatron import flags

DATA = Path(__file__).parent / "data" / "megatron_fields.json"
SOURCE = "megatron/core/{model_parallel_config,transformer/transformer_config}.py of github.com/NVIDIA/Megatron-LM"
# Section of the file, its class, where that is, and the fields that it takes over from the class before.
CLASSES = (
    ("model_parallel", "ModelParallelConfig", "model_parallel_config.py"),
    ("language_model", "TransformerConfig", "transformer/transformer_config.py"),
    ("latent", "MLATransformerConfig", "transformer/transformer_config.py"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """`section`: model_parallel, language_model, or latent (only of the class for multi-latent attention).

    default: None also where it is nothing that YAML can say: a function, a dtype.
    """

    name: str
    section: str
    default: Any


@cache
def fields(version: str) -> tuple[Field, ...]:
    """Return the fields of one version in their order. Raises InputError for a version that is not in the table."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    bit = 1 << data["versions"].index(flags.resolve(version))
    return tuple(
        Field(name, section, default) for section, name, rows in data["fields"] for mask, default in rows if mask & bit
    )


def read(checkout: Path) -> Iterator[Field]:
    """Yield the fields as the source of a checkout declares them."""
    for section, name, file in CLASSES:
        tree = ast.parse((checkout / "megatron" / "core" / file).read_text(encoding="utf-8"))
        (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        for node in definition.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield Field(node.target.id, section, _default(node.value))


def _default(node: ast.expr | None) -> Any:
    """Return a literal, or the default inside of `field(default=…)`."""
    if isinstance(node, ast.Call):
        words = {word.arg: word.value for word in node.keywords}
        made = words.get("default_factory")
        if isinstance(made, ast.Name) and made.id == "list":
            return []
        node = words.get("default")
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def build(by_version: dict[str, list[Field]]) -> str:
    """Return the data file's text: per field, the versions (as bits) that share a default."""
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for bit, table in enumerate(by_version.values()):
        for item in table:
            defaults = rows.setdefault((item.section, item.name), {})
            text = json.dumps(item.default)
            defaults[text] = defaults.get(text, 0) | 1 << bit
    lines = [
        f'["{section}", "{name}", [' + ", ".join(f"[{mask}, {text}]" for text, mask in defaults.items()) + "]]"
        for (section, name), defaults in rows.items()
    ]
    return (
        f'{{"source": {json.dumps(SOURCE)},\n"versions": {json.dumps(list(by_version))},\n"fields": [\n'
        + ",\n".join(lines)
        + "\n]}\n"
    )


def main(argv: Iterable[str]) -> int:
    """Rebuild the data file from checkouts, each named as VERSION=FOLDER."""
    named = dict(item.split("=", 1) for item in argv)
    by_version = {version: list(read(Path(named[version]))) for version in flags.versions() if version in named}
    DATA.write_text(build(by_version), encoding="utf-8")
    print(f"{DATA.name}: {len(by_version)} versions, {DATA.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
