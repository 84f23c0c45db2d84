"""Rules about scripts of reinforcement learning and fine-tuning: the facts, and checks that no row can say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.launch.dialects import tuners, verl
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.rl.values import OPENRLHF, SLIME, Values, Workers, of_verl
from symconfig.existing.rules.rule import Finding, Language, Lookup, bases_of, rules_of
from symconfig.formats.tuners import SWIFT, Trainer

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
    """What rules may ask of a script of an RL or fine-tuning trainer. values: the trainer's keys. gpus: all GPUs; None
    if not known.
    """

    reading: Reading
    values: Values
    gpus: int | None = None

    @property
    def trainer(self) -> Trainer:
        return self.values.trainer

    def problem(self, key: str, what: str, got: object = None, need: object = None, hint: str | None = None) -> Problem:
        """Return a problem about the trainer's key, at its place in the script, else in the script's file."""
        shown = [None if each is None else str(each) for each in (got, need)]
        return self.values.problem(key, what, self.reading.file, got=shown[0], need=shown[1], hint=hint)

    @property
    def replicas(self) -> int | None:
        """Return verl's replicas, its GPUs over the ranks of a copy; None if not known or not divisible."""
        workers, gpus = self.workers, self.trained
        split = [f"actor.configuration.{name}" for name in (("cp", "tp", "pp") if workers.options else ("cp",))]
        ranks = math.prod(self.values.whole(name) or 1 for name in split)
        return gpus // ranks if workers.predicted and gpus is not None and gpus % ranks == 0 else None

    @property
    def workers(self) -> Workers:
        """Return the kind of verl's training workers, such as FSDP or Megatron."""
        return of_verl(verl.workers(self.reading.settings))

    @property
    def trained(self) -> int | None:
        """Return nodes x GPUs per node of verl's trainer; None where either is not known."""
        nodes, each = (self.values.whole(f"world.{name}") for name in ("nodes", "gpus"))
        return None if nodes is None or each is None else nodes * each

    @property
    def longest(self) -> int | None:
        """Return the longest sequence in tokens: the trainer's limit, else prompt plus response; None if unknown."""
        if (whole := self.trainer.whole) is not None and (tokens := self.values.whole(whole)) is not None:
            return tokens
        parts = [self.values.whole(name) for name in self.trainer.longest]
        return sum(part for part in parts if part is not None) if all(parts) else None


# What switches packing by tokens on, the ranks that share a sequence, and the tokens of a micro-batch on each.
_PACKED = {
    SLIME: ("use_dynamic_batch_size", "context_parallel_size", "max_tokens_per_gpu"),
    OPENRLHF: ("train.dynamic_batch_enable", "ds.tensor_parallel_size", "train.max_tokens_per_gpu"),
}
_FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")


def tokens_below_longest(facts: RlFacts) -> Iterator[Problem]:
    """Yield a problem for each phase of verl whose tokens per micro-batch x cp are below the longest sequence."""
    longest, values = facts.longest, facts.values
    if longest is None:
        return
    degree = values.whole("actor.configuration.cp") or 1
    for phase in ("actor", "rollout", "reference"):
        dynamic, tokens = f"{phase}.dynamic", f"{phase}.tokens"
        room = values.whole(tokens)
        stated = values.given(tokens) or phase == "actor"
        if values.switch(dynamic) and stated and room is not None and room * degree < longest:
            need = f"{-(-longest // degree):,} or more: prompt and response are {longest:,} tokens" + (
                f" on {degree} ranks" if degree > 1 else ""
            )
            yield facts.problem(tokens, "has no room for the longest sequence", f"{room:,}", need)


def longest_beyond_tokens(facts: RlFacts) -> Iterator[Problem]:
    """Yield one problem if the tokens per micro-batch of all ranks are below the longest sequence."""
    dynamic, degree, tokens = _PACKED[facts.trainer]
    longest, room, ranks = facts.longest, facts.values.whole(tokens), facts.values.whole(degree) or 1
    if longest is not None and room is not None and facts.values.switch(dynamic) and room * ranks < longest:
        got, need = f"{room:,} on {ranks} ranks" if ranks > 1 else f"{room:,}", f"{-(-longest // ranks):,} or more"
        yield facts.problem(tokens, "is exceeded by the longest sequence", got, need)


def micro_batch_not_said(facts: RlFacts) -> Iterator[Problem]:
    """Yield a problem for actor and rollout without a micro-batch or dynamic batches, if all was read."""
    if not facts.reading.complete:
        return
    for phase in ("actor", "rollout"):
        stated = facts.values.given(f"{phase}.micro") or facts.values.given(f"{phase}.micro_of_all")
        if not (facts.values.switch("actor.dynamic") or stated):
            off = facts.values.name("actor.dynamic")
            yield facts.problem(f"{phase}.micro", f"is missing, and {off} is off")


def samples_over_gpus(facts: RlFacts) -> Iterator[Problem]:
    """Yield a problem if a step's samples are no multiple of replicas x micro-batch (Megatron), or of the GPUs (FSDP).

    Nothing with dynamic batches, or if any of the numbers is not known.
    """
    values, micro = facts.values, "actor.micro"
    samples, replicas = _samples(facts, "rl.prompts"), facts.replicas
    if samples is None or replicas is None or facts.trained is None or values.switch("actor.dynamic"):
        return
    least = replicas * (values.whole(micro) or 1) if facts.workers.options else facts.trained
    if samples % least:
        got = f"{samples} samples with rollout.n"
        yield facts.problem("rl.prompts", "does not divide over the GPUs", got, f"a multiple of {least}")


def mini_batch_over_replicas(facts: RlFacts) -> Iterator[Problem]:
    key, replicas = "rl.update_prompts", facts.replicas
    samples = _samples(facts, key)
    if samples is not None and replicas is not None and samples % replicas:
        got = f"{samples} samples with rollout.n"
        yield facts.problem(key, "does not divide over the replicas", got, f"a multiple of {replicas}")


def _samples(facts: RlFacts, key: str) -> int | None:
    """Return the prompts given by `key` times the samples per prompt; None where either is not known."""
    prompts, each = facts.values.whole(key), facts.values.whole("rl.samples")
    return None if prompts is None or each is None else prompts * each


def groups_not_whole(facts: RlFacts) -> Iterator[Problem]:
    """Yield a problem if the responses generated at once are not a multiple of num_generations.

    They are generation_batch_size, else micro-batch x steps_per_generation (or accumulation) x data ranks. Only for
    GRPO and RLOO without Megatron.
    """
    values, started = facts.values, tuners.program(facts.reading)
    if facts.gpus is None or started is None or started.megatron or not _has_step(facts):
        return
    samples = values.whole("num_generations")
    each, steps = values.whole("per_device_train_batch_size"), values.whole("steps_per_generation")
    steps = steps or values.whole("gradient_accumulation_steps") or 1
    sharing = values.whole("sequence_parallel_size") or 1
    if samples is None or each is None or facts.gpus % sharing:
        return
    generated = values.whole("generation_batch_size") or each * steps * facts.gpus // sharing
    if generated % samples:
        got = f"{samples} of {generated:,} responses"
        yield facts.problem("num_generations", "does not divide what is generated at once", got)


def engine_awake_while_training(facts: RlFacts) -> Iterator[Problem]:
    """Yield a problem if a vLLM engine on the training GPUs of a GRPO or RLOO step does not sleep while they train."""
    values = facts.values
    apart = values.text("vllm_mode") == "server" or values.given("vllm_server_host")
    sleeps = values.switch("vllm_enable_sleep_mode") or (values.number("sleep_level") or 0) > 0
    if _has_step(facts) and values.switch("use_vllm") and not apart and not sleeps:
        key = "sleep_level" if facts.trainer is SWIFT else "vllm_enable_sleep_mode"
        share = values.number("vllm_gpu_memory_utilization")
        yield facts.problem(key, "is off, and the engine keeps its share of each GPU", share)


def packed_without_flash_attention(facts: RlFacts) -> Iterator[Problem]:
    values, started = facts.values, tuners.program(facts.reading)
    kernel = values.text("attn_implementation")
    on = next((name for name in ("packing", "padding_free") if values.switch(name)), None)
    if on is not None and started is not None and not started.megatron and kernel not in _FLASH:
        yield facts.problem(on, "needs flash attention", kernel, f"attn_impl: {_FLASH[0]}")


def _has_step(facts: RlFacts) -> bool:
    """Return whether a fine-tuning program runs an RL step (GRPO or RLOO)."""
    started = tuners.program(facts.reading)
    return started is not None and started.method in ("grpo", "rloo")


def _product(facts: RlFacts, *keys: str) -> int | None:
    """Return the product of whole numbers; None where one of them is not known."""
    numbers = [facts.values.whole(key) for key in keys]
    return None if None in numbers else math.prod(each or 0 for each in numbers)


# What follows from a script's values, by the names that rows give it.
DERIVED: Mapping[str, Callable[[RlFacts], Any]] = {
    "trainer": lambda facts: facts.trainer.name,
    "gpus": lambda facts: facts.gpus,
    "has_step": _has_step,
    "samples": lambda facts: _product(facts, "rollout_batch_size", "n_samples_per_prompt"),
    "samples_left": lambda facts: DERIVED["samples"](facts) % facts.values.whole("global_batch_size"),
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
    lambda facts, about, texts, row: facts.problem(about[0], **texts),
    {"given": lambda facts, name: facts.values.given(name)},
    bases_of("rl"),
)
RULES = rules_of("rl", LANGUAGE, globals())
