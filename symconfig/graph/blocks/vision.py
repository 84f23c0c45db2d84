"""A vision tower: patches of images through layers of their own, and into the stream of the language model.

B sequences    I images of each    P patches of an image (with a class token)    H the tower's channels
A its heads    C a head's channels    F its MLP's width    T tokens of an image    D the language model's channels

Patches have no sequence that context or sequence parallelism could split: every rank of both computes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from symconfig.descriptor import vision as kinds
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.vision import Step, Vision
from symconfig.graph import dims as d
from symconfig.graph.block import LAYER, Block, Place
from symconfig.graph.blocks.common import linear, normed, projected
from symconfig.graph.implementation import Kernel, NormKernel
from symconfig.graph.operator import Element, Tensor, Use
from symconfig.graph.parts import Context, End

IMAGES, PATCHES, SEQUENCE, TOKENS = "images_per_sequence", "vision_patches", "vision_sequence", "vision_tokens"
HIDDEN, PIXELS, POSITIONS = "vision_hidden_size", "vision_patch_pixels", "vision_positions"
HEADS, HEAD_DIM, QKV = "vision_num_attention_heads", "vision_head_dim", "vision_qkv_width"
FFN = "vision_intermediate_size"
KEYS, WINDOW_KEYS = "vision_keys", "vision_window_keys"  # of a query, as a number and as a dim
_ROWS = (d.BATCH, IMAGES)
FEATURES = Tensor("image_features", (*_ROWS, TOKENS, d.HIDDEN))


# Transformers makes quick_gelu of three kernels (activations.py): x 1.702, sigmoid, x times that, which is saved, too:
# seven passes forward where one kernel makes two; nine backward for three.
_QUICK_GELU = (Fraction(7, 3), Fraction(9, 4))


def _in_tower(ctx: Context, frozen: bool) -> tuple[Context, Vision]:
    """Return (the context of a tower's operators, the model's tower): weights are frozen if `frozen` or the base model
    is, and norms are Transformers' (EAGER): in every framework the tower is Transformers' module, replicated on each
    tensor-parallel rank. Fails an assertion for a model without a tower.
    """
    how = replace(ctx.how, norm=NormKernel.EAGER)
    return replace(ctx, how=how, frozen=frozen or ctx.frozen, in_tower=True), _vision(ctx.model)


def _vision(model: ModelDescriptor) -> Vision:
    assert model.vision is not None, "a model without a tower has none of its blocks"
    return model.vision


def _norm(ctx: Context, vision: Vision, name: str, x: Tensor, dims: Sequence[str], kind: str | None = None) -> Tensor:
    centred = (kind or vision.norm) == "layernorm"
    weights = [ctx.weight(f"{name}.{part}", *dims) for part in ("weight", "bias")[: 1 + centred]]
    return normed(ctx, name, x, dims, weights, centred, "vision_norm")


def _sequence(vision: Vision) -> str:
    return SEQUENCE if vision.class_token else PATCHES


def embedding(ctx: Context) -> Block:
    """Return the block that makes x[B, I, P, H] (sequences, images, patches, channels) from pixels: a product per
    patch, then, each where the tower has it, class token, positions, and a norm. Pixels get no gradient.
    """
    ctx, vision = _in_tower(ctx, _vision(ctx.model).frozen)
    build = ctx.build
    pixels, x = Tensor("pixels", (*_ROWS, PATCHES, PIXELS)), Tensor("patches", (*_ROWS, PATCHES, HIDDEN))
    linear(ctx, "patch_embedding", pixels, (PIXELS,), (HIDDEN,), [Use(x)], vision.patch_bias)
    dims = (*_ROWS, _sequence(vision), HIDDEN)
    if vision.class_token:
        token, patches = ctx.weight("class_token", HIDDEN), Use(x).renamed((PATCHES, SEQUENCE))
        x = build.elementwise("class_token", [patches], Tensor("with_class", dims), weights=[token], linear=True)
    if vision.num_position_embeddings:
        table = ctx.weight("position_embedding", POSITIONS, HIDDEN)
        x = build.elementwise("positions", [x], Tensor("positioned", dims), weights=[table], linear=True)
    if vision.norm_before:
        x = _norm(ctx, vision, "norm_before", x, (HIDDEN,))
    return build.block(kinds.EMBEDDING, [pixels], [x], Place.ENCODER, leaves=[pixels])


def layer(ctx: Context, *, kind: str, keys: str) -> Block:
    """Return the block of a tower's layer: norm, attention and residual, norm, MLP and residual. It can be recomputed
    (module LAYER) if the framework recomputes towers. In a frozen tower the input gets no
    gradient. kind: the block's kind. keys: the dim of keys per query: of the image, or of a window.
    """
    ctx, vision = _in_tower(ctx, _vision(ctx.model).frozen)
    x = Tensor("vision_in", (*_ROWS, _sequence(vision), HIDDEN))
    with ctx.build.within(*([LAYER] if ctx.how.recomputes_towers else [])):
        with ctx.build.within(part="attn"):
            attended = _attention(ctx, vision, _norm(ctx, vision, "norm1", x, (HIDDEN,)), keys)
        middle = _residual(ctx, vision, "attention_residual", x, attended)
        with ctx.build.within(part="mlp"):
            given = _norm(ctx, vision, "norm2", middle, (HIDDEN,))
            done = _mlp(ctx, vision, "", given, FFN, vision.gated_mlp, vision.mlp_bias)
        out = _residual(ctx, vision, "mlp_residual", middle, done)
    return ctx.build.block(kind, [x], [out], Place.ENCODER, leaves=[x] if ctx.frozen else [])


def _residual(ctx: Context, vision: Vision, name: str, stream: Tensor, branch: Tensor) -> Tensor:
    if vision.layer_scale:
        factor, scaled = ctx.weight(f"{name}.scale", HIDDEN), Tensor(f"{name}.scaled", branch.dims)
        branch = ctx.build.elementwise(f"{name}_scale", [branch], scaled, saves=[branch], weights=[factor])
    return ctx.build.elementwise(name, [stream, branch], Tensor(name, stream.dims), linear=True)


def _attention(ctx: Context, vision: Vision, x: Tensor, keys: str) -> Tensor:
    """Append the tower's attention, with one fused projection or three, norm and rotary embedding of queries and keys
    where it has them, and return the projected result with x's dims. Results by image are joined by a copy.
    """
    q, k, v = (
        Tensor(name, (*x.dims[:-1], HEADS, HEAD_DIM), storage="qkv" if vision.fused_qkv else "") for name in "qkv"
    )
    if vision.fused_qkv:
        parts = [Use(part).renamed((HEADS, QKV)) for part in (q, k, v)]
        linear(ctx, "qkv", x, (HIDDEN,), (QKV,), parts, vision.qkv_bias)
    else:
        for part in (q, k, v):
            projected(ctx, f"{part.name}_proj", x, part, vision.qkv_bias)
    if vision.qk_norm:
        q, k = (_norm(ctx, vision, f"{t.name}_norm", t, (HEADS, HEAD_DIM), "rmsnorm") for t in (q, k))
    if vision.rope:
        q, k = (
            ctx.build.elementwise(
                f"rope_{t.name}", [t], Tensor(f"{t.name}_rotated", t.dims), whole=(HEAD_DIM,), linear=True
            )
            for t in (q, k)
        )
    o, out = _core(ctx, q, k, v, keys), Tensor("attention_out", x.dims)
    if vision.by_image:  # torch.cat of each image's
        o = ctx.build.elementwise("join_images", [o], Tensor("attention_joined", o.dims), linear=True)
    return projected(ctx, "proj", o, out, vision.attention_out_bias, over=2)


def _core(ctx: Context, q: Tensor, k: Tensor, v: Tensor, keys: str) -> Tensor:
    """Append softmax(q k') v without a mask, in the module core_attn, and return it per head: fused for a FLASH kernel,
    else two products and a softmax. keys: the dim of keys per query.
    """
    build, (*rows, sequence, heads, _) = ctx.build, q.dims
    over, values = (Use(one).renamed((sequence, keys)) for one in (k, v))
    with build.within("core_attn"):
        if ctx.how.attention.kernel is Kernel.FLASH:
            return build.attention(Use(q), over, values, keys)
        square = (*rows, heads, sequence, keys)
        scores = build.product("scores", Use(q), over, (HEAD_DIM,), Tensor("scores", square))
        weights = Tensor("attention_weights", square)
        build.elementwise("softmax", [scores], weights, saves=[weights], whole=(keys,), reduces={keys: 2})
        return build.product("context", Use(weights), values, (keys,), Tensor("attention_heads", q.dims))


def _mlp(ctx: Context, vision: Vision, prefix: str, x: Tensor, width: str, gate: bool, bias: bool) -> Tensor:
    """Append an MLP through `width` and return the result, as wide as x. gate: a gate projection, its activation and
    the product with up; else one activation of up. bias: of each linear layer. prefix: of all names.
    """
    build = ctx.build
    up, middle = (Tensor(f"{prefix}{name}", (*x.dims[:-1], width)) for name in ("up", "mlp_hidden"))
    projected(ctx, f"{prefix}up_proj", x, up, bias)
    if gate:
        given, active = (Tensor(f"{prefix}{name}", up.dims) for name in ("gate", "gate_active"))
        projected(ctx, f"{prefix}gate_proj", x, given, bias)
        build.elementwise(f"{prefix}gate_activation", [given], active, saves=[given])
        build.elementwise(f"{prefix}activation", [active, up], middle, saves=[active, up])
    elif vision.hidden_act == "quick_gelu":
        saves = [up, Tensor(f"{prefix}activation.sigmoid", up.dims)]
        build.elementwise(f"{prefix}activation", [up], middle, saves=saves, traffic=_QUICK_GELU)
    else:
        build.elementwise(f"{prefix}activation", [up], middle, saves=[up])
    out = Tensor(f"{prefix}mlp_out", x.dims)
    return projected(ctx, f"{prefix}down_proj", middle, out, bias)


def projector(ctx: Context) -> Block:
    """Return the block that makes the language model's tokens, features[B, I, T, D], from the last layer's patches: a
    norm (trained with the tower) if it has one, the class token dropped if there is one, and the projector's steps. The
    input gets no gradient if the tower is frozen.
    """
    own, vision = _in_tower(ctx, _vision(ctx.model).projector_frozen)
    x = given = Tensor("vision_out", (*_ROWS, _sequence(vision), HIDDEN))
    leaves = [given] if vision.frozen or ctx.frozen else []
    if vision.norm_after:  # a part of the tower, and trained with it
        x = _norm(_in_tower(ctx, vision.frozen)[0], vision, "norm_after", x, (HIDDEN,))
    if vision.class_token:
        kept = Tensor("without_class", (*_ROWS, PATCHES, HIDDEN))
        x = ctx.build.elementwise("drop_class", [Use(x).renamed((SEQUENCE, PATCHES))], kept, linear=True)
    out = _steps(own, "projector", x, vision.projector)
    return ctx.build.block(kinds.PROJECTOR, [given], [out], Place.ENCODER, leaves=leaves)


def deepstack(ctx: Context) -> Block:
    """Return the block that makes tokens from an earlier layer's patches by the deepstack's steps and adds them to the
    language model's stream at one of its first layers. The input gets no gradient if the tower is frozen.
    """
    own, vision = _in_tower(ctx, _vision(ctx.model).projector_frozen)
    x = Tensor("vision_out", (*_ROWS, _sequence(vision), HIDDEN))
    out = _steps(own, "deepstack", x, vision.deepstack)
    added = ctx.build.elementwise("deepstack_sum", [out], Tensor("deepstack_added", out.dims), linear=True)
    leaves = [x] if vision.frozen or ctx.frozen else []
    return ctx.build.block(kinds.DEEPSTACK, [x], [added], Place.ENCODER, leaves=leaves)


def _steps(ctx: Context, prefix: str, x: Tensor, steps: Sequence[Step]) -> Tensor:
    """Append all steps of a projector and return the last one's result, named FEATURES; x itself if there are no steps.
    prefix: of names and of dims between steps.
    """
    names = _width_names(prefix, steps)
    for index, (step, inner, outer) in enumerate(zip(steps, names, names[1:], strict=False)):
        result = FEATURES.name if index == len(steps) - 1 else f"{prefix}_{index}"
        x = _step(ctx, f"{prefix}.{index}", x, step, inner, result, outer)
    return x


def _width_names(prefix: str, steps: Sequence[Step]) -> list[str]:
    """Return the names of the channel dims before each step and after the last one: HIDDEN first, the language model's
    hidden size after the last linear layer, and a name of its own after other joins and linear layers. Other steps keep
    the name.
    """
    names, last = [HIDDEN], max((at for at, step in enumerate(steps) if step.kind == "linear"), default=-1)
    for index, step in enumerate(steps):
        own = f"vision_{prefix}_{index}" if step.kind in ("join", "linear") else names[-1]
        names.append(d.HIDDEN if index == last else own)
    return names


def _step(ctx: Context, name: str, x: Tensor, step: Step, inner: str, result: str, outer: str) -> Tensor:
    """Append one step of a projector and return its result: a norm; a gated MLP; a linear layer; an activation; a join
    or pool of patches into tokens, which for a join by image is a view, else a copy. inner, outer: the channel dims
    before and after it. result: the name of the result; unused for norms and gated MLPs.
    """
    build, vision = ctx.build, _vision(ctx.model)
    if step.kind in ("layernorm", "rmsnorm"):
        return _norm(ctx, vision, name, x, (inner,), step.kind)
    if step.kind == "gated":
        return _mlp(ctx, vision, f"{name}.", x, f"{name}.width", True, step.bias)
    rows = TOKENS if step.kind in ("join", "pool") else x.dims[-2]
    out = Tensor(result, (*x.dims[:-2], rows, outer))
    if step.kind == "linear":
        linear(ctx, name, x, (inner,), (outer,), [Use(out)], step.bias)
    elif step.kind == "activation":
        build.elementwise(name, [x], out, saves=[x])
    elif step.kind == "join" and vision.by_image:
        build.view(name, [x], out, whole=(inner, outer))
    else:
        build.elementwise(name, [x], out, whole=(inner, outer), linear=True)
    return out


def merge_images(ctx: Context, x: Tensor) -> Tensor:
    """Append the replacement of image tokens in the stream x[B, S, D] by the image features, FEATURES, and return the
    stream; it saves a mask. tp ranks do so before they split the sequence (Megatron-Bridge,
    models/qwen_vl/modeling_qwen25_vl.py).
    """
    mask, out = Tensor("image_mask", x.dims[:-1], Element.MASK), Tensor("merged", x.dims)
    return ctx.build.elementwise("image_merge", [x, FEATURES], out, saves=[mask], loops=(d.GATHERED,))


def sizes(model: ModelDescriptor) -> Mapping[str, float]:
    """Return the size of each of the tower's dims, with the widths between the steps of projector and deepstack, and
    the inner width of each gated step. Fails an assertion for a model without a tower.
    """
    vision = _vision(model)
    result: dict[str, float] = {
        IMAGES: vision.images_per_sequence,
        PATCHES: vision.patches,
        SEQUENCE: vision.sequence,
        TOKENS: vision.tokens,
        PIXELS: vision.num_channels * vision.temporal_patch_size * vision.patch_size**2,
        POSITIONS: vision.num_position_embeddings,
        HEAD_DIM: vision.hidden_size // vision.num_attention_heads,
        KEYS: vision.sequence,
        WINDOW_KEYS: vision.window_patches,
        QKV: 3 * vision.hidden_size,
        HEADS: vision.num_attention_heads,
        FFN: vision.intermediate_size,
    }
    for prefix, steps in (("projector", vision.projector), ("deepstack", vision.deepstack)):
        result |= zip(_width_names(prefix, steps), vision.widths(steps), strict=True)
        result |= {f"{prefix}.{at}.width": step.intermediate for at, step in enumerate(steps) if step.intermediate}
    return result


_BUILDS: Mapping[str, Callable[[Context], Block]] = {
    kinds.EMBEDDING: embedding,
    kinds.LAYER: partial(layer, kind=kinds.LAYER, keys=KEYS),
    kinds.WINDOW_LAYER: partial(layer, kind=kinds.WINDOW_LAYER, keys=WINDOW_KEYS),
    kinds.DEEPSTACK: deepstack,
    kinds.PROJECTOR: projector,
}
PARTS = tuple(
    End(
        kind=kind,
        place=Place.ENCODER,
        build=build,
        count=lambda model, kind=kind: model.encoder_kinds.count(kind),  # type: ignore[misc]
        sizes=sizes,
    )
    for kind, build in _BUILDS.items()
)
