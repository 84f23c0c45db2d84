"""Options -> ModelDescriptor: the way back from `render.megatron_model`, over the parser's defaults."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.descriptor.meaning import meaning
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.errors import Problem
from symconfig.existing.recover import zoo
from symconfig.existing.recover.args import Args, Fields
from symconfig.existing.recover.merge import merged
from symconfig.existing.recover.mixers import mixer_fields
from symconfig.existing.recover.moe import expert_fields, has_experts
from symconfig.existing.recover.rope import factor_fields, position_fields
from symconfig.existing.recover.run import Described
from symconfig.existing.recover.undescribed import refuse_undescribed
from symconfig.existing.recover.vocabulary import SOURCES, vocabulary
from symconfig.formats import links
from symconfig.formats.megatron import (
    ACTIVATIONS,
    CLAMPED_SWIGLU_LIMIT,
    CLAMPED_SWIGLU_OFFSET,
    ENDS,
    HEADS,
    NORMS,
    SHAPE,
    WINDOWS,
)
from symconfig.frameworks.megatron.flags import Value

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
    links.read([*SHAPE, *ENDS], out)
    mixer_fields(out)
    _attention(out)
    links.read(HEADS, out)
    factor_fields(out)
    position_fields(out, seq_length)
    links.read(NORMS, out)
    if out.values.get("qk_norm") and out.values.get("qk_norm_of") != "unit" and out.values.get("norm") != "rmsnorm":
        what = "norms of queries and keys are of the kind of all norms, and only RMSNorm is described there"
        if out.holds("normalization"):
            out.refuse(what, "qk_layernorm", got=out.args.word("normalization"))
    _activation(out)
    _biases(out)
    links.read(WINDOWS, out)
    expert_fields(out)
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


def _attention(out: Fields) -> None:
    """Say what options of attention count for nothing, or are missing."""
    args = out.args
    heads, hidden, groups = (args.whole(dest) for dest in ("num_attention_heads", "hidden_size", "num_query_groups"))
    if out.latent:
        if out.whole and not args.switch("qk_layernorm"):
            why = "the options have no --qk-layernorm; every published model has them, and they cost next to nothing"
            out.assume("norms of latent queries and keys", "there", why, "multi_latent_attention")
        return
    if not args.switch("group_query_attention") and args.given("num_query_groups") and groups not in (1, heads):
        why = "without --group-query-attention --num-query-groups counts for nothing"
        out.assume("num_key_value_heads", heads, why, "num_query_groups")
    if args.whole("kv_channels") is None and hidden and heads and hidden % heads and out.whole:
        what = "is not divisible by --num-attention-heads, and no --kv-channels is given"
        out.problems.append(args.problem(what, "hidden_size", got=hidden, need=f"a multiple of {heads}"))


def _activation(out: Fields) -> None:
    args = out.args
    dests = {option: links.destinations(option)[0] for *_, options in ACTIVATIONS for option in options}
    given = {option: args.value(dest) for option, dest in dests.items() if args.value(dest)}
    act, gated, _ = next((one for one in ACTIVATIONS if one[2] == given), ("", False, {}))
    if not given:  # the kernel fused with the bias is the tanh form, the plain one the exact
        act = "gelu_tanh" if args.switch("add_bias_linear") and args.switch("bias_gelu_fusion") else "gelu"
    elif not act:
        out.refuse(
            "these options together are no activation that is described",
            "quick_geglu",
            "activation_func_clamp_value",
            "glu_linear_offset",
            "squared_relu",
            got=" ".join(option if value is True else f"{option} {_short(value)}" for option, value in given.items()),
            need=f"one, or --quick-geglu with clamp {CLAMPED_SWIGLU_LIMIT:g} and offset {CLAMPED_SWIGLU_OFFSET:g}",
        )
    out.put("hidden_act", act or None, *_ACTIVATIONS)
    out.put("gated_mlp", gated, *_ACTIVATIONS)
    if has_experts(out) and out.holds(*_ACTIVATIONS) and not given:
        out.refuse("experts with GELU are not described", *_ACTIVATIONS, hint="--swiglu")


def _short(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _biases(out: Fields) -> None:
    args = out.args
    biased = args.switch("add_bias_linear")
    for field in ("mlp_bias", "attention_out_bias"):
        out.put(field, biased, "add_bias_linear")
    out.put("qkv_bias", biased or args.switch("add_qkv_bias"), "add_bias_linear", "add_qkv_bias")
