"""Layers that share weights, a block, keys or streams, against Transformers' own: FLOP and saved bytes, to the byte."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from symconfig.cost.work import block_flops
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.attended import CHOSEN_RUNS, FULL, RUNS, WINDOW
from symconfig.graph.blocks.sparse_attention import HEAVY_RATE, RATE
from symconfig.graph.derived import DerivedBlock, Phase
from symconfig.graph.implementation import NormKernel
from symconfig.graph.model import derived
from symconfig.graph.recompute import apply
from symconfig.graph.scheme import Scheme
from tests.descriptor.small_configs import small_config
from tests.graph.saved import Keeping, keeping
from tests.graph.support import held_bytes, numbers

torch = pytest.importorskip("torch")
S = 64
WIDE = {"sliding_window": 4096, "max_position_embeddings": 256, "head_dim": 16}


def config(kind: str, **keys: Any) -> dict[str, Any]:
    """A small model whose windows reach over the whole sequence."""
    small = small_config(kind)
    return small | {key: value for key, value in WIDE.items() if key in small} | keys


def decoder(of: Mapping[str, Any], attention: str, dtype: Any = torch.bfloat16) -> Any:
    transformers = pytest.importorskip("transformers")
    made = transformers.AutoConfig.for_model(**of, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    made._attn_implementation, made._experts_implementation = attention, "eager"  # whose products torch counts
    return transformers.AutoModelForCausalLM.from_config(made, dtype=dtype).base_model


def counted(of: Mapping[str, Any]) -> int:
    """FLOP of a decoder's forward as torch counts them, over all keys."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        decoder(of, "eager", torch.float32)(torch.zeros((1, S), dtype=torch.long), use_cache=False)
    return sum(counter.get_flop_counts()["Global"].values())


def saved(of: Mapping[str, Any], attention: str = "sdpa") -> int:
    """Bytes of storages, other than parameters and buffers, that autograd holds after a decoder's forward."""
    module = decoder(of, attention).train()
    with keeping(module) as found:
        module(torch.zeros((1, S), dtype=torch.long), use_cache=False)
    return found.bytes()


def read(of: Mapping[str, Any]) -> ModelDescriptor:
    return import_config(of, "config.json", "small")


def flops(model: ModelDescriptor) -> float:
    """FLOP of the forward of everything before the head."""
    blocks = derived(model, DEEPSPEED.implementation, Scheme(False))
    values = numbers(model, seq_length=S) | {FULL: S, WINDOW: S}
    values |= {name: S + S / values.get(rate, S) for name, rate in ((RUNS, HEAVY_RATE), (CHOSEN_RUNS, RATE))}
    each = block_flops(blocks, values, (Phase.FORWARD,))
    return sum(each[kind] for kind in ("embedding", *model.layer_kinds))


def kept(model: ModelDescriptor) -> dict[str, float]:
    """Bytes that each kind of layer keeps. Gemma's norms multiply in fp32, and keep two statistics of each row."""
    gemma = model.model_type.startswith("gemma")
    how = replace(DEEPSPEED.implementation, norm=NormKernel.EAGER_WIDE) if gemma else DEEPSPEED.implementation
    blocks, values = derived(model, how, Scheme(False)), numbers(model, seq_length=S)
    return {
        kind: held_bytes(block, apply(block, frozenset()), values) + gemma * 4 * _rows(block, values)
        for kind, block in blocks.items()
    }


def _rows(block: DerivedBlock, values: dict[str, float]) -> float:
    """Rows that are normed."""
    return sum(held.elements.value(values) for held in block.held if held.tensor.endswith(".statistics"))


DORY = {"num_hidden_layers": 6, "num_key_value_heads": 4}
# Layers that call the shared block against layers that do not: their scans are the same.
CALLED = ["mamba", "hybrid", "hybrid", "hybrid"]
ZAMBA = {"layers_block_type": CALLED, "num_hidden_layers": 4, "num_key_value_heads": 4}
ZAMBA2 = ZAMBA | {"num_mem_blocks": 2, "adapter_rank": 8, "use_mem_rope": True, "use_shared_attention_adapter": True}
FEWER = {"layers_block_type": ["mamba", "hybrid", "hybrid", "mamba"]}


def _types(letters: str) -> list[str]:
    return [{"s": "sliding_attention", "f": "full_attention"}[letter] for letter in letters]


def _gemma3n(letters: str) -> dict[str, Any]:
    """Layers of these kinds, of whose gates all cut some off."""
    shares = {"activation_sparsity_pattern": [0.5] * len(letters)}
    return {"layer_types": _types(letters), "num_hidden_layers": len(letters), "num_kv_shared_layers": 3, **shares}


def _deepseek(letters: str) -> dict[str, Any]:
    """Layers without compressed keys, with chosen ones, and with heavily compressed ones."""
    called = {"p": "sliding_attention", "c": "compressed_sparse_attention", "h": "heavily_compressed_attention"}
    return {"layer_types": [called[letter] for letter in letters], "num_hidden_layers": len(letters)}


def _qwen(letters: str) -> dict[str, Any]:
    """Layers with a delta net, and with attention behind an indexer."""
    called = {"l": "linear_attention", "i": "indexed_attention"}
    return {"layer_types": [called[letter] for letter in letters], "num_hidden_layers": len(letters)}


GEMMA4 = {"layer_types": _types("sfsfsfsf"), "attention_k_eq_v": False,
          "num_global_key_value_heads": None, "global_head_dim": 24, "num_kv_shared_layers": 4}  # fmt: skip
FLOPS: dict[str, dict[str, Any]] = {
    "gemma4_text": GEMMA4,
    "dory": DORY,
    "hrm_text": {},
    "rwkv": {},
    "xlstm": {},
}


@pytest.mark.parametrize("kind", FLOPS)
def test_a_decoder_takes_what_torch_counts(kind: str) -> None:
    of = config(kind, **FLOPS[kind])
    assert flops(read(of)) == counted(of)


# A model with more turns or layers, and one with fewer: what they save differs by what those layers keep.
SAVED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dory": (DORY | {"n_recurrent_loops": 4}, DORY | {"n_recurrent_loops": 3}),
    "gemma4_text": (
        GEMMA4 | {"num_kv_shared_layers": 4, "layer_types": _types("sfsfsfssf"), "num_hidden_layers": 9},
        GEMMA4 | {"num_kv_shared_layers": 3},
    ),
    "gemma3n_text": (_gemma3n("sfsssfsf"), _gemma3n("sfssfsf")),
    "zamba": (ZAMBA, ZAMBA | FEWER),
    "zamba2": (ZAMBA2, ZAMBA2 | FEWER),
    "hrm_text": ({"H_cycles": 3, "L_bp_cycles": [1, 2, 2]}, {"H_cycles": 2, "L_bp_cycles": [1, 2]}),
}


FURTHER = SAVED | {
    "hy_v4": ({"num_hidden_layers": 3}, {"num_hidden_layers": 2}),
    "qwen4_exp_text": (_qwen("li"), _qwen("l")),
    "deepseek_v4": (_deepseek("pchp"), _deepseek("p")),
}


# Qwen 4's indexer scores, by two heads of 16 channels, none but the runs of four tokens that are complete before a
# query.
COMPLETE = sum((index + 1) // 4 for index in range(S))
BESIDE = {
    "qwen4_exp_text": 2 * 2 * 16 * (COMPLETE - S * S / 4),
}


@pytest.mark.parametrize("kind", FURTHER)
def test_further_layers_take_what_torch_counts(kind: str) -> None:
    more, fewer = (config(kind, **keys) for keys in FURTHER[kind])
    ours, theirs = flops(read(more)) - flops(read(fewer)), counted(more) - counted(fewer)
    assert ours + BESIDE.get(kind, 0) == pytest.approx(theirs, rel=1e-12)


# What grows with no token. Of Dory's two layers both rates after their scaling and their absolute value, the scales of
# queries and gates after scaling and squaring, and those of the MLP's halves after scaling. Of Gemma's layer copies in
# fp32 of its norms' weights, as wide as the stream and as a head; of Gemma 3n's a clamped weight and a number, too. Of
# RWKV's layer what the five weights of mixing leave to the token before.
OF_WEIGHTS = {
    "dory": 2 * 2 * (2 * 2 * 64 + 2 * 2 * 64 + 2 * 40),
    "gemma4_text": 4 * (5 * 64 + 16),
    "gemma3n_text": 4 * (8 * 64 + 2 * 16) + 2 * 4 * 4 + 2,
    "rwkv": 2 * 5 * 64,
}


def decoder_keeps(of: Mapping[str, Any]) -> float:
    model = read(of)
    each = kept(model)
    return sum(each[kind] for kind in ("embedding", *model.layer_kinds))


def wkv(decay: Any, first: Any, key: Any, value: Any, **more: Any) -> tuple[Any, None]:
    """RwkvLinearAttention keeps keys, values and its result."""

    def make(key: Any, value: Any) -> tuple[Any, list[Any]]:
        out = torch.empty_like(key)
        return out, [key, value, out]

    return Keeping.apply(make, key, value), None


def mlstm(query: Any, key: Any, value: Any, igate: Any, fgate: Any, **more: Any) -> tuple[Any, None]:
    """The kernel of mlstm_kernels keeps what it reads and two statistics of each row."""

    def make(*given: Any) -> tuple[Any, list[Any]]:
        rows = [torch.empty(igate.shape, dtype=torch.float32) for _ in range(2)]
        return torch.empty_like(value), [*given, *rows]

    return Keeping.apply(make, query, key, value, igate, fgate), (None, None, None)


DEPTH = {"xlstm": {"num_blocks": None}}
KERNELS = {"rwkv": ("rwkv_linear_attention", wkv), "xlstm": ("mlstm_chunkwise_native_autograd", mlstm)}


@pytest.mark.parametrize("kind", KERNELS)
def test_a_recurrent_layer_saves_what_is_derived(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    monkeypatch.setattr(file, *KERNELS[kind])
    more, fewer = (config(kind, num_hidden_layers=layers, **DEPTH.get(kind, {})) for layers in (3, 2))
    grown = saved(more, "eager") - saved(fewer, "eager")
    assert decoder_keeps(more) - decoder_keeps(fewer) + OF_WEIGHTS.get(kind, 0) == grown


@pytest.mark.parametrize("kind", SAVED)
def test_further_layers_save_what_is_derived(kind: str) -> None:
    more, fewer = (config(kind, **keys) for keys in SAVED[kind])
    assert decoder_keeps(more) - decoder_keeps(fewer) + OF_WEIGHTS.get(kind, 0) == saved(more) - saved(fewer)
