"""The Python file of a partitioned module: the program that runs it, and its traced graph as a function to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from symconfig.errors import InputError, Problem
from symconfig.graph.program.torch_source.walk import path_of
from symconfig.solve.partition.executed.build import Executed, computed

TABLE = "{stem}.json"
OWN = {"dispatch": "to_experts", "combine": "from_experts"}  # operators of symconfig: functions of the runtime
_HEAD = '''"""{source}, split over a device mesh of {ranks} ranks by symconfig: trains under torchrun with torch alone.

    from {stem} import apply

    module = apply(module)                 # parameters become DTensors, forward the graph below
    optimizer = torch.optim.AdamW(module.parameters())
    loss, *_ = module(...)                 # on every rank the same inputs: the whole batch of the example inputs
    loss.backward()
    optimizer.step()

{table} beside this file says how each operator is split and how each parameter is kept.
{said}
"""
'''
_APPLY = '''

HERE = Path(__file__).with_suffix(".json")
NAMES = {names}  # of inputs that are given by name, in order of the trace


def mesh_of(device: str) -> DeviceMesh:
    """Return the device mesh of the table, outermost dim first."""
    mesh = json.loads(HERE.read_text(encoding="utf-8"))["mesh"]
    return init_device_mesh(device, tuple(mesh["shape"]), mesh_dim_names=tuple(mesh["names"]))


def apply(module: nn.Module, mesh: DeviceMesh | None = None, *, seed: int = 0) -> nn.Module:
    """Make a module's parameters DTensors, and its forward the partitioned graph. All ranks begin with the same weights
    and are given the same inputs, in the shapes that were traced; seed: of dropout."""
    table = json.loads(HERE.read_text(encoding="utf-8"))
    mesh = mesh or mesh_of(next(module.parameters()).device.type)
    if list(mesh.shape) != table["mesh"]["shape"]:
        raise ValueError(f"the mesh is {{list(mesh.shape)}}, and the partition is for {{table['mesh']['shape']}}")
    distribute(module, mesh, table["parameters"])
    layouts, times = [read_layout(entry) for entry in table["layouts"]], count()

    def run(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        step = Step(mesh, table["nodes"], layouts, module, seed * 2**32 + next(times))
        outputs, kept = forward(step, *[step.input(x) for x in arguments(args, kwargs, NAMES) if isinstance(x, Tensor)])
        with torch.no_grad():
            for path, value in kept.items():
                module.get_buffer(path).copy_(step.moved(value, step.whole))
        return tuple(step.result(value) for value in outputs)

    module.forward = run
    return module


def forward(step: Step, {inputs}) -> Any:
    """The module as it was traced. The first word of each line is its entry in the table."""
    device = step.mesh.device_type
{body}
'''


def python(one: Executed, source: str, stem: str) -> str:
    """Return the file's text."""
    runtime = files("symconfig.solve.partition.executed").joinpath("runtime.py").read_text(encoding="utf-8")
    _, _, code = runtime.partition('"""\n\n')
    code = code.replace("import functools\n", "import functools\nimport json\n")
    code = code.replace(
        "from dataclasses import dataclass, field\n",
        "from dataclasses import dataclass, field\nfrom itertools import count\nfrom pathlib import Path\n",
    )
    code = code.replace("import DeviceMesh\n", "import DeviceMesh, init_device_mesh\n")
    lines = "\n".join(f"    {line}" for line in _body(one))
    head = _HEAD.format(
        source=source,
        stem=stem,
        table=TABLE.format(stem=stem),
        ranks=" x ".join(str(dim.size) for dim in one.mesh) or "1",
        said="\n".join(said(one)),
    )
    inputs = [node.name for node in _placeholders(one, InputKind.USER_INPUT) if _tensor(node)]
    return (
        head
        + "\n"
        + code.split("\n\n\n# ruff", 1)[0]
        + _APPLY.format(names=repr(_names(one)), inputs=", ".join(inputs), body=lines)
    )


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


def said(one: Executed) -> list[str]:
    """Return as sentences what runs otherwise than the solver chose, and what that costs."""
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


def _tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _placeholders(one: Executed, kind: InputKind) -> list[Node]:
    specs = {spec.arg.name: spec for spec in one.lowering.exported.graph_signature.input_specs}
    nodes = one.lowering.exported.graph.nodes
    return [node for node in nodes if node.op == "placeholder" and specs[node.name].kind is kind]


def _names(one: Executed) -> tuple[str, ...]:
    spec = one.lowering.exported.call_spec.in_spec
    return tuple(spec.child(1).context or ())


def _body(one: Executed) -> Iterator[str]:
    """Statements of the function: a comment for each module, and names given back after it."""
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
    """Of each placeholder that is a parameter, a buffer or a constant how the function gets it."""
    exported, paths = one.lowering.exported, one.lowering.paths
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = specs[node.name]
        if spec.kind is InputKind.PARAMETER:
            yield node, f"step.weight({paths[str(spec.target)]!r})"
        elif spec.kind is InputKind.BUFFER:
            yield node, f"step.buffer({str(spec.target)!r})"
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            value = exported.constants[str(spec.target)]
            if value.is_meta or value.numel() > 1000:
                what = "the module makes a tensor while it runs, whose numbers a trace on the meta device has not"
                raise InputError(Problem(what, got=str(spec.target), hint="make it a buffer"))
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
