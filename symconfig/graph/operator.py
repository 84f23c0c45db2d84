"""Operators over named dims: what is computed, from what, and what its backward needs. No layouts here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction

from symconfig.graph import dims as d


class Element(StrEnum):
    """What an element of a tensor is; the cost room gives each its bytes."""

    ACTIVATION = "bytes_activation"
    MATMUL_INPUT = "bytes_matmul_input"  # kept for matmuls only that may run in low precision
    FP32 = "bytes_fp32"
    MASK = "bytes_mask"
    INDEX = "bytes_index"


class OpKind(StrEnum):
    MATMUL = "matmul"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An activation. storage: what it is a view of, with others; it stays whole while one of them is kept."""

    name: str
    dims: tuple[str, ...]
    element: Element = Element.ACTIVATION
    storage: str = ""


@dataclass(frozen=True, slots=True)
class Weight:
    """Parameters of one operator. `frozen` ones get no gradient and no optimizer state."""

    name: str
    dims: tuple[str, ...]
    frozen: bool = False
    quantised: bool = False  # frozen and held in 4 bits (QLoRA)
    shared: bool = False  # held, reduced and updated by another block


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor as an operator sees it: some of its dims under the operator's own names."""

    tensor: Tensor
    names: tuple[tuple[str, str], ...] = ()  # (tensor's dim, operator's dim)

    def dims(self) -> tuple[str, ...]:
        names = dict(self.names)
        return tuple(names.get(dim, dim) for dim in self.tensor.dims)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: a loop nest over `loops`, of which `contracted` are summed away.

    saves: tensors that the backward needs (a matmul's are derived instead, see `needed`).
    sums: how many partial results are reduced when a contracted dim is split.
    traffic: bytes moved over those of reading inputs and writing outputs once (forward, backward).
    holds: tensors that stay alive until its backward without being read there, since a variable names them.
    overwrites: its backward writes the gradient of its input over what it saved.
    in_place: its backward writes the gradient of its input over that of its output.
    keys: for attention, the symbol for keys attended per query.
    low_precision: a matmul that runs in fp8 or fp4 when the plan says so.
    sums_bias: the gradient of a matmul's bias is a kernel of its own, which reads the output's gradient once more.
    buffered: the framework gives it a buffer of its output's size, which it never reads and keeps from then on.
    per: dims over which the framework loops on the host, with kernels of their own for each turn.
    launches: of a turn, what the host runs forward and backward, in operators.
    """

    name: str
    kind: OpKind
    loops: tuple[str, ...]
    inputs: tuple[Use, ...]
    outputs: tuple[Use, ...]
    contracted: tuple[str, ...] = ()
    weights: tuple[Weight, ...] = ()
    saves: tuple[Tensor, ...] = ()
    modules: tuple[str, ...] = ()
    sums: int = 1
    traffic: tuple[Fraction, Fraction] = (Fraction(1), Fraction(1))
    overwrites: bool = False
    in_place: bool = False
    holds: tuple[Tensor, ...] = ()
    keys: str | None = None
    low_precision: bool = False
    sums_bias: bool = False
    buffered: bool = False
    per: tuple[str, ...] = ()
    launches: tuple[int, int] = (1, 1)

    @property
    def trainable(self) -> bool:
        return any(not weight.frozen for weight in self.weights)

    def needed(self) -> tuple[Tensor, ...]:
        """Tensors that must exist when this operator's backward runs."""
        if self.kind is not OpKind.MATMUL:
            return (*self.saves, *self.holds)
        if len(self.inputs) == 2:
            return tuple(use.tensor for use in self.inputs)
        # dX needs the weight, dW needs the input: no trainable weight, no kept input.
        return (self.inputs[0].tensor,) if self.trainable else ()


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of the model that repeats: its operators in order, one residual stream in and out.

    `discards`: recompute modules whose outputs are thrown away as well and come back just before they are used.
    `stops_early`: what runs again ends with the last tensor that a backward needs.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    discards: frozenset[str] = frozenset()
    stops_early: bool = False

    @property
    def losses(self) -> tuple[Tensor, ...]:
        """Outputs that end the model: nothing flows back into them."""
        return tuple(tensor for tensor in self.outputs if d.HIDDEN not in tensor.dims)


LAYER = "layer"  # the recompute module that every operator of a transformer layer belongs to
# All of a layer but its attention and every other matrix product: torchtitan's selective recompute by operator
# (_apply_ac_to_transformer_block: every second product's output is saved, and that of the attention).
OPERATORS = "operators"
DISCARDING = frozenset({"layernorm", "moe_act", "mla_up_proj", OPERATORS})


@dataclass(slots=True)
class Builder:
    """Collects the operators of a block. The active recompute modules are a stack."""

    operators: list[Operator] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    stops_early: bool = False

    @contextmanager
    def module(self, *names: str) -> Iterator[None]:
        """Operators made inside belong to these recompute modules too."""
        self.modules.extend(names)
        yield
        del self.modules[len(self.modules) - len(names) :]

    def matmul(
        self,
        name: str,
        x: Tensor,
        weight: Weight,
        contracted: Sequence[str],
        outputs: Sequence[Use],
        bias: Weight | None = None,
        low_precision: bool = False,
        sums_bias: bool = False,
        per: Sequence[str] = (),
    ) -> None:
        """outputs = x * weight, summed over `contracted`."""
        loops = dict.fromkeys((*x.dims, *weight.dims))
        self.operators.append(
            Operator(
                name,
                OpKind.MATMUL,
                tuple(loops),
                (Use(x),),
                tuple(outputs),
                tuple(contracted),
                (weight, *((bias,) if bias else ())),
                modules=tuple(self.modules),
                low_precision=low_precision,
                sums_bias=sums_bias and bias is not None and not bias.frozen,
                per=tuple(per),
            )
        )

    def product(
        self, name: str, x: Use, y: Use, contracted: Sequence[str], output: Tensor, buffered: bool = False
    ) -> Tensor:
        """output = x * y, two activations."""
        loops = dict.fromkeys((*x.dims(), *y.dims()))
        self.operators.append(
            Operator(
                name,
                OpKind.MATMUL,
                tuple(loops),
                (x, y),
                (Use(output),),
                tuple(contracted),
                modules=tuple(self.modules),
                buffered=buffered,
            )
        )
        return output

    def elementwise(
        self,
        name: str,
        inputs: Sequence[Tensor | Use],
        output: Tensor,
        *,
        saves: Sequence[Tensor] = (),
        weights: Sequence[Weight] = (),
        contracted: Sequence[str] = (),
        loops: Sequence[str] = (),
        sums: int = 1,
        overwrites: bool = False,
        in_place: bool = False,
        holds: Sequence[Tensor] = (),
        traffic: Sequence[int | Fraction] = (1, 1),
        per: Sequence[str] = (),
        launches: tuple[int, int] = (1, 1),
    ) -> Tensor:
        """An operator bound by memory traffic: norms, activations, permutations, look-ups, losses."""
        uses = tuple(use if isinstance(use, Use) else Use(use) for use in inputs)
        nest = dict.fromkeys(
            (
                *loops,
                *(dim for use in uses for dim in use.dims()),
                *output.dims,
                *(dim for weight in weights for dim in weight.dims),
            )
        )
        self.operators.append(
            Operator(
                name,
                OpKind.ELEMENTWISE,
                tuple(nest),
                uses,
                (Use(output),),
                tuple(contracted),
                tuple(weights),
                tuple(saves),
                tuple(self.modules),
                sums,
                (Fraction(traffic[0]), Fraction(traffic[1])),
                overwrites,
                in_place,
                tuple(holds),
                per=tuple(per),
                launches=launches,
            )
        )
        return output

    def attention(
        self,
        name: str,
        q: Use,
        k: Use,
        v: Use,
        output: Tensor,
        statistics: Tensor,
        keys: str,
        weights: Sequence[Weight] = (),
    ) -> Tensor:
        """Fused (flash) attention: nothing of size sequence x keys is kept, only the softmax statistics."""
        loops = dict.fromkeys((*q.dims(), *k.dims(), *v.dims()))
        self.operators.append(
            Operator(
                name,
                OpKind.ATTENTION,
                tuple(loops),
                (q, k, v),
                (Use(output),),
                (d.KEYS,),
                tuple(weights),
                saves=(q.tensor, k.tensor, v.tensor, output, statistics),
                modules=tuple(self.modules),
                keys=keys,
            )
        )
        return output

    def mark_operators(self) -> None:
        """Gives the module OPERATORS to those operators of a layer that are part of it."""
        products = 0
        for index, op in enumerate(self.operators):
            products += op.kind is OpKind.MATMUL and len(op.weights) > 0
            light = op.kind is OpKind.ELEMENTWISE or (op.kind is OpKind.MATMUL and op.weights and products % 2 == 0)
            if light and LAYER in op.modules:
                self.operators[index] = replace(op, modules=(*op.modules, OPERATORS))

    def block(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Block:
        return Block(name, tuple(inputs), tuple(outputs), tuple(self.operators), DISCARDING, self.stops_early)
