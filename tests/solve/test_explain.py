"""What waits for the backward pass is explained as the plan has it: kept, recomputed or in host memory."""

from __future__ import annotations

import pytest

from symconfig.solve.explain import explain
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tiny

PLAIN = {"tp": "1", "pp": "1", "activation_offload": "0"}


@pytest.mark.parametrize(
    ("pins", "input_", "heads", "statistics"),
    [
        ({"recompute": "none"}, "kept", "kept", "kept"),
        ({"recompute": "selective:core_attn"}, "kept", "kept", "recomputed"),
        ({"recompute": "full"}, "kept", "recomputed", "recomputed"),
    ],
)
def test_fate_of_every_tensor(pins: dict[str, str], input_: str, heads: str, statistics: str) -> None:
    plan = search(tiny(), sample_cluster(), job(2, 2, pins={**PLAIN, **pins}))
    fate = {line.name: line.fate for line in explain(plan).tensors}
    assert (fate["layer_in"], fate["attention_heads"], fate["softmax_statistics"]) == (input_, heads, statistics)


def test_offloaded_tensors_are_named() -> None:
    plan = search(tiny(), sample_cluster(), job(2, 2, pins={**PLAIN, "recompute": "none", "activation_offload": "1"}))
    fates = [line.fate for line in explain(plan).tensors]
    assert "offloaded" in fates
    assert "recomputed" not in fates
