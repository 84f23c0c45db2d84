"""ZAYA's convolutions, scaled sums and router against Transformers' modules: what autograd saves, to the byte."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.derive import derive
from symconfig.graph.model import blocks
from symconfig.graph.operator import ELEMENT_BYTES
from tests.graph.support import PLAIN, numbers
from tests.graph.test_reused_layers import config, read

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SHORT, LONG = 32, 64
ZAYA = config("zaya", num_hidden_layers=2)


def _module(name: str, *more: Any) -> Any:
    file = importlib.import_module("transformers.models.zaya.modeling_zaya")
    return getattr(file, name)(*more).bfloat16()


def _random(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(1, *shape).to(dtype).requires_grad_()


def convolutions(length: int, made: Any) -> Any:
    return _module("ZayaCCAProjection", made, 1)(_random(length, made.hidden_size), None)


def sums(length: int, made: Any) -> Any:
    stream = _random(length, made.hidden_size, dtype=torch.float32)
    return _module("ZayaResidualScaling", made.hidden_size)(_random(length, made.hidden_size), stream)


def router(length: int, made: Any) -> Any:
    module = _module("ZayaRouter", made, 1)
    states = _random(length, made.router_hidden_size)
    narrow = module.down_proj(_random(length, made.hidden_size)) + states * module.router_states_scale
    return module.router_mlp(narrow)


# Each with the operators that are the module's.
RUN: dict[str, tuple[Callable[[int, Any], Any], tuple[str, ...]]] = {
    "convolutions": (convolutions, ("q_proj", "k_proj", "v_proj", "qk_")),
    "sums": (sums, ("attention_residual",)),
    "router": (router, ("router_down", "router_scale", "router_states", "router_norm", "router_fc", "router")),
}
# The look-ups that follow the router are no part of it.
NOT_MINE = ("router_indices", "router_probabilities")


def saved(name: str, length: int) -> int:
    """Bytes of storages that autograd holds, but for parameters."""
    sizes: dict[int, int] = {}
    held: list[Any] = []  # so that no address is used twice

    def pack(tensor: Any) -> Any:
        held.append(tensor)
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    made = transformers.AutoConfig.for_model(**ZAYA)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        RUN[name][0](length, made)
    return sum(sizes.values())


def derived_bytes(name: str, length: int) -> dict[str, float]:
    model = read(ZAYA)
    block = derive(blocks(model, DEEPSPEED.implementation)["moe"], PLAIN)
    values = numbers(model, seq_length=length)
    return {
        held.tensor: held.elements.value(values) * ELEMENT_BYTES[held.element]
        for held in block.held
        if any(op.startswith(RUN[name][1]) for op in held.needed_by) and held.tensor not in NOT_MINE
    }


@pytest.mark.parametrize("name", RUN)
def test_a_part_of_a_layer_saves_what_is_derived(name: str) -> None:
    expected, shorter = derived_bytes(name, LONG), derived_bytes(name, SHORT)
    grown = sum(expected.values()) - sum(shorter.values())
    assert grown == saved(name, LONG) - saved(name, SHORT), expected
