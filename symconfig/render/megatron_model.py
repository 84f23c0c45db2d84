"""ModelDescriptor -> Megatron-LM options: every architectural field is rendered, or refused by its name.

What an option does was read in Megatron-LM's `arguments.py`, `gpt_builders.py` and `transformer_config.py` of
core_v0.12.1 to core_v0.19.0. An accepted option proves little: some never reach the model (noted below).
"""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Norm, Position
from symconfig.frameworks.around_transformers import WITHOUT_PREDICTION
from symconfig.frameworks.megatron import hybrid, sparse
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.frameworks.megatron.hybrid import known, layer_count, of_mixers
from symconfig.frameworks.megatron.releases import MEGATRON_VOCAB_MULTIPLE
from symconfig.frameworks.megatron.unsayable import NEVER
from symconfig.render.megatron_args import Arguments, pattern, whole
from symconfig.render.megatron_mixers import mixer_args
from symconfig.render.megatron_structure import CONFIG_EDIT, attention_structure, multipliers

# The clamped SwiGLU of gpt-oss: gate * sigmoid(1.702 gate) * (up + 1), both clamped (transformers, modeling_gpt_oss).
CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_OFFSET = 7.0, 1.0

# RotaryEmbedding._apply_scaling has these as defaults, and no option changes them: --rope-scaling-factor is parsed,
# but neither gpt_builders.py nor gpt_config_from_args passes it on.
LLAMA3_FACTOR, LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_LENGTH = 8.0, 1.0, 4.0, 8192
# MLATransformerConfig's fields without an option.
MLA_YARN_LENGTH, MLA_BETA_FAST, MLA_BETA_SLOW = 4096, 32.0, 1.0

# Where a person changes what no option says and no cost depends on (read in core_v0.12.1 to core_v0.19.0).
_LLAMA3_DEFAULTS = (
    "in megatron/core/models/common/embeddings/rotary_pos_embedding.py, "
    "among the arguments of RotaryEmbedding._apply_scaling"
)
_MLA_DEFAULTS = CONFIG_EDIT.format("MLATransformerConfig")


def model_args(out: Arguments, model: ModelDescriptor, seq_length: int, tp: int, engine: bool = True) -> None:
    """Put everything of the architecture but the mixture of experts into MODEL_ARGS. engine: the GPU runs Transformer
    Engine."""
    out.group = "MODEL_ARGS"
    out.put("--transformer-impl", "transformer_engine" if engine else "local")
    out.put("--use-flash-attn", not engine)
    out.put("--num-layers", layer_count(model) if known(model) else model.num_hidden_layers)
    out.put("--hidden-size", model.hidden_size)
    # Unused when every layer is MoE, but the parser would fill in a size of its own.
    dense = model.intermediate_size or (model.experts.moe_intermediate_size if model.experts else 0)
    out.put("--ffn-hidden-size", dense)
    _attention(out, model)
    mixer_args(out, model)
    sparse_args(out, model)
    attention_structure(out, model)
    out.put("--seq-length", seq_length)
    _position(out, model, seq_length)
    out.put("--normalization", "RMSNorm" if model.norm is Norm.RMSNORM else "LayerNorm")
    out.put("--norm-epsilon", model.norm_eps)
    out.put("--apply-layernorm-1p", model.norm_zero_centered)
    if model.qk_norm and model.qk_norm_of != "unit" and model.norm is not Norm.RMSNORM:
        out.refuse("qk_norm", "its norms of queries and keys are of the kind of all other norms", model.norm)
    _activation(out, model)
    _biases(out, model)
    _windows(out, model, seq_length)
    # Add the true and the padded size: the tokenizer has the true one, the embedding the padded one.
    # Until core_v0.17 the NullTokenizer of mock data adds an end-of-document token to --vocab-size; other
    # tokenizers ignore it. From core_v0.19 on the parser demands it for real data, too.
    out.put("--vocab-size", model.vocab_size - (0 if out.at_least("core_v0.18.2") else 1))
    out.put("--make-vocab-size-divisible-by", MEGATRON_VOCAB_MULTIPLE)
    if out.known("--padded-vocab-size"):
        out.put("--padded-vocab-size", MEGATRON.padded_vocab(model.vocab_size, tp))
    out.put("--untie-embeddings-and-output-weights", not model.tie_word_embeddings)
    _mtp(out, model)
    out.put("--attention-dropout", model.attention_dropout)
    out.put("--hidden-dropout", model.hidden_dropout)
    out.put("--init-method-std", model.initializer_range)
    multipliers(out, model)
    for name, why in NEVER.items():
        section, _, leaf = name.rpartition(".")
        holder = getattr(model, section) if section else model
        if holder is None:
            continue
        value, plain = getattr(holder, leaf), type(holder).model_fields[leaf].default
        if value != plain:
            out.refuse(name, why, value)


def _attention(out: Arguments, model: ModelDescriptor) -> None:
    out.put("--num-attention-heads", model.num_attention_heads)
    if model.latent is not None:
        out.put("--multi-latent-attention")
        out.put("--q-lora-rank", model.latent.q_lora_rank)
        out.put("--kv-lora-rank", model.latent.kv_lora_rank)
        out.put("--qk-head-dim", model.latent.qk_nope_head_dim)
        out.put("--qk-pos-emb-head-dim", model.latent.qk_rope_head_dim)
        out.put("--v-head-dim", model.latent.v_head_dim)
        out.put("--kv-channels", model.latent.v_head_dim)
        out.put("--qk-layernorm")  # for MLA: the norms of the low-rank queries and keys
        # TransformerConfig of core_v0.12 refuses the fusion with MLA
        out.put("--no-rope-fusion", not out.at_least("core_v0.13.0"))
        return
    out.put("--kv-channels", model.head_dim)
    if model.num_key_value_heads != model.num_attention_heads:
        out.put("--group-query-attention")
        out.put("--num-query-groups", model.num_key_value_heads)


def _position(out: Arguments, model: ModelDescriptor, seq_length: int) -> None:
    longest = max(seq_length, model.max_position_embeddings)
    if model.position is Position.LEARNED:
        if seq_length > model.max_position_embeddings:
            out.refuse(
                "seq_length",
                f"the model has no learned position beyond its max_position_embeddings {model.max_position_embeddings}",
                seq_length,
            )
        out.put("--position-embedding-type", "learned_absolute")
    elif model.position is Position.NONE:
        out.put("--position-embedding-type", "none")
    elif model.position in (Position.ALIBI, Position.SINUSOIDAL):
        named = "ALiBi" if model.position is Position.ALIBI else "fixed table of positions"
        out.refuse("position", f"it has no {named}", model.position)
    elif model.latent is not None:
        longest = _latent_rope(out, model, seq_length, longest)
    else:
        _rope(out, model)
    out.put("--max-position-embeddings", longest)


def _rope(out: Arguments, model: ModelDescriptor) -> None:
    scaling = model.rope_scaling
    if scaling is not None and scaling.rope_type == "yarn":
        if not out.needs("rope_scaling.rope_type", "--yarn-beta-fast", "its YaRN has no options outside MLA", "yarn"):
            return
        out.put("--position-embedding-type", "yarn")
        out.put("--rotary-scaling-factor", scaling.factor)
        out.put("--yarn-original-max-position-embeddings", scaling.original_max_position_embeddings or 4096)
        out.put("--yarn-beta-fast", scaling.beta_fast or 32.0)
        out.put("--yarn-beta-slow", scaling.beta_slow or 1.0)
        out.put("--mscale", scaling.mscale or 1.0)
        out.put("--mscale-all-dim", scaling.mscale_all_dim or 0.0)
        out.put("--no-yarn-correction-range-round-to-int", scaling.truncate is False)
    else:
        out.put("--position-embedding-type", "rope")
    out.put("--rotary-base", whole("rope_theta", model.rope_theta))
    out.put("--rotary-percent", model.partial_rotary_factor)
    if scaling is None or scaling.rope_type == "yarn":
        return
    if scaling.rope_type == "llama3":
        out.put("--use-rope-scaling")
        for name, got, fixed in (
            ("factor", scaling.factor, LLAMA3_FACTOR),
            ("low_freq_factor", scaling.low_freq_factor, LLAMA3_LOW),
            ("high_freq_factor", scaling.high_freq_factor, LLAMA3_HIGH),
            ("original_max_position_embeddings", scaling.original_max_position_embeddings, LLAMA3_LENGTH),
        ):
            if got != fixed:
                why = f"its Llama 3 scaling always uses {fixed:g}"
                out.refuse(f"rope_scaling.{name}", why, got, edit=f"{_LLAMA3_DEFAULTS}, write {name}={got:g}")
    elif scaling.rope_type == "linear":
        # Parsed since long before, but the model gets it only from gpt_config_from_args, new in core_v0.19.0.
        if out.at_least("core_v0.19.0"):
            out.put("--rotary-seq-len-interpolation-factor", whole("rope_scaling.factor", scaling.factor))
        else:
            out.refuse(
                "rope_scaling.rope_type",
                "linear scaling is parsed but never reaches the model",
                "linear",
                since="core_v0.19.0",
            )
    else:
        out.refuse("rope_scaling.rope_type", "it has no such scaling", scaling.rope_type)


def _latent_rope(out: Arguments, model: ModelDescriptor, seq_length: int, longest: int) -> int:
    """Add the rope of MLA. Returns the value of --max-position-embeddings."""
    scaling = model.rope_scaling
    out.put("--position-embedding-type", "rope")
    out.put("--rotary-base", whole("rope_theta", model.rope_theta))
    if out.known("--rope-type"):
        out.put("--rope-type", "rope" if scaling is None else "yarn")
    if scaling is None:
        out.put("--rotary-scaling-factor", 1.0)  # before --rope-type, YaRN by a factor of 1 is plain rope
        return longest
    if scaling.rope_type != "yarn":
        out.refuse("rope_scaling.rope_type", "multi-latent attention has rope and YaRN only", scaling.rope_type)
        return longest
    original = scaling.original_max_position_embeddings or MLA_YARN_LENGTH
    out.put("--rotary-scaling-factor", scaling.factor)
    out.put("--mscale", scaling.mscale or 1.0)
    out.put("--mscale-all-dim", scaling.mscale_all_dim or 0.0)
    for name, got, fixed in (
        ("beta_fast", scaling.beta_fast, MLA_BETA_FAST),
        ("beta_slow", scaling.beta_slow, MLA_BETA_SLOW),
    ):
        if got not in (None, fixed):
            why = f"YaRN of multi-latent attention always uses {fixed:g}"
            out.refuse(f"rope_scaling.{name}", why, got, edit=f"{_MLA_DEFAULTS}, write {name}: float = {got:g}")
    if out.at_least("core_v0.14.0"):
        if original != MLA_YARN_LENGTH:
            out.refuse(
                "rope_scaling.original_max_position_embeddings",
                f"YaRN of multi-latent attention always uses {MLA_YARN_LENGTH}",
                original,
                edit=f"{_MLA_DEFAULTS}, write original_max_position_embeddings: int = {original}",
            )
        return longest
    # Until core_v0.13 YaRN takes its original length from --max-position-embeddings, and mscale for mscale_all_dim.
    if seq_length > original:
        out.refuse(
            "rope_scaling.original_max_position_embeddings",
            "it takes --max-position-embeddings for it, which may not be less than the sequence length",
            original,
            since="core_v0.14.0",
        )
    if (scaling.mscale or 1.0) != (scaling.mscale_all_dim or 0.0):
        out.refuse(
            "rope_scaling.mscale_all_dim",
            "it scales the softmax by mscale instead",
            scaling.mscale_all_dim,
            since="core_v0.14.0",
        )
    return original


def _activation(out: Arguments, model: ModelDescriptor) -> None:
    act, gated, biased = model.hidden_act, model.gated_mlp, all(_bias_fields(model).values())
    if act == "silu" and gated:
        out.put("--swiglu")
    elif act == "clamped_swiglu":
        if out.needs("hidden_act", "--glu-linear-offset", "it has no clamped SwiGLU", act):
            out.put("--quick-geglu")
            out.put("--glu-linear-offset", CLAMPED_SWIGLU_OFFSET)
            out.put("--activation-func-clamp-value", CLAMPED_SWIGLU_LIMIT)
    elif act == "gelu_sigmoid" and gated:
        if out.needs("hidden_act", "--quick-geglu", "it has no gated quick GELU", act):
            out.put("--quick-geglu")
            out.put("--no-bias-gelu-fusion", biased)  # a dense MLP refuses the fusion with a bias
    elif act == "relu2" and not gated:
        out.put("--squared-relu")
        out.put("--no-bias-gelu-fusion", biased)  # the kernel fused with a bias is GELU's
    elif act == "gelu" and not gated:
        out.put("--no-bias-gelu-fusion", biased)  # the fused kernel is the tanh form, the plain one the exact
    elif act == "gelu_tanh" and not gated and biased:
        pass  # Megatron's default with biases: the fused tanh kernel
    else:
        form = "gated " if gated else ""
        why = f"it has no {form}{act}" + (" without biases" if act == "gelu_tanh" and not gated else "")
        out.refuse("hidden_act", why, act)


def _bias_fields(model: ModelDescriptor) -> dict[str, bool]:
    """Tell, by field, whether that linear layer has a bias; only the layers that the model has."""
    fields = {"qkv_bias": model.qkv_bias, "attention_out_bias": model.attention_out_bias}
    if not all(model.moe_layers):
        fields["mlp_bias"] = model.mlp_bias
    if model.experts is not None:
        fields |= {"experts.expert_bias": model.experts.expert_bias, "experts.router_bias": model.experts.router_bias}
        if model.experts.latent_size is not None:
            fields["experts.latent_bias"] = model.experts.latent_bias
    return fields


def _biases(out: Arguments, model: ModelDescriptor) -> None:
    """Add the biases: Megatron has all, none, or those of q, k and v alone."""
    fields = _bias_fields(model)
    have = [name for name, value in fields.items() if value]
    if len(have) == len(fields):
        if model.experts is not None:
            if not out.at_least("core_v0.15.0"):
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


def _windows(out: Arguments, model: ModelDescriptor, seq_length: int) -> None:
    window = model.sliding_window
    if window is not None and any(model.sliding_layers):
        if out.known("--window-size"):
            # Left, right: tokens beside the query itself. Hugging Face's number counts the query.
            out.put("--window-size", f"{window - 1},0")
            if not all(model.sliding_layers):
                out.put("--window-attn-skip-freq", pattern(of_mixers(model, model.sliding_layers, False)))
        elif window < seq_length:  # a longer window masks nothing
            out.needs("sliding_window", "--window-size", "it has no sliding window", window)
    if model.attention_sinks and out.needs("attention_sinks", "--softmax-type", "its softmax has no learned sink"):
        out.put("--softmax-type", "learnable")


def _mtp(out: Arguments, model: ModelDescriptor) -> None:
    if not model.num_nextn_predict_layers:
        return
    if out.needs("num_nextn_predict_layers", "--mtp-num-layers", "it has no multi-token prediction"):
        out.put("--mtp-num-layers", model.num_nextn_predict_layers)
        out.put("--mtp-loss-scaling-factor", 0.1)  # DeepSeek-V3's for its last tokens (arXiv:2412.19437, 4.2)
    if model.position not in (Position.ROPE, Position.NONE):
        out.refuse("num_nextn_predict_layers", "multi-token prediction needs rope or no positions", model.position)
    elif model.latent is None and model.rope_scaling is not None and model.rope_scaling.rope_type == "yarn":
        out.refuse("num_nextn_predict_layers", "multi-token prediction does not go with YaRN outside MLA")


def sparse_args(out: Arguments, model: ModelDescriptor) -> None:
    """Add the indexer's sizes and its loss; refuse what sparse attention cannot be told."""
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
