"""One forward pass of a traced graph on a device mesh, operator by operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from tools.partitions.executed.run_kernels import (
    INSTEAD,
    RANDOM,
    Call,
    from_experts,
    local_arguments,
    to_experts,
)
from tools.partitions.executed.run_moves import Layout, Move, read_placement


@dataclass(eq=False)
class Value:
    """A rank's part of a tensor. moved: the same in layouts that operators have wanted so far."""

    local: Tensor
    layout: Layout
    shape: tuple[int, ...] | None = None
    moved: dict[Layout, Tensor] = field(default_factory=dict)


@dataclass
class Step:
    """One forward pass: what operators run in."""

    mesh: DeviceMesh
    table: dict[str, Any]
    layouts: list[Layout]
    module: nn.Module
    seed: int
    known: dict[str, Value] = field(default_factory=dict)

    @functools.cached_property
    def whole(self) -> Layout:
        everywhere = tuple(Replicate() for _ in range(self.mesh.ndim))
        return Layout(everywhere, everywhere)

    def input(self, x: Tensor) -> Value:
        """Return what every rank was given alike."""
        return Value(x, self.whole)

    def weight(self, path: str) -> Value:
        """Return a parameter: on each rank the part that it keeps."""
        if path not in self.known:
            held: Any = self.module.get_parameter(path)
            layout = Layout(held.placements, held.placements)
            self.known[path] = Value(held.to_local(grad_placements=held.placements), layout, tuple(held.shape))
        return self.known[path]

    def buffer(self, path: str, written: bool = False) -> Value:
        """Return a buffer, which every rank has. written: after the forward pass, and the backward needs this one."""
        held = self.module.get_buffer(path)
        return Value(held.clone() if written else held, self.whole)

    def moved(self, value: Value, target: Layout) -> Tensor:
        """Return a rank's part in the layout that an operator wants."""
        if target not in value.moved:
            same = value.layout.forward == target.forward and value.layout.factors == target.factors
            if same and (value.layout.gradient == target.gradient or not value.local.requires_grad):
                value.moved[target] = value.local
            else:
                value.moved[target] = Move.apply(value.local, value.layout, target, self.mesh, value.shape)
        return value.moved[target]

    def run(self, node: str, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a rank's part of an operator. node: its entry of the table."""
        entry = self.table.get(node, {})
        inputs = [self.layouts[n] for n in entry.get("inputs", ())]
        outputs = [self.layouts[n] for n in entry.get("outputs", ())]
        values = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Value)]
        inputs = inputs or [self.whole for _ in values]
        parts = iter([self.moved(value, layout) for value, layout in zip(values, inputs, strict=True)])
        args, kwargs = tree_map_only(Value, lambda _: next(parts), (args, kwargs))
        made = self.called(node, op, args, kwargs, Call(self.mesh, inputs, [v.local.dim() for v in values], outputs))
        if entry.get("parts"):
            made = made / entry["parts"]
        several = isinstance(made, (tuple, list))
        results = list(made) if several else [made]
        outputs = outputs or [self.whole for _ in results]
        held = [Value(x, layout) for x, layout in zip(results, outputs, strict=True)]
        return held if several else held[0]

    def called(self, node: str, op: Any, args: Any, kwargs: Any, call: Call) -> Any:
        name, out = str(op), call.outputs[0] if call.outputs else self.whole
        if op in (to_experts, from_experts):
            return op(call, op, *args, **kwargs)
        if name in INSTEAD:
            return INSTEAD[name](call, op, *args, **kwargs)
        args = local_arguments(name, args, self.mesh, call.inputs[0] if call.inputs else None, out)
        if name.split(".")[1] not in RANDOM:
            return op(*args, **kwargs)
        return self.drawn(node, out, lambda: op(*args, **kwargs))

    def drawn(self, node: str, made: Layout, draw: Callable[[], Any]) -> Any:
        """Run what draws random numbers: ranks that have the same part draw the same, others their own."""
        kind = self.mesh.device_type
        devices = [] if kind == "cpu" else [torch.get_device_module(kind).current_device()]
        where = [self.mesh.get_local_rank(n) for n, placed in enumerate(made.forward) if isinstance(placed, Shard)]
        with torch.random.fork_rng(devices, device_type="cuda" if kind == "cpu" else kind):
            torch.manual_seed(hash((self.seed, *map(ord, node), *where)) % 2**63)
            return draw()

    def result(self, value: Value) -> Any:
        """Return an output as a user wants it: a number as a tensor, anything else as a DTensor."""
        number = value.local.dim() == 0
        cut = value.layout.factors or any(p.is_partial() for p in value.layout.forward)
        layout = self.whole if number or cut else value.layout
        x = self.moved(value, layout)
        return x if number else DTensor.from_local(x, self.mesh, layout.forward, run_check=False)


def distribute(module: nn.Module, mesh: DeviceMesh, placements: dict[str, list[str]]) -> None:
    """Make every parameter of a module a DTensor on the mesh. One with several paths stays one."""
    known: dict[int, nn.Parameter] = {}
    for path, parameter in list(module.named_parameters(remove_duplicate=False)):
        if id(parameter) not in known:
            placed = [read_placement(text) for text in placements[path]]
            tensor = distribute_tensor(parameter.detach(), mesh, placed)
            known[id(parameter)] = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
        owner, _, name = path.rpartition(".")
        module.get_submodule(owner).register_parameter(name, known[id(parameter)])


def arguments(
    args: Sequence[Any], kwargs: dict[str, Any], names: Sequence[str], shapes: dict[str, Any]
) -> list[Tensor]:
    """Return a call's tensors in the order of the trace. Raises ValueError where it was traced for others."""
    given = [x for x in tree_leaves((list(args), [kwargs.get(name) for name in names])) if isinstance(x, Tensor)]
    if [list(x.shape) for x in given] != list(shapes.values()):
        got = ", ".join(str(list(x.shape)) for x in given) or "no tensor"
        raise ValueError(f"the module was traced with the inputs {shapes}, and is called with {got}")
    return given
