"""The Python file of a partitioned module: the program that runs it, and its traced graph as a function to read."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from math import prod
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from symconfig.errors import InputError
from symconfig.graph.program.torch_source.lower import path_of
from symconfig.solve.partition.placements import WITHIN_NOTE
from tools.partitions.executed.build import Executed, computed, inputs

OWN = {"dispatch": "to_experts", "combine": "from_experts"}  # operators of symconfig: functions of run_kernels
WITHIN = WITHIN_NOTE.partition("}")[2]
PARTS = ("run_moves", "run_kernels", "run_step")
_HEAD = '''"""{source}, split over a device mesh of {ranks} ranks: trains under torchrun, with torch alone.

    from {stem} import apply

    apply(module)                          # parameters become DTensors, forward the graph at the end of this file
    optimizer = torch.optim.AdamW(module.parameters())
    loss, *_ = module(...)                 # every rank is given the whole batch, in the shapes of the example inputs
    loss.backward()
    optimizer.step()

{stem}.json beside this file says how parameters are kept and how each operator reads and makes its tensors.
{sentences}
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
NAMES = {names}  # of inputs that are given by name, in order of the trace


def apply(module: nn.Module, mesh: DeviceMesh | None = None, *, seed: int = 0) -> nn.Module:
    """Make a module's parameters DTensors, and its forward the partitioned graph. All ranks begin with the same weights
    and are given the same inputs. mesh: by default as the table says; seed: of dropout."""
    table = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    if mesh is None:
        device = next(module.parameters()).device.type
        mesh = init_device_mesh(device, tuple(table["mesh"]["shape"]), mesh_dim_names=tuple(table["mesh"]["names"]))
    if list(mesh.shape) != table["mesh"]["shape"]:
        raise ValueError(f"the mesh is {{list(mesh.shape)}}, and the partition is for {{table['mesh']['shape']}}")
    distribute(module, mesh, table["parameters"])
    layouts, times = [read_layout(entry) for entry in table["layouts"]], count()

    def run(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        step = Step(mesh, table["nodes"], layouts, module, seed * 2**32 + next(times))
        outputs, kept = forward(step, *map(step.input, arguments(args, kwargs, NAMES, table["inputs"])))
        with torch.no_grad():
            for path, value in kept.items():
                module.get_buffer(path).copy_(step.moved(value, step.whole))
        return tuple(step.result(value) for value in outputs)

    module.forward = run
    return module


{code}

def forward(step: Step, {inputs}: Value) -> Any:
    """The module as it was traced. The first word of each call is its entry in the table."""
    device = step.mesh.device_type
{body}
'''


def python(one: Executed, source: str, stem: str) -> str:
    """Return the file's text. stem: its name, and that of the table beside it."""
    return _HEAD.format(
        source=source,
        stem=stem,
        ranks=" x ".join(str(dim.size) for dim in one.mesh) or "1",
        sentences="\n".join(sentences(one)),
        names=repr(_names(one)),
        code="\n\n".join(map(_code, PARTS)),
        inputs=": Value, ".join(node.name for node in inputs(one.lowering)),
        body="\n".join(f"    {line}" for line in _body(one)),
    )


def _code(part: str) -> str:
    """Return a module of this package without its docstring and imports."""
    given = files("tools.partitions.executed").joinpath(f"{part}.py").read_text(encoding="utf-8")
    imports = [node for node in ast.parse(given).body[1:] if isinstance(node, (ast.Import, ast.ImportFrom))]
    code = "\n".join(given.splitlines()[imports[-1].end_lineno or 0 :]).strip() + "\n"
    return code.replace("  # type: ignore[misc]", "")


def text(table: Mapping[str, Any]) -> str:
    """Return the table as JSON, an entry a line."""
    parts = []
    for key, value in table.items():
        if isinstance(value, dict) and key in ("parameters", "nodes"):
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{rows}\n }}")
        elif isinstance(value, list):
            rows = ",\n".join(f"  {json.dumps(entry)}" for entry in value)
            parts.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def sentences(one: Executed) -> list[str]:
    """Return as sentences what runs or is kept otherwise than the solver chose, and what that costs."""
    return [*_run_whole(one), *_kept(one)]


def _kept(one: Executed) -> Iterator[str]:
    """Yield the parameters that cannot be DTensors."""
    entries = one.placements.parameters.values()
    states = sum("stage" in entry.note for entry in entries)
    if states:
        yield (
            f"The optimizer's states of {states} parameters lie as the weights do, where the solver cuts them further "
            "(ZeRO 1 and 2)."
        )
    within = [entry for entry in entries if WITHIN in entry.note]
    if within:
        elements = sum(prod(entry.local) for entry in within)
        yield (
            f"{len(within)} parameters, {elements:,} elements on each rank, are kept whole where the solver cuts them "
            "within a stored dim; operators use their parts."
        )


def _run_whole(one: Executed) -> list[str]:
    if not one.gathered:
        return ["Every operator runs as the solver split it."]
    groups: dict[tuple[str, str], list[Any]] = {}
    for gathered in one.gathered:
        groups.setdefault((gathered.mesh, gathered.why), []).append(gathered)
    total = sum(gathered.bytes_each for gathered in one.gathered)
    lines = [
        f"{len({gathered.node for gathered in one.gathered})} of {len(one.ran)} operators of PyTorch run whole where "
        f"the solver split them, for which each rank gets {total / 1e6:.3g} MB more in a forward pass:"
    ]
    for (mesh, why), some in groups.items():
        names = sorted({gathered.node for gathered in some})
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(f"- over {mesh}: {shown}: {why}.")
    return lines


def _names(one: Executed) -> tuple[str, ...]:
    spec = one.lowering.exported.call_spec.in_spec
    return tuple(spec.child(1).context or ())


def _body(one: Executed) -> Iterator[str]:
    """Yield the statements of the function: a comment for each module, and names given back after it."""
    lowering = one.lowering
    exported = lowering.exported
    outputs = next(node for node in exported.graph.nodes if node.op == "output").args[0]
    words = dict(_words(one))
    nodes = computed(lowering)
    last: dict[Node, int] = {}
    for at, node in enumerate(nodes):
        for source in node.all_input_nodes:
            last[source] = at
    kept = {node for node in outputs if isinstance(node, Node)}
    path = None
    open_ones: list[Node] = []
    for at, node in enumerate(nodes):
        if path_of(node) != path:
            gone = [x.name for x in open_ones if last.get(x, -1) < at and x not in kept]
            if gone:
                yield f"del {', '.join(gone)}"
                open_ones = [x for x in open_ones if x.name not in gone]
            path = path_of(node)
            if path:
                yield f"# {path}"
        yield f"{node.name} = {_call(node, words)}"
        open_ones.append(node)
    ends, buffers = [], []
    for node, spec in zip(outputs, exported.graph_signature.output_specs, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(node, Node):
            ends.append(_word(node, words))
        elif spec.kind is OutputKind.BUFFER_MUTATION:
            buffers.append(f"{str(spec.target)!r}: {_word(node, words)}")
    yield f"return [{', '.join(ends)}], {{{', '.join(buffers)}}}"


def _words(one: Executed) -> Iterator[tuple[Node, str]]:
    """Yield, of each placeholder that is a parameter, a buffer or a constant, how the function gets it."""
    exported, paths = one.lowering.exported, one.lowering.paths
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    written = set(exported.graph_signature.buffers_to_mutate.values())
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = specs[node.name]
        if spec.kind is InputKind.PARAMETER:
            yield node, f"step.weight({paths[str(spec.target)]!r})"
        elif spec.kind is InputKind.BUFFER:
            yield node, f"step.buffer({str(spec.target)!r}{', written=True' if spec.target in written else ''})"
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            value = exported.constants[str(spec.target)]
            if value.is_meta or value.numel() > 1000:
                what = "the module makes a tensor while it runs, whose numbers a trace on the meta device has not"
                raise InputError(what, got=str(spec.target), hint="make it a buffer")
            yield node, f"step.input(torch.tensor({value.tolist()!r}, dtype={value.dtype}, device=device))"


def _call(node: Node, words: Mapping[Node, str]) -> str:
    if not hasattr(node.target, "_schema"):
        return f"{_word(node.args[0], words)}[{node.args[1]}]"
    args = [_word(arg, words) for arg in node.args]
    args += [f"{name}={_word(arg, words)}" for name, arg in node.kwargs.items()]
    space, op, overload = str(node.target).split(".")
    target = f"aten.{op}.{overload}" if space == "aten" else OWN[op]
    return f"step.run({', '.join([repr(node.name), target, *args])})"


def _word(arg: Any, words: Mapping[Node, str]) -> str:
    if isinstance(arg, Node):
        return words.get(arg, arg.name)
    if isinstance(arg, (list, tuple)):
        return f"[{', '.join(_word(one, words) for one in arg)}]"
    if isinstance(arg, torch.device):
        return "device"
    if isinstance(arg, float) and arg in (float("inf"), float("-inf")):
        return f'float("{arg}")'
    return repr(arg)
