"""Digests of the parts of a plan, which are written with it and held against it when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import KeyPath
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor

INPUTS: Mapping[str, type[BaseModel]] = {"model": ModelDescriptor, "cluster": ClusterDescriptor, "job": Job}
ANSWER = ("best", "alternatives", "beside", "search", "binding")
VERSION = "symconfig"
HISTORY, RL, TUNED = "history", "rl", "tuned"
SOMETIMES = (HISTORY, RL, TUNED)  # of plans that take over a run, and of those whose step has phases
_EXACT_FLOATS = 2**53  # above it, not every whole number is a float


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of plain data, as hexadecimal.

    Whole floats count as integers (1.0 as 1), so that reformatting the JSON keeps the digest.
    """
    text = json.dumps(_whole(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_FLOATS:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list | tuple) else value


def digests(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each of the `signed` parts of a plan's plain data, by name."""
    return {name: digest(value) for name, (_, value) in signed(data).items()}


def signed(data: Mapping[str, Any]) -> dict[str, tuple[KeyPath, Any]]:
    """Return the parts of a plan's plain data that have a digest: name to (key path, value), without those it lacks.

    The value of `search` is without its seconds.
    """
    inputs = data.get("inputs")
    parts: dict[str, tuple[KeyPath, Any]] = {}
    for name in INPUTS:
        if isinstance(inputs, dict) and name in inputs:
            parts[name] = (("inputs", name), inputs[name])
    for name in (VERSION, *ANSWER, *SOMETIMES):
        if name in data:
            value = data[name]
            if name == "search" and isinstance(value, dict):
                value = {key: inner for key, inner in value.items() if key != "seconds"}
            parts[name] = ((name,), value)
    return parts
