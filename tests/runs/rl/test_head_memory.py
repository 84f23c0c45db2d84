"""Live bytes of each logit where NeMo-RL makes log-probabilities of them, against what is predicted.

A head alone, of few features, so that its weight's gradient is nothing beside the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from symconfig.runs.rl.logits import NEMO, NEMO_DTENSOR, LogitBytes

torch = pytest.importorskip("torch")
from tests.runs.rl.memory_worker import Live  # noqa: E402

TOKENS, FEATURES = 512, 2
# Of the planner's own loss: the fp32 copy of Megatron-LM's, and of PyTorch's cross-entropy the 16-bit logits, their
# fp32 copy and its gradient (`graph.implementation.Loss`; test_memory.py counts the latter).
OWN = {"megatron": 4.0, "fsdp": 10.0}


class Distributed(torch.autograd.Function):
    """Log-probabilities of one rank of a vocabulary, step by step as NeMo-RL's DistributedLogprob makes them."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        logits = logits.to(torch.float32)
        less = logits - logits.amax(-1, keepdim=True)
        made = less - less.exp().sum(-1, keepdim=True).log()
        del less
        ctx.save_for_backward(made.exp(), labels)
        return made.gather(-1, labels)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        shares, labels = ctx.saved_tensors
        return shares.neg().mul_(gradient).scatter_add_(-1, labels, gradient), None


def by_megatron(logits: Any, labels: Any) -> Any:
    return Distributed.apply(logits, labels)


def by_fsdp(logits: Any, labels: Any) -> Any:
    return logits.log_softmax(-1).gather(-1, labels)


def most(way: Callable[[Any, Any], Any], vocabulary: int, update: bool) -> int:
    """Count the live bytes at the peak of a head's forward, and of its backward if it is an update."""
    weight = torch.randn(vocabulary, FEATURES, dtype=torch.bfloat16, requires_grad=update)
    hidden = torch.randn(1, TOKENS, FEATURES, dtype=torch.bfloat16, requires_grad=update)
    labels = torch.randint(0, vocabulary, (1, TOKENS, 1))
    live = Live([weight, hidden, labels])
    with live, torch.set_grad_enabled(update):
        logits = (hidden @ weight.T).float()
        loss = way(logits, labels).mean()
        del logits
        if update:
            loss.backward()
    return live.peak


@pytest.mark.parametrize(
    ("way", "predicted", "own"),
    [(by_megatron, NEMO, OWN["megatron"]), (by_fsdp, NEMO_DTENSOR, OWN["fsdp"])],
    ids=["megatron", "fsdp"],
)
def test_nemo_rl_has_so_many_bytes_of_each_logit(
    way: Callable[[Any, Any], Any], predicted: LogitBytes, own: float
) -> None:
    each = {update: (most(way, 3072, update) - most(way, 1024, update)) / (TOKENS * 2048) for update in (False, True)}
    assert each[False] == pytest.approx(predicted.forward, rel=0.01)
    assert each[True] == pytest.approx(own + predicted.update, rel=0.01)
