"""A process that is given one JSON request and answers in JSON: never a hang, never a traceback."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

START_S = 300.0  # importing torch and a framework takes 2 to 4 s on an idle machine, on a very busy one minutes
GRACE_S = 10.0  # beyond a job's own limit, which the runner keeps
LAST_LINES = 12  # of what a process wrote to its standard error, for the report of a crash
UTF8 = {"PYTHONUTF8": "1"}  # torch reads files of its own in the locale's encoding, which may be ASCII

Json = dict[str, Any]


def converse(
    command: Sequence[str],
    request: Json,
    env: Mapping[str, str],
    limits_s: tuple[float, float],
    heard: Callable[[Json], None],
) -> tuple[str, tuple[str, ...]]:
    """Run a command, send it the request on standard input, and pass each JSON line it prints to `heard`.

    env: the whole environment, with UTF8 added. limits_s: seconds until the first line, and between lines, after which
    it is killed. Returns how it ended (a sentence) and the last lines of its standard error. Raises ValueError for a
    line that is no JSON, and what `heard` raises.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(request).encode())
        given.seek(0)
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**env, **UTF8},
            encoding="utf-8",
        )
        limit_s, silent = limits_s[0], threading.Event()

        def stop() -> None:
            silent.set()
            process.kill()

        with process:
            timer = threading.Timer(limit_s, stop)
            timer.start()
            for line in process.stdout or ():
                timer.cancel()
                heard(json.loads(line))
                limit_s = limits_s[1]
                timer = threading.Timer(limit_s, stop)
                timer.start()
            timer.cancel()
        errors.seek(0)
        how = f"did not answer within {limit_s:g} s" if silent.is_set() else f"ended with status {process.returncode}"
        lines = errors.read().decode(errors="replace").splitlines()
        return how, tuple([line for line in lines if line.strip()][-LAST_LINES:])
