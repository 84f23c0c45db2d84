"""A module on its way to a program: traced, walked, and with names for its dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from symconfig.errors import InputError
from symconfig.graph.program.torch_source.export import traced
from symconfig.graph.program.torch_source.lower import Lowered, lower
from symconfig.graph.program.torch_source.static import static
from symconfig.graph.program.torch_source.walk import Walked, walk


@dataclass(frozen=True, slots=True)
class Lowering:
    exported: ExportedProgram
    walked: Walked
    lowered: Lowered
    paths: Mapping[str, str]  # of every name of a parameter the first one: tied parameters have several


def lowered(module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object], name: str) -> Lowering:
    """Trace a module on the meta device, and say its operators over named dims. Raises InputError as `load_module`."""
    with static(module) as notes:
        exported = traced(module, args, kwargs, name)
    first: dict[int, str] = {}
    paths = {
        path: first.setdefault(id(weight), path) for path, weight in module.named_parameters(remove_duplicate=False)
    }
    walked = walk(exported, paths)
    if not walked.outputs:
        raise InputError(f"no output of {name} depends on a weight that is trained", need="a loss or logits")
    program = lower(walked.recorder, walked.inputs, walked.parameters, walked.outputs, name, notes=notes)
    return Lowering(exported, walked, program, paths)
