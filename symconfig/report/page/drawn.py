"""What the page draws of a step: the events of its schedule; arrays as text."""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from symconfig.report.timeline.chart import LOOKS, Chart

MOST_EVENTS = 60_000  # that a page holds: the first ones of each stage
MOST_STEPS = 2_000  # of a stage's memory


def schedule(chart: Chart) -> dict[str, Any]:
    """Return a step's events (the first MOST_EVENTS, shared among stages) and each stage's memory over time;
    `left_out` counts the others.
    """
    kinds = [kind for kind in LOOKS if kind in chart.kinds]
    numbers = {kind: place for place, kind in enumerate(kinds)}
    each = MOST_EVENTS // len(chart.events)
    drawn = [[event for event in stage if event.kind in numbers] for stage in chart.events]
    rows = [
        (stage, numbers[event.kind], event.chunk, event.microbatch, event.start_s, event.end_s)
        for stage, events in enumerate(drawn)
        for event in events[:each]
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    return {
        "title": chart.title,
        "notes": list(chart.notes),
        "total_s": chart.total_s,
        "stages": len(chart.events),
        "kinds": [
            {"name": kind, "words": LOOKS[kind].words, "colour": LOOKS[kind].colour, "beside": LOOKS[kind].alongside}
            for kind in kinds
        ],
        "left_out": sum(map(len, drawn)) - len(rows),
        "where": packed(table[:, :4], "i2"),
        "when": packed(table[:, 4:], "f4"),
        "memory": [_memory(chart, stage) for stage in range(len(chart.events))],
    }


def _memory(chart: Chart, stage: int) -> dict[str, Any]:
    """Return a stage's memory over time; above MOST_STEPS values the maximum of each interval."""
    held = chart.memory[stage]
    if held.seconds.size <= MOST_STEPS:
        seconds, sizes = held.seconds, held.bytes
    else:
        edges = np.linspace(0.0, chart.total_s, MOST_STEPS + 1)
        seconds, sizes = edges[:-1], held.most(edges)
    return {"seconds": packed(seconds, "f4"), "gib": packed(sizes / 2**30, "f4")}


Width = Literal["u1", "i2", "i4", "f4"]


def packed(values: NDArray[Any], width: Width) -> dict[str, Any]:
    """Return an array as `{"width", "shape", "data"}`, zlib and base64; equal arrays give equal text.

    Raises OverflowError for integers beyond the width.
    """
    if width != "f4" and values.size:
        info = np.iinfo(np.dtype(width))
        if values.min() < info.min or values.max() > info.max:
            raise OverflowError(f"{values.max()} does not fit into {width}")
    data = np.ascontiguousarray(values, dtype=f"<{width}").tobytes()
    return {"width": width, "shape": list(values.shape), "data": b64encode(zlib.compress(data, 9)).decode()}
