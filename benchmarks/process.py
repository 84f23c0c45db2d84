"""One new process measured: seconds, CPU seconds, peak memory; and beside it what all rows are a ratio to.

The unit is `python -c "import numpy, sympy"`: measured in turn with what is compared, it takes most of a machine's
speed and load out of a ratio. Ratios are of CPU seconds, user and system, which vary less than the clock on a machine
that others use, too. The kernel counts in a process's peak what its parent held when it started it: nothing heavy may
be imported where `run` is called.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMPORT = ("-c", "import numpy, sympy")
MIB = 2**20
SLOW_S = 20.0  # a process that takes longer is repeated less often
LEAST = 3  # processes of a slow row


@dataclass(frozen=True, slots=True)
class Run:
    """wall_s and cpu_s of one process, its peak resident bytes, its exit status and its standard output."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    status: int = 0
    output: str = ""


def run(words: Sequence[str], statuses: Iterable[int] = (0,)) -> Run:
    """Run Python with these words in a new process, with an empty user cache.

    Raises RuntimeError where it ends with a status that is not among `statuses`.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "XDG_CACHE_HOME": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles anew
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        for stream in (out, errors):
            stream.seek(0)
        if process.returncode not in statuses:
            message = errors.read().decode(errors="replace")
            raise RuntimeError(f"python {' '.join(words)} ended with {process.returncode}: {message}")
        output = out.read().decode()
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit, process.returncode, output)


def compared(words: Sequence[str], repeats: int, statuses: Iterable[int] = (0,)) -> dict[str, float]:
    """Run the command and the import in turn, and return medians; of the memory the most.

    Byte code is compiled before, as an installed package's is. A slow command is repeated less often.
    """
    run(IMPORT)
    first = run(words, statuses)
    if first.wall_s > SLOW_S:
        repeats = min(repeats, LEAST)
    pairs = [(run(IMPORT), run(words, statuses)) for _ in range(repeats)]
    return figures([own for _, own in pairs], [unit for unit, _ in pairs])


def figures(own: Sequence[Run], units: Sequence[Run]) -> dict[str, float]:
    """Return what is recorded of the runs of a command and of the imports between them."""
    cpu_s, import_cpu_s = (statistics.median(each.cpu_s for each in runs) for runs in (own, units))
    wall_s, import_wall_s = (statistics.median(each.wall_s for each in runs) for runs in (own, units))
    return {
        "ratio": round(cpu_s / import_cpu_s, 3),
        "wall_ratio": round(wall_s / import_wall_s, 3),
        "cpu_s": round(cpu_s, 3),
        "wall_s": round(wall_s, 3),
        "import_cpu_s": round(import_cpu_s, 3),
        "peak_mib": round(max(each.peak_bytes for each in own) / MIB, 1),
        "processes": len(own),
    }


def medians(printed: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each number that several processes have printed."""
    return {name: statistics.median(one[name] for one in printed) for name in printed[0]}
