"""Optima that papers know, found again, for docs/evidence/partitions.md; their tests have the same set-up."""

from __future__ import annotations

from textwrap import fill

import numpy as np

from symconfig.cost.partition.costs import Objective
from symconfig.descriptor.mesh import of_cluster
from symconfig.graph.layout import Kind
from symconfig.graph.program.read import load_program
from symconfig.solve.partition.account import collectives
from symconfig.solve.partition.adaptive import adaptive
from symconfig.units import GIB
from tests.solve.partition.optima import (
    CLUSTER,
    NODE,
    Weighed,
    in_parts,
    model,
    named,
    of,
    optimum,
    weights,
)
from tools.pages import table

LAYER = ("input_norm", "qkv_proj", "flash_attention", "o_proj", "attention_residual", "mlp_norm", "gate_up_proj",
         "down_proj", "mlp_residual")  # fmt: skip
SIDES = {"": 224, "0": 112, "1": 56, "2": 28, "3": 14, "4": 7}


def known_optima() -> str:
    return wrapped("\n".join((column_row(), crossover(), partial(), images(), experts())))


def wrapped(text: str) -> str:
    """Return paragraphs filled anew; tables and headings as they are."""
    parts = (part.strip("\n") for part in text.split("\n\n"))
    return "\n\n".join(part if part[:1] in "|#" else fill(part, 120, break_on_hyphens=False) for part in parts) + "\n"


def column_row() -> str:
    costs = weights(of(model("llama2-7b"), 1, 4096), flat=False)
    best = optimum(costs)
    tp, sp = (named(costs, name).cost for name in ("megatron-tp", "megatron-tp-sp"))
    layer = ", ".join(f"{name} by {best.options(f'.{name}')[0]}" for name in LAYER)
    axes = NODE.axes()
    finer = weights(of(model("llama2-7b"), 1, 4096), axes, flat=False)
    two, one = optimum(finer, axes).cost, named(finer, "megatron-tp-sp", axes).cost
    return f"""\
### One sequence on one node, without flat sharding

llama2-7b on eight h100 as one axis, proved optimum: {layer}; the head and the loss by
{best.options("lm_head")[0]}, the
look-up table, which is not tied, by {best.options("word_embedding")[0]} (an all-to-all of looked up rows moves an
eighth of
the reduce-scatter that a split vocabulary needs; a tied table is split by the vocabulary). That is Megatron's
column-row
split with sequence parallelism: {best.cost * 1e3:.2f} ms against {sp * 1e3:.2f} ms of Megatron's rows, the difference
being the look-up, and {tp * 1e3:.2f} ms without sequence parallelism. With the node cut into three axes of two, a
split in
two dims beats it: {two * 1e3:.2f} ms against {one * 1e3:.2f} ms, {100 * (1 - two / one):.1f} % less.
"""


def crossover() -> str:
    rows = []
    for batch in (8, 16, 24, 32, 40, 48, 56):
        costs = weights(of(model("llama2-7b"), batch, 512), objective=Objective.SYMTENSOR)
        best = optimum(costs, among=in_parts)
        flat = [name for name, options in best.products().items() if name[:6] == "layers" and options == ["batch"]]
        moved = [f"{named(costs, name).cost / 1e9:.2f}" for name in ("megatron-tp-sp", "zero3")]
        shown = ", ".join(name.split(".")[-1] for name in flat) or "none"
        rows.append((str(batch), *moved, f"{best.cost / 1e9:.2f}", shown))
    heads = ("sequences", "column-row, 10^9 elements", "ZeRO-3", "optimum", "products of a layer that take the batch")
    h, f, s = 4096, 11008, 512
    closed = (3 * (4 * h**2 + 3 * h * f + 2 * h) - 4 * h) / (8 * s * h)
    return f"""\
### Where flat sharding moves fewer elements than column-row

llama2-7b on the same axis, sequences of {s} tokens, every weight with its states in eighths, the objective of
elements
(no memory term). In units of (N - 1) / N elements a layer moves 3 P with ZeRO-3 (two gathers, one reduction) and
8 b s h + 4 h with column-row (four gathers and four reductions of b s h elements; gradients of two norms): flat
sharding
moves less from b = (3 P - 4 h) / (8 s h) = {closed:.2f} sequences on. The free optimum changes piece by piece:
attention,
whose weights are smaller, goes flat before the MLP.

""" + table(heads, rows)


def partial() -> str:
    costs = weights(of(model("llama2-7b"), 64, 512), objective=Objective.SYMTENSOR)
    names = ("data", "zero1", "zero3", "megatron-tp-sp")
    fixed = {name: named(costs, name) for name in names}
    limit = 45 * GIB
    best = optimum(costs, memory_limit=limit)
    stored = {
        node.name.split(".")[-2]: best.options(node.name)[0]
        for node in costs.net.nodes
        if node.parameter is not None and node.times > 1
    }
    told = "; ".join(f"{name} {one.cost / 1e9:.2f} ({one.memory / GIB:.0f} GiB)" for name, one in fixed.items())
    return f"""\
### With memory to spare

llama2-7b, 64 sequences of 512 tokens, {limit / GIB:.0f} GiB for tensors: the optimum moves {best.cost / 1e9:.2f} x
10^9 elements in
{best.memory / GIB:.0f} GiB with the weights of a layer stored as
{", ".join(f"{a}: {b}" for a, b in stored.items())}. Fixed
strategies: {told}. A plan that shards a part of the model beats
the one that shards all of it, as TAP found.
"""


def _adaptive(gpus: int, n: int, larger: int) -> Weighed:
    mesh = of_cluster(CLUSTER, gpus)
    axes = mesh.axes(tuple((level.size,) if level.size < 8 else (2, level.size // 2) for level in mesh.levels))
    sides = {axis + stage: larger * size for axis in "ij" for stage, size in SIDES.items()}
    costs = weights(load_program("wide-resnet-50-2", {"n": n, **sides}), axes, mesh)
    best = adaptive(costs, axes, np.inf).best
    assert best is not None
    return Weighed(costs, axes, best.rows, best.cost, best.memory)


def images() -> str:
    large, small = _adaptive(8, 4, 8), _adaptive(16, 8, 1)
    late = ("stage1.0.d", "stage2.0.d", "stage3.0.d", "stage4.0.d")
    heads = ("3x3 convolution of stage", "four images of 1,792 x 1,792 on 8", "eight of 224 x 224 on 16")
    rows = [
        (str(number), *(", ".join(one.products()[name]) for one in (large, small)))
        for number, name in enumerate(late, 1)
    ]
    return f"""\
### Wide-ResNet-50-2 with fewer images than GPUs

Splits along the mesh's axes (8: {", ".join(str(axis.size) for axis in large.axes)}; 16:
{", ".join(str(axis.size) for axis in small.axes)}), by the adaptive solver. Large images are split by examples (n)
and by
rows (i); small ones by examples and, where layers are wide, by channels (p, q), as Alpa found. *whole*: more GPUs
do not
pay.

""" + table(heads, rows)


def experts() -> str:
    rows = []
    for name, gpus in (("mixtral-8x7b", 8), ("qwen3-30b-a3b", 16)):
        mesh = of_cluster(CLUSTER, gpus)
        axes = mesh.axes(tuple((level.size,) for level in mesh.levels))
        costs = weights(of(model(name), gpus, 4096), axes, mesh)
        best = optimum(costs, axes)
        split = next(options for node, options in best.products().items() if "expert" in node)
        moved = [one for one in collectives(costs, axes, best.rows) if one.kind is Kind.ALL_TO_ALL]
        told = ", ".join(sorted({f"{one.phase} over {one.level}" for one in moved}))
        rows.append((name, str(gpus), ", ".join(split), told))
    shown = table(("model", "on", "experts' products", "all-to-alls of slots, a turn"), rows)
    return f"### Experts\n\nOne sequence for each GPU, a level one axis, proved optimum.\n\n{shown}"
