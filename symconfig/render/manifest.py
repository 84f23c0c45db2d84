"""manifest.json: which files were written from a plan, for what, and what was in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from symconfig.render.files import File, Files
from symconfig.render.overlay import digest

NAME = "manifest.json"
SCHEMA = "symconfig.files/1"


def manifest(files: Files, target: str, launchers: Sequence[str], templates: Path | None) -> File:
    """The SHA-256 of every file, and what they were asked for with."""
    data = {
        "schema": SCHEMA,
        "target": target,
        "launchers": list(launchers),
        "templates": digest(templates),
        "files": {item.path: hashlib.sha256(item.text.encode()).hexdigest() for item in files},
    }
    return File(NAME, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
