"""Answers with Megatron's own functions: one JSON request a line, one answer a line. A script, run by the tests.

Its arguments are the folder of symconfig.verify and that of Megatron. A request: {"ask": name, **what it needs}.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Parameter:
    """As much of torch's as layouts and the hybrid optimizer look at; where it is, is noted."""

    def __init__(self, elements: int, alone: bool = False, on_gpu: bool = True) -> None:
        self.data, self.elements, self.shared_embedding, self.is_cuda = self, elements, alone, on_gpu
        self.dtype = "bf16"

    def nelement(self) -> int:
        return self.elements

    numel = nelement

    def detach(self) -> Parameter:
        return self

    clone = float = pin_memory = detach

    def cpu(self) -> Parameter:
        return Parameter(self.elements, on_gpu=False)


def layout(request: dict[str, Any]) -> Any:
    """Buckets, each with its places, and what each rank owns of each parameter, in the buffer's order."""
    sharded = request["sharded"]
    params = [Parameter(*piece) for piece in request["pieces"]]
    if sharded:
        module = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
        settings = SimpleNamespace(pad_buckets_for_high_nccl_busbw=False)
        found = module.DistributedOptimizer._compute_per_buffer_param_layout(
            params, request["size"], request["ranks"], settings
        )
    else:
        module = importlib.import_module("megatron.core.distributed.param_and_grad_buffer")
        found = module._compute_default_per_buffer_param_layout(params, request["size"])
    buckets = []
    for number, (start, end) in enumerate(found.bucket_indices):
        inside = {param: place for param, place in found.param_index_map.items() if place[2] == number}
        places = sorted((first, last) for first, last, _ in inside.values())
        buckets.append(
            {
                "start": start,
                "end": end,
                "places": places,
                "unpadded": found.per_bucket_numel_unpadded[number],
                "owned": _owned(inside, start, end, request["ranks"]) if sharded else None,
            }
        )
    return buckets


def _owned(inside: dict[Any, Any], start: int, end: int, ranks: int) -> list[int]:
    optimizer = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
    share = (end - start) // ranks
    result = []
    for rank in range(ranks):
        mine = optimizer.Range(start + rank * share, start + (rank + 1) * share)
        found = optimizer.DistributedOptimizer._build_model_gbuf_param_range_map(inside, mine, start)
        result.append(sum(item["param"].size for item in found.values()))
    return result


def offloaded(request: dict[str, Any]) -> Any:
    """Elements of the parameters that the hybrid optimizer updates on the host; groups in its order."""
    module = importlib.import_module("megatron.core.optimizer.cpu_offloading.hybrid_optimizer")
    module.torch = SimpleNamespace(float32="fp32")
    groups = [{"params": [Parameter(size) for size in group]} for group in request["groups"]]
    self = SimpleNamespace(param_groups=groups, param_update_in_fp32=True)
    split = module.HybridDeviceOptimizer._get_sub_optimizer_param_groups(self, request["fraction"])
    return sum(param.elements for group in split[0] for param in group["params"])


def fsdp(request: dict[str, Any]) -> Any:
    """Megatron-FSDP's groups of parameters of these shapes: who is in one, its chunk, its places and its size."""
    import torch

    module = importlib.import_module("megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer")
    holder = torch.nn.Module()
    for number, shape in enumerate(request["shapes"]):
        holder.register_parameter(f"p{number}", torch.nn.Parameter(torch.empty(shape, device="meta")))
    numbers = {param: number for number, param in enumerate(holder.parameters())}
    policy = module.BucketingPolicy(request["bucket"], [], "optim_grads")
    settings = SimpleNamespace(data_parallel_sharding_strategy="optim_grads")
    found = []
    for group in module._get_parameter_groups(holder, policy, {})[0]:
        items, bucket, _ = module.build_data_parallel_buffer_index(
            [param.shape for param in group.params],
            0,
            request["ranks"],
            True,
            settings,
            chunk_size_factor=group.chunk_size_factor,
        )
        places = [items[index].global_data_index for index in range(len(group.params))]
        found.append([[numbers[param] for param in group.params], group.chunk_size_factor, places, bucket.size])
    return found


ASKED = {"layout": layout, "offloaded": offloaded, "fsdp": fsdp}


def main(folder: Path, source: Path) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    shims = types.ModuleType("megatron_shims")
    importlib.machinery.SourceFileLoader("megatron_shims", str(folder / "megatron_shims.py")).exec_module(shims)
    shims.install(source)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(ASKED[request["ask"]](request)), file=answers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
