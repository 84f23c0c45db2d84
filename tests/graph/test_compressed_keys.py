"""Compressed and shared keys against Transformers' modules: FLOP, and what autograd saves, to the byte."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

from symconfig.cost.work import block_flops
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph import dims as d
from symconfig.graph.blocks.sparse_attention import HEAVY, HEAVY_RATE, RATE, SPARSE
from symconfig.graph.derive import derive
from symconfig.graph.derived import Phase
from symconfig.graph.implementation import NormKernel
from symconfig.graph.model import blocks, derived
from symconfig.graph.operator import ELEMENT_BYTES
from tests.descriptor.small_configs import small_config
from tests.graph.saved import keeping
from tests.graph.support import PLAIN, numbers

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SHORT, LONG = 64, 128


class Choice(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Choose the first key for every query."""

    def forward(self, x: Any, *args: Any, **more: Any) -> Any:
        return torch.zeros((*x.shape[:2], 1), dtype=torch.long)


def config(kind: str, **keys: Any) -> dict[str, Any]:
    """A small model whose windows reach over the whole sequence."""
    small = small_config(kind)
    wide = {"sliding_window": 4096, "max_position_embeddings": 256, "head_dim": 16}
    return small | {key: value for key, value in wide.items() if key in small} | keys


def read(of: dict[str, Any]) -> ModelDescriptor:
    return import_config(of, "config.json", "small")


def model_of(kind: str) -> dict[str, Any]:
    return config("deepseek_v4", layer_types=[kind], num_hidden_layers=1)


def saved(kind: str, length: int) -> int:
    """Bytes of storages that autograd holds for one layer's compressor, but for parameters and angles."""
    made = transformers.AutoConfig.for_model(**model_of(kind))
    file = importlib.import_module("transformers.models.deepseek_v4.modeling_deepseek_v4")
    module = file.COMPRESSOR_CLASSES[kind](made).bfloat16()
    if kind == SPARSE:  # nothing flows back through the choice, so that what it saves is given up at once
        module.indexer = Choice()
    x = torch.randn(1, length, made.hidden_size).bfloat16().requires_grad_()
    low = torch.randn(1, length, made.q_lora_rank).bfloat16()
    with keeping(module) as kept:
        module(x, low, torch.arange(length).unsqueeze(0), None, 0)
    return kept.bytes()


def derived_bytes(kind: str, length: int) -> dict[str, float]:
    model = read(model_of(kind))
    how = replace(DEEPSPEED.implementation, norm=NormKernel.EAGER_WIDE)  # as these norms are
    block = derive(blocks(model, how)[model.layer_kinds[0]], PLAIN)
    values = numbers(model, seq_length=length)
    return {
        held.tensor: held.elements.value(values) * ELEMENT_BYTES[held.element]
        for held in block.held
        if any(name.startswith("compressor") for name in held.needed_by)
    }


@pytest.mark.parametrize("kind", [HEAVY, SPARSE])
def test_compressed_keys_save_what_is_derived(kind: str) -> None:
    expected, shorter = derived_bytes(kind, LONG), derived_bytes(kind, SHORT)
    found = saved(kind, LONG) - saved(kind, SHORT)
    assert found == sum(expected.values()) - sum(shorter.values()), expected


def _layers(*kinds: str, **keys: Any) -> dict[str, Any]:
    return {"layer_types": list(kinds), "num_hidden_layers": len(kinds), **keys}


NEAR, FAR = "sliding_attention", "full_attention"
SHARED = {"attention_k_eq_v": False, "num_global_key_value_heads": None, "global_head_dim": 24}
# A model with more layers, some of which read the keys and values of others, and one with fewer.
DECODERS = [
    ("gemma4_text", _layers(*[NEAR, FAR] * 3, NEAR, NEAR, FAR, num_kv_shared_layers=4, **SHARED),
     _layers(*[NEAR, FAR] * 4, num_kv_shared_layers=3, **SHARED)),
    ("deepseek_v4", _layers(NEAR, SPARSE, HEAVY, NEAR), _layers(NEAR)),
]  # fmt: skip


def counted(of: dict[str, Any]) -> int:
    """FLOP of a decoder's forward as torch counts them, over all keys."""
    from torch.utils.flop_counter import FlopCounterMode

    made = transformers.AutoConfig.for_model(**of, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    made._attn_implementation = made._experts_implementation = "eager"
    decoder = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).base_model
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        decoder(torch.zeros((1, SHORT), dtype=torch.long), use_cache=False)
    return sum(counter.get_flop_counts()["Global"].values())


def flops(of: dict[str, Any]) -> float:
    """FLOP of the forward of everything before the head, as they are derived."""
    model = read(of)
    values = numbers(model, seq_length=SHORT) | {d.KEYS_FULL: SHORT, d.KEYS_WINDOW: SHORT}
    rates = ((d.KEYS_WITH_RUNS, HEAVY_RATE), (d.KEYS_WITH_CHOSEN_RUNS, RATE))
    values |= {name: SHORT + SHORT / values.get(rate, SHORT) for name, rate in rates}
    each = block_flops(derived(model, DEEPSPEED.implementation, PLAIN), values, (Phase.FORWARD,))
    return sum(each[kind] for kind in ("embedding", *model.layer_kinds))


@pytest.mark.parametrize(("kind", "larger", "smaller"), DECODERS)
def test_such_layers_take_what_torch_counts(kind: str, larger: dict[str, Any], smaller: dict[str, Any]) -> None:
    more, fewer = config(kind, **larger), config(kind, **smaller)
    assert flops(more) - flops(fewer) == pytest.approx(counted(more) - counted(fewer), rel=1e-12)
