"""A page without a browser: it names nothing outside itself, runs nothing that data brought, and is the same twice."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode

import numpy as np
import pytest

from symconfig.report.grid import Grid
from symconfig.report.page.data import report_data
from symconfig.report.page.drawn import packed
from symconfig.report.page.page import ASSETS, SCRIPTS, as_json, digest, page, shown

HOSTILE = "</script><script>alert(1)</script> & \u2028 \u202e"


def _page(title: str = "a plan") -> str:
    return page(report_data(title, [Grid(("a",), ((title,),)), title]), title)


def test_nothing_is_fetched() -> None:
    own = _page().replace((ASSETS / "echarts.js").read_text(encoding="utf-8"), "")
    found = re.findall(
        r"""(?:src|href)\s*=\s*["']?(?!["'#]|data:)|url\(|@import|fetch\(|XMLHttpRequest|importScripts""", own
    )
    assert found == []
    (allowed,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', own)
    assert allowed.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe" not in allowed


def test_the_policy_names_each_script_and_the_style() -> None:
    text = _page()
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == len(SCRIPTS)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    for one in (*scripts, style):
        assert digest(one).replace("'", "&#39;").replace("+", "+") in text.replace("&#43;", "+")


def test_data_end_no_element() -> None:
    text = _page(HOSTILE)
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data)["title"] == HOSTILE
    assert text.count("<script>") == len(SCRIPTS)
    assert as_json({"a": "<&>"}) == '{"a":"\\u003c\\u0026\\u003e"}'
    assert "\u202e" not in re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    assert shown("a\u202eb\x1b") == "a<U+202E>b<U+001B>"


def test_equal_answers_give_equal_pages() -> None:
    assert _page() == _page()


@pytest.mark.parametrize("width", ["u1", "i2", "i4", "f4"])
def test_arrays_come_back(width: str) -> None:
    values = np.array([[0, 1, 7], [3, 250 if width == "u1" else 300, 9]])
    text = packed(values, width)  # type: ignore[arg-type]
    back = np.frombuffer(zlib.decompress(b64decode(text["data"])), dtype=f"<{width}").reshape(text["shape"])
    assert (back == values).all()


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        packed(np.array([70_000]), "i2")
