"""The schedule as SVG and PNG."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from symconfig.report.timeline.chart import LOOKS
from symconfig.report.timeline.picture import picture
from symconfig.report.timeline.scene import Box, Boxes, Words, png, svg, text_width
from tests.report.timeline.support import made

SVG = "{http://www.w3.org/2000/svg}"
SHAPES = [
    ("1f1b", 1, 1, 4),
    ("1f1b", 4, 1, 8),
    ("interleaved", 8, 7, 16),
    ("1f1b", 16, 1, 512),
    ("interleaved", 16, 4, 64),
]


def boxes(name: str, **shape: int) -> list[Box]:
    """Those of one kind, without its sample in the legend."""
    colour = LOOKS[name].colour
    shapes = picture(made(**shape)).shapes
    return [box for shape in shapes if isinstance(shape, Boxes) and shape.fill == colour for box in shape.boxes][1:]


@pytest.mark.parametrize(("name", "pp", "vpp", "m"), SHAPES)
def test_everything_lies_on_the_paper_and_no_label_on_another(name: str, pp: int, vpp: int, m: int) -> None:
    scene = picture(made(name, pp, vpp, m))
    for shape in scene.shapes:
        for box in shape.boxes if isinstance(shape, Boxes) else ():
            assert 0 <= box.x <= box.x + box.width <= scene.width
            assert 0 <= box.y <= box.y + box.height <= scene.height
    by_line: dict[float, list[tuple[float, float]]] = {}
    for words in (shape for shape in scene.shapes if isinstance(shape, Words)):
        width = text_width(words.text, words.size)
        left = words.x - {"start": 0, "middle": width / 2, "end": width}[words.anchor]
        assert left >= 0
        by_line.setdefault(words.y, []).append((left, left + width))
    for places in by_line.values():
        assert all(before[1] <= after[0] + 1 for before, after in pairwise(sorted(places)))


def test_every_task_is_drawn_to_scale() -> None:
    forwards, backwards = boxes("forward", pp=4, m=8), boxes("backward", pp=4, m=8)
    assert len(forwards) == len(backwards) == 4 * 8
    widths = [box.width for box in forwards]
    assert max(widths) == pytest.approx(min(widths))
    total = 33.5
    assert widths[0] == pytest.approx(1166 / total, abs=1)


def test_a_schedule_of_every_size_is_read_on_one_page() -> None:
    """Sixteen stages of eight chunks and 256 microbatches: pieces of the step, which it says."""
    scene = picture(made("interleaved", 16, 8, 256))
    text = svg(scene)
    assert "Left out, where the axis is broken" in text
    assert scene.height < 1100
    assert len(text) < 600_000


@pytest.mark.parametrize(("name", "pp", "vpp", "m"), SHAPES)
def test_the_file_is_xml_and_the_same_every_time(name: str, pp: int, vpp: int, m: int) -> None:
    first, second = (svg(picture(made(name, pp, vpp, m))) for _ in range(2))
    assert first == second
    root = ET.fromstring(first)
    assert root.tag == f"{SVG}svg"
    labels = [element.text for element in root.iter(f"{SVG}text")]
    assert [label for label in labels if label and label.startswith("stage ")] == [f"stage {i}" for i in range(pp)]


def test_a_name_with_markup_stays_text() -> None:
    from dataclasses import replace

    chart = replace(made(), title='a<b> & "c" $x$')
    assert ET.fromstring(svg(picture(chart))).findtext(f"{SVG}title") == chart.title
    pytest.importorskip("matplotlib")
    assert png(picture(chart)).startswith(b"\x89PNG")


def test_the_png_is_the_same_every_time() -> None:
    pytest.importorskip("matplotlib")
    first, second = (png(picture(made())) for _ in range(2))
    assert first == second
