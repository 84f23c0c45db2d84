"""The module that a user names: found, built without memory, and traced."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from symconfig import install
from symconfig.errors import InputError
from symconfig.graph.program.program import Program

NEED = "PACKAGE.MODULE:FACTORY, a function without arguments that returns (module, example_inputs)"


def load_module(source: str) -> Program:
    """Return the forward pass of the module that `PACKAGE.MODULE:FACTORY` makes, as a program.

    The factory returns a module and example inputs (a tuple of arguments, a dict of named ones, or one tensor), or a
    module with the attribute `example_inputs`. It runs with the meta device as default, so nothing takes memory. The
    module is traced as it is, training or not; outputs that are single numbers are the losses. The first dim of the
    first example input that is read counts the examples. Raise InputError if nothing has that name, torch is missing,
    the module cannot be traced, no output depends on a trained weight, or operators have no rule (all are named). Other
    exceptions of the factory pass through.
    """
    return program_of(*made(source), source)


def made(source: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return (module, positional inputs, named inputs) from a factory, all on the meta device.

    The current folder is searched for modules, too. Raise InputError if nothing has that name, torch is missing, or
    the factory makes no module with example inputs. Other exceptions of the factory pass through.
    """
    torch = _torch()
    package, colon, name = source.partition(":")
    if not (package and colon and name):
        raise InputError("not the name of a factory", got=repr(source), need=NEED)
    with _current_folder_importable():
        try:
            thing: Any = importlib.import_module(package)
        except ImportError as error:
            raise InputError(f"{package} cannot be imported: {error}", need=NEED) from error
        for part in name.split("."):
            if not hasattr(thing, part):
                raise InputError(f"{package} has no {name}", need=NEED)
            thing = getattr(thing, part)
        with torch.device("meta"):
            return _module_on_meta(thing, source, torch)


def program_of(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Program:
    """Return the program of a module on the meta device, called with these arguments.

    Raise InputError if torch is missing, the module cannot be traced, no output depends on a trained weight, or
    operators have no rule. name: of the program and in errors.
    """
    _torch()
    from symconfig.graph.program.torch_source.lower import lowered

    return lowered(module, args, kwargs, name).program


def program_of_module(module: Any, inputs: Any) -> Program:
    """Return the program of a module called with these inputs (a tuple, a dict, or one tensor), traced in a copy on the
    meta device: the module keeps its weights. The program has the name of the module's class. Raise InputError if torch
    is missing, the module cannot be traced, no output depends on a trained weight, or operators have no rule.
    """
    torch = _torch()
    empty: dict[int, Any] = {id(one): one.detach().to("meta") for one in module.buffers()}
    for one in module.parameters():
        empty[id(one)] = torch.nn.Parameter(one.detach().to("meta"), requires_grad=one.requires_grad)
    name = type(module).__name__
    return program_of(*_module_on_meta((deepcopy(module, empty), inputs), name, torch), name)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise InputError("a PyTorch module needs PyTorch, which is not installed", hint=install.TORCH) from error


def _module_on_meta(factory: Any, source: str, torch: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return (module, positional inputs, named inputs), moved to the meta device, from a factory or a module itself.

    A factory is called; inputs are the second of two things that it returns, else the module's `example_inputs`. A dict
    gives named inputs, a list or tuple positional ones, anything else is a single one. Raise InputError without a
    module or inputs.
    """
    made = factory() if callable(factory) and not isinstance(factory, torch.nn.Module) else factory
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{source} made no module", got=type(module).__name__, need=NEED)
    inputs = getattr(module, "example_inputs", None) if inputs is None else inputs
    if inputs is None:
        raise InputError(
            f"{source} gave no example inputs", need=NEED, hint="or a module with the attribute example_inputs"
        )
    args = () if isinstance(inputs, Mapping) else tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}
    moved = torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    return module.to("meta"), *moved


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """Put the current folder first in the module search path inside the context, as `python -m` does; if it is in the
    path already, nothing changes.
    """
    path = os.getcwd()
    added = path not in sys.path
    if added:
        sys.path.insert(0, path)
    try:
        yield
    finally:
        if added and path in sys.path:
            sys.path.remove(path)
