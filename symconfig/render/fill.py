"""Templates filled with plain values in Jinja's sandbox, as they may be a user's."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import yaml
from jinja2 import FileSystemLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment as Environment
from pydantic import BaseModel

from symconfig.descriptor.document import shorten
from symconfig.errors import InputError
from symconfig.format import duration, percent, rounded
from symconfig.render.files import ENDING, File, line, sh, slug


def filled(folders: Iterable[Path], names: Iterable[str], values: Mapping[str, object]) -> list[File]:
    """Return a file for each template, named without `.j2`, executable if its text begins with "#!"; blank ones are
    left out. folders: where templates are looked up; the first match wins. values: passed through `plain`. Raises
    InputError with the place in the template for a wrong template, and for a value that `plain` refuses.
    """
    folders = tuple(folders)
    templates, given = _environment(*folders), {name: plain(value, name) for name, value in values.items()}
    texts = ((name.removesuffix(ENDING), _text_of(templates, folders, name, given)) for name in names)
    return [File(path, text, text.startswith("#!")) for path, text in texts if text.strip()]


def plain(value: object, place: str = "") -> Any:
    """Return the value in plain types; enums become their values, paths text, tuples lists, subclasses of str etc.
    plain. Dataclasses become dicts of public fields and of properties of their class, pydantic models dicts of fields,
    mappings dicts. place: the value's name in the error. Raises InputError for a value of any other kind.
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
def _environment(*folders: Path) -> Environment:
    """Return a sandboxed Jinja environment over the folders, with symconfig's filters; undefined names raise. Cached.
    Nothing is escaped, and blocks leave no blank lines.
    """
    made = Environment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(sh=sh, line=line, slug=slug, yaml=as_yaml, duration=duration, number=rounded, share=percent)
    return made


def _text_of(templates: Environment, folders: Sequence[Path], name: str, values: Mapping[str, object]) -> str:
    """Return the text of one filled template. Raises InputError for any error: a syntax error with its file and line,
    another with the innermost template line of the traceback, or else the template's first file without a line; its
    sentence is cut to 200 characters.
    """
    try:
        return templates.get_template(name).render(values)
    except TemplateSyntaxError as error:
        what = f"is no template: {error.message}"
        raise InputError(what, file=error.filename or error.name or name, line=error.lineno) from None
    except Exception as error:  # expressions raise whatever Python does
        frames = traceback.extract_tb(error.__traceback__)
        known = tuple(map(str, folders))
        lines = [(frame.filename, frame.lineno) for frame in frames if frame.filename.startswith(known)]
        own = next((str(folder / name) for folder in folders if (folder / name).is_file()), name)
        file, at = lines[-1] if lines else (own, None)
        why = f"there is no template {error}" if isinstance(error, TemplateNotFound) else str(error)
        sentence = shorten(why, 200).rstrip(".") or type(error).__name__
        raise InputError(f"cannot be filled: {sentence}", file=file, line=at) from None


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
    """Return the value as YAML in block style and the order of its keys, without a final line feed. Lines after the
    first are indented by `indent` blanks, blank lines are not.
    """
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, sort_keys=False, width=10**6)
    text = text.removesuffix("\n").removesuffix("\n...")
    return re.sub(r"\n(?!\n)", "\n" + " " * indent, text)
