"""All cores of this machine: one process of symconfig on each, which plans one task after another.

A process that dies takes one task with it, and which one is known: in a pool of `concurrent.futures` all tasks would
fail together, and a script that starts one has to be guarded by `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING

from symconfig.errors import InputError
from symconfig.resources import PACKAGE
from symconfig.runs.sweep.task import Row, Task

if TYPE_CHECKING:
    from symconfig.runs.sweep.engines import Wanted
from collections import deque
from collections.abc import Iterable

NAME = "local"
# Plans are weighed in small arrays: several threads a process only get in each other's way.
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
WORKER = ("-P", "-m", "symconfig.runs.sweep.worker")  # what Python is told to run
LAST_S = 5.0  # in which a process that has closed its output ends


def check(wanted: Wanted) -> None:
    """Check the engine: raise InputError where it cannot run."""
    if wanted.address is not None:
        hint = "--engine ray or dask"
        raise InputError("is for a cluster", field="--address", got=wanted.address, hint=hint)


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(tasks: Sequence[Task], wanted: Wanted) -> Iterator[Row]:
    """Yield the rows as they are done."""
    with tempfile.TemporaryFile() as errors, selectors.DefaultSelector() as selector:
        pool = _Pool(Left(tasks), errors, selector)
        try:
            for _ in range(min(wanted.jobs or cores(), len(tasks))):
                pool.start()
            while selector.get_map():
                for key, _ in selector.select():
                    yield from pool.heard(key.data)
        finally:
            pool.stop()


class _Pool:
    """left: tasks that nobody has. errors: where the processes' standard error goes; a pipe that nobody reads fills."""

    def __init__(self, left: Left, errors: IO[bytes], selector: selectors.BaseSelector) -> None:
        self.left = left
        self.errors = errors
        self.selector = selector
        self.tries = Counter[str]()
        self.workers: list[_Worker] = []

    def start(self) -> None:
        """Start one more process, if there is anything for it."""
        if self.left:
            worker = _Worker(_process(self.errors), self.left.take())
            self.workers.append(worker)
            self.selector.register(worker.answers, selectors.EVENT_READ, worker)
            worker.begin()

    def heard(self, worker: _Worker) -> Iterator[Row]:
        """Handle a worker that has answered, or died."""
        from symconfig.runs.sweep.engines import TRIES, lost

        row = worker.answer()
        if row is not None and self.left:
            worker.task = self.left.take(worker.task)
            worker.begin()
        else:
            self.selector.unregister(worker.answers)
            self.workers.remove(worker)
            why = worker.end(LAST_S)
        if row is not None:
            yield row
            return
        self.tries[worker.task.id] += 1
        if self.tries[worker.task.id] < TRIES:
            self.left.add(worker.task)
        else:
            yield lost(worker.task, why)
        self.start()

    def stop(self) -> None:
        for worker in self.workers:
            worker.end(0.0)


def _process(errors: IO[bytes]) -> subprocess.Popen[str]:
    """Start a worker with this very symconfig, wherever it lies."""
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, *WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)},
        text=True,
        encoding="utf-8",
    )


@dataclass(slots=True, eq=False)
class _Worker:
    """A process, and the task that it has."""

    process: subprocess.Popen[str]
    task: Task

    @property
    def answers(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def begin(self) -> None:
        """Hand the task over. A process that is dead already is noticed when its answer is read."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(asdict(self.task)) + "\n")
            self.process.stdin.flush()

    def answer(self) -> Row | None:
        """Return the worker's answer; None: it died. A line comes whole, so that reading one does not wait."""
        try:
            return Row.from_dict(json.loads(self.answers.readline()))
        except ValueError:
            return None

    def end(self, patience_s: float) -> str:
        """End the worker, which may end by itself for so long; return how it ended."""
        with suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience_s)
        self.process.kill()
        status = self.process.wait()
        self.answers.close()
        if status >= 0:
            return f"ended with status {status}"
        name = signal.Signals(-status).name
        return f"killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")


Kin = tuple[str, str]  # model and cluster, as a task has them


class Left:
    """Tasks in their order, kin by kin."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._of: dict[Kin, deque[Task]] = {}
        self._taken = Counter[Kin]()
        for task in tasks:
            self.add(task)

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, task: Task) -> None:
        """Add a task behind its kin."""
        self._of.setdefault(_kin(task), deque()).append(task)

    def take(self, last: Task | None = None) -> Task:
        """Take a task of the kin of the one who has done `last`; else of what fewest have begun, the first.

        There must be one.
        """
        kin = _kin(last) if last is not None else None
        if kin is None or kin not in self._of:
            kin = min(self._of, key=lambda one: self._taken[one])
            self._taken[kin] += 1
        task = self._of[kin].popleft()
        if not self._of[kin]:
            del self._of[kin]
        return task


def _kin(task: Task) -> Kin:
    return task.model, task.cluster
