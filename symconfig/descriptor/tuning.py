"""What a model is tuned on, as a job says it: lengths of sequences, how they make batches, losses of answers; and
reinforcement learning: what is generated and trained on in a step, by whom, and where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Any, ClassVar, Final, Literal, cast

from pydantic import Field, ValidationError, model_validator

from symconfig.descriptor.document import Document
from symconfig.descriptor.strict import PositiveInt, Sparse, Strict
from symconfig.descriptor.task import Task
from symconfig.errors import Problems

Share = Annotated[float, Field(gt=0.0, lt=1.0)]
WITH_CRITIC = ("ppo",)  # algorithms whose advantage a trained critic gives
OF_GROUPS = ("grpo", "dapo", "gspo", "rloo")  # whose advantage is over the responses to a prompt
# Without a KL term: DAPO takes it out (arXiv:2503.14476, section 2.3), and GSPO's authors train with none
# (github.com/volcengine/verl/pull/2775).
_WITHOUT_KL = ("dapo", "gspo")
# Engines whose share of a GPU is for weights, keys and values alone, of the memory that is free before they are there
# (SGLang, model_runner.py: pre_model_load_memory); that of others is of the whole GPU, and for activations, too.
STATIC_SHARE = ("sglang",)


class Lengths(Strict):
    """Tokens of a sequence, or of a part of it, over many of them."""

    mean: Annotated[float, Field(gt=0.0)]
    p95: Annotated[float, Field(gt=0.0)] | None = Field(
        default=None, description="19 of 20 are not longer; absent: twice the mean, or max"
    )
    max: PositiveInt = Field(description="where they are cut")

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the mean is above max, else if p95 is not between both."""
        if self.mean > self.max:
            yield f"mean is above max (got {self.mean:g}, need at most {self.max})"
        elif self.p95 is not None and not self.mean < self.p95 <= self.max:
            yield f"p95 is not between mean and max (got {self.p95:g}, need {self.mean:g} to {self.max})"

    @property
    def high(self) -> float:
        """Return the 95th percentile of lengths in tokens; if not given, twice the mean, at most the maximum."""
        return self.p95 if self.p95 is not None else min(2.0 * self.mean, float(self.max))


class Rollout(Strict):
    """The engine that generates. What is absent is chosen."""

    engine: Literal["vllm", "sglang"] | None = Field(default=None, description="absent: the target's usual one")
    tp: PositiveInt | None = Field(default=None, description="GPUs of a replica, or of each of its ranks of data")
    dp: PositiveInt | None = Field(
        default=None,
        description="ranks of data of a replica: attention and keys are each one's own, and experts lie over all",
    )
    memory_share: Share | None = Field(default=None, description="of a GPU, that the engine takes when it is awake")
    tokens_per_s_per_gpu: Annotated[float, Field(gt=0.0)] | None = Field(
        default=None, description="generated, as a log of yours has it; absent: by a model of prefill and decode"
    )
    max_num_seqs: PositiveInt = Field(
        default=1024, description="sequences that a replica, or a rank of data, decodes at once, at most"
    )
    sleep_level: Literal[1, 2] | None = Field(
        default=None,
        description="of an engine beside what is trained. 1: its weights go to the host and back; 2: they are given up",
    )

    @property
    def static_share(self) -> bool:
        """Return whether the engine's memory share covers weights and the key/value cache only."""
        return self.engine in STATIC_SHARE


class RewardModel(Strict):
    """A network that rewards responses: one number for each."""

    model: str | None = Field(default=None, description="a zoo name or a path; absent: of the actor's size")
    placement: Literal["colocated", "apart", "server"] = Field(
        default="colocated",
        description="colocated: on the GPUs that train; apart: on GPUs of its own; server: elsewhere, at `url`",
    )
    gpus: PositiveInt | None = Field(default=None, description="of placement apart, of the job's; absent: chosen")
    url: str | None = Field(default=None, min_length=1, description="of placement server: where it answers")

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence where gpus has another placement than apart, url and placement server do not go together, or
        a server has a model.
        """
        served, got = self.placement == "server", f"(got placement: {self.placement})"
        if self.gpus is not None and self.placement != "apart":
            yield f"gpus is for placement: apart {got}"
        if (self.url is not None) != served:
            yield f"an address, url, and placement: server go together {got}"
        if self.model is not None and served:
            yield "the model of placement: server is the server's (got model, too)"


class Rl(Strict):
    """The section `rl` of a job."""

    algorithm: Literal["grpo", "dapo", "gspo", "rloo", "reinforce_plus_plus", "remax", "ppo"] = "grpo"
    prompts: PositiveInt = Field(description="of a step")
    samples: PositiveInt = Field(default=1, description="responses to each prompt")
    prompt_length: Lengths
    response_length: Lengths
    updates: PositiveInt = Field(default=1, description="optimizer steps that a step's samples are divided into")
    epochs: PositiveInt = Field(default=1, description="times that they are trained on")
    reference: bool = Field(
        default=True, description="a frozen copy of the actor gives the KL term; absent: but for dapo and gspo"
    )
    critic: str | None = Field(default=None, description="for ppo: a zoo name or a path; absent: the actor's model")
    critic_gpus: PositiveInt | None = Field(
        default=None, description="of a critic that has GPUs of its own, of the job's; absent: it is on the actor's"
    )
    reward_model: RewardModel | None = Field(
        default=None, description="a network that rewards; absent: rules and programs do, which take no GPU"
    )
    entropy: bool = Field(default=False, description="the loss has an entropy term, so its gradient is needed")
    tokens_per_gpu: PositiveInt | None = Field(
        default=None, description="of a micro-batch of packed sequences, on each GPU at most; absent: chosen"
    )
    placement: Literal["colocated", "split"] = Field(
        default="colocated", description="split: generation has GPUs of its own, and runs beside the last step's update"
    )
    rollout_gpus: PositiveInt | None = Field(default=None, description="of placement split; absent: chosen")
    rollout: Rollout = Rollout()

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, data: object) -> object:
        """Return the section's fields with `reference`, if absent, as the algorithm has it: no KL term for some."""
        if not isinstance(data, dict):
            return data
        return {"reference": data.get("algorithm") not in _WITHOUT_KL, **data}

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence where updates do not divide prompts x samples, critic or critic_gpus have no algorithm with
        a critic, or rollout_gpus has placement colocated.
        """
        if self.sequences % self.updates:
            yield f"updates do not divide prompts x samples (got {self.updates}, need a divisor of {self.sequences})"
        for name in ("critic", "critic_gpus"):
            if (given := getattr(self, name)) is not None and not self.has_critic:
                yield f"{self.algorithm} has no critic (got {name} {given}, need algorithm: ppo)"
        if self.rollout_gpus is not None and self.placement == "colocated":
            yield "rollout_gpus is for placement: split"

    def with_engine(self, usual: str) -> Rl:
        """Return the section with `usual` as its rollout engine if it names none."""
        rollout = self.rollout.model_copy(update={"engine": self.rollout.engine or usual})
        return self.model_copy(update={"rollout": rollout})

    @property
    def has_critic(self) -> bool:
        """Return whether the algorithm trains a critic."""
        return self.algorithm in WITH_CRITIC

    @property
    def sequences(self) -> int:
        """Return the number of sequences that a step trains on: prompts x samples."""
        return self.prompts * self.samples

    @property
    def generated(self) -> int:
        """Return the number of sequences generated in a step.

        ReMax has a greedy one for each prompt in addition (arXiv:2310.10505, algorithm 1).
        """
        return self.prompts * (self.samples + (self.algorithm == "remax"))

    @property
    def longest(self) -> int:
        """Return the tokens of the longest sequence, prompt and response."""
        return self.prompt_length.max + self.response_length.max

    @property
    def mean_tokens(self) -> float:
        """Return the mean number of tokens of a sequence, prompt and response."""
        return self.prompt_length.mean + self.response_length.mean

    @property
    def batch(self) -> int:
        """Return the number of sequences of an optimizer step, rounded up."""
        return ceil(self.sequences / self.updates)


LossName = Literal["sigmoid", "hinge", "ipo", "orpo", "simpo", "cpo", "kto", "apo_zero_unpaired", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a preference loss needs for one example.

    task: the task it belongs to. sequences: sequences of an example that are trained on. read: forward passes of the
    trained model without gradients, each over as many sequences; reference: those of the frozen reference model.
    scores: the model has one output per sequence in place of logits. scaled: the loss has a beta.
    """

    task: Task = "dpo"
    sequences: int = 2
    read: int = 0
    reference: int = 1
    scores: bool = False
    scaled: bool = True


LOSSES: Final[Mapping[LossName, Loss]] = {
    **dict.fromkeys(("sigmoid", "hinge", "ipo"), Loss()),
    **dict.fromkeys(("orpo", "simpo", "cpo"), Loss(reference=0)),
    # Its KL term is of answers to other questions, which both models read, too (arXiv:2402.01306, section 4.1).
    "kto": Loss(task="kto", sequences=1, read=1, reference=2),
    "apo_zero_unpaired": Loss(task="kto", sequences=1),
    "reward": Loss(task="reward", reference=0, scores=True, scaled=False),
}


class Sequences(Lengths):
    """The section `sequences` of a job: tokens of what is trained on, in pairs of each of the two."""

    batching: Literal["padded", "padding_free", "packed"] = Field(
        default="padded",
        description="padded: to the longest of their micro-batch; padding_free: as many tokens as they have; packed: "
        "they fill sequences of seq_length",
    )


class Preference(Sparse):
    """The section `preference` of a job: answers that a model is tuned on, and the loss of them."""

    rare: ClassVar[tuple[str, ...]] = ("pairs", "answers")

    pairs: PositiveInt | None = Field(default=None, description="chosen and rejected answers of an optimizer step")
    answers: PositiveInt | None = Field(
        default=None, description="of an optimizer step, each with a label: of losses that compare no two"
    )
    loss: LossName = Field(
        default="sigmoid",
        description="sigmoid: DPO's own; orpo, simpo and cpo have no reference; kto and apo_zero_unpaired are of "
        "labelled answers; reward: of a model that gives one number",
    )
    beta: Annotated[float, Field(gt=0.0)] = 0.1

    @classmethod
    def of(cls, loss: str, examples: int) -> Preference:
        """Return the section of a loss with this many examples (pairs or answers) per optimizer step."""
        counted = cls._counted(LOSSES[cast(LossName, loss)])
        return cls.model_validate({counted: examples, "loss": loss}, strict=False)

    @staticmethod
    def _counted(means: Loss) -> str:
        return "pairs" if means.sequences > 1 else "answers"

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence unless `pairs` is set for losses of two answers, `answers` for others, and not both; and for
        a beta other than the default of a loss without a scale.
        """
        need, given = self._counted(self.means), [name for name in ("pairs", "answers") if getattr(self, name)]
        if given != [need]:
            yield f"loss {self.loss} needs a number of {need} (got {' and '.join(given) or 'none'})"
        if self.beta != Preference.model_fields["beta"].default and not self.means.scaled:
            yield f"loss {self.loss} has no beta (got {self.beta})"

    @property
    def means(self) -> Loss:
        """Return the `Loss` of its name."""
        return LOSSES[self.loss]

    @property
    def sequences(self) -> int:
        """Return the number of sequences of an optimizer step."""
        return self.means.sequences * (self.pairs or self.answers or 0)

    @property
    def has_reference(self) -> bool:
        """Return whether the loss needs a frozen reference model."""
        return self.means.reference > 0


def with_batch(document: Document) -> Document:
    """Return a copy of the job's document with task, global_batch_size and seq_length that follow from its sections.

    What the job states stays, even null. The document itself is returned if its data is no dict.
    """
    data = document.data
    if not isinstance(data, dict):
        return document
    return replace(document, data={**_derived(data), **data})


def check_batch(document: Document) -> None:
    """Raise InputError if a job states another global_batch_size or seq_length than follows from its section `rl`.

    It has all problems. The batch size is checked against `preference`, too; lengths of `sequences` and invalid
    sections are not checked here.
    """
    data = document.data if isinstance(document.data, dict) else {}
    derived, of_rl = _derived(data), isinstance(data.get("rl"), dict)
    follows = {"global_batch_size": "rl: prompts x samples / updates" if of_rl else "preference: its sequences"}
    if of_rl:
        follows["seq_length"] = "rl: its longest prompt and response"
    Problems(
        document.problem(f"follows from the section {how}", (name,), got=str(data[name]), need=f"{size}, or nothing")
        for name, how in follows.items()
        if (size := derived.get(name, 0)) > 1 and data.get(name, size) != size
    ).check()


def _derived(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task, global_batch_size and seq_length that follow from the sections rl, sequences and preference.

    Only keys that follow are in it, {} without these sections; where two sections give one, `preference` wins over rl,
    and `sequences` over rl for seq_length. If a section is invalid both sizes are 1; its problems are reported
    elsewhere.
    """
    derived: dict[str, Any] = {}
    rl, sequences, preference = (data.get(name) for name in ("rl", "sequences", "preference"))
    try:
        if isinstance(rl, dict):
            derived["task"] = "rl"
            step = Rl.model_validate(rl, strict=False)
            derived |= {"global_batch_size": step.batch, "seq_length": step.longest}
        if isinstance(sequences, dict):
            derived["seq_length"] = Sequences.model_validate(sequences, strict=False).max
        if isinstance(preference, dict):
            section = Preference.model_validate(preference, strict=False)
            derived |= {"task": section.means.task, "global_batch_size": section.sequences}
    except ValidationError:  # it is said of the section
        derived |= {"global_batch_size": 1, "seq_length": 1}
    return derived
