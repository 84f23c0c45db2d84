"""What other packages add by entry points: targets, launchers, rules of an audit and models.

Nothing is looked for before a name is asked that is none of symconfig's own, or everything of a kind is. What is wrong
with a plug-in is an InputError with its name, its package and the reason; SYMCONFIG_PLUGINS=none does without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from symconfig.errors import InputError, SymconfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = Literal["targets", "launchers", "rules", "models"]
SWITCH = "SYMCONFIG_PLUGINS"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point of a package, which names a module with the attributes that its kind needs (docs/plugins.md)."""

    kind: Kind
    name: str
    package: str
    entry: EntryPoint

    def attribute(self, name: str, kind: type[T]) -> T:
        """Return what the plug-in's module has under a name. Raises InputError."""
        value = getattr(self.module(), name, None)
        if not isinstance(value, kind):
            what = "is missing" if value is None else f"is of type {type(value).__name__}"
            raise self.wrong(f"{self.entry.value} needs {name} of type {kind.__name__}, which {what}")
        return value

    def guarded(self, function: Callable[..., Any], *passing: type[Exception]) -> Callable[..., Any]:
        """Return the plug-in's function with its own mistakes said as this plug-in's. passing: none of them."""

        passed: tuple[type[Exception], ...] = (SymconfigError, *passing)

        @contextmanager
        def blamed() -> Iterator[None]:
            try:
                yield
            except passed:
                raise
            except Exception as error:
                raise self.wrong(f"{function.__name__} stopped with {_described(error)}") from error

        def each(made: Iterator[Any]) -> Iterator[Any]:
            with blamed():
                yield from made

        @wraps(function)
        def call(*values: object) -> Any:
            with blamed():
                made = function(*values)
            return each(made) if isinstance(made, Iterator) else made

        return call

    def wrong(self, what: str) -> InputError:
        """Say what is wrong with the plug-in."""
        hint = f"pip install --upgrade {self.package}, pip uninstall {self.package}, or {SWITCH}=none"
        return InputError(what, field=f"plug-in {self.name} (symconfig.{self.kind} of {self.package})", hint=hint)

    def module(self) -> Any:
        """Import what the entry point names. Raises InputError."""
        try:
            return self.entry.load()
        except (Exception, SystemExit) as error:
            raise self.wrong(f"{self.entry.value} cannot be loaded: {_described(error)}") from error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": .")


@cache
def plugins(kind: Kind) -> Mapping[str, Plugin]:
    """Find the plug-ins of a kind by name, and load none. Raises InputError where two packages have the same name."""
    if os.environ.get(SWITCH) == "none":
        return {}
    from importlib.metadata import entry_points

    loaded: dict[str, Plugin] = {}
    for entry in sorted(entry_points(group=f"symconfig.{kind}"), key=lambda entry: (entry.name, entry.value)):
        plugin = Plugin(kind, entry.name, entry.dist.name if entry.dist is not None else "a package", entry)
        if (other := loaded.get(entry.name)) is not None and other.entry != entry:
            raise plugin.wrong(f"{other.package} has one of the same name")
        loaded[entry.name] = plugin
    return loaded


def added(kind: Kind, own: Container[str]) -> Mapping[str, Plugin]:
    """Return the plug-ins of a kind. own: names that are symconfig's. Raises InputError for one with such a name."""
    for name, plugin in plugins(kind).items():
        if name in own:
            raise plugin.wrong("is the name of one of symconfig's own")
    return plugins(kind)
