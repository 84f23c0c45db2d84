"""PyTorch's fused kernels where Transformer Engine's would have run: attention, and the optimizer.

Loaded by path in the process that measures, never imported by symconfig. Megatron's own attention core writes every
score to memory, which no plan with Transformer Engine does, and without Transformer Engine or Apex its Adam is the one
of PyTorch that runs an operator after the other.
"""

from __future__ import annotations

import importlib
from typing import Any


def flash_attention() -> None:
    """Replace Megatron's local attention core by torch's scaled_dot_product_attention: causal, scores not in memory."""
    module = importlib.import_module("megatron.core.transformer.dot_product_attention")
    module.DotProductAttention.forward = _forward


def _forward(self: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Map query [S, B, heads, channels], key and value [S, B, groups, channels] -> [S, B, heads * value channels]."""
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
    grouped = {"enable_gqa": True} if k.shape[1] != q.shape[1] else {}
    output = scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale, **grouped)
    return output.permute(2, 0, 1, 3).flatten(2)


def fused_adam(optimizers: list[Any]) -> None:
    """Use PyTorch's Adam in one kernel, as Transformer Engine's is.

    With the count of steps that its moments come with.
    """
    import torch

    for adam in optimizers:
        if not isinstance(adam, torch.optim.Adam | torch.optim.AdamW):
            continue
        for group in adam.param_groups:
            group.update(fused=True, foreach=False)
        for weight, state in adam.state.items():
            state.setdefault("step", torch.zeros((), dtype=torch.float32, device=weight.device))
