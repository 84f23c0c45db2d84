"""The parts that blocks are built of: what the files of `graph/blocks` list as their `PARTS`, and the context of
each.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import LayerKind
from symconfig.descriptor.sections import Mixer as Declared
from symconfig.errors import InputError
from symconfig.graph import blocks, dims
from symconfig.graph.block import Block, Builder, Place
from symconfig.graph.implementation import Adapters, Implementation
from symconfig.graph.operator import Tensor, Weight


@dataclass(slots=True)
class Context:
    """Hold a builder with the model and the implementation it builds for. shared_heads: see Scheme. frozen: weights
    other than adapters are not trained. in_tower: of a vision tower, whose layers have no adapters and are never in low
    precision.
    """

    model: ModelDescriptor
    how: Implementation
    build: Builder
    shared_heads: bool = False
    frozen: bool = False
    in_tower: bool = False

    def weight(self, name: str, *dims: str, shared: bool = False, joined: bool = False) -> Weight:
        """Return a new weight, frozen if the context is. shared, joined: see Weight."""
        return Weight(name, dims, gradient=not self.frozen, shared=shared, joined=joined)

    @property
    def whole_look_up(self) -> bool:
        """Return whether every tensor-parallel rank holds the whole embedding table and all logits; never with tied
        embeddings.
        """
        return self.how.whole_look_up and not self.model.tie_word_embeddings

    def adapted(self, names: Sequence[str]) -> bool:
        targets = () if self.model.adapter is None or self.in_tower else self.model.adapter.target_modules
        return any(name in targets for name in names)

    def separate(self, whole: str, aliases: Sequence[str]) -> bool:
        """Return whether the parts of a fused linear layer (names `aliases`) are separate products. False if the fused
        layer (`whole`) has an adapter. Else true if the implementation neither joins linear layers nor lists `whole` in
        `linear.products`, or if a part has an adapter and the implementation's adapters are PLAIN.
        """
        if self.adapted((whole,)):
            return False
        joined = self.how.linear.joined or whole in self.how.linear.products
        return not joined or (self.adapted(aliases) and self.how.adapters is Adapters.PLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """Describe the part of a layer that mixes the tokens of a sequence: attention or an alternative.

    Args:
        name: the name in a model's descriptor.
        build: appends it to the normed stream x[B, S, D] of a layer of a kind, and returns y[B, S, D].
        sizes: sizes of its own dims, for a model that has it; sizes that the descriptor gives under `mixers.sizes`
            need not be in it.
        tensor_dims: its own dims that tensor parallelism may split.
        exchanged_dims: those of them that context parallelism splits instead of the sequence, where that must be
            whole.
        pieces: dims of which each tensor-parallel rank has an integer number.
        exchanged_pieces: those of `pieces` for which that also holds where the sequence is exchanged.
        norm_apart: the norm before it is never fused with its first linear layer.
        needs: sizes that a descriptor must give.
        may: sizes that it may give.
        switches: names of the switches that it may set.
        divides: sizes that must be divisible by another one.
    """

    name: str
    build: Callable[[Context, Tensor, LayerKind], Tensor]
    sizes: Callable[[ModelDescriptor], Mapping[str, float]] = lambda model: {}
    tensor_dims: tuple[str, ...] = ()
    exchanged_dims: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()
    exchanged_pieces: tuple[str, ...] = ()
    norm_apart: bool = False
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    divides: Mapping[str, str] = field(default_factory=dict)

    def problems(self, stated: Declared) -> Iterator[str]:
        """Yield a sentence for each fault in a descriptor's statement of the mixer: one for all needed sizes that are
        missing or 0, one for all unknown sizes, one for all unknown switches, and one for each non-zero pair of
        `divides` that does not divide.
        """
        sizes, known = stated.sizes, (*self.needs, *self.may)
        missing = [name for name in self.needs if not sizes.get(name)]
        if missing:
            yield f"{self.name} needs {', '.join(missing)} under sizes, each a positive number"
        if unknown := sorted(set(sizes) - set(known)):
            yield f"{self.name} has no size {', '.join(unknown)}; its sizes are {', '.join(known) or 'none'}"
        if unknown := sorted(set(stated.switches) - set(self.switches)):
            yield f"{self.name} has no switch {', '.join(unknown)}; it knows {', '.join(self.switches) or 'none'}"
        for whole, part in self.divides.items():
            if sizes.get(whole) and sizes.get(part) and sizes[whole] % sizes[part]:
                yield f"{self.name}: {whole} {sizes[whole]} is not divisible by {part} {sizes[part]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Describe a block before or after the layers.

    count: number of such blocks in a model. sizes, tensor_dims: as of a mixer, for a model that has such blocks.
    """

    kind: str
    place: Place
    build: Callable[[Context], Block]
    count: Callable[[ModelDescriptor], int] = lambda model: 1
    sizes: Callable[[ModelDescriptor], Mapping[str, float]] = lambda model: {}
    tensor_dims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """Hold all parts by name. ends: in the order of the model. tensor_dims: the graph's, then those of its parts.
    exchanged_dims: those of mixers.
    """

    mixers: Mapping[str, Mixer]
    ends: Mapping[str, End]
    tensor_dims: tuple[str, ...]
    exchanged_dims: tuple[str, ...]

    def mixer(self, name: str) -> Mixer:
        """Return the mixer of this name. Raise InputError with the known names if there is none."""
        if name not in self.mixers:
            known = ", ".join(sorted(self.mixers))
            raise InputError(f"there is no building block {name}", field="mixers.block", need=known)
        return self.mixers[name]


@cache
def parts() -> Parts:
    """Import every file of `graph/blocks` and return the Mixers and Ends listed in their `PARTS`, if any. Cached. Ends
    are sorted by Place. tensor_dims: the graph's, then those of the parts; exchanged_dims: those of mixers.
    """
    listed: list[Mixer | End] = []
    for module in sorted(pkgutil.iter_modules(blocks.__path__), key=lambda module: module.name):
        listed += getattr(importlib.import_module(f"{blocks.__name__}.{module.name}"), "PARTS", ())
    mixers = {part.name: part for part in listed if isinstance(part, Mixer)}
    order = tuple(Place)
    ends = sorted((part for part in listed if isinstance(part, End)), key=lambda end: order.index(end.place))
    own = tuple(dict.fromkeys(dim for part in listed for dim in part.tensor_dims))
    exchanged = tuple(dim for mixer in mixers.values() for dim in mixer.exchanged_dims)
    return Parts(mixers, {end.kind: end for end in ends}, (*dims.TENSOR_DIMS, *own), exchanged)


@cache
def place_of(kind: str) -> Place:
    """Return where blocks of a kind stand in the model; LAYER for a kind that is no End, also an unknown one."""
    end = parts().ends.get(kind)
    return Place.LAYER if end is None else end.place


@cache
def is_layer(kind: str) -> bool:
    """Return whether blocks of a kind are layers; true for every kind that is no End."""
    return place_of(kind) is Place.LAYER
