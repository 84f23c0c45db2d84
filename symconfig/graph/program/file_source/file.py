"""The file of a program: its fields, and short forms of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from symconfig.descriptor.strict import MAX_LAYERS, Strict

ELEMENT_BYTES = {
    "fp64": 8.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5,
    "int64": 8.0, "int32": 4.0, "int8": 1.0, "uint8": 1.0, "bool": 1.0,
}  # fmt: skip
Word: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=200)]
Size: TypeAlias = Annotated[
    str, BeforeValidator(lambda value: str(value) if isinstance(value, int) and not isinstance(value, bool) else value)
]
Float = Literal["fp64", "fp32", "bf16", "fp16", "fp8", "fp4"]


def _dims(value: Any) -> Any:
    """Write a list of dims as text."""
    if isinstance(value, list) and all(isinstance(dim, str | int) and not isinstance(dim, bool) for dim in value):
        return "[" + ", ".join(map(str, value)) + "]"
    return value


class Declaration(Strict):
    """In the file also as a list of dims, or as `int64[b, s]`."""

    dims: Annotated[str, BeforeValidator(_dims)]
    frozen: bool = False

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"dims": value} if isinstance(value, str | list) else value


class Repeat(Strict):
    """The body so many times. Each turn has its own parameters; `carry` x: y makes a turn's y the next one's x."""

    name: Word
    times: Annotated[int, Field(gt=0, le=MAX_LAYERS)]
    carry: dict[Word, Word] = Field(default_factory=dict)
    parameters: dict[Word, Declaration] = Field(default_factory=dict)
    body: list[Step] = Field(min_length=1)


class Step(Strict):
    """A statement (in the file also as mere text), or a repeat. path: of the module, for people."""

    do: str | None = None
    repeat: Repeat | None = None
    path: str = Field(default="", max_length=200)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"do": value} if isinstance(value, str) else value


class ProgramFile(Strict):
    schema_: Literal["symconfig.program/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=200)
    source: str | None = None
    element: Float = "bf16"
    dims: dict[Word, Size]
    batch: tuple[Word, ...] = ()
    inputs: dict[Word, Declaration] = Field(min_length=1)
    parameters: dict[Word, Declaration] = Field(default_factory=dict)
    operators: tuple[Step, ...] = Field(min_length=1)
    outputs: tuple[Word, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()


Repeat.model_rebuild()
