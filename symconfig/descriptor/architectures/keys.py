"""Keys of `config.json`: how tables of them are written, keys of one meaning in every architecture, and what
transformers' config classes fill in (by tools/generate/families.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from symconfig.resources import json_data


class Derived(Enum):
    """Defaults that are computed from other keys."""

    HEADS = "num_attention_heads"
    HEAD_DIM = "hidden_size / num_attention_heads"
    FOUR_TIMES_HIDDEN = "4 x hidden_size"
    LAYERS = "as many as layer_types or hybrid_override_pattern lists"


def words(text: str) -> frozenset[str]:
    """Return the set of a text's words."""
    return frozenset(text.split())


def pairs(text: str) -> dict[str, str]:
    """Return the dict of a text's words `key=value`, values as text; a word without `=` gets "true"."""
    parts = (word.partition("=") for word in text.split())
    return {key: value if sign else "true" for key, sign, value in parts}


def facts(text: str) -> dict[str, Any]:
    """Return the dict of a text's words `key=value`, values parsed.

    A value is a member of `Derived`, JSON, else the text itself; a word without `=` is True.
    """
    return {key: _value(value) for key, value in pairs(text).items()}


def alternatives(text: str) -> dict[str, tuple[Any, ...]]:
    """Return the dict of a text's words `key=value|value`, each key with the tuple of its parsed values."""
    return {key: tuple(map(_value, value.split("|"))) for key, value in pairs(text).items()}


def _value(word: str) -> Any:
    """Return the member of `Derived` with this name, else the word parsed as JSON, else the word itself if it is no
    JSON.
    """
    if word in Derived.__members__:
        return Derived[word]
    try:
        return json.loads(word)
    except ValueError:
        return word


NAMES = {
    key: tuple(fields.split(","))
    for key, fields in pairs(
        """n_embd=hidden_size n_layer=num_hidden_layers n_head=num_attention_heads n_positions=max_position_embeddings
        n_inner=intermediate_size kv_channels=head_dim rms_norm_eps=norm_eps layer_norm_eps=norm_eps
        layer_norm_epsilon=norm_eps activation_function=hidden_act hidden_activation=hidden_act
        attention_bias=qkv_bias,attention_out_bias attn_pdrop=attention_dropout attn_dropout_prob=attention_dropout
        resid_pdrop=hidden_dropout emb_dropout_prob=hidden_dropout rotary_pct=partial_rotary_factor
        rotary_emb_base=rope_theta use_parallel_residual=parallel_residual
        num_local_experts=experts.num_experts n_routed_experts=experts.num_experts num_experts=experts.num_experts
        num_experts_per_tok=experts.num_experts_per_tok moe_intermediate_size=experts.moe_intermediate_size
        shared_expert_intermediate_size=experts.shared_expert_intermediate_size
        first_k_dense_replace=experts.first_k_dense_replace decoder_sparse_step=experts.moe_layer_freq
        norm_topk_prob=experts.norm_topk_prob n_group=experts.n_group topk_group=experts.topk_group
        routed_scaling_factor=experts.routed_scaling_factor router_aux_loss_coef=experts.router_aux_loss_coef
        aux_loss_alpha=experts.router_aux_loss_coef q_lora_rank=latent.q_lora_rank kv_lora_rank=latent.kv_lora_rank
        qk_nope_head_dim=latent.qk_nope_head_dim qk_rope_head_dim=latent.qk_rope_head_dim v_head_dim=latent.v_head_dim
        index_n_heads=indexer.index_n_heads index_head_dim=indexer.index_head_dim index_topk=indexer.index_topk"""
    ).items()
}

# Read by a rule of their own in huggingface.py, not copied to a field.
RULED = words(
    """rope_scaling original_max_position_embeddings use_sliding_window max_window_layers layer_types sliding_window
    sliding_window_pattern mlp_only_layers mlp_layer_types n_shared_experts attention_chunk_size"""
)
# With a default of their own, but null means that there is none.
NULL_IS_NONE = words(
    """sliding_window q_lora_rank n_group topk_group final_logit_softcapping attn_logit_softcapping layer_types
    rope_scaling mlp_only_layers n_shared_experts attention_value_scale"""
)
# Numbers whose default is an int or null, and that may be fractions.
FRACTIONS = frozenset(("final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar"))

ACTIVATIONS = pairs(
    """silu=silu swish=silu gelu=gelu gelu_new=gelu_tanh gelu_pytorch_tanh=gelu_tanh gelu_fast=gelu_tanh relu=relu
    relu2=relu2 xielu=xielu"""
)

# Keys of every config.json that say nothing about the architecture, by what they say instead.
IDLE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "code beside the weights, which is never run": words("auto_map"),
        "names and releases": words(
            """_name_or_path name_or_path architectures model_type transformers_version tokenizer_class tokenizer_type
            _commit_hash unsloth_version unsloth_fixed transformers.js_config torchscript is_decoder"""
        ),
        "the tokenizer's tokens": words(
            """bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id
            forced_bos_token_id forced_eos_token_id begin_suppress_tokens suppress_tokens bad_words_ids prefix"""
        ),
        "generation": words(
            """do_sample temperature top_k top_p typical_p max_length min_length max_new_tokens num_beams
            num_beam_groups num_return_sequences repetition_penalty length_penalty no_repeat_ngram_size
            encoder_no_repeat_ngram_size early_stopping diversity_penalty exponential_decay_length_penalty
            remove_invalid_values cache_implementation use_cache return_dict_in_generate output_scores"""
        ),
        "other tasks, and what a model returns": words(
            """task_specific_params problem_type id2label label2id num_labels finetuning_task output_attentions
            output_hidden_states output_router_logits return_dict"""
        ),
        "how it is run": words(
            """pretraining_tp use_bfloat16 chunk_size_feed_forward _attn_implementation
            _attn_implementation_autoset attn_implementation gradient_checkpointing ep_size seq_aux"""
        ),
    }
)
COMMON_IGNORED = frozenset[str]().union(*IDLE.values())
# Keys that change nothing of a model that is trained where its family's table does not read them, by what they say.
IDLE_UNLESS_READ: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "the weights of losses": re.compile(r"(router_)?(aux|z)_loss_(alpha|coef|coefficient|weight)"),
        "a model that drafts tokens for this one": re.compile(
            r"(dflash|draft(er)?|dspark|eagle\d?|medusa|speculat\w+?)_\w+"
        ),
    }
)


def idle_unless_read(key: str) -> str | None:
    """Return what a key is about if its name is that of a loss weight or of a drafting model's setting, else None. Such
    keys do not change the trained model unless the family's table reads them.
    """
    return next((why for why, pattern in IDLE_UNLESS_READ.items() if pattern.fullmatch(key)), None)


COMMON_ONLY = alternatives(
    """is_encoder_decoder=false add_cross_attention=false cross_attention_hidden_size=null tie_encoder_decoder=false
    pruned_heads={}|null attention_dropout=0.0 mlp_bias=false attention_bias=false partial_rotary_factor=1.0
    sliding_window=null"""
)
COMMON_NOTED = {
    "quantization_config": "the published weights are quantised (quantization_config); "
    "training is planned in torch_dtype",
    "router_jitter_noise": "router_jitter_noise is not modelled: it changes no shape and no cost",
    **{
        name: f"{name} (dropout of the embeddings) is not modelled"
        for name in ("embd_pdrop", "embed_dropout", "embedding_dropout", "emb_pdrop")
    },
}


_SPOKEN = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list",
    "dict": "an object", "list[int]": "a list of whole numbers", "list[float]": "a list of numbers",
    "list[str]": "a list of texts", "COUNT": "a whole number > 0, or nothing",
    "LAYERS": "a list of layers, or nothing", "NUMBER": "a number of any sign",
}  # fmt: skip
# Types of keys whose default does not show what they may be, by whether a value fits.
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "COUNT": lambda value: type(value) is int and 0 < value < 2**63,
    "LAYERS": lambda value: fits(value, "list[int]"),
    "NUMBER": lambda value: fits(value, "float") and abs(value) < 2**63,
}
_OF_JSON: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,), "int": (int,), "float": (int, float), "str": (str,), "list": (list,), "dict": (dict,)
}  # fmt: skip


def type_of(key: str, default: object, annotated: str | None) -> str:
    """Return the types that a key's value may have, joined by `|`: "float" for FRACTIONS, else as annotated, without
    None.

    Without an annotation, the default's type: int for a `Derived`, list for a tuple, empty (any type) for None.
    """
    if key in FRACTIONS:
        return "float"
    if annotated is not None:
        return "|".join(word for word in annotated.split("|") if word != "None")
    if default is None:
        return ""
    kind = "int" if isinstance(default, Derived) else type(default).__name__
    return "list" if kind == "tuple" else kind


def fits(value: Any, types: str) -> bool:
    """Return whether a value is of one of the types, joined by `|`; true and false are no numbers, int is a float."""
    return any(_is(value, one) for one in types.split("|"))


def spoken(types: str) -> str:
    """Return the types, joined by `|`, as a message names them: "a whole number or a list"."""
    return " or ".join(_SPOKEN.get(one, one) for one in types.split("|"))


def _is(value: Any, one: str) -> bool:
    if one in KINDS:
        return KINDS[one](value)
    outer, _, inner = one.partition("[")
    if not isinstance(value, _OF_JSON[outer]) or (isinstance(value, bool) and outer != "bool"):
        return False
    return not inner or (isinstance(value, list) and all(_is(item, inner.rstrip("]")) for item in value))


FILE = Path(__file__).parent / "transformers.json"
# Keys that a class fills in from others where they are null (each class's __post_init__ or its modules).
DERIVED: Mapping[str, Derived] = {
    "num_key_value_heads": Derived.HEADS,
    "head_dim": Derived.HEAD_DIM,
    "n_inner": Derived.FOUR_TIMES_HIDDEN,
}
# Families of which transformers has no class, with one that is the same network: Qwen-7B's code is Qwen2's, GPT-3 is
# GPT-2 with other sizes, Kimi-K2 DeepSeek-V3, Ling 2.0 Sarvam's, and MiniCPM Granite with other names of its factors.
SAME_NETWORK = pairs("qwen=qwen2 gpt3=gpt2 kimi_k2=deepseek_v3 mimo=qwen2 bailing_moe=sarvam_moe minicpm=granite")

# Families whose bias on each router's scores is a parameter that no gradient reaches.
SCORE_BIAS = ("afmoe", "ernie4_5_moe")


def families() -> Mapping[str, Any]:
    """Return the families of the recorded Transformers release by model_type.

    Each row has defaults, types, aliases, rope and the text section.
    """
    rows: Mapping[str, Any] = json_data(FILE)["families"]
    return rows


def row_of(kind: str) -> Mapping[str, Any] | None:
    """Return the recorded row of a family, else of a text model inside a multimodal one; None if there is neither."""
    row: Mapping[str, Any] | None = families().get(kind, json_data(FILE)["inner"].get(kind))
    return row


def defaults(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's defaults by config.json key; a null is a `Derived` for the keys in DERIVED.

    Rope's keys, as before Transformers 5, replace `rope_parameters`, and are only there if the class has it.
    """
    values = {key: DERIVED.get(key) if value is None else value for key, value in row["defaults"].items()}
    if values.pop("rope_parameters", None) is not None or "rope_parameters" in row["defaults"]:
        values |= _rope(row.get("rope") or {})
    return values


def tower_defaults(kind: str) -> Mapping[str, Any]:
    """Return the defaults of a vision tower's class by key. Raises KeyError for an unknown model_type."""
    values: Mapping[str, Any] = json_data(FILE)["towers"][kind]
    return values


def class_of(kind: str) -> str | None:
    """Return the name of a family's class for causal modelling; None if Transformers has none."""
    return families()[kind]["class"] if kind in families() else None


def recorded(kind: str, fact: str) -> bool | None:
    """Return whether a family's class has a property, by its network's row; None for a family without one.

    fact: own_attention: its modules compute attention themselves, not by Transformers' attention interface;
    plain_attention: it has eager attention only, without torch's fused kernels; whole_heads: it refuses a hidden_size
    that its heads do not divide.
    """
    row = families().get(SAME_NETWORK.get(kind, kind))
    return None if row is None else bool(row.get(fact))


def around() -> dict[str, tuple[str, str]]:
    """Return the (text section's key, text model's type) of multimodal models, by model_type.

    The type counts where the section names none.
    """
    own = {kind: row["text"] for kind, row in families().items() if row.get("text")}
    return {kind: (section, inner) for kind, (section, inner) in (own | json_data(FILE)["around"]).items()}


def _rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return a class's rope_theta (default 10000.0) and rope_scaling (None for rope_type "default", else all other
    keys).

    By layer type, the values are those of full_attention; rope_local_base_freq is that of sliding_attention, if there
    is one. partial_rotary_factor only where the class states it.
    """
    local = rope.get("sliding_attention")
    whole = rope.get("full_attention", rope)
    values: dict[str, Any] = {"rope_theta": float(whole.get("rope_theta", 10000.0)), "rope_scaling": None}
    if local is not None:
        values["rope_local_base_freq"] = float(local["rope_theta"])
    if "partial_rotary_factor" in whole:
        values["partial_rotary_factor"] = whole["partial_rotary_factor"]
    if whole.get("rope_type", "default") != "default":
        values["rope_scaling"] = {k: v for k, v in whole.items() if k not in ("rope_theta", "partial_rotary_factor")}
    return values
