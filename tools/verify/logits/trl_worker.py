"""Live bytes of TRL's head that makes no whole logits, on one CPU process. Run in its environment.

Usage: trl_worker.py REQUEST.json ANSWER.json. The request has `tokens`, `hidden_size` and `vocab_size`; the answer of
the forward alone and of one with its backward `kept` (bytes when the forward ends) and `peak`. What the kernels compute
is left out: on a GPU they make nothing beside what they are given.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from memory_worker import Live
from trl.kernels import chunked_logprob
from trl.trainer import utils


class Model(torch.nn.Module):
    """A model that is its head: its backbone hands out what it is given."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.head = torch.nn.Linear(hidden_size, vocab_size, bias=False, dtype=torch.bfloat16)
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace())

    def base_model(self, hidden: Any, **asked: Any) -> Any:
        return SimpleNamespace(last_hidden_state=hidden)

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head

    def forward(self, hidden: Any) -> Any:
        return self.head(hidden)


def counted(request: dict[str, int], gradients: bool) -> dict[str, int]:
    model = Model(request["vocab_size"], request["hidden_size"])
    utils.add_fused_lm_head(model, outputs=("log_probs", "entropy", "mean_logits", "is_top1") if gradients else ())
    shape = (1, request["tokens"] + 1)
    hidden = torch.zeros(*shape, request["hidden_size"], dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(shape, dtype=torch.int64)
    live = Live([model.head.weight, hidden, labels])
    with live, torch.set_grad_enabled(gradients):
        made = model(hidden, labels=labels, fused_lm_head=True).log_probs
        gc.collect()
        kept = live.now
        if gradients:
            made.sum().backward()
    return {"kept": kept, "peak": live.peak}


def main(request_file: str, answer_file: str) -> None:
    request = json.loads(Path(request_file).read_text())

    def nothing(*of: Any, **asked: Any) -> None:
        return None

    with (
        mock.patch.multiple(chunked_logprob, _forward_tile=nothing, _backward_tile=nothing, _addmm_fp32=nothing),
        mock.patch.object(utils, "_use_triton", return_value=True),  # what is scored alone, as on a GPU
    ):
        answer = {"forward": counted(request, gradients=False), "update": counted(request, gradients=True)}
    Path(answer_file).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
