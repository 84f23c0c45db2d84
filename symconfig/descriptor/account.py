"""What became of a `config.json`'s keys: which the class's defaults filled in, and which say nothing of the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.class_defaults import class_of
from symconfig.descriptor.architectures.keys import IDLE, idle_unless_read
from symconfig.descriptor.document import shorten

_ROPE = ("rope_parameters", "rope_scaling")
_IN_ROPE = {"rope_theta", "partial_rotary_factor", "rotary_emb_base", "rotary_pct", "rope_local_base_freq"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """filled: keys that the file does not have, with the values of its class. left_out: keys of the file that say
    nothing of the model, by why."""

    family: str
    filled: Mapping[str, Any]
    left_out: Mapping[str, tuple[str, ...]]

    def sentences(self) -> Iterator[str]:
        """Yield what a person is told of it."""
        if self.filled:
            filled = ", ".join(f"{key} {shorten(json.dumps(value), 40)}" for key, value in sorted(self.filled.items()))
            owner = class_of(self.family) or f"the code of {self.family}"
            yield f"not in the file, and filled in as {owner} does: {filled}"
        for why, keys in self.left_out.items():
            yield f"left out ({why}): {', '.join(keys)}"


def account(
    data: Mapping[str, Any], values: Mapping[str, Any], architecture: Architecture, outside: tuple[str, ...] = ()
) -> Account:
    """Return what became of a file's keys. values: as they were read. outside: keys around a text model's section."""
    known = {
        *(key for key in data if data[key] is not None),
        *(_IN_ROPE if any(isinstance(data.get(section), Mapping) for section in _ROPE) else ()),
    }
    filled = {key: values[key] for key in architecture.defaults if key not in known and values.get(key) is not None}
    reasons = {**IDLE, "no effect on a model of this family that is trained": frozenset(architecture.ignored)}
    idle = {why: tuple(key for key in data if key in keys and key != "model_type") for why, keys in reasons.items()}
    for key in (key for key in data if key not in architecture.defaults or not architecture.is_read(key)):
        if why := idle_unless_read(key):
            idle[why] = (*idle.get(why, ()), key)
    return Account(
        family=data["model_type"],
        filled={key: value for key, value in filled.items() if architecture.is_read(key)},
        left_out={why: keys for why, keys in {**idle, "not of the text model": outside}.items() if keys},
    )
