"""A module as a program: traced, walked, and with names for all dims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.export import ExportedProgram

from symconfig.errors import InputError, Problem
from symconfig.graph.operator import Gradients, Operator, Tensor, Use
from symconfig.graph.program.build import build
from symconfig.graph.program.program import Parameter, Program
from symconfig.graph.program.torch_source.axes import Axes
from symconfig.graph.program.torch_source.export import static, traced
from symconfig.graph.program.torch_source.recorder import Labels, Made, Seen, Step
from symconfig.graph.program.torch_source.walk import Walked, walk

RULES_FOLDER = "symconfig/graph/program/torch_source/rules"


@dataclass(frozen=True, slots=True)
class Lowering:
    """A traced module as a program. paths: of every name of a parameter the first one, since tied parameters have
    several. names: that leaves of axes have in the program.
    """

    exported: ExportedProgram
    walked: Walked
    paths: Mapping[str, str]
    program: Program
    names: Mapping[int, str]


def lowered(module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object], name: str) -> Lowering:
    """Trace a module on the meta device, and say its operators over named dims, without what no output needs.

    Raises InputError as `load_module`; it names all operators that have no rule.
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


def _program(walked: Walked, namer: _Namer, name: str, notes: Sequence[str]) -> Program:
    recorder, inputs, parameters, outputs = walked.recorder, walked.inputs, walked.parameters, walked.outputs
    steps = _needed(recorder.steps, [value.made for value in outputs])
    _refuse(steps)
    read = {seen.made.name for step in steps for seen in step.inputs}
    # The dim that counts examples in the first input that is read: others share it where operators relate them.
    counted = [value.dims[0] for value in inputs if value.made.name in read and value.rank and value.dims[0]]
    batch = recorder.axes.leaves(counted[0]) if counted else ()
    namer.call(batch, "batch")
    for value in (*inputs, *parameters.values()):
        namer.tensor(value.made)
    operators = tuple(_operator(step, namer) for step in steps)
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


def _needed(steps: Sequence[Step], outputs: Sequence[Made]) -> list[Step]:
    wanted = {made.name for made in outputs}
    result = []
    for step in reversed(steps):
        if any(seen.made.name in wanted for seen in step.outputs):
            wanted |= {seen.made.name for seen in step.inputs}
            result.append(step)
    return result[::-1]


def _refuse(steps: Sequence[Step]) -> None:
    first = {step.missing: step for step in reversed(steps) if step.missing}
    if times := Counter(step.missing for step in steps if step.missing):
        raise InputError([_problem(first[operator], count) for operator, count in times.items()])


def _problem(step: Step, times: int) -> Problem:
    where = f"module {step.path}" if step.path else "the module itself"
    often = f", {times} times in the whole" if times > 1 else ""
    return Problem(
        f"{where} uses an operator for which there is no rule{often}",
        got=step.missing,
        hint=f"add a rule to a table in {RULES_FOLDER}/, as symconfig/graph/program/torch_source/__init__.py says, or "
        "leave the operator out of the module",
    )


def _operator(step: Step, namer: _Namer) -> Operator:
    inputs, outputs, residues = (tuple(map(namer.use, some)) for some in (step.inputs, step.outputs, step.residues))
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
        residues=residues,
        over=loops(how.over),
        whole=(*loops(how.whole), *(loop for at in how.windows for loop in loops([at])[1:])),
        groups=[tuple(pair) for pair in pairs if pair],
        windows={named[at][0]: window for at, window in how.windows.items() if at in named},
        slots=loops(how.slots)[0] if how.slots else "",
        traffic=how.traffic,
        attended=how.attended,
        channels=how.channels,
        sizes=namer.sizes,
        path=step.path,
    )
    op = replace(op, inputs=tuple(dict.fromkeys(op.inputs)))
    if not any(use.gradient for use in outputs):
        op = replace(op, gradients=Gradients.NONE, saves=())
    return op


@dataclass(slots=True)
class _Namer:
    """A dim is called after the first tensor that has it: `encoder.wi:0` is dim 0 of the weight of `encoder.wi`."""

    axes: Axes
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def call(self, group: Sequence[int], name: str) -> tuple[str, ...]:
        """Return the names of its leaves, which get this one if they have none."""
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
        if made.name not in self.tensors:
            owner = made.name.removesuffix(".weight")
            dims = [self.call((axis,), f"{owner}:{number}") for number, axis in enumerate(made.axes)]
            flat = tuple(name for names in dims for name in names)
            self.tensors[made.name] = Tensor(made.name, flat, made.element_bytes, made.gradient)
        return self.tensors[made.name]

    def use(self, seen: Seen) -> Use:
        tensor = self.tensor(seen.made)
        along: dict[str, str] = {}
        for dim, loop in seen.along:
            # Windows: a loop that goes over a dim in steps may be a product, with its outermost one along the dim.
            along.update(zip(self.dims(dim), self.dims(loop), strict=self.axes.size(dim) == self.axes.size(loop)))
        return Use(tensor, tuple(along[dim] for dim in tensor.dims))
