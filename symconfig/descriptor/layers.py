"""What the layers of a model are made of, where they are not all alike, and what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from symconfig.descriptor.strict import Count, PositiveInt, Sparse, Strict

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


class Turn(StrEnum):
    """Whether a layer uses a block whose weights several layers share."""

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
        """Return all that the block's operators depend on, except the sizes' values.

        (block, sorted names of sizes above 0, switches)
        """
        return (self.block, tuple(sorted(name for name, size in self.sizes.items() if size)), self.switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What distinguishes one layer's structure from another's; equal kinds have equal operators.

    mixer: block in place of attention, else the attention's name. window: attention sees a window or chunk only. rope:
    rope rotates queries and keys. beside: a second block with the same input as attention. attends: has attention.
    keys: which keys attention reads. again: runs with the weights of another layer. joins, closes, detached: see
    `Loop`. calls: use of a shared block. pairs: origin of keys and values. wide: its MLP has `wide_intermediate_size`.
    cut: some of the MLP's gates are cut off. input_norm: has the norm before the mixer, where the model has one there.
    """

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
        """Return whether its MLP is a mixture of experts."""
        return self.mlp is Mlp.MOE

    @property
    def name(self) -> str:
        """Return a name composed of the layer's parts.

        dense, moe or mixer (no MLP), then `_window` or `_indexed`, `_nope`, `_unnormed`, then the block in place of
        attention or beside it, then what it shares with other layers.
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
    """Return a problem for each list, by name, that has not one entry per layer; None entries are skipped."""
    return [
        f"{name} has {len(entries)} entries for {layers} layers"
        for name, entries in lists.items()
        if entries is not None and len(entries) != layers
    ]


def misplaced(mixers: Sequence[Mixer], mlp_layers: Sequence[bool] | None, layers: int) -> list[str]:
    """Return the problem of the first layer with two blocks, or with neither block nor MLP.

    A list of one text, empty if there is none.
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
    """Return a problem for each size that two mixers give different values; empty if there is none."""
    sizes: dict[str, int] = {}
    every = [(name, size) for mixer in mixers for name, size in mixer.sizes.items()]
    return [
        f"mixers give {name} as {sizes[name]} and as {size}"
        for name, size in every
        if sizes.setdefault(name, size) != size
    ]


class Loop(Sparse):
    """Layers that run several times for each token, with one set of weights. `num_hidden_layers` counts those that run.

    Where a turn starts, another state is added to the stream: the first turn's input (Dory), or what the other stack
    gave last (HRM).
    """

    rare: ClassVar[tuple[str, ...]] = ("joined", "normed", "closed", "detached")

    held: tuple[Count, ...] = Field(min_length=1, description="per layer that runs: which one it is of those held")
    joined: tuple[bool, ...] | None = Field(default=None, description="per layer: another state is added before it")
    normed: bool = Field(default=False, description="the stream is normed before it is joined, and so is what joins it")
    closed: tuple[bool, ...] | None = Field(default=None, description="per layer: its result is normed")
    detached: tuple[bool, ...] | None = Field(default=None, description="per layer: it runs without gradients")

    def lists(self) -> dict[str, tuple[object, ...] | None]:
        """Return the fields with one entry per layer, by dotted name; None where unset."""
        own = {"held": self.held, "joined": self.joined, "closed": self.closed, "detached": self.detached}
        return {f"loop.{name}": entries for name, entries in own.items()}

    def is_detached(self, layer: int) -> bool:
        """Return whether a layer runs without gradients."""
        return self.detached is not None and self.detached[layer]

    def holder(self, layer: int) -> int:
        """Return the first layer that runs with the same weights and is trained.

        The first one at all if none of them is trained.
        """
        same = [index for index, held in enumerate(self.held) if held == self.held[layer]]
        return next((index for index in same if not self.is_detached(index)), same[0])

    def problems(self) -> Iterator[str]:
        """Yield a problem if the stored layers are not numbered from 0 without gaps."""
        if sorted(set(self.held)) != list(range(len(set(self.held)))):
            yield "loop.held: layers that are held are numbered from 0, each at least once"


class SharedBlock(Sparse):
    """Attention and an MLP, held once or a few times, that many layers call before their own mixer (Zamba).

    They read the stream beside the token's embedding, a vector of twice the width; what they give goes through a
    projection of the layer's own and is added to what its mixer reads, not to the stream.
    """

    rare: ClassVar[tuple[str, ...]] = ("blocks", "mlp_rank", "attention_rank")

    layers: tuple[bool, ...] = Field(description="per layer: calls one")
    blocks: PositiveInt = Field(default=1, description="of them; layers call them in turn (Zamba 2)")
    mlp_rank: Count = Field(default=0, description="of low-rank matrices beside the MLP, each layer's own; 0: none")
    attention_rank: Count = Field(default=0, description="of those beside queries, keys and values; 0: none")

    def holder(self, layer: int) -> int:
        """Return the first layer that calls the same block as this layer.

        Raises ValueError for a layer that calls none.
        """
        callers = [index for index, calls in enumerate(self.layers) if calls]
        return callers[callers.index(layer) % self.blocks]


class Mixing(StrEnum):
    """How layers read and write several residual streams."""

    PREDICTED = "predicted"  # mixed before a layer, corrected behind it; the layer works on the first one (AltUp)
    HYPER = "hyper"  # each sublayer reads a weighed sum, is written into each, and they are mixed (DeepSeek-V4)
    INJECTED = "injected"  # the same, but that each goes on as it is (Hunyuan 4)
    GATED = "gated"  # what is read has a weight of each channel, by a low-rank projection (Qwen 4)


class Streams(Sparse):
    """A set of residual streams in place of one."""

    rare: ClassVar[tuple[str, ...]] = ("rank", "scaled", "iterations")

    count: PositiveInt = Field(ge=2)
    mixing: Mixing
    rank: PositiveInt | None = Field(default=None, description="of the projection that gates what is read")
    scaled: bool = Field(default=False, description="what a layer's own input reads has a scale of each channel")
    iterations: Count = Field(default=0, description="that make a mixing matrix doubly stochastic")


class LayerInputs(Strict):
    """An embedding of each token for every layer, from a table of its own (Gemma 3n, 4).

    It gates a narrow projection of the stream at the layer's end.
    """

    size: PositiveInt = Field(description="hidden_size_per_layer_input: channels for each layer")
    vocab_size: PositiveInt = Field(description="vocab_size_per_layer_input: rows of the table")
