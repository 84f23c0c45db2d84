"""What every view of a schedule is drawn from: events, the memory of every stage, and how each kind of event looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.format import gib, percent
from symconfig.report.grid import Grid
from symconfig.schedule.timeline import Event, Timeline


@dataclass(frozen=True, slots=True)
class Look:
    """How a kind of event is drawn.

    colour: RGB in hex, from Okabe and Ito's "Color Universal Design". traced: the nearest colour name of the Chrome
    trace format. alongside: runs on the network in parallel with its stage's work, in a lane of its own. drawn: whether
    it is drawn, or in traces only.
    """

    words: str
    colour: str
    traced: str
    alongside: bool = False
    drawn: bool = True


OPTIMIZER = "optimizer"
# In the order of legends.
LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "forward": Look("forward", "#8fcaf0", "thread_state_runnable"),
        "recompute": Look("recompute", "#b8a800", "yellow"),
        "backward": Look("backward", "#e08a00", "rail_animation"),
        "weight": Look("weight gradients", "#3fb08f", "good"),
        "receive": Look("receive", "#8c8c8c", "grey"),
        # A message under way: whether its receiver waits for it is what a drawing shows.
        "send": Look("send", "#b0b0b0", "grey", alongside=True, drawn=False),
        "gather": Look("weight gather", "#cc79a7", "rail_load", alongside=True),
        "reduce": Look("gradient reduction", "#9a4f86", "terrible", alongside=True),
        OPTIMIZER: Look("optimizer", "#d55e00", "bad"),
    }
)
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one stage. `bytes[i]` are allocated from `seconds[i]` (ascending, the first is 0) up to the
    next."""

    seconds: Array
    bytes: Array

    @property
    def peak_bytes(self) -> float:
        return float(self.bytes.max())

    def most(self, edges_s: Array) -> Array:
        """Return the maximum bytes in each interval between neighbouring edges (seconds), `[len(edges) - 1]`."""
        last = len(self.seconds)
        begin = np.clip(np.searchsorted(self.seconds, edges_s[:-1], side="right") - 1, 0, last - 1)
        end = np.clip(np.searchsorted(self.seconds, edges_s[1:], side="left"), begin + 1, last)
        # reduceat also reduces the stretches between the intervals, which are every second of its results.
        padded = np.append(self.bytes, -np.inf)
        result: Array = np.maximum.reduceat(padded, np.column_stack((begin, end)).ravel())[::2]
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The data of a drawn schedule. title, notes: text above it. memory, events: of each stage; the optimizer is
    each stage's last event. optimizer_s: its seconds; total_s: pipeline and optimizer. kinds: of the events that
    are drawn.
    """

    title: str
    notes: tuple[str, ...]
    timeline: Timeline
    memory: tuple[Memory, ...]
    events: tuple[tuple[Event, ...], ...]
    optimizer_s: float
    total_s: float
    kinds: frozenset[str]

    def idle(self, stage: int) -> float:
        """Return the share (0 to 1) of the pipeline's time in which a stage does no work."""
        # In a stream without a flush, what runs beside a collective takes longer than in the step that is looked at.
        return max(0.0, 1.0 - float(self.timeline.busy_s[stage]) / self.timeline.step_s)


def chart(
    title: str, notes: Sequence[str], timeline: Timeline, memory: Sequence[tuple[Array, Array]], optimizer_s: float
) -> Chart:
    """Return the chart of a timeline. memory: (seconds, bytes) of each stage. The optimizer is added as each stage's
    last event if it takes time.
    """
    steps = tuple(Memory(*each) for each in memory)
    events = tuple(tuple(timeline.events(stage)) for stage in range(timeline.pp))
    end_s = float(timeline.finish_s.max()) - timeline.left_out_s
    if optimizer_s > 0:
        events = tuple((*each, Event(OPTIMIZER, 0, -1, end_s, end_s + optimizer_s)) for each in events)
    kinds = frozenset(event.kind for each in events for event in each if LOOKS[event.kind].drawn)
    return Chart(
        title=title,
        notes=tuple(notes),
        timeline=timeline,
        memory=steps,
        events=events,
        optimizer_s=optimizer_s,
        total_s=end_s + max(optimizer_s, 0.0),
        kinds=kinds,
    )


def stage_rows(chart: Chart) -> Grid:
    """Return the table of each stage's idle share and peak memory."""
    rows = (
        {"stage": str(stage), "idle": percent(chart.idle(stage)), "peak GiB": gib(memory.peak_bytes)}
        for stage, memory in enumerate(chart.memory)
    )
    return Grid.of(rows, fixed=("idle", "peak GiB"))


def chart_data(chart: Chart) -> dict[str, Any]:
    """Return the JSON of `symconfig explain --timeline --json`, without single events; `schedule` is None for one
    stage.
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
                "chunks": list(range(stage, line.pp * line.vpp, line.pp)),
                "busy_s": float(line.busy_s[stage]),
                "idle": chart.idle(stage),
                "finish_s": float(line.finish_s[stage]),
                "peak_bytes": memory.peak_bytes,
            }
            for stage, memory in enumerate(chart.memory)
        ],
    }
