"""What Megatron refuses on a CPU or without Transformer Engine, and why to let it does not change a parameter.

Loaded by path in a forked child of megatron_runner, never imported by symconfig. Megatron's own `local` layers stand
in for Transformer Engine's: the same weights, split the same way. `refusals` is for building; nothing here makes a
forward pass right, so whoever runs one adds what it needs.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Callable
from typing import Any

# Settings of the transformer config that ask for kernels of Transformer Engine, Apex or a GPU; none names a weight.
KERNELS: dict[str, Any] = {
    "transformer_impl": "local",
    "moe_grouped_gemm": False,  # SequentialMLP: each expert's own two weights, as the grouped ones hold them
    "use_te_activation_func": False,
    "gradient_accumulation_fusion": False,  # Apex's kernel adds into the gradient buffer, which is there either way
    "tp_comm_overlap": False,  # user buffers of Transformer Engine's layers
    "persist_layer_norm": False,
    "fine_grained_activation_offloading": False,  # hooks for activations
    "moe_shared_expert_overlap": False,
    "moe_permute_fusion": False,
    "use_fused_weighted_squared_relu": False,
}


def local(config: Any) -> Any:
    """Return a shallow copy of the transformer config that needs only Megatron's own layers: options of KERNELS, where
    the release has them, get its values, and the dispatcher flex becomes alltoall.
    """
    copied = copy.copy(config)
    for name, value in KERNELS.items():
        if hasattr(copied, name):
            setattr(copied, name, value)
    if getattr(copied, "moe_token_dispatcher_type", None) == "flex":  # DeepEP's kernels: a dispatcher has no weights
        copied.moe_token_dispatcher_type = "alltoall"
    return copied


def refusals() -> None:
    """Patch Megatron's local layers to be built with settings that only their forward pass does not support."""
    _absent()
    _norms()
    _attention()
    _down_projections()


def network() -> None:
    """Patch what would ask other ranks while a model is built, which a fake process group cannot answer:
    Megatron-FSDP's comparisons and device number (absent before 0.14), and `_checkpoint_groups`.
    """
    # Skip Megatron-FSDP's comparison of its shards and its random numbers with other ranks'. A fake network has no
    # other ranks: every answer would be this rank's own. And it makes its device's name from a number, where `device`
    # may give another.
    for name in ("megatron_fsdp.param_and_grad_buffer", "megatron_fsdp.uneven_dtensor"):
        with contextlib.suppress(ImportError):  # before 0.14 there is none
            module: Any = importlib.import_module(f"megatron.core.distributed.fsdp.src.{name}")
            module.validate_uneven_dtensor = _nothing
    with contextlib.suppress(ImportError):
        adapter: Any = importlib.import_module("megatron.core.distributed.fsdp.mcore_fsdp_adapter")
        whole = adapter.FullyShardedDataParallel
        whole.sync_rng_states_across_tp_group = _nothing
        whole.__init__ = _with_device_number(whole.__init__)
    _checkpoint_groups()


def _absent() -> None:
    """Define Transformer Engine's layer classes (names on Linear that are no class) as empty classes in modules that
    test instances against them; absent modules are skipped.
    """
    for name in (
        "transformer.attention",
        "transformer.multi_latent_attention",
        "distributed.fsdp.mcore_fsdp_adapter",
        "tensor_parallel.inference_layers",
    ):
        with contextlib.suppress(ImportError):
            module: Any = importlib.import_module(f"megatron.core.{name}")
            for layer in [layer for layer in vars(module) if layer.endswith("Linear")]:
                if not isinstance(getattr(module, layer), type):
                    setattr(module, layer, type(layer, (), {}))


def _norms() -> None:
    """Patch WrappedTorchNorm to accept sequence parallelism, zero-centered weights and options of kernels; the weight's
    shape is the same.
    """
    module = importlib.import_module("megatron.core.transformer.torch_norm")
    make = module.WrappedTorchNorm.__new__

    def build(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        """Make torch's norm with options that it refuses off; mark its weights as sequence-parallel as configured."""
        plain = copy.copy(config)
        for name in (
            "persist_layer_norm",
            "sequence_parallel",
            "layernorm_zero_centered_gamma",
            "memory_efficient_layer_norm",
        ):
            setattr(plain, name, False)
        norm = make(cls, plain, *args, **kwargs)
        for weight in norm.parameters():
            weight.sequence_parallel = config.sequence_parallel  # as Transformer Engine's norm marks its own
        return norm

    module.WrappedTorchNorm.__new__ = staticmethod(build)


def _attention() -> None:
    """Patch the local attention core's __init__ to accept context parallelism, and to drop MLA's own key and value
    sizes. Both concern only its products; its one weight, a learnable softmax offset, is one number per head.
    """
    module = importlib.import_module("megatron.core.transformer.dot_product_attention")
    core = module.DotProductAttention
    make = core.__init__

    def build(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        """Initialize the core without context parallelism, k_channels and v_channels, then give it the true config."""
        plain = copy.copy(config)
        plain.context_parallel_size = 1
        make(
            self,
            plain,
            *args,
            **{name: value for name, value in kwargs.items() if name not in ("k_channels", "v_channels")},
        )
        self.config = config

    core.__init__ = build


def _down_projections() -> None:
    """Patch MLA's down-projections to be replicated over tensor-parallel ranks, as with Transformer Engine, by a group
    of one rank; Megatron's own layers would shard them.
    """
    module: Any = importlib.import_module("megatron.core.transformer.multi_latent_attention")
    split = importlib.import_module("megatron.core.tensor_parallel").ColumnParallelLinear
    make = module.build_module

    def build(spec: Any, *args: Any, **kwargs: Any) -> Any:
        if spec is split and kwargs.get("tp_comm_buffer_name") in ("q_down_proj", "kv_down_proj"):
            kwargs["tp_group"] = _Alone()
        return make(spec, *args, **kwargs)

    module.build_module = build


class _Alone:
    """A process group of this rank only."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def _checkpoint_groups() -> None:
    """Replace the getters of gloo groups by ones that return None; some versions call them with Megatron-FSDP."""
    state: Any = importlib.import_module("megatron.core.parallel_state")
    for name in ("get_data_parallel_group_gloo", "get_expert_data_parallel_group_gloo"):
        if hasattr(state, name):
            setattr(state, name, _nothing)


def _with_device_number(make: Callable[..., None]) -> Callable[..., None]:
    """Return the function wrapped so that torch.cuda.current_device() is 0 while it runs."""
    import torch

    def build(*args: Any, **kwargs: Any) -> None:
        """Call the function while torch.cuda.current_device() is 0."""
        current = torch.cuda.current_device
        torch.cuda.current_device = lambda: 0
        try:
            make(*args, **kwargs)
        finally:
            torch.cuda.current_device = current

    return build


def device(name: str = "meta") -> Any:
    """Return a context (a TorchFunctionMode) in which devices named as a GPU become `name`, meta or cpu: `device=`, and
    the first argument of Tensor.to and torch.device; pin_memory is ignored. Also patches torch for good (`_stand_in`).
    """
    import torch

    _stand_in(torch.device(name))
    from torch.overrides import TorchFunctionMode

    class Placed(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            kwargs.pop("pin_memory", None)  # for copies to a GPU
            if _is_gpu(kwargs.get("device")):
                kwargs["device"] = name
            if function is torch.Tensor.to and args[1:] and _is_gpu(args[1]):
                args = (args[0], name, *args[2:])
            if function is torch.device and args and _is_gpu(args[0]):
                args = (name,)
            return function(*args, **kwargs)

    return Placed()


def _is_gpu(device: Any) -> bool:
    return str(device).startswith("cuda") or (isinstance(device, int) and not isinstance(device, bool))


def _stand_in(device: Any) -> None:
    """Patch torch for good: torch.cuda's streams and synchronization do nothing, and `device` is its current device;
    cuda() of tensors and modules and pin_memory() return the object itself; tensors report a GPU (`_say_gpu`).
    Megatron's recompute copies into the emptied storage instead of sharing it.
    """
    import torch

    torch.cuda.current_device = lambda: device
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda device=None: torch.get_rng_state()
    torch.cuda.Stream = torch.cuda.Event = _Stream
    torch.cuda.current_stream = lambda device=None: _Stream()
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.synchronize = torch.cuda.empty_cache = _nothing
    torch.Tensor.cuda = torch.nn.Module.cuda = _itself
    torch.Tensor.pin_memory = _itself
    _say_gpu(device)
    # Recomputing copies into the emptied storage: sharing it, from 0.19 on, compiles C++ for half a minute.
    recomputing: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    if hasattr(recomputing, "_get_share_storage"):
        recomputing._get_share_storage = lambda: _fill


def _fill(emptied: Any, remade: Any) -> None:
    storage, made = emptied.untyped_storage(), remade.untyped_storage()
    storage.resize_(made.nbytes())
    storage.copy_(made)


def _say_gpu(device: Any) -> None:
    """Patch tensors to report a CUDA type; on the meta device also is_cuda, and never is_meta, which optimizers check.
    There tensors moved to host memory by cpu() (optimizer offload) stay on meta but report no GPU, as do those made
    from them.
    """
    import torch

    kind = torch.Tensor.type

    class Host(torch.Tensor):  # type: ignore[misc]
        is_cuda = False

    def type_(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = kind(self, *args, **kwargs)
        return "torch.cuda." + answer.rpartition(".")[2] if isinstance(answer, str) else answer

    torch.Tensor.type = type_
    if device.type != "meta":
        return
    torch.Tensor.is_cuda = property(lambda self: self.device == device)
    torch.Tensor.is_meta = False
    torch.Tensor.cpu = lambda self, *args: self.as_subclass(Host)


class _Stream:
    """A stand-in for torch.cuda's stream: takes every call and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self


def _itself(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
