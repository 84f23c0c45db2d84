"""Options -> ModelDescriptor: the way back from `render.megatron_model`, over the parser's defaults.

What Megatron-LM makes of an option was read in `arguments.py` and `argument_utils.py` (validate_args,
core_transformer_config_from_args) of core_v0.12.1 to core_v0.19.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from symconfig.descriptor.meaning import meaning
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.errors import Problem
from symconfig.existing.recover import zoo
from symconfig.existing.recover.args import Args, Fields
from symconfig.existing.recover.layer_pattern import all_but, layer_pattern
from symconfig.existing.recover.merge import merged
from symconfig.existing.recover.mixers import mixer_fields
from symconfig.existing.recover.moe import expert_fields, has_experts
from symconfig.existing.recover.rope import position_fields
from symconfig.existing.recover.run import Described
from symconfig.existing.recover.structure import structure_fields
from symconfig.existing.recover.undescribed import refuse_undescribed
from symconfig.existing.recover.vocabulary import SOURCES, vocabulary
from symconfig.frameworks.megatron.flags import Value
from symconfig.render.megatron_model import CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_OFFSET

_EPSILON = ("layernorm_epsilon", "norm_epsilon")  # from core_v0.16 on, and before
_ZERO_CENTERED = ("layernorm_zero_centered_gamma", "apply_layernorm_1p")
_ACTIVATIONS = ("swiglu", "quick_geglu", "squared_relu", "bias_gelu_fusion")


def described(
    names: Mapping[str, Value], *, seq_length: int, vocab_size: int | None = None, named: ModelDescriptor | None = None
) -> Described:
    """Return the model of a `Namespace`, or of the arguments by destination that Megatron printed (`as_mapping`).

    vocab_size: where neither options nor tokenizer say it. named: the model that it is said to be: it fills in what the
    options leave open, and may not contradict them. What an argument leaves open is the parser's default where the
    options have a model's shape of their own; a recipe's options have none.
    Raises InputError with all that no descriptor describes, that is missing, or that contradicts `named`.
    """
    out = Fields(Args(names), named)
    refuse_undescribed(out)
    _shape(out)
    mixer_fields(out)
    _attention(out)
    structure_fields(out)
    position_fields(out, seq_length)
    _norm(out)
    _activation(out)
    _biases(out)
    _windows(out)
    _training(out)
    expert_fields(out, _ffn(out))
    if named is not None and named.adapter is not None:
        out.problems.append(Problem("has an adapter, and Megatron-LM has none", field="model", got=named.name))
    out.put("vocab_size", 1, *SOURCES)  # any: the model's shapes may tell which
    unsized = merged(out)
    silent = named is not None and not out.args.given(*SOURCES)
    out.put(
        "vocab_size",
        named.vocab_size if named is not None and silent else vocabulary(out, unsized, vocab_size),
        *SOURCES,
    )
    return _known(out, merged(out, agree=True), seq_length)


def _known(out: Fields, model: ModelDescriptor, seq_length: int) -> Described:
    """Return the model under the name that it has in the zoo, or that it was given."""
    match = zoo.zoo_match(model)
    same = out.base if out.base is not None and meaning(out.base) == meaning(model) else None
    if same is None and match is not None:
        same = zoo.named(match)
    if same is not None:
        longest = max(same.max_position_embeddings, seq_length)  # a bound only, but for learned positions
        model = (
            same if same.position is Position.LEARNED else same.model_copy(update={"max_position_embeddings": longest})
        )
    return Described(model, match, tuple(out.assumed), zoo.zoo_near(model) if match is None else None)


def _ffn(out: Fields) -> int | None:
    """Return --ffn-hidden-size, or what validate_args makes of its absence."""
    args = out.args
    size, hidden = args.whole("ffn_hidden_size"), args.whole("hidden_size")
    if size is not None or hidden is None:
        return size
    return int((4 * hidden * 2 / 3) / 64) * 64 if args.switch("swiglu") else 4 * hidden


def _shape(out: Fields) -> None:
    args = out.args
    out.put("num_hidden_layers", args.whole("num_layers"), "num_layers")
    out.put("hidden_size", args.whole("hidden_size"), "hidden_size")
    out.put("intermediate_size", _ffn(out), "ffn_hidden_size")
    out.put(
        "tie_word_embeddings",
        not args.switch("untie_embeddings_and_output_weights"),
        "untie_embeddings_and_output_weights",
    )
    out.put("num_nextn_predict_layers", args.whole("mtp_num_layers") or 0, "mtp_num_layers")


def _attention(out: Fields) -> None:
    args = out.args
    heads = args.whole("num_attention_heads")
    out.put("num_attention_heads", heads, "num_attention_heads")
    if out.latent:
        _latent(out, heads)
        return
    grouped = args.switch("group_query_attention")
    groups = args.whole("num_query_groups") if grouped else heads
    if not grouped and args.given("num_query_groups") and args.whole("num_query_groups") not in (1, heads):
        out.assume(
            "num_key_value_heads",
            heads,
            "without --group-query-attention --num-query-groups counts for nothing",
            "num_query_groups",
        )
    out.put("num_key_value_heads", groups, "num_query_groups", "group_query_attention")
    hidden, width = args.whole("hidden_size"), args.whole("kv_channels")
    if width is None and hidden and heads and hidden % heads and out.whole:
        out.problems.append(
            args.problem(
                "is not divisible by --num-attention-heads, and no --kv-channels is given",
                "hidden_size",
                got=hidden,
                need=f"a multiple of {heads}",
            )
        )
    out.put("head_dim", width or (hidden // heads if hidden and heads else None), "kv_channels")


def _latent(out: Fields, heads: int | None) -> None:
    args = out.args
    out.put("attention", "mla", "multi_latent_attention")
    out.put("num_key_value_heads", heads, "num_attention_heads")
    for field, dest in (
        ("q_lora_rank", "q_lora_rank"),
        ("kv_lora_rank", "kv_lora_rank"),
        ("qk_nope_head_dim", "qk_head_dim"),
        ("qk_rope_head_dim", "qk_pos_emb_head_dim"),
        ("v_head_dim", "v_head_dim"),
    ):
        out.put(f"latent.{field}", args.whole(dest), dest)
    out.put("head_dim", args.whole("v_head_dim"), "v_head_dim")
    if out.whole and not args.switch("qk_layernorm"):
        out.assume(
            "norms of latent queries and keys",
            "there",
            "the options have no --qk-layernorm; every published model has them, and they cost next to nothing",
            "multi_latent_attention",
        )


def _norm(out: Fields) -> None:
    args = out.args
    kind = args.word("normalization") or "LayerNorm"
    out.put("norm", "rmsnorm" if kind == "RMSNorm" else "layernorm", "normalization")
    out.put("norm_eps", args.number(1e-5, *_EPSILON), *_EPSILON)
    out.put("norm_zero_centered", args.switch(*_ZERO_CENTERED), *_ZERO_CENTERED)
    if (
        out.values.get("qk_norm")
        and out.values.get("qk_norm_of") != "unit"
        and kind != "RMSNorm"
        and out.holds("normalization")
    ):
        out.refuse(
            "norms of queries and keys are of the kind of all norms, and only RMSNorm is described there",
            "qk_layernorm",
            got=kind,
        )


def _activation(out: Fields) -> None:
    args = out.args
    offset = args.number(0.0, "glu_linear_offset")
    clamp = args.number(0.0, "activation_func_clamp_value")
    quick = args.switch("quick_geglu")
    if args.switch("squared_relu"):
        out.put("hidden_act", "relu2", *_ACTIVATIONS)
    elif quick and (clamp, offset) == (CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_OFFSET):
        out.put("hidden_act", "clamped_swiglu", *_ACTIVATIONS)
    elif quick and (clamp, offset) == (0.0, 0.0):
        out.put("hidden_act", "gelu_sigmoid", *_ACTIVATIONS)
    elif quick:
        out.refuse(
            f"a gated quick GELU is described only with clamp {CLAMPED_SWIGLU_LIMIT:g} and offset "
            f"{CLAMPED_SWIGLU_OFFSET:g} (gpt-oss), or with neither",
            "quick_geglu",
            got=f"clamp {clamp:g}, offset {offset:g}",
        )
    elif clamp or offset:
        out.refuse(
            "a clamp or an offset of the activation is described only with --quick-geglu",
            "activation_func_clamp_value",
            "glu_linear_offset",
            got=clamp or offset,
        )
    elif args.switch("swiglu"):
        out.put("hidden_act", "silu", *_ACTIVATIONS)
    else:
        # the kernel fused with the bias is the tanh form, the plain one the exact
        fused = args.switch("add_bias_linear") and args.switch("bias_gelu_fusion")
        out.put("hidden_act", "gelu_tanh" if fused else "gelu", *_ACTIVATIONS)
    out.put("gated_mlp", args.switch("swiglu") or quick, *_ACTIVATIONS)
    known = args.switch("swiglu") or quick or args.switch("squared_relu")
    if has_experts(out) and out.holds(*_ACTIVATIONS) and not known:
        out.refuse("experts with GELU are not described", *_ACTIVATIONS, hint="--swiglu")


def _biases(out: Fields) -> None:
    args = out.args
    biased = args.switch("add_bias_linear")
    for field in ("mlp_bias", "attention_out_bias"):
        out.put(field, biased, "add_bias_linear")
    out.put("qkv_bias", biased or args.switch("add_qkv_bias"), "add_bias_linear", "add_qkv_bias")


def _windows(out: Fields) -> None:
    args = out.args
    kind = args.word("softmax_type") or "vanilla"
    if kind == "off-by-one":
        out.refuse("a softmax with a fixed sink is not described", "softmax_type", got=kind)
    out.put("attention_sinks", kind == "learnable", "softmax_type")
    ends = [int(side) for side in re.findall(r"-?\d+", args.word("window_size"))]
    if not ends or ends == [-1, -1] or ends == [-1, 0]:
        return
    if len(ends) != 2 or ends[0] < 0 or ends[1] not in (0, -1):
        out.refuse(
            "a window is described by the tokens before the query alone",
            "window_size",
            got=args.word("window_size"),
            need="N,0",
        )
        return
    out.put("sliding_window", ends[0] + 1, "window_size")  # Hugging Face's number counts the query
    skip = args.value("window_attn_skip_freq")
    try:  # megatron/core/transformer/utils.py, is_layer_window_attention
        windowed = out.own(all_but(layer_pattern(skip), out.counted)) if skip is not None else (True,) * out.layers
    except ValueError as error:
        out.refuse("layers with windows are not said", "window_attn_skip_freq", got=skip, need=str(error))
        return
    out.put("sliding_window_pattern", None if all(windowed) else windowed, "window_attn_skip_freq")


def _training(out: Fields) -> None:
    """Recover what belongs to the training rather than to the shape."""
    args = out.args
    out.put("attention_dropout", args.number(0.1, "attention_dropout"), "attention_dropout")
    out.put("hidden_dropout", args.number(0.1, "hidden_dropout"), "hidden_dropout")
    out.put("initializer_range", args.number(0.02, "init_method_std"), "init_method_std")
