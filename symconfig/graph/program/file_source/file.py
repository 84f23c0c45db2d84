"""The file of a program: its fields, and short forms written out so that each field has one type."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from symconfig.descriptor.document import Document
from symconfig.descriptor.strict import MAX_LAYERS, Strict

ELEMENT_BYTES = {
    "fp64": 8.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5,
    "int64": 8.0, "int32": 4.0, "int8": 1.0, "uint8": 1.0, "bool": 1.0,
}  # fmt: skip
Word: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=200)]
Float = Literal["fp64", "fp32", "bf16", "fp16", "fp8", "fp4"]


class Declaration(Strict):
    """In the file also as a list of dims, or as `int64[b, s]`."""

    dims: str
    frozen: bool = False


class Repeat(Strict):
    """The body so many times. Each turn has its own parameters; `carry` x: y makes a turn's y the next one's x."""

    name: Word
    times: Annotated[int, Field(gt=0, le=MAX_LAYERS)]
    carry: dict[Word, Word] = Field(default_factory=dict)
    parameters: dict[Word, Declaration] = Field(default_factory=dict)
    body: tuple[Step, ...] = Field(min_length=1)


class Step(Strict):
    """A statement (in the file also as mere text), or a repeat. path: of the module, for people."""

    do: str | None = None
    repeat: Repeat | None = None
    path: str = Field(default="", max_length=200)


class ProgramFile(Strict):
    schema_: Literal["symconfig.program/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=200)
    source: str | None = None
    element: Float = "bf16"
    dims: dict[Word, str]
    batch: tuple[Word, ...] = ()
    inputs: dict[Word, Declaration] = Field(min_length=1)
    parameters: dict[Word, Declaration] = Field(default_factory=dict)
    operators: tuple[Step, ...] = Field(min_length=1)
    outputs: tuple[Word, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()


Repeat.model_rebuild()


def written_out(document: Document) -> Document:
    """Write a document without short forms: statements as steps, sizes and declarations as text."""
    data = document.data
    if not isinstance(data, dict):
        return document
    data = _declared(dict(data), ("inputs", "parameters"))
    if isinstance(data.get("dims"), dict):
        data["dims"] = {name: _text(size) for name, size in data["dims"].items()}
    if isinstance(data.get("operators"), list):
        data["operators"] = [_step(step) for step in data["operators"]]
    return Document(data, document.file, document.keys, document.values)


def _step(step: Any) -> Any:
    if isinstance(step, str):
        return {"do": step}
    if not isinstance(step, dict) or not isinstance(step.get("repeat"), dict):
        return step
    repeat = _declared(dict(step["repeat"]), ("parameters",))
    if isinstance(repeat.get("body"), list):
        repeat["body"] = [_step(inner) for inner in repeat["body"]]
    return step | {"repeat": repeat}


def _declared(section: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    for name in names:
        if isinstance(section.get(name), dict):
            section[name] = {key: _declaration(value) for key, value in section[name].items()}
    return section


def _declaration(value: Any) -> Any:
    if isinstance(value, dict):
        return value | {"dims": _dims(value["dims"])} if "dims" in value else value
    return {"dims": _dims(value)} if isinstance(value, str | list) else value


def _dims(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(dim, str | int) and not isinstance(dim, bool) for dim in value):
        return "[" + ", ".join(map(str, value)) + "]"
    return value


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
