"""Stand-ins for packages that a parser imports and does not use: Ray, vLLM, kernels."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Inert(ModuleType):
    """A module in which every name with a capital is a class of BASES, and every other one a module or a decorator."""

    BASES: tuple[type, ...] = ()
    VERSION: str | None = "99.0"  # newer than any minimum that is asked for

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "__version__" and self.VERSION is not None:
            return self.VERSION
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = type(name, self.BASES, {}) if name[0].isupper() else Inert(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self


class _Finder:
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found = ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return found if name.split(".")[0] in self.names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Inert(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in(*names: str, bases: tuple[type, ...] = (), version: str | None = "99.0", first: bool = True) -> None:
    """Let these packages be found, with classes of some bases: before a folder beside accept.py of the same name is;
    not first: where they are not installed."""
    Inert.BASES, Inert.VERSION = bases, version
    sys.meta_path.insert(0 if first else len(sys.meta_path), _Finder(names))  # type: ignore[arg-type]


class _Missing(_Finder):
    """Finds what is not installed, for modules of some packages, and for what they have found so."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top = name.split(".")[0]
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "importlib":
            frame = frame.f_back
        asking = frame.f_globals.get("__name__", "").split(".")[0]
        if top in (*self.names, *sys.stdlib_module_names) or asking not in self.names:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]


def stand_in_for(*asking: str) -> None:
    """Let these packages find whatever they import and is not installed."""
    sys.meta_path.append(_Missing(asking))  # type: ignore[arg-type]
