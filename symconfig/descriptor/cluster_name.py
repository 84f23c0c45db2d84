"""A cluster's name with what differs from it: `h100 with network=4x200Gb/s and gpu_memory=96GB`.

A job records such a name, and the cluster is made again from it. `--set` adds to it; `h100@4x200 Gb/s` is short for its
network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.document import Document, shorten
from symconfig.descriptor.yaml_strict import plain
from symconfig.errors import InputError, Problem

_FIELD = r"[A-Za-z_][A-Za-z_0-9.]*"
_WITH = re.compile(rf"(?P<base>.+?) with (?P<changes>{_FIELD}\s*=.*)", re.DOTALL)
_NEXT = re.compile(rf"(?:\s*,\s*|\s+and\s+)(?={_FIELD}\s*=)")
_CHANGE = re.compile(rf"(?P<field>{_FIELD})\s*=\s*(?P<value>.*\S)\s*", re.DOTALL)
CLUSTER = "cluster"
_MOST = 100  # fields that differ
OVER = "over"  # before the network between two kinds of GPUs
_KINDS = re.compile(
    r"\s*(?P<one>.+?)\s*\*\s*(?P<ones>[1-9]\d{0,8})\s*\+\s*(?P<other>.+?)\s*\*\s*(?P<others>[1-9]\d{0,8})(?P<rest>.*)",
    re.DOTALL,
)
_OVER = re.compile(rf"\s+{OVER}\s+(?P<network>.*\S)\s*", re.DOTALL)


def kinds(name: str) -> tuple[tuple[str, int], tuple[str, int], str | None] | None:
    """Return ((name, GPUs), (name, GPUs), network) of a name as `h100*16 + a100-80gb*16 over 400Gb/s`.

    The network is the text after `over`, None without it. None is returned for a name of any other form. Raises
    InputError for other text after the second number of GPUs.
    """
    match = _KINDS.fullmatch(name)
    if match is None:
        return None
    over = _OVER.fullmatch(match["rest"])
    if match["rest"].strip() and over is None:
        need = f"nothing, or the network between them: {OVER} 400Gb/s"
        hint = "what differs stands with its kind: 'h100 with network=4x200Gb/s*16 + a100-80gb*16'"
        raise InputError(
            "cannot stand behind two kinds", field=CLUSTER, got=shorten(match["rest"].strip()), need=need, hint=hint
        )
    return (match["one"], int(match["ones"])), (match["other"], int(match["others"])), over["network"] if over else None


def split(name: str) -> tuple[str, dict[str, str]]:
    """Return (base, changes) of a cluster's name; changes are texts by field, {} for a plain name.

    `base with field=value, field=value` (or `and`) gives these fields; else `base@network` (at the last @) gives the
    field network. Raises InputError for more than 100 changes and for a field with two values.
    """
    match = _WITH.fullmatch(name)
    if match is not None:
        return match["base"], pairs(_NEXT.split(match["changes"]), CLUSTER)
    base, at, network = name.rpartition("@")
    return (base, {"network": network}) if at else (name, {})


def pairs(words: list[str], field: str) -> dict[str, str]:
    """Return `FIELD=VALUE` words as a dict of texts; a field given twice with the same value counts once.

    field: the option that errors name. Raises InputError for more than 100 words, or with a problem for each word of
    another form and each field with two values.
    """
    if len(words) > _MOST:
        raise InputError("too many fields differ", field=field, got=str(len(words)), need=f"at most {_MOST}, or a file")
    fields: dict[str, str] = {}
    problems = []
    for word in words:
        match = _CHANGE.fullmatch(word.strip())
        if match is None:
            need = "FIELD=VALUE as network=4x200Gb/s"
            problems.append(Problem("is no field of a cluster with a value", field=field, got=shorten(word), need=need))
        elif fields.setdefault(match["field"], match["value"]) != match["value"]:
            got = f"{fields[match['field']]} and {match['value']}"
            problems.append(Problem(f"{match['field']} is given twice", field=field, got=got, need="one value"))
    if problems:
        raise InputError(problems)
    return fields


def joined(base: str, changes: Mapping[str, str]) -> str:
    """Return a cluster's name with changes, as `base with f=v and g=w`; `base` itself if there are none.

    Changes that `base` states already are kept, and replaced where `changes` has the same field. Raises InputError as
    `split` does.
    """
    if not changes:
        return base
    plain_name, before = split(base)
    every = {**before, **changes}
    return f"{plain_name} with {' and '.join(f'{field}={value}' for field, value in every.items())}"


def as_document(changes: Mapping[str, str]) -> Document:
    """Return the changes as a Document without a file: dotted fields become nested dicts, texts are parsed as values.

    Raises InputError if a field is both a value and a section, as `gpu` beside `gpu.product`.
    """
    data: dict[str, Any] = {}
    for field, text in changes.items():
        *above, last = field.split(".")
        section = data
        for name in above:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise InputError(f"{name} is a value and a section", field=f"{CLUSTER}.{field}")
        if last in section:
            raise InputError(f"{last} is a value and a section", field=f"{CLUSTER}.{field}")
        section[last] = _value(text)
    return Document(data, file="")


def _value(text: str) -> Any:
    """Return the text's value as YAML reads it; text that YAML refuses stays text."""
    try:
        return plain(text)
    except ValueError:
        return text
