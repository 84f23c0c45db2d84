"""Families with attention of their own: FLOP and the head's saved bytes of Transformers' classes, and their plans."""

from __future__ import annotations

import re
from typing import Any

import pytest

from symconfig.cost.work import block_flops
from symconfig.descriptor.architectures.class_defaults import families
from symconfig.descriptor.huggingface import import_config
from symconfig.errors import InfeasibleError
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.attended import FULL, WINDOW
from symconfig.graph.derived import Phase
from symconfig.graph.model import derived
from symconfig.graph.operator import ELEMENT_BYTES
from symconfig.graph.scheme import Scheme
from symconfig.solve.search import search
from tests.descriptor.small_configs import small_config
from tests.graph.saved import keeping
from tests.graph.support import numbers
from tests.graph.test_gemma4 import S, _layers_flops, _module
from tests.sample_models import sample_cluster
from tests.solve.naive import job

DENSE = {"num_hidden_layers": 2, "vocab_size": 96, "sliding_window": 4096}
LATENT = {"v_head_dim": 12, "mlp_layer_types": ["dense"] * 2, "q_lora_rank": 24, "num_key_value_heads": 4}
WINDOW_SIZES = {
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 12,
    "swa_v_head_dim": 14,
    "swa_kv_lora_rank": 20,
    "swa_qk_nope_head_dim": 10,
    "swa_qk_rope_head_dim": 4,
    "swa_head_dim": 14,
}
FREE = ("model_type", *WINDOW_SIZES)  # keys that no class lists with a default
FILES: dict[str, dict[str, Any]] = {
    "mimo_v2_flash": {"mlp_layer_types": ["dense"] * 2, "layer_types": ["full_attention", "sliding_attention"]},
    "axk2": LATENT | {"n_group": None, "topk_group": None},
    "diffllama": {},
    "gpt_neox_japanese": {"attention_dropout": 0.0},
    "modernbert-decoder": {"layer_types": ["full_attention", "sliding_attention"], "local_attention": 4096},
    "bailing_hybrid": LATENT | {"layer_types": ["full_attention"] * 2},
    "dots3_note_text": LATENT | WINDOW_SIZES | {"layer_types": ["indexed_attention", "sliding_attention"]},
}


def _file(kind: str) -> dict[str, Any]:
    keys = families()[kind]["defaults"]
    small = {key: DENSE.get(key, value) for key, value in small_config(kind).items()}
    return {key: value for key, value in {**small, **FILES[kind]}.items() if key in keys or key in FREE}


@pytest.mark.parametrize("kind", FILES)
def test_layers_take_what_torch_counts(kind: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    config = _file(kind)
    module = _module(config, "eager")  # whose products it counts all
    with FlopCounterMode(display=False, depth=None) as counter, torch.no_grad():
        module(torch.zeros((1, S), dtype=torch.long), use_cache=False)
    layers = [each for name, each in counter.get_flop_counts().items() if re.search(r"layers\.\d+$", name)]
    assert _layers_flops(import_config(config, "config.json", "small")) == sum(sum(each.values()) for each in layers)


def test_a_projection_before_the_head_takes_and_saves_what_torch_counts() -> None:
    """ModernBERT's head: a linear layer, GELU and a LayerNorm, then the logits."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    config = _file("modernbert-decoder")
    module = _module(config)
    x = torch.randn(1, S, config["hidden_size"], dtype=torch.bfloat16, requires_grad=True)
    with FlopCounterMode(display=False) as counter, keeping(module) as found:
        module.decoder(module.lm_head(x))
    model = import_config(config, "config.json", "small")
    blocks, values = (
        derived(model, DEEPSPEED.implementation, Scheme(False)),
        numbers(model, seq_length=S) | {FULL: S, WINDOW: S},
    )
    assert block_flops(blocks, values, (Phase.FORWARD,))["head"] == counter.get_total_flops()
    ours = {"final_norm", "head_columns", "head_active", "head_norm.mean", "head_norm.statistics", "head_norm"}
    kept = {one.tensor: one.elements.value(values) * ELEMENT_BYTES[one.element] for one in blocks["head"].held}
    assert sum(kept[name] for name in ours) == found.bytes()


@pytest.mark.parametrize("kind", ["axk2", "diffllama", "dots3_note_text", "mimo_v2_flash", "modernbert-decoder"])
def test_they_are_planned_over_two_ranks(kind: str) -> None:
    more = {"num_key_value_heads": 4} if kind == "diffllama" else {}
    model = import_config(small_config(kind) | more, "config.json", "small")
    cluster = sample_cluster("h100")  # an indexer's kernels are for Hopper and Blackwell
    assert search(model, cluster, job(8, 16, pins={"tp": "2"})).best.predicted.step_s > 0


def test_pairs_of_heads_are_not_split() -> None:
    model = import_config(small_config("diffllama"), "config.json", "small")  # one pair of value heads
    with pytest.raises(InfeasibleError, match="must divide over tp"):
        search(model, sample_cluster(), job(8, 16, pins={"tp": "2"}))
