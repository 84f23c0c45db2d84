"""Rules about scripts of reinforcement learning and fine-tuning: the facts, and checks that no row can say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.existing.launch.dialects import tuners
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.rules.rule import Finding, Language, Lookup, bases_of, rules_of
from symconfig.formats.openrlhf import OPENRLHF

# Rules about Megatron-LM that do not hold of workers of such a trainer: it cuts the batch and the sequences itself,
# gives its workers an environment of its own, shares the allocator with an engine, balances no experts, and takes the
# all-to-all where it is told to gather tokens (slime/backends/megatron_utils/arguments.py, validate_args).
_NOT_HERE = words(
    """
    batch-not-said batch-over-replicas missing-option environment-advised environment-missing environment-wrong
    repeated-option vocabulary-padded gradients-not-overlapped experts-not-balanced gathered-tokens
    """
)


def holds(finding: Finding) -> bool:
    """Return whether a rule about Megatron-LM also applies to workers of an RL or fine-tuning trainer."""
    return finding.rule not in _NOT_HERE


# The ranks that share a sequence, by trainer.
_SHARING = {
    "verl": "actor.configuration.cp",
    "slime": "context_parallel_size",
    "openrlhf": "ds.tensor_parallel_size",
    "trl": "sequence_parallel_size",
    "ms-swift": "sequence_parallel_size",
}


def _ranks(reader: Script) -> int:
    return reader.values.whole(_SHARING[reader.trainer.name]) or 1


def _product(*keys: str) -> Callable[[Script], int | None]:
    """Return a function that gives the product of whole numbers; None where one of them is not known."""

    def product(reader: Script) -> int | None:
        numbers = [reader.values.whole(key) for key in keys]
        return None if None in numbers else math.prod(each or 0 for each in numbers)

    return product


_trained = _product("world.nodes", "world.gpus")  # verl's GPUs


def _replicas(reader: Script) -> int | None:
    """Return verl's replicas, its GPUs over the ranks of a copy; None if not known or not divisible."""
    workers, gpus = reader.workers, _trained(reader)
    split = [f"actor.configuration.{name}" for name in (("cp", "tp", "pp") if workers.options else ("cp",))]
    ranks = math.prod(reader.values.whole(name) or 1 for name in split)
    return gpus // ranks if workers.predicted and gpus is not None and gpus % ranks == 0 else None


def _longest(reader: Script) -> int | None:
    """Return the tokens of the longest sequence: OpenRLHF's limit, others' prompt plus response; None if unknown."""
    names = ("rl.longest",) if reader.trainer is OPENRLHF else ("rl.prompt_length.max", "rl.response_length.max")
    parts = [reader.values.whole(name) for name in names]
    return sum(part for part in parts if part is not None) if all(parts) else None


def _least_samples(reader: Script) -> int | None:
    """Return what verl's samples of a step are a multiple of: replicas x micro-batch (Megatron), or all GPUs (FSDP)."""
    if (replicas := _replicas(reader)) is None:
        return None
    return replicas * (reader.values.whole("actor.micro") or 1) if reader.workers.options else _trained(reader)


def _generated(reader: Script) -> int | None:
    """Return the responses generated at once: stated, else micro-batch x steps x data ranks; None if not known."""
    values, ranks = reader.values, _ranks(reader)
    steps = values.whole("steps_per_generation") or values.whole("gradient_accumulation_steps") or 1
    each = values.whole("per_device_train_batch_size")
    if not reader.gpus or each is None or reader.gpus % ranks:
        return None
    return values.whole("generation_batch_size") or each * steps * reader.gpus // ranks


# What follows from a script's values, by the names that rows give it.
DERIVED: Mapping[str, Callable[[Script], Any]] = {
    "trainer": lambda reader: reader.trainer.name,
    "gpus": lambda reader: reader.gpus or None,
    "complete": lambda reader: reader.reading.complete,
    "key": lambda reader: Lookup(reader.values.name),
    "has_step": lambda reader: (
        (started := tuners.program(reader.reading)) is not None and started.method in ("grpo", "rloo")
    ),
    "on_megatron": lambda reader: (started := tuners.program(reader.reading)) is not None and started.megatron,
    "longest": _longest,
    "tokens_of_longest": lambda reader: (longest := _longest(reader)) and -(-longest // _ranks(reader)),
    "replicas": _replicas,
    "step_samples": _product("rl.prompts", "rl.samples"),
    "update_samples": _product("rl.update_prompts", "rl.samples"),
    "least_samples": _least_samples,
    "generated": _generated,
    "update": lambda reader: reader.values.whole("global_batch_size"),  # not a fraction
    "samples_left": lambda reader: DERIVED["step_samples"](reader) % DERIVED["update"](reader),
    "actor_gpus": _product("actor.num_nodes", "actor.num_gpus_per_node"),
    "engine_tp": lambda reader: reader.values.whole("vllm.tensor_parallel_size") or 1,
    "engine_gpus": _product("vllm.num_engines", "vllm.tensor_parallel_size"),
    "beside_actor": lambda reader: any(map(reader.values.switch, ("train.colocate_all", "train.colocate_actor_ref"))),
    "said": lambda reader: Lookup(lambda key: _value(reader, key)),
}


def _value(reader: Script, name: str) -> Any:
    """Return a derived fact, else a key's value as number or text; True if a switch is on, None if off or absent."""
    if name in DERIVED:
        return DERIVED[name](reader)
    text = reader.values.text(name)
    if text is None or text.lower() in ("true", "false"):
        return reader.values.switch(name) or None
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


LANGUAGE: Language[Script] = Language(
    _value,
    lambda reader, about, texts, row: reader.problem(about[0], **texts),
    {"given": lambda reader, name: reader.values.given(name)},
    bases_of("rl"),
)
RULES = rules_of("rl", LANGUAGE, {})
