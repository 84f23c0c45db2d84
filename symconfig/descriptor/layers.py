"""What the layers of a model are made of, where they are not all alike, and what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from symconfig.descriptor.strict import Count, PositiveInt, Strict

NO_MIXER = "none"  # a block's name, for layers of an MLP only


class Mlp(StrEnum):
    """The kind of a layer's MLP."""

    DENSE = "dense"
    MOE = "moe"
    NONE = "none"


class Keys(StrEnum):
    """The keys that a layer's attention reads, but for those beyond a window."""

    ALL = ""
    CHOSEN = "indexed"  # an indexer of this layer's chooses them
    AS_BEFORE = "as_before"  # those that the last indexer chose


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
        """Return all that the block's operators depend on, except the sizes' values.

        (block, sorted names of sizes above 0, switches)
        """
        return (self.block, tuple(sorted(name for name, size in self.sizes.items() if size)), self.switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What distinguishes one layer's structure from another's; equal kinds have equal operators.

    mixer: block in place of attention, else the attention's name. window: attention sees a window or chunk only. rope:
    rope rotates queries and keys. beside: a second block with the same input as attention. attends: has attention.
    keys: which keys attention reads. pairs: origin of keys and values. wide: its MLP has `wide_intermediate_size`.
    """

    mixer: str
    mlp: Mlp = Mlp.DENSE
    window: bool = False
    rope: bool = True
    beside: str | None = None
    attends: bool = True
    keys: Keys = Keys.ALL
    pairs: Pairs = Pairs.OWN
    wide: bool = False

    @property
    def moe(self) -> bool:
        """Return whether its MLP is a mixture of experts."""
        return self.mlp is Mlp.MOE

    @property
    def name(self) -> str:
        """Return a name composed of the layer's parts, joined by `_`.

        First dense, moe or mixer (no MLP); then each that applies: window, the choice of keys, nope (no rope), the
        block in place of attention (`alone` for none), with_BLOCK beside attention, lent or borrowed keys and values,
        wide.
        """
        first = "mixer" if self.mlp is Mlp.NONE else str(self.mlp)
        own = "" if self.attends else f"_{'alone' if self.mixer == NO_MIXER else self.mixer}"
        companion = f"_with_{self.beside}" if self.beside else ""
        chosen = f"_{self.keys}" if self.keys else ""
        name = first + ("_window" if self.window else "") + chosen + ("" if self.rope else "_nope") + own + companion
        return "_".join([name, *filter(None, [self.pairs]), *(["wide"] if self.wide else [])])


def wrong_lengths(lists: Mapping[str, Sequence[object] | None], layers: int) -> list[str]:
    """Return a problem for each list, by name, that has not one entry per layer; None entries are skipped."""
    return [
        f"{name} has {len(entries)} entries for {layers} layers"
        for name, entries in lists.items()
        if entries is not None and len(entries) != layers
    ]


def misplaced(mixers: Sequence[Mixer], mlp_layers: Sequence[bool] | None, layers: int) -> list[str]:
    """Return the problem, as a list of one text, of the first layer with two blocks, or with NO_MIXER and no MLP.

    Empty if there is none. layers: their number. mlp_layers: per layer, whether it has an MLP; None: all.
    """
    everywhere = (True,) * layers
    for index in range(layers):
        own = [mixer.block for mixer in mixers if (mixer.layers or everywhere)[index]]
        if len(own) > 1:
            return [f"mixers: layer {index} has {' and '.join(own)}, need one at most"]
        if own == [NO_MIXER] and not (mlp_layers or everywhere)[index]:
            return [f"layer {index} has neither a mixer nor an MLP"]
    return []


def two_sizes(mixers: Sequence[Mixer]) -> list[str]:
    """Return a problem for each size that differs from that of the first mixer that has it; empty if there is none."""
    sizes: dict[str, int] = {}
    every = [(name, size) for mixer in mixers for name, size in mixer.sizes.items()]
    return [
        f"mixers give {name} as {sizes[name]} and as {size}"
        for name, size in every
        if sizes.setdefault(name, size) != size
    ]


class Streams(Strict):
    """A set of residual streams in place of one, joined by hyper-connections (DeepSeek-V4, arXiv:2512.24880).

    Each sublayer reads a weighed sum of the streams, is written into each, and they are mixed.
    """

    count: PositiveInt = Field(ge=2)
    iterations: Count = Field(default=0, description="that make a mixing matrix doubly stochastic")


class LayerInputs(Strict):
    """An embedding of each token for every layer, from a table of its own (Gemma 4).

    It gates a narrow projection of the stream at the layer's end.
    """

    size: PositiveInt = Field(description="hidden_size_per_layer_input: channels for each layer")
    vocab_size: PositiveInt = Field(description="vocab_size_per_layer_input: rows of the table")
