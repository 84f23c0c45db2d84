"""Operators' splits against arithmetic: parts joined as the split says are the whole; dims that are one, or factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from symconfig.graph.operator import Operator, Split, Tensor, Use, Work
from symconfig.graph.program.build import FUNCTIONS, LINEAR, STATISTICS, Window, build
from symconfig.graph.program.torch_source.axes import Axes

Array = NDArray[np.float64]
SIZES = {"b": 4, "s": 6, "t": 6, "h": 8, "f": 10, "a": 4, "g": 2, "c": 3, "v": 12, "e": 2, "u": 12, "k": 1, "m": 24}
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    op: Operator
    function: Callable[..., Array]
    inputs: tuple[Array, ...]


def use(name: str, dims: str, gradient: bool = True) -> Use:
    return Use(Tensor(name, tuple(dims), gradient=gradient))


def data(uses: tuple[Use, ...]) -> tuple[Array, ...]:
    return tuple(RNG.normal(size=[SIZES[loop] for loop in use.loops]) for use in uses)


def einsum(text: str) -> Case:
    terms, result = text.split("->")
    x, y = (use(name, dims) for name, dims in zip("xy", terms.split(","), strict=True))
    op = build("*", "o", [x, y], [use("o", result)])
    return Case(op, lambda p, q: np.asarray(np.einsum(text, p, q)), data((x, y)))


def softmax(x: Array, axis: int = -1) -> Array:
    shifted = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis, keepdims=True))


def heads(q: Array, k: Array, v: Array) -> Array:
    """q[b,s,a,c], k[b,t,g,c], v[b,t,g,c]; neighbouring query heads share."""
    share = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, share, 2), np.repeat(v, share, 2)
    scores = softmax(np.einsum("bsac,btac->bast", q, k))
    return np.asarray(np.einsum("bast,btac->bsac", scores, v))


def attention() -> Case:
    q, k, v = use("q", "bsac"), use("k", "btgc"), use("v", "btgc")
    op = build("attention", "o", [q, k, v], [use("o", "bsac")], over=["t"], sizes=SIZES,
               attended=6.0, groups=[("a", "g")])  # fmt: skip
    return Case(op, heads, data((q, k, v)))


def norm() -> Case:
    x, w = use("x", "bsh"), use("w", "h")
    op = build("norm", "o", [x, w], [use("o", "bsh")], over=["h"])
    return Case(op, lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True)) * w, data((x, w)))


def gather() -> Case:
    table, ids = use("table", "vh"), use("ids", "bs", False)
    op = build("gather", "o", [table, ids], [use("o", "bsh")], sizes=SIZES)
    rows = RNG.integers(0, SIZES["v"], size=(SIZES["b"], SIZES["s"])).astype(float)
    return Case(op, lambda table, ids: table[ids.astype(int)], (data((table,))[0], rows))


def cross_entropy() -> Case:
    logits, ids = use("logits", "bsv"), use("ids", "bs", False)
    op = build("cross_entropy", "o", [logits, ids], [use("o", "bs")], over=["v"])
    right = RNG.integers(0, SIZES["v"], size=(SIZES["b"], SIZES["s"])).astype(float)

    def losses(x: Array, ids: Array) -> Array:
        return np.asarray(-np.log(np.take_along_axis(softmax(x), ids.astype(int)[..., None], -1)[..., 0]))

    return Case(op, losses, (data((logits,))[0], right))


def statistics() -> Case:
    x = use("x", "bsh")
    op = build(STATISTICS, "o", [x], [use("o", "h")])
    return Case(op, lambda x: np.asarray((x * x).sum((0, 1))), data((x,)))


def reshaped(before: str, after: str, groups: list[tuple[str, str]], function: Callable[[Array], Array]) -> Case:
    x = use("x", before)
    op = build(
        "reshape", "o", [x], [use("o", after)], groups=[tuple(dict.fromkeys((old[0], new[0]))) for old, new in groups]
    )
    return Case(op, function, data((x,)))


def combine() -> Case:
    """One choice of each token; tokens of even places go to the first expert."""
    done, weights, routes = use("done", "euh"), use("p", "bsk"), use("r", "bsk", False)
    op = build("combine", "o", [done, weights, routes], [use("o", "bsh")], slots="u")
    tokens = np.arange(24).reshape(4, 6, 1).astype(float)

    def summed(done: Array, p: Array, routes: Array) -> Array:
        token = routes.astype(int)[..., 0]
        return np.asarray(done[token % 2, token // 2] * p)

    return Case(op, summed, (*data((done, weights)), tokens))


def elementwise(name: str, function: Callable[..., Array], *dims: str) -> Case:
    uses = tuple(use(f"x{index}", each) for index, each in enumerate(dims))
    return Case(build(name, "o", uses, [use("o", "bsh")]), function, data(uses))


CASES = {
    "product": lambda: einsum("bsh,hf->bsf"),
    "batched": lambda: einsum("eum,emf->euf"),
    "two contracted": lambda: einsum("bsac,ach->bsh"),
    "scores": lambda: einsum("bsac,btac->bast"),
    "outer": lambda: einsum("bs,h->bsh"),
    "gelu": lambda: elementwise("gelu", np.tanh, "bsh"),
    "positions": lambda: elementwise("add", np.add, "bsh", "sh"),
    "gate": lambda: elementwise("swiglu", lambda x, y: np.tanh(x) * y, "bsh", "bsh"),
    "attention": attention,
    "softmax": lambda: Case(build("softmax", "o", [use("x", "bsh")], [use("o", "bsh")], over=["h"]), softmax,
                            data((use("x", "bsh"),))),
    "norm": norm,
    "gather": gather,
    "cross_entropy": cross_entropy,
    "statistics": statistics,
    "sum": lambda: Case(build(LINEAR, "o", [use("x", "bsh")], [use("o", "h")]), lambda x: x.sum((0, 1)),
                        data((use("x", "bsh"),))),
    "permute": lambda: Case(build("permute", "o", [use("x", "bsh")], [use("o", "hbs")]), lambda x: x.transpose(2, 0, 1),
                            data((use("x", "bsh"),))),
    "merged": lambda: reshaped("bsh", "mh", [("bs", "m"), ("h", "h")], lambda x: x.reshape(-1, x.shape[2])),
    "apart": lambda: reshaped("bu", "bac", [("b", "b"), ("u", "ac")], lambda x: x.reshape(len(x), -1, 3)),
    "combine": combine,
}  # fmt: skip


def cut(array: Array, loops: tuple[str, ...], split: Split, part: int, contracted: tuple[str, ...]) -> Array:
    """One half of an operand; where its loop is summed away the other half is zero instead of absent."""
    for position, loop in enumerate(loops):
        if loop in split.loops:
            halves = np.split(array, 2, axis=position)
            if loop not in contracted:
                return halves[part]
            halves[1 - part] = np.zeros_like(halves[1 - part])
            return np.concatenate(halves, axis=position)
    return array


def splits(name: str) -> list[Split]:
    """Those whose parts need nothing of one another while they run; which slots are whose is the routing's affair."""
    result = [split for split in CASES[name]().op.splits if not split.sums]
    slots = [split for split in result if name == "combine" and "u" in split.loops]
    return [split for split in result if split not in slots and all(SIZES[loop] % 2 == 0 for loop in split.loops)]


SPLITS = [(name, split) for name in CASES for split in splits(name)]


@pytest.mark.parametrize(("name", "split"), SPLITS, ids=[f"{name} {'+'.join(split.loops)}" for name, split in SPLITS])
def test_parts_joined_as_the_split_says_are_the_whole(name: str, split: Split) -> None:
    case = CASES[name]()
    op = case.op
    whole = case.function(*case.inputs)
    contracted = op.contracted if not set(split.loops) & set(op.outputs[0].loops) else ()
    parts = [case.function(*(cut(array, operand.loops, split, part, contracted)
                             for array, operand in zip(case.inputs, op.inputs, strict=True)))
             for part in range(2)]  # fmt: skip
    position = next((place for place, loop in enumerate(op.outputs[0].loops) if loop in split.loops), None)
    joined = sum(parts) if position is None else np.concatenate(parts, axis=position)
    np.testing.assert_allclose(joined, whole, atol=1e-12)


def test_a_convolution_of_parts_with_their_halo_is_that_of_the_whole() -> None:
    x, w = use("x", "bhi"), use("w", "fhr")
    for size, stride in ((3, 1), (5, 1), (1, 1), (2, 2), (7, 1)):
        window = Window(size, stride)
        op = build("conv", "o", [Use(x.tensor, ("b", "h", "j")), w], [use("o", "bfj")], windows={"j": window})
        split = next(split for split in op.splits if split.loops == ("j",))
        signal, kernel = RNG.normal(size=(2, 3, 16)), RNG.normal(size=(4, 3, size))
        parts = []
        for part in range(2):
            rows = slice(part * 8 - split.halo, part * 8 + 8 + split.halo)
            padded = np.pad(signal, [(0, 0), (0, 0), (8, 8)])[:, :, rows.start + 8 : rows.stop + 8]
            parts.append(strided(padded, kernel, stride))
        pad = (size - stride) // 2
        whole = strided(np.pad(signal, [(0, 0), (0, 0), (pad, pad)]), kernel, stride)
        np.testing.assert_allclose(np.concatenate(parts, axis=-1), whole)
        assert op.work is Work.MATMUL
        assert {loop for split in op.splits for loop in split.loops} == {"b", "h", "f", "j"}


def strided(x: Array, kernel: Array, stride: int) -> Array:
    """x[b,h,i] * kernel[f,h,r], without padding."""
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[2], axis=2)[:, :, ::stride]
    return np.asarray(np.einsum("bhjr,fhr->bfj", windows, kernel))


NUMERIC: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "neg": np.negative, "scale": lambda x: 3 * x, "copy": lambda x: x,
    "cast": lambda x: x, "shift": lambda x: x + 1, "silu": lambda x: x / (1 + np.exp(-x)), "exp": np.exp,
    "tanh": np.tanh, "relu": lambda x: np.maximum(x, 0), "square": np.square, "abs": np.abs, "mul": np.multiply,
    "div": np.divide, "maximum": np.maximum, "sin": np.sin, "swiglu": lambda x, y: x / (1 + np.exp(-x)) * y,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMERIC)
def test_linear_functions_are_those_that_may_run_on_parts_of_a_sum(name: str) -> None:
    function = NUMERIC[name]
    count = 2 if name in ("add", "sub", "mul", "div", "maximum", "swiglu") else 1
    first, second = RNG.normal(size=(count, 50)), RNG.normal(size=(count, 50))
    additive = np.allclose(function(*first) + function(*second), function(*(first + second)))
    assert FUNCTIONS[name].linear == additive


def test_nothing_is_kept_where_nothing_flows_back() -> None:
    x, w = use("x", "bsh", False), use("w", "hf", False)
    op = build("*", "o", [x, w], [use("o", "bsf", False)])
    assert op.saved == ()
    assert not op.backward
    frozen = build("*", "o", [use("x", "bsh"), w], [use("o", "bsf")])
    assert frozen.saved == ("w",)
    first = build("*", "o", [x, use("w", "hf")], [use("o", "bsf")])
    assert first.saved == ("x",)
    normed = build("norm", "o", [x, w], [use("o", "bsh", False)], over=["h"])
    assert (normed.saved, normed.residues) == ((), ())


def test_a_look_up_reads_the_rows_that_it_takes_and_writes_the_gradient_of_all() -> None:
    op = gather().op
    elements = {"table": 12 * 8, "ids": 4 * 6, "o": 4 * 6 * 8}
    total = sum(elements.values())
    assert op.traffic[0] * total == pytest.approx(
        elements["ids"] + elements["o"] + elements["table"]
    )  # all rows at most
    few = build("gather", "o", [use("table", "vh"), use("ids", "k", False)], [use("o", "kh")], sizes=SIZES)
    assert few.traffic[0] * (96 + 1 + 8) == pytest.approx(8 + 1 + 8)
    assert few.traffic[1] == 1.0


def test_a_bias_is_added_in_registers_and_its_gradient_reads_that_of_the_result_once() -> None:
    op = build("bias", "o", [use("x", "bsh"), use("w", "h")], [use("o", "bsh")])
    assert op.traffic[0] == 0.0
    assert op.traffic[1] * 2 * (4 * 6 * 8) == 4 * 6 * 8  # of the gradients of result and operand, which are counted
    assert op.saved == ()
    assert op.linear


def test_two_factorings_are_refined_into_one() -> None:
    axes = Axes()
    one, other = axes.new(24), axes.new(24)
    axes.regroup((one,), [2, 12])
    axes.regroup((other,), [6, 4])
    assert axes.relate((one,), (other,))
    assert axes.sizes((one,)) == [2, 3, 4]
    assert axes.leaves((one,)) == axes.leaves((other,))


def test_factors_that_cross_are_not_related() -> None:
    axes = Axes()
    one, other = axes.new(12), axes.new(12)
    axes.regroup((one,), [3, 4])
    axes.regroup((other,), [4, 3])
    assert not axes.relate((one,), (other,))
    assert axes.regroup((one,), [4, 3]) is None


def test_distinct_axes_become_parallel_and_are_factored_alike() -> None:
    axes = Axes()
    queries, keys = axes.new(16), axes.new(16)
    axes.distinct([(queries,), (keys,)])
    assert axes.relate((queries,), (keys,))
    axes.regroup((queries,), [4, 4])
    assert axes.sizes((keys,)) == [4, 4]
    assert not set(axes.leaves((queries,))) & set(axes.leaves((keys,)))


def test_distinctness_is_inherited_by_what_is_united_and_by_factors() -> None:
    axes = Axes()
    a, b, c = axes.new(16), axes.new(16), axes.new(16)
    axes.distinct([(a,), (b,)])
    axes.relate((c,), (b,))
    axes.regroup((a,), [4, 4])
    assert axes.relate((a,), (c,))
    assert not set(axes.leaves((a,))) & set(axes.leaves((c,)))


@st.composite
def factorings(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two ways to cut one product, which always have a common refinement."""
    parts = draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=6))

    def cut() -> list[int]:
        borders = sorted(draw(st.sets(st.integers(1, max(1, len(parts) - 1)))))
        ends = [0, *(border for border in borders if border < len(parts)), len(parts)]
        return [prod(parts[a:b]) for a, b in pairwise(ends)]

    return cut(), cut()


@given(factorings())
def test_a_view_keeps_all_elements_and_their_order(cuts: tuple[list[int], list[int]]) -> None:
    old, new = cuts
    axes = Axes()
    group = tuple(axes.new(size) for size in old if size > 1)
    dims = axes.regroup(group, new)
    assert dims is not None
    assert [axes.size(dim) for dim in dims] == new
    assert axes.leaves(axis for dim in dims for axis in dim) == axes.leaves(group)
