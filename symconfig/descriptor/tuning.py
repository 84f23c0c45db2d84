"""What a model is tuned on, as a job says it: lengths of sequences, how they make batches, and losses of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from symconfig.descriptor.document import Document
from symconfig.descriptor.rl import Lengths, Rl
from symconfig.descriptor.strict import PositiveInt, Strict, refuse
from symconfig.descriptor.task import Task
from symconfig.errors import InputError

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


class Preference(Strict):
    """The section `preference` of a job: answers that a model is tuned on, and the loss of them."""

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

    @model_validator(mode="after")
    def _of_the_loss(self) -> Self:
        """Check that `pairs` is set for losses of two answers, `answers` for others, and not both; return the section.

        A loss without a scale takes beta only as the default. Raises ValueError with all problems.
        """
        need, given = self._counted(self.means), [name for name in ("pairs", "answers") if getattr(self, name)]
        beta = self.beta != Preference.model_fields["beta"].default
        refuse(
            (given != [need], f"loss {self.loss} needs a number of {need} (got {' and '.join(given) or 'none'})"),
            (beta and not self.means.scaled, f"loss {self.loss} has no beta (got {self.beta})"),
        )
        return self

    @model_serializer(mode="wrap")
    def _as_counted(self, data: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields to write, without those that are None."""
        return {name: value for name, value in data(self).items() if value is not None}

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
    problems = [
        document.problem(f"follows from the section {how}", (name,), got=str(data[name]), need=f"{size}, or nothing")
        for name, how in follows.items()
        if (size := derived.get(name, 0)) > 1 and data.get(name, size) != size
    ]
    if problems:
        raise InputError(problems)


def _derived(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task, global_batch_size and seq_length that follow from the sections rl, sequences and preference.

    Only keys that follow are in it, {} without these sections; `preference` goes before rl, sequences before rl's
    length. If a section is invalid both sizes are 1; its problems are reported elsewhere.
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
