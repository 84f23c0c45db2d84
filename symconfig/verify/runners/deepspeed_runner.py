"""A process of its own that asks the real DeepSpeed. `python -m`, never imported by symconfig.

Reads {"timeout_s": of a job, "jobs": [{"task": a name of TASKS, and its input}]} from standard input, and writes a line
of JSON for each job: {"ok", "error"} and what the task returns, or {"crash", "last_lines"}. Each job runs in a forked
child of the process that has imported the frameworks.

A rank is built by the folder's own train.py, without memory or a network: torch's fake tensors have sizes only, and its
fake process group has as many ranks as the plan says, so DeepSpeed's own engine shares everything out as it would on
the cluster.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from symconfig.verify.runners.forks import isolated

Json = dict[str, Any]
# What takes longest to import; DeepSpeed's engine always imports its Muon, an optimizer of torch's its compiler.
IMPORTED_ONCE: Mapping[str, tuple[str, ...]] = {
    "resolve": ("deepspeed.module_inject.auto_ep_config", "transformers.integrations.deepspeed"),
    "build": (
        "torch._dynamo",
        "deepspeed.runtime.zero.muon.muon_optimizer",
        "transformers.integrations.deepspeed",
        "transformers.modeling_utils",
        "peft",
    ),
}
MEMORY_BYTES = 16 * 2**30  # addresses; torch with Transformers takes some five, of which a tenth is memory


def main() -> None:
    """Answer the request and end the process with status 0. Sets environment variables; whatever the libraries print
    goes to standard error.
    """
    request = json.load(sys.stdin)
    os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "LOCAL_RANK": "0"}
    logging.disable(logging.WARNING)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    jobs = request["jobs"]
    for name in IMPORTED_ONCE[jobs[0]["task"]] if len(jobs) > 1 else ():
        with contextlib.suppress(ImportError):  # then each job says so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the whole heap
    for job in jobs:
        print(json.dumps(isolated("", partial(_answer, job), request["timeout_s"], MEMORY_BYTES)), file=answers)
    answers.flush()
    os._exit(0)  # threads of the libraries may abort a process that Python takes down


def _answer(job: Json) -> Json:
    try:
        return {"ok": True, "error": None, **TASKS[job["task"]](job)}
    except (Exception, SystemExit) as error:  # whatever the frameworks say is the finding
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def resolve(job: Json) -> Json:
    """Return {config, resolved} of a job {config, world_size} and, to fill "auto" values in first, {trainer,
    hidden_size}.
    """
    config = _filled(job) if job.get("trainer") else job["config"]
    return {"config": config, "resolved": _resolved(config, job["world_size"])}


def _resolved(config: Json, world_size: int) -> Json:
    """Return {name: value} of what DeepSpeedConfig resolves at a claimed world size: batch sizes, accumulation,
    clipping, lr, ZeRO stage, precision, offload, and the degrees of AutoTP, Ulysses and AutoEP; validates AutoEP, too.

    Precision is fp32 without bf16 or fp16; degrees are at least 1; optimizer_offload is the offloaded share (0.0
    without). Raises what DeepSpeed raises. Patches deepspeed.comm's rank (0) and world size.
    """
    import deepspeed.comm as dist
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config
    from deepspeed.runtime.config import DeepSpeedConfig

    dist.get_rank = lambda *args, **kwargs: 0
    dist.get_world_size = lambda *args, **kwargs: world_size
    parsed = DeepSpeedConfig(json.loads(json.dumps(config)))
    tp = max(parsed.tensor_parallel_config.autotp_size, 1)
    zero = parsed.zero_config
    validate_autoep_config(
        parsed.expert_parallel_config,
        world_size,
        1,
        tp,
        config.get("sequence_parallel_size", 1),
        zero_stage=int(zero.stage),
        zero_offload_optimizer=zero.offload_optimizer is not None,
        zero_offload_param=zero.offload_param is not None,
    )
    offload = zero.offload_optimizer
    return {
        "train_batch_size": parsed.train_batch_size,
        "train_micro_batch_size_per_gpu": parsed.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": parsed.gradient_accumulation_steps,
        "gradient_clipping": parsed.gradient_clipping,
        "lr": (parsed.optimizer_params or {}).get("lr"),
        "zero_stage": int(zero.stage),
        "precision": "bf16" if parsed.bfloat16_config.enabled else "fp16" if parsed.float16_config.enabled else "fp32",
        "optimizer_offload": 0.0 if offload is None or offload.device == "none" else offload.ratio,
        "param_offload": zero.offload_param is not None and zero.offload_param.device != "none",
        "autotp_size": tp,
        "sequence_parallel_size": config.get("sequence_parallel_size", 1),
        "autoep_size": max(parsed.expert_parallel_config.autoep_size, 1),
    }


def _filled(request: Json) -> Json:
    """Return the request's configuration with "auto" values filled in by Transformers from its `trainer` and
    `hidden_size`, for a run without warm-up. Raises ValueError naming the keys that are still "auto".
    """
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    given = {
        "save_on_each_node": False,
        "fp16": False,
        "bf16": False,
        "fp16_full_eval": False,
        "bf16_full_eval": False,
        **request["trainer"],
    }
    arguments = SimpleNamespace(**given, get_warmup_steps=lambda steps: 0)
    holder = HfTrainerDeepSpeedConfig(request["config"])
    holder.trainer_config_process(arguments)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=request["hidden_size"]))
    holder.trainer_config_finalize(arguments, model, 1000)
    left = sorted(_autos(holder.config))
    if left:
        raise ValueError(f'Trainer leaves "auto" in {", ".join(left)}')
    config: Json = holder.config
    return config


def _autos(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [name for key, item in value.items() for name in _autos(item, f"{path}.{key}".strip("."))]
    return [path] if value == "auto" else []


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


TASKS: Mapping[str, Callable[[Json], Json]] = {"resolve": resolve, "build": build}

if __name__ == "__main__":
    main()
