"""A rank of torchtitan without a GPU: the CPU is its device, and every step's loss, learning rate and tokens are said.

Python imports this by itself where the folder is on PYTHONPATH, and changes ranks only: torchrun gives LOCAL_RANK.
"""

from __future__ import annotations

import importlib
import json
import os
from types import SimpleNamespace
from typing import Any


def stand_in() -> None:
    import torch

    utils: Any = importlib.import_module("torch._utils")
    utils._get_available_device_type = lambda: "cpu"
    for name, answer in (
        ("get_device_name", "CPU"),
        ("get_device_properties", SimpleNamespace(total_memory=1)),
        ("memory_stats", {}),
        ("reset_peak_memory_stats", None),
        ("empty_cache", None),
        ("set_device", None),
        ("current_device", 0),
    ):
        setattr(torch.cpu, name, lambda *args, answer=answer: answer)
    module: Any = importlib.import_module("torchtitan.models.common.attention")
    module.FlexAttention._compiled_flex_attn = staticmethod(attention)
    sharding: Any = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    factors = sharding._get_gradient_divide_factors

    def summed(scatter: Any, reduce: Any, dtype: Any, device: str = "", *more: Any) -> Any:
        return factors(scatter, reduce, dtype, "mtia", *more)  # whose network, as gloo, has sums only

    sharding._get_gradient_divide_factors = summed
    later_torch()
    said()


def later_torch() -> None:
    """What torchtitan 0.3 asks of torch and 2.13 has not: timeouts that are set anew, and steps of a pipeline with
    micro-batches that are already cut."""
    import torch.distributed as dist
    from torch.distributed.pipelining import schedules

    dist.set_timeout = lambda timeout, group: None

    def step(
        self: Any, *, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, losses: Any, loss_kwargs: Any, return_outputs: bool
    ) -> None:
        for stage in getattr(self, "_stages", None) or [self._stage]:
            stage.has_backward = True
            stage.clear_runtime_states()
        self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs)

    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        kind.step = step


def attention(q: Any, k: Any, v: Any, *, block_mask: Any, scale: Any, enable_gqa: bool, **others: Any) -> Any:
    """flex_attention's result for q[B, N, L, H], k and v, with every entry of the mask: it has no backward on a CPU."""
    import torch

    batch, heads, rows = (torch.arange(size) for size in q.shape[:3])
    columns = torch.arange(k.shape[2])
    mask = block_mask.mask_mod(batch[:, None, None, None], heads[:, None, None], rows[:, None], columns)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask.expand(*q.shape[:3], len(columns)), scale=scale, enable_gqa=enable_gqa
    )
    return out, SimpleNamespace(lse=None)


def said() -> None:
    """Its own line has no learning rate. The last rank has a loss in every layout."""
    metrics: Any = importlib.import_module("torchtitan.components.metrics").MetricsProcessor
    log = metrics.log
    seen = 0

    def say(self: Any, step: int, loss: float, *more: Any, extra_metrics: dict[str, Any], **named: Any) -> None:
        nonlocal seen
        if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            tokens, seen = extra_metrics["n_tokens_seen"] - seen, extra_metrics["n_tokens_seen"]
            rate = next(value for name, value in extra_metrics.items() if name.startswith("lr/"))
            print("\nlogged", json.dumps({"loss": loss, "learning_rate": rate, "tokens": tokens}), flush=True)
        log(self, step, loss, *more, extra_metrics=extra_metrics, **named)

    metrics.log = say


if "LOCAL_RANK" in os.environ:
    stand_in()
