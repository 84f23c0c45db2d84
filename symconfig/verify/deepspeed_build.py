"""A process of its own: ranks of a DeepSpeed folder as its own train.py builds them, without memory or a network.

Torch's fake tensors have sizes only, and its fake process group has as many ranks as the plan says, so DeepSpeed's own
engine shares everything out as it would on the cluster. Request on standard input: {"folder", "words" (of train.py),
"world_size", "ranks", "timeout_s" (of a rank)}; the last line: {"ok": true, "answers": [...]}, of each rank {"ok",
"error", "optimizer", "elements", "trained", "held"}. The frameworks are imported once: each rank is a forked child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from symconfig.verify.forks import isolated

Json = dict[str, Any]
# What takes longest to import; DeepSpeed's engine always imports its Muon, an optimizer of torch's its compiler.
IMPORTED_ONCE = (
    "torch._dynamo",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "transformers.integrations.deepspeed",
    "transformers.modeling_utils",
    "peft",
)
MEMORY_BYTES = 16 * 2**30  # addresses; torch with Transformers takes some five, of which a tenth is memory


class Inert:
    """A stand-in for what DeepSpeed would compile for this machine: kernels that no fake tensor can be given to."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def main() -> None:
    """Read the request, build each rank in a forked child, and print one line of JSON with the answers; end the process
    with status 0. Sets environment variables; other output goes to standard error. A rank that crashes or takes too
    long has an answer that says so.
    """
    request = json.load(sys.stdin)
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(request["world_size"]),
    }
    logging.disable(logging.WARNING)
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the libraries print while they are imported is no answer
    for name in IMPORTED_ONCE if len(request["ranks"]) > 1 else ():
        with contextlib.suppress(ImportError):  # then each rank says so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the whole heap
    ended = [
        isolated(str(rank), partial(_answer, request, rank), request["timeout_s"], MEMORY_BYTES)
        for rank in request["ranks"]
    ]
    answers = [
        {"ok": False, "error": f"DeepSpeed {one['crash']}; its last lines: " + " | ".join(one["last_lines"])}
        if "crash" in one
        else one
        for one in ended
    ]
    print(json.dumps({"ok": True, "answers": answers}), file=answers_to, flush=True)
    os._exit(0)  # threads of the libraries may abort a process that Python takes down


def _answer(request: Json, rank: int) -> Json:
    os.environ["RANK"] = str(rank)
    try:
        return {"ok": True, "error": None, **build(request, rank)}
    except (Exception, SystemExit) as error:  # whatever the frameworks say is the finding
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def build(request: Json, rank: int) -> Json:
    """Build a rank of the folder's train.py with fake tensors and return {optimizer: the class's name, elements:
    parameters, trained: those trained, held: {kind: {device type: bytes}} between steps}. Changes sys.path and
    sys.argv; patches torch and DeepSpeed (`join`).
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    sys.path.insert(0, request["folder"])
    join(rank, request["world_size"])
    sys.argv = ["train.py", *request["words"]]
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


if __name__ == "__main__":
    main()
