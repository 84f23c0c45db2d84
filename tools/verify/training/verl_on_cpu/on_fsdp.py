"""verl's workers of FSDP 2 on a CPU: what is stood in for, and where their shards are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from counting import local
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import modeling_flash_attention_utils as flash

ROWS = 4  # of logits in fp32 at once, where a GPU's kernel has them in registers


class Entropy(torch.autograd.Function):
    """The entropy of logits[T, V], whose gradient alone is beside them: what torch.compile makes of verl's."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits)
        return torch.cat([_entropy(rows) for rows in logits.split(ROWS)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (logits,) = ctx.saved_tensors
        made = torch.empty_like(logits)
        for out, rows, scale in zip(made.split(ROWS), logits.split(ROWS), gradient.split(ROWS), strict=True):
            part = rows.detach().requires_grad_()
            with torch.enable_grad():
                out.copy_(torch.autograd.grad(_entropy(part), part, scale)[0])
        return made


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=logits.float()).entropy()


class Fsdp:
    """What FSDP's workers have in shards of tensors, and nothing of on the host."""

    def stand_in(self) -> None:
        """Put plain torch in the place of flash attention and of the entropy's kernel."""
        flash.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2].update(
            general_availability_check=lambda *given: True,
            pkg_availability_check=lambda *given, **options: True,
            supported_devices=((lambda: True, "cuda"),),
        )
        flash.is_flash_attn_2_available = lambda *given, **options: True
        torch.compile = lambda function=None, **options: Entropy.apply  # type: ignore[assignment]
        module, *_ = self.classes()
        module.CPUOffloadPolicy = lambda pin_memory: CPUOffloadPolicy(pin_memory=False)

    def classes(self) -> tuple[Any, type[Any], type[Any]]:
        from verl.workers.engine.fsdp import transformer_impl

        return transformer_impl, transformer_impl.FSDPEngine, transformer_impl.FSDPEngineWithLMHead

    def move(self, moved: Any, engine: Any, device: str, **parts: bool) -> None:
        """Let verl call the host what it will: nothing moves."""
        moved(engine, device=device, **parts)

    def weights(self, engine: Any) -> int:
        return local(engine.module.parameters())

    def gradients(self, engine: Any) -> int:
        return local(each.grad for each in engine.module.parameters())

    def states(self, engine: Any) -> int:
        return local(_moments(engine))

    def stepped(self, engine: Any) -> int:
        return sum(each.to_local().numel() for each in _moments(engine)) // 2

    def reference(self, engine: Any) -> int:
        return local(engine.module.parameters())

    def read(self, lengths: list[int]) -> int:
        return sum(lengths)

    def rate(self, engine: Any) -> float:
        (rate,) = engine.lr_scheduler.get_last_lr()
        return float(rate)


def _moments(engine: Any) -> Iterator[Any]:
    for state in engine.optimizer.state.values():
        yield from (each for each in state.values() if each.dim())
