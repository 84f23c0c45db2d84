"""What autograd keeps of Transformers' own modules on a CPU, in bytes.

Where a module would call a kernel that needs a GPU, a function stands in that keeps what the kernel's own autograd
function keeps, as its source lists it.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")


class Packed:
    """A tensor in autograd's keeping: it lives as long as the graph does that wants it."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


@dataclass
class Kept:
    """Storages that autograd holds, but for those of weights. of: bytes of each, by where it was first kept. wanted: by
    storage, what is packed of it."""

    weights: set[int]
    where: str = ""
    of: dict[int, tuple[str, int]] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)  # so that no address is used twice
    wanted: dict[int, list[Any]] = field(default_factory=dict)
    statistics: bool = False

    def pack(self, tensor: Any) -> Packed:
        tensor = tensor.detach()  # else it would hold the graph that made it
        packed = Packed(tensor)
        self.held.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            # A GPU's LayerNorm keeps its statistics in fp32, a CPU's in the input's precision (ATen, layer_norm.cpp).
            wider = 2 if self.statistics and tensor.shape[-1] == 1 and tensor.element_size() == 2 else 1
            self.of.setdefault(storage.data_ptr(), (self.where, wider * storage.nbytes()))
            self.wanted.setdefault(storage.data_ptr(), []).append(weakref.ref(packed))
        return packed

    def forget_freed(self) -> None:
        """Count no more what only graphs wanted that led nowhere and are gone."""
        self.of = {at: row for at, row in self.of.items() if any(one() is not None for one in self.wanted[at])}

    def leave_out(self, *tensors: Any) -> None:
        """Count none of these, as if they were weights."""
        self.held += tensors
        self.weights.update(tensor.untyped_storage().data_ptr() for tensor in tensors)

    def bytes(self, where: str | None = None) -> int:
        return sum(size for place, size in self.of.values() if where in (None, place))


@contextmanager
def keeping(*modules: Any) -> Iterator[Kept]:
    """Note what autograd keeps of these modules' forwards."""
    weights = [one.untyped_storage() for module in modules for one in (*module.parameters(), *module.buffers())]
    kept = Kept({one.data_ptr() for one in weights}, held=[*weights])
    layer_norm = torch.nn.functional.layer_norm

    def noted(*args: Any, **more: Any) -> Any:
        kept.statistics = True
        try:
            return layer_norm(*args, **more)
        finally:
            kept.statistics = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "layer_norm", noted)
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda packed: packed.tensor):
            yield kept


def stand_in(family: str, patch: pytest.MonkeyPatch) -> None:
    """Put the functions below in the place of those kernels that a family's module calls."""
    patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    file = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    for name, function in STAND_INS.items():
        if hasattr(file, name):
            patch.setattr(file, name, function)


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


_FUSED = torch.nn.functional.scaled_dot_product_attention


def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> Any:
    """PyTorch's own, but for a mask with a gradient, which no fused kernel of a CPU takes: a GPU's is in
    derivatives.yaml, _scaled_dot_product_efficient_attention."""
    if attn_mask is None or not attn_mask.requires_grad:
        return _FUSED(query, key, value, attn_mask=attn_mask, **more)

    def make(*given: Any) -> tuple[Any, list[Any]]:
        batch, heads, length, width = query.shape
        out = torch.empty(batch, length, heads, width, dtype=query.dtype).transpose(1, 2)
        return out, [*given, out, fp32(batch, heads, length)]

    return Keeping.apply(make, query, key, value, attn_mask)


def convolution(x: Any, weight: Any, bias: Any = None, activation: Any = None, **more: Any) -> Any:
    """causal_conv1d_interface.py, CausalConv1dFn."""
    return Keeping.apply(lambda x, weight: (torch.empty_like(x), [x, weight]), x, weight)


def ssd(
    zxbcdt: Any,
    weight: Any,
    bias: Any,
    dt_bias: Any,
    A: Any,
    *args: Any,
    rmsnorm_weight: Any = None,
    outproj_weight: Any,
    **more: Any,
) -> Any:
    """ssd_combined.py, MambaSplitConv1dScanCombinedFn, with its norm and output projection."""

    def make(zxbcdt: Any, A: Any, weight: Any) -> tuple[Any, list[Any]]:
        batch, length, _ = zxbcdt.shape
        scanned = torch.empty(batch, length, weight.shape[1], dtype=zxbcdt.dtype)
        lengths = [fp32(batch, length, more["ngroups"])] if rmsnorm_weight is not None else []
        return torch.empty(batch, length, weight.shape[0], dtype=zxbcdt.dtype), [zxbcdt, scanned, *lengths, A, weight]

    return Keeping.apply(make, zxbcdt, A, outproj_weight)


def delta(q: Any, k: Any, v: Any, g: Any, beta: Any, **more: Any) -> tuple[Any, None]:
    """chunk.py of fla/ops/gated_delta_rule and fla/ops/kda; the latter keeps scores, too."""

    def make(q: Any, k: Any, v: Any, g: Any, beta: Any) -> tuple[Any, list[Any]]:
        normed = [torch.empty(x.shape, dtype=x.dtype) for x in (q, k)]
        lengths = [fp32(*x.shape[:-1]) for x in (q, k)]
        matrices = [torch.empty(*v.shape[:-1], 64, dtype=v.dtype) for _ in range(1 if g.dim() == 3 else 2)]
        kept = [*normed, *lengths, v.contiguous(), torch.empty_like(g, dtype=torch.float32), beta, *matrices]
        return torch.empty(v.shape, dtype=v.dtype), kept

    return Keeping.apply(make, q, k, v, g, beta), None


STAND_INS: dict[str, Callable[..., Any]] = {
    "mamba2_split_conv1d_scan_combined": ssd,
    "causal_conv1d_fn": convolution,
    "torch_chunk_gated_delta_rule": delta,
    "chunk_kimi_delta_attention": delta,
}
