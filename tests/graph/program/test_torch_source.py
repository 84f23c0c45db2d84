"""Programs of real modules, held against PyTorch's own counts: parameters, FLOPs, bytes that autograd keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from symconfig.graph.operator import Tensor, Use
from symconfig.graph.program.build import build

torch = pytest.importorskip("torch", reason="programs of modules need torch")
pytest.importorskip("transformers", reason="the modules of these tests come from transformers")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from symconfig.graph.operator import Work  # noqa: E402
from symconfig.graph.program.fold import fold  # noqa: E402
from symconfig.graph.program.net import net  # noqa: E402
from symconfig.graph.program.program import Program  # noqa: E402
from symconfig.graph.program.torch_source import load_module  # noqa: E402
from tests.graph.program.check import problems  # noqa: E402

MODULES = ("wide_resnet", "gpt2", "gpt2_eager", "t5", "llama", "mixtral")
PROGRAMS: dict[str, Program] = {}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)


def program(name: str) -> Program:
    if name not in PROGRAMS:
        PROGRAMS[name] = load_module(f"modules:{name}")
    return PROGRAMS[name]


def real(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The same with memory, and with experts that take the tokens that are routed to them."""
    module, inputs = getattr(sys.modules["modules"], name)()
    if hasattr(module, "config"):
        module.config._experts_implementation = "eager"
    return (module, (), inputs) if isinstance(inputs, dict) else (module, tuple(inputs), {})


def flops(program: Program) -> float:
    total = 0.0
    for op in program.operators:
        if op.work is Work.MATMUL:
            total += 2 * prod(program.sizes[loop] for loop in op.loops)
        elif op.work is Work.ATTENTION:
            rows = prod(program.sizes[loop] for loop in op.residues[0].loops)
            total += 2 * rows * op.attended * op.channels
    return total


@pytest.mark.parametrize("name", MODULES)
def test_all_parameters_are_there_by_their_paths(name: str) -> None:
    made = program(name)
    module, _, _ = real(name)
    theirs = {path: weight.numel() for path, weight in module.named_parameters()}
    assert {weight.path: made.elements(weight.tensor.name) for weight in made.parameters} == theirs


@pytest.mark.parametrize("name", MODULES)
def test_products_and_attention_make_the_flops_that_torch_counts_when_it_runs(name: str) -> None:
    made = program(name)
    module, args, kwargs = real(name)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*args, **kwargs)
    assert flops(made) == counter.get_total_flops()


@pytest.mark.parametrize(("name", "backend"), [("llama", SDPBackend.FLASH_ATTENTION), ("gpt2_plain", SDPBackend.MATH)])
def test_the_bytes_kept_for_the_backward_are_those_that_autograd_keeps(name: str, backend: SDPBackend) -> None:
    """Without dropout, whose masks are wider on a CPU."""
    made = program(name)
    module, args, kwargs = real(name)
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with sdpa_kernel(backend), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(*args, **kwargs)
    ours = {tensor for op in made.operators for tensor in op.saved} - {weight.tensor.name for weight in made.parameters}
    mine = sum(made.elements(tensor) * made.tensors[tensor].element_bytes for tensor in ours)
    assert mine == pytest.approx(sum(storage.nbytes() for storage in kept.values()), rel=0.01)


@pytest.mark.parametrize("name", MODULES)
def test_a_program_of_a_module_becomes_a_network(name: str) -> None:
    """Its splits and operands are consistent enough for every operator to have places for all its options."""
    made = program(name)
    for node in net(made).nodes:
        assert len(node.options) > 1 or node.operator is None or not node.operator.outputs[0].tensor.dims
        assert all(len(port.places) == len(node.options) for port in node.ports)


@pytest.mark.parametrize("name", MODULES)
def test_a_program_of_a_module_is_sound(name: str) -> None:
    made = program(name)
    assert problems(made) == []
    assert made.batch == {"batch"}
    assert len(made.outputs) == 1  # the loss
    assert not made.tensors[made.outputs[0]].dims


def test_experts_are_static_and_balanced_and_the_program_says_so() -> None:
    made = program("mixtral")
    (note,) = made.notes
    assert "2 modules of kind MixtralExperts" in note
    products = [op for op in made.operators if op.path == "model.layers.1.mlp.experts" and op.work is Work.MATMUL]
    assert len(products) == 2
    experts, slots = products[0].inputs[0].loops[:2]
    assert (made.sizes[experts], made.sizes[slots]) == (8, 4 * 32 * 2 // 8)
    assert all(any(split.loops == (experts,) for split in op.splits) for op in products)
    sent = next(op for op in made.operators if op.outputs[0] == products[0].inputs[0])
    assert ("batch", slots) in [split.loops for split in sent.splits]


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_layers_of_a_module_fold(name: str) -> None:
    (run,) = fold(program(name)).runs
    assert run.times == 2


def test_key_value_heads_are_shared_by_query_heads_without_a_copy() -> None:
    made = program("llama")
    attention = next(op for op in made.operators if op.work is Work.ATTENTION)
    queries, keys = (operand.loops for operand in attention.inputs[:2])
    only = [loop for loop in queries if loop not in keys]
    assert sorted(made.sizes[loop] for loop in only) == [4, 32]  # heads of a group, and the queries
    assert {split.loops[0] for split in attention.splits} >= set(only)


def test_convolutions_split_in_space_with_their_neighbours_rows() -> None:
    made = program("wide_resnet")
    window = next(op for op in made.operators if op.path == "blocks.0.window")
    assert sorted(split.halo for split in window.splits) == [0, 0, 0, 1, 1]
    narrow = next(op for op in made.operators if op.path == "blocks.0.narrow")
    assert not any(split.halo for split in narrow.splits)


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
