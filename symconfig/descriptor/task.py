"""What is done with a model: the tasks of a job. Imported with every command line."""

from __future__ import annotations

from typing import Literal, get_args

Task = Literal["pretrain", "sft", "lora", "dpo", "kto", "reward", "rl"]
TASKS: tuple[Task, ...] = get_args(Task)
PREFERRING: tuple[Task, ...] = ("dpo", "kto", "reward")  # those of a section preference
WITH_OR_WITHOUT: tuple[Task, ...] = (*PREFERRING, "rl")  # tasks that train adapters as they train whole models
PLAIN: tuple[Task, ...] = ("pretrain", "sft", "lora")  # those that a job says in no section of their own
