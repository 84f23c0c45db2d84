"""A browser that is on this machine, without any network, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

INSTALL = "apt-get install chromium && pip install playwright axe-playwright-python"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Seen:
    """An open page, and what it said and asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def run(self, script: str) -> Any:
        """Return what a script says in the page."""
        return self.page.evaluate(script)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())


@contextmanager
def browser() -> Iterator[Any]:
    """Start the browser. Skips the test where there is none, with the command that installs one."""
    playwright = pytest.importorskip("playwright.sync_api", reason=f"no browser to drive: {INSTALL}")
    program = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no Chromium on this machine: {INSTALL}")
    with playwright.sync_playwright() as run:
        started = run.chromium.launch(executable_path=program, args=list(_QUIET))
        try:
            yield started
        finally:
            started.close()


@contextmanager
def opened(started: Any, file: Path, **context: Any) -> Iterator[Seen]:
    """Open a file as a page, offline, and wait until it is drawn."""
    given = {"viewport": {"width": 1280, "height": 900}, **context}
    made = started.new_context(offline=True, **given)
    seen = Seen(made.new_page())
    seen.page.on("console", lambda message: seen.said.append(message.text))
    seen.page.on("pageerror", lambda error: seen.said.append(str(error)))
    seen.page.on(
        "request",
        lambda asked: seen.asked.append(asked.url) if not asked.url.startswith(("file:", "data:", "blob:")) else None,
    )
    try:
        seen.page.goto(file.as_uri())
        seen.page.wait_for_selector("html[data-drawn=yes]", timeout=30_000)
        seen.run("page.charts.forEach((one) => one.now())")
        seen.page.wait_for_timeout(200)
        yield seen
    finally:
        made.close()
