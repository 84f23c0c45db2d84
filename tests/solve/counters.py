"""Work of a search in counts that are the same on every machine: `python -m tests.solve.counters JOB` prints them.

`--record` writes those of all jobs into counters.json, the limits that `test_counters.py` holds a search to. Functions
are counted from outside: each of COUNTED is replaced wherever a module of symconfig has it. A change that renames one
changes its line here. Each job has a process of its own, so that nothing is known from another.
"""

from __future__ import annotations

import cProfile
import importlib
import json
import os
import pstats
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any

from symconfig.errors import InfeasibleError
from symconfig.resources import PACKAGE

LIMITS = Path(__file__).with_suffix(".json")
ROOM = 1.2  # over what was recorded, before a count is too much


@dataclass(frozen=True, slots=True)
class Counted:
    """A function whose calls are counted. elements: how many array elements a call has evaluated, of its result."""

    module: str
    function: str
    calls: str
    elements: Callable[[Any], int] | None = None


COUNTED = (
    Counted("symconfig.solve.branch_and_bound", "_evaluate", "batches weighed"),
    Counted("symconfig.cost.step", "evaluate", "steps evaluated", lambda cost: int(cost.step_s.size)),
    Counted("symconfig.cost.blocks", "evaluate", "blocks evaluated"),
    Counted("symconfig.solve.stages", "fastest_cut", "stage problems solved"),
    Counted("symconfig.schedule.simulate", "simulate", "schedules simulated"),
    Counted("symconfig.solve.run", "weigh_all", "searches"),
)


def job(model: str, cluster: str, gpus: int, batch: int, seq_length: int, **fields: Any) -> dict[str, Any]:
    """Return arguments of `symconfig.plan`."""
    sizes = {"gpus": gpus, "global_batch_size": batch, "seq_length": seq_length}
    return {"model": model, "cluster": cluster, **sizes, **fields}


JOBS = {
    "dense": job("llama2-13b", "a100-80gb", 64, 1024, 4096),
    "dense for DeepSpeed": job("llama3.1-8b", "h100", 16, 256, 4096, backend="deepspeed"),
    "experts": job("qwen3-30b-a3b", "h100", 32, 512, 4096),
    "many stages": job("gpt3-175b", "a100-80gb", 512, 1536, 2048),
    "pinned": job("mixtral-8x7b", "h100", 64, 1024, 4096, pins={"tp": "2", "pp": "4", "ep": "8"}),
    "cannot fit": job("llama2-70b", "v100-16gb", 8, 64, 4096),
}


def count(name: str) -> dict[str, int]:
    """Plan a job in this process, which has planned nothing before, and return what it took."""
    import symconfig

    counts = Counter[str]()
    for one in COUNTED:
        _replace(one, counts)
    profile = cProfile.Profile()
    profile.enable()
    try:
        search = symconfig.plan(**JOBS[name]).search
        counts["candidates weighed"], counts["candidates simulated"] = search.candidates, search.simulated
    except InfeasibleError:
        counts["refused"] = 1
    finally:
        profile.disable()
    counts["functions called"] = _called(profile)
    return dict(sorted(counts.items()))


def _replace(one: Counted, counts: Counter[str]) -> None:
    """Count the calls of a function in every module that has it. Raises AttributeError where there is no such one."""
    original = getattr(importlib.import_module(one.module), one.function)

    def counted(*arguments: Any, **named: Any) -> Any:
        counts[one.calls] += 1
        result = original(*arguments, **named)
        if one.elements is not None:
            counts[f"{one.calls}, elements"] += one.elements(result)
        return result

    update_wrapper(counted, original)
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "symconfig"]:
        for attribute, value in list(vars(module).items()):
            if value is original:
                setattr(module, attribute, counted)


def _called(profile: cProfile.Profile) -> int:
    """Return how often functions of symconfig were entered: what Python itself does, beside NumPy."""
    entries: dict[tuple[str, int, str], tuple[int, int]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return sum(calls for (file, _, _), (_, calls, *_) in entries.items() if file.startswith(str(PACKAGE)))


def counted(name: str) -> dict[str, int]:
    """Return what a job takes, counted in a new process. Raises RuntimeError with its error where it fails."""
    root = str(PACKAGE.parent)
    environment = {**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": "0"}
    words = [sys.executable, "-m", "tests.solve.counters", name]
    ended = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    return {name: int(value) for name, value in json.loads(ended.stdout).items()}


def excess(counts: dict[str, int], limits: dict[str, int]) -> list[str]:
    """Return a sentence for each count that is over its limit, or that has none."""
    return [
        f"{name}: {value:,}, recorded {limits.get(name, 0):,}"
        for name, value in counts.items()
        if value > ROOM * limits.get(name, 0)
    ]


def main(words: list[str]) -> None:
    if words == ["--record"]:
        limits = {name: counted(name) for name in JOBS}
        LIMITS.write_text(json.dumps(limits, indent=2) + "\n", encoding="utf-8")
    else:
        print(json.dumps(count(words[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
