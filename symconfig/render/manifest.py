"""manifest.json: which files were written from a plan, for what, and what was in them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from symconfig.format import json_text
from symconfig.render.files import File, Files
from symconfig.render.overlay import digest

NAME = "manifest.json"
SCHEMA = "symconfig.files/1"


def manifest(files: Files, target: str, launchers: Sequence[str], templates: Path | None) -> File:
    """Return the SHA-256 of every file, and the settings that they were made with."""
    data = {
        "schema": SCHEMA,
        "target": target,
        "launchers": list(launchers),
        "templates": digest(templates),
        "files": {item.path: hashlib.sha256(item.text.encode()).hexdigest() for item in files},
    }
    return File(NAME, json_text(data))
