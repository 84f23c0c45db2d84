"""The corpus: launch configurations in the styles of public ones, and what is expected of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CORPUS = Path(__file__).parent / "corpus"
EXPECTED = CORPUS / "expected.yaml"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One way to start one file; the head of expected.yaml says what the fields mean. None: nothing is expected."""

    file: str
    style: str
    extra: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    format: str | None = None
    program: str | None = None
    gpus: int | None = None
    recipe: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    parallel: Mapping[str, int] = field(default_factory=dict)
    batch: Mapping[str, int] = field(default_factory=dict)
    zero: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    unknown_values: tuple[str, ...] = ()
    complete: bool | None = None
    unread: Mapping[int, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    wrong: str | None = None
    refused: str | None = None
    predicted: bool | None = None
    exit: int | None = None
    says: frozenset[str] = frozenset()  # the fields that are given

    @property
    def path(self) -> Path:
        return CORPUS / self.file

    def __str__(self) -> str:
        return " ".join((self.file, *self.extra, *(f"{name}={value}" for name, value in self.variables.items())))


@cache
def cases() -> tuple[Case, ...]:
    """In the file's order. Raises TypeError for a field that there is not."""
    return tuple(_case(entry) for entry in yaml.safe_load(EXPECTED.read_text()))


def _case(entry: Mapping[str, Any]) -> Case:
    lists = {item.name for item in fields(Case) if str(item.type).startswith("tuple")}
    values: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in entry.items()}
    return Case(**values, says=frozenset(entry))
