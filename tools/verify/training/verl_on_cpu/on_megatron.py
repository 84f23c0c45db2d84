"""verl's workers of Megatron-Core on a CPU: what is stood in for, and where their buffers are.

bridge_on_cpu has stood in for a GPU before, as for Megatron-Bridge's own runs.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from counting import local
from device import Device
from flash_attn import flash_attn_varlen_func
from torch.profiler import record_function

ROWS = 64  # in fp32 at once, where a GPU's kernel has them in registers
GPU_NAME = "another place than the host"
EXPERT = re.compile(r"(.*\.experts)\.local_experts\.(\d+)\.(linear_fc\d)\.weight")


class Norm(torch.autograd.Function):
    """RMSNorm of x[..., D] as a GPU's kernel has it, which keeps its input and a number of each row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        made = torch.empty_like(x)
        roots = x.new_empty(x.shape[:-1].numel(), dtype=torch.float32)
        for out, rows, root in zip(*_rows(made, x), roots.split(ROWS), strict=True):
            wide = rows.float()
            root.copy_((wide.square().mean(-1) + eps).rsqrt())
            out.copy_(wide * root[:, None] * weight)
        ctx.save_for_backward(x, weight, roots)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, roots = ctx.saved_tensors
        of_x, of_weight = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        for out, rows, up, root in zip(*_rows(of_x, x, gradient), roots.split(ROWS), strict=True):
            even = rows.float() * root[:, None]
            of_weight += (even * up).sum(0)
            scaled = up.float() * weight
            out.copy_((scaled - even * (scaled * even).mean(-1, keepdim=True)) * root[:, None])
        return of_x, of_weight.to(weight.dtype), None


def _rows(*tensors: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], ...]:
    return tuple(each.reshape(-1, each.shape[-1]).split(ROWS) for each in tensors)


def _attended(
    self: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    attn_mask_type: Any = None,
    attention_bias: Any = None,
    packed_seq_params: Any = None,
) -> torch.Tensor:
    """Attend within packed sequences: q[T, H, D], k and v[T, G, D] to [T, H * D]."""
    bounds = packed_seq_params.cu_seqlens_q_padded
    most = int(packed_seq_params.max_seqlen_q)
    made = flash_attn_varlen_func(
        query, key, value, bounds, bounds, most, most, softmax_scale=self.softmax_scale, causal=True
    )
    return made.flatten(1)


def _compile(function: Any = None, **options: Any) -> Any:
    """Return the entropy's product and its sum as one kernel; anything else as it is."""
    if function is None:
        return _compile
    if function.__name__ == "mul_reduce":
        return lambda a, b: torch.einsum("...v,...v->...", a, b).unsqueeze(-1)
    return function


def _as_grouped(module: Any) -> None:
    """Let Megatron-Bridge know experts that are modules of their own, as a CPU has them, by the names of grouped ones,
    which alone it gathers from ranks of experts."""
    from megatron.core import parallel_state

    named = module._megatron_local_name_to_global

    def name(models: Any, config: Any, param_name: str, vp_stage: int | None = None) -> str:
        made: str = named(models, config, param_name, vp_stage)
        if (found := EXPERT.fullmatch(made)) is None:
            return made
        own = config.num_moe_experts // parallel_state.get_expert_model_parallel_world_size()
        first = own * parallel_state.get_expert_model_parallel_rank()
        return f"{found[1]}.{found[3]}.weight{first + int(found[2])}"

    module._megatron_local_name_to_global = name


def _apart(module: Any, name: str) -> None:
    """Let gloo have copies of a collective's tensors, which are not counted: a profiler does not see when its threads
    give up what they have."""
    function = getattr(module, name)

    def collective(output: torch.Tensor, input: torch.Tensor, **options: Any) -> None:
        with record_function("copies for gloo"):
            made, given = torch.empty_like(output), input.clone()
        function(made, given, **options)
        output.copy_(made)

    setattr(module, name, collective)


class Megatron:
    """What Megatron's workers have in buffers of all weights, all gradients and a share of states."""

    def stand_in(self) -> None:
        """Put plain torch in the place of Transformer Engine's kernels."""
        core: Any = importlib.import_module("megatron.core.transformer.dot_product_attention")
        core.DotProductAttention.forward = _attended
        routing: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
        routing.te_general_gemm = None  # a name that 0.16.1 has with Transformer Engine alone, and asks for without
        torch.nn.functional.rms_norm = lambda x, shape, weight=None, eps=None: Norm.apply(x, weight, eps)
        torch.Tensor.record_stream = lambda self, stream: None
        torch.compile = _compile  # type: ignore[assignment]
        gpt: Any = importlib.import_module("megatron.bridge.models.gpt_provider")
        cpu: Any = sys.modules["sitecustomize"]
        finalize = gpt.GPTModelProvider.finalize

        def finalized(self: Any) -> None:
            cpu.switch(self, sys.modules["megatron_patches"].KERNELS)
            finalize(self)

        gpt.GPTModelProvider.finalize = finalized
        _as_grouped(importlib.import_module("megatron.bridge.models.conversion.model_bridge"))
        mappings: Any = importlib.import_module("megatron.core.tensor_parallel.mappings")
        _apart(mappings, "dist_all_gather_func")
        _apart(mappings, "dist_reduce_scatter_func")
        _apart(dist, "all_to_all_single")
        module, *_ = self.classes()
        module.get_device_name = lambda: GPU_NAME

    def classes(self) -> tuple[Any, type[Any], type[Any]]:
        from verl.workers.engine.megatron import transformer_impl

        return transformer_impl, transformer_impl.MegatronEngine, transformer_impl.MegatronEngineWithLMHead

    def move(self, moved: Any, engine: Any, device: str, **parts: bool) -> None:
        """Let verl copy the actor's weights, and give up their memory and that of gradients. The reference's are given
        up without a copy where both places are one, so they stay."""
        if not engine.engine_config.forward_only:
            moved(engine, device=GPU_NAME if isinstance(device, Device) else "cpu", **parts)

    def weights(self, engine: Any) -> int:
        frozen = (each for chunk in engine.module for each in chunk.parameters() if not each.requires_grad)
        return sum(each.param_data.untyped_storage().nbytes() for each in _buffers(engine)) + local(frozen)

    def gradients(self, engine: Any) -> int:
        return sum(each.grad_data.untyped_storage().nbytes() for each in _buffers(engine))

    def states(self, engine: Any) -> int:
        wide = [each for inner in _optimizers(engine) for each in _tensors(inner.shard_fp32_from_float16_groups)]
        return local(wide) + local(_moments(engine))

    def stepped(self, engine: Any) -> int:
        return sum(each.numel() for each in _moments(engine)) // 2

    def reference(self, engine: Any) -> int:
        return local(each for chunk in engine.module for each in chunk.parameters())

    def read(self, lengths: list[int]) -> int:
        """Return the tokens of sequences that are each filled up for the ranks that split them (models/mcore/util.py,
        preprocess_thd_engine)."""
        from megatron.core import parallel_state

        cp = parallel_state.get_context_parallel_world_size()
        parts = parallel_state.get_tensor_model_parallel_world_size() * cp * (2 if cp > 1 else 1)
        return sum(-(-each // parts) * parts for each in lengths)

    def rate(self, engine: Any) -> float:
        return float(engine.optimizer.param_groups[0]["lr"])


def _buffers(engine: Any) -> Iterator[Any]:
    for chunk in engine.module:
        yield from (*chunk.buffers, *chunk.expert_parallel_buffers)


def _optimizers(engine: Any) -> list[Any]:
    return list(getattr(engine.optimizer, "chained_optimizers", [engine.optimizer]))


def _moments(engine: Any) -> Iterator[torch.Tensor]:
    for inner in _optimizers(engine):
        for state in inner.optimizer.state.values():
            yield from (each for name, each in state.items() if name in ("exp_avg", "exp_avg_sq"))


def _tensors(groups: Any) -> Iterator[torch.Tensor]:
    for each in groups:
        yield from _tensors(each) if isinstance(each, list) else (each,)
