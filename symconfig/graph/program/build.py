"""Constructors of operators, for every source of programs: what may be split and what is kept, by one rule for each.

Each is a pure function from uses of tensors to an `Operator`. Gradients are read off the inputs: nothing is kept for a
backward that does not exist, and a product keeps an operand for the other's gradient only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from symconfig.graph.operator import Operator, Split, Use, Work, loops_of
from symconfig.graph.program.functions import Function
from symconfig.graph.program.functions import others as factors
from symconfig.graph.program.nest import operator, splits_of, without

Over = str | Sequence[str]  # a dim may be a product of several loops


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of the input that a convolution or a pool reads for one element of its output along one spatial loop."""

    size: int
    stride: int = 1

    @property
    def halo(self) -> int:
        """Return the rows read of each neighbour; a window that overlaps on one side only counts as if it did
        on both.
        """
        return max(0, ceil((self.size - self.stride) / 2))


def product(name: str, x: Use, y: Use, output: Use, *, path: str = "") -> Operator:
    """Make output = sum of x * y over the loops that it lacks. Every loop splits; a contracted one gives partial sums.

    Where nothing is contracted, it is an element-wise multiplication, bound by memory.
    """
    contracted = without((*x.loops, *y.loops), output.loops)
    work = Work.MATMUL if contracted else Work.MEMORY
    return operator(name, work, (x, y), output, contracted=contracted, saves=factors((x, y), output), path=path)


def convolution(
    name: str, x: Use, weight: Use, output: Use, windows: Mapping[str, Window], *, path: str = ""
) -> Operator:
    """Make a product whose spatial loops are windows. windows: of every spatial loop of the output.

    `x` has the output's spatial loops along its own dims, also where a stride makes those larger. The weight's loops
    within the window are its own: they split nothing.
    """
    contracted = without((*x.loops, *weight.loops), output.loops)
    within = without(weight.loops, (*x.loops, *output.loops))
    op = operator(
        name,
        Work.MATMUL,
        (x, weight),
        output,
        contracted=contracted,
        saves=factors((x, weight), output),
        whole=within,
        path=path,
    )
    return replace(op, splits=_windowed(op.splits, windows))


def pool(
    name: str, x: Use, output: Use, windows: Mapping[str, Window], *, maximum: bool = False, path: str = ""
) -> Operator:
    """Make the mean or the maximum of each window. A maximum keeps its input, where it looks for its place again."""
    saves = (x,) if maximum else ()
    op = operator(name, Work.MEMORY, (x,), output, saves=saves, linear=not maximum, path=path)
    return replace(op, splits=_windowed(op.splits, windows))


def elementwise(
    name: str,
    inputs: Sequence[Use],
    output: Use,
    function: Function,
    *,
    whole: Collection[str] = (),
    residues: Sequence[Use] = (),
    traffic: tuple[float, float] = (1.0, 1.0),
    path: str = "",
) -> Operator:
    """Make output = function of the inputs at each point; an input that lacks a loop is repeated along it.

    whole: loops that it mixes after all, as a rotation does channels. residues: what it keeps beside `function.keeps`.
    """
    saves = (*function.keeps(inputs, output), *residues)
    return operator(
        name,
        Work.MEMORY,
        inputs,
        output,
        contracted=without(loops_of(inputs), output.loops),
        saves=saves,
        linear=function.linear,
        whole=whole,
        traffic=traffic,
        path=path,
    )


def dropout(name: str, x: Use, output: Use, mask: Use, *, path: str = "") -> Operator:
    """Make a dropout. mask: the residue. Not linear: ranks that hold parts of a sum would have to draw the same
    mask.
    """
    return operator(name, Work.MEMORY, (x,), output, saves=(mask,), path=path)


def reduction(name: str, x: Use, output: Use, function: Function, *, path: str = "") -> Operator:
    """Make a sum or mean (linear: a split of what it sums gives partial sums); or else, as a maximum, it reduces
    inside.
    """
    gone = without(x.loops, output.loops)
    splits = None if function.linear else splits_of(output.loops, dict.fromkeys(gone, 1))
    return operator(
        name,
        Work.MEMORY,
        (x,),
        output,
        contracted=gone,
        saves=function.keeps((x,), output),
        linear=function.linear,
        splits=splits,
        path=path,
    )


def statistics(name: str, x: Use, output: Use, *, path: str = "") -> Operator:
    """Sum x and its squares over the loops that the output lacks: partial sums where one of them is split.

    The first pass of a norm over several loops, as of a batch; an `elementwise` of NORMALISE is the second.
    """
    gone = without(x.loops, output.loops)
    return operator(name, Work.MEMORY, (x,), output, contracted=gone, saves=(x,), path=path)


def softmax(name: str, x: Use, output: Use, over: Over, *, path: str = "") -> Operator:
    """Make a softmax, which keeps its output. Split along `over`, it reduces maxima and sums."""
    splits = splits_of(output.loops, dict.fromkeys(_each(over), 2))
    return operator(name, Work.MEMORY, (x,), output, saves=(output,), splits=splits, path=path)


def norm(
    name: str, x: Use, weights: Sequence[Use], output: Use, over: Over, stats: Use, *, sums: int = 1, path: str = ""
) -> Operator:
    """Make an RMSNorm (one sum) or LayerNorm (two) over one loop. Keeps its input and, as residue, the statistics of a
    row.
    """
    splits = splits_of(output.loops, dict.fromkeys(_each(over), sums))
    first = weights[:1] if x.gradient else ()  # a bias is not needed again
    saves = (x, *first, stats)
    return operator(name, Work.MEMORY, (x, *weights), output, saves=saves, splits=splits, path=path)


def gather(name: str, table: Use, ids: Use, output: Use, sizes: Mapping[str, int], *, path: str = "") -> Operator:
    """Read rows of a table. Its rows split into partial sums: ids that a rank does not hold give zeros.

    traffic: forward reads only the rows that it takes; backward writes the whole table's gradient.
    """
    rows = without(table.loops, output.loops)
    taken, ids_bytes = output.tensor.bytes(sizes), ids.tensor.bytes(sizes)
    once = table.tensor.bytes(sizes) + taken + ids_bytes
    read = min(taken / output.tensor.element_bytes * table.tensor.element_bytes, table.tensor.bytes(sizes))
    forward = (read + taken + ids_bytes) / once
    return operator(
        name, Work.MEMORY, (table, ids), output, contracted=rows, saves=(ids,), traffic=(forward, 1.0), path=path
    )


def attention(
    name: str,
    q: Use,
    k: Use,
    v: Use,
    output: Use,
    over: Over,
    stats: Use,
    *,
    attended: float,
    channels: float,
    together: Sequence[tuple[str, ...]] = (),
    others: Sequence[Use] = (),
    whole: Collection[str] = (),
    path: str = "",
) -> Operator:
    """Make a fused softmax(q k') v: neither keys (`over`) nor channels (the last loop of each, and `whole`) can be
    split.

    together: query heads with the key/value heads that they share. attended, channels: see Operator. stats: the
    softmax's, of each query and head. others: masks and biases of the scores.
    """
    whole = {*_each(over), *whole, *(use.loops[-1] for use in (q, k, v, output))}
    partner = {loop: tuple(group) for group in together for loop in group}
    loops = loops_of((q, k, v, output))
    groups = dict.fromkeys(partner.get(loop, (loop,)) for loop in loops if loop not in whole)
    return operator(
        name,
        Work.ATTENTION,
        (q, k, v, *others),
        output,
        contracted=_each(over),
        saves=(q, k, v, *others, output, stats),
        splits=tuple(Split(group) for group in groups),
        attended=attended,
        channels=channels,
        path=path,
    )


def cross_entropy(name: str, logits: Use, ids: Use, output: Use, over: Over, *, path: str = "") -> Operator:
    """Make losses, one of each row: a mean of them is an operator of its own. Keeps the logits.

    Split along `over`, it reduces maxima, sums and the logits of the right ones (Megatron-LM, cross_entropy.py).
    """
    splits = splits_of(output.loops, dict.fromkeys(_each(over), 3))
    return operator(
        name, Work.MEMORY, (logits, ids), output, contracted=_each(over), saves=(logits, ids), splits=splits, path=path
    )


def permute(name: str, x: Use, output: Use, *, path: str = "") -> Operator:
    """Copy into another order of dims."""
    return operator(name, Work.MEMORY, (x,), output, linear=True, path=path)


def reshape(
    name: str,
    x: Use,
    output: Use,
    groups: Sequence[tuple[tuple[str, ...], tuple[str, ...]]],
    *,
    copies: bool = False,
    path: str = "",
) -> Operator:
    """Make a reshape. groups: input loops that become output loops, in order: merged, taken apart, or the same one.

    Only the outermost of each group can be split, on both sides together. A view moves nothing unless it `copies`.
    """
    pairs = [dict.fromkeys((*old[:1], *new[:1])) for old, new in groups]
    splits = tuple(Split(tuple(pair)) for pair in pairs if pair)
    moved = 1.0 if copies else 0.0
    return operator(name, Work.MEMORY, (x,), output, splits=splits, linear=True, traffic=(moved, moved), path=path)


def route(name: str, logits: Use, outputs: Sequence[Use], over: str, *, path: str = "") -> Operator:
    """Return the weights, and the indices, of each token's chosen experts. A rank needs a token's logits of all
    experts.
    """
    op = operator(name, Work.MEMORY, (logits,), outputs[0], saves=(logits, *outputs[1:]), whole=(over,), path=path)
    chosen = without(loops_of(outputs), logits.loops)
    splits = tuple(split for split in op.splits if not set(split.loops) & set(chosen))
    return replace(op, outputs=tuple(use for use in outputs), splits=splits)


def dispatch(name: str, x: Use, routes: Use, output: Use, slots: str, *, path: str = "") -> Operator:
    """Copy tokens into slots of their experts: static and balanced, so that slots lie where their tokens lie.

    Split over experts, a rank takes what its own need from all tokens, and their gradients are partial sums.
    """
    tokens = tuple(loop for loop in x.loops if loop in routes.loops)
    return operator(
        name, Work.MEMORY, (x, routes), output, saves=(routes,), splits=_slotted(x, output, tokens, slots), path=path
    )


def combine(name: str, done: Use, weights: Use, routes: Use, output: Use, slots: str, *, path: str = "") -> Operator:
    """Sum each token's slots by its weights. Split over experts, each rank has partial sums."""
    tokens = tuple(loop for loop in output.loops if loop in weights.loops)
    saves = (*factors((done, weights), output), routes)
    return operator(
        name,
        Work.MEMORY,
        (done, weights, routes),
        output,
        contracted=without(done.loops, output.loops),
        saves=saves,
        splits=_slotted(output, done, tokens, slots),
        path=path,
    )


def _each(over: Over) -> tuple[str, ...]:
    return (over,) if isinstance(over, str) else tuple(over)


def _windowed(splits: tuple[Split, ...], windows: Mapping[str, Window]) -> tuple[Split, ...]:
    halos = {loop: window.halo for loop, window in windows.items()}
    return tuple(replace(split, halo=halos.get(split.loops[0], 0)) for split in splits)


def _slotted(tokens: Use, slots: Use, rows: Sequence[str], slot: str) -> tuple[Split, ...]:
    """Return the splits of tokens [rows, channels] and slots [experts, slot, channels]."""
    others = dict.fromkeys(loop for loop in (*tokens.loops, *slots.loops) if loop not in (*rows, slot))
    return (*(Split((row, slot)) for row in rows), *(Split((loop,)) for loop in others))
