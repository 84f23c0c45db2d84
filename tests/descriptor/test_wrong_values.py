"""config.json with a wrong value in any place: it is read, or refused in sentences; it never breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.huggingface import import_config
from symconfig.errors import InputError

CONFIGS = Path(__file__).with_name("configs")
WRONG: tuple[Any, ...] = (
    None, [], {}, "", 0, -1, True, "x", 1e400, float("nan"), [1], [[]], [{}], {"a": 1}, 10**400, "\ud800",
)  # fmt: skip
MORE = ("model_type", "architectures", "layer_types", "rope_scaling", "quantization_config", "text_config", "auto_map")


def _paths(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))


def _with(config: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    name, *rest = path
    return {**config, name: _with(config[name], rest, value) if rest else value}


@pytest.mark.parametrize("file", ["llama2-13b", "deepseek-v3", "gpt-oss-120b"])
def test_a_wrong_value_anywhere_is_refused_or_read(file: str) -> None:
    config = json.loads((CONFIGS / f"{file}.json").read_text())
    for path in {*_paths(config), *((name,) for name in MORE)}:
        for value in WRONG:
            with suppress(InputError):
                import_config(_with(config, path, value), "config.json", None)
