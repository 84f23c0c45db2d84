"""A process that is given one JSON request and answers in JSON: never a hang, never a traceback."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from symconfig.errors import SymconfigError

LAST_LINES = 12  # of what a process wrote to its standard error, for the report of a crash
UTF8 = {"PYTHONUTF8": "1"}  # torch reads files of its own in the locale's encoding, which may be ASCII

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a conversation. status: the process's own end; None when it was silent for `silent_s` or had said all
    that was wanted."""

    status: int | None
    silent_s: float | None
    last_lines: tuple[str, ...]


def converse(
    script: Path,
    request: Json,
    env: Mapping[str, str],
    limit_s: float,
    heard: Callable[[Json], float | None],
    flags: Sequence[str] = (),
) -> Ended:
    """Run a script with this Python (and its `flags`), and hear one JSON document a line.

    limit_s: until the first line. heard: returns the limit until the next one, or None when it has heard enough.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *flags, "-P", "-u", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**env, **UTF8},
            text=True,
            encoding="utf-8",
        )
        try:
            status, silent_s = _hear_all(process, json.dumps(request), limit_s, heard)
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        return Ended(status, silent_s, last_lines(errors.read().decode(errors="replace")))


def last_lines(text: str) -> tuple[str, ...]:
    return tuple([line for line in text.splitlines() if line.strip()][-LAST_LINES:])


def _hear_all(
    process: subprocess.Popen[str], request: str, limit_s: float, heard: Callable[[Json], float | None]
) -> tuple[int | None, float | None]:
    if process.stdin is None or process.stdout is None:
        raise SymconfigError("the process that was started has no pipes")
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    threading.Thread(target=_write, args=(process.stdin, request), daemon=True).start()
    limit: float | None = limit_s
    while limit is not None:
        try:
            line = lines.get(timeout=limit)
        except queue.Empty:
            return None, limit
        if line is None:
            return process.wait(), None
        limit = heard(json.loads(line))
    return None, None


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _write(stream: IO[str], request: str) -> None:
    try:
        stream.write(request)
        stream.close()
    except OSError:  # it died before it had read all: the reader reports that
        return


def ask(who: str, module: str, request: Json, timeout_s: float) -> Json:
    """Ask a module of symconfig: return the JSON object on the last line that it writes.

    Frameworks may print before it.

    It has a key "ok". A crash, a hang or noise instead is `ok: false` with an "error" about `who` and its last lines.
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
