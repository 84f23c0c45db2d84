"""A rank of Megatron-LM's own pretrain_gpt.py without a GPU: what is missing is stood in for, then it runs as it is.

Python imports this by itself where the folder is on PYTHONPATH, and changes ranks only: torchrun gives LOCAL_RANK.
Arguments, data, model, schedules, optimizer and learning rates stay Megatron's. MEGATRON_PATH is its checkout, RUNNERS
the folder symconfig/verify/runners.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

GPU = {"capability": (9, 0), "memory_bytes": 80 * 10**9, "compute_units": 132}
QUIET = (
    "set_device",
    "set_stream",
    "manual_seed",
    "manual_seed_all",
    "set_rng_state",
    "reset_peak_memory_stats",
    "init",
    "ipc_collect",
)  # of torch.cuda
ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


def load(name: str, path: Path) -> Any:
    """A module by its file, under this name."""
    spec = spec_from_file_location(name, path)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stand_in() -> None:
    runners = Path(os.environ["RUNNERS"])
    shims, patches = (load(name, runners / f"{name}.py") for name in ("megatron_shims", "megatron_patches"))
    shims.install(Path(os.environ["MEGATRON_PATH"]))
    del sys.modules["megatron.training"]  # a stand-in for the trainer, which is wanted here
    shims.claim_gpu(*GPU.values())
    patches.device("cpu").__enter__()
    gpu()
    network()
    helpers()
    counts()
    patches.refusals()
    patches.without_fp8()
    without_kernels(patches.KERNELS)


def gpu() -> None:
    """As many as ranks."""
    import torch

    torch.set_num_threads(1)
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: int(os.environ["LOCAL_WORLD_SIZE"])
    for name in QUIET:
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    for name in ZERO:
        setattr(torch.cuda, name, lambda *args, **kwargs: 0)
    torch.cuda.random.set_rng_state = torch.cuda.set_rng_state
    torch.cuda.memory_stats = lambda *args, **kwargs: {}
    for kind in ("Float", "Half", "BFloat16", "Int", "Long", "Byte", "Double"):
        setattr(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))


def network() -> None:
    """gloo in the place of NCCL."""
    import torch.distributed as dist

    init = dist.init_process_group

    def start(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("device_id", None)
        init("gloo", *args, **kwargs)

    dist.init_process_group = start


def counts() -> None:
    """How many tokens go where comes from a GPU as NumPy; tensors of the host stay what they are, which no all-to-all
    takes."""
    dispatcher: Any = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")

    def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and hasattr(tensor, "numpy") else tensor

    dispatcher.maybe_move_tensor_to_cpu = on_host


def helpers() -> None:
    """The data sets' compiled part, of the installed megatron-core: a checkout would compile its own, with pybind11."""
    name = "helpers_cpp"
    found = next(
        path
        for place in sys.path
        for path in Path(place, "megatron", "core", "datasets").glob(f"{name}*")
        if path.name.endswith(EXTENSION_SUFFIXES[0])
    )
    load(f"megatron.core.datasets.{name}", found)
    utils: Any = importlib.import_module("megatron.core.datasets.utils")
    utils.compile_helpers = lambda: None


def without_kernels(instead: dict[str, Any]) -> None:
    """What only a GPU's kernels do is switched off once Megatron has validated its arguments, and the first rank says
    what that was."""
    variables: Any = importlib.import_module("megatron.training.global_vars")
    keep = variables.set_args

    def set_args(args: Any) -> None:
        changed = sorted(
            {
                f"{name}={instead[name]} (not {was})"
                for place in places(args)
                for name in instead
                if (was := getattr(place, name, instead[name])) != instead[name]
            }
        )
        for place in places(args):
            for name, value in instead.items():
                if hasattr(place, name):
                    setattr(place, name, value)
        if os.environ["RANK"] == "0":
            print("without a GPU:", ", ".join(changed), flush=True)
        keep(args)

    variables.set_args = set_args


def places(args: Any) -> Iterator[Any]:
    """The namespace; of a --yaml-cfg file, its sections too."""
    yield args
    for name in ("language_model", "model_parallel"):
        if hasattr(args, name):
            yield getattr(args, name)


if __name__ == "sitecustomize" and "LOCAL_RANK" in os.environ:
    stand_in()
