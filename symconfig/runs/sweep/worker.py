"""How a worker process of a sweep begins. It imports nothing heavy: the number of threads is set before NumPy."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

# Plans are weighed in small arrays: several threads a process only get in each other's way.
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}


def begin(lifeline: Connection) -> None:
    """Prepare a worker process: ignore SIGINT, use one thread, redirect stdout to stderr, and exit when the pipe
    closes.

    The pipe closes when the parent ends, even if it was killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(ONE_THREAD)
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)
