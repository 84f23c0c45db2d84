"""Hyper-connections (arXiv:2409.19606; with doubly stochastic mixing mHC, arXiv:2512.24880): each sublayer reads a
weighed sum of the streams and is written into each of them by a weight.

Weights follow from all streams of a token together: normed without weights, a product with a matrix of 2 N (+ N N)
columns, scaled by a few numbers, and a bias. With the N N, streams are mixed, too, by a matrix whose rows and columns
sum to one after some iterations (DeepSeek-V4); without, each goes on as it is (Hunyuan 4). Qwen 4's weigh each channel
by a low-rank projection. All of it is made in fp32. Transformers' DeepseekV4HyperConnection, HYV4HyperConnection,
Qwen4ExpTextGatedResidual. N residual_streams.
"""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.descriptor.reuse import Mixing
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import projected
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.norms import norm
from symconfig.graph.blocks.stream_dims import DIVISIONS, LOW, MADE, READ, STREAMS, WRITTEN
from symconfig.graph.operator import Element, Tensor, Use

_ROWS = (d.BATCH, d.SEQUENCE)
_ALL, _STREAM = (*_ROWS, STREAMS, d.HIDDEN), (*_ROWS, d.HIDDEN)
SCALES = "stream_scales"  # numbers that scale the weights of reading, writing and mixing
PARTS_OF = {Mixing.HYPER: 3, Mixing.INJECTED: 2}


@dataclass(frozen=True, slots=True)
class Link:
    """The way in which a sublayer's result joins the streams. post: a weight of each. mixed: N N numbers that mix the
    streams.
    """

    post: Tensor | None = None
    mixed: Tensor | None = None


def read(ctx: Context, name: str, x: Tensor) -> tuple[Tensor, Link]:
    """Return what a sublayer, or the head, reads of all streams."""
    mixing = ctx.model.streams.mixing if ctx.model.streams else Mixing.HYPER
    return _gated(ctx, name, x) if mixing is Mixing.GATED else _weighed(ctx, name, x, mixing)


def _weighed(ctx: Context, name: str, x: Tensor, mixing: Mixing) -> tuple[Tensor, Link]:
    """Return a sum of streams by a weight of each. Sigmoids and the softmax keep their results, a division what it
    divides and by what, in each of the iterations that make a mixing matrix doubly stochastic.
    """
    last, wide = name == "gather", Element.FP32
    raw = _raw(ctx, name, x, mixing, WRITTEN if last else READ)
    pre = Tensor(f"{name}_pre", (*_ROWS, STREAMS), wide)
    post = Tensor(f"{name}_post", pre.dims, Element.ACTIVATION if mixing is Mixing.HYPER else wide)
    mixed, mixes = Tensor(f"{name}_mixed", (*_ROWS, STREAMS, MADE)), mixing is Mixing.HYPER and not last
    made = [] if last else [post, *([mixed] if mixes else [])]
    kept = [Tensor(f"{one.name}.active", one.dims, wide) for one in (pre, *made)]
    if mixes:
        kept.append(Tensor(f"{name}_divided", (*_ROWS, DIVISIONS, STREAMS, MADE), wide))
        kept.append(Tensor(f"{name}_divisors", (*_ROWS, DIVISIONS, STREAMS), wide))
    weights = [ctx.weight(f"{name}_base", raw.dims[-1]), ctx.weight(f"{name}_scale", *(() if last else (SCALES,)))]
    whole = (raw.dims[-1], STREAMS, *([MADE] if mixes else []))
    ctx.build.elementwise(
        f"{name}_weights", [raw], pre, further=made, saves=[raw, *kept], weights=weights, whole=whole, launches=(12, 20)
    )
    read = Tensor(f"{name}_read", _STREAM)
    out = ctx.build.elementwise(f"{name}_sum", [x, pre], read, saves=[x, pre], contracted=(STREAMS,))
    return out, Link(post=None if last else post, mixed=mixed if mixes else None)


def _raw(ctx: Context, name: str, x: Tensor, mixing: Mixing, width: str) -> Tensor:
    """Return the numbers of each token from all of its streams. DeepSeek norms what the product reads, Hunyuan what it
    gives.
    """
    wide, lengths = Tensor(f"{name}_wide", _ALL, Element.FP32), Tensor(f"{name}.statistics", _ROWS, Element.FP32)
    raw, over = Tensor(f"{name}_raw", (*_ROWS, width), Element.FP32), {STREAMS: 1, d.HIDDEN: 1}
    if mixing is Mixing.HYPER:
        normed = Tensor(f"{name}_normed", _ALL, Element.FP32)
        ctx.build.elementwise(f"{name}_norm", [x], normed, saves=[wide, lengths], reduces=over, traffic=(2, 3))
        return projected(ctx, f"{name}_fn", normed, raw, over=2)
    ctx.build.elementwise(f"{name}_widen", [x], wide, linear=True)
    raw = projected(ctx, f"{name}_fn", wide, raw, over=2)
    scaled = Tensor(f"{name}_scaled", raw.dims, Element.FP32)
    return ctx.build.elementwise(f"{name}_norm", [raw, wide], scaled, saves=[raw, lengths], reduces=over)


def _gated(ctx: Context, name: str, x: Tensor) -> tuple[Tensor, Link]:
    """Return a mean of the normed streams, each channel weighed by a low-rank projection of all of them."""
    normed = norm(ctx, f"{name}_norm", x, weight=(STREAMS, d.HIDDEN), over=(d.HIDDEN,))
    low, active = Tensor(f"{name}_low", (*_ROWS, LOW)), Tensor(f"{name}_low_active", (*_ROWS, LOW))
    low = projected(ctx, f"{name}_down", normed, low, over=2)
    ctx.build.elementwise(f"{name}_activation", [low], active, saves=[low])
    gate, opened = Tensor(f"{name}_gate", _ALL), Tensor(f"{name}_opened", _ALL)
    gate = projected(ctx, f"{name}_up", active, gate)
    ctx.build.elementwise(f"{name}_sigmoid", [gate], opened, saves=[opened])
    out = ctx.build.elementwise(f"{name}_mean", [opened, normed], Tensor(f"{name}_read", _STREAM),
                                saves=[opened, normed], contracted=(STREAMS,))  # fmt: skip
    if name == "gather":
        return out, Link()
    raw, post = (Tensor(f"{name}_{of}", (*_ROWS, WRITTEN)) for of in ("injection", "post"))
    raw = projected(ctx, f"{name}_inject", normed, raw, over=2)
    kept = [Tensor(f"{name}_post.active", raw.dims)]
    return out, Link(post=ctx.build.elementwise(f"{name}_double_sigmoid", [raw], post, saves=kept))


def written(ctx: Context, name: str, x: Tensor, done: Tensor, link: Link) -> Tensor:
    """Return all streams behind a sublayer that gave `done`."""
    assert link.post is not None
    post = Use(link.post).renamed((WRITTEN, STREAMS))
    share, kept = Tensor(f"{name}_share", _ALL), done
    if link.post.element is Element.FP32:
        kept = Tensor(f"{done.name}.fp32", done.dims, Element.FP32)
    ctx.build.elementwise(f"{name}_share", [done, post], share, saves=[kept, link.post])
    if link.mixed is None:
        return ctx.build.elementwise(name, [x, share], Tensor(name, _ALL), linear=True)
    mixed = Tensor(f"{name}_streams", (*_ROWS, MADE, d.HIDDEN))
    ctx.build.product(f"{name}_mix", Use(x), Use(link.mixed), (STREAMS,), mixed)
    return ctx.build.elementwise(name, [Use(mixed).renamed((MADE, STREAMS)), share], Tensor(name, _ALL), linear=True)
