"""ModelDescriptor -> Megatron-LM options: every architectural field is rendered, or refused by its name.

One option for one field is a link of `formats.megatron`; here is what is said of several together.
"""

from __future__ import annotations

import math

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Norm, Position
from symconfig.formats import links
from symconfig.formats.layer_pattern import pattern
from symconfig.formats.megatron import (
    ACTIVATIONS,
    CONFIG_EDIT,
    ENDS,
    HEADS,
    MLA_FIXED,
    NORMS,
    ROTARY,
    SHAPE,
    UNFUSED,
    WINDOWS,
)
from symconfig.frameworks.megatron import hybrid, sparse
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.frameworks.megatron.releases import MEGATRON_VOCAB_MULTIPLE, NEVER
from symconfig.frameworks.shared import WITHOUT_PREDICTION
from symconfig.render.megatron_args import Arguments


def model_args(out: Arguments, model: ModelDescriptor, seq_length: int, tp: int, engine: bool = True) -> None:
    """Add all options of the model but those of experts to MODEL_ARGS, the current group then; refuse what has no
    option.

    seq_length: the run's; a shorter sliding window needs a release with --window-size. tp: pads the vocabulary. engine:
    Transformer Engine runs on the GPU; else the local implementation with flash attention. Fields in NEVER are refused
    unless at their default.
    """
    out.group = "MODEL_ARGS"
    out.put("--transformer-impl", "transformer_engine" if engine else "local")
    out.put("--use-flash-attn", not engine)
    links.write(SHAPE, out, model)
    mixer_args(out, model)
    sparse_args(out, model)
    refuse_rope_layers(out, model)
    links.write(HEADS, out, model)
    out.put("--seq-length", seq_length)
    links.write(ROTARY, out, model)
    out.put("--max-position-embeddings", _longest(out, model, seq_length))
    links.write(NORMS, out, model)
    _activation(out, model)
    _biases(out, model)
    window = model.sliding_window if any(model.sliding_layers) else None
    if window is not None and window < seq_length:  # a longer window masks nothing
        out.needs("sliding_window", "--window-size", "it has no sliding window", window)
    links.write(WINDOWS, out, model)
    # Add the true and the padded size: the tokenizer has the true one, the embedding the padded one.
    # Until core_v0.17 the NullTokenizer of mock data adds an end-of-document token to --vocab-size; other
    # tokenizers ignore it. From core_v0.19 on the parser demands it for real data, too.
    out.put("--vocab-size", model.vocab_size - (0 if out.table.at_least("core_v0.18.2") else 1))
    out.put("--make-vocab-size-divisible-by", MEGATRON_VOCAB_MULTIPLE)
    if out.table.known("--padded-vocab-size"):
        out.put("--padded-vocab-size", MEGATRON.padded_vocab(model.vocab_size, tp))
    links.write(ENDS, out, model)
    if model.num_nextn_predict_layers:
        if model.position not in (Position.ROPE, Position.NONE):
            out.refuse("num_nextn_predict_layers", "multi-token prediction needs rope or no positions", model.position)
        elif model.latent is None and model.rope_scaling is not None and model.rope_scaling.rope_type == "yarn":
            out.refuse("num_nextn_predict_layers", "multi-token prediction does not go with YaRN outside MLA")
    multipliers(out, model)
    for name, why in NEVER.items():
        section, _, leaf = name.rpartition(".")
        holder = getattr(model, section) if section else model
        if holder is None:
            continue
        value, plain = getattr(holder, leaf), type(holder).model_fields[leaf].default
        if value != plain:
            out.refuse(name, why, value)


def _longest(out: Arguments, model: ModelDescriptor, seq_length: int) -> int:
    """Return --max-position-embeddings: the larger of seq_length and the model's; refuse a sequence beyond learned
    positions. Before core_v0.14 with MLA and rope scaling it is YaRN's original length; a longer sequence is then
    refused, and an mscale other than mscale_all_dim, too.
    """
    longest = max(seq_length, model.max_position_embeddings)
    if model.position is Position.LEARNED and longest > model.max_position_embeddings:
        why = f"the model has no learned position beyond its max_position_embeddings {model.max_position_embeddings}"
        out.refuse("seq_length", why, seq_length)
    # Until core_v0.13 YaRN of multi-latent attention takes its original length from --max-position-embeddings, and
    # mscale for mscale_all_dim.
    rope = model.rope_scaling
    if model.latent is not None and rope is not None and not out.table.at_least("core_v0.14.0"):
        longest = rope.original_max_position_embeddings or MLA_FIXED["original_max_position_embeddings"]
        if seq_length > longest:
            why = "it takes --max-position-embeddings for it, which may not be less than the sequence length"
            out.refuse("rope_scaling.original_max_position_embeddings", why, longest, since="core_v0.14.0")
        if (rope.mscale or 1.0) != (rope.mscale_all_dim or 0.0):
            why = "it scales the softmax by mscale instead"
            out.refuse("rope_scaling.mscale_all_dim", why, rope.mscale_all_dim, since="core_v0.14.0")
    return longest


def _activation(out: Arguments, model: ModelDescriptor) -> None:
    """Add the options of the activation; refuse it if Megatron-LM has none, the release lacks one, or, for tanh GELU,
    not all linear layers have biases. If all have, the activations in UNFUSED get --no-bias-gelu-fusion.
    """
    act, biased = model.hidden_act, all(_bias_fields(model).values())
    options = next((words for *one, words in ACTIVATIONS if one == [act, model.gated_mlp]), None)
    if options is None or (act == "gelu_tanh" and not biased):
        form = "gated " if model.gated_mlp else ""
        why = f"it has no {form}{act}" + (" without biases" if act == "gelu_tanh" and not model.gated_mlp else "")
        out.refuse("hidden_act", why, act)
    elif all(out.needs("hidden_act", option, f"it has no {act}", act) for option in options):
        for option, value in options.items():
            out.put(option, value)
        out.put("--no-bias-gelu-fusion", biased and act in UNFUSED)


def _bias_fields(model: ModelDescriptor) -> dict[str, bool]:
    """Return {field: whether it has a bias} for each kind of linear layer of the model. mlp_bias is left out if all
    layers have experts, experts' fields if none has.
    """
    fields = {"qkv_bias": model.qkv_bias, "attention_out_bias": model.attention_out_bias}
    if not all(model.moe_layers):
        fields["mlp_bias"] = model.mlp_bias
    if model.experts is not None:
        fields |= {"experts.expert_bias": model.experts.expert_bias, "experts.router_bias": model.experts.router_bias}
        if model.experts.latent_size is not None:
            fields["experts.latent_bias"] = model.experts.latent_bias
    return fields


def _biases(out: Arguments, model: ModelDescriptor) -> None:
    """Add the options of biases: on all linear layers, on none, or on q, k and v only (not with MLA); refuse any other
    choice. All biases with experts are refused before core_v0.15.
    """
    fields = _bias_fields(model)
    have = [name for name, value in fields.items() if value]
    if len(have) == len(fields):
        if model.experts is not None:
            if not out.table.at_least("core_v0.15.0"):
                out.refuse("experts.expert_bias", "its experts and router have no biases", True, since="core_v0.15.0")
            out.put("--no-bias-dropout-fusion")  # TEGroupedMLP refuses the fusion with biases
    elif not have:
        out.put("--disable-bias-linear")
    elif have == ["qkv_bias"] and model.attention is not Attention.MLA:
        out.put("--disable-bias-linear")
        out.put("--add-qkv-bias")
    else:
        missing = [name for name, value in fields.items() if not value]
        out.refuse(
            " and ".join(have),
            "it has biases on all linear layers, on none, or on q, k and v of ordinary "
            f"attention alone; this model has none for {' and '.join(missing) or 'the rest'}",
        )


def sparse_args(out: Arguments, model: ModelDescriptor) -> None:
    """Add the options of sparse attention's indexer, with rope fusion off; nothing without an indexer. Refused are
    releases without it (nothing is added then), layers with an indexer that are not every n-th, and what `_refuse`
    names.
    """
    if model.indexer is None:
        return
    if not out.needs("indexer", _option(sparse.KERNELS), "attention is never sparse"):
        return
    _refuse(out, model)
    out.put(sparse.VARIANT, sparse.NAME)
    for dest, name in sparse.SIZES.items():
        out.put(_option(dest), getattr(model.indexer, name))
    if model.indexer.layers is not None and not all(model.indexer.layers):
        if (pair := sparse.as_numbers(model.indexer.layers)) is None:
            why = "layers with an indexer are every n-th after the first ones"
            out.refuse("indexer.layers", why, f"{sum(model.indexer.layers)} of {len(model.indexer.layers)} layers")
        else:
            out.put(_option(sparse.FREQUENCY), pair[0])
            out.put(_option(sparse.OFFSET), pair[1])
    out.put(_option(sparse.LOSS), model.indexer.loss_coef)
    out.put(_option(sparse.OF_CHOSEN))
    out.put("--dsa-indexer-k-norm-epsilon", sparse.KEY_NORM_EPS)
    # A Hadamard transform of queries and keys, which changes no product of the two (DeepseekV32Indexer has none).
    out.put("--disable-dsa-indexer-rotate-activation")
    out.put(_option(sparse.KERNELS), sparse.BACKEND)
    out.put("--no-rope-fusion")  # TransformerConfig refuses the fusion with sparse attention


def _option(dest: str) -> str:
    return "--" + dest.replace("_", "-")


def _refuse(out: Arguments, model: ModelDescriptor) -> None:
    """Refuse what does not go with sparse attention: hybrid models and mixers, windows, attention dropout, biases of
    attention, MTP, and an indexer whose loss has weight 0.
    """
    assert model.indexer is not None
    if hybrid.hybrid(model) or model.mixers:
        out.refuse("indexer", "sparse attention is written for models whose layers all have it")
    if any(model.sliding_layers):
        out.refuse("sliding_window", "every layer of a model with sparse attention has it", model.sliding_window)
    if model.attention_dropout:
        out.refuse("attention_dropout", "sparse attention has no dropout", model.attention_dropout)
    if model.qkv_bias or model.attention_out_bias:
        out.refuse("qkv_bias", "sparse attention has no biases", True)
    if model.num_nextn_predict_layers:
        why = "layers of multi-token prediction have no sparse attention"
        out.refuse("num_nextn_predict_layers", why, model.num_nextn_predict_layers, hint=WITHOUT_PREDICTION)
    if model.indexer.loss_coef == 0:
        why = "without a loss an indexer has no gradients, for which their reduction beside the backward waits"
        out.refuse("indexer.loss_coef", why, model.indexer.loss_coef)


VARIANT = "--experimental-attention-variant"


def mixer_args(out: Arguments, model: ModelDescriptor) -> None:
    """Add the options of Mamba and linear-attention layers and their sizes; nothing for a plain transformer. Refused
    are unknown blocks and those beside attention (nothing is added then), releases without them, gated delta nets
    without SiLU or RMSNorm, and Mamba layers with another convolution kernel, biases, gated norm or norm_eps than
    MambaMixer's fixed ones.
    """
    if not model.mixers and model.mlp_layers is None:
        return
    if not hybrid.known(model):
        for mixer in model.mixers:
            if mixer.beside_attention:
                out.refuse("mixers", "no layer has two blocks side by side", mixer.block)
            elif mixer.block not in hybrid.MIXERS:
                out.refuse("mixers", "it has no such block in attention's place", mixer.block)
        return
    if hybrid.hybrid(model):
        _hybrid(out, model)
    elif out.needs("mixers", VARIANT, "every layer of GPTModel has attention", hybrid.DELTA):
        known = out.table.flags[VARIANT].choices
        out.put(VARIANT, next(word for word in hybrid.DELTA_WORDS if word in known))
        out.put("--linear-attention-freq", pattern(tuple(kind.mixer == hybrid.DELTA for kind in model.kind_of_layer)))
    for mixer in model.mixers:
        for dest, name in hybrid.SIZES.get(mixer.block, {}).items():
            out.put("--" + dest.replace("_", "-"), mixer.sizes[name])
        if mixer.block == hybrid.DELTA:
            if model.hidden_act != "silu":
                out.refuse(
                    "hidden_act", "a gated delta net has the model's activation, which must be silu", model.hidden_act
                )
            if model.norm is not Norm.RMSNORM:
                out.refuse("norm", "a gated delta net's own norm is of the kind of all other norms", model.norm)
        elif mixer.block == hybrid.MAMBA2:
            if (kernel := mixer.sizes["conv_kernel"]) != hybrid.MAMBA_KERNEL:
                why = f"Mamba's convolution always reads {hybrid.MAMBA_KERNEL} tokens"
                out.refuse("mixers", why, f"conv_kernel {kernel}")
            if wrong := sorted(hybrid.MAMBA_SWITCHES ^ set(mixer.switches)):
                why = "Mamba always has a bias of its convolution and a gated norm, and no other bias"
                has = (f"{'' if name in mixer.switches else 'no '}{name}" for name in wrong)
                out.refuse("mixers", why, ", ".join(has))
            if model.norm_eps != hybrid.MAMBA_NORM_EPS:
                out.refuse("norm_eps", f"Mamba's gated norm always has {hybrid.MAMBA_NORM_EPS:g}", model.norm_eps)


def _hybrid(out: Arguments, model: ModelDescriptor) -> None:
    """Add HybridModel's --spec and set `out.program` to its script; refuse MLA and Llama 3 rope scaling there. Before
    the release hybrid.SINCE the model is refused and nothing added.
    """
    if not out.table.at_least(hybrid.SINCE):
        name, got = ("mixers", model.mixers[0].block) if model.mixers else ("mlp_layers", None)
        why = "every layer of GPTModel has attention and an MLP"
        out.refuse(name, why, got, since=hybrid.SINCE)
        return
    out.program = hybrid.SCRIPT
    out.put("--spec", *hybrid.SPEC)
    if model.latent is not None:
        out.refuse("attention", "latent attention has no norms of its low-rank queries and keys there", model.attention)
    scaling = model.rope_scaling
    if model.position is Position.ROPE and scaling is not None and scaling.rope_type == "llama3":
        out.refuse("rope_scaling.rope_type", "its rope has no Llama 3 scaling there", scaling.rope_type)


# Of --use-mup: without --mup-base-hidden-size the width counts as the base's, so that learning rates, epsilons and
# initial weights stay as they are, and only its three factors are left (transformer_config.py, __post_init__).
MUP = "--use-mup"
ROOT_POWER = 0.5  # queries are scaled by the head dimension to this power, as without --use-mup
MUP_EDIT = "in megatron/core/models/common/embeddings/language_model_embedding.py, LanguageModelEmbedding.forward, "


def refuse_rope_layers(out: Arguments, model: ModelDescriptor) -> None:
    """Refuse layers without rope with MLA, or if the first n layers (n MTP layers) differ from the last one with MTP.
    Nothing if all layers have rope, or positions are of another kind.
    """
    layers = model.rope_layers
    if layers is None or all(layers) or model.position is not Position.ROPE:
        return
    if model.latent is not None:
        out.refuse("rope_layers", "every layer of multi-latent attention has rope", pattern(layers))
    elif any(layer != layers[-1] for layer in layers[: model.num_nextn_predict_layers]):
        why = "multi-token prediction takes rope from the first layers of the list, and not from the last layer"
        out.refuse("rope_layers", why, pattern(layers))


def embedding_factor(model: ModelDescriptor) -> float:
    """Return the factor on embeddings: sqrt(hidden size) if they are scaled, else 1, times embedding_multiplier if that
    is set."""
    return (math.sqrt(model.hidden_size) if model.scale_embeddings else 1.0) * (model.embedding_multiplier or 1.0)


def multipliers(out: Arguments, model: ModelDescriptor) -> None:
    """Add --use-mup and its factors on embeddings, logits and attention scores; nothing if the first two are 1 and the
    softmax scale is head_dim ** -0.5.

    Releases without it: see `_unscaled`. Refused are scaled learned positions and another softmax scale with MLA.
    """
    if not (embedding_factor(model) != 1.0 or model.logits_multiplier not in (None, 1.0) or _scalar(model) is not None):
        return
    if not out.table.known(MUP):
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
    """Return the number whose root divides the queries, if it is not the head dimension; else None."""
    return None if model.query_pre_attn_scalar in (None, model.head_dim) else model.query_pre_attn_scalar


def _of_embeddings(model: ModelDescriptor) -> str:
    return "scale_embeddings" if model.scale_embeddings else "embedding_multiplier"


def _unscaled(out: Arguments, model: ModelDescriptor) -> None:
    """Refuse each factor other than 1 for a release without --use-mup.

    For embeddings, and queries outside MLA, the problem's `edit` is the change of code that adds it (no problem if the
    job says that it was made, `edited`); else the problem names the first release with the option.
    """
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
