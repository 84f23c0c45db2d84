"""What is wrong with a program is found, each by its own sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from symconfig.graph.operator import Split, Tensor, Use
from symconfig.graph.program.build import Window, build
from symconfig.graph.program.program import Parameter, Program
from tests.graph.program.check import problems

Change = Callable[[Program], Program]


def program() -> Program:
    """y = gelu(x w), summed."""
    x, w = Tensor("x", ("b", "h"), gradient=False), Tensor("w", ("h", "f"))
    y = Tensor("y", ("b", "f"))
    g, loss = replace(y, name="g"), Tensor("loss", ())
    operators = (
        build("*", "y", [Use(x), Use(w)], [Use(y)]),
        build("gelu", "g", [Use(y)], [Use(g)]),
        build("sum", "loss", [Use(g)], [Use(loss)]),
    )
    tensors = {tensor.name: tensor for tensor in (x, w, y, g, loss)}
    sizes = {"b": 4, "h": 6, "f": 8, "k": 6, "q": 5}
    return Program(
        "sample", sizes, tensors, ("x",), (Parameter(w, path="w"),), operators, ("loss",), frozenset({"b"})
    )  # fmt: skip


def sizes(**changed: int) -> Change:
    return lambda program: replace(program, sizes={**program.sizes, **changed})


def tensor(name: str, **changed: Any) -> Change:
    return lambda program: replace(
        program, tensors={**program.tensors, name: replace(program.tensors[name], **changed)}
    )


def operator(index: int, **changed: Any) -> Change:
    def change(program: Program) -> Program:
        operators = list(program.operators)
        operators[index] = replace(operators[index], **changed)
        return replace(program, operators=tuple(operators))

    return change


def whole(**changed: Any) -> Change:
    return lambda program: replace(program, **changed)


def use(name: str, loops: tuple[str, ...]) -> Use:
    return Use(program().tensors.get(name, Tensor(name, loops)), loops)


def cyclic(program: Program) -> Program:
    return operator(0, inputs=(use("g", ("b", "f")), use("w", ("h", "f"))))(program)


def swapped(program: Program) -> Program:
    first, second, third = program.operators
    return replace(program, operators=(second, first, third))


WRONG: list[tuple[Change, str]] = [
    (sizes(b=0), "b: a dim has no elements (got 0, need >= 1)."),
    (whole(batch=frozenset({"n"})), "n: the batch is counted by an undefined dim."),
    (tensor("g", dims=("b", "new")), "g: the tensor has an undefined dim (got new)."),
    (tensor("g", dims=("b", "b")), "g: the tensor has a dim twice (got b). Try: a second name of the same size."),
    (tensor("g", element=0.0), "g: an element has no bytes (got 0)."),
    (tensor("w", element=4.0), "w: the parameter is not the tensor of its name."),
    (tensor("y", element=4.0), "y: the operand is not the tensor of its name (got y)."),
    (operator(1, name="y"), "y: two operators have the same name."),
    (operator(1, outputs=(use("y", ("b", "f")),)), "y: the tensor comes from two places."),
    (whole(inputs=("x", "w")), "w: the tensor comes from two places."),
    (whole(inputs=("x", "z")), "z: the input is not a tensor of the program."),
    (whole(inputs=()), "y: reads a tensor that is neither fed nor made (got x)."),
    (whole(outputs=()), "sample: the program has no output."),
    (whole(outputs=("loss", "x")), "x: the output is never made."),
    (cyclic, "y: reads a tensor before it is made (got g)."),
    (swapped, "g: reads a tensor before it is made (got y)."),
    (operator(1, inputs=(use("nix", ("b", "f")),)), "g: uses an undefined tensor (got nix)."),
    (operator(1, inputs=(use("y", ("b",)),)), "g: the rank does not match (got y[b], need 2 dims)."),
    (operator(1, inputs=(use("y", ("b", "b")),)), "g: a loop runs along two dims of a tensor (got b of y)."),
    (operator(1, loops=("b",)), "g: a tensor's loop is missing in the nest (got f of y)."),
    (operator(1, loops=("b", "f", "new")), "g: a loop runs along an undefined dim (got new)."),
    (operator(1, loops=("b", "f", "b")), "g: a loop is listed twice (got b)."),
    (operator(0, contracted=("q",)), "y: sums over what is not a loop (got q)."),
    (operator(0, contracted=("h", "f")), "y: sums over a loop of its output (got f)."),
    (operator(0, splits=(Split(("q",)),)), "y: splits what is not a loop (got q)."),
    (operator(0, splits=(Split(()),)), "y: a split of no loop."),
    (operator(0, splits=(Split(("b",)), Split(("b",), sums=1))), "y: a split is listed twice (got b)."),
    (operator(0, splits=(Split(("b",), halo=-1),)), "y: a split with negative sums or halo (got b)."),
    (operator(1, saves=(use("x", ("b", "f")),)), "x: the tensor comes from two places."),
    (
        operator(0, inputs=(use("x", ("b", "q")), use("w", ("q", "f"))), loops=("b", "q", "f"),
                 contracted=("q",), splits=()),
        "y: a dim is used with two sizes (got 5 as q, 6 as h of x).",
    ),
]  # fmt: skip


def test_a_right_program_has_no_problems() -> None:
    assert problems(program()) == []


def test_a_dim_may_have_another_name_of_the_same_size() -> None:
    renamed = operator(0, inputs=(use("x", ("b", "k")), use("w", ("k", "f"))), loops=("b", "k", "f"),
                       contracted=("k",), splits=())(program())  # fmt: skip
    assert problems(renamed) == []


@pytest.mark.parametrize(("change", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_each_kind_of_mistake_has_a_sentence(change: Change, sentence: str) -> None:
    assert sentence in [str(problem) for problem in problems(change(program()))]


def test_all_problems_come_at_once() -> None:
    broken = sizes(b=0)(cyclic(tensor("g", dims=("b", "new"))(program())))
    text = " ".join(map(str, problems(broken)))
    assert "no elements" in text
    assert "undefined dim" in text
    assert "before it is made" in text


def test_windows_may_walk_longer_dims_in_strides() -> None:
    x, w = Tensor("x", ("n", "c", "i"), gradient=False), Tensor("w", ("o", "c", "r"))
    y = Tensor("y", ("n", "o", "j"))
    op = build("conv", "y", [Use(x, ("n", "c", "j")), Use(w)], [Use(y)], windows={"j": Window(3, 2)})
    tensors = {tensor.name: tensor for tensor in (x, w, y)}
    strided = Program("strided", {"n": 2, "c": 3, "o": 4, "i": 16, "j": 8, "r": 3}, tensors, ("x",), (Parameter(w),),
                      (op,), ("y",))  # fmt: skip
    assert problems(strided) == []
    shorter = sizes(i=6)(strided)
    assert "a dim is used with two sizes (got 8 as j, 6 as i of x)" in str(problems(shorter)[0])


def test_a_piece_of_a_loop_or_what_is_shared_along_it_is_named_with_it_in_a_split() -> None:
    fits = replace(program(), sizes={**program().sizes, "heads": 2})
    fits = tensor("y", dims=("b", "heads"))(fits)
    pieces = Use(fits.tensors["y"], ("b", "f"))
    product = replace(fits.operators[0], outputs=(pieces,))
    named = replace(product, loops=(*product.loops, "heads"), splits=(Split(("b",)), Split(("f", "heads"))))
    for op, count in ((product, 1), (named, 0)):
        found = problems(replace(fits, operators=(op, *fits.operators[1:])))
        assert len([p for p in found if p.field == "y"]) == count
