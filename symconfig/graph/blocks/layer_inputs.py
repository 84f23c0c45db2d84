"""An embedding of each token for every layer (Gemma 3n and 4; Transformers' Gemma4TextModel, project_per_layer_inputs).

A table gives all layers' at once; a projection of the token's usual embedding, normed by layer, is added to them. At a
layer's end its own ones gate a narrow projection of the stream, whose widened and normed result joins the stream.
L input_layers, P layer_input_size.
"""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.blocks.common import projected, residual
from symconfig.graph.blocks.context import Context
from symconfig.graph.blocks.norms import norm
from symconfig.graph.operator import Tensor

LAYERS, SIZE, ROWS = "input_layers", "layer_input_size", "layer_inputs_vocab_size"
_TOKENS = (d.BATCH, d.SEQUENCE)
INPUT = Tensor("layer_input", (*_TOKENS, SIZE))


def layer_inputs(ctx: Context, tokens: Tensor, embedded: Tensor) -> None:
    """Make the inputs of all layers, of which each reads its slice, a view. The whole stays until the backward."""
    if ctx.model.layer_inputs is None:
        return
    looked, made, whole = (
        Tensor(name, (*_TOKENS, LAYERS, SIZE)) for name in ("looked_up", "layer_projected", "layer_inputs")
    )
    table = ctx.weight("layer_embedding.weight", ROWS, LAYERS, SIZE)
    ctx.build.elementwise(
        "layer_embedding", [tokens], looked, saves=[tokens], contracted=(ROWS,), weights=[table], whole=(ROWS,),
        linear=True,
    )  # fmt: skip
    normed = norm(ctx, "layer_projection_norm", projected(ctx, "layer_projection", embedded, made), SIZE)
    ctx.build.elementwise("layer_inputs", [normed, looked], whole, linear=True)
    ctx.build.view("slice", [whole], INPUT, holds=[whole])


def with_layer_input(ctx: Context, stream: Tensor) -> Tensor:
    """Return the stream with what a layer's own input lets through."""
    return residual(ctx, "layer_input_residual", stream, let_through(ctx, stream))


def let_through(ctx: Context, stream: Tensor) -> Tensor:
    """Return what a layer's own input lets through of the stream."""
    given = ctx.build.from_elsewhere(INPUT)
    gate, active, product = (Tensor(f"layer_input_{name}", given.dims) for name in ("gate", "active", "product"))
    gate = projected(ctx, "layer_input_gate", stream, gate)
    ctx.build.elementwise("layer_input_activation", [gate], active, saves=[gate])
    ctx.build.elementwise("layer_input_product", [active, given], product, saves=[active, given])
    out = projected(ctx, "layer_input_projection", product, Tensor("layer_input_out", stream.dims))
    return norm(ctx, "layer_input_norm", out, module="post_norm")


def sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the sizes of the inputs' own dims."""
    has = model.layer_inputs
    return {} if has is None else {LAYERS: model.num_hidden_layers, SIZE: has.size, ROWS: has.vocab_size}
