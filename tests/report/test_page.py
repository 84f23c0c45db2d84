"""Pages: they hold the answer, run nothing, fetch nothing, and can be read by everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from symconfig import audit, plan
from symconfig.api.existing import audit_page
from symconfig.api.planning import PlanResult
from symconfig.report.audit import headline
from symconfig.report.grid import Grid
from symconfig.report.page import _page, digest
from tests.report.browser import browser, opened

JOB = {"model": "mixtral-8x7b", "cluster": "h100", "gpus": 64, "global_batch_size": 256, "seq_length": 4096}
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "train_13b.sh"
HOSTILE = "</style><script>alert(1)</script>\u202e<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def planned() -> PlanResult:
    return plan(**JOB)


@pytest.fixture(scope="module")
def pages(planned: PlanResult, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    grid = Grid(("name", HOSTILE), ((HOSTILE, "1"),), left=(0,), title=HOSTILE)
    texts = {
        "plan": planned.html(),
        "audit": audit_page(audit(str(SCRIPT), "a100-80gb", gpus=16), SCRIPT.name),
        "hostile": _page(HOSTILE, HOSTILE, [grid, HOSTILE], None, {HOSTILE: HOSTILE}),
        "frame": f"<!DOCTYPE html><title>cell</title>{planned._repr_html_()}",
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as found:
        yield found


def test_a_page_fetches_nothing_and_names_its_style_alone(planned: PlanResult) -> None:
    text = planned.html()
    assert not re.search(r"<script|(?:src|href)\s*=|url\(|@import", text)
    (allowed,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert allowed.startswith("default-src &#39;none&#39;; style-src " + digest(style).replace("'", "&#39;"))
    assert "unsafe" not in allowed
    assert text == planned.html()
    assert len(text) < 300_000


def test_the_bars_are_the_parts_of_each_plan(planned: PlanResult) -> None:
    text = planned.html()
    for parts, unit in ((planned.best.predicted.time, "{:.3f}"), (planned.best.predicted.memory, "{:.2f}")):
        for name, value in parts.items():
            if not value:
                continue
            shown = value if unit == "{:.3f}" else value / 2**30
            assert f"<title>{name.replace('_', ' ')}: {unit.format(shown)}</title>" in text
    bars = re.findall(r'<svg class="bar".*?</svg>', text)
    assert len(bars) == 2 * (1 + len(planned.alternatives) + (planned.plan.beside.fastest is not None))
    for bar in bars:
        assert sum(map(float, re.findall(r'width="([\d.]+)"', bar))) <= 100.01


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["plan", "audit"])
def test_everybody_can_read_a_page(started: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    """In colours of either scheme, on a narrow screen, and without a request or a message."""
    with opened(started, pages[name], color_scheme=scheme, viewport={"width": 390, "height": 800}) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert seen.serious() == []
        assert (seen.said, seen.asked) == ([], [pages[name].as_uri()])


def test_an_audit_is_headed_by_its_answer_and_the_worst(started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["audit"]) as seen:
        assert seen.page.inner_text("h1") == f"{SCRIPT.name}: {headline(audit(str(SCRIPT), 'a100-80gb', gpus=16))}"
        ranks = [("error", "warning", "note").index(one) for one in seen.page.locator("#findings b").all_inner_texts()]
        assert ranks
        assert ranks == sorted(ranks)


def test_hostile_names_stay_text(started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["hostile"]) as seen:
        assert seen.page.locator("img, script").count() == 0
        assert "\u202e" not in seen.page.evaluate("document.body.innerText + document.title")
        assert "<U+202E>" in seen.page.inner_text("main")
        assert seen.said == []


def test_a_notebook_s_frame_shows_the_page(started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["frame"]) as seen:
        assert seen.page.frame_locator("iframe").locator("main section").count() == 4


def test_files_are_those_that_a_plan_writes(planned: PlanResult, started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["plan"]) as seen:
        seen.page.get_by_text("megatron_args.txt", exact=True).click()
        text = seen.page.locator("details[open] pre").inner_text()
        assert text.split() == " ".join(planned.megatron_args()).split()
