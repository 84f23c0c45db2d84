"""How the programs that train count a run that goes on from a checkpoint: iterations, sequences, the schedule's place.

A target of render/ names the one of the program that it starts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How a program goes on.

    renumbers: steps are numbered anew by the sequences that the checkpoint has seen; else they go on from its own.
    schedules_steps: the learning rate's scheduler counts steps; else sequences.
    own_schedule: the schedule is the checkpoint's, whatever the files say.
    override: the option without which the program stops where its schedule is not the checkpoint's; "": it needs none.
    spans: data are laid out for the last iteration x batch, and end too early behind another batch.
    """

    renumbers: bool = False
    schedules_steps: bool = False
    own_schedule: bool = False
    override: str = ""
    spans: bool = False


# Megatron-LM counts iterations from the checkpoint on, but its scheduler counts sequences (training.py,
# get_optimizer_param_scheduler: lr_decay_steps = lr_decay_iters x global_batch_size; checkpointing.py keeps
# consumed_train_samples), and asserts that a checkpoint's schedule is that of the arguments, unless told which one
# counts (megatron/core/optimizer_param_scheduler.py, _check_and_set); core_v0.12 to core_v0.19.
MEGATRON = Counting(override="--override-opt_param-scheduler", spans=True)
# ms-swift 4.6.0 does the same with the checkpoint's own schedule (megatron/utils/megatron_lm_utils.py).
CHECKPOINTS_OWN = Counting(own_schedule=True)
# train.py of DeepSpeed's files.
RENUMBERED = Counting(renumbers=True)
# Transformers' Trainer (trainer.py, _inner_training_loop: global_step of trainer_state.json, and max_steps in all),
# Accelerate's scripts, LLaMA-Factory, which is a Trainer.
STEPS = Counting(schedules_steps=True)
