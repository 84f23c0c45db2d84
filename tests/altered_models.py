"""Models of which any field is another than the family's: what no `config.json` of the hub ever said."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]  # rng.choice, or Hypothesis's draw
Path = tuple[str, ...]

# What names a model or points to its weights computes nothing; a tower in front is loaded by its name only.
_LEFT = frozenset({"schema_", "name", "source", "huggingface_id", "model_type", "torch_dtype", "notes", "vision"})


def altered(model: ModelDescriptor, choose: Choose, count: int) -> ModelDescriptor | None:
    """Change so many fields of a model, each by itself; None where the descriptor's own rules do not allow it."""
    data = model.model_dump(mode="json", by_alias=True)
    for _ in range(count):
        path = choose(paths())
        section = data if len(path) == 1 else data.get(path[0])
        values = [] if section is None else list(_values(path, section.get(path[-1]), model.num_hidden_layers))
        if values:
            section[path[-1]] = choose(values)
    try:
        return ModelDescriptor.model_validate(data, strict=False)
    except ValidationError:
        return None


@cache
def paths() -> tuple[Path, ...]:
    """Return every field of the descriptor, those inside sections among them."""
    return tuple(_paths(ModelDescriptor, ()))


def _paths(kind: type[BaseModel], above: Path) -> Iterator[Path]:
    for name, field in kind.model_fields.items():
        if not above and name in _LEFT:
            continue
        yield (*above, name)
        for inner in () if above else _options(field.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _paths(inner, (name,))


def _options(annotation: Any) -> tuple[Any, ...]:
    """Return what a union is of, and of an annotated type what it is."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(one for each in get_args(annotation) for one in _options(each))
    if hasattr(annotation, "__metadata__"):
        return _options(get_args(annotation)[0])
    return (annotation,)


def _values(path: Path, now: Any, layers: int) -> Iterator[Any]:
    """Yield other values of a field: by its type, and as models of the zoo have it."""
    kind: Any = ModelDescriptor
    for name in path[:-1]:
        kind = next(o for o in _options(kind.model_fields[name].annotation) if isinstance(o, type))
    seen = {repr(now)}
    for value in (*_typed(kind.model_fields[path[-1]].annotation, now, layers), *_others(path, layers)):
        if repr(value) not in seen:
            seen.add(repr(value))
            yield value


def _typed(annotation: Any, now: Any, layers: int) -> Iterator[Any]:
    for option in _options(annotation):
        if option is type(None):
            yield None
        elif option is bool:
            yield not now
        elif option is int:
            yield from (2 * now, now + 1) if now else (2, 64)
        elif option is float:
            yield from (2 * now, now / 4) if now else (0.5, 2.0)
        elif get_origin(option) is Literal:
            yield from get_args(option)
        elif isinstance(option, type) and issubclass(option, Enum):
            yield from (one.value for one in option)
        elif get_origin(option) is tuple and bool in get_args(option):
            yield [index % 2 == 0 for index in range(layers)]


@cache
def _zoo() -> tuple[Mapping[str, Any], ...]:
    return tuple(load_model(name).model_dump(mode="json", by_alias=True) for name in zoo_models())


def _others(path: Path, layers: int) -> Iterator[Any]:
    """Yield what models of the zoo have in this place, lists of one entry per layer as long as they have to be."""
    for data in _zoo():
        section: Any = data if len(path) == 1 else data.get(path[0]) or {}
        if path[-1] in section:
            yield _stretched(section[path[-1]], data["num_hidden_layers"], layers)


def _stretched(value: Any, old: int, new: int) -> Any:
    if isinstance(value, dict):
        return {name: _stretched(inner, old, new) for name, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_stretched(inner, old, new) for inner in value]
    if isinstance(value, list) and len(value) == old:
        return [value[index % old] for index in range(new)]
    return value
