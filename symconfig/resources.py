"""Where the package, its data (beside it in a checkout, inside it in a wheel) and the user's cache are."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent


@cache
def data_dir(name: str) -> Path:
    """The folder `templates` or `model_zoo`. Raises FileNotFoundError on a broken installation."""
    package = PACKAGE.resolve()
    for candidate in (package.parent / name, package / "_data" / name):
        if candidate.is_dir() and (candidate.parent != package.parent or (package.parent / "pyproject.toml").exists()):
            return candidate
    raise FileNotFoundError(f"symconfig's data folder {name!r} is missing; reinstall the package")


def cache_dir() -> Path | None:
    """Return symconfig's folder in this user's cache, by XDG's rule; it may not be there.

    None for a user without a home, as in some containers.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # no HOME, and nobody of this number in the list of users
        return None
    return root / "symconfig"
