"""One task in a forked child of the process that has imported a framework: neither a crash nor a hang reaches the next.

megatron_runner loads it by path.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

LAST_LINES = 12
MEMORY_BYTES = 12 * 2**30  # addresses, of which torch takes some; --moe-layer-freq is evaluated, also '[1]*10000000000'


def isolated(
    id: str, task: Callable[[], dict[str, Any]], timeout_s: float, memory_bytes: int = MEMORY_BYTES
) -> dict[str, Any]:
    """Run `task` in a forked child and return its answer with its "seconds" and last nonempty "last_lines" of output. A
    crash, an answer that is empty, or more than timeout_s (then it is killed) gives {"id", "phases": [], "crash": how
    it ended} with these instead. memory_bytes: limit of the child's address space, where the system has one.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            with contextlib.suppress(ValueError, OSError):  # where the system has no such limit
                resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
            answer = json.dumps(task(), default=str).encode()
            sys.stdout.flush()
            sys.stderr.flush()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(answer)
            os._exit(0)
        os.close(writer)
        answer, timed_out = _read_until(reader, start + timeout_s)
        if timed_out:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    result: dict[str, Any] = {"id": id, "phases": []}
    if timed_out:
        result["crash"] = f"did not end within {timeout_s:g} s"
    elif status or not answer:
        result["crash"] = f"ended with status {status}"
    else:
        result = json.loads(answer)
    result["last_lines"] = [line for line in lines if line.strip()][-LAST_LINES:]
    result["seconds"] = time.perf_counter() - start
    return result


def _read_until(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """Return (all bytes of a pipe, False) once it closes, or (b"", True) if the deadline, by time.perf_counter, passes
    first; the descriptor is closed.
    """
    parts: list[bytes] = []
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while True:
            left = deadline - time.perf_counter()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return b"", True
            part = pipe.read(1 << 16)
            if not part:
                return b"".join(parts), False
            parts.append(part)
