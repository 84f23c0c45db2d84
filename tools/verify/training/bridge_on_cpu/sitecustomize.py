"""A rank of Megatron-Bridge without a GPU, as megatron_on_cpu has one of Megatron-LM: layers are megatron-core's own.

Python imports this by itself where the folder is on PYTHONPATH, and changes ranks only: torchrun gives LOCAL_RANK.
RUNNERS is the folder symconfig/verify/runners.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ABSENT = ("transformer_engine", "triton", "wandb", "tensorboard", "modelopt", "google", "nvidia_resiliency_ext")


class Absent:
    """Finds an inert module for what is imported and not used."""

    def __init__(self, inert: Any) -> None:
        self.inert = inert

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        return self.inert(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def load(name: str, path: Path) -> Any:
    """A module by its file, under this name."""
    spec = spec_from_file_location(name, path)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stand_in() -> None:
    import torch

    here, runners = Path(__file__).resolve().parent, Path(os.environ["RUNNERS"])
    shared = load("megatron_on_cpu", here.parent / "megatron_on_cpu" / "sitecustomize.py")
    shims, patches = (load(name, runners / f"{name}.py") for name in ("megatron_shims", "megatron_patches"))
    shims._skip_compilers()
    patches.device("cpu").__enter__()
    shared.gpu()
    shared.network()
    importlib.import_module("megatron.core.models.gpt")  # which then knows that there is no Transformer Engine

    class Inert(shims.Inert):  # type: ignore[misc]
        """With a class for each name of one."""

        def __getattr__(self, name: str) -> Any:
            return type(name, (torch.nn.Module,), {}) if name[0].isupper() else super().__getattr__(name)

    sys.meta_path.append(Absent(Inert))  # type: ignore[arg-type]
    config: Any = importlib.import_module("megatron.bridge.training.config")
    shims.claim_gpu(*shared.GPU.values())
    shims.claim_transformer_engine("2.12.0")
    shared.helpers()
    shared.counts()
    patches.refusals()
    patches.without_fp8()
    provider: Any = importlib.import_module("megatron.bridge.models.gpt_provider")
    provider.transformer_engine_layer_spec = provider.local_layer_spec
    training: Any = importlib.import_module("megatron.bridge.training.train")
    training.get_tensor_shapes_adjust_fn_for_distillation = lambda *args, **kwargs: None  # of modelopt: none is wanted
    without_kernels(config, patches.KERNELS)


def without_kernels(module: Any, instead: dict[str, Any]) -> None:
    """What only a GPU's kernels do is switched off in the model's configuration, once it has been merged."""
    update = module.runtime_config_update

    def updated(config: Any) -> None:
        switch(config.model, instead)
        update(config)

    module.runtime_config_update = updated


def switch(model: Any, instead: dict[str, Any]) -> None:
    """Put values in the place of a model's own, and let the first rank say which."""
    changed = sorted(
        f"{name}={value} (not {getattr(model, name)})"
        for name, value in instead.items()
        if getattr(model, name, value) != value
    )
    for name, value in instead.items():
        if hasattr(model, name):
            setattr(model, name, value)
    if os.environ["RANK"] == "0" and changed:
        print("without a GPU:", ", ".join(changed), flush=True)


if "LOCAL_RANK" in os.environ:
    stand_in()
