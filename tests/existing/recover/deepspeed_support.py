"""A rendered or written DeepSpeed launch as a Reading, made by hand: no bash is read here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from symconfig.existing.launch.reading import Reading, Setting, Word, World
from symconfig.existing.launch.text import Place, Text
from symconfig.existing.launch.trees import parse_json


def settings(words: Sequence[str], file: str = "launch.sh") -> tuple[Setting, ...]:
    """`--name value ...` and `--name=value`, each on a line of its own."""
    found: list[Setting] = []
    for line, text in enumerate(words, 1):
        place = Place(file, 0, 0, line, 1)
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            values = (Word.of(value, place),) if equals else ()
            found.append(Setting(name, name, values, place, bool(equals)))
        else:
            last = found.pop()
            found.append(Setting(last.name, last.spelled, (*last.values, Word.of(text, place)), last.place))
    return tuple(found)


def reading(
    config: dict[str, Any] | str, words: Sequence[str] = (), gpus: int | None = None, model_config: str | None = None
) -> Reading:
    text = config if isinstance(config, str) else json.dumps(config, indent=2)
    tree = parse_json(Text("ds_config.json", text.encode()))
    return Reading(
        "bash" if words else "deepspeed",
        (Text("launch.sh", b""),) if words else (tree.text,),
        settings(words),
        deepspeed=tree,
        world=World(gpus),
        model_config=model_config,
    )
