"""Runs the traced graph of a module on a device mesh, each operator split as a table says.

Between operators a rank has its own part of every tensor. Where an operator wants it in another layout than it was made
in, DTensor moves it, and moves its gradient back. No operator is left to DTensor's own rules.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten


@dataclass(frozen=True)
class Layout:
    """How a tensor lies, and its gradient: one placement for each mesh dim. factors: dims that are seen as products,
    such as the three projections in one: (outer sizes, …) of each, and a placement counts these dims apart."""

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


class Move(torch.autograd.Function):
    """A tensor from one layout to another, and its gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Layout, target: Layout, mesh: DeviceMesh, shape: Any) -> Tensor:
        ctx.back = (target.gradient, source.gradient, (target.factors, source.factors), mesh)
        y = move(x, source.forward, target.forward, (source.factors, target.factors), mesh, shape)
        return y.view_as(x) if y is x else y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return move(gradient.contiguous(), *ctx.back, None), None, None, None, None


class Total(torch.autograd.Function):
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


@dataclass(eq=False)
class Value:
    """A rank's part of a tensor. moved: the same in layouts that operators have wanted so far."""

    local: Tensor
    layout: Layout
    shape: tuple[int, ...] | None = None
    moved: dict[Layout, Tensor] = field(default_factory=dict)


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
        """Which input says the experts of each token: the last one."""
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
    """Softmax of rows that may be cut."""
    over = call.cut(0, [dim])
    if not over:
        return op(x, dim, *rest)
    y = wide(x) - log_sum(call, wide(x), dim, over)
    return (y if "log" in str(op) else y.exp()).to(x.dtype)


def layer_norm(
    call: Call, op: Any, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, *rest: Any
) -> Tensor:
    """The norm of rows that may be cut, of layers or of root mean squares."""
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
    """The norm of channels over a batch that may be cut. Running statistics come out whole."""
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


def embedding(call: Call, op: Any, table: Tensor, ids: Tensor, *rest: Any) -> Tensor:
    """Rows of a table that may be cut: zeros for those that other ranks hold."""
    over = call.cut(0, [0])
    if not over:
        return op(table, ids, *rest)
    at = ids - call.start(over, table.shape[0])
    mine = (at >= 0) & (at < table.shape[0])
    return nn.functional.embedding(at.where(mine, 0), table) * mine.unsqueeze(-1)


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
    """Losses of rows that may be cut along the batch and along the classes; of a mean each rank has its share."""
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
    """Copies of tokens in slots of the experts that a rank has."""
    over = cuts(call.outputs[0], 3, 0) if call.outputs else []
    at, held, most = slots(call, routes, experts, over)
    copies = tokens.repeat_interleave(routes.shape[-1], 0) * held.unsqueeze(-1)
    here = experts // call.parts(over)
    return tokens.new_zeros(here * most, tokens.shape[-1]).index_add(0, at, copies).view(here, most, -1)


def from_experts(call: Call, op: Any, done: Tensor, weights: Tensor, routes: Tensor) -> Tensor:
    """The sum of each token's slots by its weights: of the experts that a rank has."""
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

    def buffer(self, path: str) -> Value:
        """Return a buffer, which every rank has."""
        return Value(self.module.get_buffer(path), self.whole)

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
        with torch.random.fork_rng():  # ranks that have the same part draw the same
            where = [self.mesh.get_local_rank(n) for n, p in enumerate(out.forward) if isinstance(p, Shard)]
            torch.manual_seed(hash((self.seed, *map(ord, node), *where)) % 2**63)
            return op(*args, **kwargs)

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


def arguments(args: Sequence[Any], kwargs: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """Return a call's tensors in the order of the trace."""
    return tree_leaves((list(args), [kwargs.get(name) for name in names]))
