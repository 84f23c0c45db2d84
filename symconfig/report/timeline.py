"""A plan's simulated schedule: per stage in a table, as JSON, and as a trace for Perfetto.

Format of the trace: "Trace Event Format" (Google, 2016): complete events X, counters C, metadata M; microseconds.
Perfetto colours by the name without its digits, Chrome's own viewer by `cname`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.errors import InputError
from symconfig.format import count, gib, microbatches, percent, seconds
from symconfig.plans.plan import Candidate, Plan
from symconfig.report.grid import Grid, page_section
from symconfig.schedule.timeline import Event, Timeline
from symconfig.solve.costed import costed, idle, refined_time, stage_memory, timeline
from symconfig.solve.predict import restore, retraced
from symconfig.units import GIB

TRACE = "trace.json"
OPTIMIZER = "optimizer"
# Kinds of events: name and colour of the Chrome trace format.
_LOOKS = {
    "forward": ("forward", "thread_state_runnable"),
    "recompute": ("recompute", "yellow"),
    "backward": ("backward", "rail_animation"),
    "weight": ("weight gradients", "good"),
    "receive": ("receive", "grey"),
    "send": ("send", "grey"),
    "gather": ("weight gather", "rail_load"),
    "reduce": ("gradient reduction", "terrible"),
    OPTIMIZER: ("optimizer", "bad"),
}
_ON_NETWORK = ("send", "gather", "reduce")  # run in parallel with their stage's work, in tracks of their own
# Of a longer step only the beginning and the end are written: so many events take about 4 MB.
MOST_EVENTS = 24_000
_STAGES, _MEMORY = 0, 1  # process numbers: Perfetto shows the tracks of one together
_LANES = 1000  # track numbers of a stage: its work, then its network; more than ever overlap
Array = NDArray[np.float64]
_Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A simulated step. memory: (seconds, bytes) of each stage, bytes allocated from then on. events: of each stage;
    the optimizer is the last one. optimizer_s: its seconds; total_s: pipeline and optimizer.
    """

    title: str
    notes: tuple[str, ...]
    timeline: Timeline
    memory: tuple[tuple[Array, Array], ...]
    events: tuple[tuple[Event, ...], ...]
    optimizer_s: float
    total_s: float

    def idle(self, stage: int) -> float:
        """Return the share (0 to 1) of the pipeline's time in which a stage does no work."""
        # In a stream without a flush, what overlaps a collective takes longer than in the simulated step.
        return max(0.0, 1.0 - float(self.timeline.busy_s[stage]) / self.timeline.step_s)


def simulated(plan: Plan, candidate: Candidate) -> Chart:
    """Return the chart of a candidate's simulated step, with notes: the seconds of step and pipeline (with several
    stages also their mean idle share), and microbatches of the steady part that are not drawn, if any. Raises
    InputError if its shape cannot be simulated.
    """
    point = restore(plan, candidate)
    parts = costed(point)
    line, time = timeline(point, parts), refined_time(point, parts)
    title = f"{plan.model.name} on {count(candidate.configuration.world_size)} x {plan.cluster.gpu.product}"
    if line.pp == 1:
        title += f": one stage, {microbatches(line.m)}"
    else:
        chunks = f" x {line.vpp} chunks" if line.vpp > 1 else ""
        title += f": {line.schedule.title}, {line.pp} stages{chunks}, {microbatches(line.m)}"
    took = f"A step takes {seconds(sum(time.values()))} s, "
    notes = [f"{took}its microbatches {seconds(line.step_s)} s of that."]
    if line.pp > 1:
        share = f"in which a stage is idle for {percent(idle(line))} of the time on average"
        notes = [f"{took}the pipeline {seconds(line.step_s)} s of that, {share}."]
    if line.left_out:
        notes.append(f"{microbatches(line.left_out)} of the steady part, {seconds(line.left_out_s)} s, are not drawn.")
    return chart(title, notes, line, stage_memory(point, parts, line), time["optimizer"])


def chart(
    title: str, notes: Sequence[str], line: Timeline, memory: Sequence[tuple[Array, Array]], optimizer_s: float
) -> Chart:
    """Return the chart of a timeline; the optimizer is added as each stage's last event, at the end of the pipeline, if
    it takes time. memory: (seconds, bytes) of each stage.
    """
    events = tuple(tuple(line.events(stage)) for stage in range(line.pp))
    end_s = float(line.finish_s.max()) - line.left_out_s
    if optimizer_s > 0:
        events = tuple((*each, Event(OPTIMIZER, 0, -1, end_s, end_s + optimizer_s)) for each in events)
    return Chart(
        title=title,
        notes=tuple(notes),
        timeline=line,
        memory=tuple(memory),
        events=events,
        optimizer_s=optimizer_s,
        total_s=end_s + max(optimizer_s, 0.0),
    )


def stage_rows(chart: Chart) -> Grid:
    """Return the table of stages, from 0: share of the pipeline's time in which each is idle, and peak GiB."""
    rows = (
        {"stage": str(stage), "idle": percent(chart.idle(stage)), "peak GiB": gib(float(held.max()))}
        for stage, (_, held) in enumerate(chart.memory)
    )
    return Grid.of(rows, fixed=("idle", "peak GiB"))


def chart_data(chart: Chart) -> dict[str, Any]:
    """Return the JSON of `explain --timeline --json`, without single events: title, notes, schedule (None for one
    stage), num_microbatches, pipeline_s, optimizer_s, and of each stage its chunks, busy_s, idle (a share), finish_s
    and peak_bytes.
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
                "peak_bytes": float(held.max()),
            }
            for stage, (_, held) in enumerate(chart.memory)
        ],
    }


def written(plan: Plan) -> tuple[str, str | None]:
    """Return (section of REPORT.md, text of trace.json) on the best candidate's simulated step; (section that says why,
    None) if it cannot be simulated.
    """
    try:
        with retraced("plan.json"):
            made = simulated(plan, plan.best)
    except InputError as error:
        return page_section("Schedule", ["It could not be simulated:", *map(str, error.problems)]), None
    where = "`trace.json` has every event, for https://ui.perfetto.dev."
    return page_section("Schedule", [*made.notes, stage_rows(made), where]), trace(made)


def trace(chart: Chart) -> str:
    """Return the trace file's text (Chrome's trace format), one event per line; equal charts give equal bytes. Above
    MOST_EVENTS events, those that begin in the middle of the step are left out, which `otherData` says.
    """
    total = sum(map(len, chart.events))
    share = min(1.0, MOST_EVENTS / total)
    begun_s, ending_s = chart.total_s * share / 2, chart.total_s * (1 - share / 2)

    def kept(at_s: float) -> bool:
        return at_s < begun_s or ending_s <= at_s < chart.total_s

    head: _Record = {"title": chart.title, "notes": list(chart.notes)}
    if share < 1.0:
        missing = f"those that begin from {begun_s:.6f} to {ending_s:.6f} s"
        head["left out"] = f"a step of {total:,} events is written without {missing}"
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in _records(chart, kept))
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(head)},"traceEvents":[\n{lines}\n]}}\n'


def _records(chart: Chart, kept: Callable[[float], bool]) -> Iterator[_Record]:
    """Yield the tracks of each stage with the events whose start time (s) `kept` accepts: work in the first lane,
    network events in as few further lanes as they need without overlap, and memory as a counter in GiB.
    """
    yield _named("process_name", _STAGES, 0, "pipeline stages")
    yield _named("process_name", _MEMORY, 0, "memory GiB")
    for stage, memory in enumerate(chart.memory):
        lanes: list[list[Event]] = [[]]  # the work, then the fewest lanes in which no events of the network overlap
        for event in sorted(chart.events[stage], key=lambda event: event.start_s):
            if event.kind not in _ON_NETWORK:
                lanes[0].append(event)
            elif (free := next((lane for lane in lanes[1:] if lane[-1].end_s <= event.start_s), None)) is not None:
                free.append(event)
            else:
                lanes.append([event])
        for lane, mine in enumerate(lanes):
            thread = _LANES * stage + lane
            yield _named("thread_name", _STAGES, thread, f"stage {stage}" + (f" network {lane}" if lane else ""))
            sorting = {"name": "thread_sort_index", "ph": "M", "pid": _STAGES, "tid": thread}
            yield {**sorting, "args": {"sort_index": thread}}
            yield from (_record(chart, stage, thread, event) for event in mine if kept(event.start_s))
        for at_s, value in zip(*(each.tolist() for each in memory), strict=True):
            if kept(at_s):
                counter = {"name": f"stage {stage} memory GiB", "ph": "C", "ts": _us(at_s), "pid": _MEMORY}
                yield {**counter, "args": {"GiB": round(value / GIB, 4)}}


def _record(chart: Chart, stage: int, thread: int, event: Event) -> _Record:
    """Return an event as a complete trace event, in microseconds; its name has the microbatch, if it is of one, and the
    chunk if there are several. The optimizer has no chunk.
    """
    name, colour = _LOOKS[event.kind]
    words, arguments = [name], {}
    if event.microbatch >= 0:
        words.append(str(event.microbatch))
        arguments["microbatch"] = event.microbatch
    if event.kind != OPTIMIZER:
        if chart.timeline.vpp > 1:
            words.append(f"chunk {event.chunk}")
        arguments |= {"chunk": event.chunk, "chunk of the model": stage + event.chunk * chart.timeline.pp}
    begin, end = _us(event.start_s), _us(event.end_s)
    return {
        "name": " ".join(words),
        "cat": event.kind,
        "ph": "X",
        "ts": begin,
        "dur": round(end - begin, 3),
        "pid": _STAGES,
        "tid": thread,
        "cname": colour,
        "args": arguments,
    }


def _named(kind: str, process: int, thread: int, name: str) -> _Record:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _us(at_s: float) -> float:
    """Return seconds as microseconds, rounded to a nanosecond."""
    return round(1e6 * at_s, 3)
