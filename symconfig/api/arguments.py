"""Arguments from Python held against their annotations before a public function does anything with them.

A command line and a file are checked as they are read; a call is checked here, in the same kind of sentence. Types
only: which values there may be, the function says itself, so that a Literal stands for the types of its values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from symconfig.errors import InputError, Problem, nearest

P = ParamSpec("P")
R = TypeVar("R")
_SHOWN = 60  # characters of a value


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it raises InputError with every argument that is not of its annotated type."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        signature = inspect.signature(function)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            unknown = kwargs.keys() - signature.parameters.keys()
            similar = [one for name in unknown if (one := nearest(name, signature.parameters))]
            hint = f". Try: {' and '.join(sorted(similar))}" if similar else ""
            raise TypeError(f"{function.__name__}() {error}{hint}") from None
        kinds = _kinds(function)
        if wrong := [
            Problem("wrong value", field=name, got=_shown(value), need=_words(kinds[name]))
            for name, value in given.items()
            if name in kinds and not _fits(value, kinds[name])
        ]:
            raise InputError(wrong)
        return function(*args, **kwargs)

    return checked


@cache
def _kinds(function: Callable[..., object]) -> dict[str, Any]:
    """Return the annotations of the parameters that have a name. What is returned may be known to type checkers
    only."""
    kinds = {name: kind for name, kind in inspect.get_annotations(function).items() if name != "return"}
    hints = get_type_hints(SimpleNamespace(__annotations__=kinds), inspect.getmodule(function).__dict__)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: kind for name, kind in hints.items() if inspect.signature(function).parameters[name].kind not in several
    }


def _fits(value: object, kind: Any) -> bool:
    """Tell whether the value is of the type; an int is a float, True is no int, and text is no sequence of texts."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return type(value) in map(type, inner)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_fits, value, inner))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, origin) and all(_fits(key, inner[0]) and _fits(value[key], inner[1]) for key in value)
    if origin is not None and issubclass(origin, Iterable):
        whole = isinstance(value, origin) and not isinstance(value, str | bytes | Mapping)
        return whole and (not isinstance(value, Sequence) or all(_fits(one, inner[0]) for one in value))
    if origin is Callable:
        return callable(value)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return kind is Any or isinstance(value, kind)


def _words(kind: Any) -> str:
    """Spell a type in words, `int or tuple of int, int`; an optional None goes without saying."""
    return " or ".join(dict.fromkeys(_named(kind)))


def _named(kind: Any) -> Iterator[str]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for one in inner:
            yield from _named(one) if one is not NoneType else ()
    elif origin is Literal:
        yield from map(repr, inner)
    elif origin is Callable or origin is None:
        yield "a function" if origin is Callable else kind.__name__
    else:
        name = "list" if origin in (Sequence, Iterable) else origin.__name__.lower()
        yield f"{name} of {' to '.join(map(_words, inner)) if name == 'mapping' else ', '.join(map(_words, inner))}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        text = f"a {type(value).__name__} that cannot be written"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
