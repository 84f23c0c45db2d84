"""Factors on embeddings, logits and scores. The way back from `render.megatron_structure`."""

from __future__ import annotations

import math

from symconfig.existing.recover.args import Fields

# A factor that options say is a rounded one: the root of a hidden size, or what gives a softmax its scale.
_DIGITS = 9


def factor_fields(out: Fields) -> None:
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
