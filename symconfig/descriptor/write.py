"""Descriptors as readable YAML, which the strict loader reads back to the same descriptors."""

from __future__ import annotations

from typing import Any

import yaml

from symconfig.descriptor.cluster import ClusterDescriptor, Kernels
from symconfig.descriptor.document import plain
from symconfig.descriptor.model import ModelDescriptor

_WIDTH = 116


class _Dumper(yaml.SafeDumper):
    """A dumper that keeps lists of numbers on one line, and quotes texts that YAML 1.2 reads as other values."""


def _listed(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    numbers = not any(isinstance(item, str | list | dict) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=numbers)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    try:
        quoted = not isinstance(plain(text), str)
    except ValueError:
        quoted = True
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if quoted else None)


_Dumper.add_representer(list, _listed)
_Dumper.add_representer(str, _text)


def descriptor_yaml(model: ModelDescriptor) -> str:
    """Return the model as YAML text: the fields that differ from their default, in the class's order."""
    return _dump(model.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def cluster_yaml(cluster: ClusterDescriptor) -> str:
    """Return the cluster as YAML text: all fields that were set, in the class's order."""
    return _dump(cluster.model_dump(mode="json", by_alias=True, exclude_unset=True))


def kernels_yaml(kernels: Kernels) -> str:
    """Return the kernel constants as YAML text of a file that clusters can name; unset ones are left out."""
    return _dump({"schema": "symconfig.kernels/1", **kernels.model_dump(mode="json", exclude_none=True)})


def _dump(fields: dict[str, Any]) -> str:
    text: str = yaml.dump(fields, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    if text.replace("\n", "").isprintable():
        return text
    escaped: str = yaml.dump(fields, Dumper=_Dumper, sort_keys=False, width=_WIDTH)  # control or bidi characters
    return escaped
