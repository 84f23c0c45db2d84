"""Writes a folder over an older one, killed at every change of the disk in turn: `killed.py FOLDER swap|journal`.

Prints a JSON line for each kill: what is in the folder then, and after the next writer; the last for one that lived.
A process of its own forks at each of them, since it has little memory to copy.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from symconfig.render import publish
from symconfig.render.files import write
from tests.render.killing import NEW, older, state

_CHANGES = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree", "shutil.copyfile"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_MOST = 200


def killed_at(folder: Path, number: int) -> bool:
    """Write the newer files in a process that dies before its change of this number; whether it came so far."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] != 0
    left = number

    def changing(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
        if event in _CHANGES or opened:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(changing)
    try:
        write(NEW, folder, force=True)
    finally:
        os._exit(0)


def main(where: Path, how: str) -> None:
    os.fsync = lambda descriptor: None  # a kill does not take what the system has yet to write
    if how == "journal":
        publish._exchange = lambda one, other: False
    for number in range(1, _MOST):
        folder = where / str(number) / "out"
        folder.parent.mkdir()
        older(folder)
        killed = killed_at(folder, number)
        found = {"killed": killed, "state": state(folder)}
        with publish.alone(folder):
            found["settled"] = state(folder)
        write(NEW, folder, force=True)
        print(json.dumps({**found, "next": state(folder), "beside": os.listdir(folder.parent)}))
        if not killed:
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
