"""What Megatron refuses on a CPU or without Transformer Engine, and why to let it does not change a parameter.

Loaded by path in a forked child of megatron_runner, never imported by symconfig. Megatron's own `local` layers stand
in for Transformer Engine's: the same weights, split the same way. `refusals` is for building; a forward pass needs
`forward`, too, with which autograd keeps the same tensors as on a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import types
from collections.abc import Callable
from typing import Any

torch: Any = importlib.import_module("torch")  # by name: the package imports no framework

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
    # Of the forward pass: torch's own operators run instead.
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
    "moe_router_fusion": False,
    "cross_entropy_fusion_impl": "native",
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
    """Patch the local attention core's __init__ to accept context parallelism and MLA's own key and value sizes, of
    which its output has the values' width. They concern only its products; its one weight, a learnable softmax offset,
    is one number per head.
    """
    module = importlib.import_module("megatron.core.transformer.dot_product_attention")
    core = module.DotProductAttention
    make = core.__init__

    def build(self: Any, config: Any, *args: Any, v_channels: int | None = None, **kwargs: Any) -> None:
        """Initialize the core without context parallelism, then give it the true config and the width of its output."""
        kwargs.pop("k_channels", None)
        plain = copy.copy(config)
        plain.context_parallel_size = 1
        make(self, plain, *args, **kwargs)
        self.config = config
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

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
    _stand_in(torch.device(name))

    class Placed(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
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


def forward() -> None:
    """Patch torch and Megatron for a forward pass without a GPU. Call it within megatron_tasks.placed, before the
    modules are built.
    """
    _rng()
    without_fp8()
    for name in ("rotary_pos_embedding", "yarn_rotary_pos_embedding"):
        module: Any = importlib.import_module(f"megatron.core.models.common.embeddings.{name}")
        module.get_pos_emb_on_this_cp_rank = _first_positions
    torch.nn.functional.dropout = _dropout
    torch.nn.functional.rms_norm = rms_norm
    _routing()


def _rng() -> None:
    """Patch the GPU's random states, which dropout and recomputing use, with a constant one, and seed Megatron's
    tracker.
    """
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    state = torch.zeros(16, dtype=torch.uint8, device="cpu")
    random._get_cuda_rng_state = lambda *args, **kwargs: state
    random._set_cuda_rng_state = lambda *args, **kwargs: None
    torch.cuda.get_rng_state = lambda *args, **kwargs: state
    torch.cuda.manual_seed = lambda seed: None
    random.model_parallel_cuda_manual_seed(1234)


def without_fp8() -> None:
    """Patch CheckpointWithoutOutput, which asks Transformer Engine, to see fp8 as disabled."""
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    random.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)
    random.activation_recompute_forward = random.fp8_autocast = lambda **options: contextlib.nullcontext()


def _first_positions(positions: Any, dim: int, group: Any) -> Any:
    """Return as many position embeddings as a context-parallel rank has, the first ones."""
    return positions.narrow(dim, 0, positions.size(dim) // group.size()).clone()


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Apply a dropout that saves a mask of one byte per element, as on a GPU; on a CPU it has the tensor's dtype."""
    return torch.native_dropout(input, p, True)[0] if training and p else input


class _RmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """torch's fused kernel for GPUs: keeps its input and one fp32 number a token."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any) -> Any:
        ctx.save_for_backward(input, input.new_empty(*input.shape[:-1], 1, dtype=torch.float32), weight)
        return torch.empty_like(input)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, _, weight = ctx.saved_tensors
        return torch.empty_like(input), torch.empty_like(weight)


def rms_norm(input: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Return the input's norm as `_RmsNorm`, whose values are not right; shape and eps are not used."""
    return _RmsNorm.apply(input, weight)


def balanced(tokens: int, experts: int, chosen: int) -> Any:
    """Return a boolean routing map [tokens, experts] on the CPU in which each token has the next `chosen` experts in
    turn, so that all experts get equally many (to one token).
    """
    with torch.device("cpu"):
        first = torch.arange(tokens * chosen) % experts
        return torch.zeros(tokens, experts, dtype=torch.bool).scatter_(1, first.view(tokens, chosen), True)


def _routing() -> None:
    """Patch the token dispatcher to count a balanced routing, assumed on every rank; gathers of CPU tensors repeat this
    rank's, and tensors are not moved to the host. The router's own choice has no values on the meta device; everything
    else uses the real map.
    """
    dispatcher: Any = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    kind = dispatcher.MoEAlltoAllTokenDispatcher
    count, gather = kind.preprocess, dispatcher.gather_from_sequence_parallel_region

    def preprocess(self: Any, routing_map: Any) -> Any:
        return count(self, balanced(routing_map.size(0), routing_map.size(1), self.config.moe_router_topk))

    def gathered(tensor: Any, group: Any = None, **value: Any) -> Any:
        if tensor.device.type == "cpu":
            return tensor.repeat(group.size())
        return gather(tensor, group=group, **value)

    def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor

    kind.preprocess = preprocess
    dispatcher.gather_from_sequence_parallel_region = gathered
    dispatcher.maybe_move_tensor_to_cpu = on_host
