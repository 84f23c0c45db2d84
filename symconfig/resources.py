"""Where the package and its data folders are: the data lie beside it in a checkout, inside it in a wheel."""

from __future__ import annotations

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
