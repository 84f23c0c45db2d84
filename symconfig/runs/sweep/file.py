"""SWEEP.yaml: which fields of a job take which values, and which combinations are left out.

schema: symconfig.sweep/1
job:                                # what all plans have alike: any field of JOB.yaml
  seq_length: 4096
sweep:                              # fields of JOB.yaml with a list each; the last one varies fastest
  model: [llama2-7b, llama2-13b]
  cluster: [a100-80gb, h100]
  gpus: [8, {from: 16, to: 256, times: 2}]
  global_batch_size: [256, 512]
  limits.memory_margin: [0.04, 0.1]
  pins.tp: [null, 8]                # null: the field is left out
exclude:                            # a combination that a rule matches in all its fields is not planned
  - {model: llama2-7b, gpus: 128..}
  - {cluster: a100-80gb, global_batch_size: [256]}
prices: {h100: 2.5}                 # of a GPU-hour, in whatever money

A flat file is the same: of fields that stand at the top, lists and series are swept, and the rest is the job's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from symconfig.descriptor.document import Document, KeyPath, Place
from symconfig.descriptor.job import PIN_NAMES, Job, Limits, Lora
from symconfig.descriptor.strict import PositiveInt, Strict

NOT_SWEPT = ("schema", "training")  # a plan passes the training on and never looks at it
WHOLE = ("gpus", "global_batch_size", "seq_length")  # fields whose values may be a series, or a range in a rule
MOST_IN_SERIES = 10_000
Price = Annotated[float, Field(ge=0)]


def swept() -> tuple[str, ...]:
    """Return the names that `sweep` and `exclude` may use."""
    whole = [name for name, field in Job.model_fields.items() if (field.alias or name) not in NOT_SWEPT]
    limits, lora = (f"limits.{name}" for name in Limits.model_fields), (f"lora.{name}" for name in Lora.model_fields)
    return (*whole, *limits, *lora, *(f"pins.{name}" for name in PIN_NAMES))


def sectioned(document: Document) -> Document:
    """Put the fields of a flat file into `job` and `sweep`, with the places that they have; others stay as they are."""
    data = document.data
    if not isinstance(data, dict) or {"job", "sweep"} & data.keys() or not data.keys() & set(swept()):
        return document
    section = {
        name: "sweep"
        if isinstance(value, list) or "." in str(name) or (name in WHOLE and isinstance(value, dict))
        else "job"
        for name, value in data.items()
        if name not in ("schema", "exclude", "prices")
    }
    whole: dict[str, Any] = {name: value for name, value in data.items() if name not in section}
    for name, where in section.items():
        several = data[name] if where == "job" or isinstance(data[name], list) else [data[name]]
        whole.setdefault(where, {})[name] = several

    def moved(places: Mapping[KeyPath, Place]) -> dict[KeyPath, Place]:
        return {(section[path[0]], *path) if path and path[0] in section else path: at for path, at in places.items()}

    return Document(whole, document.file, moved(document.keys), moved(document.values), document.unread)


class Series(Strict):
    """`{from: 8, to: 64, times: 2}` is 8, 16, 32, 64; `{from: 8, to: 32, step: 8}` is 8, 16, 24, 32."""

    from_: PositiveInt = Field(alias="from")
    to: PositiveInt
    step: PositiveInt | None = None
    times: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.step is None) == (self.times is None):
            raise ValueError("needs either step or times")
        if self.to < self.from_:
            raise ValueError(f"ends at {self.to}, before it starts at {self.from_}")
        if self.step is not None and (self.to - self.from_) // self.step >= MOST_IN_SERIES:
            raise ValueError(f"has more than {MOST_IN_SERIES:,} values")
        return self

    @property
    def values(self) -> list[int]:
        if self.step is not None:
            return list(range(self.from_, self.to + 1, self.step))
        values = [self.from_]
        while values[-1] * (self.times or 2) <= self.to:
            values.append(values[-1] * (self.times or 2))
        return values


class SweepFile(Strict):
    """The contents of the file; its values are held against a job's fields by `asked`."""

    schema_: Literal["symconfig.sweep/1"] = Field(default="symconfig.sweep/1", alias="schema")
    job: dict[str, Any] = Field(default_factory=dict)
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(min_length=1)
    exclude: tuple[Annotated[dict[str, Any], Field(min_length=1)], ...] = ()
    prices: dict[str, Price] = Field(default_factory=dict, description="cluster -> price of a GPU-hour")
