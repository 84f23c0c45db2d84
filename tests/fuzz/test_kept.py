"""Inputs that once broke a reader, and one of each kind: held to the oracle of `make fuzz`, without atheris."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import KEPT
from tests.fuzz.targets import TARGETS, hold


@pytest.mark.parametrize("path", sorted(KEPT.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_broke_a_reader_is_read_or_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMCONFIG_DEBUG", "1")  # a defect is raised, with where it is
    hold(path.parent.name, path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read_or_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMCONFIG_DEBUG", "1")
    for seed in (b"", b"{}", b"\xff", *TARGETS[name].seeds()):
        hold(name, seed)


def test_every_kept_input_is_a_targets() -> None:
    assert {path.name for path in KEPT.iterdir()} <= set(TARGETS)
