"""The learning rate of a schedule as Megatron-LM computes it (megatron/core/optimizer_param_scheduler.py, get_lr)."""

from __future__ import annotations

from math import cos, pi, sqrt

from symconfig.descriptor.training import WholeTraining


def rate(training: WholeTraining, sequences: float, batch: int) -> float:
    """Return the rate after so many sequences, of a run whose iterations have `batch` of them."""
    decay = (training.lr_decay_iters or training.train_iters) * batch
    warmup = training.lr_warmup_iters * batch
    if warmup and sequences <= warmup:
        return training.lr * sequences / warmup
    if training.lr_decay_style == "constant":
        return training.lr
    if sequences > decay:
        return training.min_lr
    if training.lr_decay_style == "inverse-square-root":
        return max(training.min_lr, training.lr * sqrt(max(warmup, 1) / max(sequences, 1)))
    return training.min_lr + _coefficient(training, sequences, warmup, decay, batch) * (training.lr - training.min_lr)


def _coefficient(training: WholeTraining, sequences: float, warmup: int, decay: int, batch: int) -> float:
    """Return the place between the lowest rate and the peak's."""
    done = (sequences - warmup) / (decay - warmup)
    if training.lr_decay_style == "linear":
        return 1.0 - done
    if training.lr_decay_style == "cosine":
        return 0.5 * (cos(pi * done) + 1.0)
    last = training.wsd_decay_iters * batch
    into = sequences - (decay - last)
    return 1.0 if into <= 0 else 1.0 - into / last  # linear, as the rendered files say
