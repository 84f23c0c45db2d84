"""The vision tower of a multimodal model as numbers: what encodes images, and what brings them into the stream.

Names are those of the `vision_config` of Hugging Face's `config.json` where there is one. How many images a sequence
has is the job's to say, and stands here once a job was laid over its model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from symconfig.descriptor.strict import Count, PositiveInt, Strict

MOST_LAYERS = 1_000  # the deepest published tower has 63 (InternViT-6B has 45, Qwen2.5-VL's 32)

EMBEDDING, LAYER, WINDOW_LAYER, DEEPSTACK, PROJECTOR = KINDS = (
    "vision_embedding",
    "vision_layer",
    "vision_window_layer",
    "vision_deepstack",
    "vision_projector",
)


class Step(Strict):
    """One step from a tower's patches to tokens of the language model.

    join: the channels of spatial_merge_size x spatial_merge_size neighbours become one token's; pool: their mean does.
    gated: a gated MLP of `intermediate` channels, which gives as many as it was given.
    """

    kind: Literal["layernorm", "rmsnorm", "join", "pool", "linear", "activation", "gated"]
    width: Count = Field(default=0, description="channels that a linear layer gives")
    intermediate: Count = Field(default=0, description="channels between, of a gated MLP")
    bias: bool = False

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence unless width is above 0 for linear alone, intermediate for gated alone, and bias set for
        these two kinds only.
        """
        for name, owner in (("width", "linear"), ("intermediate", "gated")):
            value = getattr(self, name)
            if (value > 0) != (self.kind == owner):
                yield f"{name} goes with kind {owner}, and there it is needed (got {self.kind}, {value})"
        if self.bias and self.kind not in ("linear", "gated"):
            yield f"kind {self.kind} has no bias"


class Vision(Strict):
    """A tower in front of the language model. Optional fields have the value that most towers share."""

    model_type: str = Field(min_length=1, description="of the multimodal model as in config.json: qwen3_vl, gemma3, …")
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: Annotated[int, Field(gt=0, le=MOST_LAYERS)] = Field(description="depth")
    num_attention_heads: PositiveInt = Field(description="num_heads")
    num_channels: PositiveInt = 3
    patch_size: PositiveInt = Field(description="pixels along a side")
    temporal_patch_size: PositiveInt = Field(default=1, description="frames; an image is repeated for as many")
    image_size: PositiveInt = Field(description="pixels along a side of an image that is trained on")
    any_resolution: bool = Field(default=False, description="image_size is only a default: a job may set another")
    num_position_embeddings: Count = Field(default=0, description="rows of a learned table of positions; 0: none")
    rope: bool = Field(default=False, description="queries and keys are turned by their patch's row and column")
    class_token: bool = Field(default=False, description="a learned token stands before the patches, and is dropped")
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_before: bool = Field(default=False, description="a norm before the first layer")
    norm_after: bool = Field(default=False, description="a norm behind the last layer")
    hidden_act: str = "gelu"
    gated_mlp: bool = False
    by_image: bool = Field(
        default=False,
        description="images lie one after the other, and patches in the order of their tokens: attention runs image by "
        "image, and what joins patches copies nothing (Qwen's and GLM's towers)",
    )
    fused_qkv: bool = Field(default=False, description="query, key and value are one linear layer")
    patch_bias: bool = True
    qkv_bias: bool = True
    attention_out_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = Field(default=False, description="a norm on all channels of the query and of the key (InternVL)")
    layer_scale: bool = Field(default=False, description="a learned factor of each channel on both branches (InternVL)")
    window_size: Count = Field(default=0, description="pixels along a side, within which patches attend; 0: everywhere")
    fullatt_block_indexes: tuple[Count, ...] = Field(default=(), description="layers that attend everywhere anyway")
    spatial_merge_size: PositiveInt = Field(default=1, description="patches along a side that become one token")
    projector: tuple[Step, ...] = Field(min_length=1, description="from patches to tokens of the language model")
    deepstack_visual_indexes: tuple[Count, ...] = Field(
        default=(), description="layers whose patches enter later layers of the language model, too (Qwen3-VL)"
    )
    deepstack: tuple[Step, ...] = Field(default=(), description="from those patches to what is added there")
    frozen: bool = Field(default=False, description="the tower's weights are not trained")
    projector_frozen: bool = Field(default=False, description="those of the projector are not")
    images_per_sequence: Annotated[float, Field(ge=0.0, le=1e6)] = Field(
        default=0.0, description="in the mean, of a job; 0: the job trains on text alone, without the tower"
    )

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence where the hidden size does not divide by the heads, image or window by a token's pixels,
        positions are not an image's, listed layers do not exist, of lists and steps one is missing, or patches are
        joined otherwise than once or, with spatial_merge_size 1, never.
        """
        token, layers = self.patch_size * self.spatial_merge_size, self.num_hidden_layers
        if self.hidden_size % self.num_attention_heads:
            yield f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
        if self.image_size % token:
            merged = f" times spatial_merge_size {self.spatial_merge_size}" if self.spatial_merge_size > 1 else ""
            fits = max(self.image_size // token, 1) * token
            yield f"image_size {self.image_size} is not divisible by patch_size {self.patch_size}{merged}, as {fits} is"
        if self.window_size % token:
            yield f"window_size {self.window_size} is not divisible by the {token} pixels of a token"
        rows = self.num_position_embeddings
        if rows and not self.any_resolution and rows != self.sequence:
            yield f"num_position_embeddings {rows} is not the {self.sequence} positions of an image"
        for name in ("fullatt_block_indexes", "deepstack_visual_indexes"):
            indexes = getattr(self, name)
            if len(set(indexes)) != len(indexes) or any(index >= layers for index in indexes):
                yield f"{name} {list(indexes)} are not different layers of {layers}"
        if self.fullatt_block_indexes and not self.window_size:
            yield "fullatt_block_indexes needs window_size"
        for name in ("projector", "deepstack"):
            steps = getattr(self, name)
            joins = sum(step.kind in ("join", "pool") for step in steps)
            if steps and joins != int(self.spatial_merge_size > 1):
                yield f"{name} joins patches {joins} times, spatial_merge_size is {self.spatial_merge_size}"
        if bool(self.deepstack) != bool(self.deepstack_visual_indexes):
            yield "deepstack and deepstack_visual_indexes go together"

    @property
    def side(self) -> int:
        """Return the number of patches along a side of an image."""
        return self.image_size // self.patch_size

    @property
    def patches(self) -> int:
        """Return the number of patches of an image."""
        return self.side**2

    @property
    def sequence(self) -> int:
        """Return the tokens of an image in the tower's layers: its patches, and the class token if there is one."""
        return self.patches + self.class_token

    @property
    def tokens(self) -> int:
        """Return the number of language model tokens of an image."""
        return self.patches // self.spatial_merge_size**2

    @property
    def window_patches(self) -> float:
        """Return the mean number of patches that a patch of a windowed layer attends to: those of its window.

        The windows at the image's edges may be smaller. Without windows it is the whole sequence.
        """
        if not self.window_size:
            return float(self.sequence)
        whole, rest = divmod(self.image_size, self.window_size)
        along = (whole * self.window_size**2 + rest**2) / self.image_size / self.patch_size
        return along**2

    @property
    def trains(self) -> bool:
        """Return whether any weights of tower or projector are trained."""
        return not (self.frozen and self.projector_frozen)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kind of each block of the tower in the order of KINDS, a kind as often as the tower has it: one
        embedding, full layers (all without a window), windowed layers, deepstack projectors, and one projector.
        """
        windowed = self.num_hidden_layers - len(self.fullatt_block_indexes) if self.window_size else 0
        counts = (1, self.num_hidden_layers - windowed, windowed, len(self.deepstack_visual_indexes), 1)
        return tuple(kind for kind, count in zip(KINDS, counts, strict=True) for _ in range(count))

    def widths(self, steps: tuple[Step, ...]) -> tuple[int, ...]:
        """Return the number of channels before each step and after the last one, `[steps + 1]`, from hidden_size on.

        A step with a width has that; `join` multiplies by spatial_merge_size squared; others keep the number.
        """
        widths = [self.hidden_size]
        for step in steps:
            joined = widths[-1] * (self.spatial_merge_size**2 if step.kind == "join" else 1)
            widths.append(step.width or joined)
        return tuple(widths)

    def against(self, hidden_size: int) -> list[str]:
        """Return the problems of projectors whose output is not `hidden_size` wide; empty if all fit."""
        return [
            f"vision.{name} ends with {width} channels, and hidden_size is {hidden_size}"
            for name in ("projector", "deepstack")
            if (steps := getattr(self, name)) and (width := self.widths(steps)[-1]) != hidden_size
        ]
