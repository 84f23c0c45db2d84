"""Write generated pages and data anew: `python -m tools generate [NAME …]`, by default all.

A page is written between its markers (tools/pages.py). Data are files of symconfig that hold what a framework's own
classes say; they need the installed frameworks.
"""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from pathlib import Path

from tools.pages import DOCS, fill, filled

# Page -> its file, and the module whose function of the page's name returns its parts.
PAGES = {
    "rules": ("reference/rules.md", "reference"),
    "options": ("reference/options.md", "reference"),
    "launchers": ("reference/launchers.md", "reference"),
    "models": ("reference/models.md", "reference"),
    "rates": ("reference/rates.md", "reference"),
    "targets": ("reference/targets.md", "targets"),
    "rl": ("reference/post-training.md", "targets"),
    "rooms": ("contributing.md", "rooms"),
    "sweep": ("reference/tables.md", "planned"),
    "symbols": ("reference/symbols.md", "planned"),
    "adaptability": ("evidence/adaptability.md", "planned"),
    "checkpoints": ("evidence/checkpoints.md", "evidence"),
    "generation": ("evidence/generation.md", "evidence"),
    "trained": ("evidence/trained.md", "evidence"),
}
# Modules of this package, in the order in which one reads the other.
DATA = ("families", "modules", "keys", "published")


def parts(name: str) -> dict[str, str]:
    """Return what stands between the markers of a page, by the markers' names."""
    made: dict[str, str] = getattr(import_module(f"{__name__}.{PAGES[name][1]}"), name)()
    return made


def page(name: str) -> Path:
    """Return the file of a page."""
    return DOCS / PAGES[name][0]


def is_current(name: str) -> bool:
    """Return whether a page holds what would be written there now."""
    text = page(name).read_text(encoding="utf-8")
    return filled(text, parts(name)) == text


def main() -> None:
    """Write the data and pages that are named, or all: data first, for pages read them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*DATA, *PAGES))} (default: all)")
    names = parser.parse_args().names or [*DATA, *PAGES]
    if unknown := set(names) - {*DATA, *PAGES}:
        parser.error(f"nothing is named {', '.join(sorted(unknown))}; there are {', '.join((*DATA, *PAGES))}")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in sorted(names, key=[*DATA, *PAGES].index):
        if name in DATA:
            import_module(f"{__name__}.{name}").main()
        else:
            fill(page(name), parts(name))
