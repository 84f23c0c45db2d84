"""The schedule in the Chrome trace format, for ui.perfetto.dev: a track a stage, its network's, and its memory's.

Format: "Trace Event Format" (Google, 2016): complete events X, counters C, metadata M; microseconds. Perfetto colours
by the name without its digits, Chrome's own viewer by `cname`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from symconfig.report.timeline.chart import LOOKS, OPTIMIZER, Chart
from symconfig.schedule.timeline import Event
from symconfig.units import GIB

# Of a longer step only the beginning and the end are written: so many take about 4 MB.
MOST_EVENTS = 24_000
_STAGES, _MEMORY = 0, 1  # process numbers: Perfetto shows the tracks of one together
_LANES = 1000  # track numbers of a stage: its work, then its network; more than ever overlap
_Record = dict[str, Any]


def trace(chart: Chart) -> str:
    """Return the trace file's text, one event per line; equal charts give equal bytes.

    Above MOST_EVENTS events the middle of the step is left out, which `otherData` says.
    """
    total = sum(map(len, chart.events))
    share = min(1.0, MOST_EVENTS / total)
    begun_s, ending_s = chart.total_s * share / 2, chart.total_s * (1 - share / 2)

    def written(at_s: float) -> bool:
        return at_s < begun_s or ending_s <= at_s < chart.total_s

    head: _Record = {"title": chart.title, "notes": list(chart.notes)}
    if share < 1.0:
        missing = f"those that begin from {begun_s:.6f} to {ending_s:.6f} s"
        head["left out"] = f"a step of {total:,} events is written without {missing}"
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in _records(chart, written))
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(head)},"traceEvents":[\n{lines}\n]}}\n'


def _records(chart: Chart, written: Callable[[float], bool]) -> Iterator[_Record]:
    """Yield the tracks of each stage (work, network lanes, memory) with the events whose start time `written`
    accepts.
    """
    yield _named("process_name", _STAGES, 0, "pipeline stages")
    yield _named("process_name", _MEMORY, 0, "memory GiB")
    for stage, memory in enumerate(chart.memory):
        events = sorted(chart.events[stage], key=lambda event: event.start_s)
        work = [event for event in events if not LOOKS[event.kind].alongside]
        for lane, mine in enumerate([work, *_apart([event for event in events if LOOKS[event.kind].alongside])]):
            thread = _LANES * stage + lane
            yield _named("thread_name", _STAGES, thread, f"stage {stage}" + (f" network {lane}" if lane else ""))
            sorting = {"name": "thread_sort_index", "ph": "M", "pid": _STAGES, "tid": thread}
            yield {**sorting, "args": {"sort_index": thread}}
            yield from (_record(chart, stage, thread, event) for event in mine if written(event.start_s))
        for at_s, value in zip(memory.seconds.tolist(), memory.bytes.tolist(), strict=True):
            if written(at_s):
                counter = {"name": f"stage {stage} memory GiB", "ph": "C", "ts": _us(at_s), "pid": _MEMORY}
                yield {**counter, "args": {"GiB": round(value / GIB, 4)}}


def _apart(events: Sequence[Event]) -> list[list[Event]]:
    """Return events distributed over the fewest lanes without overlap; they must be sorted by start."""
    lanes: list[list[Event]] = []
    for event in events:
        free = next((lane for lane in lanes if lane[-1].end_s <= event.start_s), None)
        if free is None:
            lanes.append([event])
        else:
            free.append(event)
    return lanes


def _record(chart: Chart, stage: int, thread: int, event: Event) -> _Record:
    """Return an event as a complete trace event, in microseconds."""
    look = LOOKS[event.kind]
    words, arguments = [look.words], {}
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
        "cname": look.traced,
        "args": arguments,
    }


def _named(kind: str, process: int, thread: int, name: str) -> _Record:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _us(at_s: float) -> float:
    """Return seconds as microseconds, rounded to a nanosecond."""
    return round(1e6 * at_s, 3)
