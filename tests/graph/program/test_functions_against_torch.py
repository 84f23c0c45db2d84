"""What element-wise functions keep for their backward is what PyTorch's autograd keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from symconfig.graph.operator import Tensor, Use
from symconfig.graph.program.build import build

torch = pytest.importorskip("torch")
UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x, "scale": lambda x: x * 3.0, "shift": lambda x: x + 1.0, "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu, "softplus": torch.nn.functional.softplus, "elu": torch.nn.functional.elu,
    "erf": torch.erf, "log": torch.log, "sin": torch.sin, "cos": torch.cos, "abs": torch.abs, "square": torch.square,
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "exp": torch.exp, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum,
}  # fmt: skip


def kept(function: Callable[..., Any], gradients: tuple[bool, ...]) -> set[str]:
    """Names of operands and output that autograd saves."""
    inputs = [torch.rand(4, 4).add_(0.5).requires_grad_(gradient) for gradient in gradients]
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.data_ptr()) or x, lambda x: x):
        output = function(*inputs)
    names = {x.data_ptr(): f"x{index}" for index, x in enumerate(inputs)} | {output.data_ptr(): "o"}
    return {names[pointer] for pointer in saved if pointer in names}


def ours(name: str, gradients: tuple[bool, ...]) -> set[str]:
    uses = [Use(Tensor(f"x{index}", ("i", "j"), gradient=gradient)) for index, gradient in enumerate(gradients)]
    return set(build(name, "o", uses, [Use(Tensor("o", ("i", "j")))]).saved)


@pytest.mark.parametrize("name", UNARY)
def test_of_one_operand(name: str) -> None:
    assert ours(name, (True,)) == kept(UNARY[name], (True,))


@pytest.mark.parametrize("gradients", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("name", BINARY)
def test_of_two_operands(name: str, gradients: tuple[bool, bool]) -> None:
    assert ours(name, gradients) == kept(BINARY[name], gradients)


@pytest.mark.parametrize("gradients", [(True, True), (True, False), (False, True)])
def test_a_product_keeps_an_operand_for_the_gradient_of_the_other(gradients: tuple[bool, bool]) -> None:
    x = Use(Tensor("x0", ("b", "h"), gradient=gradients[0]))
    w = Use(Tensor("x1", ("h", "f"), gradient=gradients[1]))
    op = build("*", "o", [x, w], [Use(Tensor("o", ("b", "f")))])
    assert set(op.saved) == kept(torch.matmul, gradients)


def test_a_softmax_keeps_its_output() -> None:
    x = Use(Tensor("x0", ("i", "j")))
    op = build("softmax", "o", [x], [Use(Tensor("o", ("i", "j")))], over=["j"])
    assert set(op.saved) == kept(lambda x: torch.softmax(x, -1), (True,))


def test_a_norm_keeps_its_input_and_weight_and_a_statistic_of_each_row() -> None:
    x, w, b = (Use(Tensor(f"x{index}", dims)) for index, dims in enumerate((("i", "j"), ("j",), ("j",))))
    op = build("layernorm", "o", [x, w, b], [Use(Tensor("o", ("i", "j")))], over=["j"])

    def normed(x: Any, w: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (4,), w[0])

    assert set(op.saved) - {"o.statistics"} == kept(normed, (True, True)) - {"o"}
    assert [use.name for use in op.residues] == ["o.statistics"]
