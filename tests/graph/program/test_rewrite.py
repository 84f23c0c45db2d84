"""Every program that the rules reach computes what the first one does, has its gradients, and is a program."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from symconfig.graph.operator import Work  # noqa: E402
from symconfig.graph.program.fold import fold  # noqa: E402
from symconfig.graph.program.program import Program  # noqa: E402
from symconfig.graph.program.rewrite import rewrites, rewritten  # noqa: E402
from symconfig.graph.program.substitutions import RULES  # noqa: E402
from tests.graph.program.check import problems  # noqa: E402
from tests.graph.program.rewritten_programs import SAMPLES, drawn, given, joined, reached, reread, results, sample  # noqa: E402


@pytest.mark.parametrize("of", [*SAMPLES, *range(1, 12)])
def test_rewrites_keep_values_and_gradients(of: str | int, tmp_path: Path) -> None:
    others = kept(sample(tmp_path, of if isinstance(of, str) else drawn(of)), 60)
    assert others > 1


def test_rewrites_of_what_is_read_along_other_dims_keep_values_and_gradients(tmp_path: Path) -> None:
    """Among them products of which the weights, the sums or the tensors that are shared only seem alike."""
    assert sum(kept(sample(tmp_path, reread(seed)), 8) > 1 for seed in range(120)) > 50


@pytest.mark.parametrize(
    ("operators", "parameters", "outputs"),
    [
        ("w[h,h2] = add(t, t[h2,h]); y[b,s,h2] = x * w", "t: [h,h2]", "y"),
        (
            "repeat: {name: layers, times: 3, carry: {x: y, x2: a1}, body: ["
            "'y[b,s,h] = silu(x)', 'w[b,s,h] = add(x, y)', 'v[b,s,f] = w * up', 'a1[b,s,f] = add(x2, v)']}",
            "up: [h,f]",
            "a1, y",
        ),
    ],
)
def test_products_of_one_sum_get_different_names(operators: str, parameters: str, outputs: str, tmp_path: Path) -> None:
    """Where a tensor is added to itself, or to one of the same name in another layer."""
    assert kept(sample(tmp_path, (operators, parameters, outputs)), 8) > 1


def kept(program: Program, most: int) -> int:
    """Return how many programs the rules reach, at most so many, after all were found right."""
    values = given(program)
    first = results(program, values)
    weights = [torch.randn_like(one) for one in first]
    slopes = dict(zip(values, gradients(first, weights, list(values.values())), strict=True))
    others = [other for other, _ in reached(program, most)]
    for other in others:
        assert problems(other) == []
        mine = {key: value.detach().requires_grad_() for key, value in joined(other, values).items()}
        now = results(other, mine)
        torch.testing.assert_close(now, first, rtol=1e-9, atol=1e-9)
        found = dict(zip(mine, gradients(now, weights, list(mine.values())), strict=True))
        torch.testing.assert_close(found, joined(other, slopes), rtol=1e-8, atol=1e-8)
    return len(others)


def gradients(outputs: list[torch.Tensor], weights: list[torch.Tensor], of: list[torch.Tensor]) -> list[torch.Tensor]:
    total = sum((one * weight).sum() for one, weight in zip(outputs, weights, strict=True))
    return list(torch.autograd.grad(total, of, materialize_grads=True))


def test_the_samples_use_every_rule(tmp_path: Path) -> None:
    used = {rule for name in SAMPLES for _, path in reached(sample(tmp_path, name), 60) for rule in path}
    assert used == {*RULES}


def products(program: Program) -> list[str]:
    return [op.name for op in program.operators if op.work is Work.MATMUL]


@pytest.mark.parametrize(
    ("of", "dims", "sizes", "splits"),
    [
        ("three products of one input", ("h", "g+a+g", "c"), {"g+a+g": 8}, {("g+a+g", "g", "a"): 2, ("c",): 3}),
        ("heads that share keys", ("g2", "c+a·c+f", "h"), {"c+a·c+f": 21}, {("g2",): 2, ("c+a·c+f", "c", "a", "f"): 1}),
    ],
)
def test_joined_products_split_their_results_together(
    of: str, dims: tuple[str, ...], sizes: dict[str, int], splits: dict[tuple[str, ...], int], tmp_path: Path
) -> None:
    """An axis splits what the input lacks into no more parts than divide that of every result."""
    program = sample(tmp_path, of)
    both = next(one for one, _ in reached(program) if "k+q+v" in products(one))
    op = next(op for op in both.operators if op.name == "k+q+v")
    assert both.tensors["wk+wq+wv"].dims == dims
    assert sizes.items() <= both.sizes.items()
    assert splits.items() <= {split.loops: both.parts(split) for split in op.splits}.items()
    assert [one.tensor.name for one in both.parameters][-1] == "wk+wq+wv"


def test_a_repeat_is_rewritten_in_all_its_instances(tmp_path: Path) -> None:
    program = sample(tmp_path, "layers")
    inside = {one.words: one for one in rewrites(program) if one.rule in ("merge", "fuse")}
    assert inside.keys() == {
        "layers.*.p and layers.*.q in one product, which read x1",
        "layers.*.e and layers.*.a1 in one kernel",
    }
    for rewrite in inside.values():
        other = rewritten(program, rewrite)
        assert Counter(op.name.split(".")[1] for op in other.operators[1:-1]) == dict.fromkeys("012", 5)
        assert len({*fold(other).of}) == 7


@pytest.mark.parametrize(
    ("operators", "parameters", "saved"),
    [
        ("y[b,s,h] = mul(x, one); z[b,s,h] = gelu(y)", "one: [h]", {"x", "one"}),  # x is saved already
        ("y[b,s,h] = add(two, one); z[b,s,h] = gelu(y)", "one: [b,s,h], two: [b,s,h]", {"y"}),
        ("y[b,s,h] = add(two, one); z[b,s,h] = scale(y)", "one: [b,s,h], two: [b,s,h]", set()),
    ],
)
def test_a_fused_kernel_saves_what_takes_fewer_bytes(
    operators: str, parameters: str, saved: set[str], tmp_path: Path
) -> None:
    program = sample(tmp_path, (operators + "; w[b,s,f] = x * three", f"{parameters}, three: [h,f]", "z, w"))
    (one,) = (one for one in rewrites(program) if one.rule == "fuse")
    op = next(op for op in rewritten(program, one).operators if op.function == "fused")
    assert {*op.saved} == saved
    assert "y" not in {use.name for use in op.inputs}


@pytest.mark.parametrize(
    ("operators", "more", "outputs"),
    [
        ("y[b,s,f] = x * one; z[b,s,f] = x * one", "", "y, z"),  # the parameter is read twice
        ("y[b,s,f] = x * one; z[b,s,f] = silu(y); w[b,s,f] = silu(z)", "", "y, z, w"),  # all are results
        ("y[b,s,f] = x * one; z[b,s] = sum(y); w[b,s,f] = mul(z, y)", "", "w"),  # a sum is not elementwise
        ("t[b,s] = sum(x); u[b,s] = silu(t); v[b,s,h] = mul(x, u); y[b,s,f] = v * one", "", "y"),  # u is less than v
        ("y[b,s,f] = x * one; z[b,f] = x * two", "two: [h,f]", "y, z"),  # one sums the sequence, too
        (
            "y[b,s,g] = x * two; z[b,s,f] = x * three",
            "two: [g,h], three: [f,s,h]",
            "y, z",
        ),  # one weight has more dims than the other
        ("fp32 y[b,s,f] = x * one; fp8 z[b,s,f] = x * two", "two: [h,f]", "y, z"),  # a kernel stores one element type
        (
            "p[b,f] = x * two; q[b,f] = x[c,s,h] * three; y[b,f] = add(p, q)",
            "two: [b,s,h,f], three: [b,s,h,f]",
            "y",
        ),  # x along two dims
    ],
)
def test_what_is_no_pattern_stays(operators: str, more: str, outputs: str, tmp_path: Path) -> None:
    weights = ", ".join(filter(None, ("one: [h,f]" if "one" in operators else "", more)))
    assert rewrites(sample(tmp_path, (operators, weights, outputs))) == []


@pytest.mark.parametrize("of", SAMPLES)
def test_another_batch_is_rewritten_alike(of: str, tmp_path: Path) -> None:
    """Also where it has the size of another dim, so that other operators repeat."""
    program, sized = sample(tmp_path, of), sample(tmp_path, of, b=2, s=2, s2=2)
    for rewrite in rewrites(program):
        one, other = rewritten(program, rewrite), rewritten(sized, rewrite)
        assert [op.name for op in one.operators] == [op.name for op in other.operators]
        assert problems(other) == []
