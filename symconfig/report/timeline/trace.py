"""The schedule in the Chrome trace format, for ui.perfetto.dev: a track a stage, its network's, and its memory's.

Format: "Trace Event Format" (Google, 2016): complete events X, counters C, metadata M; microseconds. Perfetto colours
by the name without its digits, Chrome's own viewer by `cname`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from symconfig.report.timeline.chart import LEFT_OUT, LOOKS, OPTIMIZER, Chart
from symconfig.report.timeline.windows import Window, windows
from symconfig.schedule.timeline import Event
from symconfig.units import GIB

# Of a longer step only pieces are written: so many take about 4 MB.
MOST_EVENTS = 24_000
_STAGES, _MEMORY = 0, 1  # process numbers: Perfetto shows the tracks of one together
_LANES = 1000  # track numbers of a stage: its work, then its network; more than ever overlap
_Record = dict[str, Any]


def trace(chart: Chart) -> str:
    """Write the file, an event a line; equal charts give equal bytes."""
    total = sum(map(len, chart.events))
    pieces = windows(chart.phases, chart.total_s * min(1.0, MOST_EVENTS / total))
    head: _Record = {"title": chart.title, "notes": list(chart.notes)}
    if len(pieces) > 1:
        missing = "; ".join(f"{before.end_s:.6f} to {after.start_s:.6f} s" for before, after in pairwise(pieces))
        head[LEFT_OUT] = f"a step of {total:,} events is written in pieces, without those that begin from {missing}"
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in _records(chart, pieces))
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(head)},"traceEvents":[\n{lines}\n]}}\n'


def _records(chart: Chart, pieces: Sequence[Window]) -> Iterator[_Record]:
    yield _named("process_name", _STAGES, 0, "pipeline stages")
    yield _named("process_name", _MEMORY, 0, "memory GiB")
    for stage in range(chart.timeline.pp):
        yield from _stage(chart, stage, pieces)
        yield from _counter(chart, stage, pieces)


def _stage(chart: Chart, stage: int, pieces: Sequence[Window]) -> Iterator[_Record]:
    """Yield a stage's tracks: work, one after the other, and the network on as many as overlap."""
    events = sorted(chart.events[stage], key=lambda event: event.start_s)
    work = [event for event in events if not LOOKS[event.kind].alongside]
    lanes = [work, *_apart([event for event in events if LOOKS[event.kind].alongside])]
    for lane, mine in enumerate(lanes):
        thread = _LANES * stage + lane
        yield _named("thread_name", _STAGES, thread, f"stage {stage}" + (f" network {lane}" if lane else ""))
        yield {"name": "thread_sort_index", "ph": "M", "pid": _STAGES, "tid": thread, "args": {"sort_index": thread}}
        kept = [event for event in mine if any(piece.start_s <= event.start_s < piece.end_s for piece in pieces)]
        if lane == 0:
            yield from _left_out(thread, kept, len(mine) - len(kept), pieces)
        yield from (_record(chart, stage, thread, event) for event in kept)


def _apart(events: Sequence[Event]) -> list[list[Event]]:
    """Divide events into tracks without overlap: each goes to the first that is free."""
    lanes: list[list[Event]] = []
    for event in events:
        free = next((lane for lane in lanes if lane[-1].end_s <= event.start_s), None)
        if free is None:
            lanes.append([event])
        else:
            free.append(event)
    return lanes


def _record(chart: Chart, stage: int, thread: int, event: Event) -> _Record:
    look = LOOKS[event.kind]
    words, arguments = [look.words], {}
    if event.microbatch >= 0:
        words.append(str(event.microbatch))
        arguments["microbatch"] = event.microbatch
    if event.kind != OPTIMIZER:
        if len(chart.timeline.placed[stage]) > 1:
            words.append(f"chunk {event.chunk}")
        arguments |= {"chunk": event.chunk, "chunk of the model": chart.timeline.placed[stage][event.chunk]}
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


def _left_out(thread: int, kept: Sequence[Event], missing: int, pieces: Sequence[Window]) -> Iterator[_Record]:
    """Yield something to see between the pieces, from the last event before to the first one after."""
    for before, after in pairwise(pieces):
        ends = [event.end_s for event in kept if event.start_s < before.end_s]
        starts = [event.start_s for event in kept if event.start_s >= after.start_s]
        begin, end = _us(max([before.end_s, *ends[-1:]])), _us(min([after.start_s, *starts[:1]]))
        yield {
            "name": LEFT_OUT,
            "cat": LEFT_OUT,
            "ph": "X",
            "ts": begin,
            "dur": round(end - begin, 3),
            "pid": _STAGES,
            "tid": thread,
            "cname": "grey",
            "args": {"events left out of this track": missing},
        }


def _counter(chart: Chart, stage: int, pieces: Sequence[Window]) -> Iterator[_Record]:
    memory = chart.memory[stage]
    for piece in pieces:
        first, end = np.searchsorted(memory.seconds, (piece.start_s, piece.end_s), side="left")
        before = max(0, first - 1)  # what the piece begins with
        for at_s, value in zip(memory.seconds[before:end].tolist(), memory.bytes[before:end].tolist(), strict=True):
            yield {
                "name": f"stage {stage} memory GiB",
                "ph": "C",
                "ts": _us(max(at_s, piece.start_s)),
                "pid": _MEMORY,
                "args": {"GiB": round(value / GIB, 4)},
            }


def _named(kind: str, process: int, thread: int, name: str) -> _Record:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _us(at_s: float) -> float:
    """Convert seconds to microseconds, to the nanosecond."""
    return round(1e6 * at_s, 3)
