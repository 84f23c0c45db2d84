"""A checkpoint's folder: what it holds, and of which run, without unpickling anything in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from symconfig.descriptor.job import Backend
from symconfig.errors import InputError, Problem
from symconfig.runs.checkpoint.pickled import MAX_BYTES, Plain
from symconfig.runs.checkpoint.table import table

# What `read` looks for, in the words of an error.
LOOKED_FOR = (
    "Megatron-LM's latest_checkpointed_iteration.txt or a folder iter_0000100, DeepSpeed's latest or a folder with "
    "mp_rank_00_model_states.pt, a universal checkpoint's zero/, Hugging Face's config.json beside safetensors, or "
    "PEFT's adapter_config.json"
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, as its folder has it.

    kind: as `kinds` names it, with the optimizer's part where the folder shows it. folder: as it was named; data: where
    the tensors lie. iteration: None where it does not say (weights only, a release). since, until: releases of the
    framework that write so, as far as that shows. degrees: tp, pp, ep, dp and world of the run that saved it, as far as
    files or their names say. says: arguments of that run, by the framework's own names. size_bytes: of all files in
    `data`. notes: what a person should know.
    """

    kind: str
    folder: Path
    data: Path
    size_bytes: int
    iteration: int | None = None
    since: str | None = None
    until: str | None = None
    degrees: Mapping[str, int] = field(default_factory=dict)
    says: Mapping[str, Plain] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def frameworks(self) -> tuple[Backend, ...]:
        """Return the frameworks whose checkpoint it can be."""
        return table().formats[self.kind.partition(":")[0]].framework

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "folder": str(self.folder),
            "data": str(self.data),
            "size_bytes": self.size_bytes,
            "iteration": self.iteration,
            "since": self.since,
            "until": self.until,
            "degrees": dict(self.degrees),
            "says": dict(self.says),
            "notes": list(self.notes),
        }


def size_bytes(folder: Path) -> int:
    """Sum the sizes of all files below; links are not followed."""
    return sum((Path(root) / name).lstat().st_size for root, _, names in os.walk(folder) for name in names)


def shown(names: list[str]) -> str:
    """List some names of many, in an error."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def numbers(says: Mapping[str, Plain], names: Mapping[str, str]) -> dict[str, int]:
    """Return those entries that are whole numbers, by other names."""
    return {
        ours: value
        for ours, theirs in names.items()
        if isinstance(value := says.get(theirs), int) and not isinstance(value, bool)
    }


def text(path: Path) -> str:
    """Read at most MAX_BYTES of a file; what is no UTF-8 is replaced."""
    with path.open("rb") as stream:
        return stream.read(MAX_BYTES).decode("utf-8", errors="replace")


def json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise InputError for anything else."""
    try:
        value = json.loads(text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", file=str(path)) from None
    if not isinstance(value, dict):
        raise InputError("holds no keys", file=str(path), got=type(value).__name__)
    return value


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
