"""Compressed keys against Transformers' module: what autograd saves for them, to the byte."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.blocks.sparse_attention import HEAVY, SPARSE
from symconfig.graph.derive import derive
from symconfig.graph.implementation import NormKernel
from symconfig.graph.model import blocks
from symconfig.graph.operator import ELEMENT_BYTES
from tests.graph.support import PLAIN, numbers
from tests.graph.test_reused_layers import config, read

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SHORT, LONG = 64, 128


class Choice(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Choose the first key for every query."""

    def forward(self, x: Any, *args: Any, **more: Any) -> Any:
        return torch.zeros((*x.shape[:2], 1), dtype=torch.long)


def model_of(kind: str) -> dict[str, Any]:
    return config("deepseek_v4", layer_types=[kind], num_hidden_layers=1)


def saved(kind: str, length: int) -> dict[Any, int]:
    """Bytes of storages that autograd holds for one layer's compressor, but for parameters and angles."""
    made = transformers.AutoConfig.for_model(**model_of(kind))
    file = importlib.import_module("transformers.models.deepseek_v4.modeling_deepseek_v4")
    module = file.COMPRESSOR_CLASSES[kind](made).bfloat16()
    if kind == SPARSE:  # nothing flows back through the choice, so that what it saves is given up at once
        module.indexer = Choice()
    known = {one.untyped_storage().data_ptr() for one in module.parameters()}
    sizes: dict[int, int] = {}
    held: list[Any] = []  # so that no address is used twice

    def pack(tensor: Any) -> Any:
        held.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(1, length, made.hidden_size).bfloat16().requires_grad_()
    low = torch.randn(1, length, made.q_lora_rank).bfloat16()
    positions = torch.arange(length).unsqueeze(0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x, low, positions, None, 0)
    return sizes


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
    found = sum(saved(kind, LONG).values()) - sum(saved(kind, SHORT).values())
    assert found == sum(expected.values()) - sum(shorter.values()), expected
