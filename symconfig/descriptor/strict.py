"""Base classes of descriptors, and the validation of a document against them: problems with file, line and column."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from symconfig.descriptor.document import MAX_PROBLEMS, Document, KeyPath, shorten
from symconfig.errors import MISSING_FIELD, UNKNOWN_FIELD, InputError, Problem, nearest

_Model = TypeVar("_Model", bound=BaseModel)

_KINDS = {
    "int_type": "a whole number",
    "int_parsing_size": "a whole number below 2^63",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a section of `name: value`"),
}
_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}
_LENGTHS = {
    "string_too_short": "at least one character",
    "string_too_long": "fewer characters",
    "too_short": "at least one entry",
    "too_long": "fewer entries",
}


def validate(document: Document, model: type[_Model]) -> _Model:
    """Return the document's data as an instance of `model`.

    Raises InputError if the data is no dict, else with the document's `unread` problems, if any, and one Problem for
    each wrong field that is not among these.
    """
    if not isinstance(document.data, dict):
        got = shorten(document.data)
        raise InputError(document.problem("the file must hold `name: value` lines", got=got))
    try:
        # As JSON, where strict types still take a list for a tuple and a word for an enum.
        checked = model.model_validate_json(as_json(document))
    except ValidationError as error:
        reported = {problem.field for problem in document.unread}
        more = [problem for problem in problems(error, document, model) if problem.field not in reported]
        raise InputError([*document.unread, *more]) from None
    if document.unread:
        raise InputError(list(document.unread))
    return checked


def as_json(document: Document) -> str:
    """Return the document's data as JSON text. Raises InputError for objects that JSON cannot hold."""
    try:
        return json.dumps(document.data)
    except (TypeError, ValueError, RecursionError) as error:
        need = "text, numbers, lists and mappings"
        raise InputError(document.problem("holds what is not data", got=shorten(str(error)), need=need)) from None


def problems(error: ValidationError, document: Document, model: type[BaseModel]) -> list[Problem]:
    """Return pydantic's errors as Problems sorted by place, one for each path (a union's alternatives are joined).

    Only the first MAX_PROBLEMS paths are kept; a validator's message gives one Problem for each of its sentences. A
    list that is too short only because entries are wrong gives none of its own.
    """
    grouped: dict[KeyPath, list[Mapping[str, Any]]] = {}
    for item in error.errors(include_url=False):
        loc = item["loc"]
        if item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]:
            continue  # pydantic counts the entries that are right; the wrong ones have problems of their own
        path = loc if item["type"] in ("missing", "extra_forbidden") else _written(_known(loc, document), document)
        grouped.setdefault(path, []).append(item)
    few = list(grouped.items())[:MAX_PROBLEMS]
    gathered = [problem for path, items in few for problem in _problem(path, items, document, model)]
    return sorted(gathered, key=lambda problem: (problem.line or 0, problem.column or 0))


def _written(path: KeyPath, document: Document) -> KeyPath:
    """Return the path as the file has it: without a last part `value` that was added around a plain number."""
    plain = path[-1:] == ("value",) and path not in document.keys and path[:-1] in document.keys
    return path[:-1] if plain else path


def _known(loc: KeyPath, document: Document) -> KeyPath:
    """Return the longest leading part of a pydantic location that is a path of the data.

    Pydantic adds the names of union members to locations.
    """
    data = document.data
    for length, part in enumerate(loc):
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return loc[:length]
    return loc


def _problem(
    path: KeyPath, items: list[Mapping[str, Any]], document: Document, model: type[BaseModel]
) -> list[Problem]:
    """Return the Problems of one path from pydantic's error items; the first item's type decides.

    An unknown name has the nearest as hint, else the list of names; a missing field has no more. Only a validator's
    message gives several, split at "; ". All else is one Problem of a wrong value, length or range, with what all items
    need, and for a word that is no choice the nearest.
    """
    kind = items[0]["type"]
    if kind == "extra_forbidden":
        known = field_names(model, path[:-1])
        hint = nearest(str(path[-1]), known)
        need = None if hint else "one of " + ", ".join(sorted(known))
        return [document.problem(UNKNOWN_FIELD, path, of_key=True, need=need, hint=hint)]
    if kind == "missing":
        return [document.problem(MISSING_FIELD, path, of_key=True)]
    if kind == "value_error":
        text = str(items[0]["ctx"]["error"])
        return [_from_sentence(sentence, path, document) for sentence in text.split("; ")]
    needs = list(dict.fromkeys(_need(item, path, model) for item in items))
    need = " or ".join(text for text in needs if text)
    got = items[0]["input"]
    literal = next((item for item in items if item["type"] in ("literal_error", "enum")), None)
    words = re.findall(r"'([^']*)'", literal["ctx"]["expected"]) if literal else []
    hint = nearest(got, words) if isinstance(got, str) else None
    what = "out of range" if kind in _BOUNDS else "wrong length" if kind in _LENGTHS else "wrong value"
    shown = (
        "null" if got is None else json.dumps(got, default=str) if isinstance(got, bool | list | dict | str) else got
    )
    return [document.problem(what, path, got=shorten(shown), need=need, hint=hint)]


def _need(item: Mapping[str, Any], path: KeyPath, model: type[BaseModel]) -> str:
    """Return what a pydantic error item needs: the fields of a missing section, a bound, the choices, a type in plain
    words, else pydantic's message.
    """
    kind = item["type"]
    if kind in ("model_type", "model_attributes_type") and (known := field_names(model, path)):
        return f"{_KINDS[kind]} with {', '.join(sorted(known))}"
    if kind in _BOUNDS:
        key, sign = _BOUNDS[kind]
        return f"{sign} {item['ctx'][key]}"
    if kind in ("literal_error", "enum"):
        return str(item["ctx"]["expected"])
    return _KINDS.get(kind) or _LENGTHS.get(kind) or str(item["msg"]).removeprefix("Input should be ")


def _from_sentence(sentence: str, path: KeyPath, document: Document) -> Problem:
    """Return the Problem of a validator's sentence, at the field below `path` that its first word names, without it.

    If the first word names no value of the data, the whole sentence is at the path itself.
    """
    word, _, rest = sentence.partition(" ")
    named = (*path, *word.split("."))
    if rest and len(_known(named, document)) == len(named):
        return document.problem(rest, _written(named, document))
    return document.problem(sentence, path)


def field_names(model: type[BaseModel], path: KeyPath) -> set[str]:
    """Return the names that the section at `path` may hold, as files spell them (aliases).

    Indices of lists and keys of dicts in the path are skipped; empty if a name in it is unknown or no section.
    """
    current: Any = model
    key = False
    for part in path:
        if isinstance(part, int) or key:
            key = False
            continue
        field = next((f for name, f in current.model_fields.items() if (f.alias or name) == part), None)
        nested = section(field.annotation) if field else None
        if field is None or nested is None:
            return set()
        current, key = nested, get_origin(field.annotation) is dict
    return {field.alias or name for name, field in current.model_fields.items()}


def section(annotation: Any) -> type[BaseModel] | None:
    """Return the first descriptor class inside an annotation; None if there is none.

    Looks inside `X | None`, `tuple[X, ...]`, `list[X]` and `dict[str, X]`, at any depth.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, tuple, list, dict):
        return next((inner_section for inner in get_args(annotation) if (inner_section := section(inner))), None)
    return None


PositiveInt = Annotated[int, Field(gt=0, lt=2**40)]
MAX_LAYERS = 2_048  # the deepest published model has 1,000 (DeepNet); a number far above it is a mistake
MAX_GPUS = 2**20
GpuCount = Annotated[int, Field(gt=0, le=MAX_GPUS)]
BatchSize = Annotated[int, Field(gt=0, le=10**8)]  # sequences
LayerCount = Annotated[int, Field(gt=0, le=MAX_LAYERS)]
Count = Annotated[int, Field(ge=0, lt=2**40)]
Rate = Annotated[float, Field(ge=0.0, le=1.0)]


class Strict(BaseModel):
    """Frozen, no unknown fields, no coercion of types. Validation fails if it has `contradictions`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    def contradictions(self) -> Iterable[str]:
        """Return a sentence for each way in which valid fields do not fit each other; its first word may be the field.

        None by default; a class with such fields overrides it.
        """
        return ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Return the section. Raises ValueError with all `contradictions`, joined by "; "."""
        if wrong := list(self.contradictions()):
            raise ValueError("; ".join(wrong))
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the fields in `update` replaced, without validation, and without cached properties.

        Pydantic would copy values that `functools.cached_property` computed from the old fields, too.
        """
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class Sparse(Strict):
    """A section whose `rare` fields (names) are written only if they differ from their default."""

    rare: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _as_most(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in self.rare:
            if name in fields and getattr(self, name) == type(self).model_fields[name].default:
                del fields[name]
        return fields
