"""FLOPs as the sources count them: their own formulas, and rows that print both a rate and TFLOP/s."""

from __future__ import annotations

from statistics import median

import pytest

from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.block import LAYER
from symconfig.measured.assumptions import Counting
from symconfig.measured.cases import case
from symconfig.measured.judge import flops_per_token, tokens_per_s_per_gpu
from tests.measured.support import published

FULL = Counting(causal="full")
S = 2048


def gpt(**changes: object) -> ModelDescriptor:
    """GPT-2-like: 24 h^2 FLOP a token and layer forward, and no gate."""
    fields: dict[str, object] = {
        "schema": "symconfig.model/1", "name": "GPT-22B", "source": "arXiv 2205.05198, table 3", "model_type": "gpt2",
        "num_hidden_layers": 48, "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
        "num_key_value_heads": 64, "head_dim": 96, "vocab_size": 51200, "max_position_embeddings": S,
        "gated_mlp": False, "hidden_act": "gelu", "norm": "layernorm", "position": "learned", "attention": "gqa",
        "tie_word_embeddings": True,
    }  # fmt: skip
    return ModelDescriptor.model_validate(fields | changes, strict=False)


@pytest.mark.parametrize(
    ("again", "factor", "attention"), [((), 72, 6.0), ({"core_attn"}, 72, 4.5), ({LAYER}, 96, 6.0)]
)
def test_formulas_of_megatron_papers(again: set[str], factor: int, attention: float) -> None:
    """arXiv 2205.05198, appendix A, and 2104.04473, section 5.1: 96 with full recompute.

    With selective recompute attention's forward, a third of 12 s h, runs again: s/(4.5 h). The paper prints s/(3h),
    which doubles the backward, too.
    """
    h, layers, vocabulary = 6144, 48, 51200
    per_layer = factor * h * h * (1 + S / (attention * h))
    expected = layers * per_layer + 6 * h * vocabulary
    assert flops_per_token(gpt(), S, FULL, again) == pytest.approx(expected, rel=1e-12)


def test_the_mask_halves_attention_and_the_look_up_may_count_as_a_matrix() -> None:
    h, layers = 6144, 48
    full, half = (flops_per_token(gpt(), S, Counting(causal=how)) for how in ("full", "half"))
    assert full - half == pytest.approx(6 * layers * S * h)
    twice = flops_per_token(gpt(), S, Counting(causal="full", vocabulary=2))
    assert twice - full == pytest.approx(6 * h * 51200)


def test_a_window_bounds_the_keys() -> None:
    model = load_model("gpt-oss-120b")
    longer, far = 4096, 8192
    grown = flops_per_token(model, far, FULL) - flops_per_token(model, longer, FULL)
    whole = sum(not windowed for windowed in model.sliding_window_pattern or ())
    assert grown == pytest.approx(whole * 12 * (far - longer) * model.num_attention_heads * model.head_dim)


# Share by which seconds from TFLOP/s may differ from seconds that the source prints for the same row: its rounding.
@pytest.mark.parametrize(
    ("name", "median_error"),
    [("nemo_2407", 0.001), ("megatron_bridge", 0.007), ("megatron_readme_h100", 0.005), ("llm_foundry_mpt", 0.005),
     ("dgxc_benchmarking", 0.003), ("korthikanti2022", 0.005), ("megatron_sc21", 0.002)],
)  # fmt: skip
def test_rows_that_state_both_agree(name: str, median_error: float) -> None:
    ((_, content),) = published(name)
    errors = []
    for row in content.rows:
        what = case(name, row)
        c = what.configuration
        peak = getattr(what.cluster.gpu.peak_flops, c.precision).value
        found = tokens_per_s_per_gpu(row, what.model, c, peak, what.counting)
        step = row.measured.step_s or row.derived.step_s
        if found and step and row.task == "pretrain":
            errors.append(c.global_batch * c.seq_length / c.world_size / step / found[1] - 1)
    assert len(errors) >= 3
    assert abs(median(errors)) < median_error
