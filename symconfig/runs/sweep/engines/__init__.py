"""What runs the tasks of a sweep. An engine is one module here: `NAME`, `check(wanted)` and `run(tasks, wanted)`.

`run` yields the row of every task as it is done, in any order. A worker that dies takes nothing with it: its task is
tried again, at most `TRIES` times in all, and then yielded as lost. Closing the iterator stops the work.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from symconfig.errors import FailedError, InputError
from symconfig.runs.sweep.planner import planner
from symconfig.runs.sweep.task import Row, Status, Task

TRIES = 3
WAITING = 2  # tasks that wait at each worker of a cluster, so that none is idle


@dataclass(frozen=True, slots=True)
class Wanted:
    """jobs: tasks at once; None: as many as there are cores. address: of a cluster that runs already."""

    engine: str = "local"
    jobs: int | None = None
    address: str | None = None


@cache
def engines() -> dict[str, ModuleType]:
    """Return every engine by name."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return {module.NAME: module for module in sorted(modules, key=lambda module: str(module.NAME))}


def check(wanted: Wanted) -> None:
    """Check that this engine can run here. Asked before the work. Raises InputError."""
    known = engines()
    if wanted.engine not in known:
        raise InputError("wrong value", field="--engine", got=wanted.engine, need=" or ".join(known))
    known[wanted.engine].check(wanted)


def run(tasks: Sequence[Task], wanted: Wanted) -> Iterator[Row]:
    """Yield the row of every task.

    Raises FailedError where a worker of a cluster is another symconfig than this one.
    """
    rows: Iterator[Row] = engines()[wanted.engine].run(tasks, wanted)
    for row in rows:
        if row.planner != planner():
            raise FailedError(
                "a worker has another symconfig",
                field="--engine",
                got=row.planner,
                need=planner(),
                hint="the same version installed on every machine",
            )
        yield row


def lost(task: Task, why: str) -> Row:
    """Return the row of a task whose workers died."""
    return Row(task.id, Status.LOST, planner(), f"its worker died {TRIES} times: {why}")


def missing(package: str, name: str) -> InputError:
    """Build the error of an engine whose package is not installed."""
    return InputError(
        f"the engine {name} needs {package}, which is not installed",
        field="--engine",
        got=name,
        hint=f"pip install 'symconfig[{name}]', or pip install {package}",
    )
