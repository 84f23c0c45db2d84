"""The browsers that are on this machine, without any network, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

INSTALL = "apt-get install chromium firefox-esr && pip install -e '.[browser]'"
# Programs by the name that playwright has for their kind.
PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome", "chrome"),
    "firefox": ("firefox-esr", "firefox"),
}
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

    def until(self, script: str) -> None:
        """Wait until a script says so. The page's policy lets no text be evaluated by the page itself."""
        for _ in range(200):
            if self.run(script):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"never: {script}")

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())


@contextmanager
def browser(kind: str = "chromium") -> Iterator[Any]:
    """Start the system's browser of a kind. Skips the test where there is none, with the command that installs one.

    A Firefox that Playwright did not change is driven by WebDriver BiDi.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason=f"no browser to drive: {INSTALL}")
    program = next((path for name in PROGRAMS[kind] if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no {kind} on this machine: {INSTALL}")
    given = {"args": list(_QUIET)} if kind == "chromium" else {"channel": "moz-firefox"}
    with playwright.sync_playwright() as run:
        started = getattr(run, kind).launch(executable_path=program, **given)
        try:
            try:
                started.new_context().close()
            except playwright.Error as error:  # of a playwright that is newer than the browser
                pytest.skip(f"playwright and {program} do not fit each other ({error}): {INSTALL}")
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
        scheme = context.get("color_scheme", "light")
        if not seen.page.evaluate("(scheme) => matchMedia(`(prefers-color-scheme: ${scheme})`).matches", scheme):
            # Firefox cannot be told by BiDi: the page's own choice.
            seen.page.evaluate(
                "(scheme) => { document.documentElement.dataset.theme = scheme; page.redraw(); }", scheme
            )
        seen.run("page.charts.forEach((one) => one.now())")
        seen.page.wait_for_timeout(200)
        yield seen
    finally:
        made.close()
