"""Options -> ModelDescriptor: the way back from `render.megatron_model`, over the parser's defaults."""

from __future__ import annotations

import math
from pathlib import PurePosixPath

from symconfig.descriptor.meaning import meaning
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.errors import Problem
from symconfig.existing.recover import uncounted, zoo
from symconfig.existing.recover.fields import Fields, merged
from symconfig.existing.recover.layers import PATTERN, expert_fields, has_experts, mixer_fields
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Described
from symconfig.formats import links, megatron

_TWO = "models of an encoder and a decoder (T5), or of an encoder alone (BERT), are not described"
_USUAL = "mindspeed_llm.tasks.models.spec.qwen3_spec"  # builds the layers that Megatron-LM would
# Specifications of Megatron-LM's own for the layers of a pattern.
_STACKS = ("hybrid_stack_spec", "mamba_stack_spec")


def refuse_undescribed(out: Fields) -> None:
    """Record in `out` a problem for each argument with a value that no descriptor covers; raises nothing.

    A specification of layers in Python becomes an assumption if a model is named.
    """
    args = out.args
    for dest, why in uncounted.refused(args, "undescribed"):
        out.refuse(why, dest, got=args.word(dest))
    encoder, layers = args.value("encoder_num_layers"), args.value("num_layers")
    if encoder not in (None, layers):
        out.refuse(_TWO, "encoder_num_layers", got=encoder, hint="--num-layers, for a decoder")
    spec = args.words("spec")
    own = spec[-1:] and spec[-1] in _STACKS and any(map(args.given, PATTERN))
    if spec in ((), ("local",)) or spec[0] == _USUAL or own:
        return
    if out.base is None:
        what, hint = "layers of a specification in Python are not read", "name the model, --model M"
        out.refuse(what, "spec", got=" ".join(spec), hint=hint)
    else:
        why = "the specification in Python that builds them is not read"
        out.assume("layers", f"those of {out.base.name}", why, "spec")


# A factor that options say is a rounded one: the root of a hidden size, or what gives a softmax its scale.
_DIGITS = 9


def factor_fields(out: Fields) -> None:
    """Record in `out` what --use-mup multiplies (a factor of 1 as None); nothing without it.

    Embeddings by a factor or the hidden size's root, logits by default by base over hidden size, and attention's scale
    (query_pre_attn_scalar, except with MLA). If the sizes differ, learning rates and initial weights are an assumption.
    """
    args = out.args
    if not args.switch("use_mup"):
        return
    hidden = args.integer("hidden_size") or (out.base.hidden_size if out.base is not None else 0)
    base = args.integer("mup_base_hidden_size")
    wider = hidden / base if base and hidden else 1.0
    factor = args.number(1.0, "mup_embedding_mult")
    rooted = bool(hidden) and math.isclose(factor, math.sqrt(hidden), rel_tol=10.0**-_DIGITS)
    out.put("scale_embeddings", rooted, "mup_embedding_mult")
    out.put("embedding_multiplier", None if rooted or factor == 1.0 else factor, "mup_embedding_mult")
    logits = args.number(1.0, "mup_output_mult")
    logits = 1.0 / wider if logits == 1.0 else logits  # the default goes with the width
    out.put("logits_multiplier", None if logits == 1.0 else _rounded(logits), "mup_output_mult")
    width = args.integer("kv_channels") or (hidden // (args.integer("num_attention_heads") or 1))
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


_TYPE = ("position_embedding_type", "use_rotary_position_embeddings")
_KINDS = {"yarn": "rope", **{option: kind for kind, option in megatron.POSITIONS.items()}}
_OTHERS = {
    "mrope": "rope of several axes, for images and video, is not described",
    "relative": "relative positions (T5) are not described",
}
_LINEAR = "rotary_seq_len_interpolation_factor"


def position_fields(out: Fields, seq_length: int) -> None:
    """Record in `out` the position embedding, the longest position and rope's type, scaling and base.

    A kind that is not described is refused. seq_length (tokens): the longest position if no option gives one.
    """
    args = out.args
    rotary = args.switch("use_rotary_position_embeddings")  # deprecated: goes before the type
    kind = "rope" if rotary else args.word("position_embedding_type") or "learned_absolute"
    if kind not in _KINDS and out.holds(*_TYPE):
        out.refuse(_OTHERS.get(kind, "this kind of position is not known"), *_TYPE, got=kind)
        return
    out.put("position", _KINDS.get(kind), *_TYPE)
    longest = args.integer("max_position_embeddings") or max(seq_length, 1)
    out.put("max_position_embeddings", longest, "max_position_embeddings")
    if out.get("position") == "rope":
        _scaling(out, kind)
    links.read(megatron.ROTARY, out)
    if out.latent and not args.table.at_least("core_v0.14.0") and out.values.get("rope_scaling.rope_type"):
        # Until core_v0.13 the softmax is scaled by mscale, and the original length is the longest position.
        out.put("rope_scaling.mscale_all_dim", out.values["rope_scaling.mscale"], "mscale")
        length = args.integer("max_position_embeddings") or megatron.MLA_FIXED["original_max_position_embeddings"]
        out.put("rope_scaling.original_max_position_embeddings", length, "max_position_embeddings")


def _scaling(out: Fields, kind: str) -> None:
    """Record in `out` the type of rope scaling: yarn, llama3 or linear; nothing without one.

    MLA has YaRN by default; elsewhere it is refused in versions without --yarn-beta-fast.
    """
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
    elif args.value(_LINEAR) and args.table.at_least("core_v0.19.0"):  # releases before parse it, and pass it over
        out.put(field, "linear", _LINEAR)


_ACTIVATIONS = ("swiglu", "quick_geglu", "squared_relu", "bias_gelu_fusion")
_BIASES = ("add_bias_linear", "add_qkv_bias")


def described(
    names: Namespace, *, seq_length: int, vocab_size: int | None = None, named: ModelDescriptor | None = None
) -> Described:
    """Return the model that Megatron-LM's options, or a namespace that it printed, describe.

    Defaults of the parser fill in what is left open if the options have a model's shape of their own, else `named` (the
    user's model) does. vocab_size: used if neither options nor tokenizer give it. Raises InputError with all problems.
    """
    out = Fields(names, named)
    refuse_undescribed(out)
    links.read([*megatron.SHAPE, *megatron.ENDS], out)
    mixer_fields(out)
    heads, hidden = (out.args.integer(dest) for dest in ("num_attention_heads", "hidden_size"))
    if out.args.integer("kv_channels") is None and hidden and heads and hidden % heads and out.whole:
        what = "is not divisible by --num-attention-heads, and no --kv-channels is given"
        out.problems.append(out.args.problem(what, "hidden_size", got=hidden, need=f"a multiple of {heads}"))
    links.read(megatron.HEADS, out)
    factor_fields(out)
    position_fields(out, seq_length)
    links.read(megatron.NORMS, out)
    _activation(out)
    for field in ("mlp_bias", "attention_out_bias"):
        out.put(field, out.args.switch("add_bias_linear"), "add_bias_linear")
    out.put("qkv_bias", any(map(out.args.switch, _BIASES)), *_BIASES)
    links.read(megatron.WINDOWS, out)
    expert_fields(out)
    if named is not None and named.adapter is not None:
        out.problems.append(Problem("has an adapter, and Megatron-LM has none", field="model", got=named.name))
    out.put("vocab_size", 1, *_VOCABULARY)  # any: the model's shapes may tell which
    unsized = merged(out)
    silent = named is not None and not out.args.given(*_VOCABULARY)
    out.put(
        "vocab_size",
        named.vocab_size if named is not None and silent else _vocabulary(out, unsized, vocab_size),
        *_VOCABULARY,
    )
    return _known(out, merged(out, agree=True), seq_length)


def _known(out: Fields, model: ModelDescriptor, seq_length: int) -> Described:
    """Return the described model; `out.base`, else a model of the zoo, replaces it if it computes the same.

    The longest position of the replacement is raised to `seq_length` (tokens), except with learned positions.
    """
    match = zoo.zoo_match(model)
    same = out.base if out.base is not None and meaning(out.base) == meaning(model) else None
    if same is None and match is not None:
        same = zoo.named(match)
    if same is not None:
        longest = max(same.max_position_embeddings, seq_length)  # a bound only, but for learned positions
        model = (
            same if same.position is Position.LEARNED else same.model_copy(update={"max_position_embeddings": longest})
        )
    return Described(model, match, tuple(out.assumed), None if match else zoo.zoo_near(model))


def _activation(out: Fields) -> None:
    """Record in `out` the activation and whether the MLP is gated; refuse combinations that are none in the table.

    Without an option: GELU without a gate, in its tanh form if fused with biases, which experts cannot since
    core_v0.13.
    """
    args = out.args
    by_option = {option: links.destinations(option)[0] for *_, options in megatron.ACTIVATIONS for option in options}
    given = {option: value for option, dest in by_option.items() if (value := args.value(dest))}
    act, gated, _ = next((one for one in megatron.ACTIVATIONS if one[2] == given), ("", False, {}))
    if not given:  # the kernel fused with the bias is the tanh form, the plain one the exact
        fused = args.switch("add_bias_linear") and args.switch("bias_gelu_fusion")
        act = "gelu_tanh" if fused and not (has_experts(out) and args.table.at_least("core_v0.13.0")) else "gelu"
    elif not act:
        got = " ".join(option if value is True else f"{option} {value}" for option, value in given.items())
        limit, offset = megatron.CLAMPED_SWIGLU_LIMIT, megatron.CLAMPED_SWIGLU_OFFSET
        need = f"one, or --quick-geglu with clamp {limit:g} and offset {offset:g}"
        dests = ("quick_geglu", "activation_func_clamp_value", "glu_linear_offset", "squared_relu")
        out.refuse("these options together are no activation that is described", *dests, got=got, need=need)
    out.put("hidden_act", act or None, *_ACTIVATIONS)
    out.put("gated_mlp", gated, *_ACTIVATIONS)


# Megatron-LM's own types of tokenizer that stand for one vocabulary (megatron/training/tokenizer/tokenizer.py).
_BY_TYPE: dict[str, int] = {
    "GPT2BPETokenizer": 50_257,  # vocab.json of openai-community/gpt2
    "Llama2Tokenizer": 32_000,  # tokenizer.model of meta-llama/Llama-2-7b
}
_NULL = ("NullTokenizer", "NullMultimodalTokenizer")
_OF_OPTION = ("", "TikTokenizer", *_NULL)  # types of tokenizer that have the size that --vocab-size says
_STEP = 1024  # 128 x tp 8: a padded size may be that of a checkpoint of more tensor parallelism
_OF_MERGES = "GPT2BPETokenizer"  # pretrain_gpt.py's own where none is named; no other type has a --merge-file
# Megatron-LM takes the tokenizer's own size and pads it (tokenizer.py, _vocab_size_with_padding); --vocab-size is read
# by a few tokenizers only, and as the size itself from core_v0.18 on (build_tokenizer.py, argument_utils.py).
_VOCABULARY = ("vocab_size", "padded_vocab_size", "tokenizer_model", "tokenizer_type")


def _vocabulary(out: Fields, model: ModelDescriptor, vocab_size: int | None) -> int | None:
    """Return the vocabulary's size without padding: of the named tokenizer, else --vocab-size, else `vocab_size`.

    Without any that pads to --padded-vocab-size it is assumed in `out`: of the tokenizer's type, of the zoo's model
    with the same shapes, or the padded one. None, with a problem in `out`, if nothing gives it. model: with any
    vocabulary.
    """
    args = out.args
    kind = "a fork's" if "tokenizer_type" in args.dark else args.word("tokenizer_type")
    stated, padded = args.integer("vocab_size"), args.integer("padded_vocab_size")
    if stated is not None and kind in _NULL:  # until core_v0.17 it adds an end-of-document token
        stated += not args.table.at_least("core_v0.18.2")
    step = (args.integer("make_vocab_size_divisible_by") or 1) * (args.integer("tensor_model_parallel_size") or 1)

    def fits(size: int) -> bool:
        """Return whether a size pads to the padded one, if that is given."""
        return padded is None or 0 <= padded - size < max(step, _STEP)

    size = (None if kind in _OF_OPTION else _of_name(out)) or stated or vocab_size
    if size is not None and fits(size):
        return size
    if size is None:
        if not kind and ("merge_file" in args.dark or args.given("merge_file")):
            kind = _OF_MERGES
        if kind in _BY_TYPE and fits(_BY_TYPE[kind]):
            out.assume("vocab_size", _BY_TYPE[kind], f"the vocabulary that {kind} was made for", "tokenizer_type")
            return _BY_TYPE[kind]
        if (alike := zoo.alike(model, lambda other: fits(other.vocab_size))) is not None:
            fitting = f"pads to {padded}" if padded else "no option says the size"
            why = f"{alike.name} has the same shapes, and {fitting}"
            out.assume("vocab_size", alike.vocab_size, why, "padded_vocab_size")
            return alike.vocab_size
    if padded:
        out.assume("vocab_size", padded, "the embedding has --padded-vocab-size rows", "padded_vocab_size")
    else:
        out.problems.append(args.problem("the vocabulary's size is not said", "vocab_size", hint="--vocab-size N"))
    return padded


def _of_name(out: Fields) -> int | None:
    """Return the size of the tokenizer that --tokenizer-model names, recorded as an assumption; None if not known.

    A name is that of a known model, else in `zoo.vocabularies`; a .model or .json file counts by its folder's name.
    """
    path = PurePosixPath("" if "tokenizer_model" in out.args.dark else out.args.word("tokenizer_model"))
    name = path.parent if path.suffix in (".model", ".json") else path
    known = zoo.by_name(str(name), None) if name.name else None
    sizes = zoo.vocabularies()
    fitting = [start for start in sizes if name.name.lower().startswith(start)]
    size = known[0].vocab_size if known else sizes[max(fitting, key=len)] if fitting else None
    if size is not None:
        out.assume("vocab_size", size, f"the size of the tokenizer {name.name}", "tokenizer_model")
    return size
