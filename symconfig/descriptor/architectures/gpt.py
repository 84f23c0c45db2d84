"""Families with LayerNorms: GPT, NeoX, J, StarCoder2, Phi; and those without rope.

ALiBi (BLOOM, MPT, Falcon's first) and learned tables (OPT, GPT).
"""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures import rules
from symconfig.descriptor.architectures.architecture import Architecture, Reading, Rule, family, link
from symconfig.descriptor.architectures.rules import ALL_BIASES, BIASED, LAYERNORM, WIDTH
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position

_PARALLEL = "parallel_residual shared_input_norm "
_LEARNED = BIASED + "position=learned "
_GPT2_IGNORED = "n_ctx summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout "
_LAYERDROP = {"layerdrop": "layerdrop leaves out whole layers at random, which is not modelled"}
_ROTARY = family(
    LAYERNORM + _PARALLEL + "gated_mlp=false mlp_bias lm_head_bias",
    only="scale_attn_weights rotary",
    ignored=_GPT2_IGNORED,
    rules=(rules.turned_channels,),
)


def _falcon(reader: Reading) -> None:
    """Set Falcon's key/value heads, parallel branches, shared norm, and ALiBi if the file says so.

    The new decoder architecture has num_kv_heads; older ones have 1 with multi_query, else one for each head. Wrong
    numbers of heads or norms, and a new architecture without parallel branches, are problems.
    """
    values, fields = reader.values, reader.fields
    new, heads = values["new_decoder_architecture"], fields["num_attention_heads"]
    grouped = values["num_kv_heads"] if values["num_kv_heads"] is not None else heads
    if type(grouped) is not int or grouped < 1:
        return reader.problem("wrong value", "num_kv_heads", got=repr(grouped), need="a whole number")
    fields["num_key_value_heads"] = grouped if new else 1 if values["multi_query"] else heads
    norms = values["num_ln_in_parallel_attn"] or (2 if new else 1)
    if norms not in (1, 2):
        return reader.problem("wrong value", "num_ln_in_parallel_attn", got=repr(norms), need="1 or 2")
    parallel = bool(values["parallel_attn"] or new)
    if new and not values["parallel_attn"]:
        reader.problem("the new architecture's branches are parallel", "parallel_attn", got="false", need="true")
    fields["parallel_residual"] = parallel
    fields["shared_input_norm"] = parallel and not (new and norms == 2)
    if values["alibi"]:
        fields["position"] = "alibi"


def _falcon_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the keys of Falcon's generation: heads, parallel branches, norms and ALiBi.

    It is the new decoder architecture if key/value heads are grouped, or if parallel branches have a norm each.
    """
    heads, kv = model.num_attention_heads, model.num_key_value_heads
    new = kv not in (1, heads) or (model.parallel_residual and not model.shared_input_norm)
    return {
        "alibi": model.position is Position.ALIBI,
        "multi_query": kv == 1,
        "new_decoder_architecture": new,
        "num_kv_heads": kv,
        "num_ln_in_parallel_attn": 1 if model.shared_input_norm else 2 if new else None,
        "parallel_attn": model.parallel_residual,
    }


def _opt(reader: Reading) -> None:
    """Set whether there is a final norm. An embedding narrower than the model is a problem."""
    values, fields = reader.values, reader.fields
    narrow = values["word_embed_proj_dim"]
    if narrow not in (None, fields["hidden_size"]):
        what = "an embedding narrower than the model is not supported"
        reader.problem(what, "word_embed_proj_dim", got=repr(narrow), need=str(fields["hidden_size"]))
    if values["_remove_final_layer_norm"]:
        fields["final_norm"] = False


def _opt_keys(model: ModelDescriptor) -> dict[str, Any]:
    return {"word_embed_proj_dim": model.hidden_size, "_remove_final_layer_norm": not model.final_norm}


ARCHITECTURES: dict[str, Architecture] = {
    "gpt_oss": family(
        """intermediate_size=0 hidden_act=clamped_swiglu attention_sinks experts.norm_topk_prob
            experts.softmax_after_topk experts.router_bias experts.expert_bias""", names=WIDTH,
        only="hidden_act=silu swiglu_limit=7.0 swiglu_alpha=1.702", ignored="initial_context_length",
        same_as="experts_per_token=num_experts_per_tok", layers=rules.every(2)),
    "gpt2": family(_LEARNED, only="scale_attn_weights scale_attn_by_inverse_layer_idx=false",
        noted={
            "embd_pdrop": "embd_pdrop (dropout of the embeddings) is taken to be resid_pdrop",
            "reorder_and_upcast_attn": "reorder_and_upcast_attn is not modelled",
        }, ignored=_GPT2_IGNORED,
        rules=(Rule(lambda reader: None, "", lambda model: {"embd_pdrop": model.hidden_dropout}),)),
    "gpt_neox": family(LAYERNORM + "mlp_bias gated_mlp=false",
        ignored="classifier_dropout head_dim attention_probs_dropout_prob hidden_dropout_prob",
        same_as="rope_theta=rotary_emb_base partial_rotary_factor=rotary_pct"),
    "starcoder2": family(LAYERNORM + "gated_mlp=false",
        names=f"use_bias={ALL_BIASES} norm_epsilon=norm_eps residual_dropout=hidden_dropout",
        only="norm_type=layer_norm mlp_type=default scale_attn_weights",
        # activation_function is GPTBigCode's, which the first files still had; hidden_act is what is read.
        ignored="activation_function layer_norm_epsilon attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
        layers=rules.all_sliding),
    "phi": family(BIASED + _PARALLEL + "lm_head_bias"),
    "stablelm": family(LAYERNORM + "qk_norm_of=each_head",
        names="use_qkv_bias=qkv_bias qk_layernorm=qk_norm use_parallel_residual=parallel_residual,shared_input_norm",
        only="rotary_scaling_factor=1.0", ignored="head_dim", same_as="rope_pct=partial_rotary_factor"),
    "nemotron": family(LAYERNORM + "norm_zero_centered gated_mlp=false"),
    "jais2": family(LAYERNORM + "gated_mlp=false"),
    "gptj": _ROTARY,
    "codegen": _ROTARY,
    "falcon": family(LAYERNORM + "gated_mlp=false", defaults="ffn_hidden_size=FOUR_TIMES_HIDDEN",
        names=f"activation=hidden_act bias={ALL_BIASES} ffn_hidden_size=intermediate_size",
        only="apply_residual_connection_post_layernorm=false", ignored="ff_factor head_dim",
        same_as="n_embed=hidden_size",
        rules=(
            Rule(
                _falcon,
                """alibi multi_query new_decoder_architecture num_kv_heads num_ln_in_parallel_attn
                parallel_attn""",
                _falcon_keys,
            ),
        )),
    # ALiBi has no longest sequence; seq_length is what the model was trained with.
    "bloom": family(BIASED + "position=alibi embedding_norm hidden_act=gelu_tanh", defaults="seq_length=2048",
        names="seq_length=max_position_embeddings",
        ignored="""slow_but_exact n_inner attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion
            offset_alibi skip_bias_add skip_bias_add_qkv""",
        same_as="n_embed=hidden_size", rules=(rules.four_times_hidden,)),
    # Of its section only the dropout of what sublayers add is read; its modules add ALiBi's bias in any case.
    "mpt": family(LAYERNORM + "norm_bias=false gated_mlp=false position=alibi hidden_act=gelu",
        defaults="attn_config.attn_pdrop=0 attn_config.softmax_scale=null",
        types="attn_config.attn_pdrop=float attn_config.softmax_scale=float",
        names="max_seq_len=max_position_embeddings attn_config.attn_pdrop=hidden_dropout,attention_dropout",
        only="""no_bias logit_scale=null fc_type=torch attn_config.attn_type=multihead_attention
            attn_config.prefix_lm=false attn_config.qk_ln=false attn_config.attn_uses_sequence_id=false
            attn_config.alibi""",
        ignored="""expansion_ratio embedding_fraction init_config init_device learned_pos_emb norm_type resid_pdrop
            tokenizer_name verbose ffn_config use_pad_tok_in_ffn attn_config.attn_impl attn_config.alibi_bias_max
            attn_config.clip_qkv""",
        same_as="d_model=hidden_size n_layers=num_hidden_layers n_heads=num_attention_heads",
        rules=(
            link(
                "attn_config.softmax_scale",
                "query_pre_attn_scalar",
                lambda scale, reader: rules.short(float(scale) ** -2) if scale else None,
                lambda model: rules.attention_scale_of(model) if model.query_pre_attn_scalar else None,
            ),
            rules.four_times_hidden,
        )),
    "opt": family(LAYERNORM + "gated_mlp=false position=learned extra_positions=2",
        names=f"""ffn_dim=intermediate_size dropout=hidden_dropout init_std=initializer_range enable_bias={ALL_BIASES}
            layer_norm_elementwise_affine=norm_weight""", noted=_LAYERDROP, ignored="activation_dropout",
        rules=(Rule(_opt, "word_embed_proj_dim _remove_final_layer_norm", _opt_keys),)),
    "biogpt": family(_LEARNED + "extra_positions=2",
        names="scale_embedding=scale_embeddings attention_probs_dropout_prob=attention_dropout "
        "hidden_dropout_prob=hidden_dropout",
        noted={**_LAYERDROP, "activation_dropout": "activation_dropout is not modelled"}),
    "gpt-sw3": family(_LEARNED, only="scale_attn_weights scale_attn_by_inverse_layer_idx=false",
        ignored=_GPT2_IGNORED + "reorder_and_upcast_attn"),
    "gpt_bigcode": family(_LEARNED, only="scale_attn_weights",
        ignored=_GPT2_IGNORED
        + """num_key_value_heads attention_softmax_in_fp32 inference_runner scale_attention_softmax_in_fp32
            validate_runner_input pre_allocate_kv_cache max_sequence_length max_batch_size""",
        rules=(rules.one_or_all_heads,)),
}  # fmt: skip
