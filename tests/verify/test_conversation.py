"""Processes with frameworks read and write UTF-8, whatever the locale of the person is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from symconfig.verify.conversation import Json, ask, converse

# Fails in an ASCII locale, as torch does, which reads files of its own in the locale's encoding.
SCRIPT = """
import json, sys
print(json.dumps({"ok": True, "read": open("text").read(), "asked": json.load(sys.stdin)["text"]}))
print("of a compiler: \\udce9", file=sys.stderr)
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(autouse=True)
def in_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("größe", encoding="utf-8")
    (tmp_path / "reading.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in ASCII.items():
        monkeypatch.setenv(name, value)


def test_one_question() -> None:
    assert ask("it", "reading", {"text": "模型"}, 60) == {"ok": True, "read": "größe", "asked": "模型"}


def test_a_conversation() -> None:
    heard: list[Json] = []
    how, _ = converse(Path("reading.py"), {"text": "模型"}, dict(os.environ), (60, 60), heard.append)
    assert (heard, how) == ([{"ok": True, "read": "größe", "asked": "模型"}], "ended with status 0")


def test_a_process_that_says_nothing_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "sleeping.py").write_text("import time\ntime.sleep(600)\n")
    how, _ = converse(Path("sleeping.py"), {}, dict(os.environ), (0.5, 60), lambda line: None)
    assert how == "did not answer within 0 s"
