"""Print, as JSON, what PyTorch and DeepSpeed exchange in a step of two microbatches on eight ranks.

calls: {case: [[place, kind, elements], …]}; place: "microbatch", or "step" for what only the last one does. For a
process of its own. Nothing is sent (PyTorch's fake process group); the calls are the frameworks'.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

RANKS, WIDTHS, MICROBATCHES = 8, (16, 16, 32), 2
_KINDS = {"allreduce_": "all-reduce", "_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter"}
_SMALL = 16  # elements: norms of gradients, flags
_ZERO = {
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
}


class Recorder(TorchDispatchMode):
    """Collects the collectives: kind, and elements of the larger buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            kind, size = _KINDS.get(func._schema.name.removeprefix("c10d::")), max(_sizes(args), default=0)
            if kind and size > _SMALL:
                self.calls.append((kind, size))
        return func(*args, **(kwargs or {}))


def _sizes(value: Any) -> list[int]:
    if isinstance(value, torch.Tensor):
        return [value.numel()]
    return [size for each in value for size in _sizes(each)] if isinstance(value, list | tuple) else []


def model() -> Any:
    layers = [torch.nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(WIDTHS)]
    return torch.nn.Sequential(*layers)


def recorded(microbatch: Callable[[bool], None], step: Callable[[], None] = lambda: None) -> list[tuple[str, str, int]]:
    """Return the calls of a whole step after a first one, in which frameworks set themselves up."""
    for _ in range(2):
        sizes = []
        for number in range(MICROBATCHES):
            with Recorder() as recorder:
                microbatch(number == MICROBATCHES - 1)
            sizes.append(recorder.calls)
        with Recorder() as recorder:
            step()
    every, last = sizes
    return [("microbatch", *call) for call in every] + [
        ("step", *call) for call in (*last[len(every) :], *recorder.calls)
    ]


def pytorch() -> dict[str, Any]:
    def run(module: Any) -> None:
        module(torch.randn(4, WIDTHS[0])).sum().backward()

    def summed(bucket: Any) -> Any:
        dist.all_reduce(bucket.buffer())
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def replicated() -> Any:
        module = DistributedDataParallel(model())
        # The reducer's own waits for a result, which what is not sent has none of.
        module.register_comm_hook(None, lambda _, bucket: summed(bucket))
        return module

    def microbatch_of(module: Any) -> Callable[[bool], None]:
        def microbatch(last: bool) -> None:
            module.require_backward_grad_sync = last
            run(module)

        return microbatch

    def sharded(**options: Any) -> Any:
        block = model()
        root = torch.nn.Sequential(block)
        fully_shard(block, **options)
        return fully_shard(root, **options)

    meshes = init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("replicate", "shard"))
    cases = {"FSDP2": sharded(), "FSDP2 on two instances": sharded(mesh=meshes)}
    found = {name: recorded(lambda _, module=module: run(module)) for name, module in cases.items()}  # type: ignore[misc]
    return {"DDP": recorded(microbatch_of(replicated())), **found}


def deepspeed() -> dict[str, Any]:
    comm: Any = importlib.import_module("deepspeed.comm.torch")
    comm.build_shm_op = lambda: None
    library: Any = importlib.import_module("deepspeed")
    library.init_distributed()
    found = {}
    for stage, more in ((0, {}), (1, {}), (2, {}), (3, _ZERO)):
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": MICROBATCHES,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage, **more},
            "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
        }
        module = model()
        engine = library.initialize(model=module, model_parameters=module.parameters(), config=config)[0]

        def microbatch(last: bool, engine: Any = engine) -> None:
            engine.backward(engine(torch.randn(4, WIDTHS[0], dtype=torch.bfloat16)).sum())
            if not last:
                engine.step()

        found[f"DeepSpeed {stage}"] = recorded(microbatch, engine.step)
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    os.environ.update(RANK="0", WORLD_SIZE=str(RANKS), LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    elements = sum(weight.numel() for weight in model().parameters())
    print(json.dumps({"ranks": RANKS, "elements": elements, "calls": pytorch() | deepspeed()}))


if __name__ == "__main__":
    main()
