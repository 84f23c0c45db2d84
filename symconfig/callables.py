"""Modules that are functions, too: `symconfig.plan` and `symconfig.audit` hold what their names say, and do it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_FUNCTIONS = {
    "symconfig.plan": "symconfig.api",
    "symconfig.audit": "symconfig.api_audit",
    "symconfig.adapt": "symconfig.api_audit",
    "symconfig.replan": "symconfig.api_replan",
    "symconfig.sweep": "symconfig.api_sweep",
}


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function of the module's own name, as promised to users."""
        return getattr(import_module(_FUNCTIONS[self.__name__]), self.__name__.rpartition(".")[2])(*args, **kwargs)


def make_callable(module: str) -> None:
    """Let calling the module of this name call its function."""
    sys.modules[module].__class__ = _Callable
