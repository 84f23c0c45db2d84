"""The schedule for Perfetto."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from symconfig.api.planning import plan
from symconfig.report.timeline import Chart, chart, simulated, trace
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import Times
from symconfig.units import GIB

FORWARD_S, BACKWARD_S, WEIGHT_S, OPTIMIZER_S = 1.0, 1.0, 1.0, 0.5
STATES, KEPT = 20e9, 3e9  # bytes of a stage, and of each microbatch that one of its chunks holds


def made(pp: int = 4, vpp: int = 1, m: int = 8, paired: bool = False, **others: Any) -> Chart:
    """Even stages: a forward of a chunk takes 1 s / vpp, a backward twice that. `others`: further times."""
    each = np.full((pp, vpp), 1.0 / vpp)
    times = Times(FORWARD_S * each, 0.0 * each, BACKWARD_S * each, WEIGHT_S * each, **others)
    line = simulate(times, m, paired=paired)
    memory = []
    for stage in range(pp):
        when, held = line.held(stage)
        memory.append((np.append(0.0, when), np.append(STATES, STATES + KEPT * held.sum(axis=1))))
    return chart("A pipeline", ("A note.",), line, memory, OPTIMIZER_S)


def events(text: str, phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == phase]


def tracks(text: str) -> dict[str, list[dict[str, Any]]]:
    """Complete events by the name of their track."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events(text, "M")
        if event["name"] == "thread_name"
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in events(text, "X"):
        found[names[event["pid"], event["tid"]]].append(event)
    return found


def test_one_track_a_stage_with_every_task_and_the_optimizer() -> None:
    found = tracks(trace(made(m=8)))
    assert [name for name in found if "network" not in name] == [f"stage {i}" for i in range(4)]
    for stage in range(4):
        kinds = [event["cat"] for event in found[f"stage {stage}"]]
        assert [kinds.count(kind) for kind in ("forward", "backward", "weight", "optimizer")] == [8, 8, 8, 1]
        assert {event["args"].get("microbatch") for event in found[f"stage {stage}"]} == {*range(8), None}
    assert found["stage 3"][0]["name"] == "forward 0"
    assert found["stage 3"][0]["ts"] == pytest.approx(3e6)


@pytest.mark.parametrize(("vpp", "paired"), [(1, False), (2, False), (2, True)])
def test_events_of_a_track_do_not_overlap(vpp: int, paired: bool) -> None:
    each = np.full((4, vpp), 0.3)
    found = tracks(trace(made(4, vpp, 16, paired, busy_s=0.1, lag_s=0.4, gather=each, reduce=each, hide=1.0)))
    for mine in found.values():
        for before, after in pairwise(sorted(mine, key=lambda event: (event["ts"], event["dur"]))):
            assert before["ts"] + before["dur"] <= after["ts"] + 2e-3


def test_a_message_is_received_and_collectives_run_beside_the_work() -> None:
    each = np.full((4, 1), 0.3)
    found = tracks(trace(made(busy_s=0.1, lag_s=0.2, gather=each, reduce=each)))
    assert sum(event["cat"] == "receive" for event in found["stage 1"]) == 2 * 8
    beside = [event["cat"] for name, mine in found.items() if name.startswith("stage 1 network") for event in mine]
    assert [beside.count(kind) for kind in ("gather", "reduce", "send")] == [1, 1, 2 * 8]


def test_a_counter_of_every_stage_has_its_memory() -> None:
    chart = made(m=8)
    counters = events(trace(chart), "C")
    for stage, (_, held) in enumerate(chart.memory):
        values = [event["args"]["GiB"] for event in counters if event["name"] == f"stage {stage} memory GiB"]
        assert max(values) == pytest.approx(held.max() / GIB, abs=1e-4)
        assert values[0] == pytest.approx(20e9 / GIB, abs=1e-4)


def test_a_long_step_keeps_its_ends_and_says_what_is_left_out() -> None:
    chart = made(16, 8, 256)
    text = trace(chart)
    assert len(text) < 6e6
    said = json.loads(text)["otherData"]["left out"]
    assert f"{sum(map(len, chart.events)):,} events" in said
    first = tracks(text)["stage 0"]
    assert first[-1]["cat"] == "optimizer"
    assert first[0]["ts"] == 0.0
    for before, after in pairwise(sorted(first, key=lambda event: event["ts"])):
        assert before["ts"] + before["dur"] <= after["ts"] + 2e-3


def test_a_step_of_any_batch_is_a_file_of_bounded_size_that_says_what_is_not_drawn() -> None:
    made_of = plan("llama3.1-8b", "h100", 32, 10**8, pins={"pp": "4"}, top=1).plan
    chart = simulated(made_of, made_of.best)
    assert len(trace(chart)) < 6e6
    assert f"{chart.timeline.left_out:,} microbatches of the steady part" in " ".join(chart.notes)


def test_equal_schedules_give_equal_bytes_without_a_time_of_day() -> None:
    assert trace(made()) == trace(made())
    assert set(json.loads(trace(made()))["otherData"]) == {"title", "notes"}
