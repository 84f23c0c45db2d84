"""Jinja in a sandbox of its own kind: templates may be a user's, and what they are given are live objects."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel

from symconfig.descriptor.document import nearest, shorten
from symconfig.errors import InputError, Problem
from symconfig.render import summary
from symconfig.render.bounded import MOST_SECONDS, TooLongError
from symconfig.render.files import ENDING, line, sh, slug

_PLAIN = (str, int, float, bool, list, tuple, dict)
MOST_LETTERS = 8 * 2**20  # of one file
# What the expressions of a template may raise beside Jinja's own errors.
_OF_EXPRESSIONS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)
_UNDEFINED = re.compile(r"'(\w+)' is undefined")


class _Templates(FileSystemLoader):
    """Finds templates, and no other file of their folders."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        if not template.endswith(ENDING):
            raise TemplateNotFound(template)
        return super().get_source(environment, template)


class Sandbox(ImmutableSandboxedEnvironment):
    """Undefined names are errors, nothing is escaped as HTML, and no method of a plan's parts can be called: those of
    pydantic read files, and some of them pickles. What Jinja makes up by chance is not there: files are to come out the
    same again."""

    def __init__(self, *folders: Path) -> None:
        super().__init__(
            loader=_Templates([str(folder) for folder in folders]),
            undefined=Undefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self.filters.update(sh=sh, line=line, slug=slug, yaml=as_yaml)
        del self.filters["random"], self.globals["lipsum"]

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(getattr(obj, "__self__", None), _PLAIN):
            return super().is_safe_callable(obj)
        ours = obj in vars(summary.FUNCTIONS).values() or obj in self.globals.values()
        jinjas = isinstance(obj, Macro) or type(getattr(obj, "__self__", obj)).__module__.startswith("jinja2.")
        return (ours or jinjas) and super().is_safe_callable(obj)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call as Jinja does, with the name of what may not be called instead of all that it holds."""
        if not self.is_safe_callable(obj):
            raise SecurityError(f"{getattr(obj, '__qualname__', type(obj).__name__)} may not be called by a template")
        return super().call(context, obj, *args, **kwargs)

    def filled(self, name: str, values: dict[str, object]) -> str:
        """Return the text that the template makes. Raises InputError, with the place in a template, for one that is
        wrong.
        """
        try:
            made = StringIO()
            for part in self.get_template(name).generate(values):
                if made.tell() + len(part) > MOST_LETTERS:
                    raise InputError(
                        "gives a file that is too large",
                        file=self._file(name),
                        need=f"at most {MOST_LETTERS:,} letters",
                    )
                made.write(part)
            return made.getvalue()
        except TemplateSyntaxError as error:
            raise InputError(
                f"is no template: {error.message}", file=error.filename or error.name or name, line=error.lineno
            ) from None
        except TooLongError as error:
            what = f"takes longer than {MOST_SECONDS} s; a loop within loops?"
            raise InputError(self._placed(name, error, what)) from None
        except TemplateNotFound as error:
            problem = self._placed(name, error, f"asks for a template that is not there: {error.name!r}")
            raise InputError(problem) from None
        except TemplateError as error:
            undefined = _UNDEFINED.fullmatch(str(error))
            hint = _meant(undefined[1], values) if undefined else None
            sentence = shorten(str(error), 200).rstrip(".")
            raise InputError(self._placed(name, error, f"cannot be filled: {sentence}", hint)) from None
        except _OF_EXPRESSIONS as error:
            sentence = "it uses more memory than it may" if isinstance(error, MemoryError) else shorten(str(error), 200)
            raise InputError(
                self._placed(name, error, f"cannot be filled: {sentence or type(error).__name__}")
            ) from None

    def _placed(self, name: str, error: BaseException, what: str, hint: str | None = None) -> Problem:
        """Return a problem at the innermost line of a template that the error came through: Jinja puts them into the
        traceback.
        """
        known = self._folders()
        frames = traceback.extract_tb(error.__traceback__)
        lines = [(frame.filename, frame.lineno) for frame in frames if frame.filename.startswith(known)]
        file, number = lines[-1] if lines else (self._file(name), None)
        return Problem(what, file=file, line=number, hint=hint)

    def _folders(self) -> tuple[str, ...]:
        assert isinstance(self.loader, FileSystemLoader)
        return tuple(self.loader.searchpath)

    def _file(self, name: str) -> str:
        """Return where the template of this name lies."""
        return next((str(path) for folder in self._folders() if (path := Path(folder) / name).is_file()), name)


def _meant(name: str, values: Mapping[str, object]) -> str | None:
    """Say what to write where there is no such name. One that is given, and yet undefined, is in a template that was
    imported: Jinja lets those see nothing of it unless asked to.
    """
    return "{% import … with context %}" if name in values else nearest(name, values)


class Undefined(StrictUndefined):
    """Jinja's undefined value that says which name of the same object is like the missing one."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        text = super()._undefined_message
        if self._undefined_hint:  # of the sandbox, which forbids the name
            return text
        known = _names(self._undefined_obj)
        meant = nearest(str(self._undefined_name), known) if known else None
        return f"{text}; there is {meant!r}" if meant else text


def _names(value: object) -> list[str]:
    """Return what a template can name in a part of a plan."""
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    if isinstance(value, BaseModel):
        return list(type(value).model_fields)
    if value is summary.FUNCTIONS:
        return list(vars(value))
    return [key for key in value if isinstance(key, str)] if isinstance(value, dict) else []


@cache
def environment(*folders: Path) -> Sandbox:
    """Return the sandbox over these folders; the first that has a template wins."""
    return Sandbox(*folders)


# PyYAML quotes what YAML 1.1 would read as something else than text, by its own reading; Go's libraries (Kubernetes)
# and YAML 1.2 take 1e-4, 0o17 and y for numbers and for true. All that any of them does begins with no letter, or is
# one of these words. Source: resolve.go of gopkg.in/yaml.v2 and v3; yaml.org, 1.1 types and 1.2 core schema.
_A_WORD = re.compile(r"[A-Za-z/].*")
_NO_TEXTS = ("y", "yes", "on", "true", "n", "no", "off", "false", "null", "nan", "inf")


class _Dumper(yaml.SafeDumper):
    """Text is text to every reader; that of several lines stays in lines, where YAML can say it so."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    plain = _A_WORD.fullmatch(text) and text.lower() not in _NO_TEXTS
    style = None if plain else "'"
    if "\n" in text:  # lines after a first one that is empty or begins with a blank count their indent from the parent
        style = '"' if text[0].isspace() else "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(value: object, indent: int = 0) -> str:
    """Write a value as YAML, without the last line end; a mapping or a list in block style, so many blanks deep."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, sort_keys=False, width=10**6)
    text = text.removesuffix("\n").removesuffix("\n...")
    return re.sub(r"\n(?!\n)", "\n" + " " * indent, text)
