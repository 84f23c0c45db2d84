"""Which modules a search recomputes, by model, release and precision, counted by hand."""

from __future__ import annotations

import pytest

from symconfig.graph.block import LAYER
from symconfig.solve.limits import policies
from tests.sample_models import sample_model
from tests.solve.naive import limits_of

WHOLE = frozenset({LAYER})


@pytest.mark.parametrize(
    ("model", "version", "modules"),
    [
        ("llama2-13b", "core_v0.19.0", {"core_attn", "mlp"}),
        ("mixtral-8x7b", "core_v0.19.0", {"core_attn", "layernorm", "moe", "moe_act"}),
        (
            "deepseek-v3",  # three dense layers, latent attention, a shared expert
            "core_v0.19.0",
            {"core_attn", "layernorm", "mlp", "mla_up_proj", "moe", "moe_act", "shared_experts"},
        ),
        ("deepseek-v3", "core_v0.13.0", {"core_attn", "layernorm", "mlp", "mla_up_proj", "moe", "moe_act"}),
        ("llama2-13b-lora", "core_v0.19.0", {"core_attn"}),
    ],
)
def test_modules_are_those_of_the_model_and_the_release(model: str, version: str, modules: set[str]) -> None:
    found = limits_of("megatron", version, sample_model(model))
    assert set(found.modules) == modules
    assert found.block_recompute
    assert limits_of("deepspeed", "0.19.8", sample_model(model)).modules == ()


@pytest.mark.parametrize(
    ("model", "precision", "count"),
    [
        ("llama2-13b", "bf16", 2**2),
        # core_attn and layernorm with: neither expert module, moe, or moe_act.
        ("mixtral-8x7b", "bf16", 2**2 * 3),
        ("mixtral-8x7b", "fp16", 2**2 * 2),
        # core_attn, layernorm, mlp and mla_up_proj with: moe, or any of moe_act and shared_experts.
        ("deepseek-v3", "bf16", 2**4 * (1 + 2**2)),
    ],
)
def test_every_sensible_selection_once(model: str, precision: str, count: int) -> None:
    found = policies(
        limits_of("megatron", "core_v0.19.0", sample_model(model)),
        precision,
    )
    assert len(set(found)) == len(found) == count + 1
    assert found[0] == frozenset()
    assert found[-1] == WHOLE
    for group in found:
        assert "moe" not in group or not group & {"moe_act", "shared_experts"}


def test_low_precision_keeps_what_it_has_quantised() -> None:
    """A norm's and an activation's results are thrown away, a module that is run again as a whole keeps its input."""
    found = policies(
        limits_of("megatron", "core_v0.19.0", sample_model("deepseek-v3")),
        "fp8",
    )
    assert set().union(*found) - WHOLE == {"core_attn", "mlp", "moe", "shared_experts"}
