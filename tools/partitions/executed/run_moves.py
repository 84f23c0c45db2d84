"""Layouts of tensors over a device mesh, and how a rank's part goes from one to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard


@dataclass(frozen=True)
class Layout:
    """A tensor's layout and its gradient's: one placement for each mesh dim. factors: dims that are seen as products,
    such as the three projections in one: (outer sizes, …) of each, and a placement counts these dims apart.
    """

    forward: tuple[Placement, ...]
    gradient: tuple[Placement, ...]
    factors: tuple[tuple[int, tuple[int, ...]], ...] = ()


def read_layout(given: dict[str, Any]) -> Layout:
    """Return the layout that a table's entry says."""
    forward = tuple(map(read_placement, given["placements"]))
    gradient = tuple(map(read_placement, given["gradient"])) if "gradient" in given else forward
    factors = tuple((int(dim), tuple(sizes)) for dim, sizes in given.get("factors", {}).items())
    return Layout(forward, gradient, factors)


def read_placement(text: str) -> Placement:
    """Return the placement of a word: Replicate(), Partial() or Shard(dim)."""
    kind, _, rest = text.partition("(")
    if kind == "Shard":
        return Shard(int(rest.rstrip(")")))
    return {"Replicate": Replicate, "Partial": Partial}[kind]()


def spans(layout: Layout, rank: int) -> list[list[int]]:
    """Return for each dim of a tensor the dims that placements count for it."""
    factors, result, at = dict(layout.factors), [], 0
    for dim in range(rank):
        parts = len(factors.get(dim, ())) + 1
        result.append(list(range(at, at + parts)))
        at += parts
    return result


def cuts(layout: Layout, rank: int, dim: int) -> list[int]:
    """Return the mesh dims that cut a dim of a tensor."""
    span = spans(layout, rank)[dim]
    return [number for number, placed in enumerate(layout.forward) if isinstance(placed, Shard) and placed.dim in span]


def apart(
    x: Tensor, placements: Sequence[Placement], factors: Sequence[tuple[int, Sequence[int]]], mesh: Any
) -> Tensor:
    """Return a rank's part with dims that are products taken apart."""
    sizes, known, at = list[int](), dict(factors), 0
    for dim in range(x.dim()):
        outer = []
        for size in known.get(dim, ()):
            parts = math.prod(mesh.size(n) for n, p in enumerate(placements) if isinstance(p, Shard) and p.dim == at)
            outer.append(size // parts)
            at += 1
        sizes += [*outer, x.shape[dim] // math.prod(outer)]
        at += 1
    return x.reshape(sizes)


def together(x: Tensor, factors: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
    """Return a rank's part with its products as single dims again."""
    for dim, sizes in sorted(factors):
        x = x.flatten(dim, dim + len(sizes))
    return x


def move(
    x: Tensor, source: Sequence[Placement], target: Sequence[Placement], factors: Any, mesh: Any, shape: Any
) -> Tensor:
    """Return a rank's part in other placements. factors: of the one and of the other. shape: of the whole tensor, where
    parts may be uneven."""
    whole = tuple(Replicate() for _ in source)
    mine, theirs = factors
    if tuple(source) == tuple(target) and mine == theirs:
        return x
    cut_there = any(isinstance(placed, Shard) for placed in target)
    if mine != theirs and cut_there:
        if any(isinstance(placed, Shard) for placed in source):
            x, source = move(x, source, whole, (mine, mine), mesh, shape), whole
        mine = theirs
    stride = None
    if shape is not None:
        stride = tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
    if mine:
        x, shape, stride = apart(x, source, mine, mesh), None, None
    reached = [Replicate() if p.is_partial() and not s.is_partial() else p for s, p in zip(source, target, strict=True)]
    given = DTensor.from_local(x, mesh, tuple(source), run_check=False, shape=shape, stride=stride)
    x = given.redistribute(placements=reached).to_local()
    for number, (was, wanted) in enumerate(zip(source, target, strict=True)):
        if wanted.is_partial() and not was.is_partial():
            x = x / mesh.size(number)
    return together(x, mine)


class Move(torch.autograd.Function):  # type: ignore[misc]
    """A tensor from one layout to another, and its gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Layout, target: Layout, mesh: DeviceMesh, shape: Any) -> Tensor:
        ctx.back = (target.gradient, source.gradient, (target.factors, source.factors), mesh, None)
        y = move(x, source.forward, target.forward, (source.factors, target.factors), mesh, shape)
        return y.view_as(x) if y is x else y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return move(gradient.contiguous(), *ctx.back), None, None, None, None
