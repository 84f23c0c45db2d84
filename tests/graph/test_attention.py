"""What stands around the attention's products."""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.derived import Traffic
from tests.graph.support import block, numbers
from tests.sample_models import sample_model


def test_turning_queries_costs_more_where_yarn_lengthens_them() -> None:
    """gpt-oss lengthens by 0.1 ln(32) + 1, which Transformer Engine's kernel cannot: 12 and 17 passes for 2 and 2."""
    model = sample_model("gpt-oss-120b")
    plain = model.model_copy(update={"rope_scaling": None})

    def moved(model: ModelDescriptor, fused_yarn: bool = False) -> list[float]:
        work = block(model, "moe", fused_yarn=fused_yarn).work
        mine = [w for w in work if isinstance(w, Traffic) and w.op == "rope_q"]
        return [sum(m.value(numbers(model)) for m, _ in w.moved) for w in mine]

    forward, backward = moved(plain)
    assert moved(model) == [6 * forward, 8.5 * backward]
    assert moved(model, fused_yarn=True) == [forward, backward]
