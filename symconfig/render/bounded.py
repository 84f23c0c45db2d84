"""Filling templates that somebody else wrote: in a child process that may not run for ever nor take all memory.

Jinja's sandbox keeps a template from files and programs, not from loops within loops or from a text that doubles.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from symconfig.errors import InputError, Problem
from symconfig.render.files import File

MOST_SECONDS = 10
MOST_BYTES = 2**30  # of addresses, beyond what the process has
_PAGES = Path("/proc/self/statm")


class TooLongError(Exception):
    """A template has used its seconds of computing."""


def bounded(make: Callable[[], list[File]], what: str) -> list[File]:
    """Return what `make` gives, from a forked child. what: whose templates these are, for where the child says nothing.

    Raises InputError as `make` does, and where it takes longer than MOST_SECONDS or more memory than MOST_BYTES;
    RuntimeError for what else it raises.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(make, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status or not answer:
        raise InputError(
            f"its templates could not be filled in {MOST_SECONDS} s of computing and "
            f"{MOST_BYTES >> 20:,} MiB of memory",
            file=what,
        )
    data = json.loads(answer)
    if "defect" in data:
        raise RuntimeError(data["defect"])
    if "problems" in data:
        raise InputError([Problem(**problem) for problem in data["problems"]])
    return [File(**item) for item in data["files"]]


def _answer(make: Callable[[], list[File]], writer: int) -> NoReturn:
    """Run the child's whole life. It ends without the parent's handlers and buffers."""
    try:
        _limit()
        try:
            data: dict[str, Any] = {"files": [asdict(item) for item in make()]}
        except InputError as error:
            data = {"problems": [asdict(problem) for problem in error.problems]}
        except (TooLongError, MemoryError):
            raise
        except Exception as error:  # no template's fault: not to be told as one
            data = {"defect": f"{type(error).__name__}: {error}"}
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(data).encode())
        os._exit(0)
    finally:
        os._exit(1)


def _limit() -> None:
    """Limit the child: a signal after the seconds, which `fill` turns into a place in the template; the end a second
    later.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise TooLongError

    signal.signal(signal.SIGXCPU, stop)
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 1))
    with contextlib.suppress(OSError, ValueError):  # where the system has no such limit
        now = int(_PAGES.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, now + MOST_BYTES))
