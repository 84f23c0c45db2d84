"""Bytes that PyTorch saves for the backward of Transformers' modules, against what is derived, to the byte.

The module is the real one. Where it would call a kernel that needs a GPU, a function stands in that keeps what the
kernel's own autograd function keeps, as its source lists it. Two lengths are subtracted, so that what does not grow
with the sequence (copies of weights, the rows that a convolution pads) falls out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.derive import derive
from symconfig.graph.model import blocks
from symconfig.graph.operator import ELEMENT_BYTES
from tests.graph.blocks.modules import CASES, HIDDEN, Case
from tests.graph.support import PLAIN, numbers

torch = pytest.importorskip("torch")
SHORT, LONG = 128, 256


class Keeping(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Return an output, and keep what the maker lists of the inputs."""

    @staticmethod
    def forward(ctx: Any, make: Callable[..., tuple[Any, list[Any]]], *given: Any) -> Any:
        out, kept = make(*given)
        ctx.save_for_backward(*kept)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError


def fp32(*shape: int) -> Any:
    return torch.empty(shape, dtype=torch.float32)


def convolution(x: Any, weight: Any, bias: Any = None, activation: Any = None, **more: Any) -> Any:
    """causal_conv1d_interface.py, CausalConv1dFn."""
    return Keeping.apply(lambda x, weight: (torch.empty_like(x), [x, weight]), x, weight)


def ssd(zxbcdt: Any, *args: Any, rmsnorm_weight: Any = None, outproj_weight: Any, **more: Any) -> Any:
    """ssd_combined.py, MambaSplitConv1dScanCombinedFn, with its norm and output projection."""

    def make(zxbcdt: Any, weight: Any) -> tuple[Any, list[Any]]:
        batch, length, _ = zxbcdt.shape
        scanned = torch.empty(batch, length, weight.shape[1], dtype=zxbcdt.dtype)
        lengths = [fp32(batch, length, 2)] if rmsnorm_weight is not None else []
        return torch.empty(batch, length, weight.shape[0], dtype=zxbcdt.dtype), [zxbcdt, scanned, *lengths, weight]

    return Keeping.apply(make, zxbcdt, outproj_weight)


def selective(u: Any, delta: Any, A: Any, B: Any, C: Any, z: Any = None, **more: Any) -> Any:
    """selective_scan_interface.py, SelectiveScanFn, but for the states of every 2,048th token."""
    make = lambda u, delta, B, C, z: (torch.empty_like(u), [u, delta, B, C, z, torch.empty_like(u)])  # noqa: E731
    return Keeping.apply(make, u, delta, B, C, z)


def delta(q: Any, k: Any, v: Any, g: Any, beta: Any, **more: Any) -> tuple[Any, None]:
    """chunk.py of fla/ops/gated_delta_rule and fla/ops/kda; the latter keeps scores, too."""

    def make(q: Any, k: Any, v: Any, g: Any, beta: Any) -> tuple[Any, list[Any]]:
        normed = [torch.empty(x.shape, dtype=x.dtype) for x in (q, k)]
        lengths = [fp32(*x.shape[:-1]) for x in (q, k)]
        matrices = [torch.empty(*v.shape[:-1], 64, dtype=v.dtype) for _ in range(1 if g.dim() == 3 else 2)]
        kept = [*normed, *lengths, v.contiguous(), fp32(*g.shape), beta, *matrices]
        return torch.empty(v.shape, dtype=v.dtype), kept

    return Keeping.apply(make, q, k, v, g, beta), None


STAND_INS: dict[str, dict[str, Callable[..., Any]]] = {
    "mamba2": {"mamba2_split_conv1d_scan_combined": ssd},
    "bamba": {"mamba2_split_conv1d_scan_combined": ssd},
    "jamba": {"causal_conv1d_fn": convolution, "mamba_selective_scan": selective},
    "qwen3 next": {"causal_conv1d_fn": convolution, "torch_chunk_gated_delta_rule": delta},
    "kimi": {"causal_conv1d_fn": convolution, "chunk_kimi_delta_attention": delta},
    "ling": {"causal_conv1d_fn": convolution, "chunk_kimi_delta_attention": delta},
    "lfm2": {},
}


def saved_bytes(case: Case, length: int) -> int:
    """Bytes of all storages, other than parameters, that autograd holds after the module's forward."""
    module = case.build("cpu")
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    sizes: dict[int, int] = {}
    held: list[Any] = []  # so that no address is used twice

    def pack(tensor: Any) -> Any:
        held.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.zeros(1, length, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return sum(sizes.values())


def derived_bytes(case: Case, length: int) -> dict[str, float]:
    """Bytes by tensor that the block's operators need."""
    kinds = blocks(case.descriptor, DEEPSPEED.implementation)
    (block,) = (block for kind, block in kinds.items() if case.block in kind)
    values = numbers(case.descriptor, seq_length=length)
    mine = {op.name for op in block.operators if op.part == "self_attn"}
    return {
        held.tensor: held.elements.value(values) * ELEMENT_BYTES[held.element]
        for held in derive(block, PLAIN).held
        if mine.intersection(held.needed_by)
    }


@pytest.mark.parametrize("name", STAND_INS)
def test_a_module_saves_what_is_derived(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    file = importlib.import_module(f"transformers.models.{case.family}.modeling_{case.family}")
    for function, stand_in in STAND_INS[name].items():
        monkeypatch.setattr(file, function, stand_in)
    found = saved_bytes(case, LONG) - saved_bytes(case, SHORT)
    expected, shorter = derived_bytes(case, LONG), derived_bytes(case, SHORT)
    assert found == sum(expected.values()) - sum(shorter.values()), expected
