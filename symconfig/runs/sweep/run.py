"""The plans of a sweep in worker processes of this machine: plain text goes in, a row comes out, whatever happens."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from symconfig import resources
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import FailedError, InfeasibleError, SymconfigError
from symconfig.install import VERSION
from symconfig.plans import TOP
from symconfig.runs.best import best_plan
from symconfig.runs.sweep.columns import COLUMNS, Value, inputs, planned
from symconfig.runs.sweep.job import Point

# Plans are weighed in small arrays: several threads a process only get in each other's way.
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}


class Status(StrEnum):
    """PLANNED, INFEASIBLE and REFUSED are answers, which never change; DEFECT and LOST are worth another try."""

    PLANNED = "planned"
    INFEASIBLE = "infeasible"
    REFUSED = "refused"
    DEFECT = "defect"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Task:
    """A point with its job and descriptors as JSON: no file is needed where it is done."""

    id: str
    job: str
    model: str
    cluster: str

    @staticmethod
    def of(point: Point) -> Task:
        described = (one.model_dump_json(by_alias=True, exclude_unset=True) for one in (point.model, point.cluster))
        return Task(point.id, json.dumps(dict(point.job)), *described)


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a task. values: the columns taken from the plan; planner: symconfig's release."""

    id: str
    status: Status
    planner: str = VERSION
    reason: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Row:
        """Return the row of plain data. Raises KeyError, TypeError or ValueError for anything else."""
        texts = [data["id"], data["planner"], data["reason"]]
        if not all(isinstance(text, str) for text in texts) or not isinstance(data["values"], dict):
            raise TypeError("is not a row")
        return Row(data["id"], Status(data["status"]), data["planner"], data["reason"], data["values"])


def done(task: Task) -> Row:
    """Return the row of a task: PLANNED with the plan's columns, INFEASIBLE, REFUSED for another SymconfigError, or
    DEFECT. It raises no Exception; reasons are the error's sentences.
    """
    try:
        plan = best_plan(_model(task.model), _cluster(task.cluster), Job.model_validate_json(task.job), top=TOP)
        return Row(task.id, Status.PLANNED, values=planned(plan))
    except SymconfigError as error:
        status = Status.INFEASIBLE if isinstance(error, InfeasibleError) else Status.REFUSED
        return Row(task.id, status, reason=" ".join(map(str, error.problems)))
    except Exception as error:
        return Row(task.id, Status.DEFECT, reason=f"{type(error).__name__}: {error}")


# Kept between tasks: what is derived of a model is found again only for an equal one, and comparing one with itself is
# quick.
@lru_cache(maxsize=64)
def _model(text: str) -> ModelDescriptor:
    return ModelDescriptor.model_validate_json(text)


@lru_cache(maxsize=64)
def _cluster(text: str) -> ClusterDescriptor:
    return ClusterDescriptor.model_validate_json(text)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(tasks: Sequence[Task], jobs: int | None = None) -> Iterator[Row]:
    """Yield each task's row when done, in any order. Closing the iterator stops the work. jobs: worker processes; None:
    one per core. If a process dies, the tasks in progress are tried again one at a time, and a task whose process dies
    then is LOST. Raises FailedError if no worker process starts.
    """
    jobs = jobs or cores()
    # Neighbours share a model and a cluster, so that a process has most of what it derives of them in its caches.
    left = deque(sorted(tasks, key=lambda task: (task.model, task.cluster)))
    suspects = deque[Task]()
    while left or suspects:
        alone = bool(suspects)
        waiting, at_once = (suspects, 1) if alone else (left, min(jobs, len(left)))
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
            if alone:
                yield Row(task.id, Status.LOST, reason="its worker process was killed, perhaps for want of memory")
            else:
                suspects.append(task)


@contextmanager
def _processes(number: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of `number` spawned processes, each with one thread per library. At exit, or when this process ends,
    they end at once, even within a task. The thread variables in os.environ are set meanwhile, and restored.
    """
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # inherited by the workers, before they import NumPy
    pool = ProcessPoolExecutor(number, context, _begin, (lifeline,))
    try:
        yield pool
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        lifeline.close()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _begin(lifeline: Connection) -> None:
    """Prepare a worker process: ignore SIGINT, send stdout to stderr, and start a thread that exits with 1 when the
    pipe closes, which it does when the parent ends, even if killed.
    """

    def end_with_parent() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv_bytes()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    threading.Thread(target=end_with_parent, daemon=True).start()


Key = tuple[str, str]  # id of the point, and symconfig's release


@dataclass(frozen=True, slots=True)
class Done:
    """The progress of a sweep. rows: points with a row; fresh: rows of this run; unplanned: rows without a plan."""

    points: int
    rows: int
    fresh: int
    unplanned: int


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep. rows: by point id, only points done. known: number of rows taken from the journal.
    interrupted: whether points are missing.
    """

    points: tuple[Point, ...]
    rows: Mapping[str, Row]
    known: int
    interrupted: bool

    @property
    def counts(self) -> Counter[Status]:
        """Return the number of rows by status."""
        return Counter(row.status for row in self.rows.values())

    @property
    def records(self) -> list[dict[str, Value]]:
        """Return the table's rows as {column: value}, for the points that have a row: id, inputs, then the plan's
        values, which win, status and reason.
        """
        answered = ((point, self.rows[point.id]) for point in self.points if point.id in self.rows)
        return [
            {"id": point.id, **inputs(point.job), **row.values, "status": str(row.status), "reason": row.reason}
            for point, row in answered
        ]


def sweep(
    points: Sequence[Point], out: Path, fresh: bool, progress: Callable[[Done], None], jobs: int | None = None
) -> Swept:
    """Plan all points that the journal beside `out` lacks, and write journal and table; return the rows. On Ctrl-C it
    stops and writes the rows so far (`interrupted`). Rows of another release, defects and lost ones are planned again.
    fresh: the journal is emptied first. jobs: worker processes; None: one per core. progress: called after each new
    row. Raises InputError if an output cannot be written, FailedError if no worker process starts.
    """
    check(out)
    path = journal_of(out)
    kept = {} if fresh else read_journal(path)
    again = (Status.DEFECT, Status.LOST)
    known = {point.id: row for point in points if (row := kept.get((point.id, VERSION))) and row.status not in again}
    rows, interrupted = dict(known), False
    with appending(path, fresh) as append:
        try:
            for row in run_tasks([Task.of(point) for point in points if point.id not in known], jobs):
                append(row)
                rows[row.id] = row
                unplanned = sum(one.status is not Status.PLANNED for one in rows.values())
                progress(Done(len(points), len(rows), len(rows) - len(known), unplanned))
        except KeyboardInterrupt:
            interrupted = True
    done = Swept(tuple(points), rows, len(known), interrupted)
    resources.write_file(out, _csv(done.records))
    return done


def check(out: Path) -> None:
    """Raise InputError if the table cannot be written at `out` or its name does not end in .csv."""
    resources.check_output(out, "--out", (".csv",), "no table has this ending", "a name that ends in .csv")


def _csv(records: Sequence[Mapping[str, Value]]) -> bytes:
    """Return the table as CSV in UTF-8 with a header of COLUMNS; booleans in lower case, None and missing columns as
    empty cells, other values by str.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [column.name for column in COLUMNS]
    writer.writerow(names)
    for record in records:
        cells = (record.get(name) for name in names)
        writer.writerow("" if one is None else str(one).lower() if isinstance(one, bool) else str(one) for one in cells)
    return text.getvalue().encode()


def journal_of(out: Path) -> Path:
    """Return the path of a table's journal."""
    return out.with_name(out.name + ".journal")


def read_journal(path: Path) -> dict[Key, Row]:
    """Return {(point's id, symconfig's release): row} of a journal, the last row of each; {} without a file. Malformed
    lines are skipped. Raises InputError if the file cannot be read.
    """
    rows: dict[Key, Row] = {}
    if path.exists():
        with resources.opened(path) as stream:
            for line in stream:
                try:
                    row = Row.from_dict(json.loads(line))
                except (KeyError, TypeError, ValueError, RecursionError):
                    continue
                rows[row.id, row.planner] = row
    return rows


@contextmanager
def appending(path: Path, fresh: bool = False) -> Iterator[Callable[[Row], None]]:
    """Yield a function that appends a row as a line of JSON and syncs it to disk. fresh: the file is emptied first. A
    last line without an end is ended first. Raises InputError if the file cannot be written.
    """
    with resources.appending(path, fresh) as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read() != b"\n":  # a torn line stays one of its own
                stream.write(b"\n")

        def add(row: Row) -> None:
            """Append the row as a line of JSON and fsync the file."""
            stream.write(json.dumps(asdict(row), ensure_ascii=False, allow_nan=False).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

        yield add
