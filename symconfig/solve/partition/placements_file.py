"""The table of placements as a short Python file that PyTorch runs."""

from __future__ import annotations

from symconfig.solve.partition.placements import ModulePlacement, Placement, Placements, TensorPlacement

_HEAD = '''"""Placements of {program} on a device mesh of {ranks} ranks, one for each mesh dim, outermost first.

A * in a path stands for a number. A parameter's shape is that of the planned program; a module that stores it otherwise
(transposed, fused) has its dims elsewhere.
"""

import re

from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

MESH_SHAPE = {shape}
MESH_DIM_NAMES = {names}

# Path of a parameter -> placements; beside it [shape] -> [shape on the first rank].
PARAMETERS = {{
{parameters}
}}

# Path of a module -> placements of what it reads (as it wants it) and of what it makes (as others find it).
MODULES = {{
{modules}
}}


def placements(path, table=PARAMETERS):
    """What a path lies as: its own entry, or that of the pattern that it matches."""
    if path in table:
        return table[path]
    for pattern, found in table.items():
        if re.fullmatch(re.escape(pattern).replace(r"\\*", r"\\d+"), path):
            return found
    raise KeyError(f"{{path}} is not in the plan")


def distribute(module, mesh):
    """Every parameter of the module as a DTensor on the mesh (`init_device_mesh(device, MESH_SHAPE,
    mesh_dim_names=MESH_DIM_NAMES)`). A parameter with several paths stays one."""
    known = {{}}
    for path, parameter in list(module.named_parameters(remove_duplicate=False)):
        if id(parameter) not in known:
            tensor = distribute_tensor(parameter.detach(), mesh, placements(path))
            known[id(parameter)] = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
        owner, _, name = path.rpartition(".")
        module.get_submodule(owner).register_parameter(name, known[id(parameter)])
    return module
'''


def python(placements: Placements) -> str:
    """Return the text of a Python file with the tables of placements and functions that apply them."""
    return _HEAD.format(
        program=placements.program,
        ranks=" x ".join(str(dim.size) for dim in placements.mesh) or "1",
        shape=_tuple([str(dim.size) for dim in placements.mesh]),
        names=_tuple([repr(dim.name) for dim in placements.mesh]),
        parameters="\n".join(
            f"    {path!r}: {_placed(entry.placements)},  # {list(entry.shape)} -> {list(entry.local)}"
            for entry in placements.parameters
            for path in _keys(entry.path, entry.paths)
        ),
        modules="\n".join(
            _module(entry, path) for entry in placements.modules for path in _keys(entry.path, entry.paths)
        ),
    )


def _keys(path: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    return (path,) if "*" in path else paths


def _module(entry: ModulePlacement, path: str) -> str:
    both = (("inputs", entry.inputs), ("outputs", entry.outputs))
    lines = "\n".join(f"        {side!r}: {{{_tensors(tensors)}}}," for side, tensors in both)
    return f"    {path!r}: {{\n{lines}\n    }},"


def _tensors(tensors: tuple[TensorPlacement, ...]) -> str:
    return ", ".join(f"{tensor.name!r}: {_placed(tensor.placements)}" for tensor in tensors)


def _placed(placed: tuple[Placement, ...]) -> str:
    return _tuple([str(placement) for placement in placed])


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
