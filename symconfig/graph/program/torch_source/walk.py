"""The traced graph, operator by operator: each by its rule, and all that have none named at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from symconfig.graph.program.torch_source.call import Call, Result
from symconfig.graph.program.torch_source.recorder import Out, Recorder, Value
from symconfig.graph.program.torch_source.rules import IN_PLACE, RULES
from symconfig.graph.program.torch_source.rules.arithmetic import FILLED


@dataclass(frozen=True, slots=True)
class Walked:
    """inputs: that the user feeds. outputs: the loss, if there is one; or else all that is differentiable. values,
    steps: what each traced node stands for, and the numbers of the recorder's steps that it became."""

    recorder: Recorder
    inputs: tuple[Value, ...]
    parameters: Mapping[str, Value]
    outputs: tuple[Value, ...]
    values: Mapping[Node, Any]
    steps: Mapping[Node, range]


@dataclass(slots=True)
class _Walk:
    """constants: nodes that come of no parameter and no input; as tensors they are fed, where something reads them."""

    recorder: Recorder
    values: dict[Node, Any] = field(default_factory=dict)
    constants: dict[Node, str] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)
    steps: dict[Node, range] = field(default_factory=dict)

    def value(self, arg: Any) -> Any:
        """Return an argument with values in place of nodes."""
        if isinstance(arg, Node):
            if arg not in self.values:
                self.values[arg] = self._constant(arg)
            return self.values[arg]
        if isinstance(arg, (list, tuple)):
            return [self.value(item) for item in arg]
        return arg

    def call(self, node: Node) -> None:
        """Lower one operator; a constant if all that it reads are."""
        if node.target is getitem:
            source, index = node.args
            assert isinstance(source, Node)
            if source in self.constants:
                self.constants[node] = node.name
            else:
                given = self.values[source][index]
                wanting = f"output {index} of {source.target}"
                self.values[node] = self._missing(node, wanting) if given is None else given
        elif name_of(node) in FILLED or all(source in self.constants for source in node.all_input_nodes):
            self.constants[node] = node.name
        else:
            self.values[node] = self._recorded(node)

    def _constant(self, node: Node) -> Any:
        rule = IN_PLACE.get(name_of(node)) if node.op == "call_function" else None
        if rule is not None and node.all_input_nodes:
            return rule(self._call(node))
        made = node.meta["val"]
        if not made.numel():
            return None
        strides = made.stride()
        shape = [size if stride else 1 for size, stride in zip(made.shape, strides, strict=True)]
        value = self.recorder.fed(self.constants[node], shape, float(made.dtype.itemsize))
        return self.recorder.repeated(value, made.shape)

    def _recorded(self, node: Node) -> Any:
        known, results = RULES.get(name_of(node)), results_of(node)
        if not results or 0 in results[0].shape:  # nothing to compute
            return None
        several = isinstance(node.meta["val"], (list, tuple))
        try:
            if known is None:
                raise NotImplementedError
            call, first = self._call(node), len(self.recorder.steps)
            answer = known(call)
            self.steps[node] = range(first, len(self.recorder.steps))
            return answer if several or isinstance(answer, Value) else answer[0]
        except NotImplementedError as error:
            return self._missing(node, f"{node.target} ({error})" if known else str(node.target))

    def _missing(self, node: Node, operator: str) -> Any:
        """Return values to go on with, to find all that is missing. It matters only if an output needs it."""
        inputs = [self.value(source) for source in node.all_input_nodes]
        given = [value for value in inputs if isinstance(value, Value)]
        flows = any(value.gradient for value in given)
        outs = [Out([], made.shape, made.element_bytes, flows and made.floating) for made in results_of(node)]
        values = self.recorder.missing(self._named(node), path_of(node), operator, given, outs)
        return values if isinstance(node.meta["val"], (list, tuple)) else values[0]

    def _call(self, node: Node) -> Call:
        given: dict[str, Any] = {}
        for number, argument in enumerate(node.target._schema.arguments):
            if number < len(node.args):
                given[argument.name] = self.value(node.args[number])
            elif argument.name in node.kwargs:
                given[argument.name] = self.value(node.kwargs[argument.name])
            elif argument.has_default_value():
                given[argument.name] = argument.default_value
        return Call(self.recorder, name_of(node), self._named(node), path_of(node), given, results_of(node))

    def _named(self, node: Node) -> str:
        """Name a call, `layers.0.mlp.silu`: by the module that calls it, and numbered within that."""
        names = [path_of(node), name_of(node).partition(".")[2].strip("_")]
        name = ".".join(filter(None, names))
        self.times[name] += 1
        return name if self.times[name] == 1 else f"{name}_{self.times[name]}"


def walk(exported: ExportedProgram, paths: Mapping[str, str]) -> Walked:
    """Walk the graph. paths: of every name of a parameter the one name that it is known by (tied ones have several)."""
    steps = _Walk(Recorder())
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    inputs: list[Value] = []
    parameters: dict[str, Value] = {}
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            made = node.meta["val"]
            if spec.kind is InputKind.USER_INPUT and isinstance(made, torch.Tensor):
                steps.values[node] = value = steps.recorder.fed(node.name, made.shape, float(made.dtype.itemsize))
                inputs.append(value)
            elif spec.kind is InputKind.PARAMETER:
                path = paths[str(spec.target)]
                if path not in parameters:
                    width = float(made.dtype.itemsize)
                    parameters[path] = steps.recorder.fed(path, made.shape, width, made.requires_grad)
                steps.values[node] = parameters[path]
            else:
                steps.constants[node] = str(spec.target or node.name)
        elif node.op == "call_function":
            steps.call(node)
    returned: Any = next(node for node in exported.graph.nodes if node.op == "output").args[0]
    outputs = [
        (steps.value(node), node.meta["val"])
        for node, spec in zip(returned, exported.graph_signature.output_specs, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(node, Node)
    ]
    flows = [(value, made) for value, made in outputs if isinstance(value, Value) and value.gradient]
    losses = [value for value, made in flows if made.numel() == 1]
    ends = tuple(losses or [value for value, _ in flows])
    return Walked(steps.recorder, tuple(inputs), parameters, ends, steps.values, steps.steps)


def name_of(node: Node) -> str:
    """Return the operator's name: aten.add.Tensor -> aten.add; an operator in place is the one that returns what it
    made.
    """
    names = str(node.target).split(".")
    return ".".join(names[:2])


def path_of(node: Node) -> str:
    """Return the path of the innermost module that called it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).partition("@")[0] if stack else ""


def results_of(node: Node) -> tuple[Result, ...]:
    made = node.meta.get("val")
    several = made if isinstance(made, (list, tuple)) else [made]
    return tuple(
        Result(tuple(map(int, one.shape)), float(one.dtype.itemsize), one.dtype.is_floating_point)
        for one in several
        if isinstance(one, torch.Tensor)
    )
