"""What `symconfig measure --generation` measured: an engine's steps, beside what plans of RL count on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from symconfig.descriptor.document import shorten
from symconfig.format import several, signed
from symconfig.measured.gpu.kernel_times import KernelTimes
from symconfig.report.grid import Block, Grid
from symconfig.runs.rl.observed import Observed

_REASON = 90  # characters of a reason, which may be torch's own words


def blocks(times: KernelTimes, points: Sequence[Observed]) -> list[Block]:
    """Show a table for each model, and what was not measured."""
    result: list[Block] = []
    names = dict.fromkeys(point.row.model for point in points)
    for name in names:
        rows = [_row(point) for point in points if point.row.model == name]
        result.append(Grid.of(rows, title=f"Generation of {name} on {times.rig}", words=("part", "how"), fixed=("ms",)))
    remarks = [
        f"not measured: {several(count, 'point')} of {name}: {shorten(reason, _REASON)}"
        for (name, reason), count in Counter((item.model, item.reason) for item in times.skipped).items()
        if name in names
    ]
    return [*result, "\n".join([*remarks, *times.notes])]


def _row(point: Observed) -> dict[str, str]:
    seconds, predicted = point.row.seconds, point.predicted_s
    return {
        "part": point.what.part,
        "layers": str(point.what.layers),
        "sequences": str(point.what.sequences),
        "tokens each": f"{point.what.context:,}",
        "ms": f"{1e3 * seconds:.3f}",
        "predicted": "-" if predicted is None else f"{1e3 * predicted:.3f}",
        "off": "-" if predicted is None else signed(predicted / seconds - 1, 0),
        "how": point.row.how or "",
    }


def to_dict(times: KernelTimes, points: Sequence[Observed]) -> dict[str, Any]:
    """Return plain data, symconfig.generation/1; predictions are null where no cluster is known."""
    return {
        "schema": "symconfig.generation/1",
        "rig": times.rig.model_dump(mode="json"),
        "cluster": times.cluster,
        "rows": [
            point.row.model_dump(mode="json", by_alias=True) | {"predicted_s": point.predicted_s} for point in points
        ],
        "skipped": [item.model_dump(mode="json", by_alias=True) for item in times.skipped],
        "notes": list(times.notes),
    }
