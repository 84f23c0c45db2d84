"""Rules about scripts of reinforcement learning and fine-tuning: the facts, and checks that no row can say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.existing.launch.dialects import tuners
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.recover.rl.values import Values
from symconfig.existing.rules.rule import Finding, Language, Lookup, bases_of, rules_of

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


@dataclass(frozen=True, slots=True)
class RlFacts:
    """What rules may ask of a script of an RL or fine-tuning trainer, by its reader. gpus: all; None if not known."""

    reader: Script
    gpus: int | None

    @property
    def values(self) -> Values:
        return self.reader.values

    @property
    def replicas(self) -> int | None:
        """Return verl's replicas, its GPUs over the ranks of a copy; None if not known or not divisible."""
        workers, gpus = self.reader.workers, self.trained
        split = [f"actor.configuration.{name}" for name in (("cp", "tp", "pp") if workers.options else ("cp",))]
        ranks = math.prod(self.values.whole(name) or 1 for name in split)
        return gpus // ranks if workers.predicted and gpus is not None and gpus % ranks == 0 else None

    @property
    def trained(self) -> int | None:
        """Return nodes x GPUs per node of verl's trainer; None where either is not known."""
        nodes, each = (self.values.whole(f"world.{name}") for name in ("nodes", "gpus"))
        return None if nodes is None or each is None else nodes * each

    @property
    def longest(self) -> int | None:
        """Return the longest sequence in tokens: the trainer's limit, else prompt plus response; None if unknown."""
        if (whole := self.reader.trainer.whole) is not None and (tokens := self.values.whole(whole)) is not None:
            return tokens
        parts = [self.values.whole(name) for name in self.reader.trainer.longest]
        return sum(part for part in parts if part is not None) if all(parts) else None


# The ranks that share a sequence, by trainer.
_SHARING = {
    "verl": "actor.configuration.cp",
    "slime": "context_parallel_size",
    "openrlhf": "ds.tensor_parallel_size",
    "trl": "sequence_parallel_size",
    "ms-swift": "sequence_parallel_size",
}


def _ranks(facts: RlFacts) -> int:
    return facts.values.whole(_SHARING[facts.reader.trainer.name]) or 1


def _least_samples(facts: RlFacts) -> int | None:
    """Return what verl's samples of a step are a multiple of: replicas x micro-batch (Megatron), or all GPUs (FSDP)."""
    if facts.replicas is None:
        return None
    return facts.replicas * (facts.values.whole("actor.micro") or 1) if facts.reader.workers.options else facts.trained


def _generated(facts: RlFacts) -> int | None:
    """Return the responses generated at once: stated, else micro-batch x steps x data ranks; None if not known."""
    values, ranks = facts.values, _ranks(facts)
    steps = values.whole("steps_per_generation") or values.whole("gradient_accumulation_steps") or 1
    each = values.whole("per_device_train_batch_size")
    if facts.gpus is None or each is None or facts.gpus % ranks:
        return None
    return values.whole("generation_batch_size") or each * steps * facts.gpus // ranks


def _product(facts: RlFacts, *keys: str) -> int | None:
    """Return the product of whole numbers; None where one of them is not known."""
    numbers = [facts.values.whole(key) for key in keys]
    return None if None in numbers else math.prod(each or 0 for each in numbers)


# What follows from a script's values, by the names that rows give it.
DERIVED: Mapping[str, Callable[[RlFacts], Any]] = {
    "trainer": lambda facts: facts.reader.trainer.name,
    "gpus": lambda facts: facts.gpus,
    "complete": lambda facts: facts.reader.reading.complete,
    "key": lambda facts: Lookup(facts.values.name),
    "has_step": lambda facts: (
        (started := tuners.program(facts.reader.reading)) is not None and started.method in ("grpo", "rloo")
    ),
    "on_megatron": lambda facts: (started := tuners.program(facts.reader.reading)) is not None and started.megatron,
    "longest": lambda facts: facts.longest,
    "tokens_of_longest": lambda facts: facts.longest and -(-facts.longest // _ranks(facts)),
    "replicas": lambda facts: facts.replicas,
    "step_samples": lambda facts: _product(facts, "rl.prompts", "rl.samples"),
    "update_samples": lambda facts: _product(facts, "rl.update_prompts", "rl.samples"),
    "least_samples": _least_samples,
    "generated": _generated,
    "samples": lambda facts: _product(facts, "rollout_batch_size", "n_samples_per_prompt"),
    "update": lambda facts: facts.values.whole("global_batch_size"),  # not a fraction
    "samples_left": lambda facts: DERIVED["samples"](facts) % DERIVED["update"](facts),
    "actor_gpus": lambda facts: _product(facts, "actor.num_nodes", "actor.num_gpus_per_node"),
    "engine_tp": lambda facts: facts.values.whole("vllm.tensor_parallel_size") or 1,
    "engine_gpus": lambda facts: (
        (facts.values.whole("vllm.num_engines") or 0) * (facts.values.whole("vllm.tensor_parallel_size") or 1) or None
    ),
    "beside_actor": lambda facts: any(map(facts.values.switch, ("train.colocate_all", "train.colocate_actor_ref"))),
    "said": lambda facts: Lookup(lambda key: _value(facts, key)),
}


def _value(facts: RlFacts, name: str) -> Any:
    """Return a derived fact, else a key's value as number or text; True if a switch is on, None if off or absent."""
    if name in DERIVED:
        return DERIVED[name](facts)
    text = facts.values.text(name)
    if text is None or text.lower() in ("true", "false"):
        return facts.values.switch(name) or None
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


LANGUAGE: Language[RlFacts] = Language(
    _value,
    lambda facts, about, texts, row: facts.values.problem(about[0], file=facts.reader.reading.file, **texts),
    {"given": lambda facts, name: facts.values.given(name)},
    bases_of("rl"),
)
RULES = rules_of("rl", LANGUAGE, {})
