"""Measure how fast many plans are made: benchmarks/sweep.yaml on one core and two, by Ray and Dask, as commands.

`python -m tools bench-sweep [--every N] [--engines local,ray,dask] [--record FILE.json]`. Each figure is of all points,
or of every N-th; those of one core and of commands are of a tenth of them. CPU seconds count all processes of a run and
vary less than the wall's with what else the machine does. An engine that is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from symconfig.api.sweep import read_sweep
from symconfig.errors import InputError
from symconfig.runs.sweep import engines
from symconfig.runs.sweep.points import Point
from symconfig.runs.sweep.task import Task

SWEEP = Path(__file__).with_suffix(".yaml")
OPTIONS = {
    "model": "--model",
    "cluster": "--cluster",
    "backend": "--backend",
    "seq_length": "--seq-length",
    "gpus": "--gpus",
    "global_batch_size": "--global-batch-size",
}
COMMANDS, TENTH = 20, 10


def timed(work: Callable[[], Counter[str]]) -> dict[str, Any]:
    """Wall and CPU seconds, with those of processes that have ended."""
    cpu, wall = cpu_s(), time.perf_counter()
    counts = work()
    wall_s, plans = time.perf_counter() - wall, sum(counts.values())
    spent_s = cpu_s() - cpu
    return {
        "plans": plans,
        "wall_s": round(wall_s, 1),
        "plans_per_s": round(plans / wall_s, 2),
        "cpu_s": round(spent_s, 1),
        "cpu_s_per_plan": round(spent_s / plans, 3),
        "statuses": dict(counts),
    }


def cpu_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def through(points: Sequence[Point], engine: str, jobs: int) -> dict[str, Any]:
    """Of an engine whose processes are not this one's children, CPU seconds are not known."""
    tasks = [Task.of(point) for point in points]
    wanted = engines.Wanted(engine, jobs)
    found = timed(lambda: Counter(str(row.status) for row in engines.run(tasks, wanted)))
    return found if engine == "local" else {name: value for name, value in found.items() if "cpu" not in name}


def commands(points: Sequence[Point]) -> dict[str, Any]:
    """One process after another."""

    def work() -> Counter[str]:
        counts = Counter[str]()
        for point in points:
            words = [word for name, option in OPTIONS.items() for word in (option, str(point.job[name]))]
            command, there = [sys.executable, "-m", "symconfig", "plan", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
            ended = subprocess.run(command, capture_output=True, check=False, env=there)
            counts[{0: "planned", 1: "infeasible", 2: "refused"}.get(ended.returncode, "defect")] += 1
        return counts

    return timed(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="only every N-th point")
    parser.add_argument("--engines", default="local,ray,dask")
    parser.add_argument("--record", type=Path, help="write the figures there")
    asked = parser.parse_args()
    points = read_sweep(SWEEP).points[:: asked.every]
    tenth = points[::TENTH]
    runs: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": [round(value, 1) for value in os.getloadavg()],
        }
    }
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "one core": partial(through, tenth, "local", 1),
        "two cores, the same": partial(through, tenth, "local", 2),
        "commands": partial(commands, tenth[:: max(1, len(tenth) // COMMANDS)]),
    }
    work |= {f"{name}, two at once": partial(through, points, name, 2) for name in asked.engines.split(",")}
    for name, measure in work.items():
        try:
            runs[name] = measure()
        except InputError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print(f"{name}: {json.dumps(runs[name])}", flush=True)
    if asked.record is not None:
        asked.record.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
