"""What every view of a schedule is drawn from: events, the memory of every stage, and how each kind of event looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.report.timeline.windows import Phases, Window
from symconfig.schedule.timeline import Event, Timeline


@dataclass(frozen=True, slots=True)
class Look:
    """letter: fills the event in plain text. style: of that letter, in colours that every terminal has. colour: RGB in
    hex, after Okabe and Ito's "Color Universal Design", which the colour-blind tell apart. traced: the nearest name of
    the Chrome trace format's own colours. alongside: it runs on the network while its stage works, so that it has a
    lane of its own. drawn: otherwise it is in traces only."""

    words: str
    letter: str
    style: str
    colour: str
    traced: str
    alongside: bool = False
    drawn: bool = True


OPTIMIZER = "optimizer"
LEFT_OUT = "left out"
# In the order of legends.
LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "forward": Look("forward", ">", "black on bright_blue", "#8fcaf0", "thread_state_runnable"),
        "recompute": Look("recompute", "r", "black on bright_yellow", "#b8a800", "yellow"),
        "backward": Look("backward", "<", "black on yellow", "#e08a00", "rail_animation"),
        "weight": Look("weight gradients", "w", "black on green", "#3fb08f", "good"),
        "receive": Look("receive", "-", "white on bright_black", "#8c8c8c", "grey"),
        # A message under way: whether its receiver waits for it is what a drawing shows.
        "send": Look("send", "-", "white on bright_black", "#b0b0b0", "grey", alongside=True, drawn=False),
        "gather": Look("weight gather", "=", "black on bright_magenta", "#cc79a7", "rail_load", alongside=True),
        "reduce": Look("gradient reduction", "=", "white on magenta", "#9a4f86", "terrible", alongside=True),
        OPTIMIZER: Look("optimizer", "o", "white on red", "#d55e00", "bad"),
    }
)
IDLE = "."


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
        """Return the most bytes of each interval between neighbouring edges, so that a coarse view loses no peak."""
        last = len(self.seconds)
        begin = np.clip(np.searchsorted(self.seconds, edges_s[:-1], side="right") - 1, 0, last - 1)
        end = np.clip(np.searchsorted(self.seconds, edges_s[1:], side="left"), begin + 1, last)
        # reduceat also reduces the stretches between the intervals, which are every second of its results.
        padded = np.append(self.bytes, -np.inf)
        result: Array = np.maximum.reduceat(padded, np.column_stack((begin, end)).ravel())[::2]
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """title, notes: what is drawn, in a line and in further sentences. memory: of every stage.

    optimizer_s: after the last stage has finished, on all of them at once, the last of each stage's events. kinds: of
    the events that are drawn.
    """

    title: str
    notes: tuple[str, ...]
    timeline: Timeline
    memory: tuple[Memory, ...]
    events: tuple[tuple[Event, ...], ...]
    optimizer_s: float
    phases: Phases
    kinds: frozenset[str]

    @property
    def total_s(self) -> float:
        """Return the seconds drawn: the pipeline and the optimizer. Of an endless schedule, a stream of several
        steps."""
        return self.phases.total_s

    @property
    def peak_bytes(self) -> float:
        """Return the peak of the fullest stage."""
        return max(memory.peak_bytes for memory in self.memory)

    @property
    def least_bytes(self) -> float:
        """Return the fewest bytes of any stage at any time."""
        return min(float(memory.bytes.min()) for memory in self.memory)

    def idle(self, stage: int) -> float:
        """Share of the pipeline's time in which the stage does no work of a microbatch."""
        # In a stream without a flush, what runs beside a collective takes longer than in the step that is looked at.
        return max(0.0, 1.0 - float(self.timeline.busy_s[stage]) / self.timeline.step_s)

    def within(self, stage: int, pieces: Sequence[Window]) -> list[Event]:
        """Return the events drawn in any of the pieces, by their start; what runs during work comes before it."""
        seen = [
            event
            for event in self.events[stage]
            if event.kind in self.kinds and any(piece.meets(event.start_s, event.end_s) for piece in pieces)
        ]
        return sorted(seen, key=lambda event: (not LOOKS[event.kind].alongside, event.start_s))


def chart(
    title: str, notes: Sequence[str], timeline: Timeline, memory: Sequence[tuple[Array, Array]], optimizer_s: float
) -> Chart:
    """Build the chart; memory: seconds and bytes of each stage's steps."""
    steps = tuple(Memory(*each) for each in memory)
    events = tuple(tuple(timeline.events(stage)) for stage in range(timeline.pp))
    end_s = float(timeline.finish_s.max()) - timeline.left_out_s
    if optimizer_s > 0:
        events = tuple((*each, Event(OPTIMIZER, 0, -1, end_s, end_s + optimizer_s)) for each in events)
        end_s += optimizer_s
    kinds = frozenset(event.kind for each in events for event in each if LOOKS[event.kind].drawn)
    return Chart(
        title=title,
        notes=tuple(notes),
        timeline=timeline,
        memory=steps,
        events=events,
        optimizer_s=optimizer_s,
        phases=_phases(events, end_s),
        kinds=kinds,
    )


def _phases(events: Sequence[Sequence[Event]], total_s: float) -> Phases:
    forwards = [[event for event in each if event.kind == "forward"] for each in events]
    forward_s = sum(event.end_s - event.start_s for each in forwards for event in each) / sum(map(len, forwards))
    warm_s = max(min(event.start_s for event in each if event.kind == "backward") for each in events)
    cool_s = min(max(event.end_s for event in each) for each in forwards)
    return Phases(total_s, warm_s, cool_s, forward_s)


def chart_data(chart: Chart) -> dict[str, Any]:
    """Return the contents of `symconfig explain --timeline --json`; seconds and bytes. trace.json has the single
    events."""
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
    }
