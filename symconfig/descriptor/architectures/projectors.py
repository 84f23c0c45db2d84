"""What stands between a vision tower and the language model, from a file's sizes: steps of the section `vision`.

Each function returns fields of that section, from the tower's values, those around it, and the model's hidden_size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

Values = Mapping[str, Any]
Fields = dict[str, Any]
_OUT = "out_hidden_size"


class Unfit(ValueError):
    """Raised for sizes that cannot go together, with what is wrong, and the key that has it."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key


def _steps(text: str, **widths: int) -> list[Fields]:
    """Return steps by words: a kind, or the name of a linear layer's width, with a minus where it has no bias."""
    names = [(word, word.removesuffix("-")) for word in text.split()]
    return [
        {"kind": "linear", "width": widths[name], "bias": name == word} if name in widths else {"kind": word}
        for word, name in names
    ]


def _wide(tower: Values, hidden: str = "hidden_size") -> int:
    return int(tower[hidden] * tower["spatial_merge_size"] ** 2)


def _shuffled(key: str, ratio: float) -> int:
    """Return how many patches along a side become one token."""
    side = round(1 / ratio) if 0 < ratio <= 1 else 0
    if not side or abs(side * ratio - 1) > 1e-9:
        raise Unfit(key, f"{ratio} is not one over a whole number")
    return side


def qwen(norm: str, hidden: str = "hidden_size") -> Callable[[Values, Values, int], Fields]:
    """Return what makes the merger of Qwen2-VL and Qwen2.5-VL. hidden: the key of the tower's channels."""
    last = "hidden_size" if hidden == "embed_dim" else _OUT
    return lambda tower, around, out: {
        "projector": _steps(f"{norm} join wide activation out", wide=_wide(tower, hidden), out=tower[last])
    }


def qwen3(tower: Values, around: Values, out: int) -> Fields:
    """Return Qwen3-VL's merger, and those of the layers whose patches go deeper."""
    fields = qwen("layernorm")(tower, around, out)
    if tower.get("deepstack_visual_indexes"):
        fields["deepstack"] = _steps("join layernorm wide activation out", wide=_wide(tower), out=tower[_OUT])
    return fields


def glm(tower: Values, around: Values, out: int) -> Fields:
    """Return GLM-4V's: a convolution joins patches, then a product, a norm and a gated MLP."""
    gated = {"kind": "gated", "intermediate": tower["intermediate_size"]}
    return {"projector": [*_steps("join out out- layernorm activation", out=tower[_OUT]), gated]}


def gemma3(tower: Values, around: Values, out: int) -> Fields:
    """Return Gemma 3's: the mean of neighbours, a norm and a product."""
    side, tokens = tower["image_size"] // tower["patch_size"], isqrt(around["mm_tokens_per_image"])
    if tokens**2 != around["mm_tokens_per_image"] or side % tokens:
        what = f"{side} x {side} patches cannot be pooled into {around['mm_tokens_per_image']} tokens"
        raise Unfit("mm_tokens_per_image", what)
    pool = "pool " if side > tokens else ""
    return {"spatial_merge_size": side // tokens, "projector": _steps(pool + "rmsnorm out-", out=out)}


def llama4(tower: Values, around: Values, out: int) -> Fields:
    """Return Llama 4's: neighbours joined, two products with an activation behind each, and a last one."""
    side = _shuffled("pixel_shuffle_ratio", tower["pixel_shuffle_ratio"])
    first, second = tower["projector_input_dim"], tower["projector_output_dim"]
    for key, given, need in (
        ("intermediate_size", tower["intermediate_size"], tower["hidden_size"] * side**2),
        ("projector_output_dim", second, first),
        ("vision_output_dim", tower["vision_output_dim"], second),
    ):
        if given != need:
            raise Unfit(key, f"the projector takes {given} channels, and is given {need}")
    steps = _steps("join first- activation second- activation out-", first=first, second=second, out=out)
    return {"spatial_merge_size": side, "projector": steps}


def mistral3(tower: Values, around: Values, out: int) -> Fields:
    """Return Mistral 3's: a norm, neighbours joined by a product, and two products."""
    merge, last = around["spatial_merge_size"], "out" if around["multimodal_projector_bias"] else "out-"
    text = f"rmsnorm {'join' if merge > 1 else ''} inner- {last} activation {last}"
    return {"spatial_merge_size": merge, "projector": _steps(text, inner=tower["hidden_size"], out=out)}


def internvl(tower: Values, around: Values, out: int) -> Fields:
    """Return InternVL's: neighbours joined, a norm and two products."""
    side = _shuffled("downsample_ratio", around["downsample_ratio"])
    text = f"{'join' if side > 1 else ''} layernorm out activation out"
    return {"spatial_merge_size": side, "projector": _steps(text, out=out)}


def llava(tower: Values, around: Values, out: int) -> Fields:
    """Return LLaVA's two products."""
    last = "out" if around["multimodal_projector_bias"] else "out-"
    return {"projector": _steps(f"{last} activation {last}", out=out)}
