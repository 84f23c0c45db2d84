"""Two results of one folder, an older and a newer one, and which of them is there."""

from __future__ import annotations

import os
from pathlib import Path

from symconfig.render.files import File, Files, write

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
