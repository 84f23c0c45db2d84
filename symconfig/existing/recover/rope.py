"""Positions, and factors on embeddings, logits and scores. The way back from `render.megatron_model`."""

from __future__ import annotations

import math

from symconfig.existing.recover.args import Fields
from symconfig.formats import links
from symconfig.formats.megatron import LLAMA3_FIXED, MLA_FIXED, POSITIONS, ROTARY

_TYPE = ("position_embedding_type", "use_rotary_position_embeddings")
_KINDS = {"yarn": "rope", **{option: kind for kind, option in POSITIONS.items()}}
_OTHERS = {
    "mrope": "rope of several axes, for images and video, is not described",
    "relative": "relative positions (T5) are not described",
}
_LINEAR = "rotary_seq_len_interpolation_factor"


def position_fields(out: Fields, seq_length: int) -> None:
    args = out.args
    rotary = args.switch("use_rotary_position_embeddings")  # deprecated: goes before the type
    kind = "rope" if rotary else args.word("position_embedding_type") or "learned_absolute"
    if kind not in _KINDS and out.holds(*_TYPE):
        out.refuse(_OTHERS.get(kind, "this kind of position is not known"), *_TYPE, got=kind)
        return
    out.put("position", _KINDS.get(kind), *_TYPE)
    longest = args.whole("max_position_embeddings") or max(seq_length, 1)
    out.put("max_position_embeddings", longest, "max_position_embeddings")
    if out.get("position") == "rope":
        _scaling(out, kind)
    links.read(ROTARY, out)
    if out.latent and not args.table.at_least("core_v0.14.0") and out.values.get("rope_scaling.rope_type"):
        # Until core_v0.13 the softmax is scaled by mscale, and the original length is the longest position.
        out.put("rope_scaling.mscale_all_dim", out.values["rope_scaling.mscale"], "mscale")
        length = args.whole("max_position_embeddings") or MLA_FIXED["original_max_position_embeddings"]
        out.put("rope_scaling.original_max_position_embeddings", length, "max_position_embeddings")


def _scaling(out: Fields, kind: str) -> None:
    """Recover the kind of scaling; of multi-latent attention YaRN is the default, by a factor of 1 plain rope."""
    args, field = out.args, "rope_scaling.rope_type"
    if out.latent:
        if (args.word("rope_type") or "yarn") == "yarn" and args.number(1.0, "rotary_scaling_factor") != 1.0:
            out.put(field, "yarn", "rope_type", "rotary_scaling_factor")
    elif kind == "yarn" and not args.table.known("--yarn-beta-fast"):
        out.refuse(
            "outside multi-latent attention this version's YaRN has no options, and its model does not start",
            *_TYPE,
            got=f"yarn in {args.table.version}",
            need="core_v0.19.0 or later",
        )
    elif kind == "yarn":
        out.put(field, "yarn", *_TYPE)
    elif args.switch("use_rope_scaling"):
        out.put(field, "llama3", "use_rope_scaling")
        factor, fixed = args.number(LLAMA3_FIXED["factor"], "rope_scaling_factor"), LLAMA3_FIXED["factor"]
        if factor != fixed:
            why = f"--rope-scaling-factor {factor:g} is parsed, but pretrain_gpt.py never passes it on"
            out.assume("rope_scaling.factor", f"{fixed:g}", why, "rope_scaling_factor")
    elif args.value(_LINEAR) and args.table.at_least("core_v0.19.0"):
        out.put(field, "linear", _LINEAR)
    elif args.value(_LINEAR):
        parses = f"{args.table.version} parses --rotary-seq-len-interpolation-factor"
        why = f"{parses}, but the model never gets it (it does from core_v0.19.0 on)"
        out.assume("rope_scaling", "none", why, _LINEAR)


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
