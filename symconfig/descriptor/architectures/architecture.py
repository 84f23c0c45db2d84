"""How the `config.json` of one architecture is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Derived(Enum):
    """Defaults that follow from other keys."""

    HEADS = "num_attention_heads"
    HEAD_DIM = "hidden_size / num_attention_heads"
    FOUR_TIMES_HIDDEN = "4 x hidden_size"


class Window(Enum):
    """Which layers have the sliding window, when `layer_types` does not say it."""

    ALL = "every layer"
    QWEN2 = "with use_sliding_window, layers from max_window_layers on"
    QWEN2_MOE = "with use_sliding_window, every other layer before max_window_layers"
    QWEN3_MOE = "with use_sliding_window, every layer"
    ALTERNATE = "every other layer, the first one first"
    GEMMA3 = "all but every sliding_window_pattern-th layer"


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one `model_type` is read. Keys on the left are config.json's, names on the right the descriptor's."""

    defaults: Mapping[str, Any]
    constants: Mapping[str, Any] = field(default_factory=dict)  # descriptor fields that the class fixes
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # where a key goes, if not as in NAMES
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # understood with these values only
    noted: Mapping[str, str] = field(default_factory=dict)  # left out with a note, when set
    ignored: tuple[str, ...] = ()  # no effect on the trained model
    same_as: Mapping[str, str] = field(default_factory=dict)  # a second spelling of another key
    window: Window | None = None
    gate_and_up_in_one: bool = False  # intermediate_size counts both halves of the gated MLP (Qwen-7B)
    groups_with: str | None = None  # n_group and topk_group apply with this topk_method only
    text_of: str | None = None  # the language model is this section of the file
    text_type: str = ""  # whose model_type this is, where it says none
    text_flat: bool = False  # or its keys stand in no section of their own
    text_tied: bool = False  # what the file around it says of tie_word_embeddings where it does not say it
    text_ties: bool = False  # the section's own tie_word_embeddings counts, too


def without(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The defaults of a relative that lacks these keys."""
    return {key: value for key, value in table.items() if key not in keys}
