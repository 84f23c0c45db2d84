"""A training script with an Accelerator: the loop that REPORT.md of the format asks for, by the plan beside it.

MODEL is a folder of weights, DATA a file of token ids, PLAN the plan.json, ADAPTER an adapter_config.json if there is
one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, get_scheduler, set_seed


def main() -> None:
    plan = json.loads(Path(os.environ["PLAN"]).read_text())
    training, batch = plan["inputs"]["job"]["training"], plan["best"]["batch"]
    set_seed(training["seed"])
    accelerator = Accelerator()
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"], dtype=torch.bfloat16)
    if "ADAPTER" in os.environ:
        import peft

        torch.manual_seed(training["seed"])
        lora = peft.LoraConfig.from_pretrained(os.environ["ADAPTER"])
        model = peft.get_peft_model(model, lora, autocast_adapter_dtype=False)
    rows = [json.loads(line)["input_ids"] for line in Path(os.environ["DATA"]).read_text().splitlines()]
    sequences: Any = [
        {"input_ids": row, "labels": row, "position_ids": torch.arange(len(row))} for row in torch.tensor(rows)
    ]
    # Within one epoch: under Ulysses an Accelerator takes the last micro-batches of one for a step of their own.
    loader: Any = DataLoader(sequences * (training["train_iters"] + 1), batch_size=batch["micro"])
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in trained if weight.dim() > 1], "weight_decay": training["weight_decay"]},
        {"params": [weight for weight in trained if weight.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=training["lr"],
        betas=(training["adam_beta1"], training["adam_beta2"]),
        eps=training["adam_eps"],
    )
    # Of a schedule that it has prepared, an Accelerator makes a step for every process at each optimizer step.
    ranks = accelerator.num_processes
    schedule = get_scheduler(
        "cosine_with_min_lr",
        optimizer,
        training["lr_warmup_iters"] * ranks,
        training["train_iters"] * ranks,
        {"min_lr": training["min_lr"]},
    )
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    parallel = plan["best"]["parallel"]
    together = parallel["tp"] * parallel["cp"]  # ranks that work on the same sequences
    loop(accelerator, model, optimizer, loader, schedule, training["train_iters"], together)


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The model's own; with Ulysses the mean over the tokens of all ranks that share the sequences."""
    outputs = model(**batch)
    if "shift_labels" not in batch:
        return outputs.loss
    from deepspeed.runtime.sequence_parallel.parallel_state_sp import get_sequence_parallel_group

    labels, group = batch["shift_labels"], get_sequence_parallel_group()
    own = torch.nn.functional.cross_entropy(outputs.logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
    total = torch.distributed.nn.functional.all_reduce(own, group=group)
    tokens = (labels != -100).sum()
    torch.distributed.all_reduce(tokens, group=group)
    return total / tokens


def loop(
    accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, schedule: Any, steps: int, together: int
) -> None:
    step = seen = 0
    losses: list[torch.Tensor] = []
    while step < steps:
        for batch in loader:
            rate = schedule.get_last_lr()[0]
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.detach().float())
            seen += int(accelerator.reduce(torch.tensor(float(len(batch["input_ids"]))), "sum"))
            if accelerator.sync_gradients:
                step += 1
                mean = accelerator.reduce(torch.stack(losses).mean(), "mean").item()
                said = {"loss": mean, "learning_rate": rate, "sequences": seen / together}
                said["grad_norm"] = float(model.get_global_grad_norm())
                accelerator.print("logged", json.dumps(said), flush=True)
                losses, seen = [], 0
            if step == steps:
                return


if __name__ == "__main__":
    main()
