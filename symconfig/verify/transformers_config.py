"""A descriptor back to the `config.json` that it could have come from, and to transformers' own config class."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures import architectures
from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.keys import NAMES
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem

# Qwen-7B's code is not part of transformers; Qwen2 with as many key heads as heads is the same network.
_SAME_NETWORK = {"qwen": "qwen2"}
_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh", "clamped_swiglu": "silu"}
_FOR_PEOPLE = ("name", "source", "huggingface_id", "notes", "adapter")


def config_dict(model: ModelDescriptor) -> dict[str, Any]:
    """The keys of `config.json`. Raises InputError naming every field that this architecture cannot express.

    The adapter is not part of it. Importing the result gives the descriptor back; that is checked.
    """
    kind = _SAME_NETWORK.get(model.model_type, model.model_type)
    architecture = architectures().get(kind)
    if architecture is None or architecture.text_of is not None:
        raise InputError(Problem("this architecture is not known", field="model_type", got=model.model_type))
    fields = model.model_dump(mode="json", by_alias=True)
    config: dict[str, Any] = {"model_type": kind, "torch_dtype": model.torch_dtype}
    for key in architecture.defaults:
        path = (architecture.names.get(key) or NAMES.get(key) or (key,))[0]
        section, _, leaf = path.rpartition(".")
        holder = (fields.get(section) or {}) if section else fields
        if leaf in holder:
            config[key] = holder[leaf]
    for key in ("hidden_act", "hidden_activation", "activation_function"):
        if key in config:
            config[key] = _ACTIVATIONS.get(config[key], config[key])
    config |= _rope(model, architecture) | _window(model, architecture) | _experts(model, architecture)
    _check_round_trip(model, config)
    return config


def to_transformers_config(model: ModelDescriptor) -> Any:
    """transformers' config object, for `AutoModelForCausalLM.from_config`. Raises InputError like `config_dict`.

    Special tokens are left unset: a padding token would have to lie inside a tiny model's vocabulary.
    """
    from transformers import AutoConfig

    config = config_dict(model)
    kind = config.pop("model_type")
    if "experts.e_score_correction_bias" in architectures()[kind].constants:
        config.pop("aux_loss_alpha")  # of DeepSeek's own code; the class knows no such loss
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    return AutoConfig.for_model(kind, **config, **tokens)


def _rope(model: ModelDescriptor, architecture: Architecture) -> dict[str, Any]:
    if "rope_scaling" not in architecture.defaults:
        return {}
    scaling = model.rope_scaling.model_dump(mode="json", exclude_none=True) if model.rope_scaling else None
    if scaling is None and architecture.defaults["rope_scaling"] is not None:
        scaling = {"rope_type": "default"}  # null would mean the architecture's own scaling
    if "original_max_position_embeddings" not in architecture.defaults:
        return {"rope_scaling": scaling}
    original = (scaling or {}).get("original_max_position_embeddings", model.max_position_embeddings)
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _window(model: ModelDescriptor, architecture: Architecture) -> dict[str, Any]:
    if architecture.layers is None:
        return {}
    config: dict[str, Any] = {"sliding_window": model.sliding_window}
    if "use_sliding_window" in architecture.defaults:
        config["use_sliding_window"] = model.sliding_window is not None
    if "layer_types" in architecture.defaults:
        config["layer_types"] = ["sliding_attention" if on else "full_attention" for on in model.sliding_layers]
    if "sliding_window_pattern" in architecture.defaults:
        config["sliding_window_pattern"] = architecture.defaults["sliding_window_pattern"]
    return config


def _experts(model: ModelDescriptor, architecture: Architecture) -> dict[str, Any]:
    experts, config = model.experts, dict[str, Any]()
    if experts is None:
        return config
    if "n_shared_experts" in architecture.defaults:
        config["n_shared_experts"] = experts.shared_expert_intermediate_size // experts.moe_intermediate_size
    if "mlp_only_layers" in architecture.defaults:
        config["mlp_only_layers"] = list(range(experts.first_k_dense_replace))
    if architecture.groups_with is not None:
        config["topk_method"] = architecture.groups_with if experts.n_group else "greedy"
    return config


def _check_round_trip(model: ModelDescriptor, config: dict[str, Any]) -> None:
    """Everything that changes what is computed must come back as it was."""
    try:
        again = import_config(config, model.name, model.name).model_dump(mode="json", by_alias=True)
    except InputError as error:
        raise InputError([Problem(f"{model.model_type} cannot express this model: {p.what}", field=p.field, got=p.got,
                                  need=p.need) for p in error.problems]) from None  # fmt: skip
    wanted = model.model_dump(mode="json", by_alias=True)
    again["model_type"] = model.model_type
    lost = [key for key in wanted if key not in _FOR_PEOPLE and wanted[key] != again[key]]
    if lost:
        what = f"{model.model_type} in transformers cannot express this value"
        raise InputError([Problem(what, field=key, got=repr(wanted[key]), need=repr(again[key])) for key in lost])
