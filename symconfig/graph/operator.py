"""Operators over named dims: what is computed, from what, and what its backward needs. No layouts here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import Generic, NamedTuple, TypeVar

from symconfig.graph import dims as d

T = TypeVar("T")


class Element(StrEnum):
    """The kind of a tensor's elements."""

    ACTIVATION = "bytes_activation"
    MATMUL_INPUT = "bytes_matmul_input"  # kept for matmuls only that may run in low precision
    FP32 = "bytes_fp32"
    FP8 = "bytes_fp8"
    MASK = "bytes_mask"
    INDEX = "bytes_index"
    TILED = "bytes_tiled"  # never whole in memory
    GRADIENT = "bytes_gradient"  # of a weight, as wide as it is accumulated


ELEMENT_BYTES = {
    Element.ACTIVATION: 2.0,
    Element.MATMUL_INPUT: 2.0,  # but where a framework keeps it in the matmul's precision
    Element.FP32: 4.0,
    Element.FP8: 1.0,
    Element.MASK: 1.0,
    Element.INDEX: 8.0,
    Element.TILED: 0.0,
    Element.GRADIENT: 4.0,  # but where a framework accumulates in 16 bits
}
FOUR_BIT_BYTES = 0.55  # with the scale of each block of 64 weights (QLoRA, arXiv 2305.14314, section 3)


class Work(StrEnum):
    """The kind of work that an operator's seconds are made of."""

    MATMUL = "matmul"  # two operands multiplied and summed over `contracted`; a convolution is one, too
    ATTENTION = "attention"  # fused: softmax(q k') v, nothing of size queries x keys in memory
    MEMORY = (
        "memory"  # bound by reading its inputs and writing its outputs: element-wise, norms, look-ups, permutations
    )
    RECEIVE = "receive"  # from the stage before it, and the gradient back
    SEND = "send"  # to the next stage


class Gradients(StrEnum):
    """The gradients that an operator's backward makes."""

    ALL = "all"
    WEIGHTS = "weights"  # nothing that is trained lies behind its inputs
    NONE = "none"  # nor has it a weight that is trained; or it runs detached: it finds positions


class Leg(StrEnum):
    """Name an operator's step in the expert dispatch: from the router, over dispatch and experts, back to
    the tokens.
    """

    APART = "apart"
    CHOICE = "choice"  # finds each token's experts
    OUT = "out"  # brings tokens to their experts
    EXPERTS = "experts"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Describe an activation, an input, or a parameter.

    element: its element type, for which a framework may choose the bytes; or the bytes per element. gradient: it has
    a gradient; ids, masks and results of frozen weights only have none. storage: name of the memory of which it is a
    view together with others, and which stays while one of them is kept. If a tensor of the block has that name, all
    bytes belong to it.
    """

    name: str
    dims: tuple[str, ...]
    element: Element | float = Element.ACTIVATION
    gradient: bool = True
    storage: str = ""

    @property
    def kind(self) -> Element:
        """Return the element type of a block's tensor; a program's tensor, which has bytes instead, fails an
        assertion.
        """
        assert isinstance(self.element, Element)
        return self.element

    @property
    def element_bytes(self) -> float:
        return ELEMENT_BYTES[self.element] if isinstance(self.element, Element) else self.element

    def elements(self, sizes: Mapping[str, int]) -> int:
        return prod([sizes[dim] for dim in self.dims])

    def bytes(self, sizes: Mapping[str, int]) -> float:
        return self.elements(sizes) * self.element_bytes


@dataclass(frozen=True, slots=True)
class Weight(Tensor):
    """Describe parameters of one operator. Frozen ones have no gradient and no optimizer state.

    Under ZeRO-3, `shared` weights count as gathered with the block that holds them only; that other blocks gather
    them again is left out.
    """

    quantised: bool = False  # frozen and held in 4 bits (QLoRA)
    shared: bool = False  # held, reduced and updated by another block
    joined: bool = False  # with others of its operator's experts one parameter, where one rank has all experts

    @property
    def frozen(self) -> bool:
        return not self.gradient

    @property
    def element_bytes(self) -> float:
        return FOUR_BIT_BYTES if self.quantised else ELEMENT_BYTES[self.kind]

    @property
    def table(self) -> bool:
        """Return whether it is a matrix with a vocabulary dim: an embedding table or an output head."""
        return len(self.dims) > 1 and (d.VOCAB in self.dims or d.WHOLE_VOCAB in self.dims)


@dataclass(frozen=True, slots=True)
class Use:
    """Describe a tensor as an operator's operand. along: the loop that runs along each of its dims; None: loops have
    the dims' names.

    If a split has both names, they may differ in size: heads are pieces of a fused width, key/value heads are
    shared.
    """

    tensor: Tensor
    along: tuple[str, ...] | None = None
    loops: tuple[str, ...] = field(init=False, compare=False, repr=False)
    name: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.along == self.tensor.dims:
            object.__setattr__(self, "along", None)
        object.__setattr__(self, "loops", self.tensor.dims if self.along is None else self.along)
        object.__setattr__(self, "name", self.tensor.name)

    @property
    def gradient(self) -> bool:
        return self.tensor.gradient

    def renamed(self, *names: tuple[str, str]) -> Use:
        """Return the use with some loops replaced. names: (old loop, new loop); others are unchanged."""
        loops = dict(names)
        return Use(self.tensor, tuple([loops.get(loop, loop) for loop in self.loops]))


def loops_of(uses: Iterable[Use]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(loop for use in uses for loop in use.loops))


class Factors(NamedTuple, Generic[T]):
    """Hold the loops, or their sizes, of a product batch x [m, k] x [k, n]."""

    batch: T
    m: T
    n: T
    k: T

    @property
    def gradients(self) -> tuple[Factors[T], Factors[T]]:
        """Return the products that compute the gradients of the first and of the second operand."""
        batch, m, n, k = self
        return Factors(batch, m, k, n), Factors(batch, k, n, m)


@dataclass(frozen=True, slots=True)
class Product:
    """Describe a product of two activations inside an operator's kernels, which causes no memory traffic.

    loops: one multiply-add per iteration. remade: how often the backward recomputes its result, in addition to the
    gradients of both factors.
    """

    name: str
    loops: tuple[str, ...]
    remade: int = 0


@dataclass(frozen=True, slots=True)
class Scratch:
    """Describe a tensor that one kernel of an operator passes to the next through memory. passes: reads and writes
    (forward, backward), in addition to the operator's own inputs and outputs.
    """

    tensor: Tensor
    passes: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Split:
    """Describe loops that one mesh axis splits together (query heads with their key/value heads, tokens with their
    slots).

    An operand is split at its first dim whose loop is among `loops`. An input without one is replicated, and its
    gradient is a partial sum; an output without one is a partial sum. sums: if above 0, the operator itself reduces
    that many partial results of its output's size without these loops, and continues with complete ones (norm,
    softmax, cross-entropy over a split dim). halo: rows of each neighbour that a window needs in addition to its
    own, along `loops[0]`: (kernel size - 1) / 2 on each side. They are sent forward, and their gradients back.
    """

    loops: tuple[str, ...]
    sums: int = 0
    halo: int = 0


def splits_of(
    loops: Iterable[str], groups: Sequence[Sequence[str]], sums: Mapping[str, int], halos: Mapping[str, int]
) -> tuple[Split, ...]:
    """Return the splits of an operator that is no block's product, each once, in the order of `loops`: a loop of a
    group is split with the first such group, another by itself. sums, halos: by a split's first loop; 0 if absent.
    """
    partners = {loop: tuple(group) for group in reversed(groups) for loop in group}
    rows = dict.fromkeys(partners.get(loop, (loop,)) for loop in loops)
    return tuple([Split(row, sums.get(row[0], 0), halos.get(row[0], 0)) for row in rows])


@dataclass(frozen=True, slots=True)
class Operator:
    """Describe one operator, a loop nest over tensors: of a block, whose sizes are symbols, or of a program, where they
    are numbers.

    Args:
        loops: all loops. A product's work is counted by those of its first two inputs, of which `contracted` are
            summed.
        inputs: in a block, activations before weights.
        linear: sum(f(parts)) = f(sum(parts)) over its inputs together, as for an addition, a copy or a scaling, so
            that it may run on partial sums.
        saves: tensors that the backward reads: inputs, outputs, or `residues`. For a block's product only a copy of
            its input that is read instead; the others are derived, see `needed`.
        splits: what an axis may split; for a block's product they follow from its sizes
            (`graph/program/of_model.py`).
        path: the module that contains it, as its source names it.
        gradients: which gradients its backward computes.
        attended, channels: for a program's attention, the mean number of keys per query, and channels of q k' plus
            those of p v.
        sums: number of partial results that are reduced if a contracted dim is split.
        traffic: (forward, backward) bytes moved, as a multiple of reading inputs and writing outputs once.
        holds: tensors that stay alive until its backward without being read there, since a variable refers to them.
        overwrites: its backward writes the gradient of its input over the saved tensor.
        in_place: its backward writes the gradient of its input over that of its output.
        keys: for attention, the symbol for keys per query.
        low_precision: a matmul that runs in fp8 or fp4 if the plan says so.
        sums_bias: the gradient of a matmul's bias is a separate kernel, which reads the output's gradient once
            more.
        buffered: the framework allocates a buffer of its output's size, which it never reads and never frees.
        per: dims over which the framework loops on the host, with separate kernels per iteration.
        launches: (forward, backward) operators that the host launches per iteration.
        whole: loops that nothing may split, since the operator mixes along them.
        sorts: number of additional reads or writes of all slots of a rank's experts, which are then ordered by
            expert. With `sorts_experts`, only for that order, so that a rank with one expert skips it.
        apart: a matmul that shares a gathered input with another layer: it saves the gathered input, and reduces
            its input's gradient by itself if the input is replicated.
        remade: a matmul whose result is never in memory as a whole, so that its backward recomputes it.
        leg: its step in the expert dispatch.
        products, scratch: of an operator that is a chain of kernels with products inside, such as a chunked scan.
        function: the row of `FUNCTIONS` (`graph/program/build.py`) that states its values; "": they are unknown.
        parts: the operators that it computes in one kernel, in order, if a rewrite joined them.
    """

    name: str
    work: Work
    loops: tuple[str, ...]
    inputs: tuple[Use, ...]
    outputs: tuple[Use, ...]
    contracted: tuple[str, ...] = ()
    linear: bool = False
    saves: tuple[Use, ...] = ()
    splits: tuple[Split, ...] = ()
    traffic: tuple[Fraction | float, Fraction | float] = (Fraction(1), Fraction(1))
    path: str = ""
    gradients: Gradients = Gradients.ALL
    attended: float = 0.0
    channels: float = 0.0
    modules: tuple[str, ...] = ()
    sums: int = 1
    overwrites: bool = False
    in_place: bool = False
    holds: tuple[Use, ...] = ()
    keys: str = ""
    low_precision: bool = False
    sums_bias: bool = False
    buffered: bool = False
    per: tuple[str, ...] = ()
    launches: tuple[int, int] = (1, 1)
    whole: tuple[str, ...] = ()
    sorts: int = 0
    sorts_experts: bool = False
    apart: bool = False
    remade: bool = False
    leg: Leg = Leg.APART
    products: tuple[Product, ...] = ()
    scratch: tuple[Scratch, ...] = ()
    function: str = ""
    parts: tuple[Operator, ...] = ()

    @property
    def factors(self) -> Factors[list[str]]:
        """Return the loops of a matrix product, sorted into batch (in both operands), m (first only), n (second only)
        and k (`contracted`, in its order); other loops of the operator are left out.
        """
        first, second = (set(use.loops) for use in self.inputs[:2])
        free = [loop for loop in self.loops if loop not in self.contracted]
        return Factors(
            [loop for loop in free if loop in first and loop in second],
            [loop for loop in free if loop in first and loop not in second],
            [loop for loop in free if loop in second and loop not in first],
            list(self.contracted),
        )

    @property
    def queries(self) -> tuple[str, ...]:
        """Return the loops of an attention's queries: all of its output but the channels."""
        return self.outputs[0].loops[:-1]

    @property
    def channels_of(self) -> tuple[str, str]:
        """Return the loops of an attention's channels: of q k', and of p v."""
        return self.inputs[0].loops[-1], self.inputs[2].loops[-1]

    @property
    def backward(self) -> bool:
        return self.gradients is not Gradients.NONE

    @property
    def saved(self) -> tuple[str, ...]:
        """Return the names of the tensors that it saves or holds until its backward."""
        return tuple([use.name for use in (*self.saves, *self.holds)])

    @property
    def residues(self) -> tuple[Use, ...]:
        """Return saved or held tensors that are neither inputs nor outputs, such as masks and statistics."""
        known = {use.name for use in (*self.inputs, *self.outputs)}
        return tuple([use for use in (*self.saves, *self.holds) if use.name not in known])

    @property
    def activations(self) -> tuple[Use, ...]:
        return tuple([use for use in self.inputs if not isinstance(use.tensor, Weight)])

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple([use.tensor for use in self.inputs if isinstance(use.tensor, Weight)])

    @property
    def trainable(self) -> bool:
        return self.backward and any(not weight.frozen for weight in self.weights)

    def gives(self, use: Use) -> bool:
        """Return whether its backward computes the gradient of this input."""
        wanted = self.gradients is Gradients.ALL or (self.backward and isinstance(use.tensor, Weight))
        return wanted and use.gradient

    @property
    def reads_back(self) -> tuple[Use, ...]:
        """Return what its backward reads in addition to gradients: `saves`; empty without a backward. A matmul instead
        reads its first factor, or in its place the tensors in `saves`, only if the second has a gradient, and its
        second factor only if the first has one.
        """
        if self.work is not Work.MATMUL or not self.backward:
            return self.saves if self.backward else ()
        first, second = self.inputs[:2]
        of_second = (self.saves or (first,)) if self.gives(second) else ()
        return (*of_second, *((second,) if self.gives(first) else ()))

    def needed(self) -> tuple[Tensor, ...]:
        """Return the activations, read or held, that must exist when its backward runs; empty without a backward."""
        read = (use.tensor for use in self.reads_back if not isinstance(use.tensor, Weight))
        return (*read, *(use.tensor for use in self.holds)) if self.backward else ()

    def moved(self, forward: bool) -> tuple[Use, ...]:
        """Return what a memory-bound operator reads and writes in a pass. A saved input or output counts once. Forward:
        inputs, outputs and further saved tensors. Backward: outputs with a gradient, saved tensors, and the inputs
        whose gradients it computes; empty without a backward.
        """
        known = {use.name: use for use in (*self.inputs, *self.outputs)}
        if forward:
            return (*self.inputs, *self.outputs, *(use for use in self.saves if use.name not in known))
        if not self.backward:
            return ()
        given = (use for use in self.outputs if use.gradient)
        return (*given, *(known.get(use.name, use) for use in self.saves), *filter(self.gives, self.inputs))
