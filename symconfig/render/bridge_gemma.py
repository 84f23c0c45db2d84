"""Gemma 3 for Megatron-Bridge, whose provider has modules of its own: norms behind attention and MLP, scaled
embeddings, and a base of rope for layers with a window (megatron-bridge 0.3.1, models/gemma/gemma3_provider.py)."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Norm

PROVIDER = ("megatron.bridge.models.gemma.gemma3_provider", "Gemma3ModelProvider")


def fits(model: ModelDescriptor) -> bool:
    """Return whether a model is built as those modules are. What it has beside them is said, or refused, as ever."""
    scaling = model.rope_scaling
    return (
        model.norm_before_sublayer
        and model.norm_after_sublayer
        and model.scale_embeddings
        and model.norm is Norm.RMSNORM
        and model.qk_norm
        and model.rope_local_base_freq is not None
        and windows(model) is not None
        and (scaling is None or scaling.rope_type == "linear")
        and model.experts is None
        and model.latent is None
        and not model.mixers
        and model.adapter is None
    )


def windows(model: ModelDescriptor) -> int | None:
    """Return after how many layers with a window one has none (_is_local_attn_layer); None: they are not so."""
    listed = model.sliding_layers
    if model.sliding_window is None or all(listed) or not any(listed):
        return None
    local = listed.index(False)
    return local if all(window == ((place + 1) % (local + 1) != 0) for place, window in enumerate(listed)) else None


def plain(model: ModelDescriptor) -> ModelDescriptor:
    """Return the model without what the provider's modules have."""
    own = {"norm_after_sublayer": False, "scale_embeddings": False, "rope_local_base_freq": None}
    return model.model_copy(update=own) if fits(model) else model


def fields(model: ModelDescriptor) -> dict[str, Any]:
    """Return fields of the section `model`: a pair of bases, a window's keys beside the query's own, and the scaling of
    layers without a window."""
    if not fits(model):
        return {}
    scaling = model.rope_scaling
    return {
        "rotary_base": [model.rope_local_base_freq, model.rope_theta],
        "rope_scaling_factor": 1.0 if scaling is None else scaling.factor,
        "seq_len_interpolation_factor": None,
        "window_size": (model.sliding_window or 1) - 1,
        "window_attn_skip_freq": None,
        "interleaved_attn_pattern": [windows(model), 1],
    }
