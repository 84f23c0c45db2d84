"""The schedule in letters."""

from __future__ import annotations

import io

from symconfig.report.grid import plain, show
from symconfig.report.timeline.terminal import drawing
from tests.report.timeline.support import made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def rows(text: str, count: int) -> list[str]:
    return text.splitlines()[1 : 1 + count]


def test_each_second_is_drawn_to_scale() -> None:
    """12.5 s of 2 stages at 2 letters a second: forwards, backwards, weight gradients and idle time, without colour."""
    chart = made(pp=2, m=3)
    first, second = rows(str(drawing(chart, 2 + 25 + 9)), 2)
    assert first == "0 0>1>....0<0w2>1<1w..2<2wo   25.0 %"
    assert second == "1 ..0>0<0w1>1<1w2>2<2w....o   25.0 %"


def test_lines_are_as_wide_as_asked_and_there_is_one_a_stage() -> None:
    for pp, vpp, m, width in ((16, 1, 64, 100), (4, 4, 16, 140), (16, 8, 64, 120)):
        chart = made("interleaved" if vpp > 1 else "1f1b", pp, vpp, m)
        lines = str(drawing(chart, width)).splitlines()
        assert all(len(line) <= width for line in lines)
        stages = [line.split()[0] for line in lines[1 : 1 + pp]]
        assert stages == [str(stage) for stage in range(pp)]
        assert len(lines) == 2 * pp + 4 + any("Left out" in line for line in lines)


def test_what_is_too_long_is_broken_and_says_when_each_piece_begins() -> None:
    text = str(drawing(made(m=200), 100))
    pieces = text.splitlines()[0].split(" / ")
    assert len(pieces) == 3
    assert pieces[0].strip().startswith("|0 s")
    assert all(" s" in piece for piece in pieces)
    assert "Left out, where the axis is broken: " in text


def test_times_stand_where_they_are() -> None:
    """12.5 s at 10 letters a second."""
    ruler = str(drawing(made(pp=2, m=3), 2 + 125 + 9)).splitlines()[0]
    assert [(ruler.index(f"|{at} s") - 2) / 10 for at in (0, 2, 4, 6, 8, 10, 12)] == [0, 2, 4, 6, 8, 10, 12]


def test_memory_rises_with_the_microbatches_held_up_to_the_peak() -> None:
    chart = made(m=16)
    lines = str(drawing(chart, 120)).splitlines()
    sparks = [line[2:-9].strip() for line in lines[-4:]]
    assert set(sparks[0]) == set("▃▅▇█")  # one microbatch, then one more each time up to four
    assert "▁ 18.63 to █ 29.80 GiB" in lines[-5]
    assert max(sparks[0]) > max(sparks[3])
    assert [line.split()[-1] for line in lines[-4:]] == ["29.80", "27.01", "24.21", "21.42"]
    assert str(drawing(chart, 120, ascii_only=True)).isascii()


def test_a_terminal_gets_the_same_letters_in_colour() -> None:
    painted = drawing(made(), 100)
    stream = Terminal()
    show([painted], stream)
    assert plain([painted]).strip()
    assert "0>" in stream.getvalue()


def test_collectives_are_seen_where_a_stage_does_not_work() -> None:
    import numpy as np

    each = np.full((2, 1), 2.0)
    first = rows(str(drawing(made(pp=2, m=3, gather=each, reduce=each), 120)), 1)[0]
    assert first.startswith("0 ====")
