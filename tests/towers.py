"""Small multimodal `config.json`s, one for each kind of vision tower, and Transformers' own modules of them."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from symconfig.descriptor.document import Document
from symconfig.descriptor.huggingface import VisionReader
from symconfig.descriptor.vision import Vision

TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 160,
}  # fmt: skip
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "patch_size": 4}
_DEEP = _SIZES | {"depth": 3, "num_heads": 2, "out_hidden_size": 64}
_WIDE = _SIZES | {"num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 16}
SMALL: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"vision_config": {"depth": 3, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4}},
    "qwen2_5_vl": {"vision_config": _DEEP | {"window_size": 16, "fullatt_block_indexes": [1]}},
    "qwen3_vl": {"vision_config": _DEEP | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}},
    "qwen3_vl_moe": {"vision_config": _DEEP | {"num_position_embeddings": 64, "deepstack_visual_indexes": [1]}},
    "qwen3_5": {"vision_config": _DEEP | {"num_position_embeddings": 64}},
    "glm4v": {"vision_config": _DEEP | {"image_size": 16}},
    "glm46v": {"vision_config": _DEEP | {"image_size": 16}},
    "glm4v_moe": {"vision_config": _DEEP | {"image_size": 16, "attention_bias": True}},
    "gemma3": {
        "vision_config": _WIDE | {"model_type": "siglip_vision_model", "vision_use_head": False},
        "mm_tokens_per_image": 4,
    },
    "llama4": {
        "vision_config": _WIDE
        | {"intermediate_size": 128, "vision_output_dim": 24}
        | {"projector_input_dim": 24, "projector_output_dim": 24}
    },
    "mistral3": {"vision_config": _WIDE | {"model_type": "pixtral"}, "spatial_merge_size": 2},
    "internvl": {"vision_config": _WIDE | {"image_size": [16, 16], "patch_size": [4, 4], "use_qk_norm": True}},
    "llava": {"vision_config": _WIDE | {"model_type": "clip_vision_model"}},
}


def config(kind: str, **more: Any) -> Any:
    """Return Transformers' configuration of a small model of this kind."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    given = deepcopy(SMALL[kind]) | more
    text: dict[str, Any] = {**TEXT, "vocab_size": 160}
    found = CONFIG_MAPPING[kind](**given)
    for name, value in text.items():
        setattr(found.text_config, name, value)
    for name in ("layer_types", "mlp_layer_types", "no_rope_layers", "moe_layers"):
        if getattr(found.text_config, name, None):
            setattr(found.text_config, name, getattr(found.text_config, name)[:2])
    found.text_config.pad_token_id = None
    return found


def plain(found: Any) -> dict[str, Any]:
    """Return a configuration as its file has it."""
    data: dict[str, Any] = json.loads(found.to_json_string(use_diff=False))
    return data


def tower(kind: str, **more: Any) -> Vision:
    """Return the tower that is read of a small model's file."""
    data = plain(config(kind, **more))
    reader = VisionReader(data, Document(data, "config.json"))
    found = reader.read(TEXT["hidden_size"])
    assert found is not None, (reader.problems, reader.notes)
    return found


def module(kind: str, **more: Any) -> Any:
    """Return Transformers' model of a small configuration, with random weights in bf16."""
    import torch
    from transformers import AutoModelForImageTextToText

    found = config(kind, **more)
    return AutoModelForImageTextToText.from_config(found, dtype=torch.bfloat16, attn_implementation="sdpa").train()


def look(built: Any, kind: str, vision: Vision) -> None:
    """Send one image through a model's tower and its projector."""
    import torch

    inner, side = (built if kind == "llama4" else built.model), vision.image_size
    if vision.by_image:
        pixels = vision.num_channels * vision.temporal_patch_size * vision.patch_size**2
        given = torch.zeros((vision.patches, pixels), dtype=torch.bfloat16)
        inner.get_image_features(given, torch.tensor([[1, vision.side, vision.side]]))
        return
    image = torch.zeros((1, vision.num_channels, side, side), dtype=torch.bfloat16)
    sizes = {"image_sizes": torch.tensor([[side, side]])} if kind == "mistral3" else {}
    strategy = {"vision_feature_select_strategy": "default"} if kind == "llama4" else {}
    seen = inner.get_image_features(image, **sizes, **strategy)
    if kind == "llama4":  # whose last linear layer stands in the model's own forward
        built.multi_modal_projector(seen.last_hidden_state)
