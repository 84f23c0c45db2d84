"""Hyper-connections against Transformers' modules: FLOP and saved bytes of reading and writing all streams."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.derive import derive
from symconfig.graph.derived import Matmul, Phase
from symconfig.graph.model import blocks
from symconfig.graph.operator import ELEMENT_BYTES
from tests.graph.saved import keeping
from tests.graph.support import PLAIN, numbers
from tests.solve.naive import tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
HIDDEN, STREAMS, SHORT, LONG = 64, 4, 32, 64
MINE = ("attention_streams", "attention_residual")


def deepseek(streams: Any, done: Any) -> Any:
    config = transformers.DeepseekV4Config(hidden_size=HIDDEN, hc_mult=STREAMS, num_hidden_layers=1)
    link = _module("deepseek_v4", "DeepseekV4HyperConnection")(config).float()
    post, comb, read = link(streams)
    mixed = torch.matmul(comb.to(streams.dtype).transpose(-1, -2), streams)
    return read, post.to(streams.dtype).unsqueeze(-1) * done.unsqueeze(-2) + mixed


def _module(family: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)


def inputs(length: int) -> tuple[Any, Any]:
    streams = torch.randn(1, length, STREAMS, HIDDEN).bfloat16().requires_grad_()
    return streams, torch.randn(1, length, HIDDEN).bfloat16().requires_grad_()


def saved(length: int) -> int:
    """Bytes of storages that autograd holds; those of parameters do not grow with the length."""
    with keeping() as kept:
        deepseek(*inputs(length))
    return kept.bytes()


def derived_bytes(length: int) -> dict[str, float]:
    """Bytes by tensor that reading and writing need."""
    model = tiny(hidden_size=HIDDEN, streams={"count": STREAMS, "iterations": 20})
    block = derive(blocks(model, DEEPSPEED.implementation)["dense"], PLAIN)
    values = numbers(model, seq_length=length)
    return {
        held.tensor: held.elements.value(values) * ELEMENT_BYTES[held.element]
        for held in block.held
        if any(name.startswith(MINE) for name in held.needed_by)
    }


def test_reading_and_writing_streams_save_what_is_derived() -> None:
    expected, shorter = derived_bytes(LONG), derived_bytes(SHORT)
    grown = sum(expected.values()) - sum(shorter.values())
    assert grown == saved(LONG) - saved(SHORT), expected


def test_reading_and_writing_streams_take_what_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        deepseek(*inputs(LONG))
    model = tiny(hidden_size=HIDDEN, streams={"count": STREAMS, "iterations": 20})
    block, values = derive(blocks(model, DEEPSPEED.implementation)["dense"], PLAIN), numbers(model, seq_length=LONG)
    products = [
        2 * (work.batch * work.m * work.n * work.k).value(values)
        for work in block.work
        if isinstance(work, Matmul) and work.phase is Phase.FORWARD and work.op.startswith(MINE)
    ]
    assert sum(products) == sum(counter.get_flop_counts()["Global"].values())
