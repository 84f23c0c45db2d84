"""Bytes of parameters, gradients and optimizer state on each rank, counted from the engine's own tensors, for train.py.

Each storage is counted once, with its padding, under the first kind that has it, by the type of device that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

# Attributes of DeepSpeed's optimizers (bf16_optimizer.py, fp16/unfused_optimizer.py, zero/stage_1_and_2.py, stage3.py).
MASTERS = (
    "fp32_groups",
    "fp32_groups_flat_partition",
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
)
GRADIENTS = (
    "fp32_groups_gradients_flat",
    "averaged_gradients",
    "all_grad_tensors",
    "grad_partitions_flat_buffer",
    "accumulated_grads_in_cpu",
)
BUFFERS = (
    "ipg_buckets",
    "temp_grad_buffer_for_cpu_offload",
    "temp_grad_buffer_for_gpu_offload",
    "param_buffer_of_bit16_for_cpu_offload_groups",
)


def tensors(value) -> Iterator[torch.Tensor]:
    """All tensors in nested containers; a bucket has its tensors in `buffer`."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif hasattr(value, "buffer"):
        yield from tensors(value.buffer)


def held(engine) -> dict[str, dict[str, int]]:
    """Bytes by kind and type of device that this rank holds now."""
    outer = engine.optimizer
    parameters = list(engine.module.parameters())
    masters = list(tensors([getattr(outer, name, None) for name in MASTERS]))
    inner = [getattr(outer, name, None) for name in ("optimizer", "backup_optimizer")]
    kinds = {
        "parameters": [parameters, [getattr(p, "ds_tensor", None) for p in parameters]],
        "optimizer": [masters, [dict(adam.state) for adam in inner if adam is not None]],
        "gradients": [
            [p.grad for p in (*parameters, *masters)],
            [getattr(p, "grad_accum", None) for p in parameters],
            [getattr(outer, name, None) for name in GRADIENTS],
        ],
        "buffers": [getattr(outer, name, None) for name in BUFFERS],
    }
    found, seen = {}, set()
    for kind, values in kinds.items():
        found[kind] = {}
        for tensor in tensors(values):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if storage.nbytes() and key not in seen:
                seen.add(key)
                where = tensor.device.type
                found[kind][where] = found[kind].get(where, 0) + storage.nbytes()
    return found


def report(path: str, moments: dict[str, dict[str, dict[str, int]]]) -> None:
    """One JSON file with the moments of all ranks, in their order."""
    ranks = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, moments)
    if torch.distributed.get_rank() == 0:
        Path(path).write_text(json.dumps(ranks, indent=2) + "\n", encoding="utf-8")
