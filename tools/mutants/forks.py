"""Tests in processes of their own, each a fork of one that has imported the code already."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tools.mutants.changes import Mutant

OWN = ("symconfig", "tests")


def in_fork(work: Callable[[], int], seconds: float) -> int | None:
    """The exit status of what runs in a process of its own; None where it took more seconds of a processor.

    By the clock it may take much longer, as other programs' work goes on beside it.
    """
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            status = work()
        finally:
            os._exit(status)
    end = time.monotonic() + 5 * seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class _InOrder:
    """Tests as they were asked for, quickest first, and not as tests/conftest.py would have them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.place = {name: index for index, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.place.get(item.nodeid, self.place.get(item.nodeid.partition("::")[0], 0)))


def run_tests(tree: Path, names: Sequence[str], afresh: bool = True, plugins: Sequence[object] = ()) -> int:
    """In this process: pytest's exit status on the tests of a copy. afresh: all of its modules are imported again."""
    os.chdir(tree)
    if afresh:
        for name in [name for name in sys.modules if name.split(".")[0] in OWN and not name.startswith(__package__)]:
            del sys.modules[name]
        sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return int(pytest.main([*options, *names], plugins=[_InOrder(names), *plugins]))


def patched(module: ModuleType, mutant: Mutant) -> bool:
    """Give the one function that the mutant changes its new code, where everybody who imported it has it.

    False where it cannot be done so: what runs on import has changed, or the function cannot be found by its name.
    """
    assert module.__file__ is not None
    before = compile(Path(module.__file__).read_text(encoding="utf-8"), module.__file__, "exec")
    changed = _changed(before, compile(mutant.code, module.__file__, "exec"), ())
    if changed is None:
        return False
    names, code = changed
    function = _function(module, names)
    if function is None or function.__code__.co_freevars != code.co_freevars:
        return False
    function.__code__ = code
    return True


def _changed(before: CodeType, after: CodeType, names: tuple[str, ...]) -> tuple[tuple[str, ...], CodeType] | None:
    """The outermost function whose code differs, by its name and those of the classes that it lies in."""
    if names and "__qualname__" not in before.co_names:
        return names, after
    inner, others = _inner(before), _inner(after)
    if _own(before) != _own(after) or len(inner) != len(others):
        return None
    found = [(one, other) for one, other in zip(inner, others, strict=True) if one != other]
    if len(found) != 1:
        return None
    one, other = found[0]
    return _changed(one, other, (*names, one.co_name))


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _own(code: CodeType) -> tuple[object, ...]:
    """What a module or a class runs itself."""
    return code.co_code, code.co_names, [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]


def _function(module: ModuleType, names: tuple[str, ...]) -> FunctionType | None:
    """As it was written, without what decorators put around it."""
    found: Any = module
    for name in names:
        found = vars(found).get(name)
        while not isinstance(found, type | FunctionType) or hasattr(found, "__wrapped__"):
            inside = (getattr(found, one, None) for one in ("__wrapped__", "fget", "func", "__func__"))
            found = next((one for one in inside if one is not None), None)
            if found is None:
                return None
    return found if isinstance(found, FunctionType) else None
