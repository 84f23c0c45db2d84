"""Operators on one rank's part of their tensors: sizes, and what sums, norms and look-ups of cut dims need besides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from tools.partitions.executed.run_moves import Layout, cuts, move


class Total(torch.autograd.Function):  # type: ignore[misc]
    """The sum of all ranks' tensors along mesh dims. alike: each rank makes the same of it, so that each has its whole
    gradient already; else each goes on with its own part, and the gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Sequence[Any], alike: bool) -> Tensor:
        ctx.groups = [] if alike else groups
        return reduced(x, groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return reduced(gradient, ctx.groups), None, None


def reduced(x: Tensor, groups: Sequence[Any], kind: Any = dist.ReduceOp.SUM) -> Tensor:
    """Return all ranks' tensors reduced."""
    x = x.clone(memory_format=torch.contiguous_format)
    for group in groups:
        dist.all_reduce(x, kind, group=group)
    return x


@dataclass
class Call:
    """An operator that is about to run: its own inputs' and outputs' layouts."""

    mesh: DeviceMesh
    inputs: list[Layout]
    ranks: list[int]
    outputs: list[Layout]

    def groups(self, numbers: Sequence[int]) -> list[Any]:
        return [self.mesh.get_group(number) for number in numbers]

    def cut(self, number: int, dims: Sequence[int]) -> list[int]:
        """Return the mesh dims that cut one of these dims of an input."""
        rank = self.ranks[number]
        return sorted({at for dim in dims for at in cuts(self.inputs[number], rank, dim % rank)})

    def start(self, numbers: Sequence[int], size: int) -> int:
        """Return where a rank's part of a dim begins, which these mesh dims cut into parts of a size."""
        index = 0
        for number in numbers:
            index = index * self.mesh.size(number) + self.mesh.get_local_rank(number)
        return index * size

    def total(self, x: Tensor, numbers: Sequence[int], alike: bool = False) -> Tensor:
        return Total.apply(x, self.groups(numbers), alike) if numbers else x

    def most(self, x: Tensor, numbers: Sequence[int]) -> Tensor:
        return reduced(x.detach(), self.groups(numbers), dist.ReduceOp.MAX)

    @property
    def routes(self) -> int:
        """Return which input says the experts of each token: the last one."""
        return len(self.inputs) - 1

    def parts(self, numbers: Sequence[int]) -> int:
        return math.prod(self.mesh.size(number) for number in numbers)


def wide(x: Tensor) -> Tensor:
    """Return half precision as fp32, in which sums are taken."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def log_sum(call: Call, x: Tensor, dim: int, over: Sequence[int], alike: bool = False) -> Tensor:
    """Return the logarithm of the sum of exponentials along a dim that mesh dims cut."""
    top = call.most(x.amax(dim, keepdim=True), over)
    return call.total((x - top).exp().sum(dim, keepdim=True), over, alike).log() + top


def softmax(call: Call, op: Any, x: Tensor, dim: int, *rest: Any) -> Tensor:
    """Return the softmax of rows that may be cut."""
    over = call.cut(0, [dim])
    if not over:
        return op(x, dim, *rest)
    y = wide(x) - log_sum(call, wide(x), dim, over)
    return (y if "log" in str(op) else y.exp()).to(x.dtype)


def layer_norm(
    call: Call, op: Any, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, *rest: Any
) -> Tensor:
    """Normalise rows that may be cut, by layers or by root mean squares."""
    dims = list(range(x.dim() - len(shape), x.dim()))
    over = call.cut(0, dims)
    root = "rms_norm" in str(op)
    if not over:
        return op(x, shape, weight, bias) if root else op(x, shape, weight, bias, eps, *rest)
    if root:
        weight, bias, eps = weight, None, bias if bias is not None else torch.finfo(x.dtype).eps
    y, count = wide(x), math.prod(shape)
    if not root:
        y = y - call.total(y.sum(dims, keepdim=True), over) / count
    y = y * torch.rsqrt(call.total(y.square().sum(dims, keepdim=True), over) / count + eps)
    y = y.to(x.dtype)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def batch_norm(
    call: Call,
    op: Any,
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalise channels over a batch that may be cut. Running statistics come out whole."""
    over, channels = call.cut(0, [n for n in range(x.dim()) if n != 1]), call.cut(0, [1])
    if not training or not (over or channels):
        return op(x, weight, bias, mean, var, training, momentum, eps)
    dims = [n for n in range(x.dim()) if n != 1]
    like = [1, -1] + [1] * (x.dim() - 2)
    count = x.numel() // x.shape[1] * call.parts(over)
    middle = call.total(x.sum(dims), over) / count
    centred = x - middle.view(like)
    spread = call.total(centred.square().sum(dims), over) / count
    root = torch.rsqrt(spread + eps)
    y = centred * root.view(like)
    y = y if weight is None else y * weight.view(like)
    y = y if bias is None else y + bias.view(like)
    whole, cut = (
        tuple(kind if n in channels else Replicate() for n in range(call.mesh.ndim)) for kind in (Replicate(), Shard(0))
    )
    stats = [
        move(s.detach(), cut, whole, ((), ()), call.mesh, None) for s in (middle, root, spread * count / (count - 1))
    ]
    past = [mean * (1 - momentum) + stats[0] * momentum, var * (1 - momentum) + stats[2] * momentum]
    return y, stats[0], stats[1], past[0], past[1]


def embedding(call: Call, op: Any, table: Tensor, ids: Tensor, padding: int = -1, *rest: Any) -> Tensor:
    """Look rows of a table up that may be cut: zeros for those that other ranks hold. padding: a row without a
    gradient.
    """
    over = call.cut(0, [0])
    if not over:
        return op(table, ids, padding, *rest)
    at = ids - call.start(over, table.shape[0])
    mine = (at >= 0) & (at < table.shape[0])
    rows = nn.functional.embedding(at.where(mine, 0), table) * mine.unsqueeze(-1)
    return rows if padding < 0 else rows.detach().where((ids == padding).unsqueeze(-1), rows)


def cross_entropy(
    call: Call,
    op: Any,
    logits: Tensor,
    target: Tensor,
    weight: Any = None,
    reduction: int = 1,
    ignored: int = -100,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the losses of rows that may be cut along the batch and along the classes; of a mean each rank has its
    share.
    """
    at = min(1, logits.dim() - 1)
    over, rows = call.cut(0, [at]), call.cut(0, [n for n in range(logits.dim()) if n != at])
    if not (over or rows):
        return op(logits, target, weight, reduction, ignored, smoothing)
    x = wide(logits)
    scale = log_sum(call, x, at, over, alike=True).squeeze(at)
    counted = target != ignored
    index = target - call.start(over, x.shape[at])
    mine = counted & (index >= 0) & (index < x.shape[at])
    picked = x.gather(at, index.where(mine, 0).unsqueeze(at)).squeeze(at) * mine
    losses = scale - call.total(picked, over, alike=True)
    if smoothing:
        classes = x.shape[at] * call.parts(over)
        losses = (1 - smoothing) * losses + smoothing * (scale - call.total(x.sum(at), over, alike=True) / classes)
    losses = losses * counted
    if reduction == 0:
        return losses.to(logits.dtype)
    total = losses.sum()
    return (total / reduced(counted.sum(), call.groups(rows)) if reduction == 1 else total).to(logits.dtype)


def slots(call: Call, routes: Tensor, experts: int, over: Sequence[int]) -> tuple[Tensor, Tensor, int]:
    """Return for each token and choice its slot among a rank's experts, whether the rank has it, and how many slots a
    rank has of each expert.

    Tokens are in as many pieces as the mesh has ranks, however they are cut, and a piece has as many slots of each
    expert as the busiest needs: so slots lie where their tokens lie, and no token is dropped.
    """
    ranks, cut = call.mesh.size(), call.parts(call.cut(call.routes, [0]))
    pieces = math.gcd(routes.shape[0] * cut, ranks)
    mine = pieces // cut
    piece = torch.arange(mine, device=routes.device).repeat_interleave(routes.numel() // mine)
    flat = routes.flatten()
    key = piece * experts + flat
    count = torch.bincount(key, minlength=mine * experts)
    most = int(reduced(count.max(), call.groups(range(call.mesh.ndim)), dist.ReduceOp.MAX))
    most += -most % (ranks // pieces)
    order = key.argsort(stable=True)
    place = torch.empty_like(key)
    place[order] = torch.arange(key.numel(), device=key.device) - (count.cumsum(0) - count)[key[order]]
    here = experts // call.parts(over)
    expert = flat - call.start(over, here)
    held = (expert >= 0) & (expert < here)
    return ((expert * mine + piece) * most + place).where(held, 0), held, mine * most


def to_experts(call: Call, op: Any, tokens: Tensor, routes: Tensor, experts: int) -> Tensor:
    """Copy tokens into slots of the experts that a rank has."""
    over = cuts(call.outputs[0], 3, 0) if call.outputs else []
    at, held, most = slots(call, routes, experts, over)
    copies = tokens.repeat_interleave(routes.shape[-1], 0) * held.unsqueeze(-1)
    here = experts // call.parts(over)
    return tokens.new_zeros(here * most, tokens.shape[-1]).index_add(0, at, copies).view(here, most, -1)


def from_experts(call: Call, op: Any, done: Tensor, weights: Tensor, routes: Tensor) -> Tensor:
    """Sum each token's slots by its weights: of the experts that a rank has."""
    over = call.cut(0, [0])
    at, held, _ = slots(call, routes, done.shape[0] * call.parts(over), over)
    taken = done.flatten(0, 1)[at] * held.unsqueeze(-1)
    return (taken.view(*routes.shape, -1) * weights.unsqueeze(-1).to(done.dtype)).sum(1)


# Operators that do something else where a dim is cut that they sum over, normalise over or look up in.
INSTEAD: dict[str, Callable[..., Any]] = {
    "aten.softmax.int": softmax,
    "aten._softmax.default": softmax,
    "aten.log_softmax.int": softmax,
    "aten._log_softmax.default": softmax,
    "aten.layer_norm.default": layer_norm,
    "aten.rms_norm.default": layer_norm,
    "aten._native_batch_norm_legit_functional.default": batch_norm,
    "aten.embedding.default": embedding,
    "aten.cross_entropy_loss.default": cross_entropy,
}
SIZED = ("view", "_unsafe_view", "reshape", "expand")  # the second argument is the shape that comes out
RANDOM = ("dropout", "native_dropout", "bernoulli", "rand_like", "randn_like", "scaled_dot_product_attention")


def local_arguments(name: str, args: Sequence[Any], mesh: Any, given: Layout | None, made: Layout) -> list[Any]:
    """Return an operator's arguments with sizes of a rank's part in place of those of the whole."""

    def parts(layout: Layout, rank: int, dim: int) -> int:
        return math.prod(mesh.size(number) for number in cuts(layout, rank, dim))

    args, word = list(args), name.split(".")[1]
    if word in SIZED:
        sizes = args[1]
        args[1] = [s if s < 0 else s // parts(made, len(sizes), dim) for dim, s in enumerate(sizes)]
    if word in ("slice", "split", "split_with_sizes") and given is not None:
        x = args[0]
        sliced = word == "slice"
        dim = (args[1] if len(args) > 1 else 0) if sliced else (args[2] if len(args) > 2 else 0)
        count = parts(given, x.dim(), dim % x.dim())
        for at in (2, 3) if sliced else (1,):
            if count > 1 and len(args) > at:
                args[at] = divided(args[at], count)
    return args


def divided(size: Any, count: int) -> Any:
    """Return a size, or each of a list, in a rank's part; a size without end stays so."""
    if isinstance(size, (list, tuple)):
        return [divided(one, count) for one in size]
    return size if size is None or abs(size) > 2**62 else size // count
