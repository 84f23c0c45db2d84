"""A traced graph as a program: operator by operator, each by its rule, then with names for all dims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from symconfig.errors import InputError, Problem
from symconfig.graph.operator import Gradients, Operator, Tensor, Use
from symconfig.graph.program.build import build
from symconfig.graph.program.program import Parameter, Program
from symconfig.graph.program.torch_source.axes import Axes
from symconfig.graph.program.torch_source.export import static, traced
from symconfig.graph.program.torch_source.recorder import Call, Labels, Made, Operand, Recorded, Recorder, Result, Value
from symconfig.graph.program.torch_source.rules import IN_PLACE, RULES
from symconfig.graph.program.torch_source.rules.arithmetic import FILLED


@dataclass(slots=True)
class Walk:
    """Hold the state and the result of walking a traced graph.

    inputs: tensors that the user feeds. outputs: the losses (differentiable single numbers) or, without any, all
    differentiable outputs. values: what each traced node stands for. steps: for each node, the range of its recorded
    steps. constants: nodes that depend on no parameter and no input; as tensors they become inputs of the program where
    something reads them. times: how often each operator name was used.
    """

    recorder: Recorder = field(default_factory=Recorder)
    inputs: list[Value] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)
    outputs: tuple[Value, ...] = ()
    values: dict[Node, Any] = field(default_factory=dict)
    steps: dict[Node, range] = field(default_factory=dict)
    constants: dict[Node, str] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def value(self, arg: Any) -> Any:
        """Return an argument with nodes replaced by their values; lists and tuples become lists of such; anything else
        is returned as it is. A constant gets its value (see `_constant`, usually a new input) the first time it is
        read.
        """
        if isinstance(arg, Node):
            if arg not in self.values:
                self.values[arg] = self._constant(arg)
            return self.values[arg]
        if isinstance(arg, (list, tuple)):
            return [self.value(item) for item in arg]
        return arg

    def call(self, node: Node) -> None:
        """Lower one operator into `values`, or enter it in `constants` if it only fills a tensor or all its inputs are
        constants (also if it has none).

        getitem takes an output of a lowered operator; one that the rule does not make is recorded as a missing
        operator.
        """
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
        """Return the value of a constant node: a view, if it only views another tensor; None, if it is empty; else a
        new input of the program, named after its buffer or node, whose broadcast dims (stride 0) are not stored.
        """
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
        """Return the value that the operator's rule makes, or a list for an operator with several outputs, and note its
        steps.

        None for an operator without tensor results or with an empty first result. An operator without a rule, or whose
        rule raises NotImplementedError, is recorded as missing.
        """
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
        """Record an operator without a rule and return placeholder values, so that the walk goes on and finds all
        missing ones. It is an error only if an output of the program needs it.
        """
        inputs = [self.value(source) for source in node.all_input_nodes]
        given = [value for value in inputs if isinstance(value, Value)]
        values = self.recorder.missing(self._named(node), path_of(node), operator, given, results_of(node))
        return values if isinstance(node.meta["val"], (list, tuple)) else values[0]

    def _call(self, node: Node) -> Call:
        """Return the call that a rule gets: arguments by schema name, with defaults filled in; arguments without either
        are absent.
        """
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
        """Return a unique name of a call, `layers.0.mlp.silu`: the path of the calling module and the operator, with a
        number from the second one on.
        """
        names = [path_of(node), name_of(node).partition(".")[2].strip("_")]
        name = ".".join(filter(None, names))
        self.times[name] += 1
        return name if self.times[name] == 1 else f"{name}_{self.times[name]}"


def walk(exported: ExportedProgram, paths: Mapping[str, str]) -> Walk:
    """Return the recorded operators of a traced graph. Raises nothing for operators without a rule: they are recorded
    as missing.

    Tied parameters are one. Buffers and inputs that are no tensors are constants. Outputs are the single numbers
    (losses) among the results with a gradient or, if there is none, all results with a gradient. paths: for every name
    of a parameter the one that it gets, the same for tied ones.
    """
    steps = Walk()
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            made = node.meta["val"]
            if spec.kind is InputKind.USER_INPUT and isinstance(made, torch.Tensor):
                steps.values[node] = value = steps.recorder.fed(node.name, made.shape, float(made.dtype.itemsize))
                steps.inputs.append(value)
            elif spec.kind is InputKind.PARAMETER:
                path = paths[str(spec.target)]
                if path not in steps.parameters:
                    width = float(made.dtype.itemsize)
                    steps.parameters[path] = steps.recorder.fed(path, made.shape, width, made.requires_grad)
                steps.values[node] = steps.parameters[path]
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
    steps.outputs = tuple(losses or [value for value, _ in flows])
    return steps


def name_of(node: Node) -> str:
    """Return the operator's name without its overload: aten.add.Tensor -> aten.add."""
    names = str(node.target).split(".")
    return ".".join(names[:2])


def path_of(node: Node) -> str:
    """Return the path of the innermost module that called the node; "" for the traced module itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).partition("@")[0] if stack else ""


def results_of(node: Node) -> tuple[Result, ...]:
    """Return a `Result` (shape, bytes per element, whether floating) for each tensor that the node makes; other results
    (None, numbers) are left out.
    """
    made = node.meta.get("val")
    several = made if isinstance(made, (list, tuple)) else [made]
    return tuple(
        Result(tuple(map(int, one.shape)), float(one.dtype.itemsize), one.dtype.is_floating_point)
        for one in several
        if isinstance(one, torch.Tensor)
    )


RULES_FOLDER = "symconfig/graph/program/torch_source/rules"


@dataclass(frozen=True, slots=True)
class Lowering:
    """Hold a traced module as a program. paths: for every name of a parameter the first one, since tied parameters have
    several. names: the program's dim of each leaf axis.
    """

    exported: ExportedProgram
    walked: Walk
    paths: Mapping[str, str]
    program: Program
    names: Mapping[int, str]


def lowered(module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object], name: str) -> Lowering:
    """Trace a module on the meta device and return it as a program over named dims, without operators that no output
    needs.

    Raise InputError if it cannot be traced, no output depends on a trained weight, or operators that are needed have
    no rule; the error names all of these.
    """
    with static(module) as notes:
        exported = traced(module, args, kwargs, name)
    first: dict[int, str] = {}
    paths = {
        path: first.setdefault(id(weight), path) for path, weight in module.named_parameters(remove_duplicate=False)
    }
    walked = walk(exported, paths)
    if not walked.outputs:
        raise InputError(f"no output of {name} depends on a weight that is trained", need="a loss or logits")
    namer = _Namer(walked.recorder.axes)
    return Lowering(exported, walked, paths, _program(walked, namer, name, notes), namer.names)


def _program(walked: Walk, namer: _Namer, name: str, notes: Sequence[str]) -> Program:
    """Return the program of the recorded steps that the outputs need, with names for all dims. All parameters are in
    it, also those that no operator reads; of the inputs and constants those that are read.

    The batch dim is the first dim of the first input that is read and has one of more than one element; else none.
    Raise InputError with all operators without a rule that the outputs need.
    """
    recorder, inputs, parameters, outputs = walked.recorder, walked.inputs, walked.parameters, walked.outputs
    steps = _needed(recorder.steps, [value.made for value in outputs])
    first = {step.missing: step for step in reversed(steps) if step.missing}
    if times := Counter(step.missing for step in steps if step.missing):
        raise InputError([_problem(first[operator], count) for operator, count in times.items()])
    read = {seen.made.name for step in steps for seen in step.inputs}
    # The dim that counts examples in the first input that is read: others share it where operators relate them.
    counted = [value.dims[0] for value in inputs if value.made.name in read and value.rank and value.dims[0]]
    batch = recorder.axes.leaves(counted[0]) if counted else ()
    namer.call(batch, "batch")
    for value in (*inputs, *parameters.values()):
        namer.tensor(value.made)
    operators = tuple(_named_operator(step, namer) for step in steps)
    for value in outputs:
        namer.tensor(value.made)
    made = {operand.name for op in operators for operand in (*op.outputs, *op.residues)}
    theirs = {value.made.name for value in parameters.values()}
    own = [value.made.name for value in inputs if value.made.name in read]
    others = (use.name for op in operators for use in op.inputs if use.name not in made and use.name not in theirs)
    weights = tuple(
        Parameter(namer.tensor(v.made), path, tuple(recorder.axes.size(group) for group in v.dims))
        for path, v in parameters.items()
    )
    return Program(
        name=name,
        sizes=namer.sizes,
        tensors=namer.tensors,
        inputs=tuple(dict.fromkeys((*own, *others))),
        parameters=weights,
        operators=operators,
        outputs=tuple(dict.fromkeys(value.made.name for value in outputs)),
        batch=frozenset(namer.dims(batch)),
        notes=tuple(notes),
    )


def _needed(steps: Sequence[Recorded], outputs: Sequence[Made]) -> list[Recorded]:
    """Return the steps on which the outputs depend, in order: each makes an output or an input of a later one."""
    wanted = {made.name for made in outputs}
    result = []
    for step in reversed(steps):
        if any(seen.made.name in wanted for seen in step.outputs):
            wanted |= {seen.made.name for seen in step.inputs}
            result.append(step)
    return result[::-1]


def _problem(step: Recorded, times: int) -> Problem:
    """Return the problem of an operator without a rule, with the module of its first use and the number of uses."""
    where = f"module {step.path}" if step.path else "the module itself"
    often = f", {times} times in the whole" if times > 1 else ""
    return Problem(
        f"{where} uses an operator for which there is no rule{often}",
        got=step.missing,
        hint=f"add a rule to a table in {RULES_FOLDER}/, as symconfig/graph/program/torch_source/__init__.py says, or "
        "leave the operator out of the module",
    )


def _named_operator(step: Recorded, namer: _Namer) -> Operator:
    """Return a recorded step as an operator over named dims, with duplicate inputs merged; without gradients and saved
    tensors if no output has a gradient. Tensors and dims without names are named.
    """
    inputs, outputs = (tuple(map(namer.use, some)) for some in (step.inputs, step.outputs))
    named = {label: namer.dims(group) for label, group in step.loops.items()}

    def loops(labels: Labels) -> tuple[str, ...]:
        return tuple(loop for label in labels if label for loop in named.get(label, ()))

    how = step.how
    assert how is not None
    pairs = [dict.fromkeys(loop for side in pair for loop in loops(side)[:1]) for pair in how.groups]
    op = build(
        how.function,
        step.name,
        inputs,
        outputs,
        over=loops(how.over),
        whole=(*loops(how.whole), *(loop for at in how.windows for loop in loops([at])[1:])),
        groups=[tuple(pair) for pair in pairs if pair],
        windows={named[at][0]: window for at, window in how.windows.items() if at in named},
        slots=loops(how.slots)[0] if how.slots else "",
        traffic=how.traffic,
        attended=how.attended,
        sizes=namer.sizes,
        path=step.path,
    )
    op = replace(op, inputs=tuple(dict.fromkeys(op.inputs)))
    if not any(use.gradient for use in outputs):
        op = replace(op, gradients=Gradients.NONE, saves=())
    namer.tensors.update((use.name, use.tensor) for use in op.residues)
    return op


@dataclass(slots=True)
class _Namer:
    """Give every leaf axis a dim name, after the first tensor that has it: `encoder.wi:0` is dim 0 of the weight of
    `encoder.wi`.
    """

    axes: Axes
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def call(self, group: Sequence[int], name: str) -> tuple[str, ...]:
        """Return the dim names of the group's leaves; leaves without a name get `name` (numbered if there are several),
        made unique by `~2`, `~3`.
        """
        leaves = self.axes.leaves(group)
        for number, leaf in enumerate(leaves):
            if leaf not in self.names:
                base = name if len(leaves) == 1 else f"{name}.{number}"
                self.times[base] += 1
                new = base if self.times[base] == 1 else f"{base}~{self.times[base]}"
                self.names[leaf] = new
                self.sizes[new] = self.axes.lengths[leaf]
        return tuple(self.names[leaf] for leaf in leaves)

    def dims(self, group: Sequence[int]) -> tuple[str, ...]:
        return self.call(group, "loop")

    def tensor(self, made: Made) -> Tensor:
        """Return the tensor over named dims, cached by its name; leaf axes without a name get `OWNER:NUMBER`, the
        tensor's name without ".weight" and the position.
        """
        if made.name not in self.tensors:
            owner = made.name.removesuffix(".weight")
            dims = [self.call((axis,), f"{owner}:{number}") for number, axis in enumerate(made.axes)]
            flat = tuple(name for names in dims for name in names)
            self.tensors[made.name] = Tensor(made.name, flat, made.element_bytes, made.gradient)
        return self.tensors[made.name]

    def use(self, seen: Operand) -> Use:
        """Return an operand as a `Use`: its tensor over named dims, and for each the name of its loop (every dim has
        one). A factored axis counts as a dim per factor; axes without a name are named.
        """
        tensor = self.tensor(seen.made)
        along: dict[str, str] = {}
        for dim, loop in seen.along:
            # Windows: a loop that goes over a dim in steps may be a product, with its outermost one along the dim.
            along.update(zip(self.dims(dim), self.dims(loop), strict=self.axes.size(dim) == self.axes.size(loop)))
        return Use(tensor, tuple(along[dim] for dim in tensor.dims))
