"""transformers' own config class of a descriptor."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.config_writer import config_json
from symconfig.descriptor.model import ModelDescriptor


def to_transformers_config(model: ModelDescriptor) -> Any:
    """Return transformers' config object, for `AutoModelForCausalLM.from_config`."""
    from transformers import AutoConfig

    config = config_json(model)
    return AutoConfig.for_model(config.pop("model_type"), **config)
