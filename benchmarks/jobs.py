"""Random jobs, each planned as a command would: `python -m benchmarks.jobs COUNT OF PART` plans every OF-th from PART.

Each job runs in a child of a process that has imported the planner and planned nothing. A command's CPU seconds are
then those of that import and of the child. Between them `benchmarks.process.IMPORT` is measured, and all of it is
printed as one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.process import IMPORT, MIB, run

SEED = 20
MOST_S = 30  # CPU seconds of a job, after which it is stopped
BETWEEN = 20  # jobs between two measured imports
OUTCOMES = {0: "planned", 1: "infeasible", 2: "refused", -9: "stopped", -24: "stopped"}  # SIGKILL, SIGXCPU
NODES = (1, 1, 2, 2, 3, 4, 4, 6, 8, 8, 12, 16, 16, 24, 32, 48, 64, 64, 96, 128, 256, 512)
BATCHES = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
LENGTHS = (1024, 2048, 4096, 4096, 8192, 16384, 32768)
PINS = {
    "tp": ("1", "2", "4", "8", "2..8"),
    "pp": ("1", "2", "4", "8", "2..16"),
    "cp": ("1", "2", "1..4"),
    "vpp": ("1", "1..4"),
    "mbs": ("1", "2", "..4"),
    "zero": ("1",),
    "recompute": ("none", "selective", "full"),
}
PINNED, DEEPSPEED = 0.35, 0.2  # shares of the jobs with pins, and for DeepSpeed
SLOWEST = 5  # jobs that the record names


def jobs(count: int, seed: int = SEED) -> list[dict[str, Any]]:
    """Return so many jobs over the zoo's models and clusters, as arguments of `symconfig.plan`."""
    from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters, zoo_models

    draw = random.Random(seed)
    models, clusters = zoo_models(), zoo_clusters()
    drawn = []
    for _ in range(count):
        model, cluster = draw.choice(models), draw.choice(clusters)
        machine = load_cluster(cluster)
        gpus = machine.gpus_per_node * draw.choice(NODES)
        longest = load_model(model).max_position_embeddings
        pins = draw.sample(sorted(PINS), draw.choice((1, 2))) if draw.random() < PINNED else []
        drawn.append(
            {
                "model": model,
                "cluster": cluster,
                "gpus": min(gpus, machine.max_gpus or gpus),
                "global_batch_size": draw.choice(BATCHES),
                "seq_length": draw.choice([length for length in LENGTHS if length <= longest]),
                "backend": "deepspeed" if draw.random() < DEEPSPEED else "megatron",
                "pins": {name: draw.choice(PINS[name]) for name in pins},
            }
        )
    return drawn


def planned(job: dict[str, Any]) -> dict[str, Any]:
    """Plan a job in a child of this process: its CPU seconds, peak bytes and outcome."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S + 1))
        os._exit(_status(job))
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "peak_bytes": peak, "outcome": OUTCOMES.get(code, "defect")}


def _status(job: dict[str, Any]) -> int:
    """Plan it and return the status that the command would end with."""
    import symconfig
    from symconfig.errors import SymconfigError

    try:
        symconfig.plan(**job).to_json()
    except SymconfigError as error:
        return error.exit_code
    except Exception as error:
        print(f"{json.dumps(job)}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 70
    return 0


def main(count: int, of: int, part: int) -> None:
    run(IMPORT)  # before anything heavy is imported, and for its byte code
    units = []
    import symconfig.api.planning  # noqa: F401  (loaded in every child)

    started_s = time.process_time()
    rows = []
    for number, job in enumerate(jobs(count)[part::of]):
        if number % BETWEEN == 0:
            units.append(run(IMPORT).cpu_s)
        rows.append({**planned(job), "job": job})
    print(json.dumps({"start_cpu_s": started_s, "import_cpu_s": units, "rows": rows}))


def measure(count: int, processes: int = 2) -> dict[str, Any]:
    """Plan the jobs in so many processes at once: percentiles of a command's CPU seconds as a ratio to the import."""
    with ThreadPoolExecutor(processes) as pool:
        words = [("-m", "benchmarks.jobs", str(count), str(processes), str(part)) for part in range(processes)]
        parts = [json.loads(each.output) for each in pool.map(run, words)]
    unit_s = statistics.median(seconds for part in parts for seconds in part["import_cpu_s"])
    start_s = statistics.median(part["start_cpu_s"] for part in parts)
    rows = sorted((row for part in parts for row in part["rows"]), key=lambda row: float(row["cpu_s"]))
    ratios = [(start_s + row["cpu_s"]) / unit_s for row in rows]
    return {
        **{f"p{share}": round(percentile(ratios, share), 2) for share in (50, 90, 99)},
        "most": round(ratios[-1], 2),
        "import_cpu_s": round(unit_s, 3),
        "peak_mib": round(max(row["peak_bytes"] for row in rows) / MIB, 1),
        "jobs": len(rows),
        "outcomes": dict(sorted(Counter(row["outcome"] for row in rows).items())),
        "slowest": [
            {**row["job"], "outcome": row["outcome"], "cpu_s": round(row["cpu_s"], 2)} for row in rows[-SLOWEST:]
        ],
    }


def percentile(ordered: Sequence[float], share: int) -> float:
    """Return the smallest of the ordered values that so many in a hundred do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
