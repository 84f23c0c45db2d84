"""Flash attention on a CPU, for programs that import it: a stand-in with what the kernels compute and what they keep.

Sequences lie one after the other, as `cu_seqlens` says. A backward keeps queries, keys, values and the output, and
makes the scores of one sequence at a time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

__version__ = "2.8.3"


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, causal: bool
) -> torch.Tensor:
    """Attend within one sequence: q[T, H, D], k and v[T, G, D]."""
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    made = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)
    return made[0].transpose(0, 1)


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(
            ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: list[int],
            scale: float | None, causal: bool) -> torch.Tensor:  # fmt: skip
        made = torch.zeros_like(query)
        for start, end in pairwise(bounds):
            made[start:end] = _attend(query[start:end], key[start:end], value[start:end], scale, causal)
        ctx.save_for_backward(query, key, value, made)
        ctx.bounds, ctx.scale, ctx.causal = bounds, scale, causal
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs = ctx.saved_tensors[:3]
        gradients = [torch.zeros_like(each) for each in inputs]
        for start, end in pairwise(ctx.bounds):
            own = [each[start:end].detach().requires_grad_() for each in inputs]
            with torch.enable_grad():
                made = _attend(*own, ctx.scale, ctx.causal)
            for whole, part in zip(gradients, torch.autograd.grad(made, own, gradient[start:end]), strict=True):
                whole[start:end] = part
        return (*gradients, None, None, None)


def flash_attn_varlen_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        deterministic: bool = False) -> torch.Tensor:  # fmt: skip
    """Attend within sequences that lie one after the other: q[T, H, D], k and v[T, G, D]."""
    return _Packed.apply(q, k, v, cu_seqlens_q.tolist(), softmax_scale, causal)


def flash_attn_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        deterministic: bool = False) -> torch.Tensor:  # fmt: skip
    """Attend within sequences of one length: q[B, T, H, D], k and v[B, T, G, D]."""
    count, length = q.shape[:2]
    bounds = [length * place for place in range(count + 1)]
    packed = (each.flatten(0, 1) for each in (q, k, v))
    return _Packed.apply(*packed, bounds, softmax_scale, causal).unflatten(0, (count, length))


def flash_attn_with_kvcache(*given: Any, **options: Any) -> torch.Tensor:
    raise NotImplementedError("nothing here generates with flash attention")
