"""How the program that a target starts counts a run that goes on from a checkpoint.

megatron: iterations go on from the checkpoint's, and the scheduler counts sequences (replan.schedule). sequences: the
same with the checkpoint's own schedule (ms-swift, megatron/utils/megatron_lm_utils.py@4.6.0). deepspeed:
train.py numbers its steps anew by the sequences that were seen. steps: steps go on from the checkpoint's, and the
scheduler counts them, too: Transformers' Trainer (trainer.py, _inner_training_loop: global_step of trainer_state.json,
max_steps in all), Accelerate's scripts, LLaMA-Factory, which is a Trainer, torchtitan (train.py, Trainer.state_dict).
"""

from __future__ import annotations

from typing import Literal

from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.render import target_of

Counting = Literal["megatron", "sequences", "deepspeed", "steps"]
STEPS = ("transformers", "accelerate", "llamafactory", "torchtitan")  # targets


def counting(model: ModelDescriptor, job: Job) -> Counting:
    """Of the job's target, or its framework's own. Raises InputError for a target that there is none of."""
    name = target_of(model, job).name
    if name in STEPS:
        return "steps"
    return "deepspeed" if name == "deepspeed" else "sequences" if name == "ms-swift" else "megatron"
