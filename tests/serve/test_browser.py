"""The form in a real browser: solve, cancel, sliders that are pins, links, uploads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.page.browser import PROGRAMS, browser
from tests.serve.running import Running, running
from tests.serve.test_app import SCRIPT


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture(scope="module", params=PROGRAMS)
def started(request: pytest.FixtureRequest) -> Iterator[Any]:
    with browser(request.param) as found:
        yield found


@pytest.fixture
def shown(started: Any, server: Running) -> Iterator[Any]:
    context = started.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(server.url)
    page.wait_for_selector("html[data-ready=yes]")
    yield page
    assert said == []
    context.close()


def _says(page: Any, words: str) -> None:
    """Wait for the status. The page's policy lets no text be evaluated, so that waiting by script is out."""
    page.locator("#form-status", has_text=words).wait_for(timeout=60_000)


def _solve(page: Any) -> None:
    page.fill("#form-gpus", "8")
    page.fill("#form-global_batch_size", "64")
    page.select_option("#form-model", "llama2-7b")
    page.select_option("#form-cluster", "h100")
    page.get_by_role("button", name="Solve").click()
    page.wait_for_selector("html[data-drawn=yes]", timeout=120_000)


def test_a_job_is_solved_and_its_state_is_a_link(shown: Any, started: Any) -> None:
    _solve(shown)
    assert "llama2-7b on 8 x" in shown.inner_text("h1")
    assert shown.locator("main section").count() == 9
    context = started.new_context()
    other = context.new_page()
    other.goto(shown.url)
    other.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
    assert other.inner_text("h1") == shown.inner_text("h1")
    context.close()


def test_a_slider_answers_at_once_and_is_a_pin(shown: Any) -> None:
    _solve(shown)
    shown.evaluate("page.charts.forEach((one) => one.now())")
    everything = shown.inner_text("#weighed [role=status]")
    took = shown.evaluate(
        """() => { const slider = document.getElementById("slide-tp"); slider.value = 2;
        const began = performance.now(); slider.dispatchEvent(new Event("input"));
        return performance.now() - began; }"""
    )
    assert took < 1000  # a busy machine; alone it is below 50
    some = shown.inner_text("#weighed [role=status]")
    assert some != everything
    assert "fastest: tp 2" in some
    assert shown.input_value("#form-pins") == "tp=2"


def test_a_search_can_be_stopped(shown: Any) -> None:
    shown.select_option("#form-model", "deepseek-v3")
    shown.select_option("#form-cluster", "h800")
    shown.fill("#form-gpus", "2048")
    shown.fill("#form-global_batch_size", "15360")
    shown.get_by_role("button", name="Solve").click()
    shown.locator("#form button", has_text="Cancel").click()
    _says(shown, "Cancelled.")


def test_a_script_is_audited_and_a_config_is_a_model(shown: Any, tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(SCRIPT, encoding="utf-8")
    shown.set_input_files("#form-file", str(script))
    shown.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
    assert shown.inner_text("h1").startswith("launch.sh: runs, ")
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "vocab_size": 32000}', encoding="utf-8")
    shown.set_input_files("#form-file", str(config))
    _says(shown, "config.json")


def test_a_script_is_pasted_and_the_cluster_changed(shown: Any) -> None:
    shown.select_option("#form-cluster", "h100")
    shown.fill("#form-set", "network=4x200Gb/s gpu_memory=96GB")
    shown.get_by_text("Paste a launch script").click()
    shown.fill("#form-script", SCRIPT)
    shown.get_by_role("button", name="Audit it").click()
    shown.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
    assert shown.locator("main section").first.get_attribute("id") == "findings"
    assert "96 GB" in shown.inner_text("main") or "h100 with" in shown.inner_text("main")


def test_the_job_has_a_task_and_a_precision(shown: Any) -> None:
    shown.select_option("#form-task", "sft")
    shown.select_option("#form-precision", "fp8")
    _solve(shown)
    assert "fp8" in shown.inner_text("main")
    assert "--task sft" in shown.inner_text("#files")


def test_bad_input_is_said(shown: Any) -> None:
    shown.fill("#form-gpus", "-3")
    shown.get_by_role("button", name="Solve").click()
    _says(shown, "gpus")
