"""The Chromium that is on this machine, without any network, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

INSTALL = "apt-get install chromium && pip install -e '.[browser]'"
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")


@dataclass
class Seen:
    """An open page, its console messages, and its requests to other addresses."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def serious(self) -> list[Any]:
        """Return what axe finds that keeps people from reading the page."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright")
        found = axe.Axe().run(self.page, options={"resultTypes": ["violations"]}).response["violations"]
        return [(one["id"], one["nodes"][:3]) for one in found if one["impact"] in ("serious", "critical")]


@contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium. Skips the test where there is none, with the command that installs it."""
    playwright = pytest.importorskip("playwright.sync_api", reason=f"no browser to drive: {INSTALL}")
    program = next((path for name in _PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser on this machine: {INSTALL}")
    with playwright.sync_playwright() as run:
        started = run.chromium.launch(executable_path=program, args=list(_QUIET))
        try:
            yield started
        finally:
            started.close()


@contextmanager
def opened(started: Any, place: Path | str, **context: Any) -> Iterator[Seen]:
    """Open a file, offline, or an address."""
    made = started.new_context(
        offline=isinstance(place, Path), **{"viewport": {"width": 1280, "height": 900}, **context}
    )
    seen = Seen(made.new_page())
    seen.page.on("console", lambda message: seen.said.append(message.text))
    seen.page.on("pageerror", lambda error: seen.said.append(str(error)))
    seen.page.on("request", lambda asked: seen.asked.append(asked.url))
    try:
        seen.page.goto(place.as_uri() if isinstance(place, Path) else place)
        yield seen
    finally:
        made.close()
