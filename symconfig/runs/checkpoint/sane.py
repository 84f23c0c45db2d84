"""What a checkpoint says of its run, held against what a run can have, before anything is concluded from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite

from symconfig.errors import InputError, Problem
from symconfig.runs.checkpoint.folder import Checkpoint
from symconfig.runs.checkpoint.pickled import Plain

RANKS, SIZE, COUNT = 2**24, 2**40, 2**62  # at most: of a parallel degree, of one dimension, of what a run has seen
# Names of numbers and the least they can be; the degrees are at least 1.
SIZES = {
    "num_layers": 1,
    "num_hidden_layers": 1,
    "hidden_size": 1,
    "ffn_hidden_size": 1,
    "num_attention_heads": 1,
    "num_query_groups": 1,
    "num_experts": 0,
    "mtp_num_layers": 0,
    "vocab_size": 1,
    "padded_vocab_size": 1,
    "r": 1,
    "max_position_embeddings": 1,
    "seq_length": 1,
    "micro_batch_size": 1,
    "global_batch_size": 1,
    "train_batch_size": 1,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
}
COUNTS = (
    "train_iters",
    "consumed_train_samples",
    "global_steps",
    "global_samples",
    "skipped_steps",
    "step",
    "sequences",
)


def checked(checkpoint: Checkpoint) -> Checkpoint:
    """Check every number of a checkpoint, and return it.

    Raises InputError for every number that no run can have: the file is damaged, or was made up.
    """
    problems = [
        *_outside(checkpoint.degrees, dict.fromkeys(checkpoint.degrees, 1), RANKS),
        *_outside(checkpoint.says, SIZES, SIZE),
        *_outside(checkpoint.says, dict.fromkeys(COUNTS, 0), COUNT),
        *_outside({"iteration": checkpoint.iteration}, {"iteration": 0}, COUNT),
        *_outside(checkpoint.says, {"zero_stage": 0}, 3),
    ]
    rate = checkpoint.says.get("lr")
    if isinstance(rate, int | float) and not (isfinite(rate) and rate >= 0):
        problems.append(("lr", str(rate), "a finite learning rate, at least 0"))
    if problems:
        raise InputError(
            [
                Problem("says of its run what none can have", file=str(checkpoint.data), field=name, got=got, need=need)
                for name, got, need in problems
            ]
        )
    return checkpoint


def _outside(facts: Mapping[str, Plain], least: Mapping[str, int], most: int) -> Iterator[tuple[str, str, str]]:
    """Name, value and what it needs. Words and nothing at all, as for experts of a dense model, are no numbers."""
    for name, low in least.items():
        value = facts.get(name)
        if isinstance(value, str) or value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= most:
            huge = isinstance(value, int) and value.bit_length() > 128
            got = f"a number of {value.bit_length()} bits" if isinstance(value, int) and huge else str(value)
            yield name, got, f"a whole number from {low} to {most}"
