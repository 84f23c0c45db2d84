"""A Python that has imported some modules once: every process that its stand-in starts is a fork of it.

Frameworks take seconds to import, and symconfig half of one. `python` in the folder takes what Python takes: a script,
or `-m` and a module; options before them change nothing. Usage: python warm.py FOLDER MODULE...; `python` appears there
when the modules are imported.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any

SHIM = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"+"], [0, 1, 2])
request = {{"words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}}
server.sendall(json.dumps(request).encode() + b"\\n")
status = int(server.makefile().read() or 70)
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""
START_S = 300.0
POLL_S = 0.005


@contextlib.contextmanager
def warm(folder: Path, *modules: str, environment: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Give the stand-in for Python, as long as the process that it forks lives."""
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(folder), *modules],
            env={**os.environ, "PYTHONUTF8": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    program, ends = folder / "python", time.monotonic() + START_S
    try:
        while not program.exists():
            if server.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"no Python became warm: {(folder / 'log').read_text(errors='replace')[-4000:]}")
            time.sleep(POLL_S)
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def main(folder: Path, modules: Sequence[str]) -> None:
    """Serve requests for ever: whoever started this ends it."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all that was imported
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket"))
    server.listen()
    shim = folder / "shim"
    shim.write_text(SHIM.format(python=sys.executable, address=str(folder / "socket")), encoding="utf-8")
    shim.chmod(0o755)
    shim.rename(folder / "python")
    while True:
        peer, _ = server.accept()
        if os.fork() == 0:
            server.close()
            with contextlib.suppress(BrokenPipeError):
                _answer(peer)
            os._exit(0)
        peer.close()
        with contextlib.suppress(ChildProcessError):  # none is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _answer(peer: socket.socket) -> None:
    """Fork the process that was asked for and say how it ended; end it where nobody waits for it any more."""
    _, streams, _, _ = socket.recv_fds(peer, 1, 3)
    request = json.loads(peer.makefile().readline())
    process = os.fork()
    if process == 0:
        peer.close()
        _become(request, streams)
    for stream in streams:
        os.close(stream)
    ended = 0
    while not ended:
        if select.select([peer], [], [], POLL_S)[0]:
            os.kill(process, signal.SIGKILL)
        ended, status = os.waitpid(process, os.WNOHANG)
    peer.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Run the words as Python would, with these standard streams, and end as it would."""
    status = 1
    try:
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), encoding="utf-8")
        sys.stdout = _written(1)
        sys.stderr = _written(2, line_buffering=True, errors="backslashreplace")
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        words = list(dropwhile(lambda word: word.startswith("-") and word != "-m", request["words"]))
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, request["folder"])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _written(stream: int, **more: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(stream, "w")), encoding="utf-8", **more)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
