"""What transformers' config classes fill in where a `config.json` says nothing: by tools/generate/families.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from symconfig.descriptor.architectures.keys import Derived

FILE = Path(__file__).parent / "transformers.json"
# Keys that a class fills in from others where they are null (each class's __post_init__ or its modules).
DERIVED: Mapping[str, Derived] = {
    "num_key_value_heads": Derived.HEADS,
    "head_dim": Derived.HEAD_DIM,
    "n_inner": Derived.FOUR_TIMES_HIDDEN,
}
# Families of which transformers has no class, with one that is the same network: Qwen-7B's code is Qwen2's, GPT-3 is
# GPT-2 with other sizes, Kimi-K2 DeepSeek-V3, Ling 2.0 Sarvam's, and MiniCPM Granite with other names of its factors.
SAME_NETWORK = {
    "qwen": "qwen2",
    "gpt3": "gpt2",
    "kimi_k2": "deepseek_v3",
    "mimo": "qwen2",
    "bailing_moe": "sarvam_moe",
    "minicpm": "granite",
}

# Families whose bias on each router's scores is a parameter that no gradient reaches.
SCORE_BIAS = ("afmoe", "ernie4_5_moe")


@cache
def _file() -> Mapping[str, Any]:
    rows: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return rows


def families() -> Mapping[str, Any]:
    """Return the families of the recorded Transformers release by model_type.

    Each row has defaults, types, aliases, rope and the text section.
    """
    rows: Mapping[str, Any] = _file()["families"]
    return rows


def row_of(kind: str) -> Mapping[str, Any] | None:
    """Return the recorded row of a family, else of a text model inside a multimodal one; None if there is neither."""
    row: Mapping[str, Any] | None = families().get(kind, _file()["inner"].get(kind))
    return row


def defaults(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's defaults by config.json key; a null is a `Derived` for the keys in DERIVED.

    Rope's keys, as before Transformers 5, replace `rope_parameters`, and are only there if the class has it.
    """
    values = {key: DERIVED.get(key) if value is None else value for key, value in row["defaults"].items()}
    if values.pop("rope_parameters", None) is not None or "rope_parameters" in row["defaults"]:
        values |= _rope(row.get("rope") or {})
    return values


def tower(kind: str) -> Mapping[str, Any]:
    """Return the defaults of a vision tower's class by key. Raises KeyError for an unknown model_type."""
    values: Mapping[str, Any] = _file()["towers"][kind]
    return values


def class_of(kind: str) -> str | None:
    """Return the name of a family's class for causal modelling; None if Transformers has none."""
    return families()[kind]["class"] if kind in families() else None


def own_attention(kind: str) -> bool:
    """Return whether a family's modules compute attention themselves instead of by Transformers' attention interface.

    False for unknown families.
    """
    return bool(families().get(SAME_NETWORK.get(kind, kind), {}).get("own_attention"))


def whole_heads(kind: str) -> bool:
    """Return whether a family's class refuses a hidden_size not divisible by the heads; True for unknown families."""
    row = families().get(SAME_NETWORK.get(kind, kind))
    return row is None or bool(row.get("whole_heads"))


def plain_attention(kind: str) -> bool:
    """Return whether a family's class has eager attention only, without torch's fused kernels.

    False for unknown families.
    """
    return bool(families().get(SAME_NETWORK.get(kind, kind), {}).get("plain_attention"))


def around() -> dict[str, tuple[str, str]]:
    """Return the (text section's key, text model's type) of multimodal models, by model_type.

    The type counts where the section names none.
    """
    return {kind: (section, inner) for kind, (section, inner) in _file()["around"].items()}


def _rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return a class's rope_theta (default 10000.0) and rope_scaling (None for rope_type "default", else all other
    keys).

    By layer type, the values are those of full_attention; rope_local_base_freq is that of sliding_attention, if there
    is one. partial_rotary_factor only where the class states it.
    """
    local = rope.get("sliding_attention")
    whole = rope.get("full_attention", rope)
    values: dict[str, Any] = {"rope_theta": float(whole.get("rope_theta", 10000.0)), "rope_scaling": None}
    if local is not None:
        values["rope_local_base_freq"] = float(local["rope_theta"])
    if "partial_rotary_factor" in whole:
        values["partial_rotary_factor"] = whole["partial_rotary_factor"]
    if whole.get("rope_type", "default") != "default":
        values["rope_scaling"] = {k: v for k, v in whole.items() if k not in ("rope_theta", "partial_rotary_factor")}
    return values
