"""FLOP of the blocks against torch's counter on Transformers' own path: projections exactly, scans by the formula."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from symconfig.cost.work import block_flops
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.block import Block
from symconfig.graph.derive import derive
from symconfig.graph.derived import Matmul, Phase, Traffic
from symconfig.graph.model import blocks
from tests.graph.blocks.modules import CASES, HIDDEN, Case
from tests.graph.support import PLAIN, numbers

S = 128
FORWARD = {"mm": "aten.mm", "bmm": "aten.bmm"}


def counted(case: Case) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """FLOP by operator of ATen, forward and of both passes."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    module = case.build("cpu", "float32")
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    x = torch.randn(1, S, HIDDEN, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        out = module(x)
        out = out[0] if isinstance(out, tuple) else out
        forward = dict(counter.get_flop_counts()["Global"])
        out.sum().backward()
    both = dict(counter.get_flop_counts()["Global"])
    return {str(op): n for op, n in forward.items()}, {str(op): n for op, n in both.items()}


def built(case: Case) -> Block:
    (block,) = (
        block for kind, block in blocks(case.descriptor, DEEPSPEED.implementation).items() if case.block in kind
    )
    return block


def inside(case: Case) -> tuple[float, dict[str, float]]:
    """FLOP of the projections, and of each product inside the scan, forward."""
    block = built(case)
    values = numbers(case.descriptor, seq_length=S)
    mine = {op.name for op in block.operators if op.path == "self_attn"}
    linear = 0.0
    products: dict[str, float] = {}
    names = {op.name: [product.name for product in op.products] for op in block.operators}
    for work in derive(block, PLAIN).work:
        if work.op in mine and work.phase is Phase.FORWARD:
            if isinstance(work, Matmul):
                linear += 2 * (work.batch * work.m * work.n * work.k).value(values)
            elif isinstance(work, Traffic) and work.products:
                each = [2 * size.value(values) for size, _ in work.products]
                products |= dict(zip(names[work.op], each, strict=True))
    return linear, products


@pytest.mark.parametrize("name", ["mamba2", "qwen3 next", "kimi", "lfm2"])
def test_projections_take_what_torch_counts(name: str) -> None:
    forward, both = counted(CASES[name])
    linear, products = inside(CASES[name])
    assert forward["aten.mm"] == linear
    assert both["aten.mm"] == 3 * linear
    assert forward.get("aten.bmm", 0) == in_torch(CASES[name], products)


def in_torch(case: Case, products: Mapping[str, float]) -> float:
    """FLOP of a scan as Transformers' own path runs it, from those of the chunked algorithm's products."""
    total, sizes = sum(products.values()), case.sizes
    if case.block == "mamba2":  # C B' for every head, not every group; each chunk's state from those of all before it
        by_head = products["c_b"] * (sizes["mamba_num_heads"] / sizes["n_groups"] - 1)
        states = sizes["mamba_num_heads"] * sizes["mamba_head_dim"] * sizes["ssm_state_size"]
        return total + by_head + 2 * (S // sizes["chunk_size"] + 1) ** 2 * states
    if case.block == "gated_delta_net":  # a triangular solver, which torch does not count, in place of the inverse
        return total - products["w"] - products["u"]
    if case.block == "kimi_delta_attention":  # scores by element-wise products and sums
        return total - products["k_k"] - products["q_k"]
    return total


def test_the_backward_of_a_scan_takes_twice_its_forward() -> None:
    case = CASES["mamba2"]
    forward, both = counted(case)
    assert both["aten.bmm"] == 3 * forward["aten.bmm"]
    derived = {"layer": derive(built(case), PLAIN)}
    values = numbers(case.descriptor, seq_length=S)
    ahead, back = (block_flops(derived, values, (phase,))["layer"] for phase in (Phase.FORWARD, Phase.INPUT))
    linear = sum(inside(case)[1].values())
    products = [work for work in derived["layer"].work if isinstance(work, Matmul) and work.phase is Phase.FORWARD]
    weights = sum(2 * (work.batch * work.m * work.n * work.k).value(values) for work in products)
    assert ahead == weights + linear
    assert back == weights + 2 * linear


def test_a_chunked_scan_is_the_sum_that_its_paper_gives() -> None:
    """Dao & Gu 2024, section 6, per token: Q N of each group, Q P, N P and N P of each head; Yang et al.: see
    linear_attention.py."""
    sizes = CASES["mamba2"].sizes
    h, p, g = sizes["mamba_num_heads"], sizes["mamba_head_dim"], sizes["n_groups"]
    n, q = sizes["ssm_state_size"], sizes["chunk_size"]
    assert sum(inside(CASES["mamba2"])[1].values()) == 2 * S * (q * n * g + h * (q * p + 2 * n * p))
    delta = CASES["qwen3 next"].sizes
    k, v = delta["linear_key_head_dim"], delta["linear_value_head_dim"]
    per_head = 3 * 64 * k + 2 * 64 * v + 3 * k * v
    assert sum(inside(CASES["qwen3 next"])[1].values()) == 2 * S * delta["linear_num_value_heads"] * per_head
