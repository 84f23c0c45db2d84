"""Draw the views of a plan's page into docs/pages and fill docs/how-to/look-at-a-plan.md; needs Chromium."""

from __future__ import annotations

import tempfile
from pathlib import Path

from symconfig import plan
from tests.report.page.browser import browser, opened
from tools.pages import DOCS, fill

JOB = {"model": "mixtral-8x7b", "cluster": "h100", "gpus": 64, "global_batch_size": 256, "seq_length": 4096}
WIDTH = 1240
VIEWS = ("files", "plans", "time", "memory", "sure", "weighed", "why", "ranks", "schedule")


def main() -> None:
    """Write the pictures and the page."""
    folder = DOCS / "pages"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work, browser() as started:
        file = Path(work) / "plan.html"
        file.write_text(plan(**JOB).html(), encoding="utf-8")
        size = file.stat().st_size
        with opened(started, file, viewport={"width": WIDTH, "height": 900}) as seen:
            seen.page.wait_for_timeout(500)
            seconds = seen.run("performance.getEntriesByName('drawn')[0].startTime") / 1e3
            for name in VIEWS:
                seen.page.locator(f"#{name}").screenshot(path=folder / f"{name}.png")
    size = {"size": f"{size / 1e6:.2f} MB", "seconds": f"{seconds:.1f} s"}
    fill(DOCS / "how-to" / "look-at-a-plan.md", size)
