"""Hyper-connections against Transformers' modules: FLOP and saved bytes of reading and writing all streams."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.derive import derive
from symconfig.graph.derived import Matmul, Phase
from symconfig.graph.implementation import NormKernel
from symconfig.graph.model import blocks
from symconfig.graph.operator import ELEMENT_BYTES
from tests.graph.support import PLAIN, numbers
from tests.solve.naive import tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
HIDDEN, STREAMS, RANK, SHORT, LONG = 64, 4, 12, 32, 64
MINE = ("attention_streams", "attention_residual")


def deepseek(streams: Any, done: Any) -> Any:
    config = transformers.DeepseekV4Config(hidden_size=HIDDEN, hc_mult=STREAMS, num_hidden_layers=1)
    link = _module("deepseek_v4", "DeepseekV4HyperConnection")(config).float()
    post, comb, read = link(streams)
    mixed = torch.matmul(comb.to(streams.dtype).transpose(-1, -2), streams)
    return read, post.to(streams.dtype).unsqueeze(-1) * done.unsqueeze(-2) + mixed


def hunyuan(streams: Any, done: Any) -> Any:
    config = transformers.HYV4Config(hidden_size=HIDDEN, hc_mult=STREAMS, num_hidden_layers=1)
    post, read = _module("hy_v4", "HYV4HyperConnection")(config)(streams)
    out = post.float().unsqueeze(-1) * done.float().unsqueeze(-2) + streams.float()
    return read, out.to(streams.dtype)


def qwen(streams: Any, done: Any) -> Any:
    config = transformers.Qwen4ExpTextConfig(hidden_size=HIDDEN, hc_count=STREAMS, hc_lowrank=RANK, num_hidden_layers=1)
    read, given, weights = _module("qwen4_exp", "Qwen4ExpTextGatedResidual")(config).bfloat16()(streams.flatten(-2))
    return read, given + (done.unsqueeze(-2) * weights.unsqueeze(-1)).flatten(-2)


def _module(family: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)


RUN = {"hyper": deepseek, "injected": hunyuan, "gated": qwen}
WIDE = replace(DEEPSPEED.implementation, norm=NormKernel.EAGER_WIDE)
HOW = {"hyper": DEEPSPEED.implementation, "injected": DEEPSPEED.implementation, "gated": WIDE}


def inputs(length: int) -> tuple[Any, Any]:
    streams = torch.randn(1, length, STREAMS, HIDDEN).bfloat16().requires_grad_()
    return streams, torch.randn(1, length, HIDDEN).bfloat16().requires_grad_()


def saved(mixing: str, length: int) -> int:
    """Bytes of storages that autograd holds, but for parameters."""
    sizes: dict[int, int] = {}
    held: list[Any] = []  # so that no address is used twice

    def pack(tensor: Any) -> Any:
        held.append(tensor)
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    given = inputs(length)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        RUN[mixing](*given)
    return sum(sizes.values())


def derived_bytes(mixing: str, length: int) -> dict[str, float]:
    """Bytes by tensor that reading and writing need."""
    model = tiny(hidden_size=HIDDEN, streams={"count": STREAMS, "mixing": mixing, "iterations": 20, "rank": RANK})
    block = derive(blocks(model, HOW[mixing])["dense"], PLAIN)
    values = numbers(model, seq_length=length)
    return {
        held.tensor: held.elements.value(values) * ELEMENT_BYTES[held.element]
        for held in block.held
        if any(name.startswith(MINE) for name in held.needed_by)
    }


@pytest.mark.parametrize("mixing", RUN)
def test_reading_and_writing_streams_save_what_is_derived(mixing: str) -> None:
    expected, shorter = derived_bytes(mixing, LONG), derived_bytes(mixing, SHORT)
    grown = sum(expected.values()) - sum(shorter.values())
    assert grown == saved(mixing, LONG) - saved(mixing, SHORT), expected


@pytest.mark.parametrize("mixing", RUN)
def test_reading_and_writing_streams_take_what_torch_counts(mixing: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        RUN[mixing](*inputs(LONG))
    model = tiny(hidden_size=HIDDEN, streams={"count": STREAMS, "mixing": mixing, "iterations": 20, "rank": RANK})
    block, values = derive(blocks(model, HOW[mixing])["dense"], PLAIN), numbers(model, seq_length=LONG)
    products = [
        2 * (work.batch * work.m * work.n * work.k).value(values)
        for work in block.work
        if isinstance(work, Matmul) and work.phase is Phase.FORWARD and work.op.startswith(MINE)
    ]
    assert sum(products) == sum(counter.get_flop_counts()["Global"].values())
