"""Long formulas on several lines."""

from __future__ import annotations

import pytest

from symconfig.report.symbols import broken

FORMULAS = (
    "time.compute = num_microbatches * max(x295, x296) - (time.layer communication + time.pipeline send/receive)",
    "max(launch_s + stage0.dense / (dp * cp) * adam_bytes / hbm_bytes_per_s, launch_s + stage1.dense / (dp * cp))",
)


@pytest.mark.parametrize("width", [60, 76])
@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_on_several_lines_stays_the_same(text: str, width: int) -> None:
    lines = broken(text, width)
    assert max(map(len, lines)) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_line_begins_with_its_operator() -> None:
    first, *others = broken("aaaa*(bbbb + cccc) + dddd*(eeee - ffff)/gggg", 24)
    assert first == "aaaa*(bbbb + cccc)"
    assert [line.lstrip()[0] for line in others] == ["+", "/"]
