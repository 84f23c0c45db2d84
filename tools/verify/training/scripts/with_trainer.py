"""A training script with Transformers' Trainer, as short as a person would write it.

Its arguments are TrainingArguments; MODEL is a folder of weights, DATA a file of token ids, ADAPTER an
adapter_config.json if there is one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


class Said(TrainerCallback):
    """A line for each step: its loss, the learning rate that it had, the sequences of all ranks."""

    def __init__(self, sequences: int) -> None:
        self.sequences, self.epoch, self.rate = sequences, 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **more: Any) -> None:
        self.rate = optimizer.param_groups[0]["lr"]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if state.is_world_process_zero and "loss" in logs:
            seen, self.epoch = round((logs["epoch"] - self.epoch) * self.sequences), logs["epoch"]
            print("\nlogged", json.dumps(logs | {"learning_rate": self.rate, "sequences": seen}), flush=True)


class InOrder(Trainer):
    """Without shuffling."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main() -> None:
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"], dtype=torch.bfloat16)
    if "ADAPTER" in os.environ:
        import peft

        torch.manual_seed(args.seed)
        lora = peft.LoraConfig.from_pretrained(os.environ["ADAPTER"])
        model = peft.get_peft_model(model, lora, autocast_adapter_dtype=False)
    rows = [json.loads(line)["input_ids"] for line in Path(os.environ["DATA"]).read_text().splitlines()]
    sequences = [{"input_ids": row, "labels": row, "position_ids": list(range(len(row)))} for row in rows]
    every = sequences * args.max_steps  # one epoch: under Ulysses a second one would end at its start
    InOrder(model=model, args=args, train_dataset=every, callbacks=[Said(len(every))]).train()


if __name__ == "__main__":
    main()
