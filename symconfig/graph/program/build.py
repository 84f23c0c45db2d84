"""Functions of operators, for every source of programs, and the one way to build an operator of them.

A row of `FUNCTIONS` says what a function keeps for its backward (derivatives as PyTorch's autograd takes them,
tools/autograd/derivatives.yaml), what may be split, and how a program file calls it. Gradients are read off the inputs:
nothing is kept for a backward that does not exist, and a product keeps an operand for the other's gradient only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from symconfig.graph.operator import Gradients, Operator, Tensor, Use, Work, loops_of, splits_of

Kept = Sequence[Use]
ANY = 99
NONE, ALL, COPIED = (0.0, 0.0), (1.0, 1.0), (0.0, 0.5)


@dataclass(frozen=True, slots=True)
class Function:
    """Describe a function over named dims.

    keeps: maps (inputs, outputs) to the uses that the backward pass reads. residue: name and bytes per element of one
    more tensor that it saves; ("", 0): none. It has the dims of the first input that the function does not work along;
    of an attention, those of the result but the channels. linear: linear
    in all inputs together, so that it may run on partial sums. sums: number of partial results that it reduces
    inside itself where one of the loops `over` is split (default: the loops that its output lacks); 0: these loops
    cannot be split. summed: number of leading inputs whose loops that the output lacks are contracted. traffic: see
    Operator. joint: only loops of `groups` can be split.

    In a program file: fewest and most operands, options that are required (needs) and optional (takes), words that
    are flags (flags), number of targets, index of the operand that holds ids (ids; 0: none), and the rules for dims:
    each dim of a target is in some operand (covered), each dim of an operand is in the target (within), the first
    operand has the dims of the target in any order (same), or more of them (fewer), and those of the option `over`
    (over), which is only one (one).
    """

    keeps: Callable[[Sequence[Use], Sequence[Use]], Kept]
    linear: bool = False
    sums: int = 0
    summed: int = ANY
    work: Work = Work.MEMORY
    traffic: tuple[float, float] = ALL
    joint: bool = False
    operands: tuple[int, int] = (1, 1)
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    targets: int = 1
    ids: int = 0
    dims: tuple[str, ...] = ("within", "covered")
    residue: tuple[str, float] = ("", 0.0)


def causal_keys(keys: int, window: int | None = None) -> float:
    """Return the mean number of keys per query if each attends to its own and those before it, at most `window`."""
    reach = min(window or keys, keys)
    return (reach * (reach + 1) / 2 + (keys - reach) * reach) / keys


def nothing(inputs: Sequence[Use], outputs: Sequence[Use]) -> Kept:
    return ()


def operands(inputs: Sequence[Use], outputs: Sequence[Use]) -> Kept:
    return inputs


def outcome(inputs: Sequence[Use], outputs: Sequence[Use]) -> Kept:
    return outputs


def others(inputs: Sequence[Use], outputs: Sequence[Use]) -> Kept:
    """Keep each input of a product for which another input has a gradient; none if no input has one."""
    gradients = sum(use.gradient for use in inputs)
    return [use for use in inputs if gradients > use.gradient]


def constants(inputs: Sequence[Use], outputs: Sequence[Use]) -> Kept:
    """Keep the inputs without a gradient: masks, tables of angles, indices."""
    return [use for use in inputs if not use.gradient]


def quotient(inputs: Sequence[Use], outputs: Sequence[Use]) -> Kept:
    """Keep the divisor; the dividend, too, if the divisor has a gradient."""
    return inputs if inputs[1].gradient else inputs[1:]


def data_and_scale(inputs: Sequence[Use], outputs: Sequence[Use]) -> Kept:
    """Keep the data of a norm, and its weight (second input) if the data has a gradient; never the bias."""
    return inputs[:2] if inputs[0].gradient else inputs[:1]


COVERED, SAME, NORM = ("covered",), ("same",), ("same", "within", "covered", "over")
LINEAR, OF_INPUTS, OF_OUTPUT = Function(nothing, linear=True), Function(operands), Function(outcome)
PRODUCT = Function(others, work=Work.MATMUL, operands=(2, 2), dims=COVERED)
MASKED = Function(constants)
MAXIMUM = Function(operands, sums=1, dims=("covered", "fewer"))
LOG_SUM = Function(outcome, sums=1)
FP32_BYTES, MASK_BYTES = 4.0, 1.0
STATISTICS = Function(operands)  # sums of x and its squares: the first pass of a norm over several loops
NORMALISE = Function(lambda inputs, outputs: inputs[:3])  # and the second, of (x, statistics, weight, bias)
RESHAPE = Function(nothing, linear=True, summed=0, traffic=NONE, joint=True, flags=("copy",), dims=())


def _several(keeps: Callable[[Sequence[Use], Sequence[Use]], Kept], count: int, most: int = 0) -> Function:
    return Function(keeps, linear=keeps is nothing, operands=(count, most or count))


FUNCTIONS: Mapping[str, Function] = {
    **dict.fromkeys(("neg", "scale", "copy", "cast"), LINEAR),
    "add": _several(nothing, 2, ANY),
    "sub": _several(nothing, 2),
    # An addition in the kernel that makes its first operand. Backward, its sum reads the gradient of the result once,
    # of the two that are counted.
    "bias": Function(nothing, linear=True, traffic=COPIED, operands=(2, 2)),
    "shift": Function(nothing),  # x + a constant: of parts of a sum, each would add it
    **dict.fromkeys(("gelu", "silu", "elu", "softplus", "erf", "log", "sin", "cos", "abs", "square", "pow"), OF_INPUTS),
    **dict.fromkeys(("swiglu", "geglu", "reglu", "maximum", "minimum"), _several(operands, 2)),
    **dict.fromkeys(("relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal"), OF_OUTPUT),
    "mul": _several(others, 2, ANY),
    "div": _several(quotient, 2),
    "mask": _several(constants, 2),
    "where": _several(constants, 3),
    # (x, cosines, sines): turns pairs of channels.
    "rope": Function(constants, operands=(3, 3), needs=("over",), dims=("within", "covered", "over")),
    "*": PRODUCT,  # an element-wise multiplication, bound by memory, where nothing is summed
    "conv": Function(others, work=Work.MATMUL, operands=(2, 2), dims=()),
    "pool": Function(nothing, linear=True, needs=("over", "window"), flags=("max",), dims=("over",)),
    # Its rows split into partial sums: ids that a rank does not hold give zeros.
    "gather": Function(lambda inputs, outputs: inputs[1:], summed=1, operands=(2, 2), ids=1, dims=COVERED),
    # Ranks that hold parts of a sum would have to draw the same mask.
    "dropout": Function(nothing, dims=SAME, residue=("mask", MASK_BYTES)),
    "softmax": Function(outcome, sums=2, needs=("over",), dims=("same", "one")),
    # Statistics are in fp32 whatever the data.
    "norm": Function(
        data_and_scale, sums=1, operands=(1, 3), needs=("over",), dims=NORM, residue=("statistics", FP32_BYTES)
    ),
    **dict.fromkeys(
        ("layernorm", "batchnorm"),
        Function(
            data_and_scale, sums=2, operands=(1, 3), needs=("over",), dims=NORM, residue=("statistics", 2 * FP32_BYTES)
        ),
    ),
    # Fused softmax(q k') v; further operands are masks and biases of the scores.
    "attention": Function(
        lambda inputs, outputs: (*inputs, *outputs),
        work=Work.ATTENTION, operands=(3, ANY), needs=("over",), takes=("window",), flags=("causal",), dims=COVERED,
        residue=("statistics", FP32_BYTES),
    ),
    # One loss of each row. Split along `over`, it reduces maxima, sums and the logits of the right ones (Megatron-LM,
    # cross_entropy.py).
    "cross_entropy": Function(
        operands, sums=3, summed=1, operands=(2, 2), needs=("over",), ids=1, dims=("covered", "one")
    ),
    **dict.fromkeys(("sum", "mean"), Function(nothing, linear=True, dims=MAXIMUM.dims)),
    "max": MAXIMUM,
    "permute": Function(nothing, linear=True, dims=SAME),
    "reshape": RESHAPE,
    # Weights and indices of each token's chosen experts: a rank needs a token's logits of all experts.
    "route": Function(
        lambda inputs, outputs: (*inputs, *outputs[1:]), summed=0, needs=("over",), targets=2, dims=("one",)
    ),
    # Tokens into slots of their experts: static and balanced, so that slots lie where their tokens lie. Split over
    # experts, a rank takes what its own need from all tokens, and their gradients are partial sums.
    "dispatch": Function(
        lambda inputs, outputs: inputs[1:], summed=0, operands=(2, 2), needs=("slots",), ids=1, dims=()
    ),
    # Each token's slots summed by its weights: partial sums of each rank where split over experts.
    "combine": Function(
        lambda inputs, outputs: (*others(inputs[:2], outputs), inputs[2]),
        summed=1, operands=(3, 3), needs=("slots",), ids=2, dims=(),
    ),
}  # fmt: skip


def matching_dims(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return pairs of positions (old dims, new dims) of consecutive dims with equal products, in as many blocks as
    possible. Dims of size 1 are in no block.
    """
    result: list[tuple[list[int], list[int]]] = []
    ours = [position for position, size in enumerate(old) if size > 1]
    theirs = [position for position, size in enumerate(new) if size > 1]
    while ours:
        before, after = [ours.pop(0)], [theirs.pop(0)]
        while (a := prod(old[i] for i in before)) != (b := prod(new[o] for o in after)):
            if a < b:
                before.append(ours.pop(0))
            else:
                after.append(theirs.pop(0))
        result.append((before, after))
    return result


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of the input that a convolution or a pool reads for one element of its output along one spatial loop."""

    size: int
    stride: int = 1

    @property
    def halo(self) -> int:
        """Return the number of rows read from each neighbour rank, at least 0. A window that overlaps on one side only
        counts as if it overlapped on both.
        """
        return max(0, ceil((self.size - self.stride) / 2))


def build(
    function: Function | str,
    name: str,
    inputs: Sequence[Use],
    outputs: Sequence[Use],
    *,
    over: Collection[str] = (),
    whole: Collection[str] = (),
    groups: Sequence[tuple[str, ...]] = (),
    windows: Mapping[str, Window] | None = None,
    slots: str = "",
    traffic: tuple[float, float] | None = None,
    attended: float = 0.0,
    sizes: Mapping[str, int] | None = None,
    path: str = "",
) -> Operator:
    """Return the operator that computes `outputs` from `inputs` with `function`, which may be a name in FUNCTIONS.

    An input that lacks a loop is broadcast along it. Without an input that has a gradient, the operator has no
    backward pass and saves nothing. A product that contracts no loop is bound by memory (`Work.MEMORY`). Never split:
    loops of `over` (unless the function has `sums`), an attention's channels, a convolution's window, routes' choices.

    Args:
        over: the loops that the function works along (see Function.sums); for attention, the loop of keys.
        whole: further loops that cannot be split; of an attention, its channels besides the last loop of each operand.
        groups: loops that one axis splits together: query heads with their key/value heads, the outermost loops of
            what a reshape merges or splits up.
        windows: of every spatial loop; inputs have these loops along their own dims, also where a stride makes
            those longer.
        slots: the loop of an expert's slots, which is split together with the tokens.
        traffic: (forward, backward) factors that replace the function's; ignored for `gather`, which computes its
            own.
        attended: mean number of keys per query of an attention.
        sizes: of all dims; required by `gather` to count the rows that it reads, and by `attention` for its channels.
    """
    word = function if isinstance(function, str) else "*" if function is PRODUCT else ""
    function = FUNCTIONS[function] if isinstance(function, str) else function
    out, loops, held = outputs[0].loops, loops_of((*inputs, *outputs)), {*whole}
    contracted = [loop for loop in loops_of(inputs[: function.summed]) if loop not in out]
    order, traffic, channels = loops, traffic or function.traffic, 0
    rows = tuple(loop for loop in inputs[0].loops if loop not in over)
    if function.work is Work.ATTENTION:
        assert sizes is not None
        ends = inputs[0], inputs[2], outputs[0]
        q, v, o = ([loop for loop in use.loops if loop in whole or loop == use.loops[-1]] for use in ends)
        contracted, rows = list(over), tuple(loop for loop in out if loop not in o)
        channels = prod(sizes[loop] for loop in q) + prod(sizes[loop] for loop in v)
        held |= {*over, *(use.loops[-1] for use in (*inputs[:3], *outputs))}
    elif function.sums:
        over = tuple(over) or contracted
        order = tuple(dict.fromkeys((*out, *over)))
    else:
        held |= {*over}
    if function.targets > 1:  # the choices of a route
        held |= {*loops}.difference(loops_of(inputs))
    if function is FUNCTIONS["conv"]:  # the window
        held |= {*inputs[1].loops}.difference(inputs[0].loops, out)
    if function is FUNCTIONS["gather"]:
        assert sizes is not None
        traffic = _look_up(inputs[0], inputs[1], outputs[0], sizes)
    if slots:
        tokens, slotted = (inputs[0], outputs[0]) if function.summed == 0 else (outputs[0], inputs[0])
        dispatched = [loop for loop in tokens.loops if loop in inputs[1].loops]
        groups = [(row, slots) for row in dispatched]
        order = tuple(dict.fromkeys((*dispatched, *tokens.loops, *slotted.loops)))
    if function.joint:  # but for loops along which an input is repeated
        groups = [some for group in groups if (some := tuple(loop for loop in group if loop in loops))]
        order = tuple(loop for group in groups for loop in group)
    halos = {loop: window.halo for loop, window in (windows or {}).items()}
    backward = any(use.gradient for use in inputs)
    (suffix, width), saves = function.residue, [*function.keeps(inputs, outputs)] if backward else []
    if backward and suffix:
        saves.append(Use(Tensor(f"{name}.{suffix}", rows, width, gradient=False)))
    return Operator(
        name=name,
        work=Work.MEMORY if function is PRODUCT and not contracted else function.work,
        loops=loops,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        splits=splits_of(
            (loop for loop in order if loop not in held), groups, dict.fromkeys(over, function.sums), halos
        ),
        contracted=tuple(contracted),
        saves=tuple({use.name: use for use in saves}.values()),
        linear=function.linear,
        traffic=traffic,
        attended=attended,
        channels=float(channels),
        gradients=Gradients.ALL if backward else Gradients.NONE,
        path=path,
        function=word,
    )


def _look_up(table: Use, ids: Use, output: Use, sizes: Mapping[str, int]) -> tuple[float, float]:
    """Return the (forward, backward) traffic factors of a table look-up, relative to reading and writing all operands
    once.

    Forward reads only the rows taken, at most the whole table; backward (1.0) writes the gradient of the whole
    table.
    """
    rows, taken, given = (use.tensor.bytes(sizes) for use in (table, output, ids))
    read = min(output.tensor.elements(sizes) * table.tensor.element_bytes, rows)
    return (read + taken + given) / (rows + taken + given), 1.0
