"""A vision tower: patches of images through layers of their own, and into the stream of the language model.

B sequences    I images of each    P patches of an image (with a class token)    H the tower's channels
A its heads    C a head's channels    F its MLP's width    T tokens of an image    D the language model's channels

Patches have no sequence that context or sequence parallelism could split: every rank of both computes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from symconfig.descriptor import vision as kinds
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.vision import Step, Vision
from symconfig.graph import dims as d
from symconfig.graph.block import LAYER, Block, Place
from symconfig.graph.blocks.common import normed
from symconfig.graph.implementation import Kernel, NormKernel
from symconfig.graph.operator import Element, Tensor, Use, Weight
from symconfig.graph.parts import Context, End

IMAGES, PATCHES, SEQUENCE, TOKENS = "images_per_sequence", "vision_patches", "vision_sequence", "vision_tokens"
HIDDEN, PIXELS, POSITIONS = "vision_hidden_size", "vision_patch_pixels", "vision_positions"
HEADS, HEAD_DIM, QKV = "vision_num_attention_heads", "vision_head_dim", "vision_qkv_width"
FFN = "vision_intermediate_size"
KEYS, WINDOW_KEYS = "vision_keys", "vision_window_keys"  # of a query, as a number and as a dim
_ROWS = (d.BATCH, IMAGES)
FEATURES = Tensor("image_features", (*_ROWS, TOKENS, d.HIDDEN))


@dataclass(frozen=True, slots=True)
class _Tower:
    """Hold the arguments of the functions below: the block's context, its tower, and whether its weights are frozen.
    The tower is Transformers' module in every framework, replicated on each tensor-parallel rank.
    """

    ctx: Context
    vision: Vision
    frozen: bool

    @staticmethod
    def of(ctx: Context, frozen: bool) -> _Tower:
        """Return the tower of `ctx.model`, with weights frozen if `frozen` or the base model is, and with Transformers'
        norms (EAGER), however those of the language model are computed: `ctx.how` is replaced in place.
        """
        ctx.how = replace(ctx.how, norm=NormKernel.EAGER)
        return _Tower(ctx, _vision(ctx.model), frozen or ctx.frozen)

    @property
    def sequence(self) -> str:
        return SEQUENCE if self.vision.class_token else PATCHES

    def weight(self, name: str, *dims: str) -> Weight:
        return replace(self.ctx.weight(name, *dims), gradient=not self.frozen)

    def projected(self, name: str, x: Tensor, out: Tensor, bias: bool, over: int = 1) -> Tensor:
        """Append a linear layer and return `out`. over: number of last dims of x that are contracted."""
        self.linear(name, x, x.dims[-over:], out.dims[len(x.dims) - over :], [Use(out)], bias)
        return out

    def linear(
        self, name: str, x: Tensor, inner: Sequence[str], width: Sequence[str], outputs: Sequence[Use], bias: bool
    ) -> None:
        """Append outputs = x * W[inner, width], with a bias if `bias`; never with an adapter. Return nothing."""
        self.ctx.build.matmul(
            name,
            x,
            self.weight(f"{name}.weight", *inner, *width),
            contracted=inner,
            outputs=outputs,
            bias=self.weight(f"{name}.bias", *width) if bias else None,
            sums_bias=bias and not self.frozen and not self.ctx.how.linear.bias_inside,
        )

    def norm(self, name: str, x: Tensor, dims: Sequence[str], kind: str | None = None) -> Tensor:
        centred = (kind or self.vision.norm) == "layernorm"
        weights = [self.weight(f"{name}.{part}", *dims) for part in ("weight", "bias")[: 1 + centred]]
        return normed(self.ctx, name, x, dims, weights, centred, "vision_norm")


def _vision(model: ModelDescriptor) -> Vision:
    assert model.vision is not None, "a model without a tower has none of its blocks"
    return model.vision


def embedding(ctx: Context) -> Block:
    """Return the block that makes x[B, I, P, H] (sequences, images, patches, channels) from pixels: a product per
    patch, then, each where the tower has it, class token, positions, and a norm. Pixels get no gradient.
    """
    tower = _Tower.of(ctx, _vision(ctx.model).frozen)
    vision, build = tower.vision, ctx.build
    pixels, x = Tensor("pixels", (*_ROWS, PATCHES, PIXELS)), Tensor("patches", (*_ROWS, PATCHES, HIDDEN))
    tower.linear("patch_embedding", pixels, (PIXELS,), (HIDDEN,), [Use(x)], vision.patch_bias)
    dims = (*_ROWS, tower.sequence, HIDDEN)
    if vision.class_token:
        token, patches = tower.weight("class_token", HIDDEN), Use(x).renamed((PATCHES, SEQUENCE))
        x = build.elementwise("class_token", [patches], Tensor("with_class", dims), weights=[token], linear=True)
    if vision.num_position_embeddings:
        table = tower.weight("position_embedding", POSITIONS, HIDDEN)
        x = build.elementwise("positions", [x], Tensor("positioned", dims), weights=[table], linear=True)
    if vision.norm_before:
        x = tower.norm("norm_before", x, (HIDDEN,))
    return build.block(kinds.EMBEDDING, [pixels], [x], Place.ENCODER, leaves=[pixels])


def layer(ctx: Context, *, kind: str, keys: str) -> Block:
    """Return the block of a tower's layer: norm, attention and residual, norm, MLP and residual. It can be recomputed
    (module LAYER) if the framework recomputes towers. In a frozen tower the input gets no
    gradient. kind: the block's kind. keys: the dim of keys per query: of the image, or of a window.
    """
    vision = _vision(ctx.model)
    tower = _Tower.of(ctx, vision.frozen)
    x = Tensor("vision_in", (*_ROWS, tower.sequence, HIDDEN))
    with ctx.build.within(*([LAYER] if ctx.how.recomputes_towers else [])):
        with ctx.build.within(part="attn"):
            attended = _attention(tower, tower.norm("norm1", x, (HIDDEN,)), keys)
        middle = _residual(tower, "attention_residual", x, attended)
        with ctx.build.within(part="mlp"):
            given = tower.norm("norm2", middle, (HIDDEN,))
            done = _mlp(tower, "", given, FFN, vision.gated_mlp, vision.mlp_bias)
        out = _residual(tower, "mlp_residual", middle, done)
    return ctx.build.block(kind, [x], [out], Place.ENCODER, leaves=[x] if tower.frozen else [])


def _residual(tower: _Tower, name: str, stream: Tensor, branch: Tensor) -> Tensor:
    if tower.vision.layer_scale:
        factor, scaled = tower.weight(f"{name}.scale", HIDDEN), Tensor(f"{name}.scaled", branch.dims)
        branch = tower.ctx.build.elementwise(f"{name}_scale", [branch], scaled, saves=[branch], weights=[factor])
    return tower.ctx.build.elementwise(name, [stream, branch], Tensor(name, stream.dims), linear=True)


def _attention(tower: _Tower, x: Tensor, keys: str) -> Tensor:
    """Append the tower's attention, with norm and rotary embedding of queries and keys where it has them, and return
    the projected result with x's dims. Results by image are joined by a copy.
    """
    vision = tower.vision
    q, k, v = _projections(tower, x)
    if vision.qk_norm:
        q, k = (tower.norm(f"{t.name}_norm", t, (HEADS, HEAD_DIM), "rmsnorm") for t in (q, k))
    if vision.rope:
        q, k = (_rotated(tower, t) for t in (q, k))
    o, out = _core(tower, q, k, v, keys), Tensor("attention_out", x.dims)
    if vision.by_image:  # torch.cat of each image's
        o = tower.ctx.build.elementwise("join_images", [o], Tensor("attention_joined", o.dims), linear=True)
    return tower.projected("proj", o, out, vision.attention_out_bias, over=2)


def _rotated(tower: _Tower, x: Tensor) -> Tensor:
    out = Tensor(f"{x.name}_rotated", x.dims)
    return tower.ctx.build.elementwise(f"rope_{x.name}", [x], out, whole=(HEAD_DIM,), linear=True)


def _projections(tower: _Tower, x: Tensor) -> list[Tensor]:
    """Append the projections and return [q, k, v], each [B, I, P, A, C]: views of one fused product if the tower has
    one, else three products.
    """
    fused, bias = tower.vision.fused_qkv, tower.vision.qkv_bias
    parts = [Tensor(name, (*x.dims[:-1], HEADS, HEAD_DIM), storage="qkv" if fused else "") for name in "qkv"]
    if fused:
        tower.linear("qkv", x, (HIDDEN,), (QKV,), [Use(part).renamed((HEADS, QKV)) for part in parts], bias)
        return parts
    for part in parts:
        tower.projected(f"{part.name}_proj", x, part, bias)
    return parts


def _core(tower: _Tower, q: Tensor, k: Tensor, v: Tensor, keys: str) -> Tensor:
    """Append softmax(q k') v without a mask, in the module core_attn, and return it per head: fused for a FLASH kernel,
    else two products and a softmax. keys: the dim of keys per query.
    """
    build = tower.ctx.build
    over, values = (Use(one).renamed((tower.sequence, keys)) for one in (k, v))
    heads = q.dims[-2]
    with build.within("core_attn"):
        if tower.ctx.how.attention.kernel is Kernel.FLASH:
            return build.attention(Use(q), over, values, keys)
        square = (*_ROWS, heads, tower.sequence, keys)
        scores = build.product("scores", Use(q), over, (HEAD_DIM,), Tensor("scores", square))
        weights = Tensor("attention_weights", square)
        build.elementwise("softmax", [scores], weights, saves=[weights], whole=(keys,), reduces={keys: 2})
        return build.product("context", Use(weights), values, (keys,), Tensor("attention_heads", q.dims))


def _mlp(tower: _Tower, prefix: str, x: Tensor, width: str, gate: bool, bias: bool) -> Tensor:
    """Append an MLP through `width` and return the result, as wide as x. gate: a gate projection, its activation and
    the product with up; else one activation of up. bias: of each linear layer. prefix: of all names.
    """
    build = tower.ctx.build
    up, middle = (Tensor(f"{prefix}{name}", (*x.dims[:-1], width)) for name in ("up", "mlp_hidden"))
    tower.projected(f"{prefix}up_proj", x, up, bias)
    if gate:
        given, active = (Tensor(f"{prefix}{name}", up.dims) for name in ("gate", "gate_active"))
        tower.projected(f"{prefix}gate_proj", x, given, bias)
        build.elementwise(f"{prefix}gate_activation", [given], active, saves=[given])
        build.elementwise(f"{prefix}activation", [active, up], middle, saves=[active, up])
    else:
        _activation(tower, f"{prefix}activation", up, middle)
    out = Tensor(f"{prefix}mlp_out", x.dims)
    return tower.projected(f"{prefix}down_proj", middle, out, bias)


def _activation(tower: _Tower, name: str, x: Tensor, out: Tensor) -> Tensor:
    """Append the activation of an MLP without a gate, which saves x, and return `out`. quick_gelu also saves its
    sigmoid: Transformers makes it of three kernels (activations.py): x 1.702, sigmoid, x times that, with seven passes
    forward where one kernel makes two, and nine backward for three.
    """
    if tower.vision.hidden_act != "quick_gelu":
        return tower.ctx.build.elementwise(name, [x], out, saves=[x])
    saves, traffic = [x, Tensor(f"{name}.sigmoid", x.dims)], (Fraction(7, 3), Fraction(9, 4))
    return tower.ctx.build.elementwise(name, [x], out, saves=saves, traffic=traffic)


def projector(ctx: Context) -> Block:
    """Return the block that makes the language model's tokens, features[B, I, T, D], from the last layer's patches: a
    norm (trained with the tower) if it has one, the class token dropped if there is one, and the projector's steps. The
    input gets no gradient if the tower is frozen.
    """
    vision = _vision(ctx.model)
    tower = _Tower.of(ctx, vision.projector_frozen)
    x = given = Tensor("vision_out", (*_ROWS, tower.sequence, HIDDEN))
    leaves = [given] if vision.frozen or ctx.frozen else []
    if vision.norm_after:  # a part of the tower, and trained with it
        x = replace(tower, frozen=vision.frozen or ctx.frozen).norm("norm_after", x, (HIDDEN,))
    if vision.class_token:
        kept = Tensor("without_class", (*_ROWS, PATCHES, HIDDEN))
        x = ctx.build.elementwise("drop_class", [Use(x).renamed((SEQUENCE, PATCHES))], kept, linear=True)
    out = _steps(tower, "projector", x, vision.projector)
    return ctx.build.block(kinds.PROJECTOR, [given], [out], Place.ENCODER, leaves=leaves)


def deepstack(ctx: Context) -> Block:
    """Return the block that makes tokens from an earlier layer's patches by the deepstack's steps and adds them to the
    language model's stream at one of its first layers. The input gets no gradient if the tower is frozen.
    """
    vision = _vision(ctx.model)
    tower = _Tower.of(ctx, vision.projector_frozen)
    x = Tensor("vision_out", (*_ROWS, tower.sequence, HIDDEN))
    out = _steps(tower, "deepstack", x, vision.deepstack)
    added = ctx.build.elementwise("deepstack_sum", [out], Tensor("deepstack_added", out.dims), linear=True)
    leaves = [x] if vision.frozen or ctx.frozen else []
    return ctx.build.block(kinds.DEEPSTACK, [x], [added], Place.ENCODER, leaves=leaves)


def _steps(tower: _Tower, prefix: str, x: Tensor, steps: Sequence[Step]) -> Tensor:
    """Append all steps of a projector and return the last one's result, named FEATURES; x itself if there are no steps.
    prefix: of names and of dims between steps.
    """
    names = _width_names(prefix, steps)
    for index, (step, inner, outer) in enumerate(zip(steps, names, names[1:], strict=False)):
        last = index == len(steps) - 1
        x = _step(tower, f"{prefix}.{index}", x, step, inner, FEATURES.name if last else f"{prefix}_{index}", outer)
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


def _step(tower: _Tower, name: str, x: Tensor, step: Step, inner: str, result: str, outer: str) -> Tensor:
    """Append one step of a projector and return its result: a norm; a gated MLP; a linear layer; an activation; a join
    or pool of patches into tokens, which for a join by image is a view, else a copy. inner, outer: the channel dims
    before and after it. result: the name of the result; unused for norms and gated MLPs.
    """
    build = tower.ctx.build
    if step.kind in ("layernorm", "rmsnorm"):
        return tower.norm(name, x, (inner,), step.kind)
    if step.kind == "gated":
        return _mlp(tower, f"{name}.", x, f"{name}.width", True, step.bias)
    rows = TOKENS if step.kind in ("join", "pool") else x.dims[-2]
    out = Tensor(result, (*x.dims[:-2], rows, outer))
    if step.kind == "linear":
        tower.linear(name, x, (inner,), (outer,), [Use(out)], step.bias)
    elif step.kind == "activation":
        build.elementwise(name, [x], out, saves=[x])
    elif step.kind == "join" and tower.vision.by_image:
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
