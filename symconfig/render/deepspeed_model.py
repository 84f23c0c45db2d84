"""Descriptor -> Hugging Face `config.json`, for a Transformers model with random weights.

Field names are those of the Transformers configuration classes (releases 4.57 to 5); the older spelling `rope_theta`
and `rope_scaling` is used, which all of them read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from symconfig.descriptor.document import shorten
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.meaning import TRAINED, flat, meaning
from symconfig.descriptor.model import Experts, LatentAttention, ModelDescriptor
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.frameworks.deepspeed import adapters

Json = dict[str, Any]

_ACTIVATION = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "clamped_swiglu": "silu",
}


def hf_config(model: ModelDescriptor) -> Json:
    """`config.json` of the architecture. Raises InfeasibleError for one that Transformers has no class for."""
    writer = _WRITERS.get(model.model_type)
    if writer is None:
        raise InfeasibleError(
            Problem(
                f"the DeepSpeed target has no Transformers class for {model.model_type!r}",
                field="model_type",
                need=", ".join(sorted(_WRITERS)),
            )
        )
    if model.mixers:
        got = ", ".join(mixer.block for mixer in model.mixers)
        what = "no Transformers class has this block in place of attention"
        raise InfeasibleError(Problem(what, field="mixers", got=got))
    architecture, fields = writer(model)
    return {"architectures": [architecture], **fields, "torch_dtype": model.torch_dtype, "use_cache": False}


def unsaid(model: ModelDescriptor) -> Iterator[Problem]:
    """Yield what is lost of a model in the `config.json` of its class: read back, it is another model."""
    try:
        config = hf_config(model)
    except InfeasibleError as error:
        yield from error.problems
        return
    mine, plain = _computed(model), flat(model)
    try:
        theirs = _computed(import_config(config, "config.json", model.name))
    except InputError as error:
        yield from (replace(problem, file=None, line=None, column=None) for problem in error.problems)
        return
    for name in sorted({*mine, *theirs}):
        got, need = mine.get(name, plain.get(name)), theirs.get(name)
        if got != need:
            what = f"Transformers' {config['architectures'][0]} cannot be told it"
            yield Problem(what, field=name, got=_short(got), need=_short(need))


def _computed(model: ModelDescriptor) -> dict[str, object]:
    """Return what a model computes and how it is trained, without its adapter, which no `config.json` has."""
    plain = flat(model)
    trained = {name: plain.get(name) for name in TRAINED}
    return {name: value for name, value in {**meaning(model), **trained}.items() if not name.startswith("adapter.")}


def _short(value: object) -> str:
    return "none" if value is None else shorten(value)


def target_modules(model: ModelDescriptor) -> tuple[str, ...]:
    """The adapter's modules, in the names of the class that `hf_config` names.

    Raises InfeasibleError for an adapter on what is no layer of its own there.
    """
    if problems := [Problem(reason, field="adapter.target_modules") for reason in adapters.refusals(model)]:
        raise InfeasibleError(problems)
    return adapters.modules(model)


def _common(model: ModelDescriptor, model_type: str) -> Json:
    fields: Json = {
        "model_type": model_type,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "hidden_act": _ACTIVATION[model.hidden_act],
        "rms_norm_eps": model.norm_eps,
        "max_position_embeddings": model.max_position_embeddings,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tie_word_embeddings,
        "attention_dropout": model.attention_dropout,
        "initializer_range": model.initializer_range,
        "pad_token_id": None,
    }
    if model.rope_scaling is not None:
        fields["rope_scaling"] = model.rope_scaling.model_dump(mode="json", exclude_none=True)
    return fields


def _layer_types(model: ModelDescriptor) -> list[str]:
    return ["sliding_attention" if window else "full_attention" for window in model.sliding_layers]


def _llama(model: ModelDescriptor) -> tuple[str, Json]:
    return "LlamaForCausalLM", {**_common(model, "llama"), "attention_bias": model.qkv_bias, "mlp_bias": model.mlp_bias}


def _mistral(model: ModelDescriptor) -> tuple[str, Json]:
    return "MistralForCausalLM", {**_common(model, "mistral"), "sliding_window": model.sliding_window}


def _mixtral(model: ModelDescriptor) -> tuple[str, Json]:
    experts = _experts(model)
    return "MixtralForCausalLM", {
        **_common(model, "mixtral"),
        "sliding_window": model.sliding_window,
        "intermediate_size": experts.moe_intermediate_size,
        "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_experts_per_tok,
        "router_aux_loss_coef": experts.router_aux_loss_coef,
    }


def _qwen2(model: ModelDescriptor) -> tuple[str, Json]:
    """Qwen1.5, Qwen2, Qwen2.5; and Qwen-7B, whose w1, w2, c_attn are the same matrices under other names."""
    return "Qwen2ForCausalLM", {**_common(model, "qwen2"), **_qwen_window(model)}


def _qwen3(model: ModelDescriptor) -> tuple[str, Json]:
    return "Qwen3ForCausalLM", {**_common(model, "qwen3"), **_qwen_window(model), "attention_bias": model.qkv_bias}


def _qwen_window(model: ModelDescriptor) -> Json:
    if model.sliding_window is None:
        return {"use_sliding_window": False}
    return {"use_sliding_window": True, "sliding_window": model.sliding_window, "layer_types": _layer_types(model)}


def _qwen_moe(model: ModelDescriptor) -> Json:
    experts = _experts(model)
    return {
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_experts_per_tok,
        "moe_intermediate_size": experts.moe_intermediate_size,
        "norm_topk_prob": experts.norm_topk_prob,
        "decoder_sparse_step": experts.moe_layer_freq,
        "router_aux_loss_coef": experts.router_aux_loss_coef,
        "mlp_only_layers": [i for i, moe in enumerate(model.moe_layers) if not moe],
    }


def _qwen2_moe(model: ModelDescriptor) -> tuple[str, Json]:
    return "Qwen2MoeForCausalLM", {
        **_common(model, "qwen2_moe"),
        **_qwen_window(model),
        **_qwen_moe(model),
        "qkv_bias": model.qkv_bias,
        "shared_expert_intermediate_size": _experts(model).shared_expert_intermediate_size,
    }


def _qwen3_moe(model: ModelDescriptor) -> tuple[str, Json]:
    return "Qwen3MoeForCausalLM", {
        **_common(model, "qwen3_moe"),
        **_qwen_window(model),
        **_qwen_moe(model),
        "attention_bias": model.qkv_bias,
    }


def _deepseek(model: ModelDescriptor, version: str) -> Json:
    experts, latent = _experts(model), _latent(model)
    fields = _common(model, f"deepseek_{version}")
    del fields["head_dim"]  # the class takes it from the rope's part
    return {
        **fields,
        "attention_bias": model.qkv_bias,
        "q_lora_rank": latent.q_lora_rank,
        "kv_lora_rank": latent.kv_lora_rank,
        "qk_nope_head_dim": latent.qk_nope_head_dim,
        "qk_rope_head_dim": latent.qk_rope_head_dim,
        "v_head_dim": latent.v_head_dim,
        "n_routed_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_experts_per_tok,
        "n_shared_experts": experts.shared_expert_intermediate_size // experts.moe_intermediate_size,
        "moe_intermediate_size": experts.moe_intermediate_size,
        "n_group": experts.n_group or 1,
        "first_k_dense_replace": experts.first_k_dense_replace,
        "topk_group": experts.topk_group or 1,
        "norm_topk_prob": experts.norm_topk_prob,
        "routed_scaling_factor": experts.routed_scaling_factor,
        "aux_loss_alpha": experts.router_aux_loss_coef,
        "num_nextn_predict_layers": model.num_nextn_predict_layers,
    }


def _deepseek_v2(model: ModelDescriptor) -> tuple[str, Json]:
    method = "group_limited_greedy" if _experts(model).n_group else "greedy"
    return "DeepseekV2ForCausalLM", {**_deepseek(model, "v2"), "topk_method": method}


def _deepseek_v3(model: ModelDescriptor) -> tuple[str, Json]:
    return "DeepseekV3ForCausalLM", _deepseek(model, "v3")


def _gpt_oss(model: ModelDescriptor) -> tuple[str, Json]:
    experts = _experts(model)
    return "GptOssForCausalLM", {
        **_common(model, "gpt_oss"),
        "attention_bias": model.qkv_bias,
        "sliding_window": model.sliding_window,
        "layer_types": _layer_types(model),
        "intermediate_size": experts.moe_intermediate_size,
        "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_experts_per_tok,
        "router_aux_loss_coef": experts.router_aux_loss_coef,
    }


def _gemma(model: ModelDescriptor) -> Json:
    fields = _common(model, "gemma2")
    fields["hidden_activation"] = fields.pop("hidden_act")
    if model.query_pre_attn_scalar is not None:
        fields["query_pre_attn_scalar"] = int(model.query_pre_attn_scalar)
    return {
        **fields,
        "attention_bias": model.qkv_bias,
        "sliding_window": model.sliding_window,
        "layer_types": _layer_types(model),
        "final_logit_softcapping": model.final_logit_softcapping,
        "attn_logit_softcapping": model.attn_logit_softcapping,
    }


def _gemma2(model: ModelDescriptor) -> tuple[str, Json]:
    return "Gemma2ForCausalLM", _gemma(model)


def _gemma3(model: ModelDescriptor) -> tuple[str, Json]:
    return "Gemma3ForCausalLM", {
        **_gemma(model),
        "model_type": "gemma3_text",
        "rope_local_base_freq": model.rope_local_base_freq or model.rope_theta,
    }


def _phi3(model: ModelDescriptor) -> tuple[str, Json]:
    fields = {
        **_common(model, "phi3"),
        "sliding_window": model.sliding_window,
        "resid_pdrop": model.hidden_dropout,
        "partial_rotary_factor": model.partial_rotary_factor,
    }
    if model.rope_scaling and model.rope_scaling.original_max_position_embeddings:
        fields["original_max_position_embeddings"] = model.rope_scaling.original_max_position_embeddings
    return "Phi3ForCausalLM", fields


def _gpt_neox(model: ModelDescriptor) -> tuple[str, Json]:
    fields = _common(model, "gpt_neox")
    fields["layer_norm_eps"] = fields.pop("rms_norm_eps")
    fields["rotary_emb_base"] = fields.pop("rope_theta")
    return "GPTNeoXForCausalLM", {
        **fields,
        "rotary_pct": model.partial_rotary_factor,
        "use_parallel_residual": model.parallel_residual,
        "attention_bias": model.qkv_bias,
        "hidden_dropout": model.hidden_dropout,
    }


def _gpt2(model: ModelDescriptor) -> tuple[str, Json]:
    act = "gelu_new" if model.hidden_act == "gelu_tanh" else model.hidden_act
    return "GPT2LMHeadModel", {
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_embd": model.hidden_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_attention_heads,
        "n_inner": model.intermediate_size,
        "n_positions": model.max_position_embeddings,
        "activation_function": act,
        "layer_norm_epsilon": model.norm_eps,
        "resid_pdrop": model.hidden_dropout,
        "embd_pdrop": model.hidden_dropout,
        "attn_pdrop": model.attention_dropout,
        "initializer_range": model.initializer_range,
        "tie_word_embeddings": model.tie_word_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _experts(model: ModelDescriptor) -> Experts:
    if model.experts is None:
        raise InfeasibleError(Problem(f"a {model.model_type} model needs experts", field="experts"))
    return model.experts


def _latent(model: ModelDescriptor) -> LatentAttention:
    if model.latent is None:
        raise InfeasibleError(Problem(f"a {model.model_type} model needs latent attention", field="latent"))
    return model.latent


_WRITERS: dict[str, Callable[[ModelDescriptor], tuple[str, Json]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen": _qwen2,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "gpt_oss": _gpt_oss,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "gpt3": _gpt2,
}
