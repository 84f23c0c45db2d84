"""Structure of attention and of the stream that not every model has -> Megatron-LM options: gates, layers without rope,
norms without weights, factors on embeddings, logits and scores.

Read in core_v0.12.1 to core_v0.19.0: transformer/attention.py, transformer_config.py, language_model_embedding.py,
language_module.py.
"""

from __future__ import annotations

import math

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.formats.layer_pattern import pattern
from symconfig.formats.megatron import CONFIG_EDIT
from symconfig.render.megatron_args import Arguments

# Of --use-mup: without --mup-base-hidden-size the width counts as the base's, so that learning rates, epsilons and
# initial weights stay as they are, and only its three factors are left (transformer_config.py, __post_init__).
MUP = "--use-mup"
ROOT_POWER = 0.5  # queries are scaled by the head dimension to this power, as without --use-mup
MUP_EDIT = "in megatron/core/models/common/embeddings/language_model_embedding.py, LanguageModelEmbedding.forward, "


def refuse_rope_layers(out: Arguments, model: ModelDescriptor) -> None:
    layers = model.rope_layers
    if layers is None or all(layers) or model.position is not Position.ROPE:
        return
    if model.latent is not None:
        out.refuse("rope_layers", "every layer of multi-latent attention has rope", pattern(layers))
    elif any(layer != layers[-1] for layer in layers[: model.num_nextn_predict_layers]):
        why = "multi-token prediction takes rope from the first layers of the list, and not from the last layer"
        out.refuse("rope_layers", why, pattern(layers))


def embedding_factor(model: ModelDescriptor) -> float:
    """Return what embeddings are multiplied by."""
    return (math.sqrt(model.hidden_size) if model.scale_embeddings else 1.0) * (model.embedding_multiplier or 1.0)


def multipliers(out: Arguments, model: ModelDescriptor) -> None:
    """Add the factors on embeddings, logits and scores."""
    if not (embedding_factor(model) != 1.0 or model.logits_multiplier not in (None, 1.0) or _scalar(model) is not None):
        return
    if not out.known(MUP):
        _unscaled(out, model)
        return
    out.put(MUP)
    if (factor := embedding_factor(model)) != 1.0:
        if model.position is Position.LEARNED:
            out.refuse(_of_embeddings(model), "it scales learned positions with the embeddings", factor)
        out.put("--mup-embedding-mult", factor)
    out.put("--mup-output-mult", model.logits_multiplier)
    out.put("--mup-attn-scale-power", ROOT_POWER)
    if _scalar(model) is None:
        return
    if model.latent is not None:
        out.refuse("query_pre_attn_scalar", "queries are always scaled by the head dimension", _scalar(model))
        return
    out.put("--mup-base-head-dim", model.head_dim / (_scalar(model) or model.head_dim))


def _scalar(model: ModelDescriptor) -> float | None:
    """Return what queries are scaled by the root of, where it is not the head dimension."""
    return None if model.query_pre_attn_scalar in (None, model.head_dim) else model.query_pre_attn_scalar


def _of_embeddings(model: ModelDescriptor) -> str:
    return "scale_embeddings" if model.scale_embeddings else "embedding_multiplier"


def _unscaled(out: Arguments, model: ModelDescriptor) -> None:
    """Refuse the factors, which no option of an older release has; code can be changed for those that cost nothing."""
    if (factor := embedding_factor(model)) != 1.0:
        text = f"{model.hidden_size} ** 0.5" if model.embedding_multiplier is None else f"{factor!r}"
        edit = f"{MUP_EDIT}write embeddings = word_embeddings * {text}"
        _older(out, _of_embeddings(model), "it does not scale embeddings", factor, edit)
    if model.logits_multiplier not in (None, 1.0):
        _older(out, "logits_multiplier", "it does not scale logits", model.logits_multiplier, None)
    if (scalar := _scalar(model)) is not None:
        edit = f"{CONFIG_EDIT.format('TransformerConfig')}, write softmax_scale: Optional[float] = {scalar:g} ** -0.5"
        why = "queries are always scaled by the head dimension"
        _older(out, "query_pre_attn_scalar", why, scalar, edit if model.latent is None else None)


def _older(out: Arguments, name: str, why: str, got: float | None, edit: str | None) -> None:
    if edit is None:
        out.needs(name, MUP, why, got)
    else:
        out.refuse(name, why, got, edit=edit)
