"""What a backward makes and moves where inputs are frozen, in a block and a program: as PyTorch's autograd does it."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest

from symconfig.graph import dims as d
from symconfig.graph.block import Builder
from symconfig.graph.derive import derive
from symconfig.graph.derived import Matmul, Phase, Traffic
from symconfig.graph.operator import Element, Operator, Tensor, Use, Weight
from symconfig.graph.program.build import build
from symconfig.graph.scheme import Scheme

torch = pytest.importorskip("torch")
SIZES = {d.BATCH: 2, d.SEQUENCE: 3, d.HIDDEN: 5, d.FFN: 7, "rows": 11}
NUMBERS = {"micro_batch": 2.0, "seq_length": 3.0, "hidden_size": 5.0, "intermediate_size": 7.0} | dict.fromkeys(
    ("tp", "cp", "dp"), 1.0
)
ROWS = (d.BATCH, d.SEQUENCE)
NODES = {"MulBackward0": "scale", "AddBackward0": "add", "GeluBackward0": "act"}
CASES = [(table, first, second) for table in (True, False) for first in (True, False) for second in (True, False)]
WEIGHTS = (("table", ("rows", d.HIDDEN)), ("first", (d.HIDDEN, d.FFN)), ("second", (d.HIDDEN, d.FFN)))
Moved = dict[str, int]


def of_autograd(trained: tuple[bool, ...]) -> tuple[Moved, Counter[str]]:
    """act(h * g + g), h = e @ first, g = e @ second, e = table[ids]: elements that each backward reads and writes."""
    moved: Moved = {}
    given: Counter[str] = Counter()
    table, first, second = (
        torch.rand([SIZES[dim] for dim in dims]).requires_grad_(flag)
        for (_, dims), flag in zip(WEIGHTS, trained, strict=True)
    )
    e = torch.nn.functional.embedding(torch.randint(SIZES["rows"], (2, 3)), table)
    h, g = e @ first, e @ second
    out = torch.nn.functional.gelu(h * g + g)
    if not any(trained):
        return {}, given
    todo, seen = [out.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
        saved = [getattr(node, name) for name in ("_saved_self", "_saved_other") if hasattr(node, name)]
        kept = sum(one.numel() for one in saved if torch.is_tensor(one))

        def count(made: Any, came: Any, node: Any = node, kept: int = kept) -> None:
            elements = sum(one.numel() for one in (*made, *came) if one is not None)
            if node.name() in NODES:
                moved[NODES[node.name()]] = elements + kept
            if node.name() in ("UnsafeViewBackward0", "MmBackward0", "BmmBackward0"):
                given["products"] += sum(one is not None for one in made) * (node.name() != "UnsafeViewBackward0")

        node.register_hook(count)
    out.sum().backward()
    return moved, given


def written(trained: tuple[bool, ...]) -> Builder:
    made = Builder()
    table, first, second = (
        Weight(name, dims, gradient=flag) for (name, dims), flag in zip(WEIGHTS, trained, strict=True)
    )
    ids, e = Tensor("ids", ROWS, Element.INDEX), Tensor("e", (*ROWS, d.HIDDEN))
    h, g, m, s, out = (Tensor(name, (*ROWS, d.FFN)) for name in ("h", "g", "m", "s", "out"))
    made.elementwise("look_up", [ids], e, saves=[ids], weights=[table], contracted=("rows",), linear=True)
    made.matmul("by_first", e, first, (d.HIDDEN,), [Use(h)])
    made.matmul("by_second", e, second, (d.HIDDEN,), [Use(g)])
    flows = (trained[0] or trained[1], trained[0] or trained[2])
    made.elementwise("scale", [h, g], m, saves=[x for x, other in zip((h, g), flows[::-1], strict=True) if other])
    made.elementwise("add", [m, g], s, linear=True)
    made.elementwise("act", [s], out, saves=[s])
    return made


def constructed(trained: tuple[bool, ...]) -> list[Operator]:
    """The same by the constructors of programs."""
    table, first, second = (
        Use(Tensor(name, dims, gradient=flag)) for (name, dims), flag in zip(WEIGHTS, trained, strict=True)
    )
    ids = Use(Tensor("ids", ROWS, 8.0, False))
    operators: list[Operator] = []

    def made(name: str, width: str, *inputs: Use) -> Use:
        return Use(Tensor(name, (*ROWS, width), 2.0, any(use.gradient for use in inputs)))

    e = made("e", d.HIDDEN, table)
    h, g = made("h", d.FFN, e, first), made("g", d.FFN, e, second)
    operators += [build("*", "by_first", [e, first], [h]), build("*", "by_second", [e, second], [g])]
    m = made("m", d.FFN, h, g)
    s = made("s", d.FFN, m, g)
    operators.append(build("mul", "scale", [h, g], [m]))
    operators.append(build("add", "add", [m, g], [s]))
    operators.append(build("gelu", "act", [s], [made("out", d.FFN, s)]))
    return [build("gather", "look_up", [table, ids], [e], sizes=SIZES), *operators]


def elements(op: Operator) -> int:
    return sum(prod(SIZES[dim] for dim in use.tensor.dims) for use in op.moved(forward=False))


@pytest.mark.parametrize("trained", CASES)
def test_a_block_moves_and_makes_what_autograd_does(trained: tuple[bool, ...]) -> None:
    moved, given = of_autograd(trained)
    builder = written(trained)
    work = derive(builder.block("b", [Tensor("ids", ROWS, Element.INDEX)], []), Scheme(False)).work
    backward = [task for task in work if task.phase is not Phase.FORWARD]
    ours = {
        task.op: sum(size.value(NUMBERS) for size, _ in task.moved)
        for task in backward
        if isinstance(task, Traffic) and task.op != "look_up"
    }
    assert ours == moved
    assert sum(isinstance(task, Matmul) for task in backward) == given["products"]
    assert any(task.op == "look_up" for task in backward) is trained[0]


@pytest.mark.parametrize("trained", CASES)
def test_a_program_moves_and_makes_what_autograd_does(trained: tuple[bool, ...]) -> None:
    moved, given = of_autograd(trained)
    look_up, *products, scale, add, act = constructed(trained)
    assert {op.name: elements(op) for op in (scale, add, act) if op.backward} == moved
    assert sum(op.gives(use) for op in products for use in op.inputs) == given["products"]
    assert look_up.backward is trained[0]


def test_what_only_waits_for_a_backward_is_not_moved() -> None:
    made, x = Builder(), Tensor("x", (*ROWS, d.FFN))
    y, mask, waits = (Tensor(name, x.dims) for name in ("y", "mask", "waits"))
    made.elementwise("act", [x], y, saves=[mask], holds=[waits])
    (op,) = made.operators
    assert [use.name for use in op.moved(forward=True)] == ["x", "y", "mask"]
    assert [use.name for use in op.moved(forward=False)] == ["y", "mask", "x"]
    assert op.saved == ("mask", "waits")
