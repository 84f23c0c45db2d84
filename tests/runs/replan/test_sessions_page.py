"""The page of plans made again has every session that its script has, as it is run."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_has_every_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    sessions = importlib.import_module("sessions")
    page = (DOCS / "replan.md").read_text(encoding="utf-8")
    assert page.startswith(sessions.INTRO.strip())
    for session in sessions.SESSIONS:
        assert f"## {session.title}\n" in page
        for command in session.commands:
            assert f"$ symconfig {command}\n" in page
