"""The module that a user names: found, built without memory, traced, and simplified: chains of element-wise operators
become single operators, as compilers fuse them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import takewhile
from typing import Any

from symconfig import install
from symconfig.errors import InputError
from symconfig.graph.operator import Operator, Split, Use, Work
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
    """Return the program of a module on the meta device, called with these arguments, with chains of element-wise
    operators joined (`tidy`).

    Raise InputError if torch is missing, the module cannot be traced, no output depends on a trained weight, or
    operators have no rule. name: of the program and in errors.
    """
    _torch()
    from symconfig.graph.program.torch_source.lower import lowered

    return tidy(lowered(module, args, kwargs, name).program)


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


def tidy(program: Program) -> Program:
    """Return an equivalent program with each chain of element-wise operators (see `leaders`) as one operator at the
    place of its last, without the tensors inside a chain and without unused dims.
    """
    operators = program.operators
    leader = leaders(program)
    parts: dict[int, list[Operator]] = {}
    for index, op in enumerate(operators):
        parts.setdefault(leader[index], []).append(op)
    made = tuple(_chain_operator(program, parts[index]) for index in sorted(parts))
    seen = {operand.name for op in made for operand in (*op.inputs, *op.outputs, *op.residues)}
    seen |= {parameter.tensor.name for parameter in program.parameters} | set(program.outputs)
    tensors = {name: tensor for name, tensor in program.tensors.items() if name in seen}
    used = {dim for tensor in tensors.values() for dim in tensor.dims} | {loop for op in made for loop in op.loops}
    sizes = {dim: size for dim, size in program.sizes.items() if dim in used}
    return replace(program, operators=made, tensors=tensors, sizes=sizes)


def leaders(program: Program) -> list[int]:
    """Return, for each operator, the index of the last operator of its chain; its own index if it joins none.

    An operator joins the one chain that reads all its results if: both ends are memory-bound, split single loops and
    have no halo; the results are read along the loops that they are made in, and none is a program output; sums inside
    stay in the chain (`_sums_stay_inside`); both or neither have a backward; and an addition of several origins (see
    `_adding_several_origins`) joins only a chain that is linear throughout.
    """
    operators = program.operators
    readers: dict[str, list[tuple[int, Use]]] = {}
    for index, op in enumerate(operators):
        for operand in op.inputs:
            readers.setdefault(operand.name, []).append((index, operand))
    leader = list(range(len(operators)))
    simple, linear = [_can_be_chained(op) for op in operators], [op.linear for op in operators]
    sums = _adding_several_origins(program, {tensor for tensor, some in readers.items() if len(some) > 1})
    ends = set(program.outputs)
    for index in reversed(range(len(operators))):
        op = operators[index]
        reads = [(at, operand, output) for output in op.outputs for at, operand in readers.get(output.name, [])]
        chains = {leader[at] for at, _, _ in reads}
        if not simple[index] or len(chains) != 1 or any(output.name in ends for output in op.outputs):
            continue
        last = operators[chains.pop()]
        alike = all(operand.loops == output.loops for _, operand, output in reads)
        free = op.name not in sums or linear[leader[reads[0][0]]]
        if alike and free and _can_be_chained(last) and _sums_stay_inside(op, last) and op.backward == last.backward:
            leader[index] = leader[reads[0][0]]
            linear[leader[index]] &= op.linear
    return leader


def _adding_several_origins(program: Program, shared: Collection[str]) -> set[str]:
    """Return the names of linear operators that add tensors of several origins: they can work on partial sums, but
    could not inside a chain.

    An origin is the result of a product or a tensor that several operators read (`shared`); element-wise steps keep
    the origin of their input.
    """
    weights = {parameter.tensor.name for parameter in program.parameters}
    origins: dict[str, frozenset[str]] = {}
    sums = set()
    for op in program.operators:
        flowing = (x.name for x in op.inputs if x.gradient and x.name not in weights)
        mine = frozenset[str]().union(*(origins.get(tensor, {tensor}) for tensor in flowing))
        if op.linear and len(mine) > 1:
            sums.add(op.name)
        for output in op.outputs:
            end = not _can_be_chained(op) or output.name in shared
            origins[output.name] = frozenset({output.name}) if end else mine
    return sums


def _can_be_chained(op: Operator) -> bool:
    return op.work is Work.MEMORY and all(len(split.loops) == 1 and not split.halo for split in op.splits)


def _sums_stay_inside(op: Operator, last: Operator) -> bool:
    """Return whether an operator may precede `last` in a chain as far as its sums go: every loop that its outputs lack
    is a loop of the last operator's outputs, as in a norm, or none of its splits begins with a loop that they lack.
    """
    out = {loop for output in last.outputs for loop in output.loops}
    mine = {loop for output in op.outputs for loop in output.loops}
    return set(op.loops) - mine <= out or not any(split.loops[0] not in mine for split in op.splits)


def _chain_operator(program: Program, parts: Sequence[Operator]) -> Operator:
    """Return a chain as one operator; a single operator is returned as it is.

    Name, outputs, work and gradients are the last part's. It reads what no part makes, saves what any part saves
    (results of parts last), and is linear if all parts are. Its traffic moves the bytes that all parts move by theirs.
    Its path is that of the innermost module with all parts.
    """
    last = parts[-1]
    if len(parts) == 1:
        return last
    made = {operand.name: operand for op in parts for operand in op.outputs}
    inputs = tuple(dict.fromkeys(operand for op in parts for operand in op.inputs if operand.name not in made))
    saves = {use.name: made.get(use.name, use) for op in parts for use in op.saves}
    loops = tuple(dict.fromkeys(loop for op in parts for loop in op.loops))
    out = {loop for operand in last.outputs for loop in operand.loops}

    def once(uses: Iterable[Use]) -> float:
        return sum(use.tensor.bytes(program.sizes) for use in uses)

    levels = zip(*(op.path.split(".") for op in parts), strict=False)  # the innermost module that has all of them
    whole = once((*inputs, *last.outputs))
    moved = [(once((*op.inputs, *op.outputs)), op.traffic) for op in parts]
    return replace(
        last,
        loops=loops,
        inputs=inputs,
        splits=tuple(_splits(parts, loops)),
        contracted=tuple(loop for loop in loops if loop not in out),
        saves=tuple(sorted(saves.values(), key=lambda use: use.name in made)),
        linear=all(op.linear for op in parts),
        traffic=(sum(size * by[0] for size, by in moved) / whole, sum(size * by[1] for size, by in moved) / whole),
        path=".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)),
    )


def _splits(parts: Sequence[Operator], loops: Iterable[str]) -> Iterable[Split]:
    """Yield a split for each loop that all parts with this loop can split.

    sums: partial results reduced inside. For each part these are its own split's; if that has none, one if the part's
    outputs lack the loop, but for the last part only if an earlier one had any.
    """
    for loop in loops:
        sums = 0
        for op in parts:
            if loop in op.loops:
                split = next((split for split in op.splits if split.loops == (loop,)), None)
                if split is None:
                    break
                partial = all(loop not in output.loops for output in op.outputs)
                sums += split.sums or int(partial and (op is not parts[-1] or sums > 0))
        else:
            yield Split((loop,), sums)
