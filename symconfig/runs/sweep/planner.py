"""Which planner this is: two machines, or two days, give one row only if this says the same on both."""

from __future__ import annotations

import hashlib
from functools import cache

from symconfig.install import VERSION
from symconfig.resources import PACKAGE

# What decides what is planned; the constants of a cluster are in its descriptor, and so in a row's id.
PARTS = (
    "descriptor",
    "graph",
    "schedule",
    "cost",
    "solve",
    "render",
    "runs/sweep/columns.py",
    "runs/sweep/task.py",
    "plans",
    "frameworks",
    "units.py",
)
ENDINGS = (".py", ".json")
LETTERS = 16


@cache
def planner() -> str:
    """Return the version and a digest of the code and constants that decide plans. Cached."""
    paths = {path for name in PARTS for path in (PACKAGE / name, *(PACKAGE / name).rglob("*"))}
    digest = hashlib.sha256()
    for path in sorted(paths):
        if path.suffix in ENDINGS:
            digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return f"{VERSION}+{digest.hexdigest()[:LETTERS]}"
