"""What a person says beside the configuration itself; it goes before what the files say."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.descriptor.model import ModelDescriptor


@dataclass(frozen=True, slots=True)
class Supplied:
    """model: of a configuration that describes none (DeepSpeed's), or that names a recipe. gpus: None: as its launcher
    says. seq_length, vocab_size: where the files do not say. megatron_version: None: the newest that has all options.
    prompt_length, response_length: tokens in the mean, of reinforcement learning.
    """

    model: ModelDescriptor | None = None
    gpus: int | None = None
    seq_length: int | None = None
    vocab_size: int | None = None
    megatron_version: str | None = None
    prompt_length: float | None = None
    response_length: float | None = None
