"""Run the tasks of a sweep in worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from symconfig.errors import FailedError
from symconfig.runs.sweep.planner import planner
from symconfig.runs.sweep.task import Row, Status, Task, done
from symconfig.runs.sweep.worker import begin

TRIES = 3


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(tasks: Sequence[Task], jobs: int | None = None) -> Iterator[Row]:
    """Yield each task's row when done, in any order. Closing the iterator stops the work.

    jobs: worker processes; None: one per core. If a process dies, the tasks in progress are retried alone and are LOST
    after TRIES deaths. Raises FailedError if no worker process starts.
    """
    jobs = jobs or cores()
    # Neighbours share a model and a cluster, so that a process has most of what it derives of them in its caches.
    left = deque(sorted(tasks, key=lambda task: (task.model, task.cluster)))
    suspects = deque[Task]()
    deaths = Counter[str]()
    while left or suspects:
        waiting, at_once = (suspects, 1) if suspects else (left, min(jobs, len(left)))
        running: dict[Future[Row], Task] = {}
        with _processes(at_once) as pool:
            started = pool.submit(os.getpid)
            try:
                while waiting or running:
                    while waiting and len(running) < at_once:
                        future = pool.submit(done, waiting[0])
                        running[future] = waiting.popleft()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        row = future.result()
                        del running[future]
                        yield row
            except BrokenProcessPool:
                if started.exception() is not None:
                    hint = 'put the call under `if __name__ == "__main__":`, as Python asks of scripts with processes'
                    raise FailedError("no worker process starts", hint=hint) from None
        for task in running.values():
            deaths[task.id] += 1
            if deaths[task.id] < TRIES:
                suspects.append(task)
            else:
                yield _lost(task, f"it killed its worker {TRIES} times, perhaps for want of memory")


@contextmanager
def _processes(number: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of worker processes; they are killed in the middle of tasks at exit."""
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(number, context, begin, (lifeline,))
    try:
        yield pool
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        lifeline.close()


def _lost(task: Task, why: str) -> Row:
    return Row(task.id, Status.LOST, planner(), " ".join(why.split()))
