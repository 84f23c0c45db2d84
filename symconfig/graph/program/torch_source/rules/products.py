"""Products: two tensors multiplied and summed over the loops that the output lacks. Biases are added in place."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.graph.program import build
from symconfig.graph.program.functions import LINEAR
from symconfig.graph.program.torch_source.call import Answer, Call, Rule, made
from symconfig.graph.program.torch_source.recorder import Labels, Value
from symconfig.graph.program.torch_source.rules.elementwise import pointwise

# The kernel adds the bias to what it has in registers; backward sums the output's gradient, which it reads once.
BIAS = (0.0, 0.5)


def product(call: Call, x: Value, xs: Labels, y: Value, ys: Labels, out: Labels, bias: Value | None = None) -> Value:
    result = call.emit(made(build.product), [(x, xs), (y, ys)], out, part="product" if bias else "")
    return result if bias is None else pointwise(call, LINEAR, [result, bias], traffic=BIAS)


def _linear(call: Call) -> Answer:
    x: Value = call["input"]
    rows = [f"row{n}" for n in range(x.rank - 1)]
    return product(call, x, [*rows, "in"], y=call["weight"], ys=["out", "in"], out=[*rows, "out"], bias=call["bias"])


def _mm(call: Call) -> Answer:
    bias = call["self"] if "mat1" in call.args else None
    x, y = (call["mat1"], call["mat2"]) if "mat1" in call.args else (call["self"], call["mat2"])
    return product(call, x, ["row", "in"], y=y, ys=["in", "out"], out=["row", "out"], bias=bias)


def _bmm(call: Call) -> Answer:
    bias = call["self"] if "batch1" in call.args else None
    x, y = (call["batch1"], call["batch2"]) if "batch1" in call.args else (call["self"], call["mat2"])
    return product(call, x, ["b", "row", "in"], y=y, ys=["b", "in", "out"], out=["b", "row", "out"], bias=bias)


def _matmul(call: Call) -> Answer:
    x: Value = call["self"]
    y: Value = next(call[name] for name in ("other", "vec", "tensor") if name in call.args)  # matmul, mv, dot
    rank = max(x.rank, y.rank)
    batch = [f"b{n}" for n in range(rank - 2)]
    xs = [*batch[rank - x.rank :], "row", "in"] if x.rank > 1 else ["in"]
    ys = [*batch[rank - y.rank :], "in", "out"] if y.rank > 1 else ["in"]
    out = [*batch, *(["row"] if x.rank > 1 else []), *(["out"] if y.rank > 1 else [])]
    return product(call, x, xs, y, ys, out)


def _einsum(call: Call) -> Answer:
    terms, _, out = call["equation"].replace(" ", "").partition("->")
    inputs = terms.split(",")
    if "." in terms or len(inputs) != 2 or any(len(set(term)) < len(term) for term in inputs):
        raise NotImplementedError("einsum of other than two operands, with ellipsis or a repeated letter")
    if not out and "->" not in call["equation"]:
        letters = "".join(inputs)
        out = "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
    return product(call, call["tensors"][0], list(inputs[0]), call["tensors"][1], list(inputs[1]), list(out))


RULES: Mapping[str, Rule] = {
    "aten.linear": _linear,
    **dict.fromkeys(("aten.mm", "aten.addmm"), _mm),
    **dict.fromkeys(("aten.bmm", "aten.baddbmm"), _bmm),
    **dict.fromkeys(("aten.matmul", "aten.mv", "aten.dot"), _matmul),
    "aten.einsum": _einsum,
}
