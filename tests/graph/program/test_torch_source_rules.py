"""What becomes of small modules: dims by relation, views that vanish, gradients, weights, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="programs of modules need torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from symconfig.errors import InputError  # noqa: E402
from symconfig.graph.operator import Operator, Work  # noqa: E402
from symconfig.graph.program.program import Program  # noqa: E402
from symconfig.graph.program.torch_source import load_module, program_of  # noqa: E402
from tests.graph.program.check import problems  # noqa: E402

HERE = Path(__file__).parent


class Of(nn.Module):
    """Of a function of the module and its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def program(function: Callable[..., Any], *shapes: tuple[int, ...], **parts: Callable[[], nn.Module]) -> Program:
    with torch.device("meta"):
        module = Of(function, **{name: part() for name, part in parts.items()})
        return program_of(module, [torch.zeros(shape) for shape in shapes], {}, "test")


def of_size(made: Program, tensor: str) -> list[int]:
    return [made.sizes[dim] for dim in made.tensors[tensor].dims]


def last(made: Program, work: Work = Work.MATMUL) -> Operator:
    return [op for op in made.operators if op.work is work][-1]


def test_a_sequence_that_meets_itself_is_two_loops_over_one_dim() -> None:
    made = program(lambda m, x: m.a(x) @ x.transpose(1, 2), (4, 6, 8), a=lambda: nn.Linear(8, 8, bias=False))
    scores = last(made)
    queries, keys = scores.inputs
    assert queries.tensor.dims[:2] == keys.tensor.dims[:2]
    assert queries.loops[1] != keys.loops[1]
    assert len(set(scores.outputs[0].tensor.dims)) == 3


def test_a_rotation_of_channels_is_split_by_rows_and_within_its_halves() -> None:
    def rotated(m: Any, x: Any) -> Any:
        y = m.a(x)
        one, other = y[..., :8], y[..., 8:]
        return m.b(y * 2 + torch.cat([-other, one], dim=-1))

    made = program(rotated, (4, 8), a=lambda: nn.Linear(8, 16, bias=False), b=lambda: nn.Linear(16, 8, bias=False))
    assert of_size(made, "a.weight") == [2, 8, 8]
    rotation = made.operators[1]
    assert {made.sizes[split.loops[0]] for split in rotation.splits} == {4, 8}


def test_a_tied_weight_is_one_parameter_used_twice() -> None:
    def tied(m: Any, x: Any) -> Any:
        return nn.functional.linear(m.a(x), m.b.weight)

    with torch.device("meta"):
        module = Of(tied, a=nn.Linear(8, 8, bias=False), b=nn.Linear(8, 8, bias=False))
        module.b.weight = module.a.weight
        made = program_of(module, [torch.zeros(4, 8)], {}, "test")
    assert [weight.path for weight in made.parameters] == ["a.weight"]
    assert all("a.weight" in {operand.name for operand in op.inputs} for op in made.operators)


def test_a_frozen_weight_has_no_gradient_and_its_product_keeps_no_input_for_it() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
        module[1].weight.requires_grad_(False)
        made = program_of(module, [torch.zeros(4, 8)], {}, "test")
    first, second = made.operators
    assert [weight.trainable for weight in made.parameters] == [True, False]
    assert first.saved == ("input",)
    assert second.saved == ("1.weight",)


@pytest.mark.parametrize(
    ("casts", "made"), [((torch.int32,), 0), ((torch.int32, torch.float32), 1), ((torch.float64,), 1)], ids=str
)
def test_a_cast_of_data_is_an_operator_if_it_is_wider_or_makes_fractions(
    casts: Sequence[torch.dtype], made: int
) -> None:
    def cast(m: Any, x: Any) -> Any:
        for kind in casts:
            x = x.to(kind)
        return m.a(x.sum(-1, keepdim=True, dtype=torch.float32))

    plain = program(lambda m, x: m.a(x.sum(-1, keepdim=True, dtype=torch.float32)), (4, 8), a=linear(1))
    assert len(program(cast, (4, 8), a=linear(1)).operators) == len(plain.operators) + made


def linear(given: int = 8, made: int = 8) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(given, made, bias=False)


def convolution(*sizes: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(*sizes, bias=False, **options)


def written(m: Any, x: Any) -> Any:
    y = m.a(x).clone()
    y[:, 0] = 0
    return y


F = nn.functional
PIXELS = (4, 8, 16, 16)
FORMS: dict[str, tuple[Callable[..., Any], tuple[int, ...], Callable[[], nn.Module], int]] = {
    "in place": (lambda m, x: m.a(x).add_(1).mul_(2).relu_(), (4, 8), linear(), 1),
    "written into": (written, (4, 8), linear(), 1),
    "rolled": (lambda m, x: torch.roll(m.a(x), 1, 1), (4, 6, 8), linear(), 1),
    "picked": (lambda m, x: m.a(x)[torch.arange(4), torch.zeros(4, dtype=torch.long)], (4, 6, 8), linear(), 1),
    "mean squares": (lambda m, x: F.mse_loss(m.a(x), x), (4, 8), linear(), 1),
    "log-likelihood": (lambda m, x: F.nll_loss(m.a(x).log_softmax(-1), x[:, 0].long()), (4, 8), linear(), 1),
    "log-likelihood of places": (lambda m, x: F.cross_entropy(m.a(x), x[:, 0].long()), (4, 6, 8), linear(), 1),
    "in groups": (lambda m, x: m.a(x), PIXELS, convolution(8, 16, 3, groups=2), 1),
    "normed in groups": (
        lambda m, x: m.a(x),
        PIXELS,
        lambda: nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1, bias=False)),
        2,
    ),
    "larger": (lambda m, x: F.interpolate(m.a(x), scale_factor=2), PIXELS, convolution(8, 8, 3), 1),
    "flipped": (lambda m, x: m.a(m.a(x).flip(1)), (4, 6, 8), linear(), 2),
    "two operands": (lambda m, x: torch.einsum("bsh,bth->bst", m.a(x), x), (4, 6, 8), linear(), 2),
    "the only row": (lambda m, x: m.a(m.a(x).select(1, 0)), (4, 1, 8), linear(), 2),
    "unbound": (lambda m, x: m.a(m.a(x).unbind(1)[0]), (4, 1, 8), linear(), 2),
    "gathered": (lambda m, x: m.a(torch.gather(m.a(x), 1, x[:, :3].long())), (4, 6, 8), linear(), 2),
    "attention in steps": (
        lambda m, x: m.a(x, x, x)[0],
        (4, 6, 8),
        lambda: nn.MultiheadAttention(8, 2, batch_first=True, bias=False),
        4,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_operators_give_sound_programs_with_all_flops(form: str) -> None:
    function, shape, part, products = FORMS[form]
    made = program(function, shape, a=part)
    assert problems(made) == []
    assert len([op for op in made.operators if op.work is Work.MATMUL]) == products
    with FlopCounterMode(display=False) as counter:
        Of(function, a=part())(torch.zeros(shape))
    mine = sum(2 * prod(made.sizes[at] for at in op.loops) for op in made.operators if op.work is Work.MATMUL)
    assert mine == counter.get_total_flops()


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (lambda m, x: torch.dot(m.a(x)[0], x[0]), [8]),
        (lambda m, x: m.a(x)[0] @ x[0], [8]),
        (lambda m, x: torch.mv(m.a(x), x[0]), [4, 8]),
        (lambda m, x: x[0] @ m.a(x).t(), [4, 8]),
    ],
)
def test_products_with_vectors_have_no_more_loops_than_they_sum(function: Callable[..., Any], sizes: list[int]) -> None:
    made = program(function, (4, 8), a=linear())
    assert problems(made) == []
    assert sorted(made.sizes[loop] for loop in last(made).loops) == sizes


@pytest.mark.parametrize("mask", [None, (5, 5), (1, 1, 5, 5), (2, 6, 5, 5)])
def test_groups_of_query_heads_share_one_head_of_keys_and_values(mask: tuple[int, ...] | None) -> None:
    """q[2, 6, 5, 8], k[2, 2, 5, 8], v[2, 2, 5, 4]: three query heads a group."""

    def attend(m: Any, q: Any, k: Any, v: Any, *given: Any) -> Any:
        return m.a(F.scaled_dot_product_attention(q, k, v, *given, enable_gqa=True))

    shapes = [(2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 4), *([mask] if mask else [])]
    made = program(attend, *shapes, a=lambda: nn.Linear(4, 4, bias=False))
    assert problems(made) == []
    (core,) = [op for op in made.operators if op.work is Work.ATTENTION]
    assert prod(made.sizes[dim] for dim in core.loops if made.sizes[dim] not in (4, 8)) == 2 * 6 * 5 * 5
    assert (core.attended, core.channels) == (5.0, 8 + 4)
    read = [prod(of_size(made, operand.name)) for operand in core.inputs[:3]]
    assert read == [2 * 6 * 5 * 8, 2 * 2 * 5 * 8, 2 * 2 * 5 * 4]
    assert prod(of_size(made, core.outputs[0].name)) == 2 * 6 * 5 * 4
    assert prod(of_size(made, made.outputs[0])) == 2 * 6 * 5 * 4


@pytest.mark.parametrize(
    ("window", "halo"),
    [
        (convolution(8, 8, 1), 0),
        (convolution(8, 8, 5, padding=2), 2),
        (convolution(8, 8, 4, padding="same"), 2),  # one row before, two behind
        (convolution(8, 8, 3, padding=2, dilation=2), 2),
        (convolution(8, 8, 3, padding=3, dilation=3), 3),
        (lambda: nn.MaxPool2d(3, 1, padding=1), 1),
        (lambda: nn.AvgPool2d(2), 0),
    ],
)
def test_parts_of_an_image_lend_each_other_the_rows_that_windows_reach(
    window: Callable[[], nn.Module], halo: int
) -> None:
    made = program(lambda m, x: m.b(m.a(x)), PIXELS, a=convolution(8, 8, 1), b=window)
    operator = made.operators[-1]
    assert max(split.halo for split in operator.splits) == halo
    assert sum(split.halo == halo for split in operator.splits) >= 2  # rows and columns


def test_the_batch_is_that_of_the_first_input_that_is_read_and_has_one() -> None:
    for first in ((), (3,), (3, 5)):
        made = program(lambda m, unread, x: m.a(x), first, (4, 8), a=linear())
        assert [made.sizes[dim] for dim in made.batch] == [4]
    made = program(lambda m, scale, x: m.a(x) * scale, (), (4, 8), a=linear())
    assert [made.sizes[dim] for dim in made.batch] == [4]


def test_what_a_module_returns_beside_tensors_is_left_out_and_its_forward_left_as_it_was() -> None:
    with torch.device("meta"):
        module = Of(lambda m, x: {"logits": m.a(x), "cache": object()}, a=nn.Linear(8, 4))
        made = program_of(module, [torch.zeros(4, 8)], {}, "test")
    assert len(made.outputs) == 1
    assert "forward" not in vars(module)


def test_all_operators_without_a_rule_are_named_at_once_with_where_to_add_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    with pytest.raises(InputError) as error:
        load_module("modules:unknown")
    texts = [str(problem) for problem in error.value.problems]
    assert len(texts) == 2
    assert "aten.special_bessel_j0.default" in texts[0]
    assert "2 times" in texts[0]
    assert "aten.linalg_matrix_exp.default" in texts[1]
    assert all("symconfig/graph/program/torch_source/rules/" in text for text in texts)
    assert error.value.exit_code == 2


def test_what_cannot_be_traced_is_said_with_the_modules_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    with pytest.raises(InputError) as error:
        load_module("modules:dynamic")
    (problem,) = error.value.problems
    assert Path(str(problem.file)).name == "modules.py"
    assert "item()" in Path(str(problem.file)).read_text(encoding="utf-8").splitlines()[int(problem.line or 0) - 1]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("modules", "not the name of a factory"),
        ("no_such_module:make", "cannot be imported"),
        ("modules:no_such_factory", "has no no_such_factory"),
        ("modules:tokens_of_nothing", "has no"),
        ("modules:LLAMA", "made no module"),
    ],
)
def test_a_factory_that_is_not_there(source: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    with pytest.raises(InputError, match=what):
        load_module(source)


def test_torch_is_not_imported_before_a_module_is_loaded() -> None:
    code = "import sys, symconfig.graph.program.torch_source; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
