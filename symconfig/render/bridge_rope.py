"""Scaled rotary positions, which Megatron-Bridge has fields for, and Megatron-LM no options, or not of all numbers
(megatron-bridge 0.3.1: models/gpt_provider.py, models/gpt_oss/gpt_oss_provider.py, models/kimi/kimi_provider.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import RopeScaling
from symconfig.errors import Problem
from symconfig.formats.megatron import LLAMA3_FIXED, MLA_FIXED


def scaling(model: ModelDescriptor) -> RopeScaling | None:
    """Return the scaling that is said here whole; of latent attention's, Megatron-LM's options say the rest."""
    return None if model.latent is not None else model.rope_scaling


def plain(model: ModelDescriptor) -> ModelDescriptor:
    """Return the model without what is said here, as Megatron-LM's options are then of it."""
    rope = model.rope_scaling
    if model.latent is None:
        return model.model_copy(update={"rope_scaling": None})
    if rope is None or rope.rope_type != "yarn":
        return model
    return model.model_copy(update={"rope_scaling": rope.model_copy(update=MLA_FIXED)})


def is_yarn(model: ModelDescriptor) -> bool:
    """Tell whether a model needs GPTOSSProvider, whose YaRN has numbers of its own."""
    rope = scaling(model)
    return rope is not None and rope.rope_type == "yarn"


def fields(model: ModelDescriptor) -> dict[str, Any]:
    """Return the fields of the section `model`. Unset numbers of YaRN are Hugging Face's
    (`_compute_yarn_parameters`).
    """
    if model.latent is not None:
        yarn = model.rope_scaling if model.rope_scaling is not None and model.rope_scaling.rope_type == "yarn" else None
        return {} if yarn is None else {name: getattr(yarn, name) or usual for name, usual in MLA_FIXED.items()}
    rope = scaling(model)
    if rope is None:
        return {}
    if rope.rope_type == "llama3":
        return {"rope_scaling": True, "rope_scaling_factor": rope.factor}
    if rope.rope_type == "linear":
        return {"seq_len_interpolation_factor": rope.factor}
    return {
        "position_embedding_type": "yarn",
        "yarn_rotary_scaling_factor": rope.factor,
        "yarn_original_max_position_embeddings": rope.original_max_position_embeddings or 4096,
        "yarn_beta_fast": rope.beta_fast or 32.0,
        "yarn_beta_slow": rope.beta_slow or 1.0,
        "yarn_mscale": rope.mscale,
        "yarn_mscale_all_dim": rope.mscale_all_dim,
        "yarn_correction_range_round_to_int": rope.truncate is not False,
    }


def refused(model: ModelDescriptor) -> Iterator[Problem]:
    """Yield what it has no field for."""
    rope = scaling(model)
    if rope is None:
        return
    if rope.rope_type not in ("llama3", "linear", "yarn"):
        yield Problem("Megatron-Bridge has no such scaling", field="rope_scaling.rope_type", got=rope.rope_type)
    if rope.rope_type == "yarn" and model.hidden_act != "clamped_swiglu":
        yield Problem(
            "Megatron-Bridge has YaRN for latent attention and for models like gpt-oss only",
            field="rope_scaling.rope_type",
            got="yarn",
        )
    if rope.rope_type == "llama3":
        for name, fixed in LLAMA3_FIXED.items():
            if name != "factor" and (got := getattr(rope, name)) != fixed:
                yield Problem(
                    f"Megatron's Llama 3 scaling always uses {fixed:g}", field=f"rope_scaling.{name}", got=str(got)
                )
