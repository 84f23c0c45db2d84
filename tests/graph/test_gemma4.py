"""Wide layers of Gemma 4 and MiMo-V2: their FLOP against Transformers' own, and their plans."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from symconfig.cost.work import block_flops
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph import dims as d
from symconfig.graph.derived import Phase
from symconfig.graph.model import derived
from symconfig.graph.scheme import Scheme
from symconfig.solve.search import search
from tests.descriptor.small_configs import small_config
from tests.graph.support import numbers
from tests.sample_models import sample_cluster
from tests.solve.naive import job

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
S = 64
GEMMA4 = small_config("gemma4_text") | {
    "num_hidden_layers": 6,
    "vocab_size": 96,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
}


def _module(config: dict[str, Any], attention: str = "sdpa") -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    made = transformers.AutoConfig.for_model(**config, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    made._attn_implementation = attention
    made._experts_implementation = "eager"  # torch counts no grouped product
    return transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16)


def _layers_flops(model: ModelDescriptor) -> float:
    """FLOP of the forward of all layers, with attention over all keys, as torch counts it."""
    blocks = derived(model, DEEPSPEED.implementation, Scheme(False))
    values = numbers(model, seq_length=S) | {d.KEYS_FULL: S, d.KEYS_WINDOW: S}
    each = block_flops(blocks, values, (Phase.FORWARD,))
    return sum(each[kind] for kind in model.layer_kinds)


MIMO = {key: value for key, value in small_config("mimo_v2_flash").items() if key != "first_k_dense_replace"} | {
    "num_hidden_layers": 2,
    "vocab_size": 96,
    "mlp_layer_types": ["dense"] * 2,
    "layer_types": ["full_attention", "sliding_attention"],
}


@pytest.mark.parametrize(
    "config",
    [
        GEMMA4,
        GEMMA4 | {"attention_k_eq_v": False},
        GEMMA4 | {"enable_moe_block": True, "use_double_wide_mlp": False},
        MIMO,
    ],
    ids=["keys are values", "values of their own", "experts beside the MLP", "MiMo"],
)
def test_layers_take_what_torch_counts(config: dict[str, Any]) -> None:
    """Layers without a window have heads of another width or number than the others."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    config = config | {"sliding_window": 4096}
    module = _module(config, "eager").get_decoder()  # whose products it counts all
    with FlopCounterMode(display=False, depth=None) as counter, torch.no_grad():
        module(torch.zeros((1, S), dtype=torch.long), use_cache=False)
    layers = (each for name, each in counter.get_flop_counts().items() if re.search(r"layers\.\d+$", name))
    assert _layers_flops(import_config(config, "config.json", "small")) == sum(sum(each.values()) for each in layers)


def test_mimo_is_planned_over_two_ranks() -> None:
    model = import_config(small_config("mimo_v2_flash"), "config.json", "small")
    assert search(model, sample_cluster("h100"), job(8, 16, pins={"tp": "2"})).best.predicted.step_s > 0


def test_wide_layers_are_planned_and_their_keys_are_not_split_into_parts_of_heads() -> None:
    model = import_config(GEMMA4 | {"num_global_key_value_heads": 2}, "config.json", "small")
    assert {kind for kind in model.layer_kinds if "wide" in kind} == {"dense_wide_attention"}
    assert search(model, sample_cluster(), job(8, 16, pins={"tp": "2"})).best.predicted.step_s > 0
    with pytest.raises(InfeasibleError, match="must divide over tp"):
        search(model, sample_cluster(), job(8, 16, pins={"tp": "4"}))
