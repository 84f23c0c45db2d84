"""Writes a folder over an older one, killed at every system call in turn: `killed.py FOLDER`.

Prints a JSON line for each kill: what is in the folder then, and after the next writer; the last for one that lived.
A process of its own forks at each of them, since it has little memory to copy.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from symconfig import resources
from symconfig.render.files import write
from tests.render.killing import NEW, inodes, older, state

_CALLS = ("open", "mkdir", "write", "fsync", "close", "rename", "unlink")
_MOST = 200


class _Killing:
    """The module `os`, whose calls kill the process at one of them: before it, or in the middle of a write."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._counted(name, real) if name in _CALLS else real

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if name == "write":
                    real(args[0], args[1][:2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return counted


def killed_at(folder: Path, number: int) -> bool:
    """Write the newer files in a process that dies at its call of this number; whether it came so far."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] != 0
    resources.os = _Killing(number)  # type: ignore[assignment]
    try:
        write(NEW, folder, force=True)
    finally:
        os._exit(0)


def main(where: Path) -> None:
    os.fsync = lambda descriptor: None  # a kill does not take what the system has yet to write
    for number in range(1, _MOST):
        folder = where / str(number) / "out"
        folder.parent.mkdir()
        older(folder)
        before = inodes(folder)
        killed = killed_at(folder, number)
        found = {
            "killed": killed,
            "state": state(folder),
            "marked": os.path.lexists(folder / resources.MARKER),
            "same": before.items() <= inodes(folder).items(),
        }
        write(NEW, folder, force=True)
        left = [path.name for path in folder.rglob("*") if path.name.startswith(".symconfig-")]
        print(json.dumps({**found, "next": state(folder), "left": left, "beside": os.listdir(folder.parent)}))
        if not killed:
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]))
