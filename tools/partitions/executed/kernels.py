"""What PyTorch's kernels can do on one rank's part of their tensors, by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from symconfig.solve.partition.placements import MeshDim
from tools.partitions.executed.nodes import Dims, NodeSeen
from tools.partitions.executed.run_kernels import INSTEAD, local_arguments
from tools.partitions.executed.run_moves import cuts, read_layout

# Operators whose results for parts of what they sum over add up to the whole. With the place of a bias among tensors.
PRODUCTS = {
    "aten.linear": 2, "aten.addmm": 0, "aten.baddbmm": 0, "aten.conv1d": 2, "aten.conv2d": 2, "aten.conv3d": 2,
    "aten.convolution": 2, "aten.mm": None, "aten.bmm": None, "aten.matmul": None, "aten.mv": None, "aten.dot": None,
    "aten.einsum": None,
}  # fmt: skip
MEANS = ("aten.mean", "aten.mse_loss", "aten.l1_loss", "aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d")
SUMS = (*MEANS, "aten.sum", "aten.cross_entropy_loss", "aten.embedding", "symconfig.combine")
OF_OUR_OWN = {*INSTEAD, "symconfig.dispatch.default", "symconfig.combine.default"}


def summed(name: str) -> bool:
    """Return whether each rank's result is a part of a sum where what the operator sums over is cut."""
    return name in PRODUCTS or name in SUMS


def mean(node: Node) -> bool:
    """Return whether a node divides by how many it sums, so that each rank's result is too large a share."""
    if "_loss" in str(node.target) and len(node.args) > 2:
        return _name(node) in MEANS and node.args[2] == 1
    return _name(node) in MEANS


def bias_of(node: Node) -> int | None:
    """Return which of a product's tensors is a bias: added once, whoever sums."""
    name = _name(node)
    place = PRODUCTS.get(name)
    count = sum(isinstance(arg, Node) for arg in node.args)
    return place if place is not None and count > 2 else None


def cannot(node: Node, known: NodeSeen, loops: frozenset[str]) -> str:
    """Return why a node cannot run on parts along these loops, or nothing."""
    if not loops or not _has(known, loops):
        return ""
    name, full = _name(node), str(node.target)
    for step in known.steps:
        mine = [split for split in step.splits if set(split.loops) & loops]
        if set(step.loops) & loops and not mine:
            return "its kernel mixes what lies along the dim"
        if any(split.halo for split in mine):
            return "windows reach into the next part, and no halo is exchanged"
        if any(split.sums for split in mine) and full not in OF_OUR_OWN:
            return "it reduces inside its kernel"
        lost = (set(step.loops) - {loop for made in step.outputs for loop in made.loops}) & loops
        if lost and _there(known.outputs[0], loops) and full not in OF_OUR_OWN:
            return "it reduces inside its kernel"
    gone = any(_there(dims, loops) for dims in known.inputs) and not _there(known.outputs[0], loops)
    inside = any(split.sums for step in known.steps for split in step.splits if set(split.loops) & loops)
    if gone and not inside and not summed(name):
        return "what each rank makes is no part of a sum"
    return _special(node, known, loops, name)


def _special(node: Node, known: NodeSeen, loops: frozenset[str], name: str) -> str:
    args, schema = list(node.args), [argument.name for argument in node.target._schema.arguments]
    bound = {**dict(zip(schema, args, strict=False)), **node.kwargs}
    if name == "aten.scaled_dot_product_attention" and bound.get("is_causal"):
        dims = known.inputs[0]
        if dims is not None and {leaf.loop for leaf in dims[-2]} & loops:
            return "its causal mask begins with the first query of the part"
    if name.startswith("aten.conv") and bound.get("groups", 1) != 1:
        dims = known.inputs[0]
        if dims is not None and not {leaf.loop for leaf in dims[0]} & loops:
            return "its channels are in groups"
    if name.startswith("symconfig."):
        routes = known.inputs[-1]
        if routes is not None and {leaf.loop for leaf in routes[0][1:]} & loops:
            return "experts' slots lie by pieces of the tokens, which it cuts otherwise"
    if name == "aten.embedding" and bound.get("scale_grad_by_freq") and not _there(known.outputs[0], loops):
        return "its gradients are scaled by how often a row is read"
    if name == "aten.cross_entropy_loss":
        scores, target = known.inputs[0], known.inputs[1]
        if scores is not None and target is not None and len(scores) == len(target):
            return "its targets are probabilities"
        if bound.get("weight") is not None:
            return "its classes have weights"
    return ""


def _name(node: Node) -> str:
    return ".".join(str(node.target).split(".")[:2])


def _has(known: NodeSeen, loops: frozenset[str]) -> bool:
    return any(_there(dims, loops) for dims in (*known.inputs, *known.outputs))


def _there(dims: Dims | None, loops: frozenset[str]) -> bool:
    return any(leaf.loop in loops for leaves in dims or () for leaf in leaves)


class _Sizes:
    """A mesh of which only the sizes are known."""

    def __init__(self, mesh: Sequence[MeshDim]) -> None:
        self.mesh = mesh

    def size(self, number: int) -> int:
        return self.mesh[number].size


def local_shape(shape: Sequence[int], entry: Mapping[str, Any], mesh: Sequence[MeshDim]) -> list[int]:
    """Return the shape of one rank's part in a layout."""
    layout = read_layout(dict(entry))
    return [
        size // prod(mesh[number].size for number in cuts(layout, len(shape), dim)) for dim, size in enumerate(shape)
    ]


def makes(
    node: Node, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]], mesh: Sequence[MeshDim]
) -> bool:
    """Return whether a node's kernel, run on the shapes of one rank's parts, makes those of its results' parts."""
    name = str(node.target)
    made = node.meta["val"]
    single = isinstance(made, torch.Tensor)
    if name in OF_OUR_OWN or not any(map(_cut, (*inputs, *outputs))):
        return True
    layouts, read = iter(inputs), set() if single else {user.args[1] for user in node.users if user.users}

    def part(source: Node) -> torch.Tensor:
        whole = source.meta["val"]
        return torch.empty(local_shape(whole.shape, next(layouts), mesh), dtype=whole.dtype, device="meta")

    args, kwargs = map_arg((node.args, node.kwargs), part)
    given = read_layout(dict(inputs[0])) if inputs else None
    args = local_arguments(name, args, _Sizes(mesh), given, read_layout(dict(outputs[0])))
    try:
        results = node.target(*args, **kwargs)
    except RuntimeError:
        return False
    triples = zip([results] if single else results, [made] if single else made, outputs, strict=True)
    return all(
        list(one.shape) == local_shape(whole.shape, entry, mesh)
        for at, (one, whole, entry) in enumerate(triples)
        if single or at in read
    )


def _cut(entry: Mapping[str, Any]) -> bool:
    return any(word.startswith("Shard") for word in entry["placements"])
