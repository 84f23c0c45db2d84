"""Jinja's sandbox over plain values: templates may be a user's."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from io import StringIO
from pathlib import Path, PurePath
from typing import Any

import yaml
from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel

from symconfig.descriptor.document import shorten
from symconfig.errors import InputError, Problem, nearest
from symconfig.render.files import ENDING, File, line, sh, slug
from symconfig.render.summary import duration, number, share

MOST_LETTERS = 8 * 2**20  # of one file
# What the expressions of a template may raise beside Jinja's own errors.
_OF_EXPRESSIONS = (
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
    yaml.YAMLError,
)
_UNDEFINED = re.compile(r"'(\w+)' is undefined")


def filled(folders: Iterable[Path], names: Iterable[str], values: Mapping[str, object]) -> list[File]:
    """Return a file for each template, named without its ending and executable if it begins with "#!".

    Blank results are left out. folders: where templates are looked up; the first match wins. values: are given to them
    as `plain` makes them. Raises InputError, with the place in the template, for a wrong template.
    """
    templates, given = _environment(*folders), {name: plain(value, name) for name, value in values.items()}
    texts = ((name.removesuffix(ENDING), _text_of(templates, name, given)) for name in names)
    return [File(path, text, text.startswith("#!")) for path, text in texts if text.strip()]


def plain(value: object, place: str = "") -> Any:
    """Return the value in plain types: dataclasses as dicts of public fields and properties, pydantic models as dicts
    of fields.

    place: the value's name in the error. Raises InputError for a value of any other kind.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value, place)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name), f"{place}.{name}") for name in type(value).model_fields}
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        names += [name for name, kind in vars(type(value)).items() if isinstance(kind, property)]
        return {name: plain(getattr(value, name), f"{place}.{name}") for name in names if not name.startswith("_")}
    if isinstance(value, Mapping):
        return {plain(key, place): plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, place) for item in value]
    need = "mappings, lists, text, numbers, booleans and None, or dataclasses of them"
    raise InputError("templates are not given such a value", field=place, got=type(value).__name__, need=need)


@cache
def _environment(*folders: Path) -> ImmutableSandboxedEnvironment:
    """Return a sandboxed Jinja environment with symconfig's filters, in which undefined names are errors.

    Nothing is escaped as HTML, and random filters are removed, so that files come out the same each time.
    """
    made = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(folders),
        undefined=Undefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(sh=sh, line=line, slug=slug, yaml=as_yaml, duration=duration, number=number, share=share)
    del made.filters["random"], made.globals["lipsum"]
    return made


def _text_of(templates: ImmutableSandboxedEnvironment, name: str, values: Mapping[str, object]) -> str:
    """Return the text of one filled template.

    Raises InputError at the line of any error, and for a text that is too long.
    """
    try:
        made = StringIO()
        for part in templates.get_template(name).generate(values):
            if made.tell() + len(part) > MOST_LETTERS:
                raise InputError(
                    "gives a file that is too large",
                    file=_file(templates, name),
                    need=f"at most {MOST_LETTERS:,} letters",
                )
            made.write(part)
        return made.getvalue()
    except TemplateSyntaxError as error:
        raise InputError(
            f"is no template: {error.message}", file=error.filename or error.name or name, line=error.lineno
        ) from None
    except TemplateNotFound as error:
        problem = _placed(templates, name, error, f"asks for a template that is not there: {error.name!r}")
        raise InputError(problem) from None
    except TemplateError as error:
        undefined = _UNDEFINED.fullmatch(str(error))
        hint = _meant(undefined[1], values) if undefined else None
        sentence = shorten(str(error), 200).rstrip(".")
        raise InputError(_placed(templates, name, error, f"cannot be filled: {sentence}", hint)) from None
    except _OF_EXPRESSIONS as error:
        sentence = "it needs more memory than there is" if isinstance(error, MemoryError) else shorten(str(error), 200)
        raise InputError(
            _placed(templates, name, error, f"cannot be filled: {sentence or type(error).__name__}")
        ) from None


def _placed(
    templates: ImmutableSandboxedEnvironment, name: str, error: BaseException, what: str, hint: str | None = None
) -> Problem:
    """Return a problem at the innermost template line in the error's traceback; without one, at the template's file."""
    known = _folders(templates)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(frame.filename, frame.lineno) for frame in frames if frame.filename.startswith(known)]
    file, at = lines[-1] if lines else (_file(templates, name), None)
    return Problem(what, file=file, line=at, hint=hint)


def _folders(templates: ImmutableSandboxedEnvironment) -> tuple[str, ...]:
    assert isinstance(templates.loader, FileSystemLoader)
    return tuple(templates.loader.searchpath)


def _file(templates: ImmutableSandboxedEnvironment, name: str) -> str:
    """Return the path of the template of this name; the name itself if it is in no folder."""
    return next((str(path) for folder in _folders(templates) if (path := Path(folder) / name).is_file()), name)


def _meant(name: str, values: Mapping[str, object]) -> str | None:
    """Return what to write instead of an undefined name: a similar one, or None.

    A name that is given, and yet undefined, is in an imported template, which sees it only `with context`.
    """
    return "{% import … with context %}" if name in values else nearest(name, values)


class Undefined(StrictUndefined):
    """Jinja's strict undefined value, whose error names a similar key of the same mapping."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        """Return Jinja's message, with the key of the same mapping that is most similar to the missing
        one, if any is.
        """
        text = super()._undefined_message
        if self._undefined_hint:  # of the sandbox, which forbids the name
            return text
        known = self._undefined_obj if isinstance(self._undefined_obj, dict) else ()
        meant = nearest(str(self._undefined_name), map(str, known))
        return f"{text}; there is {meant!r}" if meant else text


# PyYAML quotes what YAML 1.1 would read as something else than text, by its own reading; Go's libraries (Kubernetes)
# and YAML 1.2 take 1e-4, 0o17 and y for numbers and for true. All that any of them does begins with no letter, or is
# one of these words. Source: resolve.go of gopkg.in/yaml.v2 and v3; yaml.org, 1.1 types and 1.2 core schema.
_A_WORD = re.compile(r"[A-Za-z/].*")
_NO_TEXTS = ("y", "yes", "on", "true", "n", "no", "off", "false", "null", "nan", "inf")


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes text which any reader might take for another type, and keeps lines of text apart."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    plain = _A_WORD.fullmatch(text) and text.lower() not in _NO_TEXTS
    style = None if plain else "'"
    if "\n" in text:  # lines after a first one that is empty or begins with a blank count their indent from the parent
        style = '"' if text[0].isspace() else "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(value: object, indent: int = 0) -> str:
    """Return the value as YAML without a final line feed; lines after the first are indented by `indent` blanks."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, sort_keys=False, width=10**6)
    text = text.removesuffix("\n").removesuffix("\n...")
    return re.sub(r"\n(?!\n)", "\n" + " " * indent, text)
