"""What the layers of a model are made of, where they are not all alike: what mixes tokens, and what follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from symconfig.descriptor.strict import Count, Strict

NO_MIXER = "none"  # a block's name, for layers of an MLP only


class Mlp(StrEnum):
    """The part of a layer that follows the tokens' mixing."""

    DENSE = "dense"
    MOE = "moe"
    NONE = "none"


class Keys(StrEnum):
    """The keys that a layer's attention reads, but for those beyond a window."""

    ALL = ""
    CHOSEN = "indexed"  # an indexer of this layer's chooses them
    AS_BEFORE = "as_before"  # those that the last indexer chose


class Turn(StrEnum):
    """A layer's turn of the block that several layers share."""

    NONE = ""
    HOLDS = "sharing"  # calls it first, and so holds its weights
    CALLS = "shared"


class Pairs(StrEnum):
    """The origin of the keys and values that a layer's attention reads."""

    OWN = ""
    LENT = "lending"  # its own, and later layers read them
    BORROWED = "borrowing"  # those of the last layer of its kind that has some


class Mixer(Strict):
    """A building block that mixes tokens in place of attention; the planner knows it by its file in `graph/blocks`."""

    block: str = Field(min_length=1, description="its name there; none: nothing mixes tokens in these layers")
    sizes: dict[str, Count] = Field(default_factory=dict, description="of the dims that are its own")
    switches: tuple[str, ...] = Field(default=(), description="what of it is there that need not be, such as a bias")
    layers: tuple[bool, ...] | None = Field(default=None, description="per layer: has it; absent: all layers")
    beside_attention: bool = Field(
        default=False, description="attention reads the same input, and both results are added (Falcon-H1)"
    )

    def __hash__(self) -> int:
        return hash((self.block, tuple(sorted(self.sizes.items())), self.switches, self.layers, self.beside_attention))

    @property
    def structure(self) -> tuple[object, ...]:
        """Return all that its operators depend on, where its sizes are symbols."""
        return (self.block, tuple(sorted(name for name, size in self.sizes.items() if size)), self.switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """A kind of layer. mixer: a block's name. window: attention sees a window or a chunk only. rope: it turns queries
    and keys. beside: a second block that reads what attention reads. keys: which ones attention reads. input_norm:
    what mixes tokens reads a norm, where layers have one there. again: with the weights of a layer that runs, too.
    joins, closes, detached: see `Loop`. calls: a block of several layers. pairs: keys and values. wide: its MLP is
    as wide as `wide_intermediate_size` says. cut: a share of the MLP's gates is."""

    mixer: str
    mlp: Mlp = Mlp.DENSE
    window: bool = False
    rope: bool = True
    beside: str | None = None
    attends: bool = True
    keys: Keys = Keys.ALL
    again: bool = False
    joins: bool = False
    closes: bool = False
    detached: bool = False
    calls: Turn = Turn.NONE
    pairs: Pairs = Pairs.OWN
    wide: bool = False
    cut: bool = False
    input_norm: bool = True

    @property
    def moe(self) -> bool:
        """Tell whether its MLP is a mixture of experts."""
        return self.mlp is Mlp.MOE

    @property
    def name(self) -> str:
        """Compose a name of the layer's parts.

        dense, moe or mixer (no MLP), then `_window` or `_indexed`, `_nope`, `_unnormed`, then what stands in
        attention's place or beside it, then what it shares with other layers.
        """
        first = "mixer" if self.mlp is Mlp.NONE else str(self.mlp)
        own = "" if self.attends else f"_{'alone' if self.mixer == NO_MIXER else self.mixer}"
        companion = f"_with_{self.beside}" if self.beside else ""
        chosen = f"_{self.keys}" if self.keys else ""
        turned = ("" if self.rope else "_nope") + ("" if self.input_norm else "_unnormed")
        name = first + ("_window" if self.window else "") + chosen + turned + own + companion
        switched = [one for one in ("wide", "cut", "joins", "closes", "detached", "again") if getattr(self, one)]
        return "_".join([name, *filter(None, (self.calls, self.pairs)), *switched])


def wrong_lengths(lists: Mapping[str, Sequence[object] | None], layers: int) -> list[str]:
    """Say which lists, by name, have not one entry for each layer."""
    return [
        f"{name} has {len(entries)} entries for {layers} layers"
        for name, entries in lists.items()
        if entries is not None and len(entries) != layers
    ]


def misplaced(mixers: Sequence[Mixer], mlp_layers: Sequence[bool] | None, layers: int) -> list[str]:
    """Say which layer, the first of them, has two blocks, or neither a block nor an MLP."""
    everywhere = (True,) * layers
    for index in range(layers):
        own = [mixer.block for mixer in mixers if (mixer.layers or everywhere)[index]]
        if len(own) > 1:
            return [f"mixers: layer {index} has {' and '.join(own)}, need one at most"]
        if own == [NO_MIXER] and not (mlp_layers or everywhere)[index]:
            return [f"layer {index} has neither a mixer nor an MLP"]
    return []


def two_sizes(mixers: Sequence[Mixer]) -> list[str]:
    """Say which sizes blocks give otherwise than another block does."""
    sizes: dict[str, int] = {}
    every = [(name, size) for mixer in mixers for name, size in mixer.sizes.items()]
    return [
        f"mixers give {name} as {sizes[name]} and as {size}"
        for name, size in every
        if sizes.setdefault(name, size) != size
    ]
