"""A block in attention's place as a family's file spells it: sizes and switches by the descriptor's names, with keys.

One table is read in both directions: a file's values give a mixer of the descriptor, and the mixer gives the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from symconfig.descriptor.layers import Mixer
from symconfig.descriptor.model import ModelDescriptor

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """A size that its key does not give as it stands.

    keys: that it reads. of: the size, of a file's values. write: the keys, of the model and the size; the first key is
    the size without it.
    """

    keys: tuple[str, ...]
    of: Callable[[Values], Any]
    write: Callable[[ModelDescriptor, int], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A kind of block. sizes, switches: each with its key; a switch without one is on, as the class has it."""

    name: str
    sizes: Mapping[str, str | Size] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    beside_attention: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """List the keys that it is read from."""
        sizes = (size.keys if isinstance(size, Size) else (size,) for size in self.sizes.values())
        return (*(key for keys in sizes for key in keys), *filter(None, self.switches.values()))

    def mixer(self, values: Values) -> dict[str, Any]:
        """Return the mixer of a file's values, as in the descriptor."""
        made: dict[str, Any] = {"block": self.name}
        if self.sizes:
            made["sizes"] = {
                name: size.of(values) if isinstance(size, Size) else values[size] for name, size in self.sizes.items()
            }
        if self.switches:
            made["switches"] = [name for name, key in self.switches.items() if not key or values.get(key)]
        return made | ({"beside_attention": True} if self.beside_attention else {})

    def write(self, model: ModelDescriptor) -> dict[str, Any]:
        """Return the keys of a model's mixer of this kind; none where it has no such mixer."""
        mixer = next((mixer for mixer in model.mixers if mixer.block == self.name), None)
        return {} if mixer is None else dict(self._pairs(model, mixer))

    def _pairs(self, model: ModelDescriptor, mixer: Mixer) -> Iterator[tuple[str, Any]]:
        for name, size in self.sizes.items():
            if not isinstance(size, Size):
                yield size, mixer.sizes[name]
            elif size.write is None:
                yield size.keys[0], mixer.sizes[name]
            else:
                yield from size.write(model, mixer.sizes[name]).items()
        yield from ((key, name in mixer.switches) for name, key in self.switches.items() if key)


def named(sizes: str, keys: str = "") -> dict[str, str | Size]:
    """Pair the names of sizes with their keys; with themselves where keys have the same names."""
    return dict(zip(sizes.split(), (keys or sizes).split(), strict=True))


def either(key: str, other: str, write: str | None = None) -> Size:
    """Return the size that a key gives, or else another one. write: the key to write, if not the first."""
    return Size(
        (key, *([write] if write else [])),
        lambda values: values[key] or values[other],
        lambda model, size: {write or key: size},
    )


def times_hidden(key: str) -> Size:
    """Return a width that a file states as a factor of the stream's."""
    return Size(
        (key,),
        lambda values: int(values[key] * values["hidden_size"]),
        lambda model, width: {key: width // model.hidden_size},
    )


def rank(key: str) -> Size:
    """Return the width of the steps' projection; auto: a sixteenth of the stream."""
    return Size((key,), lambda values: ceil(values["hidden_size"] / 16) if values[key] == "auto" else int(values[key]))
