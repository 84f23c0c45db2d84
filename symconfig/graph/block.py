"""A piece of a model that repeats: its operators in order, its place in the model, and which way gradients go in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from symconfig.graph import dims as d
from symconfig.graph.operator import Element, Gradients, Operator, Tensor, Use, Weight

LAYER = "layer"  # the recompute module that every operator of a transformer layer belongs to
# All of a layer but its attention and every other matrix product: torchtitan's selective recompute by operator
# (_apply_ac_to_transformer_block: every second product's output is saved, and that of the attention).
OPERATORS = "operators"
DISCARDING = frozenset({"layernorm", "moe_act", "mla_up_proj", "gdn_norm_out", OPERATORS})


class Place(StrEnum):
    """A block's place in the model."""

    ENCODER = "encoder"  # makes of images what the block that makes the stream puts into it
    FIRST = "first"  # makes the stream from token ids, by look-up in the vocabulary's table
    LAYER = "layer"
    FURTHER = "further"  # predicts further tokens behind the last layer, and looks these up itself
    LAST = "last"  # ends the model with the loss

    @property
    def begins(self) -> bool:
        """Return whether the block stands before the layers, in the model's first chunk."""
        return self in (Place.ENCODER, Place.FIRST)

    @property
    def closes(self) -> bool:
        """Return whether the block's backward follows its forward immediately, so that only one microbatch is in flight
        there.
        """
        return self in (Place.FURTHER, Place.LAST)

    @property
    def outermost(self) -> bool:
        """Return whether the model begins or ends with the block, so that no message crosses that side."""
        return self in (Place.FIRST, Place.LAST)


@dataclass(frozen=True, slots=True)
class Block:
    """Describe a piece of the model that repeats: its operators in order, with one residual stream in and out.

    `discards`: recompute modules whose outputs are discarded, too, and recomputed just before they are used.
    `stops_early`: recomputation ends with the last tensor that a backward needs. `elsewhere`: names of the inputs,
    other than the stream, that another block makes and holds.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    discards: frozenset[str] = frozenset()
    stops_early: bool = False
    place: Place = Place.LAYER
    elsewhere: frozenset[str] = frozenset()

    @property
    def losses(self) -> tuple[Tensor, ...]:
        """Return the outputs without a hidden dim, which receive no gradient: losses."""
        return tuple(tensor for tensor in self.outputs if d.HIDDEN not in tensor.dims)


def with_needed_gradient(tensor: Tensor, without: set[str]) -> Tensor:
    """Return the tensor, without a gradient if its name is in `without` or it holds indices; else unchanged."""
    if tensor.gradient and (tensor.name in without or tensor.element is Element.INDEX):
        return replace(tensor, gradient=False)
    return tensor


def with_needed_gradients(operators: Sequence[Operator], without: set[str]) -> Iterator[Operator]:
    """Yield the operators with `gradients` and their tensors' `gradient` adjusted to inputs that need no gradient.

    If no activation of an operator has a gradient, it computes WEIGHTS gradients if it has trained weights, else NONE,
    and then leaves its recompute modules. An operator with gradients NONE, from the start or thereby, adds its outputs
    to `without` (names of tensors without a gradient, mutated). Index tensors never have a gradient. An operator
    without a change is yielded as the same object.
    """

    def use(old: Use) -> Use:
        if isinstance(old.tensor, Weight) or not old.gradient:
            return old
        tensor = with_needed_gradient(old.tensor, without)
        return old if tensor is old.tensor else Use(tensor, old.along)

    for op in operators:
        inputs, gradients, modules = tuple(map(use, op.inputs)), op.gradients, op.modules
        if op.backward and not any(each.gradient for each in inputs if not isinstance(each.tensor, Weight)):
            gradients = Gradients.WEIGHTS if op.trainable else Gradients.NONE
            modules = modules if op.trainable else ()
        if gradients is Gradients.NONE:
            without.update(each.name for each in op.outputs)
        outputs, saves, holds = (tuple(map(use, some)) for some in (op.outputs, op.saves, op.holds))
        new = (inputs, outputs, saves, holds, gradients)
        if new == (op.inputs, op.outputs, op.saves, op.holds, op.gradients):
            yield op
            continue
        yield replace(
            op, inputs=inputs, outputs=outputs, saves=saves, holds=holds, gradients=gradients, modules=modules
        )
