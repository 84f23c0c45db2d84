"""Jinja in a sandbox of its own kind: templates may be a user's, and what they are given are live objects."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from symconfig.errors import InputError, Problem
from symconfig.render import summary
from symconfig.render.files import line, sh, slug

_PLAIN = (str, int, float, bool, list, tuple, dict)


class Sandbox(ImmutableSandboxedEnvironment):
    """Undefined names are errors, nothing is escaped as HTML, and no method of a plan's parts can be called: those of
    pydantic read files, and some of them pickles."""

    def __init__(self, *folders: Path) -> None:
        super().__init__(
            loader=FileSystemLoader([str(folder) for folder in folders]), undefined=StrictUndefined, autoescape=False,
            trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        self.filters.update(sh=sh, line=line, slug=slug, yaml=as_yaml)

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(getattr(obj, "__self__", None), _PLAIN):
            return super().is_safe_callable(obj)
        ours = obj in vars(summary.FUNCTIONS).values() or obj in self.globals.values()
        jinjas = isinstance(obj, Macro) or type(getattr(obj, "__self__", obj)).__module__.startswith("jinja2.")
        return (ours or jinjas) and super().is_safe_callable(obj)

    def filled(self, name: str, values: dict[str, object]) -> str:
        """The text that the template makes. Raises InputError, with its file and line, for one that is wrong."""
        try:
            return self.get_template(name).render(values)
        except TemplateSyntaxError as error:
            raise InputError(Problem(f"is no template: {error.message}", file=error.filename or error.name or name,
                                     line=error.lineno)) from None
        except TemplateError as error:
            raise InputError(Problem(f"cannot be filled: {error}", file=name)) from None


@cache
def environment(*folders: Path) -> Sandbox:
    """The sandbox over these folders; the first that has a template wins."""
    return Sandbox(*folders)


class _Dumper(yaml.SafeDumper):
    """Text of several lines stays in lines, where YAML can say it so."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(value: object, indent: int = 0) -> str:
    """A value as YAML, without the last line end; a mapping or a list in block style, so many blanks deep."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, sort_keys=False, width=10**6)
    text = text.removesuffix("\n").removesuffix("\n...")
    return re.sub(r"\n(?!\n)", "\n" + " " * indent, text)
