"""What a model is tuned on, as a job says it: lengths of sequences, how they make batches, and pairs of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from symconfig.descriptor.document import Document
from symconfig.descriptor.rl import Lengths
from symconfig.descriptor.rl import with_batch as of_rl
from symconfig.descriptor.strict import PositiveInt, Strict
from symconfig.errors import InputError

REFERENCE_FREE = ("orpo", "simpo", "cpo")  # losses that no frozen model has a part in


class Sequences(Lengths):
    """The section `sequences` of a job: tokens of what is trained on, in pairs of each of the two."""

    batching: Literal["padded", "padding_free", "packed"] = Field(
        default="padded",
        description="padded: to the longest of their micro-batch; padding_free: as many tokens as they have; packed: "
        "they fill sequences of seq_length",
    )


class Preference(Strict):
    """The section `preference` of a job of task dpo."""

    pairs: PositiveInt = Field(description="chosen and rejected answers of an optimizer step")
    loss: Literal["sigmoid", "hinge", "ipo", "orpo", "simpo", "cpo"] = Field(
        default="sigmoid", description="sigmoid: DPO's own; orpo, simpo and cpo have no reference"
    )
    beta: Annotated[float, Field(gt=0.0)] = 0.1

    @property
    def has_reference(self) -> bool:
        """Tell whether a frozen copy of the model gives log-probabilities, too."""
        return self.loss not in REFERENCE_FREE


def with_batch(document: Document) -> Document:
    """Return a job's document with the task, batch and sequence that its sections say. Raises InputError where the job
    says another batch beside one."""
    document = of_rl(document)
    data = document.data
    if not isinstance(data, dict):
        return document
    derived: dict[str, Any] = {}
    sequences, preference = data.get("sequences"), data.get("preference")
    try:
        if isinstance(sequences, dict):
            derived["seq_length"] = Sequences.model_validate(sequences, strict=False).max
        if isinstance(preference, dict):
            pairs = Preference.model_validate(preference, strict=False).pairs
            derived |= {"task": "dpo", "global_batch_size": 2 * pairs}
    except ValidationError:  # it is said of the section
        derived |= {"global_batch_size": 1, "seq_length": 1}
    batch = derived.get("global_batch_size", 0)
    if batch > 1 and (given := data.get("global_batch_size", batch)) != batch:
        what, need = "follows from the section preference: two sequences a pair", f"{batch}, or nothing"
        raise InputError(document.problem(what, ("global_batch_size",), got=str(given), need=need))
    return replace(document, data={**derived, **data})
