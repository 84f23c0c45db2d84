"""A process that is given one JSON request and answers in JSON: never a hang, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

LAST_LINES = 12  # of what a process wrote to its standard error, for the report of a crash
UTF8 = {"PYTHONUTF8": "1"}  # torch reads files of its own in the locale's encoding, which may be ASCII

Json = dict[str, Any]


def converse(
    script: Path,
    request: Json,
    env: Mapping[str, str],
    limits_s: tuple[float, float],
    heard: Callable[[Json], None],
    flags: Sequence[str] = (),
) -> tuple[str, tuple[str, ...]]:
    """Run a script in a new Python process, send it the request on standard input, and pass each JSON line it prints to
    `heard`.

    env: the whole environment, with UTF8 added. flags: Python's. limits_s: seconds until the first line, and between
    lines, after which it is killed. Returns how it ended (a sentence) and the last lines of its standard error. Raises
    ValueError for a line that is no JSON, and what `heard` raises.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(request).encode())
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, *flags, "-P", "-u", str(script)],
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
        how = f"did not answer within {limit_s:.0f} s" if silent.is_set() else f"ended with status {process.returncode}"
        return how, last_lines(errors.read().decode(errors="replace"))


def last_lines(text: str) -> tuple[str, ...]:
    return tuple([line for line in text.splitlines() if line.strip()][-LAST_LINES:])


def ask(who: str, module: str, request: Json, timeout_s: float) -> Json:
    """Run a module of symconfig with a JSON request, and return the JSON object on its last output line, which has a
    key "ok". A timeout, or a last line that is no such object, gives {"ok": False, "error": …} with status and last
    lines of standard error. The status alone does not matter. who: the name in the error.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **UTF8},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"{who} gave no answer within {timeout_s:g} s"}
    try:
        answer = json.loads(ended.stdout.strip().splitlines()[-1])
        if isinstance(answer, dict) and "ok" in answer:
            return answer
    except (IndexError, ValueError):
        pass
    return {
        "ok": False,
        "error": f"{who} ended with status {ended.returncode}; its last lines: " + " | ".join(last_lines(ended.stderr)),
    }
