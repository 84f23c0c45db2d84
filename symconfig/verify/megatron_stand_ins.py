"""What a forward pass of Megatron's modules needs beside a GPU: each is stood in for so that the same tensors are kept.

Loaded by path in a forked child of megatron_runner, never imported by symconfig. See `prepare` for the list.
"""

from __future__ import annotations

import contextlib
import importlib
import types
from typing import Any

torch: Any = importlib.import_module("torch")  # by name: the package imports no framework

# Settings that ask for kernels of Transformer Engine or Apex in the forward; torch's own operators run instead.
KERNELS: dict[str, Any] = {
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
    "moe_router_fusion": False,
    "cross_entropy_fusion_impl": "native",
}


def prepare(config: Any) -> None:
    """Patch torch and Megatron for a forward pass without a GPU. Call it within megatron_build.placed, before the
    modules are built.
    """
    kernels(config)
    _rng()
    without_fp8()
    _positions()
    _dropout()
    _rms_norm()
    _attention()
    _routing()


def kernels(config: Any) -> None:
    """Set KERNELS in the config, as far as this version has them."""
    for name, value in KERNELS.items():
        if hasattr(config, name):
            setattr(config, name, value)


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


def _positions() -> None:
    """Patch position embeddings to return as many positions as a context-parallel rank has, the first ones."""

    def own(positions: Any, dim: int, group: Any) -> Any:
        return positions.narrow(dim, 0, positions.size(dim) // group.size()).clone()

    for name in ("rotary_pos_embedding", "yarn_rotary_pos_embedding"):
        module: Any = importlib.import_module(f"megatron.core.models.common.embeddings.{name}")
        module.get_pos_emb_on_this_cp_rank = own


def _dropout() -> None:
    """Patch dropout to save a mask of one byte per element, as a GPU does; on a CPU it has the tensor's dtype."""

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return torch.native_dropout(input, p, True)[0] if training and p else input

    torch.nn.functional.dropout = dropout


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


def _rms_norm() -> None:
    torch.nn.functional.rms_norm = lambda input, shape, weight=None, eps=None: _RmsNorm.apply(input, weight)


def _attention() -> None:
    """Patch the local attention core to output the width of MLA's values, if v_channels is given."""
    core = importlib.import_module("megatron.core.transformer.dot_product_attention").DotProductAttention
    make = core.__init__

    def build(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        make(self, config, *args, **kwargs)
        if (channels := kwargs.get("v_channels")) is not None:
            self.hidden_size_per_partition = channels * self.num_attention_heads_per_partition

    core.__init__ = build


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
