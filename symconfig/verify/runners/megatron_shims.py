"""Makes Megatron-LM importable on a CPU, without its optional packages: loaded by path, in a subprocess only.

Nothing of Megatron's own code is replaced. What is provided instead of a GPU machine's surroundings:
typing names of Python 3.12, an empty `megatron.training` package (the real `__init__` imports the trainer),
inert stand-ins for absent third-party modules that Megatron imports without a guard, no-op compilers
(nothing compiled is ever run while arguments are checked), a claimed GPU and Transformer Engine version.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import inspect
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

# Third-party modules that some version imports without a guard; used only by code that needs a GPU or a job.
STAND_INS = frozenset({"triton", "omegaconf", "wandb", "six", "tqdm", "einops", "requests"})


class Inert(types.ModuleType):
    """A module, class, decorator or constant that does nothing."""

    __version__ = "99.0"  # newer than any minimum that is asked for

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = Inert(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


def install(source: Path) -> None:
    """Put `source` (the folder that holds `megatron/`) first on sys.path, and patch Python and torch to import it.
    megatron.training becomes a package without its __init__, whose absent names are inert functions; warnings are off.
    """
    warnings.simplefilter("ignore")
    if sys.version_info < (3, 12):  # of which Megatron takes names that 3.11 has not, or has in an older form
        import typing_extensions

        for name in ("override", "Unpack", "TypedDict"):
            setattr(typing, name, getattr(typing_extensions, name))
    sys.path.insert(0, str(source))
    _stand_in_for_absent_modules()
    _skip_compilers()
    # The parser is made from dataclasses, whose sources it reads for its help texts: most of its time, each time.
    inspect.getsource = functools.cache(inspect.getsource)  # type: ignore[assignment]
    ast.parse = functools.cache(ast.parse)  # type: ignore[assignment]
    package = types.ModuleType("megatron.training")
    package.__path__ = [str(source / "megatron" / "training")]
    package.__getattr__ = _inert_function  # type: ignore[method-assign]
    sys.modules["megatron.training"] = package


def _inert_function(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: None


def _stand_in_for_absent_modules() -> None:
    """Patch imports so that Megatron gets an inert module for those of STAND_INS that are not installed. Only absolute
    imports in Megatron's own modules: torch, too, checks whether triton is installed. Other failures are raised.
    """
    real = builtins.__import__

    def importer(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """Import as Python does, but return an inert module for an absent one of STAND_INS imported by Megatron."""
        try:
            return real(name, globals, locals, fromlist, level)
        except ModuleNotFoundError as error:
            top, *rest = name.split(".")
            asking = str((globals or {}).get("__name__", "")).split(".")[0]
            missing = (error.name or "").split(".")[0]
            if level or asking != "megatron" or missing != top or top not in STAND_INS:
                raise
            module: Any = Inert(top)
            for part in rest if fromlist else ():
                module = getattr(module, part)
            return module

    builtins.__import__ = importer


def _skip_compilers() -> None:
    """Replace torch.compile and torch.jit.script by decorators that return the function unchanged, to start faster."""
    import torch

    def identity(function: Any = None, *args: Any, **kwargs: Any) -> Any:
        return function if function is not None else lambda inner: inner

    torch.compile = identity
    torch.jit.script = identity


def claim_gpu(capability: tuple[int, int], memory_bytes: int, compute_units: int) -> None:
    """Patch torch.cuda to report a GPU of this compute capability, memory and number of compute units."""
    import torch

    major, minor = capability
    properties = types.SimpleNamespace(
        major=major,
        minor=minor,
        total_memory=memory_bytes,
        multi_processor_count=compute_units,
        name=f"claimed sm_{major}{minor}",
        warp_size=32,
    )
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.current_device = lambda: 0


@contextmanager
def claimed_adam() -> Iterator[None]:
    """Within the block, make Transformer Engine's FusedAdam importable, whose argument names OptimizerConfig inspects.
    Nothing is replaced if Transformer Engine is installed.
    """
    package = "transformer_engine.pytorch.optimizers"
    if importlib.util.find_spec("transformer_engine") is not None:
        yield
        return

    class FusedAdam:
        def __init__(
            self,
            master_weight_dtype: Any = None,
            exp_avg_dtype: Any = None,
            exp_avg_sq_dtype: Any = None,
            use_decoupled_grad: bool = False,
        ) -> None: ...

    names = ("transformer_engine", "transformer_engine.pytorch", package)
    modules = {name: types.ModuleType(name) for name in names}
    vars(modules[package])["FusedAdam"] = FusedAdam
    with mock.patch.dict(sys.modules, modules):
        yield


def claim_sparse_kernels() -> None:
    """Patch the transformer config not to require the packages of sparse attention's kernels."""
    import importlib

    try:
        config: Any = importlib.import_module("megatron.core.transformer.transformer_config")
    except ModuleNotFoundError:  # a release without it has no such kernels either
        return
    if hasattr(config, "_validate_dsa_kernel_backend_dependencies"):
        config._validate_dsa_kernel_backend_dependencies = lambda backend: None


# Fused kernels of Transformer Engine that Megatron's configuration asks for, by the module that imports them.
KERNELS = {
    "megatron.core.models.common.embeddings.rope_utils": (
        "fused_apply_rotary_pos_emb",
        "fused_apply_rotary_pos_emb_thd",
    ),
    "megatron.core.transformer.moe.moe_utils": (
        "fused_permute",
        "fused_permute_with_probs",
        "fused_sort_chunks_by_index",
        "fused_sort_chunks_by_index_with_probs",
        "fused_unpermute",
    ),
}


def claim_transformer_engine(version: str) -> None:
    """Patch Megatron to see this Transformer Engine version, with inert fused kernels where they are missing."""
    from megatron.core import utils
    from packaging.version import Version

    utils._te_version = Version(version)
    for module, names in KERNELS.items():
        place = importlib.import_module(module)
        for name in names:
            if getattr(place, name, None) is None:
                setattr(place, name, Inert(f"transformer_engine.{name}"))
