"""What is alive only while one block runs backward."""

from __future__ import annotations

import pytest

from symconfig.cost.blocks import KEPT, TRANSIENT
from symconfig.graph.blocks.common import Implementation
from symconfig.graph.derive import derive
from symconfig.graph.model import blocks
from tests.cost.support import cost
from tests.graph.support import PLAIN, numbers
from tests.sample_models import sample_model
from tests.solve.naive import tiny


def test_what_waits_in_host_memory_is_back_while_its_block_runs_backward() -> None:
    here, away = cost(tiny()), cost(tiny(), offload=frozenset({"flash_attention"}))
    layer = here.table.kinds.index("dense")
    less = here.table.passes[KEPT, 0, layer] - away.table.passes[KEPT, 0, layer]
    more = away.table.passes[TRANSIENT, 0, layer] - here.table.passes[TRANSIENT, 0, layer]
    assert less > 0
    assert more == pytest.approx(less)


@pytest.mark.parametrize(("attention", "squares"), [("fused_softmax", 1), ("torch", 2)])
def test_the_fused_softmax_writes_its_gradient_over_the_one_it_reads(attention: str, squares: int) -> None:
    model = sample_model("llama2-13b")
    derived = derive(blocks(model, Implementation(attention=attention))["dense"], PLAIN)  # type: ignore[arg-type]
    (softmax,) = [space for space in derived.workspaces if space.op == "softmax"]
    values = numbers(model, seq_length=1024)
    square = model.num_attention_heads * 1024**2
    assert sum(size.value(values) for size, _ in softmax.moved) == squares * square
