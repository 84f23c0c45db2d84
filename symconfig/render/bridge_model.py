"""The model's configuration in Megatron-Bridge 0.3.1: its class, and fields for what Megatron-LM has no option for
(models/gpt_provider.py, models/gpt_oss/gpt_oss_provider.py, models/kimi/kimi_provider.py, models/gemma/).
"""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Norm
from symconfig.formats.megatron import LLAMA3_FIXED, MLA_FIXED

# The activation of Megatron-Core's MLP, as (module, name); gates are told apart from it.
ACTIVATIONS = {
    "silu": ("torch.nn.functional", "silu"), "gelu": ("torch.nn.functional", "gelu"),
    "gelu_tanh": ("torch.nn.functional", "gelu"), "relu": ("torch.nn.functional", "relu"),
    "gelu_sigmoid": ("megatron.core.fusions.fused_bias_geglu", "quick_gelu"),
    "relu2": ("megatron.core.activations", "squared_relu"),
    "clamped_swiglu": ("megatron.core.fusions.fused_bias_geglu", "quick_gelu"),
}  # fmt: skip


def provider(model: ModelDescriptor) -> tuple[str, str]:
    """Return (module, class) of the model's configuration."""
    if is_gemma3(model):
        return "megatron.bridge.models.gemma.gemma3_provider", "Gemma3ModelProvider"
    if model.latent is not None:
        return "megatron.bridge.models.mla_provider", "MLAModelProvider"
    if _scaling(model) == "yarn":
        return "megatron.bridge.models.gpt_oss.gpt_oss_provider", "GPTOSSProvider"
    return "megatron.bridge.models.gpt_provider", "GPTModelProvider"


def _scaling(model: ModelDescriptor) -> str | None:
    return model.rope_scaling.rope_type if model.rope_scaling is not None else None


def is_gemma3(model: ModelDescriptor) -> bool:
    """Return whether a model has what Gemma3ModelProvider's modules have by themselves: norms behind attention and MLP,
    scaled embeddings, a base of rope for layers with a window. What it has beside them is an option, or refused.
    """
    return (
        model.norm_before_sublayer
        and model.norm_after_sublayer
        and model.scale_embeddings
        and model.norm is Norm.RMSNORM
        and model.qk_norm
        and model.rope_local_base_freq is not None
        and _windows(model) is not None
        and _scaling(model) in (None, "linear")
        and not (model.experts or model.latent or model.adapter or model.mixers)
    )


def _windows(model: ModelDescriptor) -> int | None:
    """Return after how many layers with a window one has none (_is_local_attn_layer); None where it is not so."""
    listed = model.sliding_layers
    if model.sliding_window is None or all(listed) or not any(listed):
        return None
    local = listed.index(False)
    return local if all(window == ((place + 1) % (local + 1) != 0) for place, window in enumerate(listed)) else None


def plain(model: ModelDescriptor) -> ModelDescriptor:
    """Return the model without what `fields` says, for Megatron-LM's options to be of the rest."""
    update: dict[str, object] = {}
    if is_gemma3(model):
        update = {"norm_after_sublayer": False, "scale_embeddings": False, "rope_local_base_freq": None}
    rope, kind = model.rope_scaling, _scaling(model)
    fixed = MLA_FIXED if model.latent is not None else {"factor": LLAMA3_FIXED["factor"]}
    if rope is not None and kind == ("yarn" if model.latent is not None else "llama3"):
        update["rope_scaling"] = rope.model_copy(update=fixed)
    elif model.latent is None and kind in ("linear", "yarn"):
        update["rope_scaling"] = None
    if model.latent is None:
        update["query_pre_attn_scalar"] = None
    # Whether an MLP's gate is GELU's tanh form, which is what the fused kernel of a gated GELU computes (megatron-core
    # 0.16.1, fusions/fused_bias_geglu.py): there is no option for it, but a field.
    if model.hidden_act == "gelu_tanh" and model.gated_mlp and model.experts is None:
        update["hidden_act"] = "silu"
    return model.model_copy(update=update)


def fields(model: ModelDescriptor) -> dict[str, Any]:
    """Return the fields that no option says. Unset numbers of YaRN are those of Hugging Face's
    `_compute_yarn_parameters`.
    """
    result: dict[str, Any] = {}
    if model.latent is None and model.query_pre_attn_scalar is not None:
        result["softmax_scale"] = model.query_pre_attn_scalar**-0.5
    rope, kind = model.rope_scaling, _scaling(model)
    if rope is not None and model.latent is not None:
        if kind == "yarn":
            result |= {name: getattr(rope, name) or usual for name, usual in MLA_FIXED.items()}
    elif rope is not None and kind == "llama3":
        result["rope_scaling_factor"] = rope.factor
    elif rope is not None and kind == "linear":
        result["seq_len_interpolation_factor"] = rope.factor
    elif rope is not None:
        result |= {
            "position_embedding_type": "yarn",
            "yarn_rotary_scaling_factor": rope.factor,
            "yarn_original_max_position_embeddings": rope.original_max_position_embeddings or 4096,
            "yarn_beta_fast": rope.beta_fast or 32.0,
            "yarn_beta_slow": rope.beta_slow or 1.0,
            "yarn_mscale": rope.mscale,
            "yarn_mscale_all_dim": rope.mscale_all_dim,
            "yarn_correction_range_round_to_int": rope.truncate is not False,
        }
    if is_gemma3(model):
        result |= {  # a pair of bases, a window's keys beside the query's own, the scaling of layers without a window
            "rotary_base": [model.rope_local_base_freq, model.rope_theta],
            "rope_scaling_factor": 1.0 if rope is None else rope.factor,
            "seq_len_interpolation_factor": None,
            "window_size": (model.sliding_window or 1) - 1,
            "window_attn_skip_freq": None,
            "interleaved_attn_pattern": [_windows(model), 1],
        }
    return result
