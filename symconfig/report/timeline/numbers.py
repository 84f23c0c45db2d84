"""The schedule as plain data."""

from __future__ import annotations

from typing import Any

from symconfig.report.timeline import compared
from symconfig.report.timeline.chart import Chart
from symconfig.solve.schedules import Compared


def to_dict(chart: Chart, schedules: Compared | None) -> dict[str, Any]:
    """Return the contents of `symconfig timeline --json`; seconds and bytes. trace.json has the single events.

    schedules: where they are asked for.
    """
    line = chart.timeline
    return {
        "schema": "symconfig.timeline/1",
        "title": chart.title,
        "notes": list(chart.notes),
        "schedule": line.schedule.name if line.pp > 1 else None,
        "num_microbatches": line.m,
        "pipeline_s": line.step_s,
        "optimizer_s": chart.optimizer_s,
        "stages": [
            {
                "chunks": list(line.placed[stage]),
                "busy_s": float(line.busy_s[stage]),
                "idle": chart.idle(stage),
                "finish_s": float(line.finish_s[stage]),
                "peak_bytes": memory.peak_bytes,
            }
            for stage, memory in enumerate(chart.memory)
        ],
    } | ({"schedules": compared.to_dict(schedules)} if schedules is not None else {})
