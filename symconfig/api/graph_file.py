"""A JOB.yaml of `symconfig partition`: its keys are the options, `pins` and the cluster as a job of `plan` has them.

model: llama2-7b            # or program: FILE.yaml, or module: PKG:FACTORY
cluster: h100
gpus: 8
global_batch_size: 8
pins:
  layers.*.gate_up_proj: batch/2, a/4
  layers.*.gate.F: 4
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from symconfig.descriptor.document import Document, read_text
from symconfig.descriptor.yaml_strict import read_yaml
from symconfig.errors import InputError, nearest

_PATHS = ("program", "mesh")


def graph_file(path: str | Path, keys: Sequence[str]) -> Document:
    """Return the document of a file with these keys; paths are made relative to its folder if the file exists there.

    Raises InputError with all problems.
    """
    document = read_yaml(read_text(Path(path)), str(path))
    if not isinstance(document.data, dict):
        raise InputError(document.problem("the file must hold `name: value` lines"))
    problems = list(document.unread)
    for key, value in document.data.items():
        if key not in keys:
            problems.append(document.problem("there is no such key", (key,), of_key=True, hint=nearest(key, keys)))
        elif isinstance(value, dict | list) and key not in ("pins", "cluster"):
            problems.append(document.problem("must be one value", (key,)))
    pins = document.data.get("pins") or {}
    if not isinstance(pins, Mapping) or not all(type(value) in (str, int) for value in pins.values()):
        problems.append(document.problem("must hold `NAME: SPLIT` lines", ("pins",)))
    if problems:
        raise InputError(problems)
    return replace(
        document, data={key: _beside_job(key, value, Path(path).parent) for key, value in document.data.items()}
    )


def _beside_job(key: str, value: Any, folder: Path) -> Any:
    return str(folder / value) if key in _PATHS and isinstance(value, str) and (folder / value).is_file() else value
