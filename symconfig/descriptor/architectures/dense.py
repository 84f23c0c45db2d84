"""Dense models: with rope and RMSNorm (Llama, Mistral, Phi-3, Qwen, OLMo, EXAONE, GLM, Granite, Cohere's Command), and
with LayerNorms (GPT, NeoX, J, StarCoder2, Phi, BLOOM, Falcon, OPT).
"""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures import rules
from symconfig.descriptor.architectures.architecture import (
    FULL,
    SLIDING,
    Architecture,
    Reading,
    Rule,
    Values,
    family,
    link,
)
from symconfig.descriptor.architectures.rules import ALL_BIASES, BIASED, LAYERNORM, QKV_BIAS, WIDTH, scale, short
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position


def exaone4(values: Values, layers: int) -> list[str]:
    """Return each layer's type by sliding_window_pattern: a number n (null: 4), or letters that repeat, as LLLG.

    Full are every n-th layer, or all letters but L; the others have a window. All are full if sliding_window is null or
    the pattern 0 or empty. A pattern of another type gives an empty list.
    """
    pattern = values["sliding_window_pattern"]
    pattern = 4 if pattern is None else pattern
    if values["sliding_window"] is None or not pattern:
        return [FULL] * layers
    if isinstance(pattern, str):
        return [SLIDING if pattern[i % len(pattern)] == "L" else FULL for i in range(layers)]
    return [SLIDING if (i + 1) % pattern else FULL for i in range(layers)] if isinstance(pattern, int) else []


@Rule
def rope_if_window(reader: Reading) -> None:
    """Restrict rope to layers with a window, if the file has one; else nothing changes."""
    if reader.values["sliding_window"] is not None:
        rules.rope_with_window.read(reader)


def _exaone_pattern(reader: Reading) -> None:
    """Restrict rope to layers with a window, unless sliding_window is null; a wrong pattern is recorded as a problem
    instead.

    A sliding_window_pattern is null, an integer >= 0, or a word of the letters L and G.
    """
    pattern = reader.values["sliding_window_pattern"]
    word = isinstance(pattern, str) and bool(pattern) and set(pattern) <= {"L", "G"}
    if not (pattern is None or word or (type(pattern) is int and pattern >= 0)):
        need = "a whole number, or a word of L and G"
        return reader.problem("wrong value", "sliding_window_pattern", got=repr(pattern), need=need)
    rope_if_window.read(reader)


exaone_pattern = Rule(_exaone_pattern, "sliding_window_pattern")


SCALES = (
    scale("embedding_multiplier", "embedding_multiplier"),
    scale("residual_multiplier", "residual_multiplier"),
    rules.attention_scale,
)
GRANITE = (*SCALES, scale("logits_multiplier", "logits_scaling", lambda value: 1 / value))
# MiniCPM's factors: of the embedding, by depth of what a sublayer adds, by width of logits.
MINICPM = (
    scale("embedding_multiplier", "scale_emb"),
    link(
        "scale_depth",
        "residual_multiplier",
        lambda depth, reader: None if depth is None else short(depth / reader.fields["num_hidden_layers"] ** 0.5),
        lambda m: None if m.residual_multiplier is None else short(m.residual_multiplier * m.num_hidden_layers**0.5),
    ),
    link(
        "dim_model_base",
        "logits_multiplier",
        lambda base, reader: None if base is None else base / reader.fields["hidden_size"],
        lambda m: None if m.logits_multiplier is None else round(m.logits_multiplier * m.hidden_size),
    ),
)
LOGITS = scale("logits_multiplier", "logit_scale")


_OLMO2 = "qk_norm qk_norm_of=all_heads norm_before_sublayer=false norm_after_sublayer"
COHERE = "norm=layernorm norm_bias=false parallel_residual shared_input_norm "
# What the files of Hunyuan say beside what its classes read: of keys that layers would share (use_cla), of tokens and a
# classifier.
HUNYUAN = "norm_type=rms|hf_rms use_qk_norm use_rotary_pos_emb "
HUNYUAN_IGNORED = "cla_share_factor eod_token_id pad_id org_vocab_size class_num pool_type dense_list "


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
    """Set Falcon's key/value heads, parallel branches, shared norm, and position "alibi" if `alibi` is true.

    The new decoder architecture has num_kv_heads (null: one for each head) and always parallel branches, with a norm
    each by default; older ones have 1 head with multi_query, else one for each head, and one norm by default.
    parallel_attn false is recorded as a problem with the new one. Heads that are no integer >= 1, and norms other than
    1 or 2, are a problem that ends the rule.
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

    It is the new decoder architecture if there are 2 or more key/value heads but fewer than heads, or if parallel
    branches have a norm each.
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
    """Set final_norm to false if the file removes the norm; an embedding narrower than the model (word_embed_proj_dim,
    null: hidden_size) is recorded as a problem.
    """
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
    "llama": family(),
    "mistral": family(layers=rules.all_sliding),
    "mixtral": family("intermediate_size=0 experts.norm_topk_prob", names=WIDTH, layers=rules.all_sliding),
    "phi3": family(layers=rules.all_sliding),
    "smollm3": family(layers=rules.by_rope(FULL, SLIDING), ignored="max_window_layers", rules=(rules.rope_by_layer,)),
    "arcee": family("gated_mlp=false"),
    "apertus": family("gated_mlp=false qk_norm", only="qk_norm post_norm=false hidden_dropout=0.0"),
    # Its head may have rows for the first output_vocab_size tokens only, which no descriptor says.
    "apertus1p5_text": family("gated_mlp=false qk_norm", only="output_vocab_size=null"),
    "exaone": family(),  # Llama with other names of its keys
    "iquestcoder": family(),
    "internlm3": family(names=QKV_BIAS + "mlp_bias=attention_out_bias,mlp_bias"),
    "helium": family(names=QKV_BIAS, rules=(rules.heads_fill_hidden,)),
    "ministral": family(layers=rules.all_sliding),
    "ministral3": family(layers=rules.all_sliding, ignored="layer_types"),
    "cwm": family(layers=rules.by(lambda values, i, _: i % 4)),
    "seed_oss": family(names=QKV_BIAS + "residual_dropout=hidden_dropout"),
    "ernie4_5": family(names=f"use_bias={ALL_BIASES}"),
    "hunyuan_v1_dense": family("qk_norm", only=HUNYUAN, same_as="attention_head_dim=head_dim", ignored=HUNYUAN_IGNORED),
    "exaone4": family("qk_norm norm_before_sublayer=false norm_after_sublayer", layers=exaone4,
        defaults="sliding_window_pattern=null", rules=(exaone_pattern,)),
    "glm": family(names=QKV_BIAS),
    "glm4": family("norm_after_sublayer", names=QKV_BIAS),
    "phi4_multimodal": family(
        noted={
            f"{what}_config": f"only the text model is described; the {what} tower is left out"
            for what in ("vision", "audio")
        }, layers=rules.all_sliding),
    "nanochat": family("gated_mlp=false norm_weight=false embedding_norm qk_norm qk_norm_of=unit"),
    "olmo": family(LAYERNORM + "norm_weight=false",
        noted={"clip_qkv": "clip_qkv clamps queries, keys and values, which changes no shape and no cost: left out"}),
    "olmo2": family(_OLMO2),
    "olmo3": family(_OLMO2, layers=rules.every(4)),
    "qwen2": family("qkv_bias", layers=rules.qwen2),
    "qwen2_moe": family("experts.shared_expert_gate",
        layers=rules.by(lambda v, i, _: v["use_sliding_window"] and i % 2 == 0 and i < v["max_window_layers"])),
    "qwen3": family("qk_norm", layers=rules.qwen2),
    "qwen3_moe": family("qk_norm", only="use_qk_norm shared_expert_intermediate_size=0", ignored="max_window_layers",
        layers=rules.by(lambda values, i, _: values["use_sliding_window"])),
    # The first of them, with a class of its own beside its weights.
    "qwen": family("qkv_bias",
        defaults="""vocab_size=151936 hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 emb_dropout_prob=0.0
            attn_dropout_prob=0.0 layer_norm_epsilon=1e-6 initializer_range=0.02 max_position_embeddings=8192
            rotary_pct=1.0 rotary_emb_base=10000.0 intermediate_size=22016 tie_word_embeddings=false kv_channels=128""",
        only="no_bias scale_attn_weights",
        noted={
            "use_dynamic_ntk": "use_dynamic_ntk rescales rope beyond seq_length at inference only, and is left out",
            "use_logn_attn": "use_logn_attn scales queries beyond seq_length at inference only, and is left out",
        },
        ignored="""bf16 fp16 fp32 onnx_safe seq_length use_flash_attn softmax_in_fp32 use_cache_quantization
            use_cache_kernel""", rules=(rules.both_halves,)),
    # MiMo-7B: Qwen 2 with a layer of multi-token prediction, and a name for the bias that Qwen 2 has without saying it.
    "mimo": family("qkv_bias", defaults="num_nextn_predict_layers=0", only="attention_bias", layers=rules.qwen2,
        of_class="qwen2"),
    "granite": family(rules=GRANITE),
    # MiniCPM and MiniCPM 4, whose code lies beside the weights: attention is sparse only where a file says so.
    "minicpm": family(defaults="scale_emb=1 scale_depth=1 dim_model_base=1 sparse_config=null tie_word_embeddings",
        only="sparse_config=null",
        ignored="mup_denominator",  # of heads that draft tokens
        types="scale_emb=NUMBER scale_depth=NUMBER dim_model_base=NUMBER", rules=MINICPM, of_class="granite"),
    "hyperclovax": family(names="use_post_norm=norm_after_sublayer",
        rules=(*SCALES, scale("logits_multiplier", "logits_scaling"))),
    "cohere": family(COHERE + "qk_norm_of=each_head", names="use_qk_norm=qk_norm", ignored="model_max_length",
        rules=(LOGITS,)),
    "cohere2": family(COHERE, defaults="sliding_window_pattern=4",
        # Of files published before transformers had the class; each says what the class does.
        only="""position_embedding_type=rope_gptj rotary_pct=1.0 use_embedding_sharing use_gated_activation
            use_parallel_block use_parallel_embedding use_qk_norm=false order_of_interleaved_layers=local_attn_first
            layer_switch=4""", ignored="model_max_length head_dim _sliding_window_pattern", layers=rules.every(4),
        rules=(LOGITS, rules.rope_with_window)),
    # With LayerNorms, and those without rope: ALiBi (BLOOM, MPT, Falcon's first) and learned tables (OPT, GPT).
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
        rules=(Rule(_falcon, """alibi multi_query new_decoder_architecture num_kv_heads num_ln_in_parallel_attn
            parallel_attn""", _falcon_keys),)),
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
        rules=(rules.four_times_hidden, link("attn_config.softmax_scale", "query_pre_attn_scalar",
            lambda scale, reader: rules.short(float(scale) ** -2) if scale else None,
            lambda model: rules.attention_scale_of(model) if model.query_pre_attn_scalar else None))),
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
