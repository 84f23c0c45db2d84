"""What layers of a model share: weights that several turns run with, a block that many layers call, keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from symconfig.descriptor.strict import Count, PositiveInt, Sparse, Strict


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
        """Return its fields with one entry per layer."""
        own = {"held": self.held, "joined": self.joined, "closed": self.closed, "detached": self.detached}
        return {f"loop.{name}": entries for name, entries in own.items()}

    def is_detached(self, layer: int) -> bool:
        """Tell whether a layer runs without gradients."""
        return self.detached is not None and self.detached[layer]

    def holder(self, layer: int) -> int:
        """Return the layer that holds the weights of another: the first to run with them that is trained."""
        same = [index for index, held in enumerate(self.held) if held == self.held[layer]]
        return next((index for index in same if not self.is_detached(index)), same[0])

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it."""
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
        """Return the first layer that calls the block that a layer calls."""
        callers = [index for index, calls in enumerate(self.layers) if calls]
        return callers[callers.index(layer) % self.blocks]


class Mixing(StrEnum):
    """The way in which layers read and write several residual streams."""

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
