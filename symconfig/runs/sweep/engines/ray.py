"""A Ray cluster: every plan is one of its tasks, which it tries again elsewhere when a worker or a machine is lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from symconfig.errors import FailedError
from symconfig.runs.sweep.task import Row, Task, done

if TYPE_CHECKING:
    from symconfig.runs.sweep.engines import Wanted

NAME = "ray"
CONNECT_S = 10.0


def check(wanted: Wanted) -> None:
    """Check the engine: raise InputError where it cannot run."""
    from symconfig.runs.sweep.engines import missing

    if find_spec("ray") is None:
        raise missing("ray", NAME)


def run(tasks: Sequence[Task], wanted: Wanted) -> Iterator[Row]:
    """Yield the rows as they are done. Raises FailedError where there is no such cluster."""
    import ray
    from ray.exceptions import RayError

    from symconfig.runs.sweep.engines import TRIES, WAITING, lost

    started = not ray.is_initialized()
    if started:
        _connect(ray, wanted)
    # A task takes one CPU of the cluster; Ray then also gives its BLAS one thread.
    remote = ray.remote(num_cpus=1, max_retries=TRIES - 1)(done)
    slots = wanted.jobs or WAITING * max(1, int(ray.cluster_resources().get("CPU", 1)))
    left, running = iter(tasks), dict[Any, Task]()
    try:
        while True:
            for task in left:
                running[remote.remote(task)] = task
                if len(running) >= slots:
                    break
            if not running:
                return
            for reference in ray.wait(list(running))[0]:
                task = running.pop(reference)
                try:
                    yield ray.get(reference)
                except RayError as error:
                    yield lost(task, _first_line(error))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started:
            ray.shutdown()


def _connect(ray: Any, wanted: Wanted) -> None:
    """Connect to Ray: raise FailedError where nobody listens.

    Whether anybody listens is asked first: Ray itself asks for minutes.
    """
    host, _, port = (wanted.address or "").removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():
            socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(
            address=wanted.address,
            num_cpus=None if wanted.address else wanted.jobs,
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=None if wanted.address else False,
        )
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise FailedError(
            f"the Ray cluster does not answer: {_first_line(error)}", field="--address", got=wanted.address
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
