"""Structure that not every model has: normed heads, gates, layers without rope, factors. The way back from
`render.megatron_structure`."""

from __future__ import annotations

import math

from symconfig.existing.recover.args import Fields
from symconfig.existing.recover.layer_pattern import Pattern, all_but, layer_pattern

# A factor that options say is a rounded one: the root of a hidden size, or what gives a softmax its scale.
_DIGITS = 9


def structure_fields(out: Fields) -> None:
    _heads(out)
    _rope_layers(out)
    _factors(out)


def _heads(out: Fields) -> None:
    args = out.args
    gated = args.switch("attention_output_gate")
    out.put("attention_gate", "channel" if gated else None, "attention_output_gate")
    if out.latent:
        return
    unit = args.switch("qk_l2_norm")
    out.put("qk_norm", unit or args.switch("qk_layernorm"), "qk_layernorm", "qk_l2_norm")
    out.put("qk_norm_of", "unit" if unit else "head", "qk_l2_norm")


def _rope_layers(out: Fields) -> None:
    skip = out.args.value("no_rope_freq")
    if skip in (None, 0) or not out.layers:
        return
    try:
        turned = out.own(_turned(layer_pattern(skip), out.counted))
    except ValueError as error:
        out.refuse("layers without rope are not said", "no_rope_freq", got=skip, need=str(error))
        return
    out.put("rope_layers", None if all(turned) else turned, "no_rope_freq")


def _turned(skip: Pattern, layers: int) -> tuple[bool, ...]:
    """Return which layers have rope (transformer_config.py, __post_init__). Raises ValueError."""
    if isinstance(skip, int):
        if skip < 1 or layers % skip:
            raise ValueError(f"a divisor of {layers} layers")
        return all_but(skip, layers)
    return tuple(not entry for entry in all_but(skip, layers))


def _factors(out: Fields) -> None:
    """Recover what --use-mup multiplies. Its factors on learning rates and on weights at the start are none of the
    model's.
    """
    args = out.args
    if not args.switch("use_mup"):
        return
    hidden = args.whole("hidden_size") or (out.base.hidden_size if out.base is not None else 0)
    base = args.whole("mup_base_hidden_size")
    wider = hidden / base if base and hidden else 1.0
    factor = args.number(1.0, "mup_embedding_mult")
    rooted = bool(hidden) and math.isclose(factor, math.sqrt(hidden), rel_tol=10.0**-_DIGITS)
    out.put("scale_embeddings", rooted, "mup_embedding_mult")
    out.put("embedding_multiplier", None if rooted or factor == 1.0 else factor, "mup_embedding_mult")
    logits = args.number(1.0, "mup_output_mult")
    logits = 1.0 / wider if logits == 1.0 else logits  # the default goes with the width
    out.put("logits_multiplier", None if logits == 1.0 else _rounded(logits), "mup_output_mult")
    width = args.whole("kv_channels") or (hidden // (args.whole("num_attention_heads") or 1))
    if width and not out.latent:
        scalar = width ** (2 * args.number(1.0, "mup_attn_scale_power")) / args.number(1.0, "mup_base_head_dim")
        rounded = _rounded(scalar)
        out.put(
            "query_pre_attn_scalar", None if rounded == width else rounded, "mup_attn_scale_power", "mup_base_head_dim"
        )
    if wider != 1.0:
        why = "by the width over --mup-base-hidden-size, which costs the same"
        out.assume("learning rates and weights at the start", "as without --use-mup", why, "mup_base_hidden_size")


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
