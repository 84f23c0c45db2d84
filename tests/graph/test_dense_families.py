"""Layers of dense families against Transformers' own: what autograd saves for them, to the byte, and their FLOP."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from symconfig.cost.flops import block_flops
from symconfig.descriptor.architectures.class_defaults import families
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.attended import FULL, WINDOW
from symconfig.graph.derived import Phase
from symconfig.graph.model import derived
from symconfig.graph.recompute import apply
from symconfig.graph.scheme import Scheme
from symconfig.solve.search import search
from tests.descriptor.small_configs import small_config
from tests.graph.support import held_bytes, numbers
from tests.sample_models import sample_cluster
from tests.solve.naive import job

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
S = 64
WIDE = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "sliding_window": 4096,
        "max_position_embeddings": 256}  # fmt: skip
NONE_DROPPED = ("attention_dropout", "residual_dropout", "dropout")
# Where a structure of its own is exact: norms without weights, before projections and behind sublayers; ReLU squared
# and xIELU; LayerNorms and biases; learned positions. Bytes beyond what is derived, and of what.
SAVED = {
    "apertus": 4,  # xIELU's two slopes, after their softplus
    "arcee": 0,
    "bitnet": 0,
    "exaone4": 0,
    "granite": 0,
    "hyperclovax": 0,
    "jais2": 0,
    "nanochat": 0,
    "opt": 0,
    "seed_oss": 0,
    "starcoder2": 0,
}
GEMMA4 = small_config("gemma4_text") | {"num_hidden_layers": 6, "vocab_size": 96, "vocab_size_per_layer_input": 96}


def _config(kind: str, layers: int) -> dict[str, Any]:
    keys = families()[kind]["defaults"]
    small = {key: WIDE.get(key, value) for key, value in small_config(kind).items()}
    return small | {"num_hidden_layers": layers} | {key: 0.0 for key in NONE_DROPPED if key in keys}


def _module(config: dict[str, Any], attention: str = "sdpa") -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    made = transformers.AutoConfig.for_model(**config, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    made._attn_implementation = attention
    return transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16)


def _saved(config: dict[str, Any]) -> int:
    """Bytes of storages, other than parameters and buffers, that autograd holds after the decoder's forward."""
    torch = pytest.importorskip("torch")
    module = _module(config)
    known = {one.untyped_storage().data_ptr() for one in (*module.parameters(), *module.buffers())}
    sizes: dict[int, int] = {}
    held: list[Any] = []  # so that no address is used twice

    def pack(tensor: Any) -> Any:
        held.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module.base_model(torch.zeros((1, S), dtype=torch.long), use_cache=False)
    return sum(sizes.values())


@pytest.mark.parametrize("kind", SAVED)
def test_a_layer_saves_what_is_derived(kind: str) -> None:
    model = import_config(_config(kind, 2), "config.json", "small")
    layer = derived(model, DEEPSPEED.implementation, Scheme(False))[model.layer_kinds[1]]
    found = held_bytes(layer, apply(layer, frozenset()), numbers(model, seq_length=S))
    assert found + SAVED[kind] == _saved(_config(kind, 2)) - _saved(_config(kind, 1))


def _layers_flops(model: ModelDescriptor) -> float:
    """FLOP of the forward of all layers, with attention over all keys, as torch counts it."""
    blocks = derived(model, DEEPSPEED.implementation, Scheme(False))
    values = numbers(model, seq_length=S) | {FULL: S, WINDOW: S}
    each = block_flops(blocks, values, (Phase.FORWARD,))
    return sum(each[kind] for kind in model.layer_kinds)


@pytest.mark.parametrize("alike", [True, False], ids=["keys are values", "values of their own"])
def test_gemma_4s_layers_take_what_torch_counts(alike: bool) -> None:
    """Layers without a window have wider heads, and fewer of keys."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    config = GEMMA4 | {"attention_k_eq_v": alike, "sliding_window": 4096}
    module = _module(config, "eager").get_decoder()  # whose products it counts all
    with FlopCounterMode(display=False, depth=None) as counter, torch.no_grad():
        module(torch.zeros((1, S), dtype=torch.long), use_cache=False)
    layers = (each for name, each in counter.get_flop_counts().items() if re.search(r"layers\.\d+$", name))
    assert _layers_flops(import_config(config, "config.json", "small")) == sum(sum(each.values()) for each in layers)


def test_wide_layers_are_planned_and_their_keys_are_not_split_into_parts_of_heads() -> None:
    model = import_config(GEMMA4 | {"num_global_key_value_heads": 2}, "config.json", "small")
    assert {kind for kind in model.layer_kinds if "wide" in kind} == {"dense_wide_attention"}
    assert search(model, sample_cluster(), job(8, 16, pins={"tp": "2"})).best.predicted.step_s > 0
    with pytest.raises(InfeasibleError, match="must divide over tp"):
        search(model, sample_cluster(), job(8, 16, pins={"tp": "4"}))
