"""The nodes of a traced graph, each with the operator of the program that it is part of and the loops along its dims.

A program says how operators split; what PyTorch runs are nodes, and one may be several operators (a product and its
bias). Here each node gets the operator that decides for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node
from torch.utils._pytree import tree_leaves

from symconfig.graph.operator import Operator
from symconfig.graph.program.torch_source.axes import Axes
from symconfig.graph.program.torch_source.lower import Lowering
from symconfig.graph.program.torch_source.recorder import Recorded, Value


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a tensor's dim. axis: the same number in every view of the tensor; loop: of the operator, along it."""

    axis: int
    loop: str
    size: int


Dims = tuple[tuple[Leaf, ...], ...]  # for each dim of a tensor what it is made of, outermost first


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """operator: of the program, that decides how the node is split; None: nothing does, and a node that only looks at
    its input in another way (`view`) follows that. steps: what the node is made of.
    inputs: in order of the node's tensors, one for each; outputs: of each result, None where the program has it not."""

    operator: str | None
    view: bool
    steps: tuple[Operator, ...]
    inputs: tuple[Dims | None, ...]
    outputs: tuple[Dims | None, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    nodes: Mapping[str, NodeSeen]
    parameters: Mapping[str, Dims]


def seen(lowering: Lowering) -> Seen:
    """Return what each node of the traced graph is in the program."""
    look = _Look(lowering, {op.name: op for op in lowering.program.operators})
    return Seen(look.nodes(), look.parameters())


def tensors(node: Node) -> list[Node]:
    """Return the nodes that a node reads, in order of its arguments, each as often as it is there."""
    return [leaf for leaf in tree_leaves((node.args, node.kwargs)) if isinstance(leaf, Node)]


@dataclass(slots=True)
class _Look:
    lowering: Lowering
    operators: Mapping[str, Operator]
    axes: Axes = field(init=False)

    def __post_init__(self) -> None:
        self.axes = self.lowering.walked.recorder.axes

    def nodes(self) -> dict[str, NodeSeen]:
        walked = self.lowering.walked
        return {
            node.name: self._node(node, walked.values[node])
            for node in self.lowering.exported.graph.nodes
            if node.op == "call_function" and node in walked.values
        }

    def parameters(self) -> dict[str, Dims]:
        return {path: self._of(value, {}) for path, value in self.lowering.walked.parameters.items()}

    def _node(self, node: Node, value: Any) -> NodeSeen:
        steps = [self.lowering.walked.recorder.steps[n] for n in self.lowering.walked.steps.get(node, ())]
        known = [step for step in steps if step.name in self.operators]
        known.sort(key=lambda step: -len(self.operators[step.name].loops))  # stable: the first of those with most
        loops = self._loops(known)
        given = [self.lowering.walked.values.get(source) for source in tensors(node)]
        results = value if isinstance(value, (list, tuple)) else [value]
        return NodeSeen(
            operator=known[0].name if known else None,
            view=not steps,
            steps=tuple(self.operators[step.name] for step in known),
            inputs=tuple(self._dims(one, loops) for one in given),
            outputs=tuple(self._dims(one, {}) for one in results),
        )

    def _loops(self, steps: Sequence[Recorded]) -> dict[tuple[str, int], str]:
        """Return, for each tensor and axis of it, the loop that runs along it."""
        result: dict[tuple[str, int], str] = {}
        for step in steps:
            for tensor in step.inputs:
                for dim, loop in tensor.along:
                    pairs = zip(self.axes.leaves(dim), self.axes.leaves(loop), strict=False)
                    for axis, along in pairs:
                        result.setdefault((tensor.made.name, axis), self._name(along))
        return result

    def _dims(self, value: Any, loops: Mapping[tuple[str, int], str]) -> Dims | None:
        return self._of(value, loops) if isinstance(value, Value) else None

    def _of(self, value: Value, loops: Mapping[tuple[str, int], str]) -> Dims:
        return tuple(tuple(self._leaves(value, group, loops)) for group in value.dims)

    def _leaves(self, value: Value, group: Sequence[int], loops: Mapping[tuple[str, int], str]) -> Iterator[Leaf]:
        for axis in self.axes.leaves(group):
            name = loops.get((value.made.name, axis)) or self._name(axis)
            yield Leaf(axis, name, self.axes.lengths[axis])

    def _name(self, axis: int) -> str:
        return self.lowering.names.get(axis, "")
