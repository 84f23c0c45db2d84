"""Pages in a real browser: every view is drawn, nothing is asked for, what a person does is answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from symconfig import audit, plan
from symconfig.api.page import audited_data, plan_page, refused_page
from symconfig.api.planning import PlanResult, read_job
from symconfig.descriptor.document import Document
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Candidate
from symconfig.report.audit import headline
from symconfig.report.grid import Grid
from symconfig.report.page.data import report_data
from symconfig.report.page.page import drawn
from symconfig.solve.choice import TIE
from symconfig.solve.usual import PREMIUM
from tests.report.page.browser import PROGRAMS, Seen, browser, opened

DENSE = {"model": "llama2-13b", "cluster": "a100-80gb", "gpus": 64, "global_batch_size": 1024, "seq_length": 4096}
JOBS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "experts": {"model": "mixtral-8x7b", "cluster": "h100", "gpus": 64, "global_batch_size": 256, "seq_length": 4096},
    "adapters": {"model": "qwen2.5-7b", "cluster": "h100", "gpus": 8, "global_batch_size": 64, "task": "lora"},
}
LONG = {  # 20,000 tasks
    "model": "gpt3-175b", "cluster": "a100-80gb", "gpus": 64, "global_batch_size": 1536, "seq_length": 2048,
    "pins": {"tp": "8", "pp": "8", "vpp": "4", "mbs": "2"},
}  # fmt: skip
VIEWS = ["files", "plans", "time", "memory", "sure", "weighed", "why", "ranks", "schedule"]
SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "train_13b.sh"
HOSTILE = "</script><script>alert(1)</script>\u202e<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module", params=PROGRAMS)
def started(request: pytest.FixtureRequest) -> Iterator[Any]:
    with browser(request.param) as found:
        yield found


@pytest.fixture(scope="module")
def plans() -> dict[str, PlanResult]:
    return {name: plan(**job) for name, job in (*JOBS.items(), ("long", LONG))}


@pytest.fixture(scope="module")
def pages(plans: dict[str, PlanResult], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, result in plans.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(result.html(), encoding="utf-8")
    job = read_job(Document({**DENSE, "model": "llama3.1-405b", "gpus": 8, "global_batch_size": 64}, file=""))
    found["too large"] = folder / "too-large.html"
    error = InfeasibleError([])
    try:
        plan(model="llama3.1-405b", cluster="a100-80gb", gpus=8, global_batch_size=64, seq_length=4096)
    except InfeasibleError as caught:
        error = caught
    found["too large"].write_text(refused_page(job, error), encoding="utf-8")
    return found


@pytest.mark.parametrize(("place", "name"), list(enumerate([*JOBS, "too large"])))
def test_every_view_is_drawn_without_a_word_or_a_request(
    started: Any, pages: dict[str, Path], place: int, name: str
) -> None:
    """Each page is light in one browser and dark in the other, and each browser shows both."""
    scheme = ("light", "dark")[(place + (started.browser_type.name == "firefox")) % 2]
    with opened(started, pages[name], color_scheme=scheme) as seen:
        views = seen.run("[...document.querySelectorAll('main section')].map((one) => one.id)")
        assert views == (["plans", "weighed", "why"] if name == "too large" else VIEWS)
        for chart in seen.page.locator(".chart").all():
            assert chart.locator("canvas").count() >= 1
        every = seen.run(
            "page.charts.every((one) => one.made && one.made.getOption().series.some((s) => s.data.length))"
        )
        assert every
        assert (seen.said, seen.asked) == ([], [])


def test_what_a_page_says_and_asks_for_is_seen(started: Any, tmp_path: Path) -> None:
    path = tmp_path / "loud.html"
    path.write_text(
        "<!DOCTYPE html><html data-drawn=yes><script>page = {charts: []}; console.log('loud');"
        "fetch('https://symconfig.invalid/a').catch(() => 0); setTimeout(() => { throw new Error('bad') });</script>"
    )
    with opened(started, path) as seen:
        assert seen.asked == ["https://symconfig.invalid/a"]
        assert {"loud", "bad"} <= set(seen.said)


def test_a_page_is_small_and_drawn_soon(started: Any, pages: dict[str, Path]) -> None:
    for path in pages.values():
        assert path.stat().st_size < 1.5e6
    with opened(started, pages["experts"]) as seen:
        ready = seen.run("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
        assert ready < 15_000  # a busy machine; make bench has the time


def _serious(seen: Seen) -> list[Any]:
    """Return what axe finds that keeps people from reading the page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(seen.page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        (one["id"], [node["html"][:120] for node in one["nodes"]][:3])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_program_for_the_blind_finds_nothing_serious(
    started: Any, pages: dict[str, Path], scheme: str, width: int
) -> None:
    with opened(started, pages["experts"], color_scheme=scheme, viewport={"width": width, "height": 900}) as seen:
        assert _serious(seen) == []


def test_a_narrow_screen_scrolls_in_one_direction(started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["experts"], viewport={"width": 390, "height": 800}) as seen:
        assert seen.run("document.documentElement.scrollWidth") <= 390
        table = seen.page.locator("#plans .on-narrow").first
        assert table.locator("th").all_inner_texts()[1:] == ["layout", "step s", "GPU GiB"]
        assert table.evaluate("(one) => one.scrollWidth <= one.clientWidth")
        assert not seen.page.locator("#plans .on-wide").first.is_visible()


def test_an_audit_is_headed_by_its_answer_and_its_warnings(started: Any, tmp_path: Path) -> None:
    done, path = audit(str(SCRIPT), "a100-80gb", gpus=16), tmp_path / "audit.html"
    path.write_text(drawn(audited_data(done, SCRIPT.name)), encoding="utf-8")
    for scheme in ("light", "dark"):
        with opened(started, path, color_scheme=scheme) as seen:
            assert seen.text("h1") == f"{SCRIPT.name}: {headline(done)}"
            assert seen.page.locator("main section").first.get_attribute("id") == "findings"
            ranks = [
                ("error", "warning", "note").index(one) for one in seen.page.locator(".findings b").all_inner_texts()
            ]
            assert ranks == sorted(ranks)
            assert ranks
            assert _serious(seen) == []
            assert (seen.said, seen.asked) == ([], [])


def test_a_slider_narrows_the_dots(started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["experts"]) as seen:
        names = "page.scatter.made.getOption().series.map((s) => s.name).filter((name) => name.startsWith('pp '))"
        everything, said = seen.run(names), seen.text("#weighed [role=status]")
        assert len(everything) > 1
        slider = "document.getElementById('slide-pp')"
        seen.run(f"{slider}.value = 2; {slider}.dispatchEvent(new Event('input'))")
        assert seen.run(names) == ["pp 2"]
        assert seen.text("#weighed [role=status]") != said
        seen.run(f"{slider}.value = 0; {slider}.dispatchEvent(new Event('input'))")
        assert seen.run(names) == everything


def test_the_bars_of_certainty_are_the_plans_intervals(
    started: Any, pages: dict[str, Path], plans: dict[str, PlanResult]
) -> None:
    low, high = plans["experts"].best.predicted.interval["step_s"]
    with opened(started, pages["experts"]) as seen:
        series = seen.run(
            "page.charts.find((one) => one.place.closest('#sure')).made.getOption().series.map((s) => s.data[0])"
        )
        assert series[:2] == pytest.approx([low, high - low])
        assert series[2] == [plans["experts"].best.predicted.step_s, 0]


def test_a_part_has_one_colour_on_all_pages(started: Any, pages: dict[str, Path]) -> None:
    found: dict[str, set[str]] = {}
    for name in ("dense", "experts", "adapters"):
        with opened(started, pages[name]) as seen:
            drawn = seen.run(
                """page.charts.filter((one) => one.place.closest("#time, #memory")).flatMap((one) =>
                one.made.getOption().series.filter((s) => s.stack).map((s) => [s.name, s.itemStyle.color]))"""
            )
            for part, colour in drawn:
                found.setdefault(part, set()).add(colour)
    assert {part: colours for part, colours in found.items() if len(colours) > 1} == {}
    assert {"compute", "optimizer", "weights", "optimizer state"} < set(found)


def test_the_schedule_can_be_zoomed_and_holds_every_event(
    started: Any, pages: dict[str, Path], plans: dict[str, PlanResult]
) -> None:
    best = plans["experts"].best
    with opened(started, pages["experts"]) as seen:
        forwards = seen.run("page.timeline.made.getOption().series.find((s) => s.name === 'forward').data.length")
        assert forwards == best.parallel.pp * best.parallel.vpp * best.batch.num_microbatches
        seen.page.get_by_role("button", name="Zoom in").click()
        zoom = seen.run("(({ start, end }) => [start, end])(page.timeline.made.getOption().dataZoom[0])")
        assert zoom == [25, 75]


def test_the_wheel_scrolls_the_page_over_a_chart_and_zooms_with_ctrl(started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["experts"]) as seen:
        zoom = "(({ start, end }) => end - start)(page.timeline.made.getOption().dataZoom[0])"
        seen.page.locator("#schedule .chart").scroll_into_view_if_needed()
        seen.page.locator("#schedule .chart").hover()
        before = seen.run("scrollY")
        seen.page.mouse.wheel(0, -200)  # the schedule is the last view, and the page ends below it
        seen.until(f"scrollY < {before}")
        assert seen.run(zoom) == 100
        seen.page.locator("#schedule .chart").hover(position={"x": 500, "y": 150})
        seen.page.keyboard.down("Control")
        seen.page.mouse.wheel(0, -200)
        seen.page.keyboard.up("Control")
        seen.until(f"{zoom} < 100")


def test_paper_is_light(started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["experts"], color_scheme="dark") as seen:
        dark = seen.run("page.ink('paper')")
        seen.run("dispatchEvent(new Event('beforeprint'))")
        assert seen.run("page.ink('paper')") == "#ffffff" != dark
        assert seen.run("page.timeline.made.getOption().textStyle.color") == seen.run("page.ink('ink')")
        seen.run("dispatchEvent(new Event('afterprint'))")
        assert seen.run("page.ink('paper')") == dark


def test_a_schedule_of_twenty_thousand_tasks_scrolls(started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["long"]) as seen:
        tasks = "page.timeline.made.getOption().series.filter((s) => s.type === 'custom')"
        assert seen.run(f"{tasks}.reduce((n, s) => n + s.data.length, 0)") > 20_000
        took = seen.run(
            """() => { const began = performance.now();
            for (let start = 0; start < 50; start += 10)
              page.timeline.made.dispatchAction({ type: "dataZoom", start, end: start + 2 });
            return performance.now() - began; }"""
        )
        assert took < 15_000  # five jumps, on a busy machine
        assert seen.said == []


@pytest.fixture(scope="module")
def pinned() -> list[tuple[dict[str, int], Candidate | None]]:
    """Plan with layouts pinned: what each then takes, where it runs."""
    found: list[tuple[dict[str, int], Candidate | None]] = []
    for tp, pp in ((1, 1), (2, 1), (8, 1), (4, 2), (16, 1)):
        asked = {"tp": tp, "pp": pp, "cp": 1, "ep": 1, "etp": 1}
        try:
            made = plan(**DENSE, pins={name: str(value) for name, value in asked.items()})
            found.append((asked, None if made.search.opened else made.best))
        except InfeasibleError:
            found.append((asked, None))
    return found


def test_why_not_is_what_the_planner_says(
    started: Any, pages: dict[str, Path], pinned: list[tuple[dict[str, int], Candidate | None]]
) -> None:
    assert len({best is None for _, best in pinned}) == 2
    with opened(started, pages["dense"]) as seen:
        for asked, best in pinned:
            found = seen.page.evaluate("(asked) => page.whyNot(asked)", asked)
            assert (found["verdict"] == "runs") == (best is not None), asked
            if best is not None:
                # By the formula; the planner simulates pipelines.
                close = 1e-6 if asked["pp"] == 1 else 0.03
                # A plan may have a premium less, or be plainer, than the fastest point with its degrees.
                slower = best.predicted.step_s / found["row"]["step_s"]
                assert 1 - close <= slower <= (1 + close) * TIE * PREMIUM[-1]


def test_why_not_names_the_constraint(started: Any, pages: dict[str, Path]) -> None:
    with opened(started, pages["experts"]) as seen:
        assert "not divide" in seen.run("page.whyNot({tp: 8, pp: 3, cp: 1, ep: 1, etp: 1}).text")
        assert "experts cannot be split" in seen.run("page.whyNot({tp: 1, pp: 1, cp: 1, ep: 16, etp: 1}).text")
        seen.page.select_option("#why-tp", "2")
        assert seen.text("#why-answer")


def test_hostile_names_stay_text(started: Any, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    blocks = [Grid(("name", HOSTILE), ((HOSTILE, "1"),), left=(0,), title=HOSTILE), HOSTILE]
    path.write_text(drawn(report_data(HOSTILE, blocks)), encoding="utf-8")
    with opened(started, path) as seen:
        assert seen.run("document.scripts.length") == seen.run("document.querySelectorAll('body > script').length")
        assert seen.page.locator("img").count() == 0
        assert "\u202e" not in seen.run("document.body.innerText + document.title")
        assert "<U+202E>" in seen.text("main")
        assert seen.said == []


def test_files_are_those_that_a_plan_writes(started: Any, pages: dict[str, Path], plans: dict[str, PlanResult]) -> None:
    with opened(started, pages["dense"]) as seen:
        seen.page.get_by_role("button", name="megatron_args.txt").click()
        assert (
            seen.text("#files [aria-label='Text of the file']").split()
            == " ".join(plans["dense"].megatron_args()).split()
        )


def test_a_notebook_s_frame_shows_the_page(started: Any, plans: dict[str, PlanResult], tmp_path: Path) -> None:
    path = tmp_path / "cell.html"
    path.write_text(
        "<!DOCTYPE html><html data-drawn=yes><meta charset=utf-8><script>page = {charts: []}</script>"
        + plans["dense"]._repr_html_()
    )
    with opened(started, path) as seen:
        frame = seen.page.frame_locator("iframe")
        frame.locator("html[data-drawn=yes]").wait_for(timeout=20_000)
        assert frame.locator("main section").count() == len(VIEWS)


def test_plan_page_takes_a_plan_of_a_file(plans: dict[str, PlanResult]) -> None:
    assert plan_page(plans["dense"].plan) == plans["dense"].html()
