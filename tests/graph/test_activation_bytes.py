"""Bytes kept by one layer against Korthikanti et al. (arXiv 2205.05198), table 2, for an unfused GPT.

s sequence, b micro-batch, h hidden, a heads, t tensor-parallel ranks. The paper neglects the statistics of the norms,
two fp32 numbers a token in all here, and so nothing else may be missing.
"""

from __future__ import annotations

import pytest

from symconfig.graph.derived import recompute_policy
from tests.graph.support import PLAIN, SEQUENCE, block, held_bytes, numbers
from tests.sample_models import sample_model

# The paper's own models, table 3: a, h, layers. Sequence 2048 and t 8 in all four.
MODELS = {"22B": (64, 6144, 48), "175B": (96, 12288, 96), "530B": (128, 20480, 105), "1T": (160, 25600, 128)}
S, T, B = 2048, 8, 4
VARIANTS = {
    "no parallelism": (PLAIN, 1, (), lambda a, h: 34 + 5 * a * S / h),
    "tensor": (PLAIN, T, (), lambda a, h: 10 + 24 / T + 5 * a * S / (h * T)),
    "tensor + sequence": (SEQUENCE, T, (), lambda a, h: 34 / T + 5 * a * S / (h * T)),
    "tensor + selective": (PLAIN, T, ("core_attn",), lambda a, h: 10 + 24 / T),
    "tensor + sequence + selective": (SEQUENCE, T, ("core_attn",), lambda a, h: 34 / T),
    "full": (PLAIN, T, ("layer",), lambda a, h: 2),
}


@pytest.mark.parametrize("size", MODELS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_bytes_of_a_layer_are_the_papers(size: str, variant: str) -> None:
    heads, hidden, layers = MODELS[size]
    scheme, tp, modules, expected = VARIANTS[variant]
    model = sample_model(
        "gpt3-175b", num_attention_heads=heads, num_key_value_heads=heads, head_dim=hidden // heads, hidden_size=hidden,
        intermediate_size=4 * hidden, num_hidden_layers=layers,
    )  # fmt: skip
    derived = block(model, "dense", scheme, attention="fused_softmax")
    values = numbers(model, seq_length=S, micro_batch=B, tp=tp)
    found = held_bytes(derived, recompute_policy(derived, frozenset(modules)), values)
    statistics = 0 if "layer" in modules else 2 * 4 * S * B / (tp if scheme is SEQUENCE else 1)
    assert found - statistics == pytest.approx(S * B * hidden * expected(heads, hidden), rel=1e-12)
