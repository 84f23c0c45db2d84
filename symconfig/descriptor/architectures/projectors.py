"""What stands between a vision tower and the language model, from a file's sizes: steps of the section `vision`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

Values = Mapping[str, Any]
Steps = list[dict[str, Any]]


class Unfit(ValueError):
    """Raised for sizes that cannot go together, with what is wrong, and the key that has it."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key


def _linear(width: int, bias: bool = True) -> dict[str, Any]:
    return {"kind": "linear", "width": width, "bias": bias}


_ACT = {"kind": "activation"}
_JOIN = {"kind": "join"}


def _merger(norm: str, wide: int, out: int, joined: bool = False) -> Steps:
    """Make a merger of the Qwens: a norm in front of the join, or behind it, and two linear layers."""
    first = [_JOIN, {"kind": norm}] if joined else [{"kind": norm}, _JOIN]
    return [*first, _linear(wide), _ACT, _linear(out)]


def _wide(tower: Values, hidden: str = "hidden_size") -> int:
    return int(tower[hidden] * tower["spatial_merge_size"] ** 2)


def _shuffled(key: str, ratio: float) -> int:
    """Return how many patches along a side become one token."""
    side = round(1 / ratio) if 0 < ratio <= 1 else 0
    if not side or abs(side * ratio - 1) > 1e-9:
        raise Unfit(key, f"{ratio} is not one over a whole number")
    return side


def qwen(norm: str, hidden: str = "hidden_size") -> Callable[[Values, Values, int], dict[str, Any]]:
    """Return what makes the merger of Qwen2-VL and Qwen2.5-VL. hidden: the key of the tower's channels."""
    return lambda tower, around, out: {
        "projector": _merger(norm, _wide(tower, hidden), tower["hidden_size" if hidden == "embed_dim" else _OUT])
    }


_OUT = "out_hidden_size"


def qwen3(tower: Values, around: Values, out: int) -> dict[str, Any]:
    """Return Qwen3-VL's merger, and those of the layers whose patches go deeper."""
    fields = qwen("layernorm")(tower, around, out)
    if tower.get("deepstack_visual_indexes"):
        fields["deepstack"] = _merger("layernorm", _wide(tower), tower[_OUT], joined=True)
    return fields


def glm(tower: Values, around: Values, out: int) -> dict[str, Any]:
    """Return GLM-4V's: a convolution joins patches, then a product, a norm and a gated MLP."""
    width, gated = tower[_OUT], {"kind": "gated", "intermediate": tower["intermediate_size"]}
    return {"projector": [_JOIN, _linear(width), _linear(width, False), {"kind": "layernorm"}, _ACT, gated]}


def gemma3(tower: Values, around: Values, out: int) -> dict[str, Any]:
    """Return Gemma 3's: the mean of neighbours, a norm and a product."""
    side, tokens = tower["image_size"] // tower["patch_size"], isqrt(around["mm_tokens_per_image"])
    if tokens**2 != around["mm_tokens_per_image"] or side % tokens:
        what = f"{side} x {side} patches cannot be pooled into {around['mm_tokens_per_image']} tokens"
        raise Unfit("mm_tokens_per_image", what)
    pool = [{"kind": "pool"}] if side > tokens else []
    return {"spatial_merge_size": side // tokens, "projector": [*pool, {"kind": "rmsnorm"}, _linear(out, False)]}


def llama4(tower: Values, around: Values, out: int) -> dict[str, Any]:
    """Return Llama 4's: neighbours joined, two products with an activation behind each, and a last one."""
    side = _shuffled("pixel_shuffle_ratio", tower["pixel_shuffle_ratio"])
    joined = tower["hidden_size"] * side**2
    for key, given, need in (
        ("intermediate_size", tower["intermediate_size"], joined),
        ("projector_output_dim", tower["projector_output_dim"], tower["projector_input_dim"]),
        ("vision_output_dim", tower["vision_output_dim"], tower["projector_output_dim"]),
    ):
        if given != need:
            raise Unfit(key, f"the projector takes {given} channels, and is given {need}")
    widths = tower["projector_input_dim"], tower["projector_output_dim"]
    middle = [step for width in widths for step in (_linear(width, False), _ACT)]
    return {"spatial_merge_size": side, "projector": [_JOIN, *middle, _linear(out, False)]}


def mistral3(tower: Values, around: Values, out: int) -> dict[str, Any]:
    """Return Mistral 3's: a norm, neighbours joined by a product, and two products."""
    merge, bias = around["spatial_merge_size"], around["multimodal_projector_bias"]
    patches = [_JOIN, _linear(tower["hidden_size"], False)] if merge > 1 else [_linear(tower["hidden_size"], False)]
    steps = [{"kind": "rmsnorm"}, *patches, _linear(out, bias), _ACT, _linear(out, bias)]
    return {"spatial_merge_size": merge, "projector": steps}


def internvl(tower: Values, around: Values, out: int) -> dict[str, Any]:
    """Return InternVL's: neighbours joined, a norm and two products."""
    side = _shuffled("downsample_ratio", around["downsample_ratio"])
    join = [_JOIN] if side > 1 else []
    steps = [*join, {"kind": "layernorm"}, _linear(out), _ACT, _linear(out)]
    return {"spatial_merge_size": side, "projector": steps}


def llava(tower: Values, around: Values, out: int) -> dict[str, Any]:
    """Return LLaVA's two products."""
    bias = around["multimodal_projector_bias"]
    return {"projector": [_linear(out, bias), _ACT, _linear(out, bias)]}
