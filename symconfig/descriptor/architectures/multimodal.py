"""Multimodal models: where their language model stands in the file, what a `vision_config` and the keys around both
mean, and what stands between a tower and the language model, as data.

The language models that only they have are no causal language models of their own. Defaults are those of transformers'
own classes (`keys.tower_defaults`). A key that is in none of a tower's tables is an error: it may change the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

from symconfig.descriptor.architectures import rules
from symconfig.descriptor.architectures.architecture import Architecture, Rule, family
from symconfig.descriptor.architectures.deepseek import LATENT_IGNORED, MLA, ROUTED_AS_V3
from symconfig.descriptor.architectures.keys import COMMON_IGNORED, alternatives, facts, pairs, words
from symconfig.descriptor.architectures.rules import QKV_BIAS, SIGMOID

Values = Mapping[str, Any]
Fields = dict[str, Any]
_OUT = "out_hidden_size"


class Unfit(ValueError):
    """An error for sizes that do not fit each other. key: the config.json key with the wrong value."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key


def _steps(text: str, **widths: int) -> list[Fields]:
    """Return projector steps as dicts from words: {"kind": "linear", "width", "bias"} for a name in `widths`, else the
    kind.

    widths: output channels by name. A minus behind the name means no bias.
    """
    names = [(word, word.removesuffix("-")) for word in text.split()]
    return [
        {"kind": "linear", "width": widths[name], "bias": name == word} if name in widths else {"kind": word}
        for word, name in names
    ]


def _merged_width(tower: Values, hidden: str = "hidden_size") -> int:
    return int(tower[hidden] * tower["spatial_merge_size"] ** 2)


def _patches_per_side(key: str, ratio: float) -> int:
    """Return how many patches along a side become one token, the inverse of `ratio`, an integer.

    Raises Unfit at `key` for a ratio outside 0 to 1 or that is not one over an integer.
    """
    side = round(1 / ratio) if 0 < ratio <= 1 else 0
    if not side or abs(side * ratio - 1) > 1e-9:
        raise Unfit(key, f"{ratio} is not one over a whole number")
    return side


def qwen(norm: str, hidden: str = "hidden_size") -> Callable[[Values, Values, int], Fields]:
    """Return a function (tower, values around it, hidden_size) that makes the projector of Qwen2-VL or Qwen2.5-VL.

    Its steps: norm, join, linear layer of the joined width, activation, linear layer to out_hidden_size, or to
    hidden_size if `hidden` is embed_dim. norm: the norm's kind. hidden: the key of the tower's channels.
    """
    last = "hidden_size" if hidden == "embed_dim" else _OUT
    return lambda tower, around, out: {
        "projector": _steps(f"{norm} join wide activation out", wide=_merged_width(tower, hidden), out=tower[last])
    }


def qwen3(tower: Values, around: Values, out: int) -> Fields:
    """Return Qwen3-VL's projector, and the deepstack's if the tower has deepstack_visual_indexes."""
    fields = qwen("layernorm")(tower, around, out)
    if tower.get("deepstack_visual_indexes"):
        fields["deepstack"] = _steps("join layernorm wide activation out", wide=_merged_width(tower), out=tower[_OUT])
    return fields


def glm(tower: Values, around: Values, out: int) -> Fields:
    """Return GLM-4V's projector: patches joined, two linear layers with a norm, a gated MLP."""
    gated = {"kind": "gated", "intermediate": tower["intermediate_size"]}
    return {"projector": [*_steps("join out out- layernorm activation", out=tower[_OUT]), gated]}


def gemma3(tower: Values, around: Values, out: int) -> Fields:
    """Return Gemma 3's projector (mean pooling, norm, linear layer) and how many patches a token has along a side.

    Without pooling if that is 1. Raises Unfit unless mm_tokens_per_image is a square whose side divides that of the
    patches.
    """
    side, tokens = tower["image_size"] // tower["patch_size"], isqrt(around["mm_tokens_per_image"])
    if tokens**2 != around["mm_tokens_per_image"] or side % tokens:
        what = f"{side} x {side} patches cannot be pooled into {around['mm_tokens_per_image']} tokens"
        raise Unfit("mm_tokens_per_image", what)
    pool = "pool " if side > tokens else ""
    return {"spatial_merge_size": side // tokens, "projector": _steps(pool + "rmsnorm out-", out=out)}


def llama4(tower: Values, around: Values, out: int) -> Fields:
    """Return Llama 4's projector (join, three linear layers without bias) and spatial_merge_size, by
    pixel_shuffle_ratio.

    Raises Unfit for a wrong ratio, or if the tower's widths differ from what the projector takes.
    """
    side = _patches_per_side("pixel_shuffle_ratio", tower["pixel_shuffle_ratio"])
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
    """Return Mistral 3's projector (norm, joining linear layer, two linear layers) and spatial_merge_size."""
    merge, last = around["spatial_merge_size"], "out" if around["multimodal_projector_bias"] else "out-"
    text = f"rmsnorm {'join' if merge > 1 else ''} inner- {last} activation {last}"
    return {"spatial_merge_size": merge, "projector": _steps(text, inner=tower["hidden_size"], out=out)}


def internvl(tower: Values, around: Values, out: int) -> Fields:
    """Return InternVL's projector (join, norm, two linear layers) and spatial_merge_size. Raises Unfit."""
    side = _patches_per_side("downsample_ratio", around["downsample_ratio"])
    text = f"{'join' if side > 1 else ''} layernorm out activation out"
    return {"spatial_merge_size": side, "projector": _steps(text, out=out)}


def llava(tower: Values, around: Values, out: int) -> Fields:
    """Return LLaVA's projector, two linear layers with an activation between."""
    last = "out" if around["multimodal_projector_bias"] else "out-"
    return {"projector": _steps(f"{last} activation {last}", out=out)}


@dataclass(frozen=True, slots=True)
class Multimodal:
    """A table by which a multimodal `config.json` is read around its sections.

    tower: the table of its `vision_config`; a key sets the field in NAMES, else the field of its own name. towers: the
    model_types that `vision_config` may have, that of its class first. projector: returns the projector's fields, from
    the tower's values, those around it, and the language model's hidden_size. text: the language model's type; "": as
    in transformers.json. tied: the default of tie_word_embeddings; ties: the text section's value counts, too. flat:
    the language model may have no section of its own. defaults: of keys around the sections that matter. noted: a note
    for each (key, value).
    """

    tower: Architecture
    towers: tuple[str, ...]
    projector: Callable[[Values, Values, int], dict[str, Any]]
    text: str = ""
    tied: bool = False
    ties: bool = False
    flat: bool = False
    defaults: Values = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    noted: Mapping[tuple[str, Any], str] = field(default_factory=dict)


# Around the sections of every multimodal file: ids of tokens, and what the tokenizer and the processor are told.
BESIDE_TEXT = COMMON_IGNORED | words(
    """text_config vision_config image_token_id image_token_index video_token_id vision_start_token_id
    vision_end_token_id vision_token_id boi_token_index eoi_token_index boi_token_id eoi_token_id image_start_token_id
    image_end_token_id video_start_token_id video_end_token_id tie_word_embeddings torch_dtype dtype initializer_range
    quantization_config image_seq_length"""
)
# Of every tower: no effect on its shapes and costs, or written into every file by old releases.
TOWER_IGNORED = COMMON_IGNORED | words(
    """initializer_range initializer_factor layer_norm_eps rms_norm_eps norm_eps layer_scale_init_value torch_dtype
    dtype attention_dropout hidden_dropout_prob projection_dropout projector_dropout rope_theta rope_parameters
    tokens_per_second vocab_size head_dim projection_dim tie_word_embeddings in_chans attn_implementation"""
)
NAMES = pairs("depth=num_hidden_layers num_heads=num_attention_heads in_channels=num_channels")
_DEPTH = "num_attention_heads=num_heads num_hidden_layers=depth"


def _derived(fields: Callable[[Values], Fields]) -> tuple[Rule, ...]:
    """Return, as a tuple, the rule that sets the fields which `fields` computes from the tower's values."""
    return (Rule(lambda reader: reader.fields.update(fields(reader.values))),)


USUAL_TOKENS = 16  # along a side of an image, where a tower takes any resolution and its file names none: assumed


def _usual_size(values: Values) -> dict[str, Any]:
    return {"image_size": USUAL_TOKENS * values["patch_size"] * values["spatial_merge_size"], "any_resolution": True}


def _positions(values: Values, extra: int = 0) -> dict[str, Any]:
    return {"num_position_embeddings": (values["image_size"] // values["patch_size"]) ** 2 + extra}


_PATCHES = "depth hidden_size num_heads in_channels patch_size spatial_merge_size temporal_patch_size hidden_act "


def _qwen_tower(constants: str, reads: str, sizes: Callable[[Values], Fields], **more: Any) -> Architecture:
    """Return the table of a tower as Qwen's, with these fields besides. sizes: returns computed fields."""
    fields, keys = "by_image fused_qkv rope " + constants, _PATCHES + reads
    return family(fields, reads=keys, rules=_derived(sizes), same_as=_DEPTH, **more)


_QWEN2 = _qwen_tower(
    "patch_bias=false",
    "embed_dim mlp_ratio",
    lambda values: {
        **_usual_size(values),
        "hidden_size": values["embed_dim"],
        "intermediate_size": values["embed_dim"] * values["mlp_ratio"],
    },
    only="spatial_patch_size=14",
)
_QWEN25 = _qwen_tower(
    "norm=rmsnorm gated_mlp patch_bias=false",
    "intermediate_size window_size fullatt_block_indexes out_hidden_size",
    _usual_size,
    only="spatial_patch_size=14",
)
_QWEN3_KEYS = "intermediate_size out_hidden_size num_position_embeddings "
# Qwen 3.5's files say that no layer's result is passed on.
_QWEN35 = _qwen_tower("", _QWEN3_KEYS, _usual_size, only="deepstack_visual_indexes=[]")
_QWEN3 = _qwen_tower("", _QWEN3_KEYS + "deepstack_visual_indexes", _usual_size)
# GLM's layers' MLP is as wide as the language model; intermediate_size is the merger's (Glm4vVisionMlp).
_GLM = _qwen_tower(
    "norm=rmsnorm mlp_bias=false attention_out_bias=false norm_before norm_after gated_mlp any_resolution",
    "attention_bias image_size out_hidden_size intermediate_size",
    lambda values: {**_positions(values), "intermediate_size": values["out_hidden_size"]},
    names="attention_bias=qkv_bias",
)
_VIT = (
    "num_channels hidden_size num_attention_heads num_hidden_layers intermediate_size image_size patch_size hidden_act "
)
_SIGLIP = family("norm_after", reads=_VIT + "vision_use_head", rules=_derived(_positions), only="vision_use_head=false")
_CLIP_FIELDS = "class_token norm_before norm_after patch_bias=false "
_CLIP = family(_CLIP_FIELDS, reads=_VIT, rules=_derived(lambda values: _positions(values, 1)))
_LLAMA4 = family(
    _CLIP_FIELDS + "rope",
    reads=_VIT + "vision_output_dim pixel_shuffle_ratio projector_input_dim projector_output_dim",
    rules=_CLIP.rules,
    only="vision_feature_select_strategy=default multi_modal_projector_bias=false",
    ignored="vision_feature_layer",
)
_PIXTRAL = family(
    """norm=rmsnorm norm_before gated_mlp rope any_resolution patch_bias=false qkv_bias=false attention_out_bias=false
        mlp_bias=false""",
    reads=_VIT,
)
_NORMS = {"layer_norm": "layernorm", "rms_norm": "rmsnorm"}
_INTERNVL = family(
    "class_token layer_scale",
    reads=_VIT + "attention_bias use_qk_norm norm_type",
    rules=_derived(lambda values: {**_positions(values, 1), "norm": _NORMS[values["norm_type"]]}),
    names="attention_bias=qkv_bias use_qk_norm=qk_norm",
    only="""use_mask_token=false use_absolute_position_embeddings use_mean_pooling
        norm_type=layer_norm|rms_norm""",
)

_WHOLE_STRATEGY = "vision_feature_select_strategy=default "
_UNTIED = "tie_word_embeddings=false "
_UNUSED = "sliding_window use_sliding_window max_window_layers layer_types "

ARCHITECTURES: dict[str, Architecture] = {
    "qwen2_vl_text": family("qkv_bias", defaults=_UNTIED, layers=rules.qwen2),
    "qwen2_5_vl_text": family("qkv_bias", defaults=_UNTIED, layers=rules.qwen2),
    "qwen3_vl_text": family("qk_norm", defaults=_UNTIED, ignored=_UNUSED),
    "qwen3_vl_moe_text": family("qk_norm experts.norm_topk_prob", ignored=_UNUSED + "norm_topk_prob"),
    "glm4v_text": family("qkv_bias norm_after_sublayer", defaults=_UNTIED + "partial_rotary_factor=1.0",
        only="attention_bias"),
    "glm4v_moe_text": family(SIGMOID, names=QKV_BIAS, only=ROUTED_AS_V3 + "use_qk_norm=false"),
    "mistral4": family(MLA, only="rope_interleave", ignored=LATENT_IGNORED),
}  # fmt: skip


MULTIMODAL: Mapping[str, Multimodal] = {
    "qwen2_vl": Multimodal(_QWEN2, ("qwen2_vl_vision", "qwen2_vl"), projector=qwen("layernorm", "embed_dim"),
        text="qwen2_vl_text", ties=True, flat=True),
    "qwen2_5_vl": Multimodal(_QWEN25, ("qwen2_5_vl_vision", "qwen2_5_vl"), projector=qwen("rmsnorm"),
        text="qwen2_5_vl_text", ties=True, flat=True),
    "qwen3_vl": Multimodal(_QWEN3, ("qwen3_vl_vision", "qwen3_vl"), projector=qwen3, text="qwen3_vl_text"),
    "qwen3_vl_moe": Multimodal(_QWEN3, ("qwen3_vl_moe_vision", "qwen3_vl_moe"), projector=qwen3,
        text="qwen3_vl_moe_text"),
    "qwen3_5": Multimodal(_QWEN35, ("qwen3_5_vision", "qwen3_5"), projector=qwen3),
    "qwen3_5_moe": Multimodal(_QWEN35, ("qwen3_5_moe_vision", "qwen3_5_moe"), projector=qwen3),
    "glm4v": Multimodal(_GLM, ("glm4v_vision", "glm4v"), projector=glm, text="glm4v_text", ties=True,
        flat=True),
    "glm4v_moe": Multimodal(_GLM, ("glm4v_moe_vision", "glm4v_moe"), projector=glm, text="glm4v_moe_text",
        ties=True),
    "glm46v": Multimodal(_GLM, ("glm4v_vision", "glm46v"), projector=glm, text="glm4v_text"),
    "gemma3": Multimodal(_SIGLIP, ("siglip_vision_model",), projector=gemma3, tied=True,
        defaults=facts("mm_tokens_per_image=256")),
    "llama4": Multimodal(_LLAMA4, ("llama4_vision_model",), projector=llama4),
    "mistral3": Multimodal(_PIXTRAL, ("pixtral",), projector=mistral3, text="mistral", tied=True,
        defaults=facts("spatial_merge_size=2 multimodal_projector_bias=false projector_hidden_act=gelu"),
        only=alternatives("vision_feature_layer=-1")),
    "internvl": Multimodal(_INTERNVL, ("internvl_vision",), projector=internvl, text="qwen2", tied=True,
        defaults=facts("downsample_ratio=0.5 projector_hidden_act=gelu"),
        only=alternatives(_WHOLE_STRATEGY + "vision_feature_layer=-1")),
    "llava": Multimodal(_CLIP, ("clip_vision_model",), projector=llava, text="llama", ties=True,
        defaults=facts("multimodal_projector_bias projector_hidden_act=gelu vision_feature_layer=-2"),
        only=alternatives(_WHOLE_STRATEGY + "vision_feature_layer=-2|-1"),
        noted={
            ("vision_feature_layer", -2): "the projector reads the tower's last layer but one (vision_feature_layer): "
            "the last one and the norm behind it are counted as if they were trained, too"
        }),
}  # fmt: skip
