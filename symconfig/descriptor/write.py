"""Descriptors as readable YAML, which the strict loader reads back to the same descriptors."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from symconfig.descriptor.cluster import ClusterDescriptor, Kernels
from symconfig.descriptor.model import ModelDescriptor

_WIDTH = 116

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*\Z")
_RESERVED = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))  # also of YAML 1.1 readers


def descriptor_yaml(model: ModelDescriptor) -> str:
    """Return the model as YAML text with a newline at the end: fields that differ from their default, in class order.

    Sections are indented mappings and notes a list of lines; other values are on the line of their name.
    """
    fields = model.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    lines: list[str] = []
    for name, value in fields.items():
        if isinstance(value, dict):
            lines += [f"{name}:", *(f"  {key}: {_value(item)}" for key, item in value.items())]
        elif name == "notes":
            lines += [f"{name}:", *(f"  - {_value(item)}" for item in value)]
        else:
            lines.append(f"{name}: {_value(value)}")
    return "\n".join(lines) + "\n"


def cluster_yaml(cluster: ClusterDescriptor) -> str:
    """Return the cluster as YAML text: all fields that were set, in the class's order."""
    return _dump(cluster.model_dump(mode="json", by_alias=True, exclude_unset=True))


def kernels_yaml(kernels: Kernels) -> str:
    """Return the kernel constants as YAML text of a file that clusters can name; unset ones are left out."""
    return _dump({"schema": "symconfig.kernels/1", **kernels.model_dump(mode="json", exclude_none=True)})


def _dump(fields: dict[str, Any]) -> str:
    text = yaml.safe_dump(fields, sort_keys=False, width=_WIDTH, allow_unicode=True)
    if text.replace("\n", "").isprintable():
        return text
    return yaml.safe_dump(fields, sort_keys=False, width=_WIDTH)  # with control or bidi characters: escaped


def _value(value: Any) -> str:
    """Return one value as YAML on one line; lists in brackets, text plain or, where YAML could misread it, in quotes.

    Numbers, bools, None and dicts are written as JSON.
    """
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _RESERVED:
        return value
    if isinstance(value, str):
        # JSON's escapes are YAML's; DEL and the C1 controls, which YAML forbids bare, are escaped by hand.
        text = json.dumps(value, ensure_ascii=False)
        return "".join(
            ch if ch.isprintable() else (f"\\u{ord(ch):04x}" if ord(ch) < 0x10000 else f"\\U{ord(ch):08x}")
            for ch in text
        )
    return json.dumps(value)
