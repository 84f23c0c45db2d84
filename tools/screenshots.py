"""Draw a plan's page into docs/pages; needs Chromium."""

from __future__ import annotations

import tempfile
from pathlib import Path

from symconfig import plan
from tests.report.browser import browser, opened
from tools.pages import DOCS

JOB = {"model": "mixtral-8x7b", "cluster": "h100", "gpus": 64, "global_batch_size": 256, "seq_length": 4096}


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as work, browser() as started:
        file = Path(work) / "plan.html"
        file.write_text(plan(**JOB).html(), encoding="utf-8")
        with opened(started, file, viewport={"width": 1240, "height": 900}) as seen:
            seen.page.screenshot(path=DOCS / "pages" / "plan.png", full_page=True)
