"""Which way gradients go: what each operator's backward makes, once it is known into which tensors nothing flows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from symconfig.graph.operator import Element, Gradients, Operator, Tensor, Use, Weight


def silenced(tensor: Tensor, silent: set[str]) -> Tensor:
    """Return an activation that says whether something flows back through it: not into ids, nor into silent ones."""
    if tensor.gradient and (tensor.name in silent or tensor.element is Element.INDEX):
        return replace(tensor, gradient=False)
    return tensor


def flowing(operators: Sequence[Operator], silent: set[str]) -> Iterator[Operator]:
    """Yield operators with what their backwards make, on tensors that say whether something flows back through them.

    silent: names of inputs into which nothing does; those of tensors that follow from such only are added. What loses
    its backward is not run again either.
    """

    def use(old: Use) -> Use:
        if isinstance(old.tensor, Weight) or not old.gradient:
            return old
        tensor = silenced(old.tensor, silent)
        return old if tensor is old.tensor else Use(tensor, old.along)

    for op in operators:
        inputs, gradients, modules = tuple(map(use, op.inputs)), op.gradients, op.modules
        if op.backward and not any(each.gradient for each in inputs if not isinstance(each.tensor, Weight)):
            gradients = Gradients.WEIGHTS if op.trainable else Gradients.NONE
            modules = modules if op.trainable else ()
        if gradients is Gradients.NONE:
            silent.update(each.name for each in op.outputs)
        outputs, saves, holds = (tuple(map(use, some)) for some in (op.outputs, op.saves, op.holds))
        new = (inputs, outputs, saves, holds, gradients)
        if new == (op.inputs, op.outputs, op.saves, op.holds, op.gradients):
            yield op
            continue
        yield replace(
            op, inputs=inputs, outputs=outputs, saves=saves, holds=holds, gradients=gradients, modules=modules
        )
