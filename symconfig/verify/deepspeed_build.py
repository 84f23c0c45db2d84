"""One rank of a DeepSpeed folder as its own train.py builds it, without memory or a network: for deepspeed_runner.

Torch's fake tensors have sizes only, and its fake process group has as many ranks as the plan says, so DeepSpeed's own
engine shares everything out as it would on the cluster.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Inert:
    """A stand-in for what DeepSpeed would compile for this machine: kernels that no fake tensor can be given to."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def build(job: Json) -> Json:
    """Build the rank of a job {folder, words (of train.py), world_size, rank} with fake tensors and return {optimizer:
    the class's name, elements: parameters, trained: those trained, held: {kind: {device type: bytes}} between steps}.
    Changes sys.path, sys.argv and environment variables; patches torch and DeepSpeed (`join`).
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    os.environ |= {"RANK": str(job["rank"]), "WORLD_SIZE": str(job["world_size"])}
    sys.path.insert(0, job["folder"])
    join(job["rank"], job["world_size"])
    sys.argv = ["train.py", *job["words"]]
    train, states = (importlib.import_module(name) for name in ("train", "states"))
    args = train.arguments()
    config = json.loads(Path(args.deepspeed_config).read_text(encoding="utf-8"))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        engine, _ = train.start_engine(args, config)
        make_moments(engine.optimizer, states.MASTERS)
        parameters = list(engine.module.parameters())
        sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in parameters]
        return {
            "optimizer": type(engine.optimizer).__name__,
            "elements": sum(size for size, _ in sizes),
            "trained": sum(size for size, trained in sizes if trained),
            "held": states.held(engine),
        }


def join(rank: int, world_size: int) -> None:
    """Join a fake process group as `rank`, and patch what needs real tensors, a compiler or a GPU. Patches torch and
    DeepSpeed for the rest of the process.
    """
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator
    from deepspeed.module_inject import auto_ep
    from deepspeed.ops.op_builder.cpu import CPUAdamBuilder
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def real(function: Any) -> Any:
        def outside(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return outside

    comm: Any = importlib.import_module("deepspeed.comm.torch")  # as an attribute it is PyTorch
    comm.build_shm_op = lambda: None
    CPUAdamBuilder.load = lambda self, verbose=True: Inert()
    backend = comm.TorchBackend
    backend.init_device_mesh = real(backend.init_device_mesh)
    auto_ep._gate_activation_matches = real(auto_ep._gate_activation_matches)
    torch.nn.Module.to = _to
    for name in ("bfloat16", "half"):  # the model has its type already
        setattr(torch.nn.Module, name, lambda self: self)
    torch.distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    deepspeed.init_distributed()
    accelerator: Any = get_accelerator()
    accelerator._name = "cpu:0"  # so that ZeRO-3 tells it from the host, which is "cpu", when it offloads a part
    for name in ("is_fp16_supported", "is_bf16_supported"):  # of the plan's GPUs: nothing is computed on this processor
        setattr(accelerator, name, lambda: True)


def _to(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Move a module's floating-point weights to another dtype in place of Module.to, and return the module. Makes new
    parameters, since fake ones cannot change their dtype in place. A device is ignored.
    """
    import torch

    _, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    for part in module.modules() if dtype is not None else ():
        for name, weight in part._parameters.items():
            if weight is not None and weight.is_floating_point() and weight.dtype != dtype:
                part._parameters[name] = torch.nn.Parameter(weight.detach().to(dtype), weight.requires_grad)
    return module


def make_moments(optimizer: Any, masters: tuple[str, ...]) -> None:
    """Run one optimizer step with zero gradients, so that its state exists. With ZeRO's `_optimizer_step`, each
    master's gradient is restored; else torch's own optimizer steps once (BF16_Optimizer) and gradients become None.
    FP16_UnfusedOptimizer is skipped: it has stepped already. masters: attributes that hold lists of master weights;
    absent ones are skipped.
    """
    import torch

    if type(optimizer).__name__ == "FP16_UnfusedOptimizer":  # has stepped once when it was made
        return
    groups = [tensor for name in masters for tensor in getattr(optimizer, name, ())]
    for index, master in enumerate(groups):
        kept, master.grad = master.grad, torch.zeros_like(master)
        if hasattr(optimizer, "_optimizer_step"):
            optimizer._optimizer_step(index)
            master.grad = kept
    if not hasattr(optimizer, "_optimizer_step"):
        optimizer.optimizer.step()
        for master in groups:
            master.grad = None
