"""Blocks, the pieces of a model that repeat, and the builder that collects a block's operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from symconfig.graph import dims as d
from symconfig.graph.operator import Element, Gradients, Leg, Operator, Tensor, Use, Weight, Work, loops_of, splits_of

LAYER = "layer"  # the recompute module that every operator of a transformer layer belongs to
# All of a layer but its attention and every other matrix product: torchtitan's selective recompute by operator
# (_apply_ac_to_transformer_block: every second product's output is saved, and that of the attention).
OPERATORS = "operators"
# Recompute modules whose outputs are discarded, too, and recomputed just before they are used.
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

    `stops_early`: recomputation ends with the last tensor that a backward needs. `elsewhere`: names of the inputs,
    other than the stream, that another block makes and holds.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
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


@dataclass(slots=True)
class Builder:
    """Collect the operators of a block. modules, path, leg, gradients: of the operators that come next (see `within`).

    quantises: frozen weights of linear layers are in 4 bits (QLoRA).
    """

    operators: list[Operator] = field(default_factory=list)
    stops_early: bool = False
    quantises: bool = False
    elsewhere: dict[str, Tensor] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    path: str = ""
    leg: Leg = Leg.APART
    gradients: Gradients = Gradients.ALL

    def from_elsewhere(self, tensor: Tensor) -> Tensor:
        """Return a tensor that another block makes and holds, and record it as an input of this block. The first tensor
        recorded under a name is returned for that name ever after.
        """
        return self.elsewhere.setdefault(tensor.name, tensor)

    @contextmanager
    def within(
        self, *modules: str, part: str = "", leg: Leg | None = None, gradients: Gradients | None = None
    ) -> Iterator[None]:
        """Add operators made inside the context to these recompute modules, too, and `part` to their module path; set
        their leg and gradients, unless None.
        """
        before = self.modules, self.path, self.leg, self.gradients
        self.modules, self.path = (*self.modules, *modules), ".".join(filter(None, (self.path, part)))
        self.leg, self.gradients = leg or self.leg, gradients or self.gradients
        yield
        self.modules, self.path, self.leg, self.gradients = before

    def _add(self, operator: Operator) -> None:
        made = replace(operator, modules=self.modules, path=self.path, leg=self.leg, gradients=self.gradients)
        self.operators.append(made)

    def matmul(
        self,
        name: str,
        x: Tensor,
        weight: Weight,
        contracted: Sequence[str],
        outputs: Sequence[Use],
        bias: Weight | None = None,
        keeps: Tensor | None = None,
        loops: Sequence[str] = (),
        **more: Any,
    ) -> None:
        """Append the operator outputs = x * weight (+ bias), summed over `contracted`; return nothing.

        Its loops are the dims of x, those of the weight, then `loops`, each once. With `quantises` a frozen weight is
        held in 4 bits, unless it has a vocabulary dim.

        Args:
            keeps: a converted copy of x that the backward reads instead of x; None: x itself.
            loops: further loops of length one.
            more: other fields of `Operator`.
        """
        if self.quantises and weight.frozen and not weight.table:
            weight = replace(weight, quantised=True)
        self._add(
            Operator(
                name=name,
                work=Work.MATMUL,
                loops=tuple(dict.fromkeys((*x.dims, *weight.dims, *loops))),
                inputs=(Use(x), Use(weight), *((Use(bias),) if bias else ())),
                outputs=tuple(outputs),
                contracted=tuple(contracted),
                saves=() if keeps is None else (Use(keeps),),
                function="*" if bias is None and keeps is None else "",
                **more,
            )
        )

    def product(
        self, name: str, x: Use, y: Use, contracted: Sequence[str], output: Tensor, buffered: bool = False
    ) -> Tensor:
        """Append the matrix product of two activations, summed over `contracted`, and return `output`. Its loops are
        those of x and then of y, each once. buffered: see Operator.
        """
        made, loops = (Use(output),), loops_of((x, y))
        self._add(Operator(name, Work.MATMUL, loops, (x, y), made, tuple(contracted), buffered=buffered, function="*"))
        return output

    def elementwise(
        self,
        name: str,
        inputs: Sequence[Tensor | Use],
        output: Tensor,
        *,
        further: Sequence[Tensor] = (),
        saves: Sequence[Tensor] = (),
        weights: Sequence[Weight] = (),
        contracted: Sequence[str] = (),
        loops: Sequence[str] = (),
        sums: int = 1,
        holds: Sequence[Tensor] = (),
        whole: Sequence[str] = (),
        together: Sequence[Sequence[str]] = (),
        reduces: Mapping[str, int] | None = None,
        linear: bool = False,
        **more: Any,
    ) -> Tensor:
        """Append an operator bound by memory traffic (norm, activation, permutation, look-up, loss) and return
        `output`.

        Args:
            further: outputs beside the first that no operator reads.
            loops: loops that precede those of inputs, output and weights; they are not split unless an activation has
                them.
            together: groups of loops that are split together or not at all: each group's loops hold integer pieces of
                one another.
            reduces: loops over which it computes statistics inside itself, with the number of reductions. None:
                `contracted` with `sums` each; nothing if `linear`, as its output is then a partial sum.
            whole: loops that nothing may split.
            contracted, sums, holds, linear, more: fields of `Operator`.
        """
        uses = tuple(use if isinstance(use, Use) else Use(use) for use in inputs)
        nest = dict.fromkeys((*loops, *loops_of((*uses, Use(output), *map(Use, weights)))))
        if reduces is None:
            reduces = {} if linear else dict.fromkeys(contracted, sums)
        made = (Use(output), *map(Use, further))
        along = {*loops_of((*uses, *made)), *contracted} - {*whole}
        self._add(
            Operator(
                name=name,
                work=Work.MEMORY,
                loops=tuple(nest),
                inputs=(*uses, *map(Use, weights)),
                outputs=made,
                contracted=tuple(contracted),
                saves=tuple(map(Use, saves)),
                splits=splits_of((loop for loop in nest if loop in along), together, reduces, {}),
                sums=sums,
                holds=tuple(map(Use, holds)),
                whole=tuple(whole),
                linear=linear,
                **more,
            )
        )
        return output

    def view(
        self, name: str, inputs: Sequence[Tensor | Use], output: Tensor, whole: Sequence[str] = (), **more: Any
    ) -> Tensor:
        """Append an operator that only reinterprets the memory of its inputs: no traffic, no kernel. Return `output`.
        more: see `elementwise`.
        """
        more |= {"traffic": (0, 0), "launches": (0, 0)}
        return self.elementwise(name, inputs, output, whole=whole, linear=True, **more)

    def attention(
        self,
        q: Use,
        k: Use,
        v: Use,
        keys: str,
        weights: Sequence[Weight] = (),
        in_fp8: bool = False,
        sparse: Sequence[Use] = (),
        keeps: Sequence[Tensor] = (),
    ) -> Tensor:
        """Append fused (flash) attention and return its output, "attention_heads": [*q.loops[:-1], v.loops[-1]].

        It saves q, k, v, the output and fp32 softmax statistics, nothing of size sequence x keys. Keys and channels
        cannot be split. Heads are the second last loop; if k's differ from q's, both are split together.

        Args:
            keys: the symbol for keys per query, see Operator.
            weights: inputs after the activations, such as sinks.
            in_fp8: it saves fp8 copies of q, k, v and the output instead.
            sparse: indices of the keys that it reads, or a mask over them.
            keeps: of `sparse`, the tensors that it saves.
        """
        over, heads, shared = k.loops[-3], q.loops[-2], k.loops[-2]
        output = Tensor("attention_heads", (*q.loops[:-1], v.loops[-1]))
        statistics = Tensor("softmax_statistics", q.loops[:-1], Element.FP32)
        kept = (q.tensor, k.tensor, v.tensor, output)
        saves = (*(map(in_eight_bits, kept) if in_fp8 else kept), statistics, *keeps)
        inputs, whole = (q, k, v, *sparse), (over, q.loops[-1], v.loops[-1])
        groups = [(heads, shared)] if heads != shared else []
        loops, along = loops_of((q, k, v)), {*loops_of((*inputs, Use(output))), over} - {*whole}
        self._add(
            Operator(
                name="flash_attention",
                work=Work.ATTENTION,
                loops=loops,
                inputs=(*inputs, *map(Use, weights)),
                outputs=(Use(output),),
                contracted=(over,),
                saves=tuple(map(Use, saves)),
                splits=splits_of((loop for loop in loops if loop in along), groups, {}, {}),
                keys=keys,
                whole=tuple(dict.fromkeys(whole)),
            )
        )
        return output

    def mark_operators(self) -> None:
        """Add the recompute module OPERATORS, in place, to operators of the layer (module LAYER) that are memory-bound
        or every second product with a weight. Products with a weight are counted over all operators of the block, the
        ones outside the layer included.
        """
        products = 0
        for index, op in enumerate(self.operators):
            products += op.work is Work.MATMUL and len(op.weights) > 0
            light = op.work is Work.MEMORY or (op.work is Work.MATMUL and op.weights and products % 2 == 0)
            if light and LAYER in op.modules:
                self.operators[index] = replace(op, modules=(*op.modules, OPERATORS))

    def block(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        place: Place = Place.LAYER,
        leaves: Sequence[Tensor] = (),
    ) -> Block:
        """Return a block of all operators appended so far, with gradients removed where they need none
        (`with_needed_gradients`). Its inputs are `inputs` and then the tensors taken from other blocks (`elsewhere`).
        leaves: inputs before which nothing is trained, so that they get no gradient. name: of the kind of block.
        """
        without = {tensor.name for tensor in leaves}
        operators = tuple(with_needed_gradients(self.operators, without))
        return Block(
            name=name,
            inputs=tuple(with_needed_gradient(tensor, without) for tensor in (*inputs, *self.elsewhere.values())),
            outputs=tuple(with_needed_gradient(tensor, without) for tensor in outputs),
            operators=operators,
            stops_early=self.stops_early,
            place=place,
            elsewhere=frozenset(self.elsewhere),
        )


def in_eight_bits(tensor: Tensor) -> Tensor:
    """Return an fp8 tensor of the same dims, named NAME_fp8, for the copy that a kernel saves."""
    return Tensor(f"{tensor.name}_fp8", tensor.dims, Element.FP8)
