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
from symconfig.render.files import File, Files, write

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


OLD = Files((File("plan.json", "old\n"), File("launch.sh", "old\n", executable=True), File("sub/a.txt", "old\n")))
NEW = Files((*(File(item.path, "new\n", item.executable) for item in OLD), File("sub/deep/b.txt", "new\n")))


def older(folder: Path) -> None:
    """Write the older result, with files of a user's own beside it."""
    write(OLD, folder)
    (folder / "train.log").write_text("mine\n")
    (folder / "ckpt").mkdir()
    (folder / "ckpt" / "step1.pt").write_bytes(b"mine")
    (folder / "latest").symlink_to("ckpt/step1.pt")


def inodes(folder: Path) -> dict[str, int]:
    """Return the inode of the folder and of all in it that the writers do not write."""
    ours = {folder / path for path in NEW.paths()}
    every = [folder, *(path for path in folder.rglob("*") if path not in ours)]
    return {str(path): path.lstat().st_ino for path in every if not path.name.startswith(".symconfig-")}


def state(folder: Path) -> str:
    """Say which result is there, whole, or that they are mixed. What was there before is there in any case."""
    assert (folder / "train.log").read_text() == "mine\n"
    assert (folder / "ckpt" / "step1.pt").read_bytes() == b"mine"
    assert os.readlink(folder / "latest") == "ckpt/step1.pt"
    assert all((folder / path).exists() for path in OLD.paths()), "a file is in a hidden folder only"
    found = {path: (folder / path).read_text() for path in NEW.paths() if (folder / path).exists()}
    texts = {name: {item.path: item.text for item in files} for name, files in (("old", OLD), ("new", NEW))}
    return next((name for name, text in texts.items() if found == text), "mixed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
