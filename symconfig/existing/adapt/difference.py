"""Two versions of a file as `diff -u` shows them, whatever their line ends."""

from __future__ import annotations

import difflib

NO_NEWLINE = "\\ No newline at end of file\n"


def unified(file: str, before: bytes, after: bytes) -> str:
    """The difference with three lines around each change; nothing where there is none. `patch` takes it."""
    name = file.lstrip("/")
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in lines)


def _lines(data: bytes) -> list[str]:
    """Lines as diff knows them: only a line feed ends one."""
    parts = data.decode("utf-8", "replace").split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
