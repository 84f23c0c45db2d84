"""Live bytes of LLaMA-Factory's KTO and model of rewards, on one CPU process. Run in its environment.

Usage: llamafactory_worker.py REQUEST.json ANSWER.json. The request has `config` (of a LlamaConfig), `tokens` and
`vocabularies`; the answer by vocabulary and phase the bytes at the peak, of two sequences.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from memory_worker import Live
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import is_torchaudio_available

is_torchaudio_available()  # it is not, and Transformers remembers that it asked
sys.modules["torchaudio"] = ModuleType("torchaudio")
from llamafactory.train.kto.trainer import CustomKTOTrainer  # noqa: E402
from llamafactory.train.rm.trainer import PairwiseTrainer  # noqa: E402
from trl import AutoModelForCausalLMWithValueHead  # noqa: E402

Counted = dict[str, int]


class Phased(CustomKTOTrainer):  # type: ignore[misc]
    """The trainer without what a run has around it, which counts each of its forwards."""

    def __init__(self, live: Live, reference: Any) -> None:
        self.live, self.ref_model, self.peaks = live, reference, dict[str, int]()
        self.beta = self.desirable_weight = self.undesirable_weight = 1.0
        self.calculate_KL, self.loss_type, self.ftx_gamma = True, "kto", 0.0
        self.accelerator = SimpleNamespace(device=torch.device("cpu"), gather_for_metrics=lambda value: value)

    def forward(self, model: Any, batch: Any, prefix: Any = "") -> Any:
        self.live.peak = self.live.now
        made = super().forward(model, batch, prefix)
        phase = "reference" if model is self.ref_model else "KL term" if prefix else "forward"
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.live.peak)
        return made


def of_answers(config: LlamaConfig, tokens: int) -> Counted:
    """Count a step of KTO on two answers, one of each label."""
    policy, reference = (AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16) for _ in range(2))
    words = torch.randint(0, config.vocab_size, (2, tokens))
    batch = {f"{prefix}{name}": words for prefix in ("", "kl_") for name in ("input_ids", "labels")}
    batch |= {f"{prefix}attention_mask": torch.ones_like(words) for prefix in ("", "kl_")}
    batch["kto_tags"] = torch.tensor([True, False])
    live = Live([*batch.values(), *(each for model in (policy, reference) for each in parts(model))])
    trainer = Phased(live, reference)
    with live:
        loss, _ = trainer.get_batch_loss_metrics(policy, batch)
        live.peak = live.now
        loss.backward()
    return {**trainer.peaks, "update": live.peak}


def of_rewards(config: LlamaConfig, tokens: int) -> Counted:
    """Count a step of a model of rewards on one pair."""
    model = AutoModelForCausalLMWithValueHead(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
    model.v_head.to(torch.bfloat16)
    model.is_peft_model = False  # as from_pretrained says
    words = torch.randint(0, config.vocab_size, (2, tokens))
    inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    live = Live([*inputs.values(), *parts(model)])
    with live:
        PairwiseTrainer.compute_loss(None, model, inputs).backward()
    return {"reward": live.peak}


def parts(model: Any) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def main(request_file: str, answer_file: str) -> None:
    request = json.loads(Path(request_file).read_text())
    answer = {}
    for vocabulary in request["vocabularies"]:
        config = LlamaConfig(**request["config"], vocab_size=vocabulary)
        answer[vocabulary] = of_answers(config, request["tokens"]) | of_rewards(config, request["tokens"])
    Path(answer_file).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
