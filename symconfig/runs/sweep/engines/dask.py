"""A Dask cluster: every plan is one of its tasks, which it tries again elsewhere when a worker is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

from symconfig.errors import FailedError
from symconfig.runs.sweep.task import Row, Task, done

if TYPE_CHECKING:
    from symconfig.runs.sweep.engines import Wanted

NAME = "dask"
CONNECT_S = 10.0


def check(wanted: Wanted) -> None:
    """Check that the engine's package is there: raise InputError where not."""
    from symconfig.runs.sweep.engines import missing

    if find_spec("distributed") is None:
        raise missing("distributed", NAME)


def run(tasks: Sequence[Task], wanted: Wanted) -> Iterator[Row]:
    """Yield the rows as they are done. Raises FailedError where there is no such cluster."""
    from distributed import as_completed

    from symconfig.runs.sweep.engines import WAITING, lost

    with _client(wanted) as client:
        slots = wanted.jobs or WAITING * max(1, sum(client.ncores().values()))
        left, running = iter(tasks), dict[str, tuple[Any, Task]]()

        def submit(task: Task) -> Any:
            future = client.submit(done, task, key=f"symconfig-{task.id}", pure=False)
            running[future.key] = future, task
            return future

        try:
            finished = as_completed([submit(task) for task in islice(left, slots)])
            for future in finished:
                _, task = running.pop(future.key)
                for following in islice(left, 1):
                    finished.add(submit(following))
                if future.status == "finished":
                    yield future.result()
                else:
                    yield lost(task, str(future.exception()).splitlines()[0].rstrip("."))
        finally:
            with suppress(Exception):  # the cluster may be what is gone
                client.cancel([future for future, _ in running.values()], force=True)


def _client(wanted: Wanted) -> Any:
    """Return a client of the cluster at the address, or of one made here, which ends with it."""
    import dask
    from distributed import Client

    from symconfig.runs.sweep.engines import TRIES

    if wanted.address is None:
        with dask.config.set({"distributed.scheduler.allowed-failures": TRIES - 1}):
            return Client(n_workers=wanted.jobs, threads_per_worker=1, dashboard_address=None, silence_logs="CRITICAL")
    try:
        return Client(wanted.address, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise FailedError(
            f"the Dask scheduler does not answer: {error}".splitlines()[0].rstrip("."),
            field="--address",
            got=wanted.address,
        ) from None
