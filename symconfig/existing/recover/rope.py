"""Positions: which kind options ask for, and how rope is stretched. The way back from `render.megatron_model`."""

from __future__ import annotations

from symconfig.descriptor.sections import Position
from symconfig.existing.recover.args import Fields
from symconfig.render.megatron_model import (
    LLAMA3_FACTOR,
    LLAMA3_HIGH,
    LLAMA3_LENGTH,
    LLAMA3_LOW,
    MLA_BETA_FAST,
    MLA_BETA_SLOW,
    MLA_YARN_LENGTH,
)

_TYPE = ("position_embedding_type", "use_rotary_position_embeddings")
_KINDS = {"rope": "rope", "yarn": "rope", "learned_absolute": "learned", "none": "none"}
_OTHERS = {
    "mrope": "rope of several axes, for images and video, is not described",
    "relative": "relative positions (T5) are not described",
}
# transformers' _compute_yarn_parameters, and Megatron-LM's _apply_yarn_config_from_args (argument_utils.py, 0.19)
_YARN_LENGTH, _YARN_FAST, _YARN_SLOW = 4096, 32.0, 1.0


def position_fields(out: Fields, seq_length: int) -> None:
    args, kind = out.args, _kind(out)
    if kind not in _KINDS:
        out.refuse(_OTHERS.get(kind, "this kind of position is not known"), *_TYPE, got=kind)
        return
    out.put("position", _KINDS[kind], *_TYPE)
    out.put(
        "max_position_embeddings",
        args.whole("max_position_embeddings") or max(seq_length, 1),
        "max_position_embeddings",
    )
    if _KINDS[kind] == "rope":
        out.put("rope_theta", args.number(10000.0, "rotary_base"), "rotary_base")
        _scaling(out, kind)


def _kind(out: Fields) -> str:
    """Return the kind as --position-embedding-type spells it."""
    if out.base is not None and not out.holds(*_TYPE):
        yarn = out.base.rope_scaling is not None and out.base.rope_scaling.rope_type == "yarn"
        named = {Position.LEARNED: "learned_absolute", Position.NONE: "none"}
        return named.get(out.base.position, "yarn" if yarn and not out.latent else "rope")
    rotary = out.args.switch("use_rotary_position_embeddings")  # deprecated: goes before the type
    return "rope" if rotary else out.args.word("position_embedding_type") or "learned_absolute"


def _scaling(out: Fields, kind: str) -> None:
    args = out.args
    if out.latent:
        _latent_yarn(out)
        return
    out.put("partial_rotary_factor", args.number(1.0, "rotary_percent"), "rotary_percent")
    linear = args.value("rotary_seq_len_interpolation_factor")
    if kind == "yarn":
        _yarn(out)
    elif args.switch("use_rope_scaling"):
        _llama3(out)
    elif linear and not args.table.at_least("core_v0.19.0"):
        out.assume(
            "rope_scaling",
            "none",
            f"{args.table.version} parses --rotary-seq-len-interpolation-factor, but "
            "the model never gets it (it does from core_v0.19.0 on)",
            "rotary_seq_len_interpolation_factor",
        )
    elif linear:
        out.put("rope_scaling.rope_type", "linear", "rotary_seq_len_interpolation_factor")
        out.put(
            "rope_scaling.factor",
            args.number(1.0, "rotary_seq_len_interpolation_factor"),
            "rotary_seq_len_interpolation_factor",
        )


def _llama3(out: Fields) -> None:
    """Recover Llama 3's scaling: RotaryEmbedding._apply_scaling has constants; --rope-scaling-factor never
    reaches it.
    """
    for field, value in (
        ("rope_type", "llama3"),
        ("factor", LLAMA3_FACTOR),
        ("low_freq_factor", LLAMA3_LOW),
        ("high_freq_factor", LLAMA3_HIGH),
        ("original_max_position_embeddings", LLAMA3_LENGTH),
    ):
        out.put(f"rope_scaling.{field}", value, "use_rope_scaling")
    factor = out.args.number(LLAMA3_FACTOR, "rope_scaling_factor")
    if factor != LLAMA3_FACTOR:
        out.assume(
            "rope_scaling.factor",
            f"{LLAMA3_FACTOR:g}",
            f"--rope-scaling-factor {factor:g} is parsed, but pretrain_gpt.py never passes it on",
            "rope_scaling_factor",
        )


def _yarn(out: Fields) -> None:
    """Recover YaRN of ordinary attention."""
    args = out.args
    if not args.table.known("--yarn-beta-fast"):
        out.refuse(
            "outside multi-latent attention this version's YaRN has no options, and its model does not start",
            *_TYPE,
            got=f"yarn in {args.table.version}",
            need="core_v0.19.0 or later",
        )
        return
    out.put("rope_scaling.rope_type", "yarn", *_TYPE)
    out.put("rope_scaling.factor", args.number(1.0, "rotary_scaling_factor"), "rotary_scaling_factor")
    length = args.whole("yarn_original_max_position_embeddings") or _YARN_LENGTH
    out.put("rope_scaling.original_max_position_embeddings", length, "yarn_original_max_position_embeddings")
    out.put("rope_scaling.beta_fast", args.number(_YARN_FAST, "yarn_beta_fast"), "yarn_beta_fast")
    out.put("rope_scaling.beta_slow", args.number(_YARN_SLOW, "yarn_beta_slow"), "yarn_beta_slow")
    out.put("rope_scaling.mscale", args.number(1.0, "mscale"), "mscale")
    out.put("rope_scaling.mscale_all_dim", args.number(0.0, "mscale_all_dim"), "mscale_all_dim")
    truncates = args.value("yarn_correction_range_round_to_int")
    out.put("rope_scaling.truncate", False if truncates is False else None, "yarn_correction_range_round_to_int")


def _latent_yarn(out: Fields) -> None:
    """Recover YaRN of multi-latent attention, where it is the default: by a factor of 1 it is plain rope."""
    args = out.args
    factor = args.number(1.0, "rotary_scaling_factor")
    if (args.word("rope_type") or "yarn") != "yarn" or factor == 1.0:
        return
    out.put("rope_scaling.rope_type", "yarn", "rope_type", "rotary_scaling_factor")
    out.put("rope_scaling.factor", factor, "rotary_scaling_factor")
    mscale = args.number(1.0, "mscale")
    out.put("rope_scaling.mscale", mscale, "mscale")
    out.put("rope_scaling.beta_fast", MLA_BETA_FAST)
    out.put("rope_scaling.beta_slow", MLA_BETA_SLOW)
    if args.table.at_least("core_v0.14.0"):
        out.put("rope_scaling.mscale_all_dim", args.number(0.0, "mscale_all_dim"), "mscale_all_dim")
        out.put("rope_scaling.original_max_position_embeddings", MLA_YARN_LENGTH)
        return
    # Until core_v0.13 the softmax is scaled by mscale, and the original length is the longest position.
    out.put("rope_scaling.mscale_all_dim", mscale, "mscale")
    length = args.whole("max_position_embeddings") or MLA_YARN_LENGTH
    out.put("rope_scaling.original_max_position_embeddings", length, "max_position_embeddings")
