"""Every launcher with its settings, into docs/launchers.md: `python docs/launchers.py`."""

from __future__ import annotations

from pathlib import Path

from written import fill, table

from symconfig.render import every_launcher
from symconfig.render.target import Source

PAGE = Path(__file__).with_suffix(".md")


def parts() -> dict[str, str]:
    """Return what each launcher writes, with its settings."""
    return {source.name: _section(source) for source in every_launcher().values()}


def _section(source: Source) -> str:
    rows = (
        (f"`{one.name}`", one.does, f"`{one.default}`" if one.default is not None else "") for one in source.settings
    )
    settings = "\n" + table(("setting", "is", "default"), rows) if source.settings else ""
    return f"Writes {source.does}.\n{settings}"


if __name__ == "__main__":
    fill(PAGE, parts())
