"""Measurement files as they are named on a command line: files or folders of them, all problems at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from symconfig.descriptor.measurements import Measurements, load_measurements
from symconfig.errors import InputError, Problem

ENDINGS = (".yaml", ".yml")
Read = tuple[tuple[str, Measurements], ...]


def read(names: Sequence[str]) -> Read:
    """Return (name, content) of all measurement files and folders; name is the file name without extension.

    The same file is read once, and files of one name are merged. Raises InputError with all files that cannot be read,
    or with row ids that two files share.
    """
    problems, read_files = list[Problem](), dict[Path, Measurements]()
    for name in names:
        try:
            paths = in_folder(Path(name))
        except InputError as error:
            problems += error.problems
            continue
        for path in paths:
            if os.path.realpath(path) in {os.path.realpath(known) for known in read_files}:
                continue  # a file that a folder before it holds
            try:
                read_files[path] = load_measurements(path)
            except InputError as error:
                problems += error.problems if path.suffix in ENDINGS else [_no_measurements(path, error)]
    if problems := problems or _shared(read_files):
        raise InputError(problems)
    return merged(tuple((path.stem, content) for path, content in read_files.items()))


def merged(files: Read) -> Read:
    """Return one entry per name, with the rows of all its files; other contents are those of the first."""
    together: dict[str, Measurements] = {}
    for name, content in files:
        rows = (*together[name].rows, *content.rows) if name in together else content.rows
        together[name] = content.model_copy(update={"rows": rows})
    return tuple(together.items())


def in_folder(path: Path) -> list[Path]:
    """Return [path] for a file, or the YAML files of a folder sorted by name. Raise InputError if it has none."""
    if not path.is_dir():
        return [path]
    paths = sorted(child for child in path.iterdir() if child.suffix in ENDINGS and child.is_file())
    if not paths:
        raise InputError("this folder holds no measurements", file=str(path), need="files that end in .yaml")
    return paths


def _no_measurements(path: Path, error: InputError) -> Problem:
    """Return one problem for a file that is not YAML by its name, or the read error if it does not exist."""
    if not path.exists():
        return error.problems[0]
    need = "measured runs (symconfig.measurements/1) in a file that ends in .yaml"
    return Problem("holds no measured runs", file=str(path), need=need, hint="symconfig calibrate, if it is a log")


def _shared(files: dict[Path, Measurements]) -> list[Problem]:
    """Return one problem for each pair of files with common row ids."""
    owner: dict[str, Path] = {}
    twice: dict[tuple[Path, Path], list[str]] = {}
    for path, content in files.items():
        for row in content.rows:
            if owner.setdefault(row.id, path) != path:
                twice.setdefault((owner[row.id], path), []).append(row.id)
    return [
        Problem(f"{len(ids)} ids stand in {first}, too", file=str(path), got=ids[0], hint="give one of the files only")
        for (first, path), ids in twice.items()
    ]
